"""Settings of the kernel that come in pairs, of which one is 0 while the other counts: writing one clears the other.

`vm.dirty_bytes` and `vm.dirty_ratio`, and two pairs like them (Documentation/admin-guide/sysctl/vm.rst). The 0 of such a
pair is no value that can be written back: who wants it writes the other one.
"""

from __future__ import annotations

from .kernel_wish import key_path

_PAIRS = (
    ("vm.dirty_bytes", "vm.dirty_ratio"),
    ("vm.dirty_background_bytes", "vm.dirty_background_ratio"),
    ("vm.overcommit_kbytes", "vm.overcommit_ratio"),
)
_PARTNERS = {one: other for pair in _PAIRS for one, other in (pair, pair[::-1])}
_PARTNER_PATHS = {key_path(one): key_path(other) for one, other in _PARTNERS.items()}


def partner(name: str) -> str:
    """The key of the other one of a pair; empty where there is none."""
    return _PARTNERS.get(name, "")


def partner_path(path: str) -> str:
    """The file below /proc/sys of the other one of a pair; empty where there is none."""
    return _PARTNER_PATHS.get(path, "")


def contradictions(wanted: dict[str, str]) -> list[str]:
    """A sentence for each pair of which a wish wants both."""
    return [
        f"sysctl {one} and {other}: expected at most one of the two, since each clears the other, found {wanted[one]} and "
        f"{wanted[other]}: take one of them out of the wish"
        for one, other in _PAIRS
        if wanted.get(one, "0") != "0" and wanted.get(other, "0") != "0"
    ]


def to_write_back(values: dict[str, str], beside: dict[str, str]) -> dict[str, str]:
    """What to write so that *values* hold again, by path; *beside* are the values that the partners had with them."""
    found: dict[str, str] = {}
    for path, value in values.items():
        other = partner_path(path)
        was = values.get(other, beside.get(other, "0"))
        if value == "0" and was != "0":
            found[other] = was
        else:
            found[path] = value
    return found
