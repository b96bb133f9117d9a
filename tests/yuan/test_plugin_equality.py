"""The plugin in vLLM answers as the reference does: the logits of every token, of prompts and of 64 generated tokens, in float32.

Each case starts a CPU engine in a process of its own. The whole matrix is marked `long`; the quick set has one case of each kind.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from yuan_reference import checkpoints, configs
from yuan_reference.model import YuanReference

pytest.importorskip("vllm")

TOLERANCE = 1e-3
LENGTHS = (1, 2, 3, 17, 300)
GENERATED = 64
WORKER = Path(__file__).with_name("engine_worker.py")


@dataclass
class Model:
    """A checkpoint on disk and the reference of it."""

    directory: Path
    reference: YuanReference


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Model]:
    @lru_cache
    def make(name: str) -> Model:
        config = configs.get(name)
        tensors = checkpoints.make_tensors(config, seed=1)
        directory = tmp_path_factory.mktemp(name)
        checkpoints.write_hf_safetensors(directory, config, tensors)
        return Model(directory, YuanReference(config, tensors, torch.float32))

    return make


Tensors = dict[str, torch.Tensor]


def quantised(config: dict[str, Any], tensors: Tensors) -> tuple[dict[str, Any], Tensors, Tensors]:
    """Round every Linear but router, filter and head to four bits in groups of 32: (config, packed tensors, what they stand for)."""
    packed, dense = {}, {}
    for name, tensor in tensors.items():
        if not re.search(r"(q|k|v|o|up|gate|down)_proj\.weight$|experts\.\d+\.w[12]\.weight$", name):
            packed[name] = dense[name] = tensor
            continue
        rows, columns = tensor.shape
        groups = tensor.reshape(rows, columns // 32, 32)
        scale = groups.abs().amax(-1, keepdim=True) / 7.5
        values = (groups / scale).round().clamp(-8, 7)
        dense[name] = (values * scale).reshape(rows, columns)
        words = (values.reshape(rows, columns // 8, 8).long() + 8) << (4 * torch.arange(8))
        module = name.removesuffix(".weight")
        packed[f"{module}.weight_packed"] = words.sum(-1).to(torch.int32)
        packed[f"{module}.weight_scale"] = scale.squeeze(-1)
        packed[f"{module}.weight_shape"] = torch.tensor([rows, columns])
    weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32, "dynamic": False}
    told = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "format": "pack-quantized"}},
        "ignore": ["lm_head", "re:.*lf_gate.*", r"re:.*mlp\.gate\.(query|key|value)$"],
    }
    return {**config, "quantization_config": told}, packed, dense


def prompts(*lengths: int, seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, 500, (length,), generator=generator).tolist() for length in lengths]


@dataclass
class Case:
    """What is served and asked for."""

    options: dict[str, Any] = field(default_factory=dict)
    batches: list[list[list[int]]] = field(default_factory=lambda: [prompts(*LENGTHS)])
    environment: dict[str, str] = field(default_factory=dict)


def serve(directory: Path, case: Case, tmp_path: Path, timeout: int = 900) -> dict[str, Any]:
    job, result = tmp_path / "job.json", tmp_path / "result.pt"
    job.write_text(
        json.dumps({"options": {"model": str(directory), **case.options}, "batches": case.batches, "tokens": GENERATED})
    )
    environment = {**os.environ, **case.environment}
    done = subprocess.run(
        [sys.executable, str(WORKER), str(job), str(result)],
        env=environment, capture_output=True, text=True, timeout=timeout, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    answered: dict[str, Any] = torch.load(result, weights_only=True)
    return answered


def worst(reference: YuanReference, answered: dict[str, Any]) -> float:
    """The largest difference of a token's logits relative to their size, over everything that was answered."""
    differences = []
    for batch in answered["answers"]:
        for answer in batch:
            found = answer["logits"]
            expected = reference.logits(answer["ids"])[-1 - len(found) : -1]
            assert not found.isnan().any()
            differences.append(float(((found - expected).norm(dim=1) / expected.norm(dim=1)).max()))
    return max(differences)


def check(model_: Model, case: Case, tmp_path: Path) -> dict[str, Any]:
    answered = serve(model_.directory, case, tmp_path)
    assert "error" not in answered, answered["error"]
    assert sum(len(answer["ids"]) for batch in answered["answers"] for answer in batch) == sum(
        len(prompt) + GENERATED for batch in case.batches for prompt in batch
    )
    assert worst(model_.reference, answered) < TOLERANCE
    return answered


def chunks(size: int) -> dict[str, Any]:
    return {"max_num_batched_tokens": size, "max_num_seqs": min(size, 8)}


QUICK = [("dense", 7), ("m32", 256)]
EVERY = [(name, size) for name in ("dense", "m32") for size in (1, 2, 7, 256)]


@pytest.mark.parametrize(("name", "size"), QUICK)
def test_mixed_batch_in_chunks(model: Callable[[str], Model], tmp_path: Path, name: str, size: int) -> None:
    check(model(name), Case(chunks(size)), tmp_path)


@pytest.mark.long
@pytest.mark.parametrize(("name", "size"), [case for case in EVERY if case not in QUICK])
def test_mixed_batch_in_every_chunk_size(model: Callable[[str], Model], tmp_path: Path, name: str, size: int) -> None:
    check(model(name), Case(chunks(size)), tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", ["dense", "m32"])
def test_each_prompt_alone(model: Callable[[str], Model], tmp_path: Path, name: str) -> None:
    check(model(name), Case(chunks(64), [[prompt] for prompt in prompts(*LENGTHS)]), tmp_path)


@pytest.mark.parametrize("name", ["m32", pytest.param("dense", marks=pytest.mark.long)])
def test_after_preemption(model: Callable[[str], Model], tmp_path: Path, name: str) -> None:
    # Room for less than the six requests grow to: vLLM drops some and computes them again, from a state of zeros.
    case = Case(
        {**chunks(64), "num_gpu_blocks_override": 16, "block_size": 32, "max_model_len": 256},
        [prompts(17, 60, 61, 3, 59, 58)],
    )
    answered = check(model(name), case, tmp_path)
    assert answered["metrics"]["vllm:num_preemptions"] > 0


@pytest.mark.parametrize("name", ["m32", pytest.param("dense", marks=pytest.mark.long)])
def test_prefix_caching(model: Callable[[str], Model], tmp_path: Path, name: str) -> None:
    # What is cached of a prompt includes the filter's state at the end of a block.
    first, second, long = prompts(130, 40, 300)
    batches = [[long, first], [long, long[:200] + second, first + second], [long[:129], first]]
    answered = check(
        model(name), Case({**chunks(256), "enable_prefix_caching": True, "block_size": 32}, batches), tmp_path
    )
    assert answered["metrics"]["vllm:prefix_cache_hits"] > 0


@pytest.mark.parametrize("name", ["m32", pytest.param("dense", marks=pytest.mark.long)])
def test_four_bits(tmp_path: Path, name: str) -> None:
    # A CPU has no kernels for experts of four bits: the plugin turns the weights back while it loads them.
    config, packed, dense = quantised(configs.get(name), checkpoints.make_tensors(configs.get(name), seed=1))
    directory = tmp_path / "model"
    checkpoints.write_hf_safetensors(directory, config, packed)
    check(Model(directory, YuanReference(configs.get(name), dense, torch.float32)), Case(chunks(64)), tmp_path)


@pytest.mark.long
def test_four_bits_left_packed(tmp_path: Path) -> None:
    # The dense model on vLLM's own kernels for four bits, as a GPU runs them: packed rows regrouped, the values turned back and merged.
    probe = "import sys, torch, vllm._C; sys.exit(not hasattr(torch.ops._C, 'cpu_gemm_wna16'))"
    if subprocess.run([sys.executable, "-c", probe], capture_output=True, check=False).returncode != 0:
        pytest.skip("vLLM has no kernel for four bits on this CPU")
    config, packed, dense = quantised(configs.get("dense"), checkpoints.make_tensors(configs.get("dense"), seed=1))
    checkpoints.write_hf_safetensors(tmp_path / "model", config, packed)
    case = Case({**chunks(64), "dtype": "bfloat16"}, [prompts(1, 2, 17)], {"PLUMBLINE_YUAN_DEQUANTISE": "0"})
    answered = serve(tmp_path / "model", case, tmp_path)
    assert "error" not in answered, answered["error"]
    # bfloat16 keeps eight bits. Wrong rows anywhere would be differences of the size of the logits themselves.
    assert worst(YuanReference(configs.get("dense"), dense, torch.float32), answered) < 5e-2


def test_a_missing_tensor_stops_the_engine(tmp_path: Path) -> None:
    tensors = checkpoints.make_tensors(configs.get("m32"), seed=1)
    del tensors["model.layers.2.self_attn.lf_gate.conv1.bias"]
    checkpoints.write_hf_safetensors(tmp_path / "model", configs.get("m32"), tensors)
    answered = serve(tmp_path / "model", Case(chunks(64), [prompts(3)]), tmp_path)
    assert re.search(
        r"leaves 1 of the model's parameters unfilled, .*layers\.2\.self_attn\.local_filter\.conv1_bias",
        answered["error"],
    )


@pytest.mark.long
@pytest.mark.parametrize("name", ["dense", "m32"])
def test_compiled(model: Callable[[str], Model], tmp_path: Path, name: str) -> None:
    case = Case({**chunks(64), "enforce_eager": False}, environment={"VLLM_CACHE_ROOT": str(tmp_path / "cache")})
    check(model(name), case, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", ["dense", "m32"])
def test_two_processes(model: Callable[[str], Model], tmp_path: Path, name: str) -> None:
    case = Case({**chunks(64), "tensor_parallel_size": 2}, [prompts(1, 3, 17)], {"VLLM_CPU_OMP_THREADS_BIND": "0|1"})
    check(model(name), case, tmp_path)


def test_the_check_can_fail(model: Callable[[str], Model]) -> None:
    # The reference of other weights is far outside the tolerance.
    model_ = model("m32")
    tensors = checkpoints.make_tensors(configs.get("m32"), seed=1)
    name = "model.layers.1.self_attn.lf_gate.conv2.bias"
    other = YuanReference(configs.get("m32"), {**tensors, name: tensors[name] * 1.05}, torch.float32)
    ids = prompts(17)[0]
    answered = {"answers": [[{"ids": ids, "logits": model_.reference.logits(ids)[:-1]}]]}
    assert worst(model_.reference, answered) == 0
    assert worst(other, answered) > TOLERANCE
