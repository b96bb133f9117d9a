"""Statistics of latencies. No estimate is made up where there are no samples."""

from __future__ import annotations

from collections.abc import Sequence


def percentile(samples: Sequence[float], percent: float) -> float:
    """Return the given percentile of the samples, in their unit, by linear interpolation between order statistics.

    That is type 7 of Hyndman and Fan, as numpy and `vllm bench serve` have it.

    :raises ValueError: without samples, or for a percentage outside 0 to 100.
    """
    if not samples:
        raise ValueError("a percentile needs at least one sample")
    if not 0 <= percent <= 100:
        raise ValueError(f"a percentile is between 0 and 100, not {percent}")
    ordered = sorted(samples)
    position = (len(ordered) - 1) * percent / 100
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def thin(samples: Sequence[float], most: int) -> list[float]:
    """Return at most `most` samples that keep the shape of the distribution: its evenly spaced order statistics, extremes included.

    :raises ValueError: when fewer than two samples may be kept.
    """
    if most < 2:
        raise ValueError(f"at least 2 samples must be kept to show a distribution, not {most}")
    if len(samples) <= most:
        return list(samples)
    ordered = sorted(samples)
    step = (len(ordered) - 1) / (most - 1)
    return [ordered[round(index * step)] for index in range(most)]
