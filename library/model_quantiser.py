#!/usr/bin/python
# Copyright (c) The Plumbline founders
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: the environment in which models are quantised, from a hash lock."""

from __future__ import annotations

DOCUMENTATION = r"""
module: model_quantiser
short_description: Install the quantiser in an environment of its own
description:
  - Installs llmcompressor from a hash lock, as M(plumbline.plumbline.engine_environment) installs an engine, and imports what
    quantising needs.
  - It is apart from the engine, whose packages are older. Nothing is switched to it, and it serves nothing.
author:
  - The Plumbline founders
options:
  root:
    description: Directory of all quantisers.
    type: path
    required: true
  version:
    description: Version of llmcompressor that the lock pins.
    type: str
    required: true
  python_executable:
    description: The Python to make the environment from.
    type: path
    default: /usr/bin/python3
  python_tag:
    description: Its tag in wheel names, for example V(cp311).
    type: str
    required: true
  lock_file:
    description: The lock, on the target. In check mode it may be absent.
    type: path
    required: true
  lock_sha256:
    description: SHA-256 of the lock; it is part of the environment's name.
    type: str
    required: true
  uv_requirement:
    description: Pinned requirement of C(uv) with its hashes.
    type: str
    required: true
  find_links:
    description: Directories or URLs with wheels, on the target, before those of its pip configuration.
    type: list
    elements: str
    default: []
  index_url:
    description: Package index in place of the one of the target's pip configuration.
    type: str
    default: ""
  torch_index_url:
    description: One more index, asked only when torch is found nowhere else.
    type: str
    default: ""
  wheelhouse:
    description: Directory with all wheels; nothing else is asked then.
    type: str
    default: ""
  timeout_seconds:
    description: Limit for the installation, in seconds.
    type: int
    default: 1800
attributes:
  check_mode:
    description: Says whether the environment would be made, and does not make it.
    support: full
  diff_mode:
    description: Shows why it is made anew.
    support: full
"""

EXAMPLES = r"""
- name: The quantiser is installed
  plumbline.plumbline.model_quantiser:
    root: /opt/plumbline/quantisers
    version: 0.14.0.1
    python_tag: cp311
    lock_file: /opt/plumbline/quantisers/locks/quantiser-cp311.txt
    lock_sha256: "{{ lookup('ansible.builtin.file', 'locks/quantiser-cp311.txt', rstrip=false) | hash('sha256') }}"
    uv_requirement: "{{ lookup('ansible.builtin.file', 'uv.txt') }}"
  register: __model_quantiser
"""

RETURN = r"""
python:
  description: Its Python.
  returned: always
  type: str
  sample: /opt/plumbline/quantisers/quantiser-0.14.0.1-cp311-1f2e3d4c/bin/python
why:
  description: Why it was or would be made anew, one phrase each. Empty when it was complete.
  returned: always
  type: list
  elements: str
  sample: [it is not there]
install_seconds:
  description: How long the installation took, in seconds, when it was made.
  returned: when it was made
  type: float
  sample: 12.4
"""

from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.engine_lock import LockError, sha256_of_text
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.engine_wish import EngineError, Wish
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.quantise_environment import lacking, make


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "required": True},
            "version": {"type": "str", "required": True},
            "python_executable": {"type": "path", "default": "/usr/bin/python3"},
            "python_tag": {"type": "str", "required": True},
            "lock_file": {"type": "path", "required": True},
            "lock_sha256": {"type": "str", "required": True},
            "uv_requirement": {"type": "str", "required": True},
            "find_links": {"type": "list", "elements": "str", "default": []},
            "index_url": {"type": "str", "default": ""},
            "torch_index_url": {"type": "str", "default": ""},
            "wheelhouse": {"type": "str", "default": ""},
            "timeout_seconds": {"type": "int", "default": 1800},
        },
        supports_check_mode=True,
    )
    given = dict(module.params)
    lock_file = Path(given.pop("lock_file"))
    text = lock_file.read_text(encoding="utf-8") if lock_file.exists() else ""
    if (text or not module.check_mode) and sha256_of_text(text) != given["lock_sha256"]:
        module.fail_json(
            msg=f"Expected the lock of the quantiser at {lock_file} with the SHA-256 {given['lock_sha256']}, found "
            f"{sha256_of_text(text) if text else 'none'}: run the whole stage, which copies it there."
        )
    given["root"] = Path(given["root"])
    wish = Wish(kind="quantiser", lock_text=text, lock_name=str(lock_file), device="cpu", **given)
    result: dict[str, Any] = {}
    try:
        why = lacking(wish) if text else ["it is not there"]
        if why and not module.check_mode:
            result["install_seconds"] = make(wish)
    except (EngineError, LockError) as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(
            msg=f"The quantiser {wish.id} could not be made ({error}): look at the file system of {wish.root}, then run again."
        )
    module.exit_json(
        changed=bool(why),
        python=str(wish.python),
        why=why,
        diff={"before": "".join(f"{wish.id}: {phrase}\n" for phrase in why), "after": f"{wish.id}\n"},
        **result,
    )


if __name__ == "__main__":
    main()
