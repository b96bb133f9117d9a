"""The plan's cache and weights against what vLLM itself logs and holds, for tiny models of many kinds, on the CPU engine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.serving_plan import Machine, Wish, cache_of
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.serving_plan_cpu import plan_cpu
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.serving_plan_machine import read_model
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.serving_plan_memory import Step
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.serving_plan_options import read_options
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.serving_plan_shape import read_shape

from tests.engine_python.plan_models import MODELS, OPTIONS

WORKER = Path(__file__).with_name("plan_worker.py")
CACHE_BYTES = 256 << 20
# Each is one start of the engine; the others run with `-m long`.
QUICK = (
    "dense with grouped heads",
    "windows in five layers of six",
    "experts",
    "latent attention",
    "Yuan's local filter",
    "gated delta rule",
    "keys and values of eight bits",
)
# Checkpoints that are written and loaded, so that their tensors can be weighed: what vLLM holds may be larger by rotary tables and scales.
WEIGHED = ("dense with grouped heads", "experts", "latent attention")
WEIGHT_TOLERANCE = 0.01


def write_checkpoint(config: dict[str, Any], folder: Path) -> None:
    """A checkpoint with random weights, as transformers saves one."""
    import torch  # noqa: PLC0415 - slow
    from transformers import AutoConfig, AutoModelForCausalLM  # noqa: PLC0415

    values = {key: value for key, value in config.items() if key not in ("architectures", "model_type", "torch_dtype")}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(config["model_type"], **values), dtype=torch.bfloat16)
    model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config))


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What vLLM said of all models that this run needs, in one call of the worker."""
    folder = tmp_path_factory.mktemp("plan")
    here = [item for item in request.session.items if item.fspath == request.path]
    names = {
        item.callspec.params["name"] for item in here if hasattr(item, "callspec") and "name" in item.callspec.params
    }
    jobs = {}
    for name in sorted(names):
        directory = ""
        if name in WEIGHED:
            write_checkpoint(MODELS[name], folder / name)
            directory = str(folder / name)
        options = {"kv_cache_memory_bytes": CACHE_BYTES, **OPTIONS.get(name, {})}
        jobs[name] = {"config": MODELS[name], "options": options, "directory": directory}
    (folder / "jobs.json").write_text(json.dumps(jobs))
    with (folder / "log").open("w") as log:
        done = subprocess.run(
            [sys.executable, WORKER, folder / "jobs.json", folder / "results.json"],
            env={**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"},
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
        )
    assert done.returncode == 0, (folder / "log").read_text()[-3000:]
    results: dict[str, Any] = json.loads((folder / "results.json").read_text())
    for name, job in jobs.items():
        results[name]["directory"] = job["directory"]
    return results


def said(found: dict[str, Any], name: str) -> dict[str, Any]:
    result: dict[str, Any] = found[name]
    assert "error" not in result, result["error"]
    return result


def planned(name: str, result: dict[str, Any]) -> Any:
    """The cache as the plan reckons it, with the step that vLLM took."""
    options = {
        key: value for key, value in OPTIONS.get(name, {}).items() if key in ("block_size", "max_num_batched_tokens")
    }
    from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.serving_plan import Model  # noqa: PLC0415

    shape = read_shape(MODELS[name])
    assert shape.unknown == ""
    model = Model(shape, [], "bfloat16", 2, kv_cache_dtype=OPTIONS.get(name, {}).get("kv_cache_dtype", "auto"))
    flags = Path("/proc/cpuinfo").read_text()
    machine = Machine(True, 2**34, amx="amx_tile" in flags, avx512_bf16="avx512_bf16" in flags)
    step = Step(result["batched_tokens"], result["requests"], 2, 1)
    return cache_of(model, machine, Wish(read_options(options)), step)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.long]) for name in MODELS]
)
def test_the_cache_holds_as_many_tokens_as_vllm_says(found: dict[str, Any], name: str) -> None:
    result = said(found, name)
    cache = planned(name, result)
    assert CACHE_BYTES // cache.bytes_per_block == result["blocks"]
    assert cache.block_size == result["block_size"]
    assert cache.tokens(CACHE_BYTES, result["length"]) == result["tokens"]
    assert f"{result['tokens']:,} tokens" in result["log"], "this is what vLLM logs"
    assert (
        abs(CACHE_BYTES // cache.bytes_per_block / cache.blocks_per_request(result["length"]) - result["concurrency"])
        < 1e-9
    )


@pytest.mark.parametrize("name", WEIGHED)
def test_the_weights_are_as_large_as_vllm_holds_them(found: dict[str, Any], name: str) -> None:
    result = said(found, name)
    model = read_model(Path(result["directory"]), MODELS[name], {"dtype": "bfloat16"})
    weights = model.weights(Machine(True, 2**34), 1)
    assert weights.per_rank == pytest.approx(result["parameters"], rel=WEIGHT_TOLERANCE)


@pytest.mark.parametrize("name", ["dense with grouped heads"])
def test_the_longest_request_is_where_vllm_begins_to_refuse(found: dict[str, Any], name: str, tmp_path: Path) -> None:
    """One more token than the plan allows, and the engine says that it does not fit; with as many it starts."""
    cache = planned(name, said(found, name))
    room = 3 * cache.bytes_per_block
    longest = cache.longest(room, 4096)
    jobs = {
        str(length): {
            "config": MODELS[name],
            "options": {"kv_cache_memory_bytes": room, "max_model_len": length},
            "directory": "",
        }
        for length in (longest, longest + 1)
    }
    (tmp_path / "jobs.json").write_text(json.dumps(jobs))
    subprocess.run(
        [sys.executable, WORKER, tmp_path / "jobs.json", tmp_path / "results.json"], capture_output=True, check=True
    )
    results = json.loads((tmp_path / "results.json").read_text())
    assert "error" not in results[str(longest)], results
    assert re.search(r"KV cache is needed", results[str(longest + 1)]["error"].replace("\n", " ")), results


@pytest.mark.parametrize("name", WEIGHED)
def test_a_whole_plan_for_it(found: dict[str, Any], name: str) -> None:
    result = said(found, name)
    model = read_model(Path(result["directory"]), MODELS[name], {"dtype": "bfloat16"})
    plan = plan_cpu(model, Machine(True, 16 << 30), Wish(read_options({}), kv_cache_gib=1))
    assert plan.refusal == ""
    assert plan.options["max_model_len"] == result["length"]
    assert plan.kv_cache_tokens == pytest.approx(result["tokens"] * (1 << 30) / CACHE_BYTES, rel=0.01)
