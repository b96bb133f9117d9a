"""Symmetric experts of four bits, read from the layout into which vLLM repacks them for its Marlin kernels.

Words are loaded as [4 c + q, group, tile, j], which Triton gives to neighbouring threads in the order in which they lie.

A tile is 16 inputs by 64 outputs: 128 words of eight values. Word 16 c + 4 q + j holds outputs 16 j + c and 16 j + 8 + c, of inputs
2q, 2q+1, 2q+8 and 2q+9: its values are, from the lowest bits, (first output, 2q), (first, 2q+8), (second, 2q), (second, 2q+8), then the
same with 2q+1 and 2q+9. Scales of 64 outputs lie as 8 c + o for the output 8 o + c. Weights are symmetric: 8 stands for zero.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def _value(word, PLACE: tl.constexpr):  # noqa: N803
    """The value at PLACE (0 to 3) of the low half of a word, less 8, exactly: it is put behind a float's point."""
    unit: tl.constexpr = 1.0 / 16.0**PLACE
    bits = (word & (15 << (4 * PLACE))) | 0x4B000000
    return (bits.to(tl.float32, bitcast=True) - (8388608.0 + 8.0 * 16.0**PLACE)) * unit


@triton.jit  # type: ignore[untyped-decorator]
def _pair(word, scale, PLACE: tl.constexpr):  # noqa: N803
    """The two neighbouring inputs' values at PLACE: [..., 2]."""
    return tl.join(_value(word, PLACE) * scale, _value(word >> 16, PLACE) * scale)


@triton.jit  # type: ignore[untyped-decorator]
def marlin_unpack_kernel(
    words,
    scales,
    out,
    ROWS: tl.constexpr,  # noqa: N803
    COLUMNS: tl.constexpr,  # noqa: N803
    TILES: tl.constexpr,  # noqa: N803
):
    """64 outputs by one group of TILES x 16 inputs, as they lie in a matrix [ROWS outputs, COLUMNS inputs] of each expert."""
    group = tl.program_id(0)
    piece = tl.program_id(1)
    expert = tl.program_id(2).to(tl.int64)
    groups: tl.constexpr = COLUMNS // (TILES * 16)
    tile, lane, block = tl.arange(0, TILES), tl.arange(0, 32), tl.arange(0, 4)
    place = words + expert * (COLUMNS // 8 * ROWS) + piece * 128 + lane[:, None] * 4 + block[None, :]
    word = tl.load(place[:, None, :] + ((group * TILES + tile) * (2 * ROWS))[None, :, None])
    place = scales + (expert * groups + group) * ROWS + piece * 64 + (lane // 4)[:, None] * 8 + block[None, :] * 2
    first = tl.load(place).to(tl.float32)[:, None, :]
    second = tl.load(place + 1).to(tl.float32)[:, None, :]
    # [4 c + q, tile, j, low bit of the input, its eighth, second output]
    near = tl.join(_pair(word, first, 0), _pair(word, first, 1))
    far = tl.join(_pair(word, second, 2), _pair(word, second, 3))
    values = tl.reshape(tl.join(near, far).to(out.dtype.element_ty), [8, 4, TILES, 4, 2, 2, 2])
    values = tl.reshape(tl.permute(values, [3, 6, 0, 2, 5, 1, 4]), [64, TILES * 16])
    row, column = piece * 64 + tl.arange(0, 64), group * (TILES * 16) + tl.arange(0, TILES * 16)
    tl.store(out + (expert * ROWS + row[:, None]) * COLUMNS + column[None, :], values)
