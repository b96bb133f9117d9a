#!/usr/bin/python
"""Documentation of the action plugin of the same name, which does the work on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: preflight
short_description: Refuse an inventory with unknown variables, wrong types or gates that cannot hold
version_added: 0.1.0
description:
  - Checks the variables of a host against C(roles/*/meta/argument_specs.yml) and C(meta/variables.yml) before anything
    is touched. It refuses a variable with a role's prefix that no spec declares, a wrong type, a value outside of its
    choices and a missing one that is required, and says in which file and line each stands.
  - Refuses a gate rule that is malformed, and an SLO that contradicts itself, with the arithmetic.
  - Names everything that is wrong with a host at once. Values of secrets are never printed.
  - In a play with C(plumbline_stage=preflight), the first of the chain, every variable that is required must be there; in
    another stage those of that stage.
  - A value that rests on a variable which a later stage sets is not judged.
  - Runs on the controller and does not connect to the host.
author:
  - The Plumbline founders
options: {}
attributes:
  check_mode:
    description: Can run in check mode and check without changing anything.
    support: full
    details:
      - It changes nothing in any mode.
  diff_mode:
    description: Will return what has changed in diff mode.
    support: N/A
    details:
      - A check changes nothing.
"""

EXAMPLES = r"""
- name: The inventory holds only known variables of the right type
  plumbline.plumbline.preflight:
"""

RETURN = r"""
checked:
  description: How many variables of the host were known.
  returned: always
  type: int
  sample: 143
problems:
  description: A sentence for each thing that is wrong.
  returned: always
  type: list
  elements: str
  sample:
    - "serving_prot (inventories/prod/group_vars/nodes/main.yml:12) is unknown: did you mean serving_port?"
"""
