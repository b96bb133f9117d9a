#!/usr/bin/env python3
"""Measure how often the soak's leak gate errs on simulated traces, and how many samples it needs, beside other methods.

Usage: python bench/leak_gate.py [--traces N] [--power-traces N] [--processes N] [--only false_alarms|samples]

False alarms: leak-free traces of each kind of noise; an alarm is an interval that lies above zero. "leak_trend" is the gate's own; beside
it, on the same traces, the same confidence by Newey and West's standard errors (Bartlett, bandwidth 4 (n/100)^(2/9), normal quantile), by
ordinary least squares over all samples, and by the two-point rule of the article (last reading over first: more than 0.3 % in 72 h).
Samples: the shortest trace of each kind in which 9 of 10 planted leaks of 0.3 % per 72 h are found, for the gate, and for the best that
comparing two readings can do: a threshold that lets one in a hundred leak-free traces of just that length pass for a leak. One sample every
10 s for both (60 s where noise is slower); the warm-up is left out for the two-point rule, which cannot find its end.
Prints one JSON object. Figures and their date belong in docs/performance.md. The machine's load does not matter to the figures.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Callable, Iterable
from multiprocessing import Pool
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "collections"))

from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.leak_trend import (
    CONFIDENCE,
    Trend,
    student_quantile,
    trend,
)

HORIZON = 72 * 3600.0
LEAK = 0.003
NORMAL = 1e9  # degrees of freedom at which Student's quantile is the normal one
Noise = Callable[[random.Random, int, float], list[float]]


def white(chance: random.Random, count: int, _step: float) -> list[float]:
    """Independent readings, 0.1 %."""
    return [chance.gauss(0, 0.001) for _ in range(count)]


def correlated(seconds: float) -> Noise:
    """Noise of 0.1 % that is forgotten after so many seconds (AR(1))."""

    def make(chance: random.Random, count: int, step: float) -> list[float]:
        keep = math.exp(-step / seconds)
        fresh = math.sqrt(1 - keep * keep)
        value, found = chance.gauss(0, 1), []
        for _ in range(count):
            value = keep * value + fresh * chance.gauss(0, 1)
            found.append(0.001 * value)
        return found

    return make


def sawtooth(chance: random.Random, count: int, step: float) -> list[float]:
    """A garbage collector: teeth of 0.2 to 1 %, of 5 to 60 min in the mean, each of another length and height."""
    height, mean = chance.uniform(0.002, 0.01), chance.uniform(300, 3600)
    found, value, left, rise = [], 0.0, 0.0, 0.0
    for _ in range(count):
        if left <= 0:
            left = mean * chance.uniform(0.7, 1.3)
            rise, value = height * chance.uniform(0.8, 1.2) / left, 0.0
        found.append(value + chance.gauss(0, 0.0002))
        value += rise * step
        left -= step
    return found


def warming(chance: random.Random, count: int, step: float) -> list[float]:
    """Correlated and white noise; up to a fifth of the time 2 to 10 steps of 0.2 to 3 %, and an exponential approach."""
    base = [a + b for a, b in zip(correlated(300)(chance, count, step), white(chance, count, step), strict=True)]
    end = chance.uniform(0.02, 0.2) * count
    steps = [(chance.uniform(0, end), chance.uniform(0.002, 0.03)) for _ in range(chance.randint(2, 10))]
    scale, height = chance.uniform(0.01, 0.05) * count, chance.uniform(0, 0.05)
    return [
        value - sum(size for at, size in steps if index < at) - height * math.exp(-index / scale)
        for index, value in enumerate(base)
    ]


def daily(chance: random.Random, count: int, step: float) -> list[float]:
    """The load of days: 0.2 to 1 % with the day, a fifth of that twice a day, and noise of 10 min."""
    phase, height = chance.uniform(0, 2 * math.pi), chance.uniform(0.002, 0.01)
    turn = 2 * math.pi * step / 86400
    return [
        value + height * (math.sin(turn * index + phase) + 0.2 * math.sin(2 * (turn * index + phase)))
        for index, value in enumerate(correlated(600)(chance, count, step))
    ]


def everything(chance: random.Random, count: int, step: float) -> list[float]:
    """Days, warm-up and half of a garbage collector's teeth together."""
    parts = (daily(chance, count, step), warming(chance, count, step), sawtooth(chance, count, step))
    return [a + b + 0.5 * c for a, b, c in zip(*parts, strict=True)]


KINDS: dict[str, Noise] = {
    "white": white,
    "correlated, 1 min": correlated(60),
    "correlated, 5 min": correlated(300),
    "correlated, 30 min": correlated(1800),
    "correlated, 2 h": correlated(7200),
    "sawtooth": sawtooth,
    "steps at warm-up": warming,
    "daily": daily,
    "everything": everything,
}
NEEDS_A_DAY = frozenset({"daily", "everything"})


def trace(kind: str, seed: int, hours: float, step: float, leak: float) -> tuple[list[float], list[float]]:
    """Times in seconds and values around 1, with a leak per 72 h."""
    count = int(hours * 3600 / step)
    times = [index * step for index in range(count)]
    noise = KINDS[kind](random.Random(f"{kind} {seed}"), count, step)
    return times, [1 + value + leak * moment / HORIZON for value, moment in zip(noise, times, strict=True)]


def least_squares(times: list[float], values: list[float], lags: int) -> bool:
    """Whether a slope over all samples lies above zero, with Newey and West's variance of so many lags; 0: independent samples."""
    count = len(times)
    middle, mean = sum(times) / count, sum(values) / count
    x = [moment - middle for moment in times]
    square = sum(each * each for each in x)
    slope = sum(a * b for a, b in zip(x, values, strict=True)) / square
    scores = [a * (value - mean - slope * a) for a, value in zip(x, values, strict=True)]
    total = sum(each * each for each in scores)
    for lag in range(1, lags + 1):
        total += 2 * (1 - lag / (lags + 1)) * sum(a * b for a, b in zip(scores, scores[lag:], strict=False))
    return slope > student_quantile((1 + CONFIDENCE) / 2, NORMAL) * math.sqrt(max(total, 0)) / square


def alarms(job: tuple[str, int, float, float]) -> dict[str, bool]:
    """What each method says of a leak-free trace."""
    kind, seed, hours, step = job
    times, values = trace(kind, seed, hours, step, 0.0)
    found = trend(times, values)
    # The others cannot find the end of a warm-up: they are given it.
    warm = len(times) // 5 if kind in ("steps at warm-up", "everything") else 0
    settled, readings = times[warm:], values[warm:]
    return {
        "leak_trend": isinstance(found, Trend) and found.low > 0,
        "leak_trend_beyond_bar": isinstance(found, Trend) and found.low > 0 and found.growth(HORIZON)[2] > LEAK,
        "newey_west": least_squares(settled, readings, int(4 * (len(readings) / 100) ** (2 / 9))),
        "least_squares": least_squares(settled, readings, 0),
        "two_points": readings[-1] / readings[0] > 1 + LEAK * (settled[-1] - settled[0]) / HORIZON,
    }


def found_by_trend(job: tuple[str, int, float, float]) -> bool:
    """Whether the gate calls a planted leak one."""
    kind, seed, hours, step = job
    found = trend(*trace(kind, seed, hours, step, LEAK))
    return isinstance(found, Trend) and found.low > 0 and found.growth(HORIZON)[2] > LEAK


def two_points(job: tuple[str, int, float, float]) -> float:
    """The last reading of a leak-free trace over the first after the warm-up, less one. Only these two are simulated where that can be."""
    kind, seed, hours, step = job
    if kind == "white" or (kind.startswith("correlated") and hours > 40):
        chance = random.Random(f"{kind} {seed}")  # so far apart, the two are independent
        return 0.001 * (chance.gauss(0, 1) - chance.gauss(0, 1))
    times, values = trace(kind, seed, hours, step, 0.0)
    first = len(times) // 5 if kind in ("steps at warm-up", "everything") else 0
    return values[-1] / values[first] - 1


def shortest(works: Callable[[float], bool], low: float, high: float) -> float | None:
    """The shortest number of hours that works, to 7 %; None where even the longest does not."""
    while not works(low):
        if low >= high:
            return None
        low = min(low * 2, high)
    below = low / 2
    while low / below > 1.07:
        middle = math.sqrt(low * below)
        if works(middle):
            low = middle
        else:
            below = middle
    return low


def samples_needed(pool: Any, kind: str, traces: int, step: float) -> dict[str, Any]:
    """Hours and samples until 9 of 10 planted leaks are found."""

    def trend_works(hours: float) -> bool:
        jobs = [(kind, seed, hours, step) for seed in range(traces)]
        return bool(sum(pool.imap_unordered(found_by_trend, jobs, chunksize=4)) >= 0.9 * traces)

    def points_work(hours: float) -> bool:
        # A larger step for the same two moments: what lies between them does not matter.
        jobs = [(kind, seed, hours, max(step, hours * 3600 / 20_000)) for seed in range(1000)]
        errors = sorted(pool.imap_unordered(two_points, jobs, chunksize=50))
        threshold = errors[989]  # one in a hundred above it
        share = 0.8 if kind in ("steps at warm-up", "everything") else 1.0
        growth = LEAK * hours * share * 3600 / HORIZON
        return bool(sum(error + growth > threshold for error in errors) >= 900)

    least = 26.0 if kind in NEEDS_A_DAY else 0.5
    by_trend, by_points = shortest(trend_works, least, 160.0), shortest(points_work, 1.0, 2000.0)
    told: dict[str, Any] = {"trend_hours": by_trend, "two_point_hours": by_points}
    if by_trend and by_points:
        told.update(
            trend_samples=round(by_trend * 3600 / step),
            two_point_samples=round(by_points * 3600 / step),
            trend_over_two_point=round(by_trend / by_points, 3),
        )
    return {name: round(value, 1) if name.endswith("hours") and value else value for name, value in told.items()}


def shares(rows: Iterable[dict[str, bool]]) -> dict[str, float]:
    """The share of alarms by method."""
    found = list(rows)
    return {name: round(sum(row[name] for row in found) / len(found), 4) for name in found[0]}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=int, default=1000, help="leak-free traces of each kind and length")
    parser.add_argument("--power-traces", type=int, default=100, help="planted leaks at each length that is tried")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--lengths", default="72:60,7.2:10", help="of leak-free traces: hours:seconds between samples, ..."
    )
    parser.add_argument("--only", choices=["false_alarms", "samples"], default="")
    arguments = parser.parse_args()
    lengths = [tuple(map(float, each.split(":"))) for each in arguments.lengths.split(",")]
    result: dict[str, Any] = {"date": time.strftime("%Y-%m-%d"), "confidence": CONFIDENCE, "traces": arguments.traces}
    with Pool(arguments.processes) as pool:
        if arguments.only != "samples":
            result["false_alarms"] = {
                f"{hours:g} h, a sample every {step:g} s": {
                    kind: shares(
                        pool.imap_unordered(
                            alarms, [(kind, seed, hours, step) for seed in range(arguments.traces)], chunksize=10
                        )
                    )
                    for kind in KINDS
                    if hours >= 24 or kind not in NEEDS_A_DAY
                }
                for hours, step in lengths
            }
        if arguments.only != "false_alarms":
            # More than a sample a minute tells no more where noise is slower than that.
            result["samples"] = {
                kind: samples_needed(
                    pool, kind, arguments.power_traces, 10.0 if kind in ("white", "correlated, 1 min") else 60.0
                )
                for kind in KINDS
            }
    print(json.dumps(result, indent=1), flush=True)


if __name__ == "__main__":
    main()
