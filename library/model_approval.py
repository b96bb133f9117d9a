#!/usr/bin/python
# Copyright (c) The Plumbline founders
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: the approval without which no model serves."""

from __future__ import annotations

DOCUMENTATION = r"""
module: model_approval
short_description: Approve a model for an engine, or revoke the approval
description:
  - Records that a model passed its gate. The record is bound to the manifest, the engine and the options that will serve;
    C(plumbline-verify-model) refuses to let a model start without it.
author:
  - The Plumbline founders
options:
  path:
    description: Directory of the model.
    type: path
    required: true
  manifest_sha256:
    description: SHA-256 of the manifest of the model that was measured.
    type: str
    required: true
  approvals:
    description: Directory of the approvals.
    type: path
    default: /opt/plumbline/approvals
  engine_id:
    description: The engine that will serve.
    type: str
    required: true
  options:
    description: Options that will serve, as for M(plumbline.plumbline.model_likelihood).
    type: dict
    default: {}
  gate_status:
    description: What the gate said; V(present) needs V(OK) or V(WARN).
    type: str
    default: ""
  measurements:
    description: What the gate judged.
    type: list
    elements: dict
    default: []
  state:
    description: Whether the approval is there.
    type: str
    choices: [present, absent]
    default: present
attributes:
  check_mode:
    description: Says whether the approval would be written or removed.
    support: full
  diff_mode:
    description: Changes one file of Plumbline's own; shows nothing.
    support: none
"""

EXAMPLES = r"""
- name: The model is approved for this engine
  plumbline.plumbline.model_approval:
    path: "{{ model_path }}"
    manifest_sha256: "{{ model_manifest_sha256 }}"
    engine_id: "{{ engine_id }}"
    options: {dtype: float32}
    gate_status: "{{ __model_gate.status }}"
    measurements: "{{ __model_likelihood.measurements }}"
"""

RETURN = r"""
approval:
  description: File of the approval.
  returned: always
  type: str
  sample: /opt/plumbline/approvals/9f8e7d6c5b4a3928-0a1b2c3d4e5f6071.json
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.manifest import (
    Binding,
    Refused,
    read_manifest,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.model_approval import (
    PASSED,
    approve,
    recorded,
    revoke,
)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "manifest_sha256": {"type": "str", "required": True},
            "approvals": {"type": "path", "default": "/opt/plumbline/approvals"},
            "engine_id": {"type": "str", "required": True},
            "options": {"type": "dict", "default": {}},
            "gate_status": {"type": "str", "default": ""},
            "measurements": {"type": "list", "elements": "dict", "default": []},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
        },
        supports_check_mode=True,
    )
    given = module.params
    path, approvals = Path(given["path"]), Path(given["approvals"])
    options = {name: str(value) for name, value in given["options"].items() if value}
    binding = Binding(given["manifest_sha256"], given["engine_id"], options)
    try:
        before = recorded(approvals, path, binding)
        if given["state"] == "present":
            if given["gate_status"] not in PASSED:
                module.fail_json(
                    msg=f"A model is approved when its gate says OK or WARN, it said '{given['gate_status']}': look at the gate's checks."
                )
            if read_manifest(path)[1] != given["manifest_sha256"]:
                module.fail_json(msg=f"The model {path} is not the one that was measured: run the stage model again.")
            changed = before != given["measurements"]
            if changed and not module.check_mode:
                approve(approvals, path, binding, given["measurements"])
        else:
            changed = (approvals / binding.file_name).exists()
            if changed and not module.check_mode:
                revoke(approvals, binding)
    except Refused as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(
            msg=f"The approval in {approvals} could not be written ({error}): look at that file system, then run again."
        )
    module.exit_json(changed=changed, approval=str(approvals / binding.file_name))


if __name__ == "__main__":
    main()
