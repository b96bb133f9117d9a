"""The slope and its interval: right on series whose truth is known, and not fooled by what a node's memory does."""

from __future__ import annotations

import math
import random

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.leak_trend import (
    DAY_SECONDS,
    FEWEST_SAMPLES,
    Trend,
    student_quantile,
    trend,
    trimmed_mean,
)

from bench.leak_gate import KINDS, trace

HORIZON = 72 * 3600.0


def found(times: list[float], values: list[float], **more: float) -> Trend:
    result = trend(times, values, **more)
    assert isinstance(result, Trend), result
    return result


# NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2, critical values of Student's t distribution.
@pytest.mark.parametrize(
    ("share", "degrees", "quantile"),
    [
        (0.975, 10, 2.228),
        (0.995, 5, 4.032),
        (0.999, 14, 3.787),
        (0.999, 38, 3.319),
        (0.9, 1, 3.078),
        (0.975, 1e9, 1.960),
    ],
)
def test_students_quantiles(share: float, degrees: float, quantile: float) -> None:
    assert student_quantile(share, degrees) == pytest.approx(quantile, abs=6e-4)
    assert student_quantile(1 - share, degrees) == pytest.approx(-quantile, abs=6e-4)


def test_a_line_without_noise_is_exact() -> None:
    times = [10.0 * index for index in range(400)]
    line = found(times, [2e9 + 50.0 * time for time in times])
    assert line.slope == pytest.approx(50.0)
    assert (line.low, line.high) == pytest.approx((50.0, 50.0), rel=1e-6)
    assert line.level == pytest.approx(2e9, rel=1e-6)
    assert line.begin == 0
    growth, low, high = line.growth(HORIZON)
    assert growth == pytest.approx(50 * HORIZON / 2e9, rel=1e-5)
    assert low <= growth <= high


def test_a_constant_does_not_grow() -> None:
    line = found([float(index) for index in range(200)], [7e10] * 200)
    assert line.growth(HORIZON) == pytest.approx((0, 0, 0), abs=1e-9)


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    covered = 0
    for seed in range(200):
        times, values = trace("correlated, 5 min", seed, 24, 60, 0.002)
        line = found(times, values, confidence=0.95)
        _growth, low, high = line.growth(HORIZON)
        covered += low <= 0.002 <= high
    assert covered >= 0.9 * 200  # of 190 expected, binomial, at least 180; more often than it says is no fault


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "correlated, 2 h"])
def test_leaks_are_found_and_others_are_not(kind: str) -> None:
    """Ten traces of each kind: 1 % in 72 hours is found in nearly all, and none without a leak is called one."""
    seeds = range(10)
    with_leak = [found(*trace(kind, seed, 72, 120, 0.01)) for seed in seeds]
    without = [found(*trace(kind, 100 + seed, 72, 120, 0.0)) for seed in seeds]
    assert sum(line.low > 0 for line in with_leak) >= (7 if kind == "everything" else 9)
    assert [line.low > 0 for line in without] == [False] * 10


def test_the_warm_up_is_left_out_and_a_leak_is_none() -> None:
    times, values = trace("white", 1, 72, 120, 0.0)
    stepped = [value - (0.05 if time < 8 * 3600 else 0) for time, value in zip(times, values)]
    assert 7 * 3600 < found(times, stepped).begin < 11 * 3600
    assert found(*trace("white", 1, 72, 120, 0.02)).begin == 0


def test_the_given_warm_up_is_left_out_in_any_case() -> None:
    times, values = trace("white", 1, 24, 60, 0.0)
    assert found(times, values, warmup_seconds=3600).begin >= 3600


def test_a_gap_is_no_series() -> None:
    times, values = trace("white", 3, 72, 120, 0.01)
    kept = [(time, value) for time, value in zip(times, values) if not 20 * 3600 < time < 32 * 3600]
    line = found([time for time, _ in kept], [value for _, value in kept])
    assert line.low > 0
    assert line.batches < 40
    ends = [(time, value) for time, value in zip(times, values) if time < 3 * 3600 or time > 69 * 3600]
    assert "gaps" in str(trend([time for time, _ in ends], [value for _, value in ends]))


def test_spikes_do_not_count() -> None:
    times, values = trace("white", 4, 24, 60, 0.0)
    chance = random.Random(1)
    spiked = [value + (0.5 if chance.random() < 0.02 else 0) for value in values]
    plain, rough = found(times, values), found(times, spiked)
    assert rough.high - rough.low < 1.5 * (plain.high - plain.low)


def test_a_daily_rhythm_is_no_leak_once_a_day_is_over() -> None:
    times = [120.0 * index for index in range(2160)]
    chance = random.Random(2)
    values = [1 + 0.01 * math.sin(2 * math.pi * time / DAY_SECONDS) + chance.gauss(0, 0.001) for time in times]
    line = found(times, values)
    assert line.daily
    assert line.low < 0 < line.high
    assert line.growth(HORIZON)[2] < 0.003


@pytest.mark.parametrize(
    ("times", "values", "words"),
    [
        ([], [], "0 samples"),
        ([1.0] * 200, [1.0] * 200, "a slope needs"),
        ([float(index) for index in range(FEWEST_SAMPLES - 1)], [1.0] * (FEWEST_SAMPLES - 1), "a slope needs"),
        ([float(index) for index in range(200)], [0.0] * 200, "above zero"),
    ],
)
def test_what_is_no_series_is_said_so(times: list[float], values: list[float], words: str) -> None:
    assert words in str(trend(times, values))


def test_times_and_values_belong_together() -> None:
    with pytest.raises(ValueError, match="a time for each value"):
        trend([1.0, 2.0], [1.0])


def test_the_trimmed_mean() -> None:
    assert trimmed_mean([1, 2, 3, 4, 5, 6, 7, 8, 9, 1000]) == pytest.approx(5.5)
    assert trimmed_mean([3.0]) == 3.0
