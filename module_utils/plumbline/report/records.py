"""What the evidence says of one host: its checks, failures and stages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..gate_rules import is_number
from ..gates import CRITICAL, OK, SKIPPED, UNKNOWN, WARN, worst
from ..screen import Screen, screen

NOT_JUDGED = "NOT JUDGED"
"""Of a host or a run: stages that only stage went through, and no gate ran. Never as good as OK or WARN."""

STATUSES = (SKIPPED, OK, WARN, NOT_JUDGED, UNKNOWN, CRITICAL)
"""From the least to the most alarming."""

READING = frozenset({"bios_backup", "bios_diff"})
"""Playbooks that read machines and write files on the controller; no gate belongs to them."""
# The stages whose settings are judged after the restart. Where another one judged nothing, something is wrong.
_STAGING = READING | {"preflight", "firmware", "bios", "bios_restore", "kernel", "gpu_driver"}

COMPLETION = "completion"
"""The check whose conditions hold one real answer of the model."""


@dataclass
class Check:
    """The last judgement of one check in a run."""

    host: str
    stage: str
    record: Mapping[str, Any]
    earlier: list[str] = field(default_factory=list)
    """Statuses of earlier judgements of the same check in the same run."""

    def __getattr__(self, key: str) -> Any:
        """Read a field of the record: ``check.measured``; what is missing is an empty text."""
        if key.startswith("__"):
            raise AttributeError(key)
        value = self.record.get(key)
        return "" if value is None else value

    @property
    def status(self) -> str:
        """The judgement."""
        return str(self.record["status"])

    @property
    def recorded(self) -> bool:
        """Whether its figure is kept and nobody has judged it, so that it is no reason to call a host good."""
        return self.status == OK and (self.record.get("rule") or {}).get("kind") == "record"

    @property
    def title(self) -> str:
        """How people call it."""
        return str(self.record.get("title") or self.record["name"])

    def number(self, key: str) -> float | None:
        """Return a field as a number, or None where it holds none."""
        value = self.record.get(key)
        return float(value) if is_number(value) else None


@dataclass
class Failure:
    """A task that failed and was no gate."""

    host: str
    stage: str
    task: str
    message: str
    unreachable: bool = False

    @property
    def what(self) -> str:
        """What failed, for people; a run that was ended early was in no task."""
        return "the host cannot be reached" if self.unreachable else f"task: {self.task}" if self.task else "the run"


@dataclass
class Stage:
    """One stage on one host."""

    name: str
    status: str
    seconds: float = 0.0
    changed: int = 0
    ended: bool = False
    """Whether its play came to its end."""
    judged: bool = False
    """Whether a gate judged anything in it, or a task failed."""
    elsewhere: list[str] = field(default_factory=list)
    """Other stages whose settings it judged: their checks are on record there, and counted here."""
    counts: dict[str, int] = field(default_factory=dict)
    """How many of those have each status."""

    @property
    def result(self) -> str:
        """Its status for people."""
        return self.status if self.judged else "nothing to judge"


@dataclass
class Host:
    """Everything about one host."""

    name: str
    checks: list[Check] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    stages: dict[str, Stage] = field(default_factory=dict)
    restarts: int = 0
    problems: list[str] = field(default_factory=list)
    machine: Mapping[str, Any] = field(default_factory=dict)
    """What the machine is, as the last survey of the run found it; empty where none did."""

    @property
    def status(self) -> str:
        """The worst of its checks; CRITICAL when a task failed; when nothing was judged, UNKNOWN or NOT JUDGED."""
        if self.failures:
            return CRITICAL
        ended = bool(self.stages) and all(stage.ended for stage in self.stages.values())
        if not (self.checks or self.problems) and ended and _STAGING.issuperset(self.stages):
            return NOT_JUDGED
        statuses = [SKIPPED if check.recorded else check.status for check in self.checks]
        # Evidence that was lost could have been a failure: nobody can call the host good.
        if self.problems:
            statuses.append(UNKNOWN)
        return worst(statuses)

    @property
    def changed(self) -> int:
        """How many tasks changed something."""
        return sum(stage.changed for stage in self.stages.values())

    @property
    def answer(self) -> Check | None:
        """The check with one real answer of the model."""
        return next((check for check in reversed(self.checks) if check.name == COMPLETION), None)

    @property
    def screen(self) -> Screen:
        """What the machine is, with the figures of its checks and what is wrong."""
        failures = [(failure.what, failure.message) for failure in self.failures]
        return screen(self.machine, [check.record for check in self.checks], failures)

    @property
    def endpoint(self) -> str:
        """Where the model answers."""
        for check in reversed(self.checks):
            address = check.record.get("endpoint") or (check.record.get("conditions") or {}).get("endpoint")
            if address:
                return str(address)
        answer = self.answer
        return str(answer.scope) if answer is not None and str(answer.scope).startswith("http") else ""


@dataclass
class Problem:
    """What did not pass, alike on one host or on many."""

    status: str
    stage: str
    what: str
    reason: str
    required: str = ""
    cause: str = ""
    next_command: str = ""
    hosts: list[str] = field(default_factory=list)


def count_statuses(statuses: Iterable[str]) -> dict[str, int]:
    """Count statuses, worst first, leaving out those that do not occur."""
    found = list(statuses)
    return {status: found.count(status) for status in reversed(STATUSES) if status in found}
