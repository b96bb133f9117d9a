"""The histogram against exact percentiles, and its text against the one that HdrHistogram's own library writes."""

from __future__ import annotations

import random

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.latency_statistics import percentile
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.load_histogram import Histogram

# Written by hdrhistogram 0.10.8 (PyPI), HdrHistogram(1, 86_400_000_000, 3), of these microseconds.
VALUES = (0, 1, 2047, 2048, 2049, 123_456, 123_456, 7_000_000, 3_600_000_000)
TEXT = "HISTFAAAADF4nJNpmSzMwMAgwAABzFCaEYhFZK8nMNh/gAgwMf2UZ2Lpj2M5HMPUO4GRCQCuzAhG"


def filled(values: list[float]) -> Histogram:
    histogram = Histogram()
    histogram.record_all(values)
    return histogram


@pytest.mark.parametrize("seed", range(5))
def test_percentiles_are_those_of_the_samples(seed: int) -> None:
    generator = random.Random(seed)
    samples = [generator.lognormvariate(-3, 1.5) for _ in range(generator.randrange(2, 3000))]
    histogram = filled(samples)
    for percent in (0, 1, 50, 90, 95, 99, 99.9, 100):
        # Half a microsecond by rounding, half a step of a bucket.
        assert histogram.percentile(percent) == pytest.approx(percentile(samples, percent), rel=6e-4, abs=1e-6)
    assert histogram.mean == pytest.approx(sum(samples) / len(samples))
    assert histogram.count == len(samples)


def test_the_text_is_that_of_hdrhistogram() -> None:
    histogram = filled([value / 1e6 for value in VALUES])
    assert histogram.encode() == TEXT
    assert Histogram.decode(TEXT).encode() == TEXT
    assert Histogram.decode(TEXT).count == 9
    assert Histogram.decode(TEXT).maximum == pytest.approx(3600, rel=1e-3)


def test_histograms_add_up_through_their_text() -> None:
    generator = random.Random(7)
    samples = [generator.expovariate(20) for _ in range(4000)]
    merged = Histogram()
    for start in range(0, 4000, 500):
        merged.add(Histogram.decode(filled(samples[start : start + 500]).encode()))
    assert merged.encode() == filled(samples).encode()
    assert Histogram.decode(Histogram().encode()).count == 0


def test_what_lies_beyond_a_day_or_below_zero_is_counted_at_the_edge() -> None:
    histogram = filled([1e9, -1e-9])
    assert histogram.maximum == pytest.approx(86_400, rel=1e-3)
    assert histogram.percentile(0) == 0


def test_a_plot_gets_the_shape_and_the_extremes() -> None:
    histogram = filled([index / 1000 for index in range(1, 1001)])
    kept = histogram.spread(11)
    assert len(kept) == 11
    assert (kept[0], kept[-1]) == (0.001, pytest.approx(1.0, rel=6e-4))
    assert kept == sorted(kept)
    assert histogram.spread(5000) == pytest.approx([index / 1000 for index in range(1, 1001)], rel=6e-4)
    assert Histogram().spread(10) == []


def test_no_estimate_without_samples() -> None:
    with pytest.raises(ValueError, match="at least one sample"):
        Histogram().percentile(50)
    with pytest.raises(ValueError, match="between 0 and 100"):
        filled([1]).percentile(101)


@pytest.mark.parametrize("text", ["", "HISTFAAA", "no base64 !", "AAAAAAAAAAAAAAAA", TEXT[:40], "HISTE" + TEXT[5:]])
def test_a_text_that_is_no_histogram_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="histogram"):
        Histogram.decode(text)
