"""Documentation that the actions share which judge on the controller."""

from __future__ import annotations


class ModuleDocFragment:
    """Options and attributes of what judges by rules."""

    DOCUMENTATION = r"""
options:
  rules:
    description:
      - Rules for this task alone, by their names; they amend those of C(gates_rules).
    type: dict
    default: {}
attributes:
  check_mode:
    description: Can run in check mode and judge without changing anything.
    support: full
    details:
      - It changes nothing on the host in any mode. In check mode the evidence, which is the controller's own record, is
        written too, with C(check_mode=true) in every record.
  diff_mode:
    description: Will return what has changed in diff mode.
    support: N/A
    details:
      - A judgement changes nothing.
seealso:
  - name: Gates
    description: The kinds of rules, the statuses and how a failure reads.
    link: https://plumbline.invalid/plumbline/docs/gates.md
notes:
  - Runs on the controller and does not connect to the host.
"""
