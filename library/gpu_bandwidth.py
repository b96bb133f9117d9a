#!/usr/bin/python
# Copyright (c) The Plumbline founders
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: how fast data moves to, from, within and between the GPUs of a machine."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_bandwidth
short_description: Measure copies between host memory and GPUs
description:
  - Times copies through the engine's own torch, from pinned host memory to each GPU and back, both ways at once, within a GPU, and
    between each ordered pair of GPUs. The process is bound to the CPUs next to the GPU.
  - The PCIe link is read from sysfs B(while) the copies run, since an idle GPU shows a slow link to save power; the limit is computed
    from it.
  - A copy of n bytes counts n; both directions at once count their sum; a copy within one GPU counts n although its memory moves 2n.
  - Measures, never judges; the action M(plumbline.plumbline.gate) does. Needs free memory of twice O(chunk_bytes) on the GPU, so run it
    before the engine takes the GPU's memory.
author:
  - The Plumbline founders
options:
  python:
    description: The Python with torch that measures, usually the engine's.
    type: path
    required: true
  chunk_bytes:
    description: Sizes of one copy, in bytes. 4 MiB is what streaming of expert weights uses, 1 GiB shows the link's best.
    type: list
    elements: int
    default: [4194304, 1073741824]
  seconds_per_point:
    description: Seconds of copying for each kind and size, shared by the repeats.
    type: float
    default: 0.5
  repeats:
    description: Samples for each kind and size; the best is the value, all are returned.
    type: int
    default: 5
  timeout_seconds:
    description: The probe is ended after this many seconds.
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
  register: __accept_gpu_bandwidth

- name: Each GPU's link carries what it should
  plumbline.plumbline.gate:
    measurements: "{{ __accept_gpu_bandwidth.measurements }}"
"""

RETURN = r"""
measurements:
  description:
    - A list of measurements for the gate, in bytes per second, RV(ignore:value) being the best of the samples.
    - Names are C(gpu_h2d_bandwidth), C(gpu_d2h_bandwidth), C(gpu_bidirectional_bandwidth), C(gpu_d2d_bandwidth) and C(gpu_p2p_bandwidth).
  returned: always
  type: list
  elements: dict
gpus:
  description: The GPUs that CUDA shows, with PCI address, memory in bytes, NUMA node and the CPUs that the probe was bound to.
  returned: when the probe measured
  type: list
  elements: dict
notes:
  description: Copies that could not be made, and why.
  returned: when the probe measured
  type: list
  elements: str
torch_version:
  description: Version of torch.
  returned: when the probe measured
  type: str
  sample: 2.14.0+cu130
cuda_version:
  description: Version of CUDA that torch was built for.
  returned: when the probe measured
  type: str
  sample: "13.0"
elapsed_seconds:
  description: Seconds that the measurement took, without the start of Python and torch.
  returned: when the probe measured
  type: float
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.gpu_bandwidth import measurements
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.probe import run_probe


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "python": {"type": "path", "required": True},
            "chunk_bytes": {"type": "list", "elements": "int", "default": [4 << 20, 1 << 30]},
            "seconds_per_point": {"type": "float", "default": 0.5},
            "repeats": {"type": "int", "default": 5},
            "timeout_seconds": {"type": "int", "default": 300},
        },
        supports_check_mode=True,
    )
    options = module.params
    if (
        not options["chunk_bytes"]
        or min(options["chunk_bytes"]) <= 0
        or options["repeats"] < 1
        or options["seconds_per_point"] <= 0
    ):
        module.fail_json(
            msg="expected chunk_bytes, seconds_per_point and repeats above zero, found "
            f"{options['chunk_bytes']}, {options['seconds_per_point']} and {options['repeats']}: correct them"
        )
    if module.check_mode:
        skipped = {"name": "gpu_h2d_bandwidth", "scope": "gpus", "skipped": "check mode: nothing is measured"}
        module.exit_json(changed=False, measurements=[skipped])
    answer, stderr = run_probe(
        "gpu_copy_probe",
        options["python"],
        {key: options[key] for key in ("chunk_bytes", "seconds_per_point", "repeats")},
        options["timeout_seconds"],
    )
    found, facts = measurements(answer, stderr)
    module.exit_json(changed=False, measurements=found, **facts)


if __name__ == "__main__":
    main()
