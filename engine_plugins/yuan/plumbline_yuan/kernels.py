"""The plugin's own arithmetic: the local filter's shift-and-add with its state, and the attention router's choice.

Each has a Triton form (CUDA) and a plain PyTorch form (CPU, and the tests' yardstick) with the same arguments.

The filter's convolution of two taps is computed as one matrix product that gives both taps' answers for every token, `older` and
`newer`; a token's result is then newer[t] + older[t-1] + bias. So what a sequence must remember between two steps is `older` of its
last token: A0 x[t-1] and B0 y1[t-1], which hold exactly what x[t-1] and y1[t-1] would give, without multiplying them again.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

try:
    import triton

    from plumbline_yuan import triton_kernels, triton_marlin
except ImportError:  # a CPU engine
    triton = None


@dataclass
class Rows:
    """Where the tokens of a step belong: `decodes` tokens of one-token requests, then `prefill_tokens` of longer ones.

    slots_d [decodes]: the state slot of each one-token request. For the others: slots_p [requests], ends_p [requests] (exclusive,
    counted from the first of them), first_p [prefill_tokens]: the request that a token is the first of, else -1.
    Slot 0 is vLLM's null block: rows that only fill up a CUDA graph have it; nothing is read from it or written to it.
    """

    decodes: int
    prefill_tokens: int
    slots_d: Tensor
    slots_p: Tensor
    ends_p: Tensor
    first_p: Tensor

    @classmethod
    def nothing(cls, device: torch.device) -> Rows:
        """No sequence at all: vLLM's profiling run."""
        empty = _empty(device)
        return cls(0, 0, empty, empty, empty, empty)


@lru_cache
def _empty(device: torch.device) -> Tensor:
    """What stands where there are no requests; made once, so that no graph holds a kernel that makes it."""
    return torch.zeros(1, dtype=torch.int32, device=device)


def previous_torch(older: Tensor, state: Tensor | None, rows: Rows, positions: Tensor) -> Tensor:
    """`older` of each token's predecessor (zeros before the first token of a sequence); writes the new state."""
    previous = torch.zeros_like(older)
    if state is None:
        return previous
    decodes, total = rows.decodes, rows.decodes + rows.prefill_tokens
    if decodes:
        slots = rows.slots_d[:decodes].long()
        known = (positions[:decodes] > 0).unsqueeze(-1)
        previous[:decodes] = torch.where(known, state[slots].to(older.dtype), 0)
        state[slots] = older[:decodes].to(state.dtype)
    if rows.prefill_tokens:
        previous[decodes + 1 : total] = older[decodes : total - 1]
        slots, ends = rows.slots_p.long(), rows.ends_p.long()
        starts = torch.cat((ends.new_zeros(1), ends[:-1])) + decodes
        known = (positions[starts] > 0).unsqueeze(-1)
        previous[starts] = torch.where(known, state[slots].to(older.dtype), 0)
        state[slots] = older[decodes + ends - 1].to(state.dtype)
    return previous


def shift_add_torch(
    taps: Tensor, width: int, bias: Tensor | None, state: Tensor | None, rows: Rows, positions: Tensor
) -> Tensor:
    """newer[t] + older[t-1] + bias, [T, width]; taps [T, >= 2 width] holds older, then newer."""
    older, newer = taps[:, :width], taps[:, width : 2 * width]
    result = newer.float() + previous_torch(older, state, rows, positions).float()
    if bias is not None:
        result += bias.float()
    return result.to(taps.dtype)


def norm_torch(y: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm(y + residual) with the mean square in float32."""
    total = y.float() + residual.float()
    scale = torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + eps)
    return (total * scale * weight.float()).to(residual.dtype)


def shift_add_norm_torch(
    taps: Tensor,
    bias: Tensor | None,
    state: Tensor | None,
    rows: Rows,
    positions: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float,
) -> Tensor:
    """RMSNorm(newer[t] + older[t-1] + bias + residual[t]), [T, H]."""
    width = residual.shape[-1]
    total = taps[:, width : 2 * width].float() + previous_torch(taps[:, :width], state, rows, positions).float()
    if bias is not None:
        total += bias.float()
    return norm_torch(total, residual, weight, eps)


def route_torch(projected: Tensor, experts: int, top_k: int, renormalize: bool) -> tuple[Tensor, Tensor]:
    """Weights (float32) and ids (int32) of the top_k experts, from queries, keys and values [T, 3 experts]."""
    query, key, value = projected.float().split(experts, dim=-1)
    scores = torch.softmax(query.unsqueeze(-1) * key.unsqueeze(-2), dim=-1)
    logits = torch.matmul(scores, value.unsqueeze(-1)).squeeze(-1)
    best, ids = torch.topk(logits, top_k, dim=-1)
    norm = best if renormalize else logits
    weights = torch.exp(best - torch.logsumexp(norm, dim=-1, keepdim=True))
    return weights, ids.to(torch.int32)


def launch_arguments(taps: Tensor, state: Tensor | None, rows: Rows, positions: Tensor) -> tuple[Any, ...]:
    """The state, the rows and the positions as the Triton kernels take them."""
    if state is None:  # the profiling run: the same kernel, compiled for what will come, that meets no sequence
        state, rows = taps, Rows.nothing(taps.device)
    return (
        state,
        state.stride(0),
        rows.slots_d,
        rows.slots_d.stride(0),
        rows.slots_p,
        rows.ends_p,
        rows.first_p,
        positions,
        rows.decodes,
        rows.prefill_tokens,
    )


def shift_add(
    taps: Tensor, width: int, bias: Tensor | None, state: Tensor | None, rows: Rows, positions: Tensor
) -> Tensor:
    """See shift_add_torch; on CUDA one kernel."""
    if not taps.is_cuda:
        return shift_add_torch(taps, width, bias, state, rows, positions)
    out = taps.new_empty(taps.shape[0], width)
    block = min(1024, triton.next_power_of_2(width))
    triton_kernels.shift_add_kernel[(taps.shape[0], triton.cdiv(width, block))](
        taps,
        taps.stride(0),
        bias if bias is not None else taps,
        *launch_arguments(taps, state, rows, positions),
        out,
        out.stride(0),
        width,
        HAS_BIAS=bias is not None,
        BLOCK=block,
    )
    return out


def shift_add_norm(
    taps: Tensor,
    bias: Tensor | None,
    state: Tensor | None,
    rows: Rows,
    positions: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float,
    out: Tensor,
) -> None:
    """See shift_add_norm_torch, written to `out`; on CUDA one kernel."""
    if not taps.is_cuda:
        out.copy_(shift_add_norm_torch(taps, bias, state, rows, positions, residual, weight, eps))
        return
    width = residual.shape[-1]
    block = triton.next_power_of_2(width)
    triton_kernels.shift_add_norm_kernel[(taps.shape[0],)](
        taps,
        taps.stride(0),
        bias if bias is not None else taps,
        *launch_arguments(taps, state, rows, positions),
        residual,
        residual.stride(0),
        weight,
        eps,
        out,
        out.stride(0),
        width,
        HAS_BIAS=bias is not None,
        BLOCK=block,
        num_warps=4 if block <= 2048 else 8,
    )


def route(projected: Tensor, experts: int, top_k: int, renormalize: bool) -> tuple[Tensor, Tensor]:
    """See route_torch; on CUDA one kernel."""
    if not projected.is_cuda:
        return route_torch(projected, experts, top_k, renormalize)
    tokens = projected.shape[0]
    weights = projected.new_empty(tokens, top_k, dtype=torch.float32)
    ids = projected.new_empty(tokens, top_k, dtype=torch.int32)
    block = max(2, triton.next_power_of_2(experts))
    triton_kernels.route_kernel[(tokens,)](
        projected,
        projected.stride(0),
        weights,
        ids,
        EXPERTS=experts,
        BLOCK=block,
        TOP_K=top_k,
        RENORMALIZE=renormalize,
        num_warps=1 if block <= 32 else 4,
    )
    return weights, ids


def few_products(x: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    """weight @ x of a few tokens x [T, H] as `dtype`, CUDA only: matrix kernels for so few columns do not reach the memory's speed."""
    rows, columns = weight.shape
    out = x.new_empty(x.shape[0], rows, dtype=dtype)
    block = triton.next_power_of_2(columns)
    # 16 KiB of a large matrix a program; of a small one so little that every multiprocessor has some.
    each = max(1, min(8192 // block, rows // 256)) if rows >= 512 else 2
    each = triton.next_power_of_2(each + 1) // 2
    triton_kernels.products_kernel[(x.shape[0], triton.cdiv(rows, each))](
        x, x.stride(0), weight, out, rows, COLUMNS=columns, ROWS=each, BLOCK=block
    )
    return out


def few_experts(x: Tensor, w13: Tensor, w2: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
    """Experts for a handful of tokens x [T, H], CUDA only: two kernels that read each chosen expert once, row by row.

    w13 [E, 2F, H], w2 [E, H, F], weights and ids [T, top_k]. Matrix kernels are made for many rows; with one to four tokens these
    are bound by reading the weights alone.
    """
    tokens, hidden = x.shape
    top_k, width = ids.shape[1], w2.shape[2]
    inner = x.new_empty(tokens * top_k, width)
    out = torch.empty_like(x)
    # Rows a program and columns a step: the fastest of bench/yuan_kernels.py on an H200.
    triton_kernels.experts_in_kernel[(tokens * top_k, triton.cdiv(width, 2))](
        x,
        x.stride(0),
        w13,
        ids,
        inner,
        width,
        HIDDEN=hidden,
        TOP_K=top_k,
        ROWS=2,
        BLOCK=min(512, triton.next_power_of_2(hidden)),
    )
    triton_kernels.experts_out_kernel[(tokens, triton.cdiv(hidden, 4))](
        inner,
        w2,
        ids,
        weights,
        out,
        hidden,
        WIDTH=width,
        TOP_K=top_k,
        ROWS=4,
        BLOCK=min(2048, triton.next_power_of_2(width)),
    )
    return out


def unpack_marlin(words: Tensor, scales: Tensor, out: Tensor) -> None:
    """Weights of four bits in Marlin's layout as plain matrices `out` [E, outputs, inputs], CUDA only."""
    experts, rows, columns = out.shape
    groups = scales.shape[1]
    triton_marlin.marlin_unpack_kernel[(groups, rows // 64, experts)](
        words, scales, out, ROWS=rows, COLUMNS=columns, TILES=columns // groups // 16
    )
