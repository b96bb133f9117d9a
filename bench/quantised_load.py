#!/usr/bin/env python3
"""Does vLLM serve what Plumbline quantises? Makes tiny models, rounds them, loads each into vLLM and compares the answers.

    bench/quantised_load.py [--models qwen2,qwen3_moe] [--methods rtn-w4a16,rtn-w8a16] [--output FILE]
    bench/quantised_load.py --directory CHECKPOINT --methods rtn-w4a16        a model of your own (safetensors, bfloat16)

Run with the Python of the engine, on the machine that serves. Needs vLLM, torch and numpy, no network and no tokenizer. For each method
two checkpoints are loaded: the packed integers, and the same values written out in bfloat16. Both hold the same numbers, so that a kernel
(or a format) which is right gives nearly equal answers. A third load, of integers with the scales of one matrix moved by one row, must be
told from them, or the comparison would be blind. Ends with 1 where vLLM has no kernel, or a comparison fails.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import struct
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from module_utils.plumbline.quantise_numbers import Quantiser, scales_as_float, unpacked
from module_utils.plumbline.quantise_plan import Plan, becomes, configured, plan, scheme
from module_utils.plumbline.safetensors_file import TensorSpec, header_bytes

# Kernels add in another order than a matrix product of bfloat16 does: a near tie may go the other way.
AGREEMENT = 0.95
LIKELIHOOD = 0.02
PROMPTS, PROMPT_TOKENS, DECODED = 2, 256, 16

Tensors = dict[str, tuple[TensorSpec, bytes]]


def bfloat16(values: np.ndarray) -> np.ndarray:
    """Nearest bfloat16 as uint16."""
    bits = np.ascontiguousarray(values, dtype="<f4").view("<u4")
    rounded: np.ndarray = ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype("<u2")
    return rounded


def tiny(kind: str, seed: int) -> tuple[dict[str, Any], Tensors]:
    """config.json and tensors of a random model whose logits are far apart."""
    hidden, inner, heads, key_heads, head, layers, vocabulary, experts = 512, 1024, 8, 4, 64, 2, 1024, 4
    config: dict[str, Any] = {
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_attention_heads": heads,
        "num_key_value_heads": key_heads,
        "head_dim": head,
        "num_hidden_layers": layers,
        "vocab_size": vocabulary,
        "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    moe = kind == "qwen3_moe"
    names = {"qwen2": "Qwen2ForCausalLM", "llama": "LlamaForCausalLM", "qwen3_moe": "Qwen3MoeForCausalLM"}
    config.update(architectures=[names[kind]], model_type=kind)
    if moe:
        width = 256
        config.update(num_experts=experts, num_experts_per_tok=2, moe_intermediate_size=width, norm_topk_prob=True)
        config.update(decoder_sparse_step=1, mlp_only_layers=[], num_local_experts=experts)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocabulary, hidden)}
    for layer in range(layers):
        at = f"model.layers.{layer}."
        shapes[at + "input_layernorm.weight"] = (hidden,)
        for name, rows in (("q", heads * head), ("k", key_heads * head), ("v", key_heads * head)):
            shapes[f"{at}self_attn.{name}_proj.weight"] = (rows, hidden)
            if kind == "qwen2":
                shapes[f"{at}self_attn.{name}_proj.bias"] = (rows,)
        if moe:
            shapes[at + "self_attn.q_norm.weight"] = shapes[at + "self_attn.k_norm.weight"] = (head,)
        shapes[at + "self_attn.o_proj.weight"] = (hidden, heads * head)
        shapes[at + "post_attention_layernorm.weight"] = (hidden,)
        if moe:
            shapes[at + "mlp.gate.weight"] = (experts, hidden)
        for part in [f"mlp.experts.{number}." for number in range(experts)] if moe else ["mlp."]:
            rows = width if moe else inner
            shapes[f"{at}{part}gate_proj.weight"] = shapes[f"{at}{part}up_proj.weight"] = (rows, hidden)
            shapes[f"{at}{part}down_proj.weight"] = (hidden, rows)
    shapes["model.norm.weight"] = (hidden,)
    shapes["lm_head.weight"] = (vocabulary, hidden)
    random = np.random.default_rng(seed)
    tensors: Tensors = {}
    for name, shape in shapes.items():
        scale = 1.0 if "embed" in name else (3.0 if name.startswith("lm_head") else 1.0) / np.sqrt(shape[-1])
        values = np.ones(shape) if name.endswith("norm.weight") else random.standard_normal(shape) * scale
        tensors[name] = (TensorSpec(name, "BF16", shape), bfloat16(values).tobytes())
    return config, tensors


def loaded(directory: Path) -> tuple[dict[str, Any], Tensors]:
    """config.json and tensors of a directory with safetensors."""
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    tensors: Tensors = {}
    for path in sorted(directory.glob("*.safetensors")):
        data = path.read_bytes()
        start = 8 + struct.unpack("<Q", data[:8])[0]
        for name, entry in json.loads(data[8:start]).items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                spec = TensorSpec(name, entry["dtype"], tuple(entry["shape"]))
                tensors[name] = (spec, data[start + begin : start + end])
    return config, tensors


def write(directory: Path, config: Mapping[str, Any], tensors: Tensors) -> Path:
    """A directory that vLLM loads."""
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    order = sorted(tensors.values(), key=lambda one: {"I64": 0, "I32": 1}.get(one[0].dtype, 2))
    with (directory / "model.safetensors").open("wb") as file:
        file.write(header_bytes([spec for spec, _ in order]))
        for _, data in order:
            file.write(data)
    return directory


def rounded(tensors: Tensors, made: Plan) -> tuple[Tensors, Tensors, Tensors]:
    """The packed checkpoint, its values in the source's dtype, and the packed one with the scales of one matrix moved by a row."""
    quantiser = Quantiser(made.scheme)
    packed, written, damaged = dict(tensors), dict(tensors), dict(tensors)
    for number, spec in enumerate(made.quantised):
        result = quantiser.rows(tensors[spec.name][1], spec.dtype, *spec.shape)
        parts = (np.array(spec.shape, dtype="<i8"), result.packed, result.scale)
        for new, data in zip(becomes(spec, made.scheme), parts):
            packed[new.name] = damaged[new.name] = (new, data.tobytes())
            # The value projection of the first layer.
            if number == 2 and new.name.endswith("_scale"):
                damaged[new.name] = (new, np.roll(data, 1, axis=0).tobytes())
        del packed[spec.name], damaged[spec.name]
        factor = np.repeat(scales_as_float(result.scale, spec.dtype), made.scheme.group, axis=1)
        values = unpacked(result.packed, made.scheme.bits, spec.shape[1]) * factor
        if spec.dtype != "BF16":
            raise SystemExit(f"quantised_load: {spec.name} is {spec.dtype}: expected BF16")
        written[spec.name] = (spec, bfloat16(values).tobytes())
    quantiser.close()
    return packed, written, damaged


def answers(directory: Path, vocabulary: int) -> dict[str, Any]:
    """What vLLM says to the same random prompts, and what it says of itself."""
    from vllm import LLM, SamplingParams  # noqa: PLC0415

    started = time.monotonic()
    engine = LLM(
        model=str(directory),
        skip_tokenizer_init=True,
        enforce_eager=True,
        max_model_len=512,
        max_num_seqs=8,
        gpu_memory_utilization=0.06,
        dtype="bfloat16",
        disable_log_stats=True,
    )
    load_seconds = time.monotonic() - started
    random = np.random.default_rng(7)
    prompts = [{"prompt_token_ids": random.integers(3, vocabulary, PROMPT_TOKENS).tolist()} for _ in range(PROMPTS)]
    asked = SamplingParams(max_tokens=DECODED, temperature=0.0, prompt_logprobs=1, detokenize=False, ignore_eos=True)
    logprobs, top, decoded = [], [], []
    for answer in engine.generate(prompts, asked, use_tqdm=False):
        for token, candidates in zip(answer.prompt_token_ids[1:], answer.prompt_logprobs[1:]):
            logprobs.append(candidates[token].logprob)
            top.append(min(candidates, key=lambda number: candidates[number].rank))
        decoded.append(list(answer.outputs[0].token_ids))
    cache = engine.llm_engine.vllm_config.cache_config
    told = {
        "logprobs": logprobs,
        "top": top,
        "decoded": decoded,
        "load_seconds": round(load_seconds, 1),
        "cache_tokens": (cache.num_gpu_blocks or 0) * cache.block_size,
    }
    del engine
    forget()
    return told


def forget() -> None:
    """Free what a load has left, so that the next one finds the memory."""
    from vllm.distributed.parallel_state import cleanup_dist_env_and_memory  # noqa: PLC0415

    gc.collect()
    cleanup_dist_env_and_memory()


def compared(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, float]:
    """Agreement of the most likely tokens, and mean difference of the log-probabilities."""
    same = np.mean(np.array(one["top"]) == np.array(other["top"]))
    return {
        "agreement": round(float(same), 4),
        "difference": round(float(np.mean(np.abs(np.array(one["logprobs"]) - np.array(other["logprobs"])))), 5),
        "likelihood": round(float(np.mean(one["logprobs"]) - np.mean(other["logprobs"])), 5),
    }


def tried(name: str, method: str, made: Plan, config: dict[str, Any], tensors: Tensors) -> dict[str, Any]:
    """One model, one method: three loads."""
    packed, written, damaged = rounded(tensors, made)
    result: dict[str, Any] = {
        "model": name,
        "method": method,
        "group": made.scheme.group,
        "quantised": len(made.quantised),
    }
    result["source_bytes"] = sum(len(data) for _, data in tensors.values())
    result["packed_bytes"] = sum(len(data) for _, data in packed.values())
    new = configured(config, made)
    with tempfile.TemporaryDirectory(prefix="plumbline-quantised-") as directory:
        work = Path(directory)
        try:
            ours = answers(write(work / "packed", new, packed), config["vocab_size"])
        except Exception as error:  # whatever the engine raises is the answer to the question
            forget()
            reason = str(error).strip().splitlines()[:1] or [""]
            return {**result, "ok": False, "error": f"{type(error).__name__}: {reason[0][:300]}"}
        plain = answers(write(work / "written", config, written), config["vocab_size"])
        broken = answers(write(work / "damaged", new, damaged), config["vocab_size"])
    right, wrong = compared(ours, plain), compared(broken, plain)
    result.update(same_values=right, moved_scales=wrong)
    result.update(
        {key: ours[key] for key in ("load_seconds", "cache_tokens")}, written_cache_tokens=plain["cache_tokens"]
    )
    result["decoded_equal"] = sum(a == b for a, b in zip(ours["decoded"], plain["decoded"]))
    result["ok"] = (
        right["agreement"] >= AGREEMENT
        and abs(right["likelihood"]) <= LIKELIHOOD
        and wrong["difference"] > 3 * right["difference"]
    )
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", default="qwen2,qwen3_moe", help="of qwen2, llama, qwen3_moe")
    parser.add_argument("--methods", default="rtn-w4a16,rtn-w8a16")
    parser.add_argument("--group", type=int, default=128)
    parser.add_argument("--directory", type=Path, help="a checkpoint instead of the tiny models")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    import torch  # noqa: PLC0415 - after --help
    import vllm  # noqa: PLC0415

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    results = []
    for name in [arguments.directory.name] if arguments.directory else arguments.models.split(","):
        config, tensors = loaded(arguments.directory) if arguments.directory else tiny(name, 1)
        for method in arguments.methods.split(","):
            made = plan([spec for spec, _ in tensors.values()], scheme(method, arguments.group))
            results.append(tried(name, method, made, config, tensors))
            print(json.dumps(results[-1]), flush=True)
    summary = {"engine": f"vllm {vllm.__version__}", "torch": torch.__version__, "device": device, "results": results}
    if arguments.output:
        arguments.output.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    print(f"{device}, vllm {vllm.__version__}: {sum(one['ok'] for one in results)} of {len(results)} are served right")
    return 0 if results and all(one["ok"] for one in results) else 1


if __name__ == "__main__":
    sys.exit(main())
