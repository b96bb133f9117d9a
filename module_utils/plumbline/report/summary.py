"""What the terminal shows of a report at the end of a run."""

from __future__ import annotations

from ..console import host_list, plural, printable, table
from ..gates import OK, SKIPPED
from .model import Report

_FEW_HOSTS = 3
_MOST_ROWS = 30


def lines(report: Report) -> list[str]:
    """Return the gate table, the endpoint with one real answer, and the restarts; the verdict stands apart."""
    few = len(report.hosts) <= _FEW_HOSTS
    text = _all_checks(report) if few else _fleet(report)
    answering = [host for host in report.hosts if host.answer or (host.endpoint and few)]
    for host in answering if few else answering[:1]:
        text += ["", f"Endpoint of {host.name}: {host.endpoint or 'not known'}"]
        conditions = host.answer.conditions if host.answer is not None else {}
        if conditions:
            text += [f"  asked:    {_one_line(conditions.get('question', ''))}"]
            text += [f"  answered: {_one_line(conditions.get('answer', ''))}"]
    if len(answering) > 1 and not few:
        text.append(f"  and {plural(len(answering) - 1, 'more endpoint')}, asked the same")
    text += ["", f"Restarts: {report.restarts}" + (" (the most on one host)" if len(report.hosts) > 1 else "")]
    return text


def verdict(report: Report) -> str:
    """Return the last line of a run. failed=0 is not success: this line's OK is."""
    suffix = " (check mode)" if report.check_mode else ""
    return f"{report.status}: {report.verdict}{suffix}"


def _all_checks(report: Report) -> list[str]:
    many = len(report.hosts) > 1
    rows = [
        (
            *((check.host,) if many else ()),
            check.stage,
            str(check.name),  # as gates.yml calls it: a reader who wants another bound looks for this
            str(check.scope),
            check.status,
            str(check.measured or check.reason),
            str(check.required),
        )
        for check in report.checks
    ]
    rows += [
        (
            *((failure.host,) if many else ()),
            failure.stage,
            f"task: {failure.task}",
            "host",
            "FAILED",
            failure.message,
            "",
        )
        for host in report.hosts
        for failure in host.failures
    ]
    head = (*(("host",) if many else ()), "stage", "check", "scope", "status", "measured", "required")
    return table(rows, head) if rows else []


def _fleet(report: Report) -> list[str]:
    rows = [
        (
            spread.stage,
            spread.name,
            ", ".join(f"{number} {status}" for status, number in spread.statuses.items()),
            spread.low,
            spread.middle,
            spread.high,
            spread.required,
        )
        for spread in report.spreads()
    ]
    text = table(rows, ("stage", "check", "status", "lowest", "median", "highest", "required")) if rows else []
    problems = [problem for problem in report.problems() if problem.status not in (OK, SKIPPED)]
    if problems:
        bad = [(p.status, p.stage, p.what, host_list(p.hosts), p.cause or p.reason) for p in problems[:_MOST_ROWS]]
        text += ["", *table(bad, ("status", "stage", "what", "hosts", "why"), 80)]
        if len(problems) > _MOST_ROWS:
            text.append(f"and {plural(len(problems) - _MOST_ROWS, 'more problem')} in the report")
    return text


def _one_line(text: object) -> str:
    line = printable(text)
    return line if len(line) <= 300 else line[:299] + "…"
