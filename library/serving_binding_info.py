#!/usr/bin/python
# Copyright (c) The Plumbline founders
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: which CPUs and memory nodes a serving unit is to keep to."""

from __future__ import annotations

DOCUMENTATION = r"""
module: serving_binding_info
short_description: Work out which CPUs and memory nodes a serving unit keeps to
description:
  - Takes the NUMA nodes that the GPUs hang on, or those that are asked for, without the CPUs that the inventory keeps for
    housekeeping. Reads C(/sys) alone and changes nothing.
  - Empty lists bind nothing, as on a machine with one NUMA node where no CPU is reserved.
author:
  - The Plumbline founders
options:
  nodes:
    description: V(auto) for the nodes of the GPUs (every node where there are none), V(all), or a list such as V(0-1).
    type: str
    default: auto
  gpus:
    description: PCI addresses of the GPUs. Left empty where the engine computes on the CPUs.
    type: list
    elements: str
    default: []
  visible_devices:
    description: Value of C(CUDA_VISIBLE_DEVICES), where the engine has one.
    type: str
    default: ""
  gpu_count:
    description: How many GPUs the engine uses. V(0) is all of them.
    type: int
    default: 0
  housekeeping_cpus:
    description: CPUs that the inventory reserves, as a list. Empty takes O(housekeeping_cores_per_node).
    type: str
    default: ""
  housekeeping_cores_per_node:
    description: How many of the first cores of each NUMA node are reserved, with all their threads.
    type: int
    default: 0
  root:
    description: Directory that stands for C(/). A captured tree is a test fixture.
    type: path
    default: /
extends_documentation_fragment:
  - plumbline.plumbline.observes
"""

EXAMPLES = r"""
- name: The CPUs and the memory for the endpoint are known
  plumbline.plumbline.serving_binding_info:
    gpus: "{{ survey_node.gpus }}"
    housekeeping_cores_per_node: 1
  register: __serving_binding
"""

RETURN = r"""
cpus:
  description: CPUs, as a list in the kernel's form. Empty for no limit.
  returned: always
  type: str
  sample: 1-31,65-95
memory_nodes:
  description: NUMA nodes whose memory is used. Empty for no limit.
  returned: always
  type: str
  sample: "0"
reason:
  description: Why these.
  returned: always
  type: str
  sample: "NUMA node 0, on which 0000:17:00.0 hang, without the CPUs 0,64 that are kept for housekeeping"
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.serving_binding import (
    BindingError,
    Wish,
    bind,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.tree import Tree


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "nodes": {"type": "str", "default": "auto"},
            "gpus": {"type": "list", "elements": "str", "default": []},
            "visible_devices": {"type": "str", "default": ""},
            "gpu_count": {"type": "int", "default": 0},
            "housekeeping_cpus": {"type": "str", "default": ""},
            "housekeeping_cores_per_node": {"type": "int", "default": 0},
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    given = dict(module.params)
    try:
        binding = bind(Tree(given.pop("root")), Wish(**given))
    except BindingError as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, **binding.as_dict())


if __name__ == "__main__":
    main()
