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
  - Bus bandwidth of messages of 256 MiB and more is held against what the NVLinks of one GPU carry, as C(nvidia-smi) tells them, or against
    the narrowest PCIe link where there is no NVLink. With gloo no limit is known.
  - Where the machine has an NVIDIA GPU and torch sees none, that is an error, and no measurement of the CPUs instead.
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

import math

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.collective_bandwidth import measurements
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.gpu_measure import ask_nvlinks
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.link_load import LinkFacts
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.node import nvidia_gpus
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.nvlink import NvLinks
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.pci_topology import pci_facts
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.probe import run_probe
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.tree import Tree

_SLACK_SECONDS = 15


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
    sizes, above_zero = (
        options["message_bytes"],
        [options[key] for key in ("repeats", "seconds_per_point", "timeout_seconds")],
    )
    if (
        not sizes
        or min(sizes) < 4
        or options["ranks"] < 0
        or not all(value > 0 and math.isfinite(value) for value in above_zero)
    ):
        told = ", ".join(f"{key} {value}" for key, value in options.items())
        module.fail_json(
            msg="expected message_bytes of 4 or more, ranks of 0 or more, and seconds_per_point, repeats and timeout_seconds above zero, "
            f"found {told}: correct them"
        )
    if module.check_mode:
        skipped = {
            "name": "collective_bus_bandwidth",
            "scope": "all_reduce",
            "skipped": "check mode: nothing is measured",
        }
        module.exit_json(changed=False, measurements=[skipped])
    tree = Tree()
    options["gpus_on_pci"] = len(nvidia_gpus(tree))
    # The ranks end themselves first, so that the answer can say which of them did not get through.
    patience = options["timeout_seconds"] + _SLACK_SECONDS
    answer, stderr = run_probe("all_reduce_probe", module.params["python"], options, patience)
    several = options["gpus_on_pci"] > 1
    nvlinks = ask_nvlinks(module.get_bin_path) if several else NvLinks()
    found = measurements(answer, stderr, LinkFacts(pci_facts(tree.root)), nvlinks)
    module.exit_json(changed=False, measurements=found)


if __name__ == "__main__":
    main()
