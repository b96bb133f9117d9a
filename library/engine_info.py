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
    description: The Python that the engine's environment is to be made from. Empty where the engine brings its own.
    type: str
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
      compute_capability:
        description: Oldest compute capability of a GPU.
        type: str
      disk_bytes:
        description: Free disk, in bytes.
        type: int
  kind:
    description:
      - One of the kinds of O(builds), V(cuda) for the first of those for GPUs that the driver and the GPUs run, or V(auto) for that where
        there is a GPU that the machine may use, else V(cpu).
    type: str
    default: ""
  builds:
    description: What each build needs, the preferred ones first. With it O(name) and O(needs) are not used.
    type: list
    elements: dict
    default: []
    suboptions:
      kind:
        description: Its name.
        type: str
        required: true
      version:
        description: Its version of vLLM, for sentences.
        type: str
      needs:
        description: As O(needs).
        type: dict
        default: {}
  gpu_count:
    description: NVIDIA GPUs on the bus.
    type: int
    default: 0
  container:
    description: The machine is a container, which sees its host's bus.
    type: bool
    default: false
extends_documentation_fragment:
  - plumbline.plumbline.observes
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
kind:
  description: The build that was chosen of O(builds), empty without.
  returned: always
  type: str
  sample: cuda13
kind_reason:
  description: Why that one, in words.
  returned: always
  type: str
  sample: the newest that its GPUs and their driver run
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
    nvidia_devices: {description: Device files of GPUs., type: list, elements: str, sample: [nvidia0]}
    compute_capabilities: {description: Compute capabilities of the GPUs., type: list, elements: str, sample: ["9.0"]}
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
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.engine_choice import choose
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.engine_fitness import (
    machine_facts,
    problems,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.engine_install import (
    active_engine,
    read_marker,
)

_NEEDS = {
    "architectures": {"type": "list", "elements": "str"},
    "python_tags": {"type": "list", "elements": "str"},
    "glibc": {"type": "str"},
    "cpu_flags": {"type": "list", "elements": "str"},
    "nvidia_driver": {"type": "str"},
    "compute_capability": {"type": "str"},
    "disk_bytes": {"type": "int"},
}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "python_executable": {"type": "str", "default": "/usr/bin/python3"},
            "name": {"type": "str", "default": "asked for"},
            "needs": {"type": "dict", "default": {}, "options": _NEEDS},
            "kind": {"type": "str", "default": ""},
            "builds": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "kind": {"type": "str", "required": True},
                    "version": {"type": "str"},
                    "needs": {"type": "dict", "default": {}, "options": _NEEDS},
                },
            },
            "gpu_count": {"type": "int", "default": 0},
            "container": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    given = module.params
    root = Path(given["path"])
    facts = machine_facts(given["python_executable"], str(root))
    kind, reason, found = "", "", []
    if given["builds"]:
        builds = {
            build["kind"]: {**_asked(build["needs"]), "version": build["version"] or ""} for build in given["builds"]
        }
        if given["kind"] not in (*builds, "auto", "cuda"):
            module.fail_json(
                msg=f"Expected kind to be auto, cuda or one of {', '.join(builds)}, found '{given['kind']}': correct engine_kind."
            )
        choice = choose(given["kind"], builds, facts, gpu_count=given["gpu_count"], container=given["container"])
        kind, reason, found = choice.kind, choice.reason, list(choice.problems)
        if choice.fallback:
            module.warn(reason)
        needs = builds[kind]
        # What the choice has said of the GPUs is not said twice.
        needs = {
            key: value for key, value in needs.items() if not (found and key in ("nvidia_driver", "compute_capability"))
        }
        found = problems(facts, needs, f"{kind} {needs['version']}".strip(), str(root)) + found
    else:
        found = problems(facts, _asked(given["needs"]), given["name"], str(root))
    engines = sorted(entry.name for entry in root.iterdir() if read_marker(entry)) if root.is_dir() else []
    module.exit_json(
        changed=False,
        kind=kind,
        kind_reason=reason,
        problems=found,
        facts=facts,
        engines=engines,
        active=active_engine(root),
    )


def _asked(needs: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in needs.items() if value is not None}


if __name__ == "__main__":
    main()
