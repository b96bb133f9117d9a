"""Order of firmware versions as vendors write them.

Firmware knows no common scheme: `1.13.2`, `U58 v2.60 (05/20/2024)`, `05.01.00`, `4.22.01(b)`, `DVI399M-1.10`,
`96.00.5E.00.01`. Whatever cannot be ordered with certainty has no order here: `compare_versions` then answers None, and the
caller must treat that as unknown, never as good enough.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_BLANK = {"", "n/a", "na", "none", "null", "unknown", "not available", "not applicable", "-", "--"}
_DATE = re.compile(r"\b(?:\d{1,2}/\d{1,2}/\d{2,4}|\d{4}[-/]\d{2}[-/]\d{2})\b")
_PRE_RELEASE = {"alpha": 0, "a": 0, "beta": 1, "b": 1, "rc": 2, "pre": 2}
_NUMBERS = re.compile(r"^[0-9A-Fa-f]+(?:\.[0-9A-Fa-f]+)*$")
_CORE = re.compile(
    r"""^(?P<numbers>\d+(?:\.\d+)*)                            # 1.13.2
        (?P<letter>\(?[a-z]\)?)?                               # 3.8a, 4.22.01(b)
        (?:[-_ .]?(?P<word>alpha|beta|rc|pre)[-_. ]?(?P<count>\d*))?   # 1.2.0-rc1
        (?:[-_ +](?P<build>build|bld|b)?[-_ .#]?(?P<build_number>\d+))?$  # 2.10 build 12, 2.10-12
    """,
    re.VERBOSE | re.IGNORECASE,
)


@dataclass(frozen=True)
class Version:
    """One version, taken apart.

    `family` is what comes before the number and names a product line (`U58`, `DVI`): versions of two families have no
    order. `numbers` are compared first, missing ones count as 0. `letter` (`3.8a`) is a later build of the same numbers,
    `pre` an earlier one, `build` a later one.
    """

    family: str
    numbers: tuple[int, ...]
    letter: str = ""
    pre: tuple[int, int] = (9, 0)  # 9: a release, after every pre-release
    build: int = 0
    hexadecimal: bool = False


def _split_family(text: str) -> tuple[str, str]:
    """Take a product prefix off: `U58 v2.60` -> (`U58`, `2.60`), `DVI399M-1.10` -> (`DVI`, `1.10`)."""
    match = re.match(r"^(?:bios|bmc|version|ver\.?|rev\.?|release|v)[\s:._-]*(?=\d)(.*)$", text, re.IGNORECASE)
    if match:
        return "", match.group(1)
    # HPE: family, then `v` and the number.
    match = re.match(r"^([A-Za-z]{1,4}\d{1,3})[\s_-]+v?(\d.*)$", text)
    if match:
        return match.group(1).upper(), match.group(2)
    # Lenovo: build id (three letters name the product, the rest the build), then a hyphen and the version.
    match = re.match(r"^([A-Za-z][A-Za-z0-9]{2})[A-Za-z0-9]{3,5}-(\d.*)$", text)
    if match:
        return match.group(1).upper(), match.group(2)
    # A product's name in words: `iLO 6 v1.58`, `iDRAC 7.00.00.171`.
    match = re.match(r"^([A-Za-z][A-Za-z0-9 ]*?)\s+v?(\d+\.[\d.].*)$", text)
    if match:
        return match.group(1).strip().upper(), match.group(2)
    return "", text


def parse_version(text: str) -> Version | None:
    """Take a version apart, or None where it is not one (empty, `N/A`, a bare hash, words)."""
    cleaned = " ".join(str(text).split())
    if cleaned.lower() in _BLANK:
        return None
    # `28.36.1010 (MT_0000000838)`: what the brackets hold names the board, not the version.
    without_date = re.sub(r"\s\([^)]*_[^)]*\)$", "", _DATE.sub("", cleaned).replace("()", "").strip()).strip()
    if not without_date:
        digits = re.sub(r"[-/]", ".", cleaned)
        # Only the ISO order of year, month, day can be told from the text alone.
        return Version("", tuple(int(part) for part in digits.split("."))) if re.match(r"^\d{4}\.", digits) else None
    family, rest = _split_family(without_date)
    match = _CORE.match(rest)
    if match:
        pre = (9, 0)
        if match.group("word"):
            pre = (_PRE_RELEASE[match.group("word").lower()], int(match.group("count") or 0))
        return Version(
            family,
            tuple(int(part) for part in match.group("numbers").split(".")),
            (match.group("letter") or "").strip("()").lower(),
            pre,
            int(match.group("build_number") or 0),
        )
    # NVIDIA VBIOS: five bytes in hexadecimal. Every byte has two digits, so that a bare word is not taken for a number.
    if _NUMBERS.match(rest) and "." in rest:
        parts = rest.split(".")
        if all(len(part) == 2 for part in parts):
            return Version(family, tuple(int(part, 16) for part in parts), hexadecimal=True)
    return None


def _bytes_of(version: Version, text: str) -> Version | None:
    """Read a version again as hexadecimal bytes, for a comparison with one that has letters."""
    if version.hexadecimal:
        return version
    parts: list[str] = _split_family(" ".join(text.split()))[1].split(".")
    if all(re.fullmatch(r"[0-9A-Fa-f]{2}", part) for part in parts):
        return Version(version.family, tuple(int(part, 16) for part in parts), hexadecimal=True)
    return None


def compare_versions(left: str, right: str) -> int | None:
    """Order two versions: -1, 0 or 1 as `left` is older than, the same as or newer than `right`; None where nobody knows.

    None comes from a text that is no version, from two product families (`U58` and `A42`), and from forms that do not
    match (bytes in hexadecimal against a release number).
    """
    same_text = " ".join(str(left).split()).lower()
    if same_text == " ".join(str(right).split()).lower():
        return None if same_text in _BLANK else 0
    first, second = parse_version(left), parse_version(right)
    if first is None or second is None:
        return None
    if first.hexadecimal != second.hexadecimal:
        first, second = _bytes_of(first, str(left)), _bytes_of(second, str(right))
        if first is None or second is None:
            return None
    # A floor may leave the family out: `2.60` is then compared with the number of `U58 v2.60`.
    if first.family and second.family and first.family != second.family:
        return None
    width = max(len(first.numbers), len(second.numbers))
    ours = first.numbers + (0,) * (width - len(first.numbers))
    theirs = second.numbers + (0,) * (width - len(second.numbers))
    key_ours = (ours, first.pre, first.letter, first.build)
    key_theirs = (theirs, second.pre, second.letter, second.build)
    return (key_ours > key_theirs) - (key_ours < key_theirs)


def version_at_least(value: str, floor: str) -> bool | None:
    """Say whether `value` is `floor` or newer; None where their order is not known."""
    order = compare_versions(value, floor)
    return None if order is None else order >= 0
