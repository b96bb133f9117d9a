#!/usr/bin/python
"""Documentation of the action plugin of the same name, which does the work on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: fleet_info
short_description: Summarise the figures of the whole fleet from its evidence
version_added: 0.2.0
description:
  - Reads the evidence of every host in this run once, and summarises the figures that rules of the kind C(fleet_median)
    compare, by measurement, scope, stage, unit, limit, class of the link and hardware of the host.
  - Where a group has fewer hosts than its rule needs, each other host's newest figure from former runs under
    C(plumbline_artifacts_dir) stands in, as far back as the rule's C(earlier_days) say.
  - Give its result to M(plumbline.plumbline.fleet_gate). Use it with C(run_once) after all hosts have measured, so with the
    strategy C(linear) and without C(serial). With C(serial) each batch is compared with itself and those before it.
  - Judges nothing and writes nothing.
author:
  - The Plumbline founders
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
groups:
  description:
    - The groups of comparable figures, by a text that names what their members share.
    - C(count) of hosts, C(earlier) (how many of them are of former runs), C(hosts) (their names, folded), C(lowest),
      C(highest), and in C(middle) and C(deviations) the few numbers from which median and spread without any one host
      follow.
  returned: always
  type: dict
  sample: {}
hosts:
  description: How many hosts of this run have evidence.
  returned: always
  type: int
  sample: 40
earlier_hosts:
  description: How many hosts the figures of former runs stand in for.
  returned: always
  type: int
  sample: 0
files:
  description: How many files were read.
  returned: always
  type: int
  sample: 40
"""
