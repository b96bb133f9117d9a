#!/usr/bin/python
# Copyright (c) The Plumbline founders
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: how far a soak is, and what it says."""

from __future__ import annotations

DOCUMENTATION = r"""
module: soak_info
short_description: Tell how far a soak on the node is, and what it has measured
description:
  - Asked again and again (C(until), C(retries)), it feeds the progress line of the callback C(stages). A node that does not answer for a
    while is no failure, for the soak goes on there.
author:
  - The Plumbline founders
options:
  directory:
    description: Folder on the node for what is measured.
    type: path
    default: /var/lib/plumbline/soak
  judge:
    description: Return the measurements of what was done so far.
    type: bool
    default: false
  horizon_seconds:
    description: The time over which growth and drift are told.
    type: float
    default: 259200
  unreachable_seconds:
    description: How long the node may not answer, before that is a failure.
    type: float
    default: 900
attributes:
  check_mode:
    description: Only looks.
    support: full
  diff_mode:
    description: Changes nothing.
    support: none
"""

EXAMPLES = r"""
- name: The soak is over
  plumbline.plumbline.soak_info:
  register: __soak_state
  until: __soak_state.state != 'running'
  retries: 20000
  delay: 15
"""

RETURN = r"""
state:
  description: C(absent), C(running), C(finished) or C(interrupted); C(running) as well while the node does not answer.
  returned: always
  type: str
  sample: running
progress:
  description: How far it is, in one line.
  returned: always
  type: str
  sample: 3.2 h of 72.0 h (4%), 5760 requests, 0 failed, engine 2.310 GiB
measurements:
  description: >-
    C(soak_duration), C(soak_engine_restarts), C(soak_node_restarts), C(soak_memory_growth), C(soak_mapped_growth), C(soak_latency_drift),
    latencies, rate and errors of the whole time, temperatures, links and ECC counters.
  returned: when O(judge=true) and there is a soak
  type: list
  elements: dict
  sample: [{name: soak_node_restarts, scope: node, value: 0, unit: count}]
"""

from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.soak_judgement import judge, progress_text
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.soak_run import Soak, SoakError
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.soak_sampler import (
    LOAD,
    SAMPLES,
    read_lines,
)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "directory": {"type": "path", "default": "/var/lib/plumbline/soak"},
            "judge": {"type": "bool", "default": False},
            "horizon_seconds": {"type": "float", "default": 259200},
            "unreachable_seconds": {"type": "float", "default": 900},  # the action's
        },
        supports_check_mode=True,
    )
    folder = Path(module.params["directory"])
    soak = Soak(folder)
    if not module.params["horizon_seconds"] > 0:
        module.fail_json(msg="horizon_seconds must be above 0; correct soak_horizon_seconds")
    try:
        spec = soak.spec()
        result: dict[str, Any] = {"state": soak.state(), "progress": progress_text(soak.progress()) if spec else ""}
        if module.params["judge"] and spec:
            result["measurements"] = judge(
                read_lines(folder / SAMPLES), read_lines(folder / LOAD), spec, module.params["horizon_seconds"]
            )
    except (SoakError, OSError, ValueError, KeyError, TypeError) as error:
        module.fail_json(msg=f"what the soak in {folder} has measured cannot be read: {error}")
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
