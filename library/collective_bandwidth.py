#!/usr/bin/python
# Copyright (c) The Plumbline founders
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: how fast the GPUs of a machine reduce among themselves."""

from __future__ import annotations

DOCUMENTATION = r"""
module: collective_bandwidth
short_description: Measure all-reduce over the GPUs of a machine
description:
  - Times all-reduce through the engine's own torch.distributed, over all GPUs with NCCL, or over processes on the CPUs with gloo where
    there is no GPU. The sum is checked too.
  - Algorithm bandwidth is message size over time; bus bandwidth is that times 2 (n - 1) / n, which can be compared with a link's.
  - Measures, never judges. NCCL's own environment variables are passed on as they are.
author:
  - The Plumbline founders
options:
  python:
    description: The Python with torch that measures, usually the engine's.
    type: path
    required: true
  message_bytes:
    description: Sizes of the reduced message, in bytes.
    type: list
    elements: int
    default: [1048576, 67108864, 1073741824]
  ranks:
    description: Number of processes. V(0) means one for each GPU, or two where there is none.
    type: int
    default: 0
  seconds_per_point:
    description: Seconds of reducing for each size, shared by the repeats.
    type: float
    default: 0.5
  repeats:
    description: Samples for each size; the best is the value, all are returned.
    type: int
    default: 5
  timeout_seconds:
    description: The probe is ended after this many seconds.
    type: int
    default: 180
attributes:
  check_mode:
    description: In check mode nothing is measured, and the one measurement is skipped with that reason.
    support: full
  diff_mode:
    description: Changes nothing.
    support: none
"""

EXAMPLES = r"""
- name: The bandwidth between the GPUs is known
  plumbline.plumbline.collective_bandwidth:
    python: "{{ engine_python }}"
  register: __accept_collective_bandwidth
"""

RETURN = r"""
measurements:
  description:
    - A list of measurements for the gate, in bytes per second, RV(ignore:value) being the best of the samples.
    - Names are C(collective_algorithm_bandwidth) and C(collective_bus_bandwidth). On a machine with one GPU the one measurement is skipped.
  returned: always
  type: list
  elements: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.collective_bandwidth import measurements
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.probe import run_probe


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "python": {"type": "path", "required": True},
            "message_bytes": {"type": "list", "elements": "int", "default": [1 << 20, 64 << 20, 1 << 30]},
            "ranks": {"type": "int", "default": 0},
            "seconds_per_point": {"type": "float", "default": 0.5},
            "repeats": {"type": "int", "default": 5},
            "timeout_seconds": {"type": "int", "default": 180},
        },
        supports_check_mode=True,
    )
    options = {key: value for key, value in module.params.items() if key != "python"}
    sizes = options["message_bytes"]
    if (
        not sizes
        or min(sizes) < 4
        or options["ranks"] < 0
        or options["repeats"] < 1
        or options["seconds_per_point"] <= 0
    ):
        module.fail_json(
            msg="expected message_bytes of 4 or more, ranks of 0 or more, and seconds_per_point and repeats above zero, found "
            f"{sizes}, {options['ranks']}, {options['seconds_per_point']} and {options['repeats']}: correct them"
        )
    if module.check_mode:
        skipped = {
            "name": "collective_bus_bandwidth",
            "scope": "all_reduce",
            "skipped": "check mode: nothing is measured",
        }
        module.exit_json(changed=False, measurements=[skipped])
    # The ranks end themselves first, so that none is left behind when the probe is ended.
    answer, stderr = run_probe("all_reduce_probe", module.params["python"], options, options["timeout_seconds"] + 15)
    module.exit_json(changed=False, measurements=measurements(answer, stderr))


if __name__ == "__main__":
    main()
