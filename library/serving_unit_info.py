#!/usr/bin/python
# Copyright (c) The Plumbline founders
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: how a serving unit is confined, and whether its processes are."""

from __future__ import annotations

DOCUMENTATION = r"""
module: serving_unit_info
short_description: Measure how exposed a serving unit is, where its threads may run, and whether any process is left outside of it
description:
  - Asks C(systemd-analyze security) for the exposure, and reads C(/proc) for what every thread of the unit may use.
  - Changes nothing.
author:
  - The Plumbline founders
options:
  unit:
    description: The unit.
    type: str
    required: true
  other_units:
    description: Other units that run as the same user.
    type: list
    elements: str
    default: []
  user:
    description: The unit's user; who else runs as this user is a stray.
    type: str
    required: true
  cpus:
    description: CPUs that the unit is bound to, as a list. Empty for no limit, and no measurement.
    type: str
    default: ""
  memory_nodes:
    description: NUMA nodes whose memory the unit is bound to. Empty for no limit, and no measurement.
    type: str
    default: ""
attributes:
  check_mode:
    description: Observes only. Where the unit is not there yet, its measurements say that they were skipped.
    support: full
  diff_mode:
    description: Changes nothing.
    support: none
"""

EXAMPLES = r"""
- name: The endpoint's confinement was measured
  plumbline.plumbline.serving_unit_info:
    unit: plumbline-serving.service
    user: plumbline-serving
    cpus: 1-31
  register: __serving_unit_info
"""

RETURN = r"""
measurements:
  description: >-
    C(serving_unit_exposure) (0 to 10, as C(systemd-analyze security) has it; its conditions list what was left open),
    C(serving_stray_processes), and with O(cpus) and O(memory_nodes) C(serving_cpu_binding) and C(serving_memory_binding).
  returned: always
  type: list
  elements: dict
  sample:
    - {name: serving_unit_exposure, scope: plumbline-serving.service, value: 1.5, conditions: {open: [PrivateNetwork=]}}
"""

import pwd
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.node import cgroup_version, container_type
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.serving_binding import bound, processes
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.systemd_service import (
    parse_exposure,
    parse_show,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.tree import Tree


def _exposure(module: AnsibleModule, unit: str) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": "serving_unit_exposure", "scope": unit, "value": None}
    program = module.get_bin_path("systemd-analyze")
    if not program:
        return {**entry, "error": "systemd-analyze is not installed, which says how exposed a unit is"}
    code, out, err = module.run_command([program, "security", "--no-pager", unit])
    exposure, left_open = parse_exposure(out)
    if exposure is None:
        return {**entry, "error": f"systemd-analyze security ended with {code}: {(err or out).strip()[-300:]}"}
    return {
        **entry,
        "value": exposure,
        "statistic": "systemd-analyze security",
        "conditions": {"open": left_open},
        "next_command": f"systemd-analyze security {unit}",
    }


def _unsettable(tree: Tree) -> str:
    """Return why systemd cannot set AllowedCPUs and AllowedMemoryNodes here; empty where it can."""
    version = cgroup_version(tree)
    if version != 2:
        return (
            f"the control groups are of layout {version}, where systemd sets neither AllowedCPUs nor AllowedMemoryNodes"
        )
    if "cpuset" not in (tree.text("/sys/fs/cgroup/cgroup.controllers") or "").split():
        return "the control group controller cpuset is not at hand"
    return ""


def _uid(user: str) -> int | None:
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        return None


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "unit": {"type": "str", "required": True},
            "other_units": {"type": "list", "elements": "str", "default": []},
            "user": {"type": "str", "required": True},
            "cpus": {"type": "str", "default": ""},
            "memory_nodes": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    parameters = module.params
    unit = parameters["unit"]
    wanted = {
        name: parameters[option]
        for name, option in (("serving_cpu_binding", "cpus"), ("serving_memory_binding", "memory_nodes"))
        if parameters[option]
    }
    systemctl = module.get_bin_path("systemctl", required=True)
    state = parse_show(module.run_command([systemctl, "show", unit, "--property=LoadState,ActiveState"])[1])
    if state.active != "active":
        reason = f"{'check mode: ' if module.check_mode else ''}{unit} does not run"
        kind = "skipped" if module.check_mode else "error"
        missing = [
            {"name": name, "scope": unit, kind: reason} for name in ("serving_unit_exposure", "serving_stray_processes")
        ]
        module.exit_json(changed=False, measurements=missing)
    tree = Tree()
    found = processes(Path("/"), [unit, *parameters["other_units"]], _uid(parameters["user"]))
    measurements = [
        _exposure(module, unit),
        {
            "name": "serving_stray_processes",
            "scope": parameters["user"],
            "value": len(found.strays),
            "cause": f"left over: {'; '.join(found.strays[:5])}" if found.strays else "",
            "next_command": f"ps -u {parameters['user']} -o pid,lstart,cgroup,args",
        },
    ]
    obstacle = (_unsettable(tree), container_type(tree) or "")
    for name, allowed in (("serving_cpu_binding", found.cpus), ("serving_memory_binding", found.memory_nodes)):
        if name in wanted:
            measurements.append(bound(name, unit, allowed, wanted[name], obstacle))
    module.exit_json(changed=False, measurements=measurements)


if __name__ == "__main__":
    main()
