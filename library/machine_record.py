#!/usr/bin/python
"""Documentation of the action plugin of the same name, which does the work on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: machine_record
short_description: Keep in the evidence what a machine is
description:
  - Makes one small document of the surveys' facts - system, operating system, processors, NUMA nodes, memory, GPUs, NICs and drives
    with their links, sensors and error counters - and appends it to the evidence as a record of the kind C(machine).
  - At the end of the run the report shows it beside what was measured, and what is wrong.
  - Judges nothing. What the facts do not tell is V(null), never 0.
  - Runs on the controller and does not connect to the host.
author:
  - The Plumbline founders
options:
  node:
    description: What M(plumbline.plumbline.node_info) returned.
    type: dict
    required: true
  pcie:
    description: What M(plumbline.plumbline.pcie_info) returned.
    type: dict
    default: {}
  dimm:
    description: What M(plumbline.plumbline.dimm_info) returned.
    type: dict
    default: {}
  bmc:
    description: What M(plumbline.plumbline.redfish_info) returned.
    type: dict
    default: {}
  sensors:
    description: What M(plumbline.plumbline.bmc_sensors_info) returned.
    type: dict
    default: {}
attributes:
  check_mode:
    description: Can run in check mode. The evidence is the controller's own record and is written all the same.
    support: full
  diff_mode:
    description: Changes nothing on the host.
    support: none
"""

EXAMPLES = r"""
- name: What the machine is stands in the evidence
  plumbline.plumbline.machine_record:
    node: "{{ survey_node }}"
    pcie: "{{ survey_pcie }}"
    dimm: "{{ survey_dimm }}"
"""

RETURN = r"""
machine:
  description: The document, as docs/evidence.schema.json states it.
  returned: always
  type: dict
  sample: {cpu: {model: Intel(R) Xeon(R) Platinum 8480C, sockets: 2, cores: 112, threads: 224, allowed: 224}}
mark_removed:
  description: Whether a mark of a restart that the host did not come back from (M(plumbline.plumbline.restart_mark)) was taken away.
  returned: always
  type: bool
  sample: false
evidence:
  description: The file on the controller that holds the record.
  returned: always
  type: str
  sample: artifacts/20251130T143500Z/node1.jsonl
msg:
  description: The machine in one line.
  returned: always
  type: str
  sample: Supermicro SYS-821GE-TNHR; 2 x Intel(R) Xeon(R) Platinum 8480C; 2,048 GiB; 8 x NVIDIA H100 80GB HBM3
"""
