"""Round weights to the nearest 4 or 8 bit integer, symmetric, in groups of inputs, and pack them as compressed-tensors does. Needs numpy.

Format `pack-quantized` (compressed-tensors 0.17 and 0.19, as llmcompressor writes it), per Linear of shape [out, in]:

    weight_scale   [out, in / group]   largest |w| of the group / ((2^bits - 1) / 2), in the dtype of the weights; the smallest step of that
                                       dtype at 1 (its eps) for a group of zeros
    weight_packed  [out, in * bits / 32] int32: 32 / bits values in each, the first in the lowest bits, each value + 2^(bits-1)
    weight_shape   [2] int64

The integer is round(w / scale), ties to even, clamped to [-2^(bits-1), 2^(bits-1) - 1]. It is computed in float32 from the scale as stored.
llmcompressor computes it in the dtype of the weights: in bfloat16 its quotient has 8 bits and is rounded a second time, so that some of its
integers are not the nearest; ours always are. In float32 both give the same bits.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

# numpy is at hand where this runs, and nowhere else.
Array = Any

BITS = (4, 8)
GROUPS = (32, 64, 128)
# Smallest step at 1 of each dtype that weights may have.
EPS = {"F32": 2.0**-23, "F16": 2.0**-10, "BF16": 2.0**-7}
ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
# Values that one thread works on at a time: its float32 copy (512 KiB) stays in the second-level cache.
_BLOCK_VALUES = 1 << 17
# Adding it leaves a float32 rounded to an integer, ties to even, in the lowest bits of the mantissa.
_ROUNDER = 1.5 * 2**23


@dataclass(frozen=True)
class Scheme:
    """Bits of a value and inputs that share a scale."""

    bits: int
    group: int

    @property
    def packed(self) -> int:
        """Values in one int32."""
        return 32 // self.bits


@dataclass(frozen=True)
class Quantised:
    """Rows of one weight: packed integers, and scales as the raw bits of the weights' dtype (uint16 or float32)."""

    packed: Array
    scale: Array


class NotFiniteError(ValueError):
    """A weight is NaN or infinite."""


class Quantiser:
    """Quantises rows in parallel; holds the threads and their buffers. Not to be used by several threads at once."""

    def __init__(self, scheme: Scheme, threads: int = 0) -> None:
        """`threads`: 0 takes one for each processor that this process may use."""
        self.scheme = scheme
        self._threads = threads or len(os.sched_getaffinity(0))
        self._pool = ThreadPoolExecutor(self._threads) if self._threads > 1 else None
        self._local = threading.local()

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown()

    def rows(self, raw: bytes | bytearray | memoryview, dtype: str, rows: int, columns: int) -> Quantised:
        """Quantise `rows` rows of `columns` inputs, C order, in the safetensors dtype F32, F16 or BF16. Raises NotFiniteError."""
        import numpy as np  # noqa: PLC0415

        if columns % self.scheme.group:
            raise ValueError(f"{columns} inputs are no multiple of {self.scheme.group}")
        stored = np.frombuffer(raw, dtype="<f4" if dtype == "F32" else "<u2").reshape(rows, columns)
        packed: Array = np.empty((rows, columns // self.scheme.packed), dtype="<i4")
        scale = np.empty((rows, columns // self.scheme.group), dtype=stored.dtype)
        # Whole groups, side by side: a block may end in the middle of a row.
        group = self.scheme.group
        groups, words = stored.reshape(-1, group), packed.reshape(-1, group // self.scheme.packed)
        scales = scale.reshape(-1)
        at_once = _BLOCK_VALUES // group
        starts = range(0, len(groups), at_once)
        if self._pool is None or len(starts) == 1:
            for first in starts:
                self._block(
                    groups[first : first + at_once],
                    dtype,
                    words[first : first + at_once],
                    scales[first : first + at_once],
                )
        else:
            done = [
                self._pool.submit(
                    self._block,
                    groups[first : first + at_once],
                    dtype,
                    words[first : first + at_once],
                    scales[first : first + at_once],
                )
                for first in starts
            ]
            for one in done:
                one.result()
        return Quantised(packed, scale)

    def _block(self, stored: Array, dtype: str, words: Array, scales: Array) -> None:
        import numpy as np  # noqa: PLC0415

        count, group = stored.shape
        values, narrow = self._buffers(group)
        values, narrow = values[:count], narrow[:count]
        if dtype == "BF16":
            # A bfloat16 is the upper half of a float32.
            np.left_shift(stored, 16, out=values.view("<u4"), dtype="<u4")
            # Without their sign, the bits of floats are ordered like their magnitudes.
            np.bitwise_and(stored, 0x7FFF, out=narrow)
            largest = (narrow.max(axis=1).astype("<u4") << 16).view("<f4")
        else:
            values[...] = stored if dtype == "F32" else stored.view("<f2")
            largest = np.maximum(values.max(axis=1), -values.min(axis=1))
        if not np.isfinite(largest).all():
            raise NotFiniteError
        used = _stored_scale(largest, 2.0**self.scheme.bits - 1, dtype, scales)
        np.divide(values, used[:, None], out=values)
        half = float(1 << (self.scheme.bits - 1))
        np.minimum(values, np.float32(half - 1), out=values)
        # The offset is even, so that ties still go to the even integer. The lower bound needs no clamp: |w / scale| < half + 0.5.
        np.add(values, np.float32(_ROUNDER + half), out=values)
        _pack(values, self.scheme.bits, narrow, words)

    def _buffers(self, group: int) -> tuple[Array, Array]:
        import numpy as np  # noqa: PLC0415

        if not hasattr(self._local, "buffers"):
            shape = (_BLOCK_VALUES // group, group)
            self._local.buffers = (np.empty(shape, dtype="<f4"), np.empty(shape, dtype="<u2"))
        return self._local.buffers  # type: ignore[no-any-return]


def _stored_scale(largest: Array, steps: float, dtype: str, scales: Array) -> Array:
    """Write the scales in the weights' dtype, and return them as float32."""
    import numpy as np  # noqa: PLC0415

    scale = largest / np.float32(steps / 2)
    if dtype == "BF16":
        bits = scale.view("<u4")
        scales[...] = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
        scales[scales == 0] = 0x3C00  # 2^-7
        return (scales.astype("<u4") << 16).view("<f4")
    if dtype == "F16":
        half = scale.astype("<f2")
        half[half == 0] = EPS["F16"]
        scales[...] = half.view("<u2")
        return half.astype("<f4")
    scale[scale == 0] = EPS["F32"]
    scales[...] = scale
    return scale


def _pack(values: Array, bits: int, narrow: Array, words: Array) -> None:
    """The integers in the lowest bits of the mantissas of `values`, side by side in `words`; `narrow` is room for them."""
    import numpy as np  # noqa: PLC0415

    if bits == 8:
        words.view("u1")[...] = values.view("<u4")
        return
    bytes_ = narrow.view("u1")[:, : values.shape[1]]
    bytes_[...] = values.view("<u4")
    np.bitwise_and(bytes_, 0x0F, out=bytes_)
    # The upper byte of each pair is the second value, wanted 4 bits above the first.
    pairs = bytes_.view("<u2")
    words.view("u1")[...] = pairs | (pairs >> 4)


def unpacked(packed: Array, bits: int, columns: int) -> Array:
    """The integers of `weight_packed`, int8 [rows, columns]."""
    import numpy as np  # noqa: PLC0415

    packed = np.ascontiguousarray(packed, dtype="<i4")
    raw = packed.view("u1")
    if bits == 4:
        both = np.empty((*raw.shape, 2), dtype="u1")
        both[..., 0], both[..., 1] = raw & 0x0F, raw >> 4
        raw = both.reshape(packed.shape[0], -1)
    return (raw.astype(np.int16) - (1 << (bits - 1))).astype(np.int8)[:, :columns]


def scales_as_float(scale: Array, dtype: str) -> Array:
    """Raw scales as float32."""
    import numpy as np  # noqa: PLC0415

    if dtype == "BF16":
        return (np.asarray(scale, dtype="<u4") << 16).view("<f4")
    return np.ascontiguousarray(scale).view("<f2" if dtype == "F16" else "<f4").astype("<f4")
