#!/usr/bin/python
"""Documentation of the action plugin of the same name, which does the work on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: bios_diff
short_description: Compare BIOS attributes of machines with each other or with a golden file
version_added: 0.1.0
description:
  - >-
    Compares documents that M(plumbline.plumbline.redfish_bios_snapshot) wrote, on the controller. It talks to no machine, so that
    it serves for files of last year as well.
  - >-
    Machines with equal differences are one group with one table. What belongs to one machine (serial number, addresses, boot
    order), passwords and what starts an action are passed over and named; read-only attributes, which are no settings, are named
    without a table.
options:
  directory:
    description: Folder with a file C(HOST.json) for each of O(hosts).
    type: path
    required: true
  hosts:
    description: The machines. One without a file is named as not compared.
    type: list
    elements: str
    required: true
  golden_file:
    description:
      - The file to compare each machine with, JSON or YAML.
      - >-
        Unset, two machines are compared with each other (the first is the reference), and more with what most of them have,
        attribute by attribute.
    type: path
  ignore:
    description: More attributes to pass over. C(*) stands for anything.
    type: list
    elements: str
    default: []
  dest:
    description: File on the controller that gets the comparison as JSON, readable by its owner only.
    type: path
  fail:
    description: Whether a difference, or a machine that could not be compared, fails the task.
    type: bool
    default: false
attributes:
  check_mode:
    description: Compares as always; O(dest) is written too, since it is a result and no change.
    support: full
  diff_mode:
    description: The comparison is the result, not a change.
    support: none
author:
  - The Plumbline founders
seealso:
  - module: plumbline.plumbline.redfish_bios_snapshot
"""

EXAMPLES = r"""
- name: The fleet is compared with its golden file
  plumbline.plumbline.bios_diff:
    directory: backups
    hosts: "{{ groups['nodes'] }}"
    golden_file: golden/r750.json
    fail: true
"""

RETURN = r"""
lines:
  description: The comparison for a terminal.
  returned: success
  type: list
  elements: str
reference:
  description: What the machines were compared with.
  returned: success
  type: str
  sample: the majority of 200 machines
differing:
  description: Hosts with at least one difference.
  returned: success
  type: list
  elements: str
  sample: [node7]
groups:
  description: >-
    Machines with equal differences, with C(hosts), C(differences) (C(attribute), C(display_name), C(reference), C(found)) and
    C(read_only_differences).
  returned: success
  type: list
  elements: dict
ignored:
  description: Attributes that differ and were passed over.
  returned: success
  type: list
  elements: str
missing:
  description: Hosts that were not compared, with the reason.
  returned: success
  type: dict
undecided:
  description: Attributes for which no value had a majority.
  returned: success
  type: list
  elements: str
"""
