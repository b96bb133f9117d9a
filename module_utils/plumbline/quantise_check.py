"""Hold a rounded checkpoint, as it lies on the disk, against its source: is every integer the nearest one? Needs numpy.

A model with one matrix whose scales were shuffled may still answer as well as rounding allows: its answers do not tell. Its
weights do. This reads both files again and shares no code with what rounds but the layout of the integers.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from .quantise_numbers import ITEM_BYTES, Scheme, scales_as_float
from .quantise_plan import Plan, becomes
from .safetensors_file import TensorSpec
from .tensor_source import TensorSource

# So much of a weight is compared at a time: its float32 copies stay in the second-level cache.
_PIECE_VALUES = 1 << 17


@dataclass(frozen=True)
class Rounding:
    """How far the worst integer lies from its weight, in halves of a step: 1 is what rounding to the nearest costs at most."""

    largest: float
    where: str


def rounding(source: TensorSource, written: TensorSource, made: Plan, threads: int = 0) -> Rounding:
    """Compare every quantised weight. `written` is the quantised checkpoint."""
    jobs = [
        (spec, first, min(rows, spec.shape[0] - first))
        for spec in made.quantised
        for rows in [max(1, _PIECE_VALUES // spec.shape[1])]
        for first in range(0, spec.shape[0], rows)
    ]

    def one(job: tuple[TensorSpec, int, int]) -> Rounding:
        spec, first, rows = job
        return Rounding(_largest(source, written, made.scheme, spec, (first, rows)), spec.name)

    with ThreadPoolExecutor(threads or len(os.sched_getaffinity(0))) as pool:
        found: Sequence[Rounding] = list(pool.map(one, jobs))
    return max(found, key=lambda rounded: rounded.largest)


def _largest(
    source: TensorSource, written: TensorSource, scheme: Scheme, spec: TensorSpec, part: tuple[int, int]
) -> float:
    import numpy as np  # noqa: PLC0415

    first, rows = part
    _, packed, scale = becomes(spec, scheme)
    shape = (rows, spec.shape[1] // scheme.group, scheme.group)
    weights = _floats(source.read(spec.name, first, rows), spec.dtype).reshape(shape)
    words = np.frombuffer(written.read(packed.name, first, rows), dtype="<i4").reshape(rows, -1)
    integers = _integers(words, scheme.bits).reshape(shape)
    steps = _floats(written.read(scale.name, first, rows), scale.dtype).reshape(*shape[:2], 1)
    if not np.isfinite(steps).all() or not (steps > 0).all():
        return float("inf")
    with np.errstate(over="ignore"):
        exact = weights / steps
    highest = 2.0 ** (scheme.bits - 1)
    # What lies beyond the largest integer is clamped on purpose; a scale that is too small clamps more than the half step it may.
    beyond = _magnitude(exact) / (highest - 0.5)
    np.minimum(exact, highest - 1, out=exact)
    np.maximum(exact, -highest, out=exact)
    np.subtract(exact, integers, out=exact)
    return max(_magnitude(exact) / 0.5, beyond)


def _magnitude(values: Any) -> float:
    return max(float(values.max()), -float(values.min()))


def _integers(words: Any, bits: int) -> Any:
    """The integers of packed words as float32, by a table of what each byte holds."""
    import numpy as np  # noqa: PLC0415

    byte = np.arange(256)
    if bits == 8:
        return (byte - 128).astype("<f4")[words.view("u1")]
    table = np.stack((byte & 0x0F, byte >> 4), axis=1).astype("<f4") - np.float32(8)
    # Two values at a time.
    return table.view("<u8")[:, 0][words.view("u1")].view("<f4")


def _floats(data: Any, dtype: str) -> Any:
    import numpy as np  # noqa: PLC0415

    raw = np.frombuffer(data, dtype="<f4" if ITEM_BYTES[dtype] == 4 else "<u2")
    return scales_as_float(raw, dtype)
