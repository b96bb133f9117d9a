#!/usr/bin/env python3
"""Time the plugin's own expert kernels for a few tokens beside vLLM's fused MoE, on M32's shape, in CUDA graphs, weights from memory.

    PYTHONPATH=engine_plugins/yuan python bench/yuan_kernels.py [--output FILE]

For 1, 2 and 4 tokens: vLLM's fused experts with its stock configuration, the plugin's two kernels as they are launched, and each kernel
alone over rows a program, columns a step and warps. Prints microseconds and bytes/s of the weights that a call must read.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton
from plumbline_yuan import kernels, triton_kernels
from vllm.model_executor.layers.fused_moe.fused_moe import fused_experts

EXPERTS, WIDTH, HIDDEN, TOP_K = 32, 8192, 2048, 2
TURNS = 8


def timed(call: Callable[[int], Any]) -> float:
    """Median seconds of a call, over graphs of calls with changing routings."""
    for turn in range(TURNS):
        call(turn)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for turn in range(TURNS):
            call(turn)
    graph.replay()
    samples = []
    for _ in range(15):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        samples.append(start.elapsed_time(end) / 1000 / TURNS)
    return float(statistics.median(samples))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    device = torch.device("cuda")
    torch.manual_seed(0)
    w13 = torch.empty(EXPERTS, 2 * WIDTH, HIDDEN, device=device, dtype=torch.bfloat16).normal_(0, HIDDEN**-0.5)
    w2 = torch.empty(EXPERTS, HIDDEN, WIDTH, device=device, dtype=torch.bfloat16).normal_(0, WIDTH**-0.5)
    results: list[dict[str, Any]] = []

    def told(name: str, tokens: int, seconds: float, read: float, **more: Any) -> None:
        results.append({"name": name, "tokens": tokens, "seconds": seconds, "bytes_per_second": read / seconds, **more})
        print(f"{name:10} {tokens} tokens {seconds * 1e6:8.1f} us {read / seconds / 1e12:6.2f} TB/s {more}", flush=True)

    for tokens in (1, 2, 4):
        x = torch.randn(tokens, HIDDEN, device=device, dtype=torch.bfloat16)
        routings = []
        for _ in range(TURNS):
            share, ids = torch.topk(torch.rand(tokens, EXPERTS, device=device), TOP_K, dim=-1)
            routings.append((share / share.sum(-1, keepdim=True), ids.to(torch.int32)))
        distinct = statistics.mean(len(set(ids.flatten().tolist())) for _, ids in routings)
        read = distinct * 3 * WIDTH * HIDDEN * 2

        def ours(turn: int, x: Any = x, routings: Any = routings) -> Any:
            return kernels.few_experts(x, w13, w2, *routings[turn])

        def stock(turn: int, x: Any = x, routings: Any = routings) -> Any:
            return fused_experts(x, w13, w2, *routings[turn])

        difference = max(
            float((ours(t).float() - stock(t).float()).norm() / stock(t).float().norm()) for t in range(TURNS)
        )
        told("vLLM", tokens, timed(stock), read)
        told("plugin", tokens, timed(ours), read, difference=round(difference, 5))
        if tokens > 1:
            continue
        inner = torch.randn(tokens * TOP_K, WIDTH, device=device, dtype=torch.bfloat16)
        out = torch.empty_like(x)
        for rows, block, warps in itertools.product((2, 4, 8), (512, 1024, 2048), (4, 8)):
            if not 1024 <= rows * block <= 16384:
                continue
            if block <= HIDDEN:

                def first(
                    turn: int, x: Any = x, routings: Any = routings, inner: Any = inner, k: Any = (rows, block, warps)
                ) -> None:
                    triton_kernels.experts_in_kernel[(inner.shape[0], triton.cdiv(WIDTH, k[0]))](
                        x, x.stride(0), w13, routings[turn][1], inner, WIDTH,
                        HIDDEN=HIDDEN, TOP_K=TOP_K, ROWS=k[0], BLOCK=k[1], num_warps=k[2],
                    )  # fmt: skip

                told("in", tokens, timed(first), read * 2 / 3, rows=rows, block=block, warps=warps)

            def second(
                turn: int, out: Any = out, routings: Any = routings, inner: Any = inner, k: Any = (rows, block, warps)
            ) -> None:
                triton_kernels.experts_out_kernel[(out.shape[0], triton.cdiv(HIDDEN, k[0]))](
                    inner, w2, routings[turn][1], routings[turn][0], out, HIDDEN,
                    WIDTH=WIDTH, TOP_K=TOP_K, ROWS=k[0], BLOCK=k[1], num_warps=k[2],
                )  # fmt: skip

            told("out", tokens, timed(second), read / 3, rows=rows, block=block, warps=warps)
    for name in ("in", "out"):
        best = sorted((r for r in results if r["name"] == name), key=lambda r: r["seconds"])[:4]
        print(name, [(round(r["seconds"] * 1e6, 1), r["rows"], r["block"], r["warps"]) for r in best])
    if arguments.output:
        arguments.output.write_text(
            json.dumps({"device": torch.cuda.get_device_name(), "results": results}, indent=1) + "\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
