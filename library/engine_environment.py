#!/usr/bin/python
# Copyright (c) The Plumbline founders
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: an inference engine in an environment of its own."""

from __future__ import annotations

DOCUMENTATION = r"""
module: engine_environment
short_description: Install an inference engine from a hash lock and switch to it
description:
  - Makes a virtual environment of its own at O(root)/ID from a lock in which every file is pinned by its SHA-256, with C(uv), which is
    installed by hash as well.
  - Runs a smoke test (vLLM and its server import, one of its compiled kernels computes right on the device) and only then lets
    O(root)/current name the new engine, by one rename.
  - An installation that is interrupted leaves no marker, and the next run makes the engine anew. One that fails is removed.
  - An engine whose packages are no longer what its lock says is made anew.
author:
  - The Plumbline founders
options:
  root:
    description: Directory of all engines.
    type: path
    required: true
  kind:
    description: Which build.
    type: str
    required: true
  version:
    description: Version of vLLM that the lock pins.
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
    description: SHA-256 of the lock; it is part of the engine's name.
    type: str
    required: true
  uv_requirement:
    description: Pinned requirement of C(uv) with its hashes.
    type: str
    required: true
  device:
    description: Device that the smoke test must find.
    type: str
    choices: [cpu, cuda]
    required: true
  also:
    description: Distributions beside the lock's, name and version, that exist as metadata only (vLLM's command looks for C(vllm)).
    type: dict
    default: {}
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
    description: Says whether the engine would be made or switched to, and does neither.
    support: full
  diff_mode:
    description: Shows the active engine before and after, and why one is made anew.
    support: full
"""

EXAMPLES = r"""
- name: The engine is installed and active
  plumbline.plumbline.engine_environment:
    root: /opt/plumbline/engines
    kind: cpu
    version: 0.32.0
    python_tag: cp311
    lock_file: /opt/plumbline/locks/cpu-cp311.txt
    lock_sha256: 1f2e3d4c5b6a79881f2e3d4c5b6a79881f2e3d4c5b6a79881f2e3d4c5b6a7988
    uv_requirement: "{{ lookup('ansible.builtin.file', 'locks/uv.txt') }}"
    device: cpu
    also: {vllm: 0.32.0+cpu}
  register: __engine_environment
"""

RETURN = r"""
engine_id:
  description: Name of the engine.
  returned: always
  type: str
  sample: cpu-0.32.0-cp311-1f2e3d4c
path:
  description: Its directory.
  returned: always
  type: str
  sample: /opt/plumbline/engines/cpu-0.32.0-cp311-1f2e3d4c
python:
  description: Its Python.
  returned: always
  type: str
  sample: /opt/plumbline/engines/cpu-0.32.0-cp311-1f2e3d4c/bin/python
why:
  description: Why it was or would be made anew, one phrase each. Empty when it was complete.
  returned: always
  type: list
  elements: str
  sample: [it is not there]
previous:
  description: Name of the engine that was active before, empty without.
  returned: always
  type: str
  sample: ""
install_seconds:
  description: How long the installation took, in seconds, when it was made.
  returned: when the engine is there
  type: float
  sample: 14.2
measurements:
  description: What the smoke test found at the installation, for the gate.
  returned: always
  type: list
  elements: dict
  sample:
    - {name: engine_version, scope: cpu-0.32.0-cp311-1f2e3d4c, value: 0.32.0, expected: 0.32.0}
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.engine_install import (
    EngineError,
    Wish,
    activate,
    active_engine,
    examine,
    install,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.engine_lock import LockError, sha256_of_text
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.engine_report import measurements

SPEC = {
    "root": {"type": "path", "required": True},
    "kind": {"type": "str", "required": True},
    "version": {"type": "str", "required": True},
    "python_executable": {"type": "path", "default": "/usr/bin/python3"},
    "python_tag": {"type": "str", "required": True},
    "lock_file": {"type": "path", "required": True},
    "lock_sha256": {"type": "str", "required": True},
    "uv_requirement": {"type": "str", "required": True},
    "device": {"type": "str", "choices": ["cpu", "cuda"], "required": True},
    "also": {"type": "dict", "default": {}},
    "find_links": {"type": "list", "elements": "str", "default": []},
    "index_url": {"type": "str", "default": ""},
    "torch_index_url": {"type": "str", "default": ""},
    "wheelhouse": {"type": "str", "default": ""},
    "timeout_seconds": {"type": "int", "default": 1800},
}


def main() -> None:
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    given = dict(module.params)
    lock_file = Path(given.pop("lock_file"))
    text = lock_file.read_text(encoding="utf-8") if lock_file.exists() else ""
    if not text and not module.check_mode:
        module.fail_json(
            msg=f"Expected the lock of the engine at {lock_file}, found none: run the whole stage, which copies it there."
        )
    if text and sha256_of_text(text) != given["lock_sha256"]:
        module.fail_json(
            msg=f"Expected the lock {lock_file} to have the SHA-256 {given['lock_sha256']}, found {sha256_of_text(text)}: "
            "run the whole stage, which copies it anew."
        )
    given["root"] = Path(given["root"])
    wish = Wish(lock_text=text, lock_name=str(lock_file), **given)
    try:
        marker, why = examine(wish) if text else (None, ["it is not there"])
        previous = active_engine(wish.root)
        changed = bool(why) or previous != wish.id
        if why and not module.check_mode:
            marker = install(wish)
        if previous != wish.id and not module.check_mode:
            activate(wish.root, wish.id)
    except (EngineError, LockError) as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(
            msg=f"The engine {wish.id} could not be made ({error}): look at the file system of {wish.root}, then run again."
        )
    result = {
        "changed": changed,
        "engine_id": wish.id,
        "path": str(wish.path),
        "python": str(wish.path / "bin/python"),
        "why": why,
        "previous": previous,
        "measurements": measurements(wish.id, wish.version, wish.device, marker),
        "diff": {
            "before": f"active engine: {previous or 'none'}\n" + "".join(f"{wish.id}: {phrase}\n" for phrase in why),
            "after": f"active engine: {wish.id}\n",
        },
    }
    if marker:
        result["install_seconds"] = marker["install_seconds"]
    module.exit_json(**result)


if __name__ == "__main__":
    main()
