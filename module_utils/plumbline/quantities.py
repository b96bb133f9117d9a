"""Figures as a person reads them: 204.8 GB/s, 860 ms, 2.5 %, 8.0 GT/s."""

from __future__ import annotations

import math
from typing import Any

_SI = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_BINARY = ((2**40, "Ti"), (2**30, "Gi"), (2**20, "Mi"), (2**10, "Ki"))
_LONGEST_TEXT = 200  # of a value that is no number, in characters


def format_value(value: Any, unit: str = "") -> str:  # noqa: PLR0911 - one line a type reads best
    """Return a value with its unit for people: ``163.2e9, "B/s"`` reads ``163.2 GB/s``.

    Bandwidths (``B/s``) and rates are decimal, as vendors state them; sizes (``B``) are binary. Never raises.
    """
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return _shorten(", ".join(format_value(item, unit) for item in value)) or "an empty list"
    if not isinstance(value, (int, float)):
        return _shorten(str(value)) or "an empty text"
    try:
        if not math.isfinite(value):
            return str(float(value))
    except OverflowError:
        return "a number beyond 1e308"
    if unit == "s":
        return format_seconds(float(value))
    if unit == "fraction":
        return f"{format_number(value * 100)} %"
    if unit == "B":
        return _scaled(value, _BINARY, "B")
    if unit in ("B/s", "bit/s", "FLOP/s"):
        return _scaled(value, _SI, unit)
    return f"{format_number(value)} {_UNIT_NAMES.get(unit, unit)}".strip()


_UNIT_NAMES = {
    "Cel": "°C",
    "count": "",
    "1": "",
    "bool": "",
    "version": "",
    "text": "",
    "1/h": "per hour",
    "1/s": "per second",
}


def format_number(value: float) -> str:
    """Return a number with four significant digits at most, without an exponent where people write none."""
    if isinstance(value, int) and abs(value) < 10**15:
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 10_000:
        return f"{value:,.0f}"
    if size < 0.001:
        return f"{value:.3g}"
    text = f"{value:.{max(0, 3 - math.floor(math.log10(size)))}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def format_seconds(value: float) -> str:
    """Return a duration: ``860 ms``, ``3.05 s``, ``12 min 5 s``, ``2 h 3 min``."""
    size = abs(value)
    if size == 0:
        return "0 s"
    if size < 0.001:
        return f"{format_number(value * 1e6)} µs"
    if size < 1:
        return f"{format_number(value * 1e3)} ms"
    if size < 120:
        return f"{format_number(value)} s"
    seconds = round(size)
    sign = "-" if value < 0 else ""
    if seconds < 3600:
        return f"{sign}{seconds // 60} min {seconds % 60} s"
    return f"{sign}{seconds // 3600} h {seconds % 3600 // 60} min"


def format_percent(fraction: float) -> str:
    """Return a fraction as percent; one decimal only where it tells something (0.9 %, 99.5 %, 48 %)."""
    percent = fraction * 100
    digits = 1 if percent < 10 or abs(percent - 100) < 1 else 0
    text = f"{percent:.{digits}f}"
    return f"{text[:-2] if text.endswith('.0') else text} %"


def _scaled(value: float, steps: tuple[tuple[float, str], ...], unit: str) -> str:
    for factor, prefix in steps:
        if abs(value) >= factor:
            return f"{format_number(value / factor)} {prefix}{unit}"
    return f"{format_number(value)} {unit}"


def _shorten(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 1] + "…"
