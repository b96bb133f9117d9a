"""What the evidence of a run amounts to: the pure model that HTML, Markdown, JUnit XML and the terminal show."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from statistics import median
from typing import Any

from ..console import plural
from ..evidence import Evidence, read_run
from ..gate_rules import is_number
from ..gates import CRITICAL, FAILING, OK, SKIPPED, UNKNOWN, WARN, worst
from ..quantities import format_value

NOT_JUDGED = "NOT JUDGED"
"""Of a host or a run: stages that only stage went through, and no gate ran. Never as good as OK or WARN."""

_STATUSES = (SKIPPED, OK, WARN, NOT_JUDGED, UNKNOWN, CRITICAL)  # from the least to the most alarming
# The stages whose settings playbooks/verify.yml judges. Where another one judged nothing, something is wrong.
_STAGING = frozenset({"preflight", "firmware", "bios", "kernel", "gpu_driver"})
_RUN_ID = "%Y%m%dT%H%M%SZ"

COMPLETION = "completion"
"""The check whose conditions hold one real answer of the model."""

_PERCENTILE = re.compile(r"^(?P<base>.+)_p(?P<percent>\d{1,2})$")


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

    @property
    def status(self) -> str:
        """The worst of its checks; CRITICAL when a task failed; when nothing was judged, UNKNOWN or NOT JUDGED."""
        if self.failures:
            return CRITICAL
        ended = bool(self.stages) and all(stage.ended for stage in self.stages.values())
        if not (self.checks or self.problems) and ended and _STAGING.issuperset(self.stages):
            return NOT_JUDGED
        statuses = [check.status for check in self.checks]
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
        return max((host.status for host in self.hosts), key=_STATUSES.index, default=UNKNOWN)

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
    def verdict(self) -> str:
        """The run in one sentence."""
        checks = sum(self.counts.values())
        total = f"{checks} {'check' if checks == 1 else 'checks'} on {self._hosts(len(self.hosts))}"
        failures = sum(len(host.failures) for host in self.hosts)
        words = [f"{number} {status}" for status, number in self.counts.items()]
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
        changes = plural(sum(host.changed for host in self.hosts), "change")
        if changes.startswith("0 "):
            changes = "nothing had to be"
        verb = "would be staged" if self.check_mode and not changes.startswith("nothing") else "staged"
        return f"{changes} {verb}, no gate ran; playbooks/verify.yml judges"

    @property
    def _without_judgement(self) -> str:
        if self.status == SKIPPED:
            return "Every check was skipped: nothing here could be judged"
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
            for problem in _problems_of(host):
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
    hosts = [_host(name, found) for name, found in evidence.items()]
    hosts.sort(key=lambda host: (-_STATUSES.index(host.status), host.name))
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


def count_statuses(statuses: Iterable[str]) -> dict[str, int]:
    """Count statuses, worst first, leaving out those that do not occur."""
    found = list(statuses)
    return {status: found.count(status) for status in reversed(_STATUSES) if status in found}


def percentile_of(name: str) -> tuple[str, int] | None:
    """Split ``end_to_end_latency_p99`` into its base and 99; None for a name without a percentile."""
    match = _PERCENTILE.match(name)
    return (match["base"], int(match["percent"])) if match else None


def _host(name: str, evidence: Evidence) -> Host:
    host = Host(name=str(evidence.records[0]["host"]) if evidence.records else name, problems=evidence.problems)
    latest: dict[tuple[str, str, str], Check] = {}
    failures: dict[str, list[Failure]] = {}
    attempt: dict[str, list[Failure]] = {}
    play: dict[tuple[str, str, str], Check] = {}  # what was judged since the last stage ended
    for record in evidence.records:
        stage, kind = str(record["stage"]), record["kind"]
        row = host.stages.setdefault(stage, Stage(stage, SKIPPED))
        if kind == "check":
            key = (stage, record["name"], record["scope"])
            earlier = latest.pop(key, None)
            latest[key] = Check(host.name, stage, record, [*earlier.earlier, earlier.status] if earlier else [])
            play[key] = latest[key]
        elif kind == "failure" and not record.get("handled"):
            unreachable = bool(record.get("unreachable"))
            failure = Failure(host.name, stage, str(record.get("task") or ""), record["message"], unreachable)
            attempt.setdefault(stage, []).append(failure)
        elif kind == "restart":
            host.restarts += 1
        elif kind == "stage":
            row.ended = True
            row.seconds += _number(record.get("seconds"))
            row.changed += int(_number(record.get("changed")))
            # A stage that was gone through again, in a resumed run, stands as it ended the last time.
            failures[stage] = attempt.pop(stage, [])
            others = [check for check in play.values() if check.stage != stage]
            row.elsewhere = list(dict.fromkeys(check.stage for check in others))
            row.counts = count_statuses(check.status for check in others)
            play = {}
    failures.update(attempt)  # the run was cut off within this stage
    failures = {stage: found for stage, found in failures.items() if found}
    host.checks = list(latest.values())
    host.failures = [failure for found in failures.values() for failure in found]
    for stage, row in host.stages.items():
        statuses = [check.status for check in host.checks if check.stage == stage] + list(row.counts)
        row.judged = bool(statuses) or stage in failures
        row.status = CRITICAL if stage in failures else worst(statuses) if statuses else OK
    return host


def _problems_of(host: Host) -> Iterable[Problem]:
    for failure in host.failures:
        what = "the host cannot be reached" if failure.unreachable else f"task: {failure.task}"
        yield Problem(CRITICAL, failure.stage, what, failure.message)
    for check in host.checks:
        if check.status in FAILING or check.status == WARN:
            yield Problem(
                status=check.status,
                stage=check.stage,
                what=f"{check.title} ({check.scope})",
                reason=str(check.reason),
                required=str(check.required),
                cause=str(check.cause),
                next_command=str(check.next_command),
            )
    for problem in host.problems:
        yield Problem(UNKNOWN, "evidence", "damaged evidence", problem)


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
        seconds = _number(record.get("seconds")) if record["kind"] == "stage" else 0.0
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


def _number(value: Any) -> float:
    return float(value) if is_number(value) else 0.0
