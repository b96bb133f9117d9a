#!/usr/bin/python
# Copyright (c) The Plumbline founders
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: what a node has for a serving unit."""

from __future__ import annotations

DOCUMENTATION = r"""
module: serving_info
short_description: Observe what a node serves, who holds its port and how large its checkpoint is
description:
  - Reads C(/proc/net/tcp), C(/proc/net/tcp6) and C(/proc/PID) for the listeners, and only the headers of the safetensors
    files for the sizes, so a large checkpoint costs milliseconds.
  - Needs no package on the target and changes nothing.
author:
  - The Plumbline founders
options:
  host:
    description: Address that the service shall listen on.
    type: str
    default: 127.0.0.1
  port:
    description: TCP port that the service shall listen on. Left out, no port is looked at.
    type: int
  unit:
    description: Unit whose own processes may hold the port.
    type: str
    required: true
  checkpoint:
    description: Folder of the Hugging Face checkpoint; left out, the one that the unit on the node serves.
    type: path
  dtype:
    description: >-
      Type that floats are loaded as, V(auto) for what the engine makes of the checkpoint's own; left out, what the unit on
      the node says, else V(auto).
    type: str
  engines:
    description: Directory of the engines, in which C(current) links to the active one.
    type: path
    default: /opt/plumbline/engines
  root:
    description: Directory that stands for C(/) for listeners and the unit. A captured tree is a test fixture.
    type: path
    default: /
extends_documentation_fragment:
  - plumbline.plumbline.observes
"""

EXAMPLES = r"""
- name: It is known whether the port is free and what the model needs
  plumbline.plumbline.serving_info:
    port: 8000
    unit: plumbline-serving.service
    checkpoint: /opt/plumbline/models/smollm2
    dtype: bfloat16
  register: __serving_info
"""

RETURN = r"""
listeners:
  description: >-
    Who listens on the port: C(address), C(port), C(inode), C(pid) (V(null) when it cannot be seen), C(process),
    C(command), C(unit).
  returned: always
  type: list
  elements: dict
  sample:
    - {address: 0.0.0.0, port: 8000, inode: 41231, pid: 812, process: python3, command: python3 -m http.server 8000, unit: demo.service}
conflict:
  description: >-
    The listener that keeps O(unit) from the address, with C(description) for a sentence and C(remedy), the command that
    frees the port. Empty when there is none.
  returned: always
  type: dict
  sample: {}
checkpoint:
  description: >-
    C(available), and where it is V(false) C(reason). Else C(path), C(architecture), C(parameters), C(file_bytes),
    C(dtype), C(loaded_bytes), C(bytes_read_per_token) (lower bound of what decoding one token reads),
    C(kv_bytes_per_token), C(max_position_embeddings) and C(rope_scaled).
  returned: always
  type: dict
  sample: {available: true, architecture: LlamaForCausalLM, parameters: 134515008, loaded_bytes: 538060032}
engine:
  description: The active engine, C(id), C(path) and the names of its C(plugins); all empty when there is none.
  returned: always
  type: dict
  sample: {id: cpu-0.32.0-cp311-4eff42ab, path: /opt/plumbline/engines/cpu-0.32.0-cp311-4eff42ab, plugins: [plumbline-serving]}
installed:
  description: >-
    What the unit on the node serves: C(engine_id), C(model_path), C(model_name), C(model_manifest_sha256), C(model_dtype),
    C(base_url). Empty when there is no unit.
  returned: always
  type: dict
  sample: {model_name: smollm2-135m-instruct, base_url: "http://127.0.0.1:8000/v1"}
cxx_compiler:
  description: Path of the C++ compiler, empty where there is none.
  returned: always
  type: str
  sample: /usr/bin/g++
"""

import json
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.checkpoint import (
    CheckpointError,
    read_checkpoint,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.engine_wish import MARKER
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.sockets import (
    bind_problem,
    conflict,
    listeners,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.systemd_service import parse_handed_on


def _checkpoint(folder: str | None, dtype: str) -> dict[str, Any]:
    if not folder:
        return {"available": False, "reason": "no checkpoint was named and no unit serves one"}
    try:
        return {"available": True, "reason": "", **read_checkpoint(Path(folder), dtype).as_dict()}
    except CheckpointError as error:
        return {"available": False, "reason": str(error)}


def _engine(engines: Path) -> dict[str, Any]:
    active = engines / "current"
    if not active.is_symlink() or not active.is_dir():
        return {"id": "", "path": "", "plugins": []}
    found = active.resolve()
    try:
        plugins = sorted(json.loads((found / MARKER).read_text(encoding="utf-8"))["plugins"])
    except (OSError, ValueError, KeyError, TypeError):
        plugins = []  # it was never finished, or is older than plugins are
    return {"id": found.name, "path": str(engines / found.name), "plugins": plugins}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "host": {"type": "str", "default": "127.0.0.1"},
            "port": {"type": "int"},
            "unit": {"type": "str", "required": True},
            "checkpoint": {"type": "path"},
            "dtype": {"type": "str"},
            "engines": {"type": "path", "default": "/opt/plumbline/engines"},
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    root, port = Path(module.params["root"]), module.params["port"]
    if port is not None and not 1 <= port <= 65535:
        module.fail_json(msg=f"port must be between 1 and 65535, {port} was found; correct serving_port")
    host = module.params["host"]
    if port is not None and (problem := bind_problem(host)):
        module.fail_json(
            msg=f"host must be an address of this machine, or 0.0.0.0 for all of them, '{host}' was found ({problem}); correct serving_host"
        )
    found = listeners(root, [port]) if port is not None else []
    unit_file = root / "etc/systemd/system" / module.params["unit"]
    installed = parse_handed_on(unit_file.read_text(encoding="utf-8", errors="replace")) if unit_file.is_file() else {}
    obstacle = conflict(found, host, module.params["unit"])
    module.exit_json(
        changed=False,
        listeners=[listener.as_dict() for listener in found],
        conflict={}
        if obstacle is None
        else {**obstacle.as_dict(), "description": obstacle.describe(), "remedy": obstacle.remedy()},
        checkpoint=_checkpoint(
            module.params["checkpoint"] or installed.get("model_path"),
            module.params["dtype"] or installed.get("model_dtype", "auto"),
        ),
        engine=_engine(Path(module.params["engines"])),
        installed=installed,
        cxx_compiler=next((path for name in ("g++", "clang++") if (path := module.get_bin_path(name))), ""),
    )


if __name__ == "__main__":
    main()
