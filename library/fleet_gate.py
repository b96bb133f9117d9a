#!/usr/bin/python
"""Documentation of the action plugin of the same name, which does the work on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: fleet_gate
short_description: Judge a host's figures beside those of the fleet
version_added: 0.2.0
description:
  - Holds the newest figures in the host's evidence of this run against median and spread of the other hosts of its kind, by
    the rules of the kind C(fleet_median) in C(gates_rules).
  - A host that deviates fails alone. Where too few hosts are comparable the check is SKIPPED and says how many there are.
  - A fleet that is slow as a whole is not found this way; limits and floors find it.
  - Appends one record for each check to the evidence, with median, spread, number and names of the hosts compared.
author:
  - The Plumbline founders
options:
  fleet:
    description: The registered result of M(plumbline.plumbline.fleet_info).
    type: dict
    required: true
extends_documentation_fragment:
  - plumbline.plumbline.gates
"""

EXAMPLES = r"""
- name: The fleet's figures are known
  plumbline.plumbline.fleet_info:
  run_once: true
  register: fleet

- name: No host deviates from the fleet
  plumbline.plumbline.fleet_gate:
    fleet: "{{ fleet }}"
"""

RETURN = r"""
status:
  description: The worst status of all checks, one of OK, WARN, CRITICAL, UNKNOWN and SKIPPED.
  returned: always
  type: str
  sample: OK
stage:
  description: The stage that was judged, from the variable C(plumbline_stage).
  returned: always
  type: str
  sample: validate
evidence:
  description: The file on the controller that holds the record of each check.
  returned: always
  type: str
  sample: artifacts/20251130T143500Z/node1.jsonl
checks:
  description: One record for each comparison, as M(plumbline.plumbline.gate) returns them.
  returned: always
  type: list
  elements: dict
  contains:
    name:
      description: Name of the rule.
      type: str
      sample: fleet_host_memory_bandwidth
    scope:
      description: What was measured.
      type: str
      sample: numa0
    status:
      description: The judgement.
      type: str
      sample: CRITICAL
    reason:
      description: Why, in one sentence.
      type: str
      sample: 98.1 GB/s is 60 % of the fleet's median 163.5 GB/s (39 comparable hosts, spread 1.1 %, 36 scaled deviations
        away), at least 90 % is required
    conditions:
      description: Median, scaled median absolute deviation, number and names of the hosts compared, lowest and highest.
      type: dict
      sample: {median: 163500000000.0, comparable_hosts: 39, hosts: "node[1-40]"}
"""
