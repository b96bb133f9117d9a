"""Plots as inline SVG: latency distributions with their SLO, and each bandwidth beside its limit.

What they are drawn on is in `canvas`; how a load went, in `load_plots`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..gate_rules import is_number
from ..quantities import format_percent, format_value
from . import load_plots
from .canvas import BAD, FOREGROUND, GOOD, GRID, LINE, MUTED, WARN, Plot
from .canvas import canvas as _canvas
from .canvas import svg_of as _svg
from .model import Check, Report, percentile_of

_STATUS_COLOR = {"OK": GOOD, "WARN": WARN, "SKIPPED": MUTED, "UNKNOWN": BAD, "CRITICAL": BAD}
_FEW_HOSTS = 3


def draw(report: Report) -> list[Plot]:
    """Draw what the evidence of a run allows; no plot where nothing was measured."""
    few = len(report.hosts) <= _FEW_HOSTS
    plots: list[Plot] = []
    for (base, scope), checks in _latencies(report.checks).items():
        plot = _distribution(base, scope, checks) if few else _percentile_strip(base, scope, checks)
        if plot:
            plots.append(plot)
    plots += load_plots.draw(report.checks, few)
    bandwidths = [check for check in report.checks if _is_bandwidth(check)]
    limited = [check for check in bandwidths if _limit(check)]
    unlimited = [check for check in bandwidths if not _limit(check)]
    if limited:
        plots.append(_bars(limited, len(report.hosts) > 1) if few else _strip(limited))
    if unlimited:
        plots.append(_absolute_bars(unlimited, len(report.hosts) > 1) if few else _absolute_strip(unlimited))
    return plots


def _limit(check: Check) -> float:
    """Return the limit that a check stands beside; 0 where none is known."""
    return max(check.number("limit") or 0.0, 0.0)


def _latencies(checks: Iterable[Check]) -> dict[tuple[str, str], list[Check]]:
    groups: dict[tuple[str, str], list[Check]] = {}
    for check in checks:
        split = percentile_of(str(check.name))
        if split and check.unit == "s" and is_number(check.record.get("value")):
            groups.setdefault((split[0], str(check.scope)), []).append(check)
    return groups


def _is_bandwidth(check: Check) -> bool:
    """Return whether a check is a bandwidth with something to stand beside: its limit or the bound of its gate."""
    beside = check.number("limit") or check.number("threshold")
    return check.unit == "B/s" and (check.number("value") or 0.0) > 0 and bool(beside)


def _distribution(base: str, scope: str, checks: list[Check]) -> Plot | None:
    """Draw the share of requests that were answered within a time, with percentiles and bounds."""
    by_host: dict[str, list[float]] = {}
    for check in checks:
        samples = sorted(float(sample) for sample in check.record.get("samples") or [] if is_number(sample))
        if len(samples) > len(by_host.get(check.host, [])):
            by_host[check.host] = samples
    by_host = {host: samples for host, samples in by_host.items() if len(samples) > 1}
    if not by_host:
        return None
    figure, axes = _canvas(5.6, 2.9)
    longest = max(samples[-1] for samples in by_host.values())
    for host, samples in by_host.items():
        # As the percentiles are computed, between the samples on either side, so that each lies on the line.
        shares = [index / (len(samples) - 1) for index in range(len(samples))]
        axes.plot(samples, shares, color=LINE, linewidth=1.8)
        if len(by_host) > 1:
            axes.annotate(host, (samples[-1], 1.0), fontsize=8, color=MUTED, ha="right", va="bottom")
    hidden = []
    for check in checks:
        percent = (percentile_of(str(check.name)) or ("", 0))[1]
        value, bound = float(check.value), check.record.get("threshold")
        color = _STATUS_COLOR[check.status]
        axes.plot([value], [percent / 100], "o", color=color, markersize=6, zorder=4)
        # The line rises: left above and right below of a point on it, it never comes by.
        left = value > longest * 0.4
        axes.annotate(
            f"P{percent}  {format_value(value, 's')}",
            (value, percent / 100),
            (-6, 2) if left else (7, -3),
            textcoords="offset points",
            ha="right" if left else "left",
            va="bottom" if left else "top",
            fontsize=9,
            color=FOREGROUND,
        )
        # A bound far beyond the figures would squeeze the curve into a corner: it is told in words instead.
        if is_number(bound) and float(bound) <= longest * 3:
            axes.plot([bound, bound], [0, percent / 100], color=color, linewidth=1.2, linestyle=(0, (4, 3)))
            axes.annotate(
                f"SLO P{percent} ", (bound, 0.03), fontsize=8, color=MUTED, ha="right", rotation=90, va="bottom"
            )
        elif is_number(bound):
            hidden.append(f"P{percent} {format_value(float(bound), 's')}")
    axes.set_xlim(left=0)
    axes.set_ylim(0, 1.14)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1.0], ["0 %", "25 %", "50 %", "75 %", "100 %"])
    axes.set_xlabel("seconds")
    noun = "tokens" if base.startswith("inter_token") else "requests"
    axes.set_ylabel(f"share of {noun}")
    total = sum(len(samples) for samples in by_host.values())
    caption = f"{total} {noun} of {scope}; share of them that took no longer than this."
    if hidden:
        caption += f" Bounds beyond the plot: {', '.join(hidden)}."
    return Plot(base.replace("_", " "), caption, _svg(figure, f"{base}-{scope}"))


def _percentile_strip(base: str, scope: str, checks: list[Check]) -> Plot | None:
    """Draw each host's percentiles as dots, a row for each percentile, with the bound of the row."""
    rows: dict[int, list[Check]] = {}
    for check in checks:
        rows.setdefault((percentile_of(str(check.name)) or ("", 0))[1], []).append(check)
    figure, axes = _canvas(5.6, 0.9 + 0.55 * len(rows))
    labels = []
    for row, (percent, members) in enumerate(sorted(rows.items(), reverse=True)):
        labels.append(f"P{percent}")
        _dots(axes, row, [(float(check.value), check.status) for check in members])
        _ticks(axes, row, {bound for check in members if (bound := check.number("threshold")) is not None})
    _rows(axes, labels)
    axes.set_xlim(left=0)
    axes.set_xlabel("seconds")
    hosts = len({check.host for check in checks})
    caption = f"{hosts} hosts, one dot each, {scope}. The dashed mark is the SLO."
    return Plot(base.replace("_", " "), caption, _svg(figure, f"{base}-{scope}"))


def _bars(checks: list[Check], name_hosts: bool) -> Plot:
    """Draw each bandwidth as a bar before its limit, with a mark where it would fail; figures stand above the bar."""
    figure, axes = _canvas(5.6, 0.75 + 0.5 * len(checks))
    longest = 100.0
    for row, check in enumerate(reversed(checks)):
        value, limit, threshold = check.number("value") or 0.0, _limit(check), check.number("threshold")
        longest = max(longest, value / limit * 100)
        axes.barh(row, 100, height=0.34, color=GRID)
        axes.barh(row, value / limit * 100, height=0.34, color=_STATUS_COLOR[check.status])
        if threshold is not None:
            _ticks(axes, row, [threshold / limit * 100], 0.22)
        text = f"{format_value(value, 'B/s')} of {format_value(limit, 'B/s')}, {format_percent(value / limit)}"
        _label(axes, row, 100, _called(check, name_hosts), text)
    _finish_bars(axes, len(checks), longest, "percent of the limit")
    caption = "Measured (coloured) before its limit (grey); the dashed mark is where the gate fails."
    return Plot("bandwidth and its limit", caption, _svg(figure, "bandwidth"))


def _absolute_bars(checks: list[Check], name_hosts: bool) -> Plot:
    """Draw bandwidths without a known limit in GB/s, with a mark where they would fail."""
    figure, axes = _canvas(5.6, 0.75 + 0.5 * len(checks))
    longest = max(max(check.number("value") or 0.0, check.number("threshold") or 0.0) for check in checks) / 1e9
    for row, check in enumerate(reversed(checks)):
        value, threshold = check.number("value") or 0.0, check.number("threshold")
        axes.barh(row, value / 1e9, height=0.34, color=_STATUS_COLOR[check.status])
        text = format_value(value, "B/s")
        if threshold is not None:
            _ticks(axes, row, [threshold / 1e9], 0.22)
            text += f", {check.required}" if check.required else ""
        _label(axes, row, longest, _called(check, name_hosts), text)
    _finish_bars(axes, len(checks), longest, "GB/s")
    return Plot(
        "bandwidth, no limit known", f"{_NO_LIMIT} The dashed mark is where the gate fails.", _svg(figure, "rate")
    )


_NO_LIMIT = "No limit of these is known, so nobody can say how much of it was reached."


def _called(check: Check, name_hosts: bool) -> str:
    return f"{check.title}, {check.scope}" + (f", {check.host}" if name_hosts else "")


def _label(axes: Any, row: int, right: float, name: str, text: str) -> None:
    axes.annotate(name, (0, row + 0.25), fontsize=9, color=FOREGROUND, va="bottom")
    axes.annotate(text, (right, row + 0.25), fontsize=9, color=FOREGROUND, va="bottom", ha="right")


def _finish_bars(axes: Any, rows: int, longest: float, unit: str) -> None:
    _rows(axes, [""] * rows)
    axes.set_ylim(-0.4, rows - 0.35)
    axes.set_xlim(0, longest * 1.02)
    axes.set_xlabel(unit)


def _strip(checks: list[Check]) -> Plot:
    """Draw each host's bandwidth in percent of its limit as a dot, a row for each check."""
    figure, axes = _strip_rows(checks, lambda check: _limit(check) / 100)
    axes.set_xlim(0, 112)
    axes.axvline(100, color=MUTED, linewidth=1)
    axes.set_xlabel("percent of the limit")
    hosts = len({check.host for check in checks})
    caption = f"{hosts} hosts, a dot for each measurement. The line at 100 is the limit, the dashed mark is where the gate fails."
    return Plot("bandwidth and its limit", caption, _svg(figure, "bandwidth"))


def _absolute_strip(checks: list[Check]) -> Plot:
    """Draw each host's bandwidth without a known limit in GB/s as a dot, a row for each check."""
    figure, axes = _strip_rows(checks, lambda _check: 1e9)
    axes.set_xlim(left=0)
    axes.set_xlabel("GB/s")
    hosts = len({check.host for check in checks})
    caption = f"{hosts} hosts, a dot for each measurement. {_NO_LIMIT} The dashed mark is where the gate fails."
    return Plot("bandwidth, no limit known", caption, _svg(figure, "rate"))


def _strip_rows(checks: list[Check], whole: Callable[[Check], float]) -> tuple[Any, Any]:
    """Draw a row of dots for each title; ``whole`` says what a check's figure and bound are divided by."""
    rows: dict[str, list[Check]] = {}
    for check in checks:
        rows.setdefault(check.title, []).append(check)
    figure, axes = _canvas(5.6, 0.9 + 0.55 * len(rows))
    for row, members in enumerate(reversed(list(rows.values()))):
        _dots(axes, row, [((check.number("value") or 0.0) / whole(check), check.status) for check in members])
        bounds = [(check.number("threshold"), whole(check)) for check in members]
        _ticks(axes, row, {round(bound / size, 6) for bound, size in bounds if bound is not None})
    _rows(axes, list(reversed(list(rows))))
    return figure, axes


def _dots(axes: Any, row: int, points: Sequence[tuple[float, str]]) -> None:
    # The good ones first, so that no bad one lies hidden; spread a little, so that equal ones show as many.
    for status in ("SKIPPED", "OK", "WARN", "UNKNOWN", "CRITICAL"):
        values = [value for value, found in points if found == status]
        rows = [row + ((index * 7919) % 100 / 100 - 0.5) * 0.4 for index in range(len(values))]
        size, alpha = (16, 0.55) if status == "OK" else (36, 1.0)
        axes.scatter(values, rows, s=size, color=_STATUS_COLOR[status], alpha=alpha, linewidths=0, zorder=3)


def _ticks(axes: Any, row: int, values: Iterable[float], reach: float = 0.42) -> None:
    for value in values:
        axes.plot([value, value], [row - reach, row + reach], color=FOREGROUND, linewidth=1.3, linestyle=(0, (3, 2)))


def _rows(axes: Any, labels: list[str]) -> None:
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(-0.6, len(labels) - 0.4)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="y", visible=False)
