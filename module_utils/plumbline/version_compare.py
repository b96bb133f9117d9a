"""Compare the versions that firmware, kernels and drivers carry: no two vendors write them alike."""

from __future__ import annotations

import re

_PRE_RELEASE = {"alpha": 0, "beta": 1, "pre": 2, "rc": 3}


def compare_versions(left: str, right: str) -> int:
    """Return -1, 0 or 1 as ``left`` is older than, equal to or newer than ``right``.

    Runs of digits compare as numbers, runs of letters as text, other characters only part them, and a number is newer
    than letters in its place (the order of RPM). What is longer is newer, except for a pre-release: ``6.12-rc1`` comes
    before ``6.12``. Raises ValueError for a text without a single digit, which is no version.
    """
    pairs_left, pairs_right = _key(left), _key(right)
    for one, other in zip(pairs_left, pairs_right):
        if one != other:
            return -1 if one < other else 1
    rest = pairs_left[len(pairs_right) :] or pairs_right[len(pairs_left) :]
    # Zeros say nothing (2.0 is 2.0.0), a pre-release is older than what it leads to, anything else is newer.
    rest = [part for part in rest if part != (2, 0, "")]
    if not rest:
        return 0
    longer_is_newer = rest[0][0] != 0
    return 1 if (len(pairs_left) > len(pairs_right)) == longer_is_newer else -1


def _key(version: str) -> list[tuple[int, int, str]]:
    text = str(version).strip()
    if not re.search(r"\d", text):
        raise ValueError(f"'{text}' is no version: it holds no digit")
    parts: list[tuple[int, int, str]] = []
    for run in re.findall(r"\d+|[a-z]+", re.sub(r"^[vV](?=\d)", "", text).lower()):
        if run.isdigit():
            parts.append((2, int(run), ""))
        elif run in _PRE_RELEASE:
            parts.append((0, _PRE_RELEASE[run], ""))
        else:
            parts.append((1, 0, run))
    return parts
