"""Documentation that the modules share which only look."""

from __future__ import annotations


class ModuleDocFragment:
    """Attributes of what observes."""

    DOCUMENTATION = r"""
attributes:
  check_mode:
    description: Observes only, so check mode is the same as a normal run.
    support: full
  diff_mode:
    description: Changes nothing.
    support: none
"""
