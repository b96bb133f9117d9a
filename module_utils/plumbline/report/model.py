"""What the evidence of a run amounts to: the pure model that HTML, Markdown, JUnit XML and the terminal show."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from statistics import median
from typing import Any

from ..console import plural
from ..evidence import Evidence, read_run
from ..gate_rules import is_number
from ..gates import CRITICAL, FAILING, OK, SKIPPED, UNKNOWN, WARN
from ..quantities import format_value
from .hosts import as_number, host_of, problems_of
from .records import NOT_JUDGED, READING, STATUSES, Check, Host, Problem, count_statuses

__all__ = [
    "NOT_JUDGED",
    "Check",
    "Host",
    "Problem",
    "Report",
    "Spread",
    "build",
    "count_statuses",
    "load",
    "percentile_of",
]

# Stages that look at a machine and change nothing.
_LOOKING = frozenset({"preflight", "survey", "validate"})
_RUN_ID = "%Y%m%dT%H%M%SZ"

_PERCENTILE = re.compile(r"^(?P<base>.+)_p(?P<percent>\d{1,2})$")


@dataclass
class Spread:
    """One numeric check over the hosts and scopes of the fleet."""

    stage: str
    name: str
    title: str
    unit: str
    statuses: dict[str, int]
    low: str
    middle: str
    high: str
    required: str


@dataclass
class Report:
    """A run."""

    run: str
    hosts: list[Host]
    began: datetime | None
    ended: datetime | None
    check_mode: bool
    dropped: list[str]

    @property
    def status(self) -> str:
        """The worst of all hosts. failed=0 is not success, this is."""
        return max((host.status for host in self.hosts), key=STATUSES.index, default=UNKNOWN)

    @property
    def checks(self) -> list[Check]:
        """Every check of every host."""
        return [check for host in self.hosts for check in host.checks]

    @property
    def counts(self) -> dict[str, int]:
        """How many checks have each status, worst first, without those that no check has."""
        return count_statuses(check.status for check in self.checks)

    @property
    def host_counts(self) -> dict[str, int]:
        """How many hosts have each status, worst first."""
        return count_statuses(host.status for host in self.hosts)

    @property
    def failing(self) -> bool:
        """Whether a check or a host did not pass."""
        return any(host.status in FAILING for host in self.hosts)

    @property
    def restarts(self) -> int:
        """The most restarts that one host took."""
        return max((host.restarts for host in self.hosts), default=0)

    @property
    def stages(self) -> list[str]:
        """The names of all stages, in the order in which the run came to them."""
        names: dict[str, None] = {}
        for host in sorted(self.hosts, key=lambda host: -len(host.stages)):
            names.update(dict.fromkeys(host.stages))
        return list(names)

    @property
    def of_machines(self) -> bool:
        """Whether the run only looked at machines, so that what they are is what a reader wants to see first."""
        return _LOOKING.issuperset(self.stages) and any(host.machine for host in self.hosts)

    @property
    def verdict(self) -> str:
        """The run in one sentence."""
        checks = sum(self.counts.values())
        total = f"{checks} {'check' if checks == 1 else 'checks'} on {self._hosts(len(self.hosts))}"
        failures = sum(len(host.failures) for host in self.hosts)
        recorded = sum(check.recorded for check in self.checks)
        judged = {status: number - (recorded if status == OK else 0) for status, number in self.counts.items()}
        words = [f"{number} {status}" for status, number in judged.items() if number]
        if recorded:
            words.append(f"{recorded} recorded")
        if failures:
            words.insert(0, f"{failures} failed {'task' if failures == 1 else 'tasks'}")
        if self.status == NOT_JUDGED and not checks:
            return self._staged
        if not checks and not failures:
            return "no gate has judged anything"
        return f"{total}: {', '.join(words)}"

    @property
    def _staged(self) -> str:
        if set(self.stages) == {"preflight"}:
            return "preflight found no fault, no gate ran"
        if READING.issuperset(self.stages):
            return f"no machine was changed, and no gate belongs to {' and '.join(self.stages)}"
        changes = plural(sum(host.changed for host in self.hosts), "change")
        if changes.startswith("0 "):
            changes = "nothing had to be"
        verb = "would be staged" if self.check_mode and not changes.startswith("nothing") else "staged"
        judge = (
            "bios_diff.yml with bios_diff_golden_file"
            if "bios_restore" in self.stages and "bios" not in self.stages
            else "verify.yml"
        )
        return f"{changes} {verb}, no gate ran; playbooks/{judge} judges"

    @property
    def _without_judgement(self) -> str:
        if self.status == SKIPPED:
            kept = "skipped or only recorded" if any(check.recorded for check in self.checks) else "skipped"
            return f"Every check was {kept}: nothing here could be judged"
        waiting = sum(host.status == NOT_JUDGED for host in self.hosts)
        some = "" if waiting == len(self.hosts) else f" on {waiting} of {self._hosts(len(self.hosts))}"
        return f"Nothing has been judged{some} yet"

    @property
    def headline(self) -> str:
        """What a person wants to know first."""
        checks, counts = self.checks, self.counts
        if not checks and self.status == UNKNOWN and not any(host.problems for host in self.hosts):
            return "No gate has judged anything"
        if self.status in (NOT_JUDGED, SKIPPED):
            return self._without_judgement
        bad = [host for host in self.hosts if host.status in FAILING]
        if len(self.hosts) > 1:
            total = self._hosts(len(self.hosts))
            return f"{len(bad)} of {total} did not pass" if bad else f"All {total} passed{self._reserve(counts)}"
        name = self.hosts[0].name
        failing = sum(check.status in FAILING for check in checks)
        if failing:
            return f"{failing} of {len(checks)} checks did not pass on {name}"
        if bad:
            return f"{name} stopped before its end" if bad[0].failures else f"The evidence of {name} is damaged"
        return f"{name} passed{self._reserve(counts)}"

    @staticmethod
    def _reserve(counts: dict[str, int]) -> str:
        number = counts.get(WARN, 0)
        return f", {number} {'check' if number == 1 else 'checks'} with little to spare" if number else ""

    @staticmethod
    def _hosts(number: int) -> str:
        return f"{number} host" if number == 1 else f"{number} hosts"

    def problems(self) -> list[Problem]:
        """What did not pass, worst first, with what is alike on many hosts told once."""
        groups: dict[tuple[str, ...], Problem] = {}
        for host in self.hosts:
            for problem in problems_of(host):
                alike = tuple(
                    text.replace(host.name, "*")
                    for text in (problem.status, problem.stage, problem.what, problem.cause, problem.next_command)
                )
                # A measured figure differs from host to host; a reason without one must be the same.
                key = (*alike, "" if problem.required else problem.reason.replace(host.name, "*"))
                groups.setdefault(key, problem).hosts.append(host.name)
        order = {CRITICAL: 0, UNKNOWN: 1, WARN: 2}
        return sorted(groups.values(), key=lambda problem: (order[problem.status], -len(problem.hosts)))

    def spreads(self) -> list[Spread]:
        """Each check over the fleet: how often it passed, and lowest, middle and highest figure."""
        groups: dict[tuple[str, str], list[Check]] = {}
        for check in self.checks:
            groups.setdefault((check.stage, str(check.record["name"])), []).append(check)
        return [_spread(checks) for checks in groups.values()]


def load(directory: Path) -> Report:
    """Read a run's folder and build its report. Damaged evidence is named in it, never a reason to fail."""
    return build(directory.name, read_run(directory))


def build(run: str, evidence: Mapping[str, Evidence]) -> Report:
    """Build the report of a run from each host's evidence."""
    hosts = [host_of(name, found) for name, found in evidence.items()]
    hosts.sort(key=lambda host: (-STATUSES.index(host.status), host.name))
    records = [record for found in evidence.values() for record in found.records]
    times = [time for record in records if (time := _time(record["time"]))]
    return Report(
        run=run,
        hosts=hosts,
        began=_beginning(run, records),
        ended=max(times, default=None),
        check_mode=any(record.get("check_mode") for record in records),
        dropped=[problem for found in evidence.values() for problem in found.problems],
    )


def percentile_of(name: str) -> tuple[str, int] | None:
    """Split ``end_to_end_latency_p99`` into its base and 99; None for a name without a percentile."""
    match = _PERCENTILE.match(name)
    return (match["base"], int(match["percent"])) if match else None


def _spread(checks: list[Check]) -> Spread:
    values = [check.record.get("value") for check in checks]
    numbers = sorted(value for value in values if is_number(value))
    unit = str(checks[0].unit)
    required = sorted({str(check.required) for check in checks if check.required})
    texts = ["", "", ""]
    if numbers:
        texts = [format_value(number, unit) for number in (numbers[0], median(numbers), numbers[-1])]
    return Spread(
        stage=checks[0].stage,
        name=str(checks[0].name),
        title=checks[0].title,
        unit=unit,
        statuses=count_statuses(check.status for check in checks),
        low=texts[0],
        middle=texts[1],
        high=texts[2],
        required=required[0] if len(required) == 1 else f"{len(required)} different bounds" if required else "",
    )


def _beginning(run: str, records: Iterable[Mapping[str, Any]]) -> datetime | None:
    """Return when a run began: its id says so; else its first stage, whose record was written at the end of it."""
    times = []
    for record in records:
        time = _time(record["time"])
        seconds = as_number(record.get("seconds")) if record["kind"] == "stage" else 0.0
        if time and 0 <= seconds < 1e7:
            times.append(time - timedelta(seconds=seconds))
    first = min(times, default=None)
    try:
        named = datetime.strptime(run, _RUN_ID).replace(tzinfo=timezone.utc)
    except ValueError:
        return first
    return min(named, first) if first else named


def _time(text: str) -> datetime | None:
    try:
        time = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None
    return time if time.tzinfo else time.replace(tzinfo=timezone.utc)
