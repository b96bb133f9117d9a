#!/usr/bin/python
# Copyright (c) The Plumbline founders
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: the serving unit runs as wanted, and is ready."""

from __future__ import annotations

DOCUMENTATION = r"""
module: serving_service
short_description: Have a serving unit run with the wanted configuration, and wait until it is ready
description:
  - Compares what runs (the record that C(plumbline-ready) wrote after the last successful start) with what is wanted, and
    restarts the unit once when they differ. A run that was cut off between a change and the restart is made good by the next.
  - Waits until the unit is active, which for this unit means that a right completion came back.
  - When the start fails, the error is the one line of the journal that says why. A unit whose endpoint answers wrongly is
    stopped, since starting it again would not help; after any other failure systemd goes on trying.
author:
  - The Plumbline founders
options:
  name:
    description: The unit.
    type: str
    required: true
  configuration:
    description: What identifies the wanted configuration, the value of C(PLUMBLINE_CONFIGURATION) in the unit.
    type: str
    required: true
  api_key:
    description: The key that the service shall have been started with.
    type: str
    required: true
  record:
    description: File that C(plumbline-ready) writes.
    type: path
    default: /run/plumbline-serving/ready.json
  timeout_seconds:
    description: How long to wait for the unit. Longer than the unit's own limit, so that systemd gives up first.
    type: int
    default: 1860
attributes:
  check_mode:
    description: Says whether it would restart the unit, and why.
    support: full
  diff_mode:
    description: Shows why it restarts the unit.
    support: full
"""

EXAMPLES = r"""
- name: The endpoint runs as configured and is ready
  plumbline.plumbline.serving_service:
    name: plumbline-serving.service
    configuration: "{{ __serving_configuration }}"
    api_key: "{{ serving_api_key }}"
"""

RETURN = r"""
reasons:
  description: Why the unit was (or in check mode would be) started; empty when it already ran as wanted.
  returned: always
  type: list
  elements: str
  sample: ["its configuration, engine or model changed"]
ready_seconds:
  description: Seconds from the start to a right completion, V(null) when the unit was not started.
  returned: success
  type: float
  sample: 61.4
restarts:
  description: How often systemd restarted the unit by itself since it was last started by hand.
  returned: success
  type: int
  sample: 0
"""

import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.readiness import key_digest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.systemd_service import (
    PROPERTIES,
    State,
    cause_from_journal,
    parse_record,
    parse_show,
    reasons_to_start,
    was_refused,
)

POLL_SECONDS = 0.5


class Unit:
    """One unit of the node's systemd."""

    def __init__(self, module: AnsibleModule, name: str) -> None:
        """Find systemctl; fails the module where there is none."""
        self.module = module
        self.name = name
        self.systemctl = module.get_bin_path("systemctl", required=True)

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """Call systemctl."""
        code, out, err = self.module.run_command([self.systemctl, *arguments])
        return code, out, err

    def must(self, *arguments: str) -> None:
        """Call systemctl; fail the module with what it said when it fails."""
        code, out, err = self.run(*arguments)
        if code != 0:
            said = (err or out).strip()
            self.module.fail_json(
                msg=f"systemctl {' '.join(arguments)} ended with {code}: {said}; look at systemctl status {self.name}"
            )

    def state(self) -> State:
        """Return the state of the unit now."""
        return parse_show(self.run("show", self.name, f"--property={','.join(PROPERTIES)}")[1])

    def journal(self, invocation: str) -> list[str]:
        """Return the log of one start, of its processes and of systemd about it; empty where there is no journal."""
        journalctl = self.module.get_bin_path("journalctl")
        if not journalctl or not invocation:
            return []
        match = [f"_SYSTEMD_INVOCATION_ID={invocation}", "+", f"INVOCATION_ID={invocation}"]
        text = str(self.module.run_command([journalctl, "--no-pager", "-o", "cat", "-n", "2000", *match])[1])
        return text.splitlines()


def start(unit: Unit, before: State, failures: Path, timeout_seconds: int) -> State:
    """Restart the unit and wait until it is active; fail the module with the cause when it does not become so."""
    failures.unlink() if failures.exists() else None  # somebody asked for this start: no pause because of earlier ones
    unit.must("daemon-reload")
    unit.must("restart", "--no-block", unit.name)
    deadline = time.monotonic() + timeout_seconds
    invocation = ""
    while True:
        state = unit.state()
        fresh = state.invocation not in ("", before.invocation)
        invocation = invocation or (state.invocation if fresh else "")
        if fresh and state.running:
            return state
        if (fresh and state.failed_start) or (invocation and state.invocation != invocation):
            _fail(unit, state, invocation)
        if time.monotonic() > deadline:
            _fail(
                unit,
                state,
                invocation,
                f"it was not ready within {timeout_seconds} s ({state.status_text or state.sub})",
            )
        time.sleep(POLL_SECONDS)


def _fail(unit: Unit, state: State, invocation: str, cause: str = "") -> None:
    lines = unit.journal(invocation)
    cause = cause or cause_from_journal(lines) or state.status_text or f"result {state.result or 'unknown'}"
    if was_refused(lines):
        unit.run("stop", unit.name)
        outcome = "it was stopped and serves nobody"
    else:
        outcome = "systemd goes on trying"
    unit.module.fail_json(
        msg=f"{unit.name} did not become ready: {cause}; {outcome}; the whole log: journalctl -u {unit.name}",
        journal_tail=lines[-30:],
        result=state.result,
    )


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "configuration": {"type": "str", "required": True},
            "api_key": {"type": "str", "required": True, "no_log": True},
            "record": {"type": "path", "default": "/run/plumbline-serving/ready.json"},
            "timeout_seconds": {"type": "int", "default": 1860},
        },
        supports_check_mode=True,
    )
    unit = Unit(module, module.params["name"])
    state = unit.state()
    if state.load != "loaded" and not module.check_mode:
        unit.must("daemon-reload")
        state = unit.state()
        if state.load != "loaded":
            module.fail_json(
                msg=f"{unit.name} cannot be loaded ({state.load or 'no answer from systemd'}); look at systemctl status {unit.name}"
            )
    record = Path(module.params["record"])
    noted = parse_record(record.read_text(encoding="utf-8")) if record.is_file() else {}
    reasons = reasons_to_start(state, noted, module.params["configuration"], key_digest(module.params["api_key"]))
    result: dict[str, Any] = {"changed": bool(reasons) or not state.enabled, "reasons": reasons, "ready_seconds": None}
    if result["changed"]:
        result["diff"] = {
            "before_header": unit.name,
            "after_header": unit.name,
            "before": "\n".join(
                [f"{state.active or 'absent'}, {'enabled' if state.enabled else 'not enabled'}", *reasons, ""]
            ),
            "after": "active with the wanted configuration, enabled\n",
        }
    if not module.check_mode:
        if not state.enabled:
            unit.must("enable", unit.name)
        if reasons:
            began = time.monotonic()
            state = start(unit, state, record.with_name("failures"), module.params["timeout_seconds"])
            result["ready_seconds"] = round(time.monotonic() - began, 1)
        elif state.needs_reload:
            unit.must("daemon-reload")
    result["restarts"] = state.restarts
    module.exit_json(**result)


if __name__ == "__main__":
    main()
