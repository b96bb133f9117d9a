#!/usr/bin/python
# Copyright (c) The Plumbline founders
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: start, go on with, stop or put away a soak on the node."""

from __future__ import annotations

DOCUMENTATION = r"""
module: soak
short_description: Load an endpoint for hours and read the node meanwhile, as a systemd unit on the node
description:
  - Starts the load client and a sampler as a transient unit, C(plumbline-soak.service), which outlives the SSH connection.
  - A soak that was begun with the same settings is picked up, running or not; after a restart of the node or a stop it goes on with the
    time that is left. One with other settings is refused.
author:
  - The Plumbline founders
options:
  state:
    description: >-
      V(running) starts a soak or picks it up, V(stopped) ends the unit and keeps what was measured,
      V(archived) puts the measured lines into a folder C(archive) beside, so that the next soak is a new one.
    type: str
    choices: [running, stopped, archived]
    default: running
  directory:
    description: Folder on the node for what is measured.
    type: path
    default: /var/lib/plumbline/soak
  unit:
    description: Unit whose processes are the engine.
    type: str
    default: plumbline-serving.service
  python:
    description: Python that has aiohttp, as the engine's. Needed for V(running).
    type: path
  api_key:
    description: Key of the endpoint. Lies in a file of root's in C(/run) while the soak runs.
    type: str
    default: ""
  load:
    description: The load, in the fields of docs/benchmark.md. Needed for V(running).
    type: dict
    default: {}
  duration_seconds:
    description: How long to load, gaps left out.
    type: float
    default: 259200
  interval_seconds:
    description: Seconds from one reading to the next.
    type: float
    default: 10
  warmup_seconds:
    description: Left out at the beginning when growth is judged; more is, where the figures have not settled by then.
    type: float
    default: 1800
attributes:
  check_mode:
    description: Says what would be done and does nothing.
    support: full
  diff_mode:
    description: Has no settings to compare.
    support: none
"""

EXAMPLES = r"""
- name: The endpoint is loaded for 72 hours
  plumbline.plumbline.soak:
    python: "{{ engine_python }}"
    api_key: "{{ serving_api_key }}"
    load:
      base_url: http://127.0.0.1:8000/v1
      rate_per_second: 2
      prompt_tokens: 512
      output_tokens: 128
      interval_seconds: 60
"""

RETURN = r"""
state:
  description: What was found, C(absent), C(running), C(finished) or C(interrupted).
  returned: always
  type: str
  sample: interrupted
done_seconds:
  description: How long was loaded before.
  returned: always
  type: float
  sample: 86400.0
archive:
  description: Folder with what was put away.
  returned: when O(state=archived) and there was a soak
  type: str
  sample: /var/lib/plumbline/soak/archive/20251201T120000Z
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import load_program, soak_program
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.load_spec import read_spec
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.soak_run import Soak, SoakError

if TYPE_CHECKING:
    # What Ansible carries to the node because it is named here; the engine's Python imports it there.
    from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import (  # noqa: F401
        load_events,
        load_histogram,
        load_http,
        load_prompts,
        load_run,
        load_schedule,
        load_sweep,
        load_sweep_plan,
        load_tally,
        load_target,
        load_timer,
        load_worker,
        worker_result,
    )

_LEAST = {"duration_seconds": 60.0, "interval_seconds": 0.5, "warmup_seconds": 0.0}


def _wanted(module: AnsibleModule) -> dict[str, Any]:
    given: dict[str, Any] = module.params
    for name, least in _LEAST.items():
        if not given[name] >= least:
            module.fail_json(msg=f"{name} must be at least {least:g}, {given[name]:g} was found; correct soak_{name}")
    if given["warmup_seconds"] >= given["duration_seconds"] / 2:
        module.fail_json(
            msg=f"warmup_seconds must be less than half of duration_seconds {given['duration_seconds']:g}, "
            f"{given['warmup_seconds']:g} was found; correct soak_warmup_seconds"
        )
    if not given["python"] or not Path(given["python"]).exists():
        found = f"none at {given['python']}" if given["python"] else "none was named"
        module.fail_json(msg=f"a Python with aiohttp was expected, {found}; run the stage engine first")
    numbers = {name: _number(value) for name, value in given["load"].items()}
    try:
        read_spec({**numbers, "duration_seconds": given["duration_seconds"], "output": "load.jsonl"})
    except ValueError as error:
        module.fail_json(msg=f"load: {error}")
    names = ("unit", "python", *_LEAST)
    return {**{name: given[name] for name in names}, "load": numbers}


def _number(value: Any) -> Any:
    """Templates make texts of numbers; a load takes numbers."""
    if isinstance(value, str):
        for kind in (int, float):
            try:
                return kind(value)
            except ValueError:
                continue
        if value in ("True", "False"):
            return value == "True"
    return value


def _run(module: AnsibleModule, soak: Soak, state: str, before: dict[str, Any]) -> None:
    wanted = _wanted(module)
    if state != "absent" and before != wanted:
        different = sorted(
            name
            for name in {*before, *wanted, *before.get("load", {}), *wanted["load"]}
            if name != "load"
            and (before.get(name), before.get("load", {}).get(name)) != (wanted.get(name), wanted["load"].get(name))
        )
        module.fail_json(
            msg=f"a soak with other settings ({', '.join(different)}) is {state} in {soak.folder}: go on with its settings, or end it "
            "with -e soak_state=archived, and then begin a new one"
        )
    if state in ("running", "finished"):
        return
    if not module.check_mode:
        soak.start(wanted, module.params["api_key"], soak_program.program(), load_program.program())


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["running", "stopped", "archived"], "default": "running"},
            "directory": {"type": "path", "default": "/var/lib/plumbline/soak"},
            "unit": {"type": "str", "default": "plumbline-serving.service"},
            "python": {"type": "path"},
            "api_key": {"type": "str", "default": "", "no_log": True},
            "load": {"type": "dict", "default": {}},
            "duration_seconds": {"type": "float", "default": 259200},
            "interval_seconds": {"type": "float", "default": 10},
            "warmup_seconds": {"type": "float", "default": 1800},
        },
        supports_check_mode=True,
    )
    soak = Soak(Path(module.params["directory"]))
    result: dict[str, Any] = {"changed": False}
    try:
        before = soak.spec()
        state = soak.state()
        result.update(state=state, done_seconds=float(soak.progress().get("done_seconds", 0)))
        if module.params["state"] == "running":
            _run(module, soak, state, before)
            result["changed"] = state in ("absent", "interrupted")
        else:
            put_away = module.params["state"] == "archived" and bool(before)
            result["changed"] = state == "running" or put_away
            if result["changed"] and not module.check_mode:
                if state == "running":
                    soak.stop()
                if put_away:
                    result["archive"] = soak.archive()
    except (SoakError, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
