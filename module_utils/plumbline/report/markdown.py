"""The report as Markdown, for a ticket or a merge request."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..console import is_command, plural
from ..screen import one_line
from .model import Check, Report

_MANY_HOSTS = 3


def render(report: Report) -> str:
    """Return the report as Markdown; everything that came from a machine is escaped."""
    many = len(report.hosts) > _MANY_HOSTS
    rows: list[tuple[str, ...]]
    parts = [
        f"# Plumbline: {report.status}",
        "",
        f"{escape(report.headline)}: {escape(report.verdict)}.",
        "",
        *_facts(report),
        *_problems(report),
    ]
    if many:
        rows = [
            (
                spread.stage,
                spread.title,
                _counts(spread.statuses),
                spread.low,
                spread.middle,
                spread.high,
                spread.required,
            )
            for spread in report.spreads()
        ]
        parts += [
            "## Every check over the fleet",
            "",
            *_table("Stage|Check|Status|Lowest|Median|Highest|Required", rows),
        ]
    parts += _machines(report, many)
    rows = [
        (
            host.name,
            host.status,
            *(host.stages[name].result if name in host.stages else "not reached" for name in report.stages),
        )
        for host in report.hosts
    ]
    parts += ["## Hosts", "", *_table("|".join(["Host", "Status", *map(escape, report.stages)]), rows)]
    if not many:
        for host in report.hosts:
            parts += [f"## Checks of {escape(host.name)}", ""]
            parts += _table("Stage|Check|Scope|Status|Measured|Required", [_row(check) for check in host.checks])
    if report.dropped:
        parts += ["## Damaged evidence", "", *(f"- {escape(problem)}" for problem in report.dropped), ""]
    return "\n".join(parts).rstrip() + "\n"


def _machines(report: Report, many: bool) -> list[str]:
    hosts = [host for host in report.hosts if host.machine]
    if many:
        rows: list[tuple[str, ...]] = [
            (host.name, one_line(host.machine, [check.record for check in host.checks])) for host in hosts
        ]
        return ["## Machines", "", *_table("Host|Machine", rows)] if rows else []
    parts = []
    for host in hosts:
        view = host.screen
        parts += [f"## The machine {escape(host.name)}", "", f"{escape(view.title)}", ""]
        parts += [*(f"- **{escape(label)}**: {escape(said)}" for label, said in view.facts)]
        parts += [f"- **Shared links**: {escape('; '.join(view.shared))}"] if view.shared else []
        parts += [""]
        for table in view.tables:
            parts += [escape(table.title), ""] if table.title else []
            parts += _table("|".join(table.head), table.rows)
        if view.unmeasured or view.notes:
            parts += ["Not measured:", ""]
            parts += [f"- {escape(what)}: {escape(reason)}" for what, reason, _command in view.unmeasured]
            parts += [*(f"- {escape(note)}" for note in view.notes), ""]
    return parts


def escape(text: str) -> str:
    """Return text that Markdown shows as it is: no markup, no HTML, no table cell, no line break."""
    text = " ".join(str(text).split())
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_{}\[\]#|~!])", r"\\\1", text)


def _facts(report: Report) -> list[str]:
    lines = [f"- Run {escape(report.run)}" + (", check mode: nothing was changed" if report.check_mode else "")]
    if report.began and report.ended:
        day = "" if report.began.date() == report.ended.date() else "%Y-%m-%d "
        lines.append(f"- {report.began:%Y-%m-%d %H:%M:%S} to {report.ended:{day}%H:%M:%S} UTC")
    changed = sum(host.changed for host in report.hosts)
    most = " at most on one host" if len(report.hosts) > 1 else ""
    lines.append(f"- {plural(changed, 'change')}, {plural(report.restarts, 'restart')}{most}")
    for host in report.hosts[:_MANY_HOSTS]:
        if host.endpoint:
            lines.append(f"- Endpoint of {escape(host.name)}: {escape(host.endpoint)}")
        answer = host.answer
        if answer is not None and answer.conditions:
            question, said = answer.conditions.get("question", ""), answer.conditions.get("answer", "")
            lines.append(f"- Asked “{escape(question)}”, it answered “{escape(said)}”")
    return [*lines, ""]


def _problems(report: Report) -> list[str]:
    problems = report.problems()
    if not problems:
        return []
    lines = ["## What did not pass", ""]
    for problem in problems:
        hosts = ", ".join(escape(host) for host in problem.hosts[:10])
        if len(problem.hosts) > 10:
            hosts += f" and {len(problem.hosts) - 10} more"
        lines.append(
            f"- **{problem.status}** {escape(problem.stage)}, {escape(problem.what)} on {hosts}: {escape(problem.reason)}"
        )
        if problem.cause:
            lines.append(f"  - Probable cause: {escape(problem.cause)}")
        if problem.next_command:
            command = is_command(problem.next_command)
            lines.append(f"  - Next: {_code(problem.next_command) if command else escape(problem.next_command)}")
    return [*lines, ""]


def _code(text: str) -> str:
    text = " ".join(text.split())
    fence = "`" * (max((len(run) for run in re.findall(r"`+", text)), default=0) + 1)
    return f"{fence} {text} {fence}" if "`" in text else f"`{text}`"


def _row(check: Check) -> tuple[str, ...]:
    measured = check.measured or check.reason
    return (check.stage, check.title, str(check.scope), check.status, str(measured), str(check.required))


def _counts(statuses: dict[str, int]) -> str:
    return ", ".join(f"{number} {status}" for status, number in statuses.items())


def _table(head: str, rows: Iterable[tuple[str, ...]]) -> list[str]:
    columns = head.split("|")
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(escape(cell) for cell in row) + " |" for row in rows]
    return [*lines, ""]
