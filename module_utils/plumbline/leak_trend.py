"""Whether something grows: the slope of a series with a confidence interval that autocorrelated noise does not fool.

How, and from where:

1. *Batch means*: the time after the warm-up is cut into equal batches and each is replaced by its trimmed mean. Noise that is correlated
   over less than a batch, spikes and the teeth of a garbage collector are averaged out (the method of batch means of the analysis of
   simulations, Law and Kelton, "Simulation Modeling and Analysis"; the trim is Tukey's).
2. *The warm-up* ends where the series joins the line through its later half: earlier batches are taken in one after the other, as long as
   the line foretells them (after the idea of White's MSER rule, 1997, which looks for a level and would take a leak for endless warm-up).
3. *The slope* is that of least squares, with a daily rhythm as further regressors once the series spans a day.
4. *Its variance* is that under correlated batches: the correlation of the residuals is corrected for the bias that fitting a line gives it
   (by the exact expectations of its numerator and denominator; Kendall 1954 and Andrews 1993 have the matter), raised by half a standard
   error, and put into the quadratic form of the slope. The quantile is Student's, with the degrees of freedom that the correlation leaves
   (Bayley and Hammersley 1946). Newey and West's standard errors with a normal quantile err too often here: bench/leak_gate.py has both.

Pure functions, standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

CONFIDENCE = 0.998
"""Two-sided: one series in a thousand without growth seems to grow, for a soak judges some ten and one in a hundred soaks may err."""
BATCHES = 40
FEWEST_SAMPLES = 2 * BATCHES
TRIM = 0.1
DAY_SECONDS = 86400.0
_LEAST_IN_BATCH = 0.5  # of the usual number of samples; a batch with fewer lies in a gap
_SETTLED = 4.0  # standard errors of a forecast within which an earlier batch belongs to the line
_RAISE = 0.5  # standard errors by which the correlation is raised
_MOST_CORRELATION = 0.95
_FEWEST_DEGREES = 3.0


@dataclass(frozen=True)
class Trend:
    """A slope (per second) and its interval, the level it starts from, and what they rest on. Times in seconds, as given."""

    slope: float
    low: float
    high: float
    level: float
    begin: float
    end: float
    samples: int
    batches: int
    correlation: float
    daily: bool
    times: tuple[float, ...] = ()
    means: tuple[float, ...] = ()

    @property
    def seconds(self) -> float:
        """The time that was judged, after the warm-up."""
        return self.end - self.begin

    def growth(self, horizon_seconds: float) -> tuple[float, float, float]:
        """Growth over a horizon as a fraction of the level: estimate, lower and upper bound."""
        scale = horizon_seconds / self.level
        return self.slope * scale, self.low * scale, self.high * scale


def trend(
    times: Sequence[float], values: Sequence[float], *, warmup_seconds: float = 0.0, confidence: float = CONFIDENCE
) -> Trend | str:
    """Return the trend of a series whose times rise, or one sentence why there is none.

    :param warmup_seconds: left out at the beginning in any case; more is, where the series has not settled by then.
    """
    if len(times) != len(values):
        raise ValueError(f"a series has a time for each value, {len(times)} and {len(values)} were given")
    first = next((index for index, time in enumerate(times) if time >= times[0] + warmup_seconds), len(times))
    times, values = times[first:], values[first:]
    if len(times) < FEWEST_SAMPLES or times[-1] <= times[0]:
        return f"{len(times)} samples after the warm-up, a slope needs {FEWEST_SAMPLES}"
    batches = _batches(times, values, times[0])
    if len(batches) < BATCHES // 2:
        return f"samples in {len(batches)} of {BATCHES} parts of the time, a slope needs them in {BATCHES // 2}: the others are gaps"
    settled = _settled_at(batches)
    begin = (batches[settled - 1][0] + batches[settled][0]) / 2 if settled else times[0]
    if sum(time >= begin for time in times) >= FEWEST_SAMPLES:
        batches = _batches(times, values, begin)
    else:
        batches = [batch for batch in batches if batch[0] >= begin]
    x, y = [batch[0] for batch in batches], [batch[1] for batch in batches]
    if len(y) < BATCHES // 4:
        return "too few samples without a gap"
    daily = x[-1] - x[0] >= DAY_SECONDS
    fit = _fit(x, y, daily)
    level = sum(y) / len(y) - fit.slope * (sum(x) / len(x) - begin)
    if level <= 0:
        return "its level is not above zero, so growth is no share of it"
    deviation, degrees = _deviation(fit, _raised(fit))
    reach = deviation * student_quantile((1 + confidence) / 2, degrees)
    return Trend(
        slope=fit.slope,
        low=fit.slope - reach,
        high=fit.slope + reach,
        level=level,
        begin=begin,
        end=times[-1],
        samples=sum(time >= begin for time in times),
        batches=len(x),
        correlation=fit.correlation,
        daily=daily,
        times=tuple(x),
        means=tuple(y),
    )


def _batches(times: Sequence[float], values: Sequence[float], begin: float) -> list[tuple[float, float]]:
    """Mean time and trimmed mean of each batch of the time from `begin` on; batches that are mostly a gap are left out."""
    width = (times[-1] - begin) / BATCHES
    members: list[list[tuple[float, float]]] = [[] for _ in range(BATCHES)]
    for time, value in zip(times, values):
        if time >= begin:
            members[min(BATCHES - 1, int((time - begin) / width))].append((time, value))
    usual = sorted(len(each) for each in members)[BATCHES // 2]
    return [
        (sum(time for time, _ in each) / len(each), trimmed_mean([value for _, value in each]))
        for each in members
        if each and len(each) >= _LEAST_IN_BATCH * usual
    ]


def trimmed_mean(values: Sequence[float]) -> float:
    """The mean without the lowest and the highest tenth."""
    ordered = sorted(values)
    cut = int(len(ordered) * TRIM)
    kept = ordered[cut : len(ordered) - cut]
    return math.fsum(kept) / len(kept)


def _settled_at(batches: list[tuple[float, float]]) -> int:
    """The first of the batches that belong to one line (and daily rhythm) with the later half; at the latest the middle one."""
    half = len(batches) // 2
    x, y = [time for time, _ in batches], [value for _, value in batches]
    fit = _fit(x, y, x[-1] - x[half] >= DAY_SECONDS, half)
    raised = _raised(fit)
    deviation, degrees = _deviation(fit, raised)
    spread = fit.spread / math.sqrt(_residual_share(fit, raised))
    # Correlated batches forecast worse than as many independent ones, by as much as the slope does.
    worse = deviation / (spread * math.sqrt(math.fsum(weight * weight for weight in fit.weights))) if spread else 1.0
    reach = student_quantile(NormalDist().cdf(_SETTLED), degrees)
    begin, missed = half, 0
    for index in range(half - 1, -1, -1):
        leverage = math.fsum(column[index] ** 2 for column in fit.basis)
        if abs(fit.residuals[index]) > reach * spread * math.sqrt(1 + leverage * worse**2):
            missed += 1
            if missed == 2:
                break
        else:
            begin, missed = index, 0
    return begin


@dataclass(frozen=True)
class _Fit:
    slope: float
    weights: tuple[float, ...]  # the slope is the sum of weight x value, over the batches that were fitted
    basis: tuple[tuple[float, ...], ...]  # spans the regressors at all batches, orthonormal over those that were fitted
    residuals: tuple[float, ...]
    spread: float  # root of the mean square of the residuals of what was fitted
    correlation: float
    first: int

    @property
    def fitted(self) -> tuple[tuple[float, ...], ...]:
        return tuple(column[self.first :] for column in self.basis)


def _fit(x: list[float], y: list[float], daily: bool, first: int = 0) -> _Fit:
    """Least squares of a line, and a daily rhythm, through the batches from `first` on; residuals of all of them."""
    count = len(x) - first
    middle = sum(x[first:]) / count
    regressors = [[1.0] * len(x)]
    if daily:
        for rhythm in (1, 2):  # nights, and working hours within days
            angles = [2 * math.pi * rhythm * time / DAY_SECONDS for time in x]
            regressors += [[math.sin(angle) for angle in angles], [math.cos(angle) for angle in angles]]
    basis: list[list[float]] = []
    for column in regressors:
        rest = _without(column, basis, first)
        size = math.sqrt(math.fsum(each * each for each in rest[first:]))
        if size > 1e-9 * math.sqrt(count):
            basis.append([each / size for each in rest])
    line = _without([time - middle for time in x], basis, first)
    square = math.fsum(each * each for each in line[first:])
    weights = [each / square for each in line[first:]]
    slope = math.fsum(weight * value for weight, value in zip(weights, y[first:]))
    basis.append([each / math.sqrt(square) for each in line])
    residuals = _without([value - y[first] for value in y], basis, first)
    fitted = residuals[first:]
    total = math.fsum(each * each for each in fitted)
    size = max(abs(value) for value in y) or 1.0
    observed = 0.0
    if total > (1e-12 * size) ** 2 * count:
        observed = math.fsum(a * b for a, b in zip(fitted, fitted[1:])) / total
    frozen = tuple(tuple(column) for column in basis)
    correlation = _unbiased(observed, tuple(column[first:] for column in frozen))
    return _Fit(slope, tuple(weights), frozen, tuple(residuals), math.sqrt(total / count), correlation, first)


def _raised(fit: _Fit) -> float:
    """The correlation and a part of its standard error."""
    return min(_MOST_CORRELATION, fit.correlation + _RAISE * math.sqrt((1 - fit.correlation**2) / len(fit.weights)))


def _without(column: Sequence[float], basis: Sequence[Sequence[float]], first: int) -> list[float]:
    rest = list(column)
    for other in basis:
        share = math.fsum(a * b for a, b in zip(rest[first:], other[first:]))
        rest = [each - share * part for each, part in zip(rest, other)]
    return rest


_GRID = tuple(step / 20 for step in range(20))  # up to _MOST_CORRELATION


def _unbiased(observed: float, basis: tuple[tuple[float, ...], ...]) -> float:
    """The correlation of neighbours whose residuals would show the observed one; never below zero, where an interval would shrink."""
    rounded = tuple(tuple(round(each, 6) for each in column) for column in basis)
    expected = _expected_correlations(rounded)
    if observed <= expected[0]:
        return 0.0
    for index in range(1, len(_GRID)):
        if observed <= expected[index]:
            share = (observed - expected[index - 1]) / (expected[index] - expected[index - 1])
            return _GRID[index - 1] + share * (_GRID[index] - _GRID[index - 1])
    return _MOST_CORRELATION


@lru_cache(maxsize=64)
def _expected_correlations(basis: tuple[tuple[float, ...], ...]) -> tuple[float, ...]:
    """What the residuals' correlation of neighbours is expected to be, for each correlation of the grid; rising."""
    expected: list[float] = []
    for correlation in _GRID:
        diagonal, beside = _residual_moments(basis, correlation)
        found = math.fsum(beside) / math.fsum(diagonal)
        expected.append(max(found, expected[-1] + 1e-9) if expected else found)
    return tuple(expected)


def _residual_moments(basis: tuple[tuple[float, ...], ...], correlation: float) -> tuple[list[float], list[float]]:
    """Diagonal and first side diagonal of the residuals' covariance, where values have variance 1 and neighbours this correlation."""
    count = len(basis[0])
    powers = [correlation**lag for lag in range(count)]
    spread = [
        [math.fsum(powers[abs(row - other)] * column[other] for other in range(count)) for row in range(count)]
        for column in basis
    ]
    inner = [[math.fsum(a * b for a, b in zip(column, other)) for other in spread] for column in basis]
    indices = range(len(basis))

    def entry(row: int, other: int) -> float:
        value = powers[abs(row - other)]
        for k in indices:
            value -= basis[k][row] * spread[k][other] + spread[k][row] * basis[k][other]
            value += math.fsum(basis[k][row] * inner[k][m] * basis[m][other] for m in indices)
        return value

    return [entry(i, i) for i in range(count)], [entry(i, i + 1) for i in range(count - 1)]


def _residual_share(fit: _Fit, correlation: float) -> float:
    """The mean square of the residuals over the variance of the values."""
    diagonal, _ = _residual_moments(fit.fitted, correlation)
    return max(math.fsum(diagonal) / len(diagonal), 1e-9)


def _deviation(fit: _Fit, correlation: float) -> tuple[float, float]:
    """Standard deviation of the slope under the correlation, and degrees of freedom."""
    count = len(fit.weights)
    powers = [correlation**lag for lag in range(count)]
    form = math.fsum(
        fit.weights[i] * math.fsum(powers[abs(i - j)] * fit.weights[j] for j in range(count)) for i in range(count)
    )
    variance = fit.spread**2 / _residual_share(fit, correlation)
    degrees = count * (1 - correlation**2) / (1 + correlation**2) - len(fit.basis)
    return math.sqrt(max(form, 0.0) * variance), max(_FEWEST_DEGREES, degrees)


def student_quantile(share: float, degrees: float) -> float:
    """Quantile of Student's distribution, by bisection of its distribution function."""
    if share < 0.5:
        return -student_quantile(1 - share, degrees)
    low, high = 0.0, 2.0
    while _student_share(high, degrees) < share:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        if _student_share(middle, degrees) < share:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _student_share(value: float, degrees: float) -> float:
    return 1 - 0.5 * _incomplete_beta(degrees / (degrees + value * value), degrees / 2, 0.5)


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function, by its continued fraction (Abramowitz and Stegun 26.5.8)."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(1 - x, b, a)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    fraction = 0.0
    for step in range(200, 0, -1):
        half = step // 2
        if step % 2:
            top = -(a + half) * (a + b + half) * x / ((a + 2 * half) * (a + 2 * half + 1))
        else:
            top = half * (b - half) * x / ((a + 2 * half - 1) * (a + 2 * half))
        fraction = top / (1 + fraction)
    return front / (a * (1 + fraction))
