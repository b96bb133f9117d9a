#!/usr/bin/python
"""Documentation of the action plugin await_restart, which does the work."""

from __future__ import annotations

DOCUMENTATION = r"""
module: await_restart
short_description: Wait until a node is back from a restart
description:
  - >-
    Asks the node again and again until it answers with another boot identity than before its restart. A node that still answers
    because it has not gone down yet is not taken for one that is back.
  - Closes kept SSH connections before every try, since they would hang on the old boot.
  - Runs M(plumbline.plumbline.node_info) on the node and returns its facts, so that they need not be gathered again.
version_added: 0.1.0
options:
  boot_identity:
    description: C(boot_identity) of M(plumbline.plumbline.node_info) before the restart.
    type: str
    required: true
  timeout_seconds:
    description: How long to wait. POST of a large server takes 5 to 10 minutes.
    type: int
    default: 1200
  poll_seconds:
    description: Time between two tries.
    type: float
    default: 5.0
  next_command:
    description: What to run next, said where the node does not come back.
    type: str
    default: ''
  host_key_fingerprints:
    description:
      - >-
        Fingerprints (C(SHA256:...), as C(ssh-keygen -lf) prints them) that the node's SSH host key may have after the restart. A key that
        changed to one of them takes the place of the old one in the C(known_hosts) of the controller. Any other key is refused.
    type: list
    elements: str
    default: []
  host_key_patience_seconds:
    description:
      - How long another host key may answer before the wait ends. A small system that unlocks the disks, for instance, has a key of its
        own.
    type: float
    default: 120.0
attributes:
  check_mode:
    description: Is skipped, since nothing was restarted.
    support: full
  diff_mode:
    description: Changes nothing.
    support: none
  action:
    description: An action plugin runs on the controller.
    support: full
author:
  - The Plumbline founders
"""

EXAMPLES = r"""
- name: The node is back from its restart
  plumbline.plumbline.await_restart:
    boot_identity: "{{ survey_node.boot_identity }}"
    timeout_seconds: 1200
  register: back
"""

RETURN = r"""
node:
  description: The node's facts after the restart, as M(plumbline.plumbline.node_info) returns them.
  returned: success
  type: dict
host_key:
  description: Fingerprint of the new SSH host key that was taken over.
  returned: when it changed
  type: str
  sample: SHA256:nThbg6kXUpJWGl7E1IGOCspRomTxdCARLviKw6E5SY8
elapsed_seconds:
  description: How long was waited.
  returned: always
  type: float
  sample: 341.7
"""
