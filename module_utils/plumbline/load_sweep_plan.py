"""Which rates a search for the highest that holds a service level tries: it doubles until one does not, then halves the gap."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LEAST_REQUESTS = 20
_BOUNDED = ("time_to_first_token", "inter_token_latency", "end_to_end_latency")


@dataclass(frozen=True)
class Sweep:
    """How to search. Rates in requests/s; `bounds` in seconds, by `time_to_first_token_p99` and the like."""

    seconds: float = 30.0
    maximum_rate: float = 10_000.0
    steps: int = 12
    resolution: float = 0.05
    rate_fraction: float = 0.9
    error_fraction: float = 0.0
    bounds: tuple[tuple[str, float], ...] = ()


def read_sweep(content: Any) -> Sweep:
    """Return the search that a JSON object describes.

    :raises ValueError: with one sentence, when it is not sound.
    """
    if not isinstance(content, Mapping):
        raise ValueError("sweep is an object")
    known = ("seconds", "maximum_rate", "steps", "resolution", "rate_fraction", "error_fraction", "bounds")
    unknown = sorted(set(content) - set(known))
    if unknown:
        raise ValueError(f"sweep has no {unknown[0]}; it takes {', '.join(known)}")
    for name, value in content.items():
        if name != "bounds" and (isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0):
            raise ValueError(f"sweep: {name} is a number of 0 or more, {value!r} was found")
    bounds = content.get("bounds") or {}
    for name, bound in bounds.items():
        base, _, percent = str(name).rpartition("_p")
        if base not in _BOUNDED or not percent.isdigit() or not 0 < int(percent) < 100:
            raise ValueError(f"sweep: a bound is called like time_to_first_token_p99, {name} was found")
        if isinstance(bound, bool) or not isinstance(bound, (int, float)) or not bound > 0:
            raise ValueError(f"sweep: {name} is a number of seconds above 0, {bound!r} was found")
    if not bounds:
        raise ValueError("sweep needs bounds: a rate that promises nothing cannot miss it")
    return Sweep(**{**content, "bounds": tuple(bounds.items())})


def next_rate(steps: list[dict[str, Any]], first: float, sweep: Sweep) -> float | None:
    """Return the rate to try next, None when the search is over."""
    if len(steps) >= sweep.steps:
        return None
    if not steps:
        return min(first, sweep.maximum_rate)
    held = max((step["rate"] for step in steps if step["held"]), default=0.0)
    missed = min((step["rate"] for step in steps if not step["held"] and step["rate"] > held), default=0.0)
    if not missed:
        return min(held * 2, sweep.maximum_rate) if held < sweep.maximum_rate else None
    if not held:
        return missed / 2
    if missed / held <= 1 + sweep.resolution:
        return None
    return math.sqrt(held * missed)


def requests_of(rate: float, sweep: Sweep) -> int:
    """Return how many requests a rate is tried with."""
    return max(LEAST_REQUESTS, round(rate * sweep.seconds))


def patience_seconds(rate: float, sweep: Sweep) -> float:
    """Return when a rate is given up: an overload is known long before its queue is worked off."""
    return 3 * requests_of(rate, sweep) / rate + 10


def longest_seconds(sweep: Sweep, first: float) -> float:
    """Return how long a search may take at most: every rate overloaded, each half of the one before."""
    return sum(patience_seconds(first / 2**step, sweep) for step in range(int(sweep.steps)))
