#!/usr/bin/env python3
"""Time experts of four bits at Yuan2.0-M32's shape on one GPU: vLLM's Marlin, the plugin's kernels, and Humming where it is installed.

    PYTHONPATH=engine_plugins/yuan VLLM_TUNED_CONFIG_FOLDER=DIRECTORY python bench/yuan_experts_four_bits.py [--output FILE]

One layer: 32 experts of width 8192 (top 2), hidden 2048, groups of 128, random weights. Routings change from call to call; up to 512
tokens run in a CUDA graph. Everything is compared with float32 products of the weights that the packed ones stand for.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from plumbline_yuan import kernels
from vllm import _custom_ops as ops
from vllm.model_executor.layers.fused_moe.experts.marlin_moe import fused_marlin_moe
from vllm.model_executor.layers.fused_moe.fused_moe import fused_experts
from vllm.model_executor.layers.fused_moe.moe_align_block_size import moe_align_block_size
from vllm.model_executor.layers.quantization.utils.marlin_utils import marlin_moe_permute_scales
from vllm.scalar_type import scalar_types

EXPERTS, WIDTH, HIDDEN, TOP_K, GROUP = 32, 8192, 2048, 2, 128
TURNS = 8
RESULTS: list[dict[str, Any]] = []


def timed(call: Callable[[int], Any], tokens: int) -> float:
    """Median seconds of a call."""
    turns = TURNS if tokens <= 512 else 2
    for turn in range(turns):
        call(turn)
    torch.cuda.synchronize()
    graph: Any = None
    if tokens <= 512:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for turn in range(turns):
                call(turn)
        graph.replay()
    samples = []
    for _ in range(10 if tokens <= 512 else 4):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        if graph is not None:
            graph.replay()
        else:
            for turn in range(turns):
                call(turn)
        end.record()
        end.synchronize()
        samples.append(start.elapsed_time(end) / 1000 / turns)
    return float(statistics.median(samples))


class Layer:
    """The weights, in every layout."""

    def __init__(self) -> None:
        device = torch.device("cuda")
        self.plain, self.marlin, self.scales, self.marlin_scales = [], [], [], []
        for rows, columns in ((2 * WIDTH, HIDDEN), (HIDDEN, WIDTH)):
            words = torch.randint(-(2**31), 2**31 - 1, (EXPERTS, rows, columns // 8), device=device, dtype=torch.int32)
            scales = torch.rand(EXPERTS, columns // GROUP, rows, device=device, dtype=torch.bfloat16)
            scales = (scales + 0.5) * (0.2 / math.sqrt(columns))
            none = torch.empty(EXPERTS, 0, device=device, dtype=torch.int32)
            repacked = ops.gptq_marlin_moe_repack(words.transpose(1, 2).contiguous(), none, columns, rows, 4)
            permuted = marlin_moe_permute_scales(s=scales, size_k=columns, size_n=rows, group_size=GROUP)
            self.plain.append(words)
            self.scales.append(scales)
            self.marlin.append(repacked)
            self.marlin_scales.append(permuted.contiguous())
        self.full = [
            torch.empty(EXPERTS, rows, columns, device=device, dtype=torch.bfloat16)
            for rows, columns in ((2 * WIDTH, HIDDEN), (HIDDEN, WIDTH))
        ]

    def unpack(self) -> None:
        for words, scales, out in zip(self.marlin, self.marlin_scales, self.full):
            kernels.unpack_marlin(words, scales, out)

    def expert(self, which: int, number: int) -> Any:
        """An expert's matrix in float32, from the plain words."""
        shifts = torch.arange(0, 32, 4, device="cuda", dtype=torch.int32)
        values = (self.plain[which][number].unsqueeze(-1) >> shifts) & 15
        values = values.reshape(values.shape[0], -1).float() - 8
        return values * self.scales[which][number].t().float().repeat_interleave(GROUP, dim=1)

    def reference(self, x: Any, weights: Any, ids: Any) -> Any:
        out = torch.zeros(x.shape, device="cuda")
        for number in set(ids.flatten().tolist()):
            token, place = (ids == number).nonzero(as_tuple=True)
            gate, linear = (x[token].float() @ self.expert(0, number).t()).chunk(2, dim=-1)
            inner = torch.nn.functional.silu(gate) * linear
            out.index_add_(0, token, (inner @ self.expert(1, number).t()) * weights[token, place].unsqueeze(-1))
        return out


class Humming:
    """vLLM's Humming experts, as its HummingIndexedExperts calls them."""

    def __init__(self, layer: Layer) -> None:
        from humming.layer import HummingLayer, HummingMethod  # noqa: PLC0415 - may be missing

        self.method = HummingMethod
        self.layers, self.tuning = [], []
        for words, scales in zip(layer.plain, layer.scales):
            made = HummingLayer(
                shape_n=words.shape[1],
                shape_k=words.shape[2] * 8,
                weight_config={"dtype": "int4", "group_size": GROUP},
                num_experts=EXPERTS,
                torch_dtype=torch.bfloat16,
            ).cuda()
            made.weight.data.copy_(words)
            made.weight_scale.data.copy_(scales.transpose(1, 2))
            made.transform()
            made.cuda()
            self.layers.append(made)
            self.tuning.append(HummingMethod.get_default_tuning_configs(layer=made, gemm_type="indexed"))
        self.compute = json.dumps({"use_batch_invariant": False, "use_f16_accum": False, "gemm_type": "indexed"})

    def __call__(self, x: Any, weights: Any, ids: Any) -> Any:
        visits = ids.numel()
        block = next(config["block_shape"][0] for low, high, config in self.tuning[0] if low < visits <= high)
        sorted_ids, expert_ids, padded = moe_align_block_size(ids, block, EXPERTS, None, ignore_invalid_experts=True)
        common = {
            "sorted_ids": sorted_ids,
            "expert_ids": expert_ids,
            "num_tokens_padded": padded,
            "compute_config": self.compute,
            "valid_shape_m": visits,
        }
        both = torch.empty(visits, 2 * WIDTH, device="cuda", dtype=x.dtype)
        inner = torch.empty(visits, WIDTH, device="cuda", dtype=x.dtype)
        down = torch.empty(visits, HIDDEN, device="cuda", dtype=x.dtype)
        self.method.forward_layer(
            self.layers[0], x, outputs=both, top_k=TOP_K, tuning_config=json.dumps(self.tuning[0]), **common
        )
        torch.ops._C.silu_and_mul(inner, both)
        self.method.forward_layer(
            self.layers[1], inner, outputs=down, top_k=1, tuning_config=json.dumps(self.tuning[1]), **common
        )
        return (down.view(-1, TOP_K, HIDDEN).float() * weights.unsqueeze(-1)).sum(1).to(x.dtype)


def told(name: str, tokens: int, seconds: float, error: float, **more: Any) -> None:
    RESULTS.append({"name": name, "tokens": tokens, "microseconds": seconds * 1e6, "error": error, **more})
    print(f"{name:34} {tokens:6} tokens {seconds * 1e6:10.1f} us  error {error:.1e} {more or ''}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path)
    parser.add_argument(
        "--tokens", type=int, nargs="+", default=[1, 2, 4, 8, 32, 128, 512, 1024, 2048, 4096, 8192, 16384]
    )
    parser.add_argument("--skip-humming", action="store_true")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    layer = Layer()
    humming: Any = None
    if not arguments.skip_humming:
        try:
            humming = Humming(layer)
        except Exception:
            traceback.print_exc(limit=4)
    told("unpack", 0, timed(lambda _: layer.unpack(), 4096), 0.0)
    wrong = max(float((full[3].float() - layer.expert(i, 3)).abs().max()) for i, full in enumerate(layer.full))
    told("unpacked, largest difference", 0, 0.0, wrong)
    for tokens in arguments.tokens:
        x = torch.randn(tokens, HIDDEN, device="cuda", dtype=torch.bfloat16)
        routings = []
        for _ in range(TURNS):
            share, ids = torch.topk(torch.rand(tokens, EXPERTS, device="cuda"), TOP_K, dim=-1)
            routings.append((share / share.sum(-1, keepdim=True), ids.to(torch.int32)))
        expected = layer.reference(x, *routings[0])

        def tried(name: str, call: Callable[..., Any], x: Any = x, routings: Any = routings) -> None:
            try:
                found = call(x, *routings[0]).float()
                error = float((found - expected).norm() / expected.norm())  # noqa: B023 - called at once
                told(name, len(x), timed(lambda turn: call(x, *routings[turn]), len(x)), error)
            except Exception:
                traceback.print_exc(limit=3)

        def marlin(x: Any, weights: Any, ids: Any) -> Any:
            return fused_marlin_moe(
                x, *layer.marlin, None, None, *layer.marlin_scales, weights, ids, scalar_types.uint4b8.id
            )

        def unpacked(x: Any, weights: Any, ids: Any) -> Any:
            layer.unpack()
            return fused_experts(x, *layer.full, weights, ids)

        tried("Marlin", marlin)
        if tokens >= 512:
            tried("unpacked, bf16 experts", unpacked)
        if humming is not None:
            tried("Humming, indexed", humming)
    if arguments.output:
        arguments.output.write_text(
            json.dumps(
                {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "results": RESULTS}, indent=1
            )
            + "\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
