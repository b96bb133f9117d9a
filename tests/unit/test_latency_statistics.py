"""Percentiles and thinning."""

from __future__ import annotations

import random

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.latency_statistics import percentile, thin

numpy = pytest.importorskip("numpy")


def test_percentiles_are_those_of_numpy() -> None:
    generator = random.Random(5)
    for size in (1, 2, 3, 10, 101, 999):
        samples = [generator.expovariate(1) for _ in range(size)]
        for percent in (0, 1, 50, 90, 99, 99.9, 100):
            assert percentile(samples, percent) == pytest.approx(float(numpy.percentile(samples, percent)))


def test_no_figure_is_made_up() -> None:
    with pytest.raises(ValueError, match="at least one sample"):
        percentile([], 50)
    with pytest.raises(ValueError, match="between 0 and 100"):
        percentile([1.0], 101)
    with pytest.raises(ValueError, match="at least 2"):
        thin([1.0], 1)


def test_thinning_keeps_the_shape_and_the_extremes() -> None:
    generator = random.Random(6)
    samples = [generator.expovariate(1) for _ in range(50_000)]
    kept = thin(samples, 5000)
    assert len(kept) == 5000
    assert max(kept) == max(samples)
    assert min(kept) == min(samples)
    for percent in (10, 50, 90, 99):
        assert percentile(kept, percent) == pytest.approx(percentile(samples, percent), rel=0.01)
    assert thin(samples[:10], 5000) == samples[:10]
