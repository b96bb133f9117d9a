#!/usr/bin/python
# Copyright (c) The Plumbline founders
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: how fast data moves to, from, within and between the GPUs of a machine."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_bandwidth
short_description: Measure copies between host memory and GPUs, and the links under that load
description:
  - Times copies from pinned host memory to each GPU and back, both ways at once, within a GPU, and between each ordered pair of
    GPUs. With the engine's own torch, the process is bound to the CPUs next to the GPU.
  - Every PCIe link from a GPU up to its root port is read from sysfs B(while) the copies run, since an idle GPU shows a slow link to
    save power; the fastest state that was seen counts.
  - The limit of a copy over PCIe is what the narrowest link on the way B(can) do, not what it trained to, so that a link which trained
    down cannot hide behind a lower limit; the cause names that link.
  - A copy of n bytes counts n; both directions at once count their sum; a copy within one GPU counts n although its memory moves 2n.
  - Small copies within and between GPUs are replayed from a CUDA graph, for Python submits more slowly than they run.
  - On a machine without an NVIDIA GPU the one measurement is skipped and nothing is started. With a GPU whose driver is not loaded
    it is an error.
  - Measures, never judges; the action M(plumbline.plumbline.gate) does. Run it before the engine takes the GPU's memory; where little
    is free, the chunks are smaller and RV(notes) says so.
author:
  - The Plumbline founders
options:
  python:
    description: The Python with torch that measures, usually the engine's.
    type: path
  method:
    description:
      - What measures. V(torch) needs O(python), V(nvbandwidth) the program of that name on PATH.
      - V(auto) takes torch where O(python) is given, else C(nvbandwidth) where it is installed; neither is an error.
    type: str
    choices: [auto, torch, nvbandwidth]
    default: auto
  chunk_bytes:
    description:
      - Sizes of one copy, in bytes. 4 MiB is what streaming of expert weights uses, 1 GiB shows the link's best.
      - C(nvbandwidth) takes whole MiB only.
    type: list
    elements: int
    default: [4194304, 1073741824]
  seconds_per_point:
    description: Seconds of copying for each kind and size, shared by the repeats (with torch).
    type: float
    default: 0.5
  repeats:
    description: Samples for each kind and size; the best is the value, all are returned. Rules with C(repeat) need as many.
    type: int
    default: 5
  timeout_seconds:
    description: The measurement is ended after this many seconds, with all its processes.
    type: int
    default: 300
attributes:
  check_mode:
    description: In check mode nothing is measured, and the one measurement is skipped with that reason.
    support: full
  diff_mode:
    description: Changes nothing.
    support: none
"""

EXAMPLES = r"""
- name: The bandwidth of each GPU is known
  plumbline.plumbline.gpu_bandwidth:
    python: "{{ engine_python }}"
  become: true
  register: __accept_gpu_bandwidth

- name: Each GPU's links carry what they should
  plumbline.plumbline.gate:
    measurements: "{{ __accept_gpu_bandwidth.measurements }}"

- name: The same before there is an engine
  plumbline.plumbline.gpu_bandwidth:
    method: nvbandwidth
"""

RETURN = r"""
measurements:
  description:
    - A list of measurements for the gate.
    - C(gpu_h2d_bandwidth), C(gpu_d2h_bandwidth), C(gpu_bidirectional_bandwidth), C(gpu_d2d_bandwidth) and C(gpu_p2p_bandwidth) are in bytes
      per second, RV(ignore:value) being the best of the samples. RV(ignore:link_class) names the class of the narrowest link by what it can
      do, for instance C(32 GT/s x16).
    - C(pcie_link_speed_under_load) (GT/s) and C(pcie_link_width_under_load) (lanes) are those of the worst link between a GPU and its root
      port; RV(ignore:conditions.hops) has them all.
  returned: always
  type: list
  elements: dict
method:
  description: What measured, V(torch) or V(nvbandwidth).
  returned: when something was started
  type: str
  sample: torch
gpus:
  description: The GPUs that CUDA shows, with PCI address, memory in bytes, NUMA node and the CPUs that the probe was bound to.
  returned: when it measured
  type: list
  elements: dict
notes:
  description: What was measured otherwise than asked for, and why.
  returned: when it measured
  type: list
  elements: str
torch_version:
  description: Version of torch.
  returned: when torch measured
  type: str
  sample: 2.14.0+cu130
cuda_version:
  description: Version of CUDA that torch was built for.
  returned: when torch measured
  type: str
  sample: "13.0"
nvbandwidth_version:
  description: Version of nvbandwidth.
  returned: when nvbandwidth measured
  type: str
  sample: v0.8
driver_version:
  description: Version of the driver.
  returned: when nvbandwidth measured
  type: str
  sample: 580.159.04
elapsed_seconds:
  description: Seconds that the measurement took, without the start of Python and torch.
  returned: when it measured
  type: float
  sample: 6.3
"""

import math

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.gpu_bandwidth import skipped
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.gpu_measure import METHODS, measure


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "python": {"type": "path"},
            "method": {"type": "str", "choices": list(METHODS), "default": "auto"},
            "chunk_bytes": {"type": "list", "elements": "int", "default": [4 << 20, 1 << 30]},
            "seconds_per_point": {"type": "float", "default": 0.5},
            "repeats": {"type": "int", "default": 5},
            "timeout_seconds": {"type": "int", "default": 300},
        },
        supports_check_mode=True,
    )
    options = module.params
    numbers = {key: options[key] for key in ("seconds_per_point", "repeats", "timeout_seconds")}
    if not options["chunk_bytes"] or not all(
        value > 0 and math.isfinite(value) for value in (*options["chunk_bytes"], *numbers.values())
    ):
        found = ", ".join(f"{key} {value}" for key, value in {"chunk_bytes": options["chunk_bytes"], **numbers}.items())
        module.fail_json(
            msg=f"expected chunk_bytes, seconds_per_point, repeats and timeout_seconds above zero, found {found}: correct them"
        )
    if module.check_mode:
        module.exit_json(changed=False, measurements=skipped("check mode: nothing is measured"))
    module.exit_json(changed=False, **measure(options, module.get_bin_path))


if __name__ == "__main__":
    main()
