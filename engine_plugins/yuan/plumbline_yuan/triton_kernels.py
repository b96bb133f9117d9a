"""The Triton form of kernels.py, for CUDA. One program a token (and a block of columns): few, short kernels, as decoding wants them."""

from __future__ import annotations

import triton
import triton.language as tl

# The counts change from step to step and 1 or a multiple of 16 must not compile another kernel while requests wait.
COUNTS = ["decodes", "prefill_tokens", "slots_d_stride"]
POINTERS = ["slots_d", "slots_p", "ends_p", "first_p", "positions"]


@triton.jit  # type: ignore[untyped-decorator]
def previous(
    token,
    column,
    inside,
    taps,
    taps_stride,
    state,
    state_stride,
    slots_d,
    slots_d_stride,
    slots_p,
    ends_p,
    first_p,
    positions,
    decodes,
    prefill_tokens,
):
    """What the older tap gave for the token before `token` (0 before the first of a sequence); keeps what comes after."""
    # The program of a sequence's first token in this step reads the state and then writes it: no other one touches the slot.
    is_decode = token < decodes
    place = token - decodes
    is_prefill = (place >= 0) & (place < prefill_tokens)
    request = tl.load(first_p + place, mask=is_prefill, other=-1)
    starts = is_prefill & (request >= 0)
    slot = tl.load(slots_d + token * slots_d_stride, mask=is_decode, other=0).to(tl.int64)
    slot += tl.load(slots_p + request, mask=starts, other=0).to(tl.int64)
    position = tl.load(positions + token)
    cell = state + slot * state_stride + column
    known = (slot > 0) & (position > 0)
    before = tl.load(cell, mask=inside & known, other=0.0).to(tl.float32)
    follows = is_prefill & (request < 0)
    row = taps + (token - 1).to(tl.int64) * taps_stride + column
    before += tl.load(row, mask=inside & follows, other=0.0).to(tl.float32)
    last = decodes + tl.load(ends_p + request, mask=starts, other=0) - 1
    last = tl.where(is_decode, token, last).to(tl.int64)
    keeps = slot > 0
    fresh = tl.load(taps + last * taps_stride + column, mask=inside & keeps, other=0.0)
    tl.store(cell, fresh.to(state.dtype.element_ty), mask=inside & keeps)
    return before


@triton.jit(do_not_specialize=COUNTS, do_not_specialize_on_alignment=POINTERS)  # type: ignore[untyped-decorator]
def shift_add_kernel(
    taps,
    taps_stride,
    bias,
    state,
    state_stride,
    slots_d,
    slots_d_stride,
    slots_p,
    ends_p,
    first_p,
    positions,
    decodes,
    prefill_tokens,
    out,
    out_stride,
    width,
    HAS_BIAS: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
):
    """See kernels.shift_add_torch."""
    token = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    total = previous(
        token, column, inside, taps, taps_stride, state, state_stride, slots_d, slots_d_stride,
        slots_p, ends_p, first_p, positions, decodes, prefill_tokens,
    )  # fmt: skip
    row = token.to(tl.int64)
    total += tl.load(taps + row * taps_stride + width + column, mask=inside, other=0.0).to(tl.float32)
    if HAS_BIAS:
        total += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * out_stride + column, total.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=COUNTS, do_not_specialize_on_alignment=POINTERS)  # type: ignore[untyped-decorator]
def shift_add_norm_kernel(
    taps,
    taps_stride,
    bias,
    state,
    state_stride,
    slots_d,
    slots_d_stride,
    slots_p,
    ends_p,
    first_p,
    positions,
    decodes,
    prefill_tokens,
    residual,
    residual_stride,
    weight,
    eps,
    out,
    out_stride,
    width,
    HAS_BIAS: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
):
    """See kernels.shift_add_norm_torch."""
    token = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < width
    total = previous(
        token, column, inside, taps, taps_stride, state, state_stride, slots_d, slots_d_stride,
        slots_p, ends_p, first_p, positions, decodes, prefill_tokens,
    )  # fmt: skip
    row = token.to(tl.int64)
    total += tl.load(taps + row * taps_stride + width + column, mask=inside, other=0.0).to(tl.float32)
    if HAS_BIAS:
        total += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    total += tl.load(residual + row * residual_stride + column, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(total * total, axis=0) / width + eps)
    total *= scale * tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * out_stride + column, total.to(out.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def route_kernel(
    projected,
    projected_stride,
    weights,
    ids,
    EXPERTS: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
    TOP_K: tl.constexpr,  # noqa: N803
    RENORMALIZE: tl.constexpr,  # noqa: N803
):
    """See kernels.route_torch."""
    token = tl.program_id(0)
    index = tl.arange(0, BLOCK)
    real = index < EXPERTS
    row = projected + token.to(tl.int64) * projected_stride
    query = tl.load(row + index, mask=real, other=0.0).to(tl.float32)
    key = tl.load(row + EXPERTS + index, mask=real, other=0.0).to(tl.float32)
    value = tl.load(row + 2 * EXPERTS + index, mask=real, other=0.0).to(tl.float32)
    scores = tl.where(real[None, :], query[:, None] * key[None, :], float("-inf"))
    scores = tl.exp(scores - tl.max(scores, axis=1)[:, None])
    logits = tl.sum(scores * value[None, :], axis=1) / tl.sum(scores, axis=1)
    logits = tl.where(real, logits, float("-inf"))
    # A row that only fills up a CUDA graph may hold anything: not a number must still give an expert that exists.
    logits = tl.where(real & (logits != logits), 0.0, logits)  # noqa: PLR0124
    highest = tl.max(logits, axis=0)
    total = tl.sum(tl.where(real, tl.exp(logits - highest), 0.0), axis=0)
    rest = logits
    chosen = 0.0
    for _ in tl.static_range(TOP_K):
        best = tl.max(rest, axis=0)
        where = tl.min(tl.where(rest == best, index, BLOCK), axis=0)
        chosen += tl.exp(best - highest)
        rest = tl.where(index == where, float("-inf"), rest)
    if RENORMALIZE:
        total = chosen
    rest = logits
    for k in tl.static_range(TOP_K):
        best = tl.max(rest, axis=0)
        where = tl.min(tl.where(rest == best, index, BLOCK), axis=0)
        tl.store(weights + token * TOP_K + k, tl.exp(best - highest) / total)
        tl.store(ids + token * TOP_K + k, where.to(tl.int32))
        rest = tl.where(index == where, float("-inf"), rest)


@triton.jit  # type: ignore[untyped-decorator]
def experts_in_kernel(
    x,
    x_stride,
    w13,
    ids,
    out,
    width,
    HIDDEN: tl.constexpr,  # noqa: N803
    TOP_K: tl.constexpr,  # noqa: N803
    ROWS: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
):
    """Some rows of silu(first half) * second half for one expert of one token. See kernels.few_experts."""
    visit = tl.program_id(0)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    expert = tl.load(ids + visit).to(tl.int64)
    token = (visit // TOP_K).to(tl.int64)
    inside = row < width
    gate = w13 + expert * 2 * width * HIDDEN + row.to(tl.int64)[:, None] * HIDDEN
    total_gate = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    total_linear = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    for start in tl.static_range(0, HIDDEN, BLOCK):
        column = start + tl.arange(0, BLOCK)
        real = column < HIDDEN
        both = inside[:, None] & real[None, :]
        value = tl.load(x + token * x_stride + column, mask=real, other=0.0).to(tl.float32)
        total_gate += tl.load(gate + column[None, :], mask=both, other=0.0).to(tl.float32) * value[None, :]
        linear = tl.load(gate + width * HIDDEN + column[None, :], mask=both, other=0.0)
        total_linear += linear.to(tl.float32) * value[None, :]
    first = tl.sum(total_gate, axis=1)
    result = first / (1.0 + tl.exp(-first)) * tl.sum(total_linear, axis=1)
    tl.store(out + visit.to(tl.int64) * width + row, result.to(out.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def experts_out_kernel(
    inner,
    w2,
    ids,
    weights,
    out,
    hidden,
    WIDTH: tl.constexpr,  # noqa: N803
    TOP_K: tl.constexpr,  # noqa: N803
    ROWS: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
):
    """Some rows of the weighted sum over the experts of one token. See kernels.few_experts."""
    token = tl.program_id(0)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    inside = row < hidden
    result = tl.zeros([ROWS], dtype=tl.float32)
    for k in tl.static_range(TOP_K):
        visit = (token * TOP_K + k).to(tl.int64)
        expert = tl.load(ids + visit).to(tl.int64)
        place = w2 + expert * hidden * WIDTH + row.to(tl.int64)[:, None] * WIDTH
        total = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
        for start in range(0, WIDTH, BLOCK):
            column = start + tl.arange(0, BLOCK)
            real = column < WIDTH
            value = tl.load(inner + visit * WIDTH + column, mask=real, other=0.0).to(tl.float32)
            part = tl.load(place + column[None, :], mask=inside[:, None] & real[None, :], other=0.0)
            total += part.to(tl.float32) * value[None, :]
        result += tl.sum(total, axis=1) * tl.load(weights + visit)
    tl.store(out + token.to(tl.int64) * hidden + row, result.to(out.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def products_kernel(
    x,
    x_stride,
    weight,
    out,
    rows,
    COLUMNS: tl.constexpr,  # noqa: N803
    ROWS: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
):
    """Some rows of weight @ x for one token, summed in float32."""
    token = tl.program_id(0)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    inside, real = row < rows, column < COLUMNS
    value = tl.load(x + token.to(tl.int64) * x_stride + column, mask=real, other=0.0).to(tl.float32)
    place = weight + row.to(tl.int64)[:, None] * COLUMNS + column[None, :]
    part = tl.load(place, mask=inside[:, None] & real[None, :], other=0.0).to(tl.float32)
    result = tl.sum(part * value[None, :], axis=1)
    tl.store(out + token.to(tl.int64) * rows + row, result.to(out.dtype.element_ty), mask=inside)
