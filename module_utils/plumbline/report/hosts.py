"""Make a host of its evidence."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..evidence import Evidence
from ..gate_rules import is_number
from ..gates import CRITICAL, FAILING, OK, SKIPPED, UNKNOWN, WARN, worst
from .records import Check, Failure, Host, Problem, Stage, count_statuses


def host_of(name: str, evidence: Evidence) -> Host:
    """Return a host as its records tell, the last judgement of each check counting."""
    host = Host(name=str(evidence.records[0]["host"]) if evidence.records else name, problems=evidence.problems)
    latest: dict[tuple[str, str, str], Check] = {}
    failures: dict[str, list[Failure]] = {}
    attempt: dict[str, list[Failure]] = {}
    play: dict[tuple[str, str, str], Check] = {}  # what was judged since the last stage ended
    for record in evidence.records:
        stage, kind = str(record["stage"]), record["kind"]
        if kind == "machine":
            host.machine = record.get("machine") or {}
            continue
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
            row.seconds += as_number(record.get("seconds"))
            row.changed += int(as_number(record.get("changed")))
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


def problems_of(host: Host) -> Iterable[Problem]:
    """Return what did not pass on a host, in the order of its evidence."""
    for failure in host.failures:
        yield Problem(CRITICAL, failure.stage, failure.what, failure.message)
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


def as_number(value: Any) -> float:
    """Return a field of a record as a number, 0 where it holds none."""
    return float(value) if is_number(value) else 0.0
