#!/usr/bin/python
"""Documentation of the action plugin of the same name, which does the work on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gate
short_description: Judge measurements by rules and stop the host where one does not pass
version_added: 0.1.0
description:
  - Judges measurements by the rules in the variable C(gates_rules), by those that follow from C(gates_slo), and by a
    site's C(gates_rules_overrides).
  - Appends one record for each check to the evidence,
    C(plumbline_artifacts_dir)/C(plumbline_run_id)/C(inventory_hostname).jsonl on the controller.
  - Fails the host when a check is CRITICAL or UNKNOWN, with a line for each that says what was measured and required,
    the probable cause and the next command.
author:
  - The Plumbline founders
options:
  measurements:
    description:
      - The measurements, a list of mappings with C(name), C(scope) and one of C(value), C(skipped) or C(error).
      - C(unit), C(statistic), C(limit), C(limit_source), C(expected), C(samples), C(conditions), C(cause) and
        C(next_command) are optional; see C(docs/gates.md).
      - An empty list is UNKNOWN, because nothing was measured.
    type: raw
    required: true
extends_documentation_fragment:
  - plumbline.plumbline.gates
"""

EXAMPLES = r"""
- name: The memory bandwidth is what its DIMMs allow
  plumbline.plumbline.gate:
    measurements: "{{ __accept_memory.measurements }}"

- name: The kernel is new enough
  plumbline.plumbline.gate:
    measurements:
      - name: kernel_version
        scope: host
        value: "{{ survey_node.kernel_release }}"
        expected: "6.1"
    rules:
      kernel_version:
        kind: version_at_least
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
  sample: accept
evidence:
  description: The file on the controller that holds the record of each check.
  returned: always
  type: str
  sample: artifacts/20251130T143500Z/node1.jsonl
checks:
  description: One record for each measurement, as in the evidence, without its samples.
  returned: always
  type: list
  elements: dict
  contains:
    name:
      description: Name of the measurement.
      type: str
      sample: host_memory_bandwidth
    scope:
      description: What was measured.
      type: str
      sample: numa0
    status:
      description: The judgement.
      type: str
      sample: OK
    reason:
      description: Why, in one sentence.
      type: str
      sample: 163.2 GB/s is 80 % of the limit 204.8 GB/s (8 channels x 3200 MT/s x 8 B (SMBIOS))
    measured:
      description: The figure, for people.
      type: str
      sample: 163.2 GB/s, 80 % of the limit
    required:
      description: What the rule requires, for people.
      type: str
      sample: at least 143.4 GB/s, 70 % of the limit
    cause:
      description: The probable cause when the check does not pass; may be empty.
      type: str
      sample: "socket 1: 6 of 8 channels populated (C, G empty)"
    next_command:
      description: What to run next; may be empty.
      type: str
      sample: ansible-playbook playbooks/survey.yml
"""
