"""What checks have to say on the screen of a machine: figures beside the hardware, what is wrong, what was not measured."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .loose import mapping, number, words
from .quantities import format_percent

_ADDRESS = re.compile(r"\b(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\b", re.IGNORECASE)
_ORDER = {"CRITICAL": 0, "UNKNOWN": 1, "WARN": 2}


@dataclass(frozen=True)
class Wrong:
    """What did not pass, with the probable cause and what to do next."""

    status: str
    what: str
    reason: str
    cause: str = ""
    next_command: str = ""


def figure(checks: Sequence[Mapping[str, Any]], name: str, scope: str) -> Mapping[str, Any] | None:
    """Return the check of that name and scope if something was measured."""
    found = [check for check in checks if check.get("name") == name and check.get("scope") == scope]
    return next((check for check in reversed(found) if number(check.get("value")) is not None), None)


def best(checks: Sequence[Mapping[str, Any]], name: str, needle: str = "") -> Mapping[str, Any] | None:
    """Return the highest figure of that name whose scope speaks of ``needle``: copies are measured in several sizes."""
    found = [
        check
        for check in checks
        if check.get("name") == name
        and number(check.get("value")) is not None
        and needle.lower() in words(check.get("scope")).lower()
    ]
    return max(found, key=lambda check: number(check.get("value")) or 0.0, default=None)


def fraction(check: Mapping[str, Any]) -> float | None:
    """Return the part of its limit that a figure reaches."""
    told = number(check.get("fraction"))
    value, limit = number(check.get("value")), number(check.get("limit"))
    return told if told is not None else value / limit if value is not None and limit else None


def gigabytes(check: Mapping[str, Any] | None) -> str:
    """Return a bandwidth in GB/s with the percentage of its limit, as a cell of a table: ``55.1 (87 %)``."""
    value = number(check.get("value")) if check else None
    if check is None or value is None:
        return ""
    part = fraction(check)
    return f"{value / 1e9:.1f}" + (f" ({format_percent(part)})" if part is not None else "")


def what_is_wrong(checks: Iterable[Mapping[str, Any]]) -> list[Wrong]:
    """Return what did not pass, worst first; what differs in the device alone is told once, with how many there are."""
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for check in checks:
        if words(check.get("status")) in _ORDER:
            key = tuple(_ADDRESS.sub("*", words(check.get(name))) for name in ("status", "name", "reason", "cause"))
            groups.setdefault(key, []).append(check)
    found = []
    for members in groups.values():
        first, more = members[0], len(members) - 1
        alike = f" and {more} more like it" if more else ""
        found.append(
            Wrong(
                status=words(first.get("status")),
                what=f"{title(first)} ({words(first.get('scope'))}{alike})",
                reason=words(first.get("reason")),
                cause=words(first.get("cause")),
                next_command=words(first.get("next_command")),
            )
        )
    return sorted(found, key=lambda wrong: _ORDER[wrong.status])


def not_measured(checks: Iterable[Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    """Return (checks, reason, next command) of what was skipped; one entry for all that have the same reason."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for check in checks:
        # That there is no fleet to compare with says nothing of this machine.
        of_fleet = mapping(check.get("rule")).get("kind") == "fleet_median"
        if check.get("status") == "SKIPPED" and not of_fleet:
            has_figure = number(check.get("value")) is not None
            groups.setdefault("" if has_figure else _ADDRESS.sub("*", words(check.get("reason"))), []).append(check)
    # Figures that stand above and were not judged, for want of a limit.
    figures = list(dict.fromkeys(title(check) for check in groups.pop("", [])))
    found = (
        [(", ".join(figures), "measured and not judged, for no limit is known to hold it against", "")]
        if figures
        else []
    )
    for members in groups.values():
        titles = list(dict.fromkeys(title(check) for check in members))
        named = ", ".join(titles[:4]) + (f" and {len(titles) - 4} more" if len(titles) > 4 else "")
        more = len(members) - len(titles)
        reason = words(members[0].get("reason")) + (f" (and {more} more)" if more and len(titles) == 1 else "")
        found.append((named, reason, words(members[0].get("next_command"))))
    return found


def idle(checks: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return the addresses whose link was not judged because the device saves power."""
    return {
        words(check.get("scope"))
        for check in checks
        if check.get("name") == "pcie_link_speed"
        and check.get("status") == "SKIPPED"
        and "idle" in words(check.get("reason"))
    }


def title(check: Mapping[str, Any]) -> str:
    """Return how people call a check."""
    return words(check.get("title")) or words(check.get("name")).replace("_", " ") or "check"


def condition(check: Mapping[str, Any] | None, key: str) -> Any:
    """Return one of the conditions under which a figure was measured."""
    return mapping((check or {}).get("conditions")).get(key)
