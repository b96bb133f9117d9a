#!/usr/bin/python
"""Documentation of the action plugin restart_mark, which does the work."""

from __future__ import annotations

DOCUMENTATION = r"""
module: restart_mark
short_description: Mark a host that did not come back from its restart
description:
  - Writes C(marks/HOST.json) in the folder of the evidence, with the reason and the last lines of the console, and fails with all of it.
  - M(plumbline.plumbline.preflight) of later runs warns of the mark, and M(plumbline.plumbline.machine_record) takes it away when the
    host answers again.
version_added: 0.1.0
options:
  reason:
    description: The sentence that says how the host failed to come back.
    type: str
    required: true
  because:
    description: The stages that asked for the restart.
    type: str
    default: ''
  console:
    description: What M(plumbline.plumbline.redfish_console_info) returned; a C(reason) in it says why there are no lines.
    type: dict
    default: {}
attributes:
  check_mode:
    description: Nothing restarts in check mode, so the task is not reached.
    support: full
  diff_mode:
    description: Changes nothing on the node.
    support: none
  action:
    description: An action plugin runs on the controller.
    support: full
author:
  - The Plumbline founders
"""

EXAMPLES = r"""
- name: The host is marked
  plumbline.plumbline.restart_mark:
    reason: "{{ ansible_failed_result.msg }}"
    because: bios, kernel
"""

RETURN = r"""
mark:
  description: Path of the mark on the controller.
  returned: always
  type: str
  sample: artifacts/marks/node7.json
console:
  description: The last lines of the console.
  returned: always
  type: list
  elements: str
  sample: ["Memory training failed: DIMM A3"]
"""
