#!/usr/bin/python
# Copyright (c) The Plumbline founders
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: make a tuned configuration of vLLM's fused-MoE kernel on the GPU that will serve."""

from __future__ import annotations

DOCUMENTATION = r"""
module: moe_tuning
short_description: Tune vLLM's fused-MoE kernel for a model's experts on this GPU
description:
  - vLLM runs the experts of a mixture-of-experts model on a Triton kernel whose block sizes, warps and stages it takes from a file by
    GPU and shape, where there is one. This module makes that file on the machine, from vLLM's own kernel and in the engine's Python.
  - Candidates that cannot win are left out by the shape; the rest are halved again and again by their times, in a CUDA graph, over
    changing routings and weights. What is chosen must compute the same as vLLM's own choice and beat it by 2 % on routings that the
    search has not seen; where nothing does, the file holds vLLM's own choice.
  - The engine finds the file through the environment variable C(VLLM_TUNED_CONFIG_FOLDER).
  - Quantised experts are not tuned; vLLM runs 4- and 8-bit weights on Marlin, which has no such file.
author:
  - The Plumbline founders
options:
  engine_python:
    description: Python of the engine that will serve.
    type: path
    required: true
  model_path:
    description: Directory of the model; its C(config.json) tells the shape.
    type: path
    required: true
  tensor_parallel_size:
    description: Over how many GPUs the engine will split every expert.
    type: int
    default: 1
  batch_sizes:
    description: Tokens in a step to tune for. vLLM takes the nearest one, so the list should reach from 1 to the most tokens of a step.
    type: list
    elements: int
    default: [1, 2, 4, 8, 16, 32, 64, 96, 128, 256, 512, 1024, 2048, 4096, 8192, 16384]
  time_budget_seconds:
    description:
      - Seconds that the search may take. What it does not get to keeps vLLM's own choice.
    type: int
    default: 600
  output_directory:
    description: Where the file and the record of its measurement go. One directory for each version of the engine.
    type: path
    required: true
  workers:
    description: Processes that compile; V(0) is one less than the processors of this machine.
    type: int
    default: 0
  force:
    description: Measure again although a record of this shape, GPU, vLLM and these batch sizes is there.
    type: bool
    default: false
attributes:
  check_mode:
    description: Returns what is on record, else a measurement that is skipped with that reason; measures and writes nothing.
    support: full
  diff_mode:
    description: The files are data for a kernel; a difference would tell nobody anything.
    support: none
"""

EXAMPLES = r"""
- name: The experts' kernel is tuned for this GPU
  plumbline.plumbline.moe_tuning:
    engine_python: "{{ engine_python }}"
    model_path: "{{ model_path }}"
    tensor_parallel_size: 1
    output_directory: /opt/plumbline/moe_configs/vllm-0.26.0
  register: __engine_tuned
"""

RETURN = r"""
measurements:
  description: C(moe_tuning_gain) for each batch size (seconds of vLLM's own choice over seconds of the tuned one), for the gate.
  returned: always
  type: list
  elements: dict
  sample:
    - {name: moe_tuning_gain, scope: "E=32,N=8192,K=2048,top2 batch 32", value: 1.08, unit: ratio}
files:
  description: The configuration as vLLM names it, and the record of its measurement beside it.
  returned: always
  type: list
  elements: str
  sample:
    - /opt/plumbline/moe_configs/vllm-0.26.0/E=32,N=8192,device_name=NVIDIA_H200.json
skipped_reason:
  description: Why nothing was tuned; empty where it was.
  returned: always
  type: str
  sample: "The model has no experts: there is no fused-MoE configuration to tune."
recorded:
  description: Whether the measurements are those of an earlier run.
  returned: always
  type: bool
  sample: false
seconds:
  description: How long the tuner ran, in seconds.
  returned: always
  type: float
  sample: 131.5
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.checkpoint_errors import CheckpointError
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.moe_tune_plan import BATCH_SIZES
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.moe_tuning_run import Wish, tune


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "engine_python": {"type": "path", "required": True},
            "model_path": {"type": "path", "required": True},
            "tensor_parallel_size": {"type": "int", "default": 1},
            "batch_sizes": {"type": "list", "elements": "int", "default": list(BATCH_SIZES)},
            "time_budget_seconds": {"type": "int", "default": 600},
            "output_directory": {"type": "path", "required": True},
            "workers": {"type": "int", "default": 0},
            "force": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    given = module.params
    for name, least in (("tensor_parallel_size", 1), ("time_budget_seconds", 1), ("workers", 0)):
        if given[name] < least:
            module.fail_json(msg=f"{name} must be at least {least}, and is {given[name]}.")
    if not given["batch_sizes"] or min(given["batch_sizes"]) < 1:
        module.fail_json(msg="batch_sizes must name at least one batch size, each 1 or more.")
    wish = Wish(
        engine_python=given["engine_python"],
        model=Path(given["model_path"]),
        tensor_parallel_size=given["tensor_parallel_size"],
        batch_sizes=given["batch_sizes"],
        time_budget_seconds=given["time_budget_seconds"],
        output=Path(given["output_directory"]),
        workers=given["workers"],
        force=given["force"],
    )
    try:
        outcome = tune(wish, check_mode=module.check_mode)
    except CheckpointError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(
            msg=f"The tuned configuration could not be made ({error}): give the module a directory that it may write to."
        )
    module.exit_json(
        changed=outcome.changed,
        measurements=outcome.measurements,
        files=outcome.files,
        skipped_reason=outcome.skipped,
        recorded=outcome.recorded,
        seconds=outcome.seconds,
    )


if __name__ == "__main__":
    main()
