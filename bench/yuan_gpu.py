#!/usr/bin/env python3
"""Tokens per second of Yuan2.0-M32's shape on one GPU, beside stock vLLM with a Qwen3-MoE of the same shape.

    PYTHONPATH=engine_plugins/yuan python bench/yuan_gpu.py --model standin --weights bf16 --output FILE
    PYTHONPATH=engine_plugins/yuan python bench/yuan_gpu.py --model yuan --weights bf16 --tuned DIRECTORY --output FILE
    python bench/yuan_gpu.py --compare FILE FILE ...

Run with the Python of the engine; one process a measurement. Random weights (vLLM's `load_format=dummy`, then norms set to 1 and integers
drawn, so that tokens differ, experts are chosen evenly and no kernel sees zeros), random prompts that never come twice, `ignore_eos`.
24 layers, 32 experts of width 8192 (top 2), hidden 2048, 16 heads of 256, vocabulary 135,040: 80 GB in bfloat16. --tiny for a dry run.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

PROMPT, ANSWER = 512, 128
REPEATS = {1: 5, 32: 3, 128: 3}
FULL = {"layers": 24, "hidden": 2048, "experts": 32, "width": 8192, "heads": 16, "head": 256, "vocab": 135040}
TINY = {"layers": 2, "hidden": 128, "experts": 4, "width": 128, "heads": 2, "head": 64, "vocab": 512}


def quantisation() -> dict[str, Any]:
    """Four bits in groups of 128, as compressed-tensors writes it."""
    weights = {
        "num_bits": 4,
        "type": "int",
        "symmetric": True,
        "strategy": "group",
        "group_size": 128,
        "dynamic": False,
    }
    group = {"targets": ["Linear"], "weights": weights, "format": "pack-quantized"}
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head", "re:.*lf_gate.*", r"re:.*mlp\.gate(\..*)?$"],
    }


def configuration(model: str, weights: str, shape: dict[str, int]) -> dict[str, Any]:
    """config.json."""
    common: dict[str, Any] = {
        "hidden_size": shape["hidden"],
        "num_hidden_layers": shape["layers"],
        "num_attention_heads": shape["heads"],
        "intermediate_size": shape["width"],
        "vocab_size": shape["vocab"],
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    if weights == "w4a16":
        common["quantization_config"] = quantisation()
    if model == "standin":
        return {
            **common,
            "architectures": ["Qwen3MoeForCausalLM"],
            "model_type": "qwen3_moe",
            "num_key_value_heads": shape["heads"],
            "head_dim": shape["head"],
            "num_experts": shape["experts"],
            "num_experts_per_tok": 2,
            "moe_intermediate_size": shape["width"],
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "attention_bias": False,
            "rope_theta": 10000.0,
        }
    return {
        **common,
        "architectures": ["YuanForCausalLM"],
        "model_type": "yuan",
        "attention_projection_size": shape["heads"] * shape["head"],
        "use_moe": True,
        "moe_config": {
            "moe_num_experts": shape["experts"],
            "moe_top_k": 2,
            "ffn_hidden_size": shape["width"],
            "norm_topk_prob": True,
            "gated_linear_unit": True,
        },
    }


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Start the engine, measure, profile where asked."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    if arguments.tuned:
        os.environ["VLLM_TUNED_CONFIG_FOLDER"] = str(arguments.tuned.resolve())
    import torch  # noqa: PLC0415
    import vllm  # noqa: PLC0415

    shape = TINY if arguments.tiny else FULL
    traces = tempfile.mkdtemp(prefix="plumbline-trace-")
    options: dict[str, Any] = {}
    if arguments.profile:
        options["profiler_config"] = {
            "profiler": "torch",
            "torch_profiler_dir": traces,
            "torch_profiler_with_stack": False,
            "torch_profiler_dump_cuda_time_total": False,
        }
    if arguments.tiny:
        options.update(enforce_eager=True, max_model_len=1024)
    with tempfile.TemporaryDirectory(prefix="plumbline-model-") as directory:
        Path(directory, "config.json").write_text(json.dumps(configuration(arguments.model, arguments.weights, shape)))
        started = time.monotonic()
        engine = vllm.LLM(
            model=directory,
            load_format="dummy",
            skip_tokenizer_init=True,
            dtype="bfloat16",
            seed=0,
            worker_extension_cls="yuan_gpu_worker.Randomise",
            **options,
        )
    told: dict[str, Any] = {
        "model": arguments.model,
        "weights": arguments.weights,
        "tuned": bool(arguments.tuned),
        "start_seconds": round(time.monotonic() - started, 1),
        "shape": shape,
        "vllm": vllm.__version__,
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(0) if torch.cuda.is_available() else "CPU",
        "environment": {key: value for key, value in os.environ.items() if key.startswith("VLLM_")},
        "parameters": engine.collective_rpc("randomise")[0],
    }
    cache = engine.llm_engine.vllm_config.cache_config
    told["cache_tokens"] = (cache.num_gpu_blocks or 0) * cache.block_size
    generator = torch.Generator().manual_seed(arguments.seed)

    def run(batch: int, prompt: int, answer: int) -> float:
        tokens = torch.randint(3, shape["vocab"], (batch, prompt), generator=generator).tolist()
        prompts = [{"prompt_token_ids": row} for row in tokens]
        asked = vllm.SamplingParams(temperature=1.0, max_tokens=answer, ignore_eos=True, detokenize=False)
        begun = time.perf_counter()
        results = engine.generate(prompts, asked, use_tqdm=False)
        seconds = time.perf_counter() - begun
        assert all(len(result.outputs[0].token_ids) == answer for result in results)
        return seconds

    told["batches"] = []
    for batch in arguments.batches:
        run(batch, PROMPT, ANSWER)
        repeats = 2 if arguments.tiny else REPEATS.get(batch, 3)
        whole = [run(batch, PROMPT, ANSWER) for _ in range(repeats)]
        first = [run(batch, PROMPT, 1) for _ in range(repeats)]
        seconds, prefill = statistics.median(whole), statistics.median(first)
        told["batches"].append(
            {
                "batch": batch,
                "tokens_per_second": batch * ANSWER / seconds,
                "seconds": whole,
                "prefill_seconds": first,
                "step_seconds": (seconds - prefill) / (ANSWER - 1),
            }
        )
        print(json.dumps(told["batches"][-1]), flush=True)
    if arguments.profile:
        told["profile"] = {}
        for name, batch, prompt, answer in (
            ("decode 1", 1, 16, 24),
            ("decode 32", 32, 512, 24),
            ("prefill 32", 32, 512, 1),
        ):
            run(batch, prompt, answer)
            for old in Path(traces).iterdir():
                old.unlink()
            engine.start_profile()
            run(batch, prompt, answer)
            engine.stop_profile()
            told["profile"][name] = kernels(Path(traces))
    return told


def kernels(directory: Path) -> dict[str, Any]:
    """What ran on the GPU, by kernel: calls and total microseconds; the most first."""
    totals: dict[str, list[float]] = defaultdict(lambda: [0, 0.0])
    start, end = float("inf"), 0.0
    for path in directory.rglob("*.json*"):
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt") as file:  # type: ignore[operator]
            events = json.load(file).get("traceEvents", [])
        for event in events:
            if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
                entry = totals[str(event["name"])[:160]]
                entry[0] += 1
                entry[1] += float(event["dur"])
                start, end = min(start, float(event["ts"])), max(end, float(event["ts"]) + float(event["dur"]))
    ranked = sorted(totals.items(), key=lambda item: -item[1][1])
    return {
        "span_us": max(0.0, end - start),
        "busy_us": sum(value[1] for value in totals.values()),
        "kernels": [{"name": name, "calls": int(calls), "us": round(us, 1)} for name, (calls, us) in ranked[:40]],
    }


def compare(paths: list[Path]) -> None:
    """Print every measurement beside the stand-in's stock one with the same weights."""
    told = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    base: dict[tuple[str, int], list[float]] = defaultdict(list)
    for one in told:
        if one["model"] == "standin" and not one["tuned"]:
            for entry in one["batches"]:
                base[one["weights"], entry["batch"]].append(entry["tokens_per_second"])
    for one in told:
        for entry in one["batches"]:
            stock = base.get((one["weights"], entry["batch"]))
            ratio = f"{entry['tokens_per_second'] / statistics.median(stock):.3f}" if stock else "-"
            print(
                f"{one['model']:8} {one['weights']:6} {'tuned' if one['tuned'] else 'stock':6} batch {entry['batch']:4} "
                f"{entry['tokens_per_second']:9.1f} tok/s  prefill {statistics.median(entry['prefill_seconds']):7.4f} s  "
                f"step {entry['step_seconds'] * 1000:7.3f} ms  ratio {ratio}"
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", choices=("standin", "yuan"), default="yuan")
    parser.add_argument("--weights", choices=("bf16", "w4a16"), default="bf16")
    parser.add_argument("--tuned", type=Path, help="directory with a tuned fused-MoE configuration")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32, 128])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--profile", action="store_true", help="record which kernels the time goes to as well")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--compare", type=Path, nargs="+", metavar="FILE")
    arguments = parser.parse_args()
    if arguments.compare:
        compare(arguments.compare)
        return 0
    told = measure(arguments)
    if arguments.output:
        arguments.output.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
