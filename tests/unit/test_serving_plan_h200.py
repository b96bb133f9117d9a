"""The plan against what vLLM 0.26 left for the cache on an H200: docs/measurements/yuan-h200.json, which bench/yuan_gpu.py wrote.

Its models are made by the bench; bytes of the weights are those that it counted. It ran through vLLM's class LLM, whose steps are of 16,384
tokens and 1,024 requests there.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.checkpoint import Tensor
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.nvidia_smi import parse_smi
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.serving_plan import Machine, Model, Wish
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.serving_plan_gpu import plan_gpu
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.serving_plan_machine import read_gpus
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.serving_plan_options import read_options
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.serving_plan_shape import read_shape

from tests.unit.playbook_run import CHECKOUT

RECORDED: dict[str, Any] = json.loads((CHECKOUT / "docs/measurements/yuan-h200.json").read_text())
WITH_CACHE = [name for name, entry in RECORDED.items() if "cache_tokens" in entry]
# Of the tokens. What is not reckoned exactly are half a GB of context and graphs beside 54 to 112 GB of cache.
TOLERANCE = 0.005
BATCHED, REQUESTS = 16384, 1024


def configuration(name: str) -> dict[str, Any]:
    """config.json as bench/yuan_gpu.py makes it, as far as the plan reads it."""
    entry = RECORDED[name]
    shape = entry["shape"]
    common = {
        "hidden_size": shape["hidden"],
        "num_hidden_layers": shape["layers"],
        "num_attention_heads": shape["heads"],
        "intermediate_size": shape["width"],
        "vocab_size": shape["vocab"],
        "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
    }
    if entry["weights"] == "w4a16":
        # What the plugin does with experts of four bits in large steps is of the fourth lease.
        bits = 4 if "fourth" in name else 8
        groups = {"group_0": {"weights": {"num_bits": bits}}}
        common["quantization_config"] = {"quant_method": "compressed-tensors", "config_groups": groups}
    if entry["model"] == "standin":
        return {
            **common,
            "architectures": ["Qwen3MoeForCausalLM"],
            "model_type": "qwen3_moe",
            "num_key_value_heads": shape["heads"],
            "head_dim": shape["head"],
            "num_experts": shape["experts"],
            "num_experts_per_tok": 2,
            "moe_intermediate_size": shape["width"],
        }
    experts = {"moe_num_experts": shape["experts"], "moe_top_k": 2, "ffn_hidden_size": shape["width"]}
    projection = shape["heads"] * shape["head"]
    return {
        **common,
        "architectures": ["YuanForCausalLM"],
        "model_type": "yuan",
        "attention_projection_size": projection,
        "use_moe": True,
        "moe_config": experts,
    }


@pytest.fixture(scope="module")
def machine() -> Machine:
    text = (CHECKOUT / "tests/fixtures/nvidia/h200_580_nvidia-smi-q-x_v13.xml").read_text()
    gpus, problem = read_gpus(parse_smi(text)["gpus"], "")
    assert problem == ""
    return Machine(on_cpu=False, memory_bytes=2**37, gpus=gpus)


def model(name: str) -> Model:
    weights = [Tensor("layers.0.weights", "U8", RECORDED[name]["parameters"]["bytes"])]
    return Model(read_shape(configuration(name)), weights, "bfloat16", 2)


def test_cuda_has_what_the_driver_does_not_keep(machine: Machine) -> None:
    """What torch told on such a machine (docs/measurements/bandwidth-h200-one.json), within a MiB or two."""
    assert abs(machine.gpus[0].memory_bytes - 150109880320) < 2 * 2**20


@pytest.mark.parametrize("name", WITH_CACHE)
def test_the_cache_is_as_large_as_it_was(machine: Machine, name: str) -> None:
    entry = RECORDED[name]
    options = read_options(
        {"max_num_batched_tokens": BATCHED, "max_num_seqs": REQUESTS, "gpu_memory_utilization": 0.92}
    )
    plan = plan_gpu(model(name), machine, Wish(options))
    blocks = next(line.how for line in plan.lines if line.what == "blocks").split()
    planned = int(blocks[0]) * int(blocks[2])
    assert abs(planned / entry["cache_tokens"] - 1) < TOLERANCE, (planned, entry["cache_tokens"])


def test_there_are_enough_records() -> None:
    kinds = {(RECORDED[name]["model"], RECORDED[name]["weights"]) for name in WITH_CACHE}
    assert kinds == {("standin", "bf16"), ("standin", "w4a16"), ("yuan", "bf16"), ("yuan", "w4a16")}


def test_what_the_plan_sets_for_it(machine: Machine) -> None:
    """The API server's steps are smaller, and as many requests run as the cache holds: more is left for it than with vLLM's own figures."""
    plan = plan_gpu(model("yuan bf16, first lease"), machine, Wish(read_options({}), request_tokens=640))
    assert plan.refusal == ""
    assert plan.options == {
        "tensor_parallel_size": 1,
        "gpu_memory_utilization": 0.92,
        "max_num_batched_tokens": 8192,
        "max_num_seqs": plan.options["max_num_seqs"],
        "max_model_len": 4096,
    }
    assert 150 < plan.options["max_num_seqs"] < 240
    assert plan.kv_cache_bytes > 136416 * 393216
    assert not plan.fits_beside
