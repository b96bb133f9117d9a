"""Plots of a soak: each judged series over its time, with its slope, its interval and the warm-up that was left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..gate_rules import is_number
from ..quantities import format_value
from .canvas import BAD, FOREGROUND, GOOD, GRID, LINE, MUTED, WARN, Plot, canvas, svg_of
from .model import Check, Report

_SERIES = ("soak_memory_growth", "soak_mapped_growth", "soak_latency_drift")
_SCALES = {"B": ((2**30, "GiB"), (2**20, "MiB")), "s": ((1.0, "s"), (1e-3, "ms"))}
_SPANS = ((7200.0, 3600.0, "hours"), (300.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))
_FEW_HOSTS = 3
_ROOM_FOR_A_WORD = 0.12  # of the width
_COLORS = {"OK": GOOD, "WARN": WARN}


def draw(report: Report) -> list[Plot]:
    """Draw what a soak has judged, of a few hosts."""
    if len(report.hosts) > _FEW_HOSTS:
        return []
    plots = [_series(check, len(report.hosts) > 1) for check in report.checks if check.name in _SERIES]
    return [plot for plot in plots if plot is not None]


def _series(check: Check, name_host: bool) -> Plot | None:
    conditions = check.record.get("conditions") or {}
    values, seconds = check.record.get("samples") or [], conditions.get("sample_seconds") or []
    points = [(t, v) for t, v in zip(seconds, values) if is_number(t) and is_number(v)]
    if len(values) != len(seconds) or len(points) < 2:
        return None
    unit = str(conditions.get("sample_unit") or "")
    highest = max(value for _, value in points)
    factor, called = next(
        (each for each in _SCALES.get(unit, ()) if highest >= each[0]), _SCALES.get(unit, ((1, unit),))[-1]
    )
    _, span, noun = next(each for each in _SPANS if points[-1][0] >= each[0])
    figure, axes = canvas(5.6, 2.6)
    axes.plot(
        [t / span for t, _ in points], [v / factor for _, v in points], ".", color=LINE, markersize=2.5, alpha=0.7
    )
    axes.set_xlim(0, points[-1][0] / span)
    settled = conditions.get("settled_seconds")
    begin = settled if is_number(settled) else 0.0
    _margins(axes, [value / factor for time, value in points if time >= begin] or [points[-1][1] / factor])
    told = _slope(axes, check, points[-1][0], (span, factor))
    axes.set_xlabel(noun)
    axes.set_ylabel(called)
    # An axis that does not begin at 0 must say so, and a figure of 1.0027 is read better than 2.7e-3 above 1.
    axes.ticklabel_format(axis="y", useOffset=False, style="plain")
    host = f", {check.host}" if name_host else ""
    caption = f"{check.reason}. {told}The axis does not begin at 0, the warm-up may lie outside."
    return Plot(
        f"{check.title}: {check.scope}{host}", caption, svg_of(figure, f"soak-{check.name}-{check.scope}-{check.host}")
    )


def _margins(axes: Any, values: list[float]) -> None:
    """Show the middle 99 % of what was judged: neither a spike nor the warm-up must flatten the rest."""
    ordered = sorted(values)
    low, high = ordered[len(ordered) // 200], ordered[-1 - len(ordered) // 200]
    reach = max(high - low, abs(high) * 1e-4, 1e-12)
    axes.set_ylim(low - 0.25 * reach, high + 0.25 * reach)


def _slope(axes: Any, check: Check, end: float, units: tuple[float, float]) -> str:
    """Draw the line, between the slopes that the interval allows, and the warm-up; what the caption says of it."""
    names = ("slope_per_second", "level", "settled_seconds", "low", "high", "horizon_seconds")
    conditions: Mapping[str, Any] = check.record.get("conditions") or {}
    figures = [float(value) for name in names if is_number(value := conditions.get(name))]
    span, factor = units
    if len(figures) != len(names):
        return ""
    slope, level, begin, low, high, horizon = figures
    color = _COLORS.get(check.status, BAD)
    middle = (begin + end) / 2
    centre = level + slope * (middle - begin)
    # All lines go through the middle of what was judged: there the level is known best.
    bounds = [bound * level / horizon for bound in (low, high)]
    ends = [begin, end]
    edges = [[(centre + each * (time - middle)) / factor for time in ends] for each in bounds]
    lower = [min(pair) for pair in zip(*edges)]
    upper = [max(pair) for pair in zip(*edges)]
    axes.fill_between([time / span for time in ends], lower, upper, color=color, alpha=0.18, linewidth=0)
    axes.plot(
        [time / span for time in ends], [(centre + slope * (time - middle)) / factor for time in ends], color=color
    )
    if begin > 0:
        axes.axvspan(0, begin / span, color=GRID, alpha=0.6, linewidth=0)
    if begin > _ROOM_FOR_A_WORD * end:
        place = {"xycoords": ("data", "axes fraction"), "xytext": (-3, -2), "textcoords": "offset points"}
        axes.annotate("warm-up", (begin / span, 1), fontsize=8, color=MUTED, ha="right", va="top", **place)
    growth = f"{format_value(check.value, 'fraction')} in {format_value(horizon, 's').removesuffix(' 0 min')}"
    axes.annotate(growth, (1, 1), xycoords="axes fraction", fontsize=9, color=FOREGROUND, ha="right", va="bottom")
    return "Dots: what was read. Line and band: the slope and its interval, from the end of the warm-up on. "
