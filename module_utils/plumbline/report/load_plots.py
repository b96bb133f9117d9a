"""Plots of a load: latencies by percentile up to the tail, the load's course over time, and the rates of a sweep."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..gate_rules import is_number
from ..quantities import format_value
from .canvas import BAD, FOREGROUND, GOOD, LINE, MUTED, Plot, canvas, svg_of
from .model import Check, percentile_of

_TAIL_SAMPLES = 100
_MOST_TICKS = 8
_TICKS = (0, 50, 90, 99, 99.9)
_DASHES: Sequence[Any] = ("-", (0, (6, 2)), (0, (1.5, 1.5)))


def draw(checks: Iterable[Check], few_hosts: bool) -> list[Plot]:
    """Draw what the loads of a run have left; a host at a time, so only where there are few."""
    if not few_hosts:
        return []
    plots: list[Plot] = []
    tails: dict[tuple[str, str], list[Check]] = {}
    for check in checks:
        split = percentile_of(str(check.name))
        if split and split[1] == 99 and check.unit == "s" and len(_numbers(check)) >= _TAIL_SAMPLES:
            tails.setdefault((check.host, str(check.scope)), []).append(check)
    plots += [_tail(host, members) for (host, _), members in tails.items()]
    for check in checks:
        conditions = check.record.get("conditions") or {}
        if check.name == "achieved_request_rate" and _rows(conditions.get("timeline")):
            plots.append(_course(check, _rows(conditions["timeline"])))
        if check.name == "highest_rate_within_slo":
            rates = [row for row in _rows(conditions.get("sweep")) if is_number(row.get("rate")) and row["rate"] > 0]
            plots += [_sweep(check, rates)] if rates else []
    return plots


def _numbers(check: Check) -> list[float]:
    return sorted(float(sample) for sample in check.record.get("samples") or [] if is_number(sample))


def _rows(value: Any) -> list[dict[str, Any]]:
    """The rows of evidence, which may have been written by anybody."""
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def _series(rows: Sequence[dict[str, Any]], x: str, y: str) -> tuple[list[float], list[float]]:
    points = [(row[x], row[y]) for row in rows if is_number(row.get(x)) and is_number(row.get(y)) and row[y] >= 0]
    return [float(point[0]) for point in points], [float(point[1]) for point in points]


def _tail(host: str, checks: Sequence[Check]) -> Plot:
    """Latency over percentile, stretched towards the tail, as HDR histograms are shown."""
    figure, axes = canvas(5.6, 2.9)
    deepest, low, high = 99.0, math.inf, 0.0
    for check, dashes in zip(checks, _DASHES):
        samples = _numbers(check)
        last = len(samples) - 1
        # Up to the second to last: the very last is 1 in n, not a percentile.
        places = [_stretched(100 * index / last) for index in range(last)]
        deepest = max(deepest, 100 * (last - 1) / last)
        name = (percentile_of(str(check.name)) or ("", 0))[0].replace("_", " ")
        axes.plot(places, samples[:last], color=LINE, linewidth=1.8, linestyle=dashes, label=name)
        low, high = min(low, samples[last // 20]), max(high, samples[-1])
    ticks = [tick for tick in _TICKS if tick <= max(99.0, deepest)]
    axes.set_xticks([_stretched(tick) for tick in ticks], ["0" if not tick else f"P{tick:g}" for tick in ticks])
    axes.set_xlim(0, _stretched(max(99.0, deepest)) * 1.02)
    _logarithmic(axes, "y", low * 0.8, high * 1.1, lambda value: format_value(value, "s"))
    _legend(axes, 1.16)
    axes.set_xlabel("percentile, the tail stretched")
    caption = f"Latencies of {checks[0].scope} by percentile, each from when its request was due ({host})."
    return Plot("latency by percentile", caption, svg_of(figure, f"tail-{host}-{checks[0].scope}"))


def _stretched(percent: float) -> float:
    return -math.log10(max(1e-6, 1 - percent / 100))


def _course(check: Check, rows: Sequence[dict[str, Any]]) -> Plot:
    """Latencies above, rates below, over the time of the load."""
    figure, axes = canvas(5.6, 3.6)
    axes.remove()
    upper, lower = figure.subplots(2, 1, sharex=True)
    for name, color, dashes, label in (
        ("time_to_first_token_p50", LINE, "-", "first token P50"),
        ("time_to_first_token_p99", LINE, (0, (1.5, 1.5)), "first token P99"),
        ("end_to_end_latency_p99", FOREGROUND, (0, (6, 2)), "end to end P99"),
    ):
        x, y = _series(rows, "seconds", name)
        if x:
            upper.plot(x, y, color=color, linewidth=1.5, linestyle=dashes, label=label)
    upper.set_ylim(bottom=0)
    upper.set_ylabel("seconds")
    for name, color, dashes, label in (
        ("requested_per_second", MUTED, (0, (4, 3)), "requested"),
        ("completed_per_second", GOOD, "-", "answered"),
    ):
        x, y = _series(rows, "seconds", name)
        lower.plot(x, y, color=color, linewidth=1.5, linestyle=dashes, label=label)
    x, failed = _series(rows, "seconds", "failed")
    if any(failed):
        bad = [(at, count) for at, count in zip(x, failed) if count]
        lower.plot([at for at, _ in bad], [0.0] * len(bad), "x", color=BAD, label="failed", clip_on=False)
    lower.set_ylim(bottom=0)
    lower.set_ylabel("requests/s")
    lower.set_xlabel("seconds from the start of the load")
    for each in (upper, lower):
        _legend(each, 1.22)
    caption = f"The load on {check.scope} as it went ({check.host}); requests count where they ended."
    return Plot("course of the load", caption, svg_of(figure, f"course-{check.host}-{check.scope}"))


def _sweep(check: Check, rows: Sequence[dict[str, Any]]) -> Plot:
    """The latency of each rate that was tried, and which of them held."""
    figure, axes = canvas(5.6, 2.9)
    ordered = sorted(rows, key=lambda row: float(row["rate"]))
    times: list[float] = []
    for name, dashes, label in (
        ("time_to_first_token_p50", "-", "first token P50"),
        ("time_to_first_token_p99", (0, (1.5, 1.5)), "first token P99"),
        ("end_to_end_latency_p99", (0, (6, 2)), "end to end P99"),
    ):
        x, y = _series(ordered, "rate", name)
        if not x:
            continue
        times += y
        axes.plot(x, y, color=LINE, linewidth=1.3, linestyle=dashes, label=label)
        held = {float(row["rate"]) for row in ordered if row.get("held")}
        for good, color in ((True, GOOD), (False, BAD)):
            points = [point for point in zip(x, y) if (point[0] in held) is good]
            axes.plot(
                [each[0] for each in points], [each[1] for each in points], "o", color=color, markersize=5, zorder=4
            )
    highest = check.number("value")
    if highest:
        axes.axvline(highest, color=GOOD, linewidth=1.2, linestyle=(0, (4, 3)))
        axes.annotate(
            f"{highest:.3g} requests/s ",
            (highest, 0.5),
            xycoords=("data", "axes fraction"),
            fontsize=9,
            ha="right",
            va="center",
        )
    rates = [float(row["rate"]) for row in ordered]
    _logarithmic(axes, "x", min(rates) * 0.9, max(rates) * 1.1, lambda value: f"{value:g}")
    _logarithmic(
        axes, "y", min(times or [0.1]) * 0.8, max(times or [1.0]) * 1.2, lambda value: format_value(value, "s")
    )
    axes.set_xlabel("requests/s asked for")
    _legend(axes, 1.16)
    caption = f"Rates tried on {check.scope} ({check.host}). Green held the service level, red did not."
    return Plot("rates of the sweep", caption, svg_of(figure, f"sweep-{check.host}-{check.scope}"))


def _legend(axes: Any, above: float) -> None:
    if not axes.get_legend_handles_labels()[0]:
        return
    axes.legend(
        loc="upper center", bbox_to_anchor=(0.5, above), ncols=3, frameon=False, fontsize=8, labelcolor=FOREGROUND
    )


def _logarithmic(axes: Any, which: str, low: float, high: float, text: Callable[[float], str]) -> None:
    """Make an axis logarithmic, with as many round labels as there is room for."""
    low = max(low, 1e-6)
    high = max(high, low * 2)
    getattr(axes, f"set_{which}scale")("log")
    getattr(axes, f"set_{which}lim")(low, high)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1, 2, 3, 4, 5, 6, 7, 8, 9), (1, 2, 5), (1,)):
        ticks = [step * 10.0**decade for decade in decades for step in steps]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) <= _MOST_TICKS:
            break
    axis = getattr(axes, f"{which}axis")
    axis.set_ticks(ticks, [text(tick) for tick in ticks])
    axis.set_ticks([], minor=True)
