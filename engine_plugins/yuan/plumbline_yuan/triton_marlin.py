"""Experts of four bits for one or two tokens, read from the layout into which vLLM repacks them for its Marlin kernels.

A tile is 16 inputs by 64 outputs: 128 words of eight values. Word 16 c + 4 q + j holds outputs 16 j + c and 16 j + 8 + c, of inputs
2q, 2q+1, 2q+8 and 2q+9: its values are, from the lowest bits, (first output, 2q), (first, 2q+8), (second, 2q), (second, 2q+8), then the
same with 2q+1 and 2q+9. Scales of 64 outputs lie as 8 c + o for the output 8 o + c. Weights are symmetric: 8 stands for zero.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def _value(word, PLACE: tl.constexpr):  # noqa: N803
    """The value at PLACE (0 to 3) of the low half of a word, less 8, times 16 ** PLACE, exactly: it is put behind a float's point."""
    bits = (word & (15 << (4 * PLACE))) | 0x4B000000
    return bits.to(tl.float32, bitcast=True) - (8388608.0 + 8.0 * 16.0**PLACE)


@triton.jit  # type: ignore[untyped-decorator]
def _tile(
    words,
    words_stride,
    scales,
    scales_stride,
    x,
    first_group,
    groups,
    TILES: tl.constexpr,  # noqa: N803
):
    """The 64 outputs of a column of tiles over some groups of TILES x 16 inputs: two blocks [c, j] of them."""
    word = tl.arange(0, 128)
    column, quarter, block = word // 16, (word // 4) % 4, word % 4
    tile = tl.arange(0, TILES)
    first = tl.zeros([TILES, 128], dtype=tl.float32)
    second = tl.zeros([TILES, 128], dtype=tl.float32)
    for group in range(first_group, first_group + groups):
        at = (group * TILES + tile)[:, None]
        low = tl.load(words + at * words_stride + word[None, :])
        high = low >> 16
        place = x + at * 16 + 2 * quarter[None, :]
        x0 = tl.load(place).to(tl.float32)
        x1 = tl.load(place + 1).to(tl.float32)
        x8 = tl.load(place + 8).to(tl.float32) * 0.0625
        x9 = tl.load(place + 9).to(tl.float32) * 0.0625
        part = _value(low, 0) * x0 + _value(low, 1) * x8 + _value(high, 0) * x1 + _value(high, 1) * x9
        scale = scales + group * scales_stride + column * 8 + 2 * block
        first += part * tl.load(scale).to(tl.float32)[None, :]
        part = _value(low, 2) * x0 + _value(low, 3) * x8 + _value(high, 2) * x1 + _value(high, 3) * x9
        second += part * tl.load(scale + 1).to(tl.float32)[None, :]
    first = tl.sum(tl.reshape(tl.sum(first, axis=0), [8, 4, 4]), axis=1)
    second = tl.sum(tl.reshape(tl.sum(second, axis=0), [8, 4, 4]), axis=1) * 0.00390625
    return first, second


@triton.jit  # type: ignore[untyped-decorator]
def experts_in_kernel(
    x,
    x_stride,
    w13,
    w13_scale,
    ids,
    out,
    GROUPS: tl.constexpr,  # noqa: N803
    WIDTH: tl.constexpr,  # noqa: N803
    TILES: tl.constexpr,  # noqa: N803
    TOP_K: tl.constexpr,  # noqa: N803
):
    """silu(first half) * second half for 64 outputs of one expert of one token."""
    visit = tl.program_id(0)
    tile = tl.program_id(1)
    expert = tl.load(ids + visit).to(tl.int64)
    words = w13 + expert * (GROUPS * TILES * 4 * WIDTH) + tile * 128
    scales = w13_scale + expert * (GROUPS * 2 * WIDTH) + tile * 64
    row = x + (visit // TOP_K).to(tl.int64) * x_stride
    gate_0, gate_1 = _tile(words, 4 * WIDTH, scales, 2 * WIDTH, row, 0, GROUPS, TILES)
    line_0, line_1 = _tile(words + 2 * WIDTH, 4 * WIDTH, scales + WIDTH, 2 * WIDTH, row, 0, GROUPS, TILES)
    place = out + visit.to(tl.int64) * WIDTH + tile * 64 + tl.arange(0, 8)[:, None] + 16 * tl.arange(0, 4)[None, :]
    tl.store(place, (gate_0 / (1.0 + tl.exp(-gate_0)) * line_0).to(out.dtype.element_ty))
    tl.store(place + 8, (gate_1 / (1.0 + tl.exp(-gate_1)) * line_1).to(out.dtype.element_ty))


@triton.jit  # type: ignore[untyped-decorator]
def experts_out_kernel(
    inner,
    w2,
    w2_scale,
    ids,
    weights,
    parts,
    GROUPS: tl.constexpr,  # noqa: N803
    HIDDEN: tl.constexpr,  # noqa: N803
    TILES: tl.constexpr,  # noqa: N803
    PIECES: tl.constexpr,  # noqa: N803
):
    """The share of one expert and one piece of its inputs in 64 outputs of a token, in float32."""
    visit = tl.program_id(0)
    tile = tl.program_id(1)
    piece = tl.program_id(2)
    expert = tl.load(ids + visit).to(tl.int64)
    words = w2 + expert * (GROUPS * TILES * 2 * HIDDEN) + tile * 128
    scales = w2_scale + expert * (GROUPS * HIDDEN) + tile * 64
    row = inner + visit.to(tl.int64) * (GROUPS * TILES * 16)
    each: tl.constexpr = GROUPS // PIECES
    first, second = _tile(words, 2 * HIDDEN, scales, HIDDEN, row, piece * each, each, TILES)
    share = tl.load(weights + visit)
    place = parts + (visit * PIECES + piece).to(tl.int64) * HIDDEN + tile * 64
    place = place + tl.arange(0, 8)[:, None] + 16 * tl.arange(0, 4)[None, :]
    tl.store(place, first * share)
    tl.store(place + 8, second * share)


@triton.jit  # type: ignore[untyped-decorator]
def sum_kernel(
    parts,
    out,
    hidden,
    COUNT: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
):
    """Add COUNT rows of a token."""
    token = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < hidden
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for count in tl.static_range(COUNT):
        total += tl.load(parts + (token * COUNT + count).to(tl.int64) * hidden + column, mask=inside, other=0.0)
    tl.store(out + token.to(tl.int64) * hidden + column, total.to(out.dtype.element_ty), mask=inside)
