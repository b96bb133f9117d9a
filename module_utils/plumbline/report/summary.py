"""What the terminal shows of a report at the end of a run."""

from __future__ import annotations

from .. import screen
from ..console import LOG_WIDTH, bound_text, host_list, plural, printable, table, wrapped
from .model import Check, Report

_FEW_HOSTS = 3
_MOST_SCREENS = 5
_MOST_PROBLEMS = 30
_NARROW = 104  # columns, below which the bound has no column of its own
# Characters that tell checks apart ("end to end latency P99"), figures, and bounds ("at least 5 tokens/s").
_KEPT = {"check": 24, "measured": 17, "required": 20}


def lines(report: Report, width: int = LOG_WIDTH) -> list[str]:
    """Return the gate table, what did not pass in full, the endpoint with one real answer, and the restarts.

    No line of the table is longer than ``width``; the verdict stands apart.
    """
    if report.of_machines:
        return _machines(report, width)
    few = len(report.hosts) <= _FEW_HOSTS
    text = _all_checks(report, width) if few else _fleet(report, width)
    text += _problems(report, width)
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


def _machines(report: Report, width: int) -> list[str]:
    """Return the screen of each machine; of many one line each, for their screens lie beside the report."""
    text = []
    if len(report.hosts) <= _MOST_SCREENS:
        for host in report.hosts:
            text += ["", *screen.lines(host.screen, host.name, host.status, width)]
        return text
    rows = []
    for host in report.hosts:
        view = host.screen
        wrong = (
            f"{view.wrong[0].what}" + (f" and {len(view.wrong) - 1} more" if len(view.wrong) > 1 else "")
            if view.wrong
            else ""
        )
        rows.append(
            [host.name, host.status, screen.one_line(host.machine, [check.record for check in host.checks]), wrong]
        )
    text = ["", *table(rows, ("host", "status", "machine", "wrong"), max(width, LOG_WIDTH), {"machine": 60})]
    return [*text, "", "The whole screen of each host lies beside the report, as HOST.txt, and in the report."]


def _all_checks(report: Report, width: int) -> list[str]:
    many, wide = len(report.hosts) > 1, width >= _NARROW
    rows = []
    for check in report.checks:
        row = [*((check.host,) if many else ()), check.stage, check.title, str(check.scope), check.status]
        rows.append([*row, *_figures(check, wide)])
    for host in report.hosts:
        for failure in host.failures:
            row = [*((failure.host,) if many else ()), failure.stage, failure.what, "host", "FAILED"]
            rows.append([*row, failure.message, *([""] if wide else [])])
    head = [
        *(("host",) if many else ()),
        "stage",
        "check",
        "scope",
        "status",
        "measured",
        *(["required"] if wide else []),
    ]
    return table(rows, head, width, _KEPT) if rows else []


def _figures(check: Check, wide: bool) -> list[str]:
    """Return what was measured and what is required, or why nothing was measured; in one cell where it is narrow."""
    measured, bound = str(check.measured or check.reason), bound_text(check.record)
    if wide:
        return [measured, bound]
    bound = bound.replace("at most", "≤").replace("at least", "≥")
    return [f"{measured} ({bound})" if bound else measured]


def _fleet(report: Report, width: int) -> list[str]:
    rows = [
        [
            spread.stage,
            spread.title,
            ", ".join(f"{number} {status}" for status, number in spread.statuses.items()),
            spread.low,
            spread.middle,
            spread.high,
            spread.required,
        ]
        for spread in report.spreads()
    ]
    head = ("stage", "check", "status", "lowest", "median", "highest", "required")
    return table(rows, head, width, _KEPT) if rows else []


def _problems(report: Report, width: int) -> list[str]:
    """Return what did not pass, each with its whole reason, the probable cause and what to do next."""
    problems = report.problems()
    if not problems:
        return []
    text = ["", "What did not pass:" if report.failing else "What has little to spare:"]
    for problem in problems[:_MOST_PROBLEMS]:
        where = f" on {host_list(problem.hosts)}" if len(report.hosts) > 1 else ""
        some = "for example " if len(problem.hosts) > 1 and problem.required else ""
        text += wrapped(
            f"{problem.status} {problem.stage}: {problem.what}{where}: {some}{problem.reason}", width, "  ", "    "
        )
        if problem.cause:
            text += wrapped(problem.cause, width, "    cause: ", "           ")
        if problem.next_command:  # on one line, however long, so that it can be copied
            text.append(f"    next:  {printable(problem.next_command)}")
    if len(problems) > _MOST_PROBLEMS:
        text.append(f"  and {plural(len(problems) - _MOST_PROBLEMS, 'more problem')} in the report")
    return text


def _one_line(text: object) -> str:
    line = printable(text)
    return line if len(line) <= 300 else line[:299] + "…"
