#!/usr/bin/env python3
"""Time of the Yuan plugin's own CUDA kernels at M32's shape, each in a CUDA graph, beside the time that reading the weights takes.

    PYTHONPATH=engine_plugins/yuan python bench/yuan_plugin_kernels.py

Needs torch and Triton on a GPU, no vLLM. The experts of several layers are taken in turn, so that none is left in the GPU's cache; the
others' weights are. Results are compared with plain PyTorch first; a difference ends the program.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from plumbline_yuan import kernels
from torch import Tensor

HIDDEN, WIDTH, EXPERTS, TOP_K, LAYERS = 2048, 8192, 32, 2, 4


def timed(function: Callable[..., object], arguments: Sequence[tuple[Any, ...]], repeats: int = 20) -> float:
    """Microseconds of one call, the median over replays of a graph that calls `function` once with each of `arguments`."""
    for given in arguments:
        function(*given)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for given in arguments:
            function(*given)
    graph.replay()
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1000 / len(arguments))
    return float(statistics.median(times))


def told(name: str, microseconds: float, read: float) -> None:
    print(
        f"{name:44} {microseconds:8.1f} us   {read / 1e6:7.1f} MB   {read / microseconds / 1e6:6.2f} TB/s", flush=True
    )


def reference(x: Tensor, w13: Tensor, w2: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
    rows = []
    for token in range(len(x)):
        total = torch.zeros(HIDDEN, device=x.device)
        for share, expert in zip(weights[token], ids[token]):
            gate, linear = (w13[expert].float() @ x[token].float()).chunk(2)
            total += share * (w2[expert].float() @ (torch.nn.functional.silu(gate) * linear))
        rows.append(total)
    return torch.stack(rows)


def near(found: Tensor, expected: Tensor, what: str) -> None:
    difference = float((found.float() - expected.float()).norm() / expected.float().norm())
    if not difference < 1e-2:
        sys.exit(f"{what} differs from plain PyTorch by {difference:.1e} of its size: expected less than 1e-2.")


def experts(device: str) -> None:
    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device, dtype=torch.bfloat16) * 0.02

    layers = [(draw(EXPERTS, 2 * WIDTH, HIDDEN), draw(EXPERTS, HIDDEN, WIDTH)) for _ in range(LAYERS)]
    for tokens in (1, 2, 4):
        x = draw(tokens, HIDDEN) * 50
        weights = torch.rand(tokens, TOP_K, device=device)
        ids = torch.arange(tokens * TOP_K, device=device, dtype=torch.int32).reshape(tokens, TOP_K)
        near(kernels.few_experts(x, *layers[0], weights, ids), reference(x, *layers[0], weights, ids), "few_experts")
        steps = [(x, *layer, weights, ids) for layer in layers]
        read = tokens * TOP_K * 3 * HIDDEN * WIDTH * 2
        told(f"experts, bf16, {tokens} token(s)", timed(kernels.few_experts, steps), read)


def product(x: Tensor, weight: Tensor) -> Tensor:
    return x @ weight.t()


def product_in_float32(x: Tensor, weight: Tensor) -> Tensor:
    return torch.mm(x, weight.t(), out_dtype=torch.float32)


def router_and_filter(device: str, tokens: int) -> None:
    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device, dtype=torch.bfloat16)

    z, gate, first, second = draw(tokens, HIDDEN), draw(3 * EXPERTS, HIDDEN), draw(6144, HIDDEN), draw(4096, 1024)
    projected = product_in_float32(z, gate * 0.02)
    near(
        kernels.route(projected, EXPERTS, TOP_K, True)[0],
        kernels.route_torch(projected, EXPERTS, TOP_K, True)[0],
        "route",
    )
    rows = kernels.Rows.nothing(torch.device(device))
    rows.decodes, rows.slots_d = tokens, torch.arange(1, tokens + 1, device=device, dtype=torch.int32)
    positions = torch.ones(tokens, device=device, dtype=torch.int64)
    states = [torch.zeros(tokens + 1, size, device=device, dtype=torch.bfloat16) for size in (1024, HIDDEN)]
    bias, taps, more_taps, y1 = draw(HIDDEN), draw(tokens, 6144), draw(tokens, 2 * HIDDEN), draw(tokens, 1024)
    norm = (more_taps, bias, states[1], rows, positions, z, bias, 1e-6, torch.empty_like(z))
    for name, function, given, read in (
        ("router, product", product_in_float32, (z, gate), gate.numel()),
        ("router, choice", kernels.route, (projected, EXPERTS, TOP_K, True), 0),
        ("filter and values, first product", product, (z, first), first.numel()),
        ("filter, first shift", kernels.shift_add, (taps, 1024, bias, states[0], rows, positions), 0),
        ("filter, second product", product, (y1, second), second.numel()),
        ("filter, second shift and norm", kernels.shift_add_norm, norm, 0),
    ):
        told(f"{name}, {tokens} token(s)", timed(function, [given] * 4), 2.0 * read)


def few_products(device: str) -> None:
    """Attention's and the filter's matrices with one token: the plugin's kernel beside PyTorch's product."""
    for name, rows, columns in (
        ("values and filter", 6144, 2048),
        ("queries, keys", 8192, 2048),
        ("output", 2048, 4096),
        ("filter", 4096, 1024),
    ):
        weights = [torch.randn(rows, columns, device=device, dtype=torch.bfloat16) for _ in range(8)]
        x = torch.randn(1, columns, device=device, dtype=torch.bfloat16)
        near(kernels.few_products(x, weights[0], x.dtype), x.float() @ weights[0].float().t(), "few_products")
        told(f"{name}, plugin", timed(kernels.few_products, [(x, w, x.dtype) for w in weights]), 2.0 * rows * columns)
        told(f"{name}, PyTorch", timed(product, [(x, w) for w in weights]), 2.0 * rows * columns)


def main() -> None:
    if not torch.cuda.is_available():
        sys.exit("bench/yuan_plugin_kernels.py needs a GPU and a torch that sees it.")
    torch.manual_seed(0)
    print(torch.cuda.get_device_name(), torch.__version__)
    experts("cuda")
    for tokens in (1, 32, 128):
        router_and_filter("cuda", tokens)
    few_products("cuda")


if __name__ == "__main__":
    main()
