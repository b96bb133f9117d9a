"""Search the configurations of vLLM's fused-MoE kernel by successive halving, in a limited time.

What measures is handed in (`Bench`), so that the search itself is tested without a GPU.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from .moe_tune_plan import Config, Shape, candidates, key_of, neighbours

# A win below 2 % is within what two measurements of one configuration differ by: then stock stays.
WORTHWHILE = 1.02
_ANCHORS = 3
_SURVIVORS = 8


class Bench(Protocol):
    """Measures on the GPU. A configuration that the GPU refuses has no time."""

    def prepare(self, wanted: Sequence[tuple[int, Config]], deadline: float) -> None:
        """Compile what will be measured: pairs of batch size and configuration."""

    def stock(self, tokens: int) -> Config:
        """Return what vLLM takes for this batch size without us."""

    def seconds(self, tokens: int, config: Config, repeats: int) -> float | None:
        """Return seconds of one layer's experts, the best of `repeats`; None where it does not run."""

    def duel(self, tokens: int, one: Config, other: Config) -> tuple[list[float], list[float]]:
        """Measure two configurations in turn, on routings that the search has not seen."""

    def difference(self, tokens: int, one: Config, other: Config) -> float:
        """Return |one - other| / |other| of what the two compute from the same input."""

    def forget(self, tokens: int) -> None:
        """Free what was kept for this batch size."""


@dataclass
class Found:
    """What came out for one batch size. `config` is what the file gets: the winner, or stock where nothing is better."""

    tokens: int
    config: Config
    stock: Config
    gain: float = 1.0
    stock_seconds: list[float] = field(default_factory=list)
    tuned_seconds: list[float] = field(default_factory=list)
    measured: int = 0
    difference: float = 0.0
    note: str = ""

    def as_dict(self) -> dict[str, Any]:
        """As JSON keeps it."""
        return dict(vars(self))


def search(
    bench: Bench,
    shape: Shape,
    batch_sizes: Iterable[int],
    *,
    deadline: float,
    shared_memory_bytes: int,
    tolerance: float,
    clock: Any = time.monotonic,
) -> list[Found]:
    """Return what was found for every batch size, in ascending order.

    Batch sizes that have the same candidates share the work: three of them measure all candidates, the others what was best there.
    Sizes that the time did not suffice for keep stock, and say so.
    """
    groups: dict[tuple[tuple[int, ...], ...], list[int]] = {}
    lists: dict[tuple[tuple[int, ...], ...], list[Config]] = {}
    for tokens in sorted(set(batch_sizes)):
        tried = candidates(shape, tokens, shared_memory_bytes)
        mark = tuple(key_of(config) for config in tried)
        groups.setdefault(mark, []).append(tokens)
        lists[mark] = tried
    found: dict[int, Found] = {}
    started = clock()
    total = max(1, sum(len(sizes) for sizes in groups.values()))
    done = 0
    for mark, sizes in groups.items():
        done += len(sizes)
        # Time that a group leaves over, the next one may use.
        until = started + (deadline - started) * done / total
        _group(bench, shape, sizes, lists[mark], until, tolerance, clock, found)
    return [found[tokens] for tokens in sorted(found)]


def _group(  # noqa: PLR0917 - one caller
    bench: Bench,
    shape: Shape,
    sizes: Sequence[int],
    tried: Sequence[Config],
    until: float,
    tolerance: float,
    clock: Any,
    found: dict[int, Found],
) -> None:
    anchors = sorted({sizes[0], sizes[len(sizes) // 2], sizes[-1]}) if len(sizes) > _ANCHORS else list(sizes)
    promising: dict[tuple[int, ...], Config] = {}
    for tokens in (*anchors, *(size for size in sizes if size not in anchors)):
        stock = bench.stock(tokens)
        result = found[tokens] = Found(tokens, dict(stock), dict(stock))
        if clock() >= until:
            result.note = "the time budget was used up before this batch size: stock is kept"
            continue
        pool = list(tried) if tokens in anchors else list(promising.values())
        bench.prepare([(tokens, config) for config in (stock, *pool)], until)
        best = _halve(bench, tokens, pool, until, clock, result)
        extra = [variant for config in best[:2] for variant in neighbours(config, shape, tokens)]
        if extra and clock() < until:
            bench.prepare([(tokens, config) for config in extra], until)
            best = _halve(bench, tokens, [*best[:2], *extra], until, clock, result)
        promising.update({key_of(config): config for config in best})
        _decide(bench, tokens, best, tolerance, result)
        bench.forget(tokens)


def _halve(  # noqa: PLR0917 - one caller
    bench: Bench, tokens: int, pool: Sequence[Config], until: float, clock: Any, result: Found
) -> list[Config]:
    """Measure all a little, a third of them more, the last few well; returns the best first."""
    ranked: list[tuple[float, Config]] = []
    for config in pool:
        if clock() >= until:
            result.note = f"the time budget was used up after {result.measured} measured configurations"
            break
        seconds = bench.seconds(tokens, config, 1)
        result.measured += 1
        if seconds is not None:
            ranked.append((seconds, config))
    for repeats, keep in ((4, max(_SURVIVORS, len(ranked) // 3)), (12, _SURVIVORS)):
        ranked.sort(key=lambda entry: entry[0])
        again = [(bench.seconds(tokens, config, repeats), config) for _, config in ranked[:keep]]
        ranked = [(seconds, config) for seconds, config in again if seconds is not None]
    ranked.sort(key=lambda entry: entry[0])
    return [config for _, config in ranked]


def _decide(bench: Bench, tokens: int, best: Sequence[Config], tolerance: float, result: Found) -> None:
    """Take the first of the best that computes the same as stock and beats it on routings that were not searched on."""
    for config in best[:3]:
        if key_of(config) == key_of(result.stock):
            break
        result.difference = bench.difference(tokens, config, result.stock)
        if not result.difference <= tolerance:  # not a number fails too
            result.note = f"a faster configuration was refused: it differs from stock by {result.difference:.1e}"
            continue
        ours, theirs = bench.duel(tokens, config, result.stock)
        gain = statistics.median(theirs) / statistics.median(ours)
        result.stock_seconds = theirs
        if gain >= WORTHWHILE:
            result.config, result.gain, result.tuned_seconds = dict(config), gain, ours
            return
        break
    result.note = result.note or "stock is as good as anything measured"


def measurements(shape: Shape, found: Sequence[Found], conditions: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return `moe_tuning_gain` of every batch size: seconds of vLLM's stock configuration over seconds of the one in the file."""
    return [
        {
            "name": "moe_tuning_gain",
            "scope": f"{shape.label} batch {result.tokens}",
            "value": round(result.gain, 4),
            "unit": "ratio",
            "statistic": f"medians of {len(result.tuned_seconds)} in turn"
            if result.tuned_seconds
            else "the same configuration",
            "conditions": {
                **conditions,
                "stock_seconds": statistics.median(result.stock_seconds) if result.stock_seconds else None,
                "tuned_seconds": statistics.median(result.tuned_seconds) if result.tuned_seconds else None,
                "measured_configurations": result.measured,
                "note": result.note,
            },
        }
        for result in found
    ]
