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
    installed by hash as well, with C(pip), or with one of them in an environment that conda made.
  - Unpacks O(plugins), pure Python, beside vLLM.
  - Runs a smoke test (vLLM and its server import, one of its compiled kernels computes right on the device, a tiny model answers with the
    options of O(smoke)) and only then lets O(root)/current name the new engine, by one rename.
  - An engine that is there but was tested with other options is tested again; where that fails, it stays as it was.
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
  manager:
    description:
      - What makes the environment. V(auto) is C(uv), and C(pip) where no place has C(uv). V(conda) makes the environment with its Python
        and has C(uv) or C(pip) install the lock into it.
    type: str
    choices: [auto, uv, pip, conda]
    default: auto
  conda:
    description: How conda makes the Python.
    type: dict
    default: {}
    suboptions:
      executable:
        description: Path of C(micromamba), C(mamba) or C(conda). Empty looks for one.
        type: str
        default: ""
      python_version:
        description: Version of Python, for example V(3.11).
        type: str
        default: ""
      channels:
        description: Channels to take it from, directories among them; no others are asked.
        type: list
        elements: str
        default: []
      lock_text:
        description: Text of an explicit lock (C(@EXPLICIT)), in place of version and channels.
        type: str
        default: ""
  plugins:
    description:
      - Plugins on the controller. The name of one that comes with Plumbline, or a mapping with C(path) of a directory with
        C(pyproject.toml), or with C(path) and C(sha256) of a wheel of pure Python.
    type: list
    elements: raw
    default: []
  plugin_wheels:
    description: What O(plugins) became on the controller; set by the action plugin.
    type: list
    elements: dict
    default: []
    suboptions:
      filename:
        description: Name of the wheel.
        type: str
        required: true
      content:
        description: The wheel in Base64.
        type: str
        required: true
  smoke:
    description: How the tiny model is served in the smoke test. Left out, none is.
    type: dict
    suboptions:
      options:
        description: Options of C(vllm serve) by their long names with underscores.
        type: dict
        default: {}
      environment:
        description: Environment variables.
        type: dict
        default: {}
      scheme:
        description: Layout of the quantised checkpoint that will serve, V(w4a16), V(w8a16), V(awq) or V(gptq). Empty follows the options.
        type: str
        default: ""
      group_size:
        description: Inputs of a quantised weight that share a scale.
        type: int
        default: 128
      timeout_seconds:
        description: Limit for each tiny model, in seconds.
        type: int
        default: 300
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
    plugins: [yuan]
    smoke: {options: {dtype: bfloat16}}
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
smoke_why:
  description: Why the smoke test of an engine that was there was or would be repeated, empty where it need not be.
  returned: always
  type: str
  sample: ""
manager:
  description: What made the environment, V(uv), V(pip), V(conda with uv) or V(conda with pip); empty where it is not there.
  returned: always
  type: str
  sample: uv
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

import base64
import binascii
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.engine_install import (
    State,
    activate,
    active_engine,
    examine,
    install,
    smoke_again,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.engine_lock import LockError, sha256_of_text
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.engine_plugins import (
    PluginError,
    PluginWheel,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.engine_report import measurements
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.engine_wish import (
    CondaWish,
    EngineError,
    Wish,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.serving_plan_options import (
    PlanError,
    read_options,
)

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
    "manager": {"type": "str", "choices": ["auto", "uv", "pip", "conda"], "default": "auto"},
    "conda": {
        "type": "dict",
        "default": {},
        "options": {
            "executable": {"type": "str", "default": ""},
            "python_version": {"type": "str", "default": ""},
            "channels": {"type": "list", "elements": "str", "default": []},
            "lock_text": {"type": "str", "default": ""},
        },
    },
    "plugins": {"type": "list", "elements": "raw", "default": []},
    "plugin_wheels": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {"filename": {"type": "str", "required": True}, "content": {"type": "str", "required": True}},
    },
    "smoke": {
        "type": "dict",
        "options": {
            "options": {"type": "dict", "default": {}},
            "environment": {"type": "dict", "default": {}},
            "scheme": {"type": "str", "default": ""},
            "group_size": {"type": "int", "default": 128},
            "timeout_seconds": {"type": "int", "default": 300},
        },
    },
}


def main() -> None:
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    wish = _wish(module)
    try:
        state = examine(wish) if wish.lock_text else State(None, ["it is not there"])
        previous = active_engine(wish.root)
        marker = state.marker
        if not module.check_mode:
            if state.why:
                marker = install(wish)
            elif state.smoke_why and marker is not None:
                marker = smoke_again(wish, marker)
            if previous != wish.id:
                activate(wish.root, wish.id)
    except (EngineError, LockError) as error:
        module.fail_json(msg=str(error))
    except PluginError as error:
        module.fail_json(msg=f"{error}.")
    except OSError as error:
        module.fail_json(
            msg=f"The engine {wish.id} could not be made ({error}): look at the file system of {wish.root}, then run again."
        )
    before = [f"{wish.id}: {phrase}" for phrase in [*state.why, *([state.smoke_why] if state.smoke_why else [])]]
    result: dict[str, Any] = {
        "changed": bool(before) or previous != wish.id,
        "engine_id": wish.id,
        "path": str(wish.path),
        "python": str(wish.python),
        "why": state.why,
        "smoke_why": state.smoke_why,
        "previous": previous,
        "manager": (marker or {}).get("manager", ""),
        "measurements": measurements(wish.id, wish.version, wish.device, marker),
        "diff": {
            "before": f"active engine: {previous or 'none'}\n" + "".join(f"{line}\n" for line in before),
            "after": f"active engine: {wish.id}\n",
        },
    }
    if marker:
        result["install_seconds"] = marker["install_seconds"]
        if state.why and marker["manager_reason"]:
            module.warn(
                f"The engine {wish.id} was installed with pip, which takes longer than uv: {marker['manager_reason']}"
            )
    module.exit_json(**result)


def _wish(module: AnsibleModule) -> Wish:
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
    if given.pop("plugins"):
        module.fail_json(
            msg="engine_environment: the plugins lie on the controller, found the module called without its action plugin: call it as "
            "plumbline.plumbline.engine_environment."
        )
    try:
        plugins = [
            PluginWheel(wheel["filename"], base64.b64decode(wheel["content"], validate=True))
            for wheel in given.pop("plugin_wheels")
        ]
        names = [plugin.name for plugin in plugins]
    except (PluginError, binascii.Error) as error:
        module.fail_json(msg=f"engine_environment: {error}.")
    if len(set(names)) < len(names):
        module.fail_json(
            msg=f"engine_plugins: expected each plugin once, found {', '.join(sorted(names))}: leave the second one out."
        )
    conda = CondaWish(**given.pop("conda"))
    if given["manager"] == "conda" and not (conda.lock_text or (conda.python_version and conda.channels)):
        module.fail_json(
            msg="engine_environment_manager: conda needs engine_conda_lock_file, or engine_conda_python_version and engine_conda_channels, "
            "found neither: set one of them."
        )
    smoke = given.pop("smoke")
    if smoke is not None:
        smoke["device"] = given["device"]
        try:
            # As the serving stage takes them: old names mapped, or refused before anything is installed.
            smoke["options"] = dict(read_options(smoke["options"] or {}).values)
        except PlanError as error:
            module.fail_json(msg=str(error))
    given["root"] = Path(given["root"])
    return Wish(lock_text=text, lock_name=str(lock_file), conda=conda, plugins=plugins, smoke=smoke, **given)


if __name__ == "__main__":
    main()
