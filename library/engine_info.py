#!/usr/bin/python
# Copyright (c) The Plumbline founders
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: can this machine run an engine, and which engines has it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: engine_info
short_description: Observe whether a machine can run an inference engine
description:
  - Reads the Python, the C library, the processor flags, the NVIDIA driver and the free disk, and compares them with what an engine needs.
  - Changes nothing.
author:
  - The Plumbline founders
options:
  path:
    description: Directory of the engines; need not exist yet.
    type: path
    required: true
  python_executable:
    description: The Python that the engine's environment is to be made from.
    type: path
    default: /usr/bin/python3
  name:
    description: What sentences call the engine.
    type: str
    default: asked for
  needs:
    description: What the engine needs; what is left out is not asked for.
    type: dict
    default: {}
    suboptions:
      architectures:
        description: Kernel machine names, for example V(x86_64).
        type: list
        elements: str
      python_tags:
        description: Python versions that a lock exists for, for example V(cp311).
        type: list
        elements: str
      glibc:
        description: Oldest version of glibc.
        type: str
      cpu_flags:
        description: Flags of C(/proc/cpuinfo), for example V(avx2).
        type: list
        elements: str
      nvidia_driver:
        description: Oldest version of the loaded NVIDIA driver.
        type: str
      disk_bytes:
        description: Free disk, in bytes.
        type: int
attributes:
  check_mode:
    description: Observes only, so check mode is the same as a normal run.
    support: full
  diff_mode:
    description: Changes nothing.
    support: none
"""

EXAMPLES = r"""
- name: The machine is known to run the CPU engine or not
  plumbline.plumbline.engine_info:
    path: /opt/plumbline/engines
    name: cpu 0.32.0
    needs:
      architectures: [x86_64]
      cpu_flags: [avx2]
      glibc: "2.28"
      disk_bytes: 6000000000
  register: __engine_info
"""

RETURN = r"""
problems:
  description: One sentence for each reason why the engine cannot run here, each with its remedy. Empty when it can.
  returned: always
  type: list
  elements: str
  sample: []
facts:
  description: What was found.
  returned: always
  type: dict
  contains:
    architecture: {description: Kernel machine name., type: str, sample: x86_64}
    python_version: {description: Version of O(python_executable), empty where it does not run., type: str, sample: 3.11.2}
    python_tag: {description: Its tag in wheel names., type: str, sample: cp311}
    glibc_version: {description: Version of glibc, empty for another C library., type: str, sample: "2.36"}
    cpu_flags: {description: Processor flags., type: list, elements: str, sample: [avx2, fma]}
    nvidia_driver_version: {description: Version of the loaded driver, empty without., type: str, sample: ""}
    free_bytes: {description: Free disk at O(path) in bytes., type: int, sample: 81604378624}
engines:
  description: Names of the complete engines.
  returned: always
  type: list
  elements: str
  sample: [cpu-0.32.0-cp311-1f2e3d4c]
active:
  description: Name of the engine that C(current) links to, empty without.
  returned: always
  type: str
  sample: cpu-0.32.0-cp311-1f2e3d4c
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.engine_fitness import (
    machine_facts,
    problems,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.engine_install import (
    active_engine,
    read_marker,
)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "python_executable": {"type": "path", "default": "/usr/bin/python3"},
            "name": {"type": "str", "default": "asked for"},
            "needs": {
                "type": "dict",
                "default": {},
                "options": {
                    "architectures": {"type": "list", "elements": "str"},
                    "python_tags": {"type": "list", "elements": "str"},
                    "glibc": {"type": "str"},
                    "cpu_flags": {"type": "list", "elements": "str"},
                    "nvidia_driver": {"type": "str"},
                    "disk_bytes": {"type": "int"},
                },
            },
        },
        supports_check_mode=True,
    )
    root = Path(module.params["path"])
    needs = {key: value for key, value in module.params["needs"].items() if value is not None}
    facts = machine_facts(module.params["python_executable"], str(root))
    engines = sorted(entry.name for entry in root.iterdir() if read_marker(entry)) if root.is_dir() else []
    module.exit_json(
        changed=False,
        problems=problems(facts, needs, module.params["name"], str(root)),
        facts=facts,
        engines=engines,
        active=active_engine(root),
    )


if __name__ == "__main__":
    main()
