"""BIOS attributes of machines side by side: only what differs, in words for a person. Pure functions over golden documents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from .bios_golden import Golden, particular
from .bios_registry import Value, listed

Json = dict[str, Any]
ABSENT = "(none)"
_LONGEST_CELL = 40


@dataclass(frozen=True)
class Difference:
    """One attribute that two machines have otherwise; None where one lacks it."""

    attribute: str
    display: str
    reference: Value
    found: Value

    def as_json(self) -> Json:
        """The difference for a file."""
        return {
            "attribute": self.attribute,
            "display_name": self.display,
            "reference": self.reference,
            "found": self.found,
        }


@dataclass
class Group:
    """Machines with the same differences to the reference."""

    hosts: list[str]
    differences: list[Difference]
    information: list[str] = field(default_factory=list)


@dataclass
class Comparison:
    """All machines held against one reference."""

    reference: str
    groups: list[Group]
    ignored: list[str]
    missing: dict[str, str] = field(default_factory=dict)
    undecided: list[str] = field(default_factory=list)

    @property
    def differing(self) -> list[str]:
        """The hosts with at least one difference."""
        return sorted(host for group in self.groups if group.differences for host in group.hosts)

    def as_json(self) -> Json:
        """The comparison for a file."""
        return {
            "reference": self.reference,
            "groups": [
                {
                    "hosts": group.hosts,
                    "differences": [difference.as_json() for difference in group.differences],
                    "read_only_differences": group.information,
                }
                for group in self.groups
            ],
            "differing": self.differing,
            "ignored": self.ignored,
            "missing": self.missing,
            "undecided": self.undecided,
        }


def same(left: Value, right: Value) -> bool:
    """Whether two values of files mean the same: 24 and "24" do, true and 1 do not."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right or str(left).lower() == str(right).lower()
    if left is None or right is None:
        return left is right
    return bool(left == right) or str(left).strip() == str(right).strip()


def differences(reference: Golden, found: Golden, ignore: Sequence[str] = ()) -> tuple[list[Difference], list[str]]:
    """What `found` has otherwise than `reference`: settings, and the names of read-only attributes that differ.

    What belongs to one machine is passed over, and so is what `ignore` names (`*` stands for anything).
    """
    read_only = {*reference.read_only, *found.read_only}
    settings: list[Difference] = []
    information: list[str] = []
    for name in sorted({*reference.attributes, *found.attributes}):
        left, right = reference.attributes.get(name), found.attributes.get(name)
        if same(left, right) or passed_over(name, ignore):
            continue
        if name in read_only:
            information.append(name)
        else:
            display = found.display_names.get(name) or reference.display_names.get(name) or ""
            settings.append(Difference(name, display, left, right))
    return settings, information


def passed_over(name: str, ignore: Sequence[str]) -> bool:
    """Whether an attribute is no part of a comparison."""
    return bool(particular(name)) or any(fnmatchcase(name, pattern) for pattern in ignore)


def majority(machines: Mapping[str, Golden]) -> tuple[Golden, list[str]]:
    """What most machines have, attribute by attribute, and the attributes for which no value has more votes than any other.

    A machine that lacks an attribute votes for its absence. On a tie the value of the first machine by name counts.
    """
    hosts = sorted(machines)
    names = sorted({name for machine in machines.values() for name in machine.attributes})
    values: dict[str, Value] = {}
    undecided = []
    for name in names:
        votes: Counter[tuple[str, str]] = Counter()
        first: dict[tuple[str, str], Value] = {}
        for host in hosts:
            value = machines[host].attributes.get(name)
            # 24 and "24" are one vote, true and "true" are one, true and 1 are not.
            key = (
                ("absent", "")
                if value is None
                else ("is", str(value).strip() if not isinstance(value, bool) else str(value).lower())
            )
            votes[key] += 1
            first.setdefault(key, value)
        ranked = votes.most_common(2)
        if len(ranked) > 1 and ranked[0][1] == ranked[1][1] and not passed_over(name, ()):
            undecided.append(name)
        winner = first[ranked[0][0]]
        if winner is not None:
            values[name] = winner
    displays = {name: text for host in reversed(hosts) for name, text in machines[host].display_names.items()}
    read_only = tuple(sorted({name for machine in machines.values() for name in machine.read_only}))
    origin = f"the majority of {len(machines)} machines"
    return Golden(values, origin=origin, display_names=displays, read_only=read_only), undecided


def compare(
    machines: Mapping[str, Golden], reference: Golden, ignore: Sequence[str] = (), undecided: Sequence[str] = ()
) -> Comparison:
    """Hold every machine against a reference and bring those with equal differences together, the largest group first."""
    groups: dict[tuple[Any, ...], Group] = {}
    ignored: set[str] = set()
    for host in sorted(machines):
        machine = machines[host]
        found, information = differences(reference, machine, ignore)
        key = (*((d.attribute, str(d.reference), str(d.found)) for d in found), None, *information)
        groups.setdefault(key, Group([], found, information)).hosts.append(host)
        ignored.update(
            name
            for name in {*reference.attributes, *machine.attributes}
            if passed_over(name, ignore) and not same(reference.attributes.get(name), machine.attributes.get(name))
        )
    ordered = sorted(groups.values(), key=lambda group: (bool(group.differences), -len(group.hosts), group.hosts))
    return Comparison(
        reference.origin, ordered, sorted(ignored), undecided=[n for n in undecided if not passed_over(n, ignore)]
    )


def report(comparison: Comparison) -> list[str]:
    """The comparison as lines for a terminal: a table for each group of machines that differs."""
    total = sum(len(group.hosts) for group in comparison.groups)
    differing = len(comparison.differing)
    lines = [f"{total - differing} of {total} machines have the same BIOS settings as {comparison.reference}."]
    for group in comparison.groups:
        if group.differences:
            lines += ["", f"{_hosts(group.hosts)}: {_count(len(group.differences), 'difference')}"]
            head = ("attribute", "display name", "reference", "found")
            rows = [(d.attribute, d.display, _cell(d.reference), _cell(d.found)) for d in group.differences]
            lines += table([head, *rows])
        if group.information:
            whose = "" if group.differences else f"{_hosts(group.hosts)}: "
            lines.append(f"  {whose}read-only, so no settings, differ: {listed(group.information, 8)}")
    if comparison.undecided:
        lines.append(f"No value has a majority, that of the first machine was taken: {listed(comparison.undecided, 8)}")
    if comparison.ignored:
        lines.append(f"Differs and is passed over, as it belongs to one machine: {listed(comparison.ignored, 8)}")
    lines += [f"{host} is not compared: {reason}" for host, reason in sorted(comparison.missing.items())]
    return lines


def _hosts(hosts: Sequence[str]) -> str:
    return listed(hosts, 6) if len(hosts) == 1 else f"{len(hosts)} machines ({listed(hosts, 6)})"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _cell(value: Value) -> str:
    if value is None:
        return ABSENT
    text = "(empty)" if value == "" else str(value)
    return text if len(text) <= _LONGEST_CELL else text[: _LONGEST_CELL - 1] + "…"


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows, the first of them the head, in columns as wide as they need to be."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    made = ["  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
    return [made[0], "  " + "  ".join("-" * width for width in widths), *made[1:]]
