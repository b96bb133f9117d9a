#!/usr/bin/python
# Copyright (c) The Plumbline founders
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: which options of `vllm serve` fit a model and the machine."""

from __future__ import annotations

DOCUMENTATION = r"""
module: serving_plan
short_description: Work out which options of vllm serve fit a model and the machine
description:
  - From the model's C(config.json), the headers of its safetensors files and the memory of the GPUs (C(nvidia-smi)) or of the NUMA nodes it
    computes weights, activations, CUDA graphs and the key-value cache, and from these the context, how many requests run at once, tensor
    parallelism and the share of memory, with the arithmetic.
  - Options of old releases of vLLM and of other servers are mapped, or refused with the reason.
  - Needs no package on the target and changes nothing.
author:
  - The Plumbline founders
options:
  checkpoint:
    description: Folder of the Hugging Face checkpoint.
    type: path
    required: true
  device:
    description: What the engine computes on.
    type: str
    choices: [cpu, cuda]
    required: true
  model_options:
    description: The options that the model was approved with, C(dtype), C(quantization) and C(kv_cache_dtype).
    type: dict
    default: {}
  options:
    description: Other options of C(vllm serve), by their long names. They win over the plan's, and the arithmetic goes by them.
    type: dict
    default: {}
  environment:
    description: Environment of the engine, of which C(CUDA_VISIBLE_DEVICES) is heeded.
    type: dict
    default: {}
  max_model_len:
    description: The wanted context in tokens. 0 takes the model's own, or what fits of it.
    type: int
    default: 0
  kv_cache_gib:
    description: Memory in GiB for the cache of each process of the CPU engine. 0 computes it.
    type: int
    default: 0
  request_tokens:
    description: Tokens of a usual request, prompt and answer together. 0 takes 2,048, or the context where that is shorter.
    type: int
    default: 0
  memory_limits:
    description: Memory limits of the unit and of its slice as systemd writes them (64G, 80%). Empty texts are none.
    type: list
    elements: str
    default: []
  numa_nodes:
    description: NUMA nodes that the engine may use, V(all), or a list such as V(0-1). V(auto) is V(all).
    type: str
    default: auto
  instances:
    description: Engines that the memory must hold at once.
    type: int
    default: 1
  scope:
    description: What the measurement calls the model. Empty takes the folder's name.
    type: str
    default: ""
  root:
    description: Directory that stands for C(/) for the machine's memory and processors. A captured tree is a test fixture.
    type: path
    default: /
extends_documentation_fragment:
  - plumbline.plumbline.observes
"""

EXAMPLES = r"""
- name: It is known what fits
  plumbline.plumbline.serving_plan:
    checkpoint: /opt/plumbline/models/smollm2
    device: cuda
    model_options: {dtype: bfloat16}
    options: {enable_prefix_caching: false}
  register: __serving_plan
"""

RETURN = r"""
available:
  description: Whether a plan could be made; where it is V(false), C(reason) says why, and C(options) are those that were given.
  returned: always
  type: bool
  sample: true
reason:
  description: Why there is no plan. Empty when there is one.
  returned: always
  type: str
  sample: ""
refusal:
  description: One sentence with the arithmetic and the remedy where the model does not fit. Empty when it does.
  returned: always
  type: str
  sample: ""
options:
  description: All options for C(vllm serve), those of O(options) over the computed ones, by today's names.
  returned: always
  type: dict
  sample: {tensor_parallel_size: 1, gpu_memory_utilization: 0.92, max_model_len: 32768, max_num_seqs: 256, max_num_batched_tokens: 8192}
environment:
  description: Environment variables for the engine.
  returned: always
  type: dict
  sample: {VLLM_CPU_KVCACHE_SPACE: "4"}
arithmetic:
  description: How it was reckoned, a line each, with C(what), C(how) and C(bytes) (of one process; V(null) where it is no size).
  returned: always
  type: list
  elements: dict
  sample: [{what: weights, how: 272 tensors of 256.57 MiB as bfloat16, bytes: 269032704}]
notes:
  description: What whoever runs it should know, sentences.
  returned: always
  type: list
  elements: str
  sample: []
bytes_total:
  description: Bytes that the engine takes of main memory (CPU) or of all its GPUs.
  returned: always
  type: int
  sample: 3490000000
memory_bytes:
  description: Bytes that there are, of main memory or of one GPU.
  returned: always
  type: int
  sample: 25769803776
fits_beside:
  description: Whether a second engine with the same model and options fits beside this one.
  returned: always
  type: bool
  sample: true
beside:
  description: The arithmetic of RV(fits_beside), to be put into a sentence.
  returned: always
  type: str
  sample: two engines take 6.50 GiB of 24.00 GiB
kv_cache_tokens:
  description: Tokens that the cache holds, as vLLM logs them at its start. 0 where it is not known.
  returned: always
  type: int
  sample: 46592
kv_cache_bytes:
  description: Bytes of the cache in one process.
  returned: always
  type: int
  sample: 1073741824
kv_cache_blocks:
  description: Blocks of the cache in one process. 0 where it is not known.
  returned: always
  type: int
  sample: 364
measurements:
  description: C(serving_memory_plan), the memory that is needed beside what there is, with the arithmetic in its C(conditions).
  returned: always
  type: list
  elements: dict
  sample: [{name: serving_memory_plan, scope: smollm2, value: 3490000000, unit: B}]
"""

import json
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.checkpoint import CheckpointError
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.nvidia_smi import SmiError, parse_smi
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.serving_plan import Plan, PlanError, Wish
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.serving_plan_cpu import plan_cpu
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.serving_plan_gpu import plan_gpu
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.serving_plan_machine import (
    read_gpus,
    read_machine,
    read_model,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.serving_plan_memory import gib
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.serving_plan_options import read_options
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.tree import parse_cpu_list


def _smi(module: AnsibleModule) -> tuple[list[dict[str, Any]], str]:
    """The GPUs as nvidia-smi tells them, or the reason why it does not."""
    binary = module.get_bin_path("nvidia-smi")
    if binary is None:
        return [], "nvidia-smi is not installed"
    status, out, err = module.run_command([binary, "-q", "-x"], environ_update={"LC_ALL": "C.UTF-8"})
    if status != 0:
        return [], f"nvidia-smi failed ({(err or out).strip().splitlines()[-1:] or status})"
    try:
        return list(parse_smi(out)["gpus"]), ""
    except SmiError as error:
        return [], str(error)


def _plan(module: AnsibleModule, wish: Wish) -> tuple[Plan | None, str]:
    """The plan, or the reason why there is none. Raises PlanError."""
    params = module.params
    folder = Path(params["checkpoint"])
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        if not isinstance(config, dict):
            raise ValueError("it is no mapping")
    except (OSError, ValueError) as error:
        return None, f"no readable model config in {folder} ({error})"
    try:
        model = read_model(folder, config, params["model_options"])
    except CheckpointError as error:
        return None, str(error)
    limits = params["memory_limits"]
    if params["device"] == "cpu":
        nodes = [] if params["numa_nodes"] in ("auto", "all") else parse_cpu_list(params["numa_nodes"])
        return plan_cpu(model, read_machine(params["root"], True, limits, nodes), wish), ""
    found, reason = _smi(module)
    gpus, problem = (
        ((), reason) if reason else read_gpus(found, str(params["environment"].get("CUDA_VISIBLE_DEVICES") or ""))
    )
    if problem:
        return None, f"the memory of the GPUs is not known: {problem}"
    return plan_gpu(model, read_machine(params["root"], False, limits, (), gpus), wish), ""


def _measurement(plan: Plan, scope: str) -> dict[str, Any]:
    """The plan for the evidence and the report: its total, and a line of the arithmetic each."""
    conditions = {
        line.what: f"{line.how}: {gib(line.bytes)}" if line.bytes is not None else line.how for line in plan.lines
    }
    chosen = (
        "tensor_parallel_size",
        "gpu_memory_utilization",
        "max_model_len",
        "max_num_seqs",
        "max_num_batched_tokens",
    )
    told = ", ".join(f"{name} {plan.options[name]}" for name in chosen if plan.options.get(name) is not None)
    return {
        "name": "serving_memory_plan",
        "scope": scope,
        "value": plan.bytes_total,
        "unit": "B",
        "statistic": "computed",
        "conditions": {**conditions, "options": told, **({"notes": " ".join(plan.notes)} if plan.notes else {})},
        **({"cause": plan.refusal} if plan.refusal else {}),
    }


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "checkpoint": {"type": "path", "required": True},
            "device": {"type": "str", "choices": ["cpu", "cuda"], "required": True},
            "model_options": {"type": "dict", "default": {}},
            "options": {"type": "dict", "default": {}},
            "environment": {"type": "dict", "default": {}},
            "max_model_len": {"type": "int", "default": 0},
            "kv_cache_gib": {"type": "int", "default": 0},
            "request_tokens": {"type": "int", "default": 0},
            "memory_limits": {"type": "list", "elements": "str", "default": []},
            "numa_nodes": {"type": "str", "default": "auto"},
            "instances": {"type": "int", "default": 1},
            "scope": {"type": "str", "default": ""},
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    params = module.params
    for name in ("max_model_len", "kv_cache_gib", "request_tokens"):
        if params[name] < 0:
            module.fail_json(
                msg=f"Expected {name} as a number of 0 or more, found {params[name]}: correct serving_{name}."
            )
    try:
        options = read_options(params["options"])
        wish = Wish(
            options=options,
            max_model_len=params["max_model_len"],
            kv_cache_gib=params["kv_cache_gib"],
            request_tokens=params["request_tokens"],
            instances=max(1, params["instances"]),
        )
        plan, reason = _plan(module, wish)
    except PlanError as error:
        module.fail_json(msg=str(error))
    scope = params["scope"] or Path(params["checkpoint"]).name
    if plan is not None:
        measured = [_measurement(plan, scope)]
        module.exit_json(changed=False, available=True, reason="", measurements=measured, **plan.as_dict())
    given = Plan(options=dict(options.values), notes=list(options.notes))
    if params["kv_cache_gib"] and params["device"] == "cpu":
        given.environment["VLLM_CPU_KVCACHE_SPACE"] = str(params["kv_cache_gib"])
    skipped = {"name": "serving_memory_plan", "scope": scope, "skipped": reason}
    module.exit_json(changed=False, available=False, reason=reason, measurements=[skipped], **given.as_dict())


if __name__ == "__main__":
    main()
