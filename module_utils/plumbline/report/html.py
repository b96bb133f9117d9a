"""The report as one HTML page that needs nothing beside it: inline CSS, inline SVG, no script."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ..console import is_command, plural
from ..quantities import format_percent, format_seconds
from ..screen import one_line
from .canvas import Plot
from .model import Report

_MANY_HOSTS = 3
_MOST_LISTED = 40  # of a list among the conditions of a check; the evidence has all


def render(report: Report, plots: list[Plot], note: str = "") -> str:
    """Return the page; ``note`` says why there are no plots.

    Jinja escapes everything that came from a machine; only our own drawings are markup.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(percent=format_percent, seconds=format_seconds, plain=_plain)
    environment.globals.update(plural=plural, is_command=is_command)
    many = len(report.hosts) > _MANY_HOSTS
    # One host shows its endpoint even before it answers; of a fleet a real answer is what a reader wants to see.
    answers = [host for host in report.hosts if host.answer or (host.endpoint and not many)]
    return environment.get_template(
        "page.html.j2"
    ).render(
        report=report,
        many=many,
        problems=report.problems(),
        plots=[(plot, Markup(plot.svg)) for plot in plots],  # noqa: S704 - drawn by matplotlib, which escapes its texts
        note=note,
        took=_took(report),
        stages=report.stages,
        machines=[
            (host, host.screen, one_line(host.machine, [check.record for check in host.checks]))
            for host in report.hosts
            if host.machine
        ],
        answers=answers[:1] if many else answers,
        endpoints=len(answers),
    )


def _took(report: Report) -> str:
    if not report.began or not report.ended:
        return ""
    return format_seconds(round((report.ended - report.began).total_seconds()))


def _plain(value: Any) -> str:
    """Return a condition's value for people."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list) and len(value) > _MOST_LISTED:
        return f"({len(value)} figures)"
    return str(value)
