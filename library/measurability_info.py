#!/usr/bin/python
# Copyright (c) The Plumbline founders
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: which measurements can be made on a machine as it is."""

from __future__ import annotations

DOCUMENTATION = r"""
module: measurability_info
short_description: Observe which measurements can be made on a machine as it is
description:
  - Looks for what the measuring modules need - M(plumbline.plumbline.memory_bandwidth) a C compiler,
    M(plumbline.plumbline.storage_bandwidth) fio and a file to read, M(plumbline.plumbline.gpu_bandwidth) and
    M(plumbline.plumbline.collective_bandwidth) GPUs and torch, or C(nvbandwidth).
  - What cannot be measured becomes a measurement without a figure, with the reason and the command that would help. It is skipped, unless
    O(required) names it or the caller named something that is not there; then it is an error, which a gate takes for UNKNOWN.
  - Installs nothing, measures nothing and changes nothing.
author:
  - The Plumbline founders
options:
  measure:
    description: What is to be measured.
    type: list
    elements: str
    choices: [memory, storage, gpu, collective]
    default: [memory, storage, gpu, collective]
  required:
    description: What must be measurable.
    type: list
    elements: str
    choices: [memory, storage, gpu, collective]
    default: []
  storage_path:
    description: Directory to read. Empty takes the first of O(storage_candidates) that holds a file of 1 MiB or more.
    type: path
    default: ""
  storage_candidates:
    description: Directories that may be there.
    type: list
    elements: path
    default: []
  gpu_count:
    description: How many NVIDIA GPUs the machine has.
    type: int
    default: 0
  gpu_python:
    description: A Python with torch. Empty takes the first of O(gpu_python_candidates) that has it.
    type: path
    default: ""
  gpu_python_candidates:
    description: Pythons that may be there and have torch.
    type: list
    elements: path
    default: []
  compiler:
    description: The C compiler, by name or path.
    type: str
    default: gcc
extends_documentation_fragment:
  - plumbline.plumbline.observes
"""

EXAMPLES = r"""
- name: What can be measured here is known
  plumbline.plumbline.measurability_info:
    required: [memory]
    storage_candidates: [/opt/plumbline/models]
    gpu_count: "{{ survey_node.gpus | length }}"
    gpu_python_candidates: [/opt/plumbline/engines/current/bin/python]
  register: __validate_measurability
"""

RETURN = r"""
possible:
  description: What of O(measure) can be measured.
  returned: always
  type: list
  elements: str
  sample: [memory, gpu]
storage_path:
  description: Directory whose reading can be measured, empty where there is none.
  returned: always
  type: str
  sample: /opt/plumbline/models
gpu_python:
  description: The Python with torch, empty where there is none.
  returned: always
  type: str
  sample: /opt/plumbline/engines/current/bin/python
gpu_method:
  description: What can measure copies, V(torch) or V(nvbandwidth); empty where nothing can.
  returned: always
  type: str
  sample: torch
measurements:
  description: For the action M(plumbline.plumbline.gate), one for each of O(measure) that cannot be measured.
  returned: always
  type: list
  elements: dict
  sample:
    - name: storage_read_bandwidth
      scope: /opt/plumbline/models
      skipped: there is no fio to read with
      next_command: apt-get install fio
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import measurability


def main() -> None:
    choices = list(measurability.SUBJECTS)
    module = AnsibleModule(
        argument_spec={
            "measure": {"type": "list", "elements": "str", "choices": choices, "default": choices},
            "required": {"type": "list", "elements": "str", "choices": choices, "default": []},
            "storage_path": {"type": "path", "default": ""},
            "storage_candidates": {"type": "list", "elements": "path", "default": []},
            "gpu_count": {"type": "int", "default": 0},
            "gpu_python": {"type": "path", "default": ""},
            "gpu_python_candidates": {"type": "list", "elements": "path", "default": []},
            "compiler": {"type": "str", "default": "gcc"},
        },
        supports_check_mode=True,
    )
    options = module.params
    path, python, gpus = options["storage_path"], options["gpu_python"], options["gpu_count"]
    copies = measurability.gpu(gpus, [python] if python else options["gpu_python_candidates"], bool(python))
    found = {
        "memory": measurability.memory(options["compiler"]),
        "storage": measurability.storage([path] if path else options["storage_candidates"], bool(path)),
        "gpu": copies,
        "collective": measurability.collective(gpus, copies),
    }
    wanted = [found[name] for name in options["measure"]]
    module.exit_json(
        changed=False,
        possible=[subject.name for subject in wanted if not subject.reason],
        storage_path=found["storage"].facts["path"],
        gpu_python=copies.facts["python"],
        gpu_method=copies.facts["method"],
        measurements=[s.as_measurement(s.name in options["required"]) for s in wanted if s.reason],
    )


if __name__ == "__main__":
    main()
