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
  - Where O(upgrade) is given, another model or engine comes in beside. It starts as a unit of its own; the old one serves until the
    new one gave a right completion. Then O(name) is restarted with it, and the unit beside is ended. A new one that does not become
    ready is ended and changes nothing. Where memory does not hold two, the upgrade is made in place, and a new one that does not
    become ready is replaced by the old one.
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
  text:
    description: Text of the unit's file. Left out, the file is left alone.
    type: str
    default: ""
  serves:
    description: What names engine and model, the value of C(PLUMBLINE_SERVES) in the unit.
    type: str
    default: ""
  upgrade:
    description: The unit that another model or engine starts as. Left out, every change is a restart.
    type: dict
    suboptions:
      name:
        description: The unit.
        type: str
        required: true
      configuration:
        description: What identifies its configuration.
        type: str
        required: true
      record:
        description: File that C(plumbline-ready) writes for it.
        type: path
        required: true
      text:
        description: Text of its file.
        type: str
        required: true
      host:
        description: Address that it listens on.
        type: str
        required: true
      port:
        description: Port that it listens on.
        type: int
        required: true
      mode:
        description: V(auto) is V(beside) where O(upgrade.fits), else V(in_place).
        type: str
        choices: [auto, beside, in_place]
        default: auto
      fits:
        description: Whether memory holds the old and the new one.
        type: bool
        default: true
      arithmetic:
        description: The figures behind O(upgrade.fits), as part of a sentence.
        type: str
        default: ""
  notice_seconds:
    description: How long a gateway is given to notice that a unit became ready, before another one is ended.
    type: float
    default: 0
  directory:
    description: Directory of the units' files.
    type: path
    default: /etc/systemd/system
  previous:
    description: Where the old unit's file is kept during an upgrade in place.
    type: path
    default: /etc/plumbline/serving-previous.service
  timeout_seconds:
    description: How long to wait for a unit. Longer than the unit's own limit, so that systemd gives up first.
    type: int
    default: 1860
attributes:
  check_mode:
    description: Says whether it would restart the unit, and why.
    support: full
  diff_mode:
    description: Shows what changes in the unit's file, and why it restarts the unit.
    support: full
"""

EXAMPLES = r"""
- name: The endpoint runs as configured and is ready
  plumbline.plumbline.serving_service:
    name: plumbline-serving.service
    configuration: "{{ __serving_configuration }}"
    api_key: "{{ serving_api_key }}"
    text: "{{ __serving_unit_content }}"
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
upgrade:
  description: >-
    C(how) the unit came to run as wanted (V(none), V(start), V(restart), V(in place) or V(beside)), C(because) for an upgrade, and the
    C(seconds) that it took in all.
  returned: success
  type: dict
  sample: {how: beside, because: memory holds both, seconds: 141.9}
measurements:
  description: C(serving_upgrade) after an upgrade, else none.
  returned: always
  type: list
  elements: dict
  sample: []
restarts:
  description: How often systemd restarted the unit by itself since it was last started by hand.
  returned: success
  type: int
  sample: 0
"""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.readiness import key_digest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.serving_steward import (
    Steward,
    StewardError,
    Texts,
    Tools,
    Unit,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.serving_upgrade import (
    Decision,
    Found,
    UpgradeRefusedError,
    Wanted,
    decide,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.sockets import conflict, listeners

UPGRADE = {
    "name": {"type": "str", "required": True},
    "configuration": {"type": "str", "required": True},
    "record": {"type": "path", "required": True},
    "text": {"type": "str", "required": True},
    "host": {"type": "str", "required": True},
    "port": {"type": "int", "required": True},
    "mode": {"type": "str", "choices": ["auto", "beside", "in_place"], "default": "auto"},
    "fits": {"type": "bool", "default": True},
    "arithmetic": {"type": "str", "default": ""},
}
ARGUMENTS = {
    "name": {"type": "str", "required": True},
    "configuration": {"type": "str", "required": True},
    "api_key": {"type": "str", "required": True, "no_log": True},
    "record": {"type": "path", "default": "/run/plumbline-serving/ready.json"},
    "text": {"type": "str", "default": ""},
    "serves": {"type": "str", "default": ""},
    "upgrade": {"type": "dict", "options": UPGRADE},
    "notice_seconds": {"type": "float", "default": 0},
    "directory": {"type": "path", "default": "/etc/systemd/system"},
    "previous": {"type": "path", "default": "/etc/plumbline/serving-previous.service"},
    "timeout_seconds": {"type": "int", "default": 1860},
}


def wanted_of(parameters: dict[str, Any]) -> Wanted:
    """Return what shall run, from the module's parameters."""
    wanted = Wanted(parameters["configuration"], key_digest(parameters["api_key"]), parameters["serves"])
    upgrade = parameters["upgrade"]
    if not upgrade:
        return wanted
    return replace(
        wanted,
        beside_configuration=upgrade["configuration"],
        mode=upgrade["mode"],
        fits=upgrade["fits"],
        arithmetic=upgrade["arithmetic"],
    )


def port_problem(upgrade: dict[str, Any]) -> str:
    """Return who keeps the unit beside from its port, as a sentence; empty when nobody does."""
    holder = conflict(listeners(Path("/"), [upgrade["port"]]), upgrade["host"], upgrade["name"])
    if holder is None:
        return ""
    return (
        f"Expected port {upgrade['port']} (serving_upgrade_port) to be free for the new model or engine, found it in use by "
        f"{holder.describe()}: free it ({holder.remedy()}), or set serving_upgrade_port to a free port"
    )


def diff_of(unit: Unit, found: Found, decision: Decision, text: str) -> list[dict[str, str]]:
    """Return what changes: the unit's file, and what runs."""
    shown = []
    if text and text != found.text:
        shown.append(
            {"before_header": str(unit.path), "after_header": str(unit.path), "before": found.text, "after": text}
        )
    how = f", an upgrade {decision.how}: {decision.because}" if decision.is_upgrade else ""
    state = f"{found.state.active or 'absent'}, {'enabled' if found.state.enabled else 'not enabled'}"
    left = ["the unit of an upgrade is there as well"] if decision.end_beside and not decision.is_upgrade else []
    shown.append(
        {
            "before_header": unit.name,
            "after_header": unit.name,
            "before": "\n".join([state, *decision.reasons, *left, ""]),
            "after": f"active with the wanted configuration, enabled{how}\n",
        }
    )
    return shown


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    parameters = module.params
    upgrade = parameters["upgrade"]
    tools = Tools(
        run=module.run_command,
        systemctl=module.get_bin_path("systemctl", required=True),
        journalctl=module.get_bin_path("journalctl"),
        directory=Path(parameters["directory"]),
    )
    unit = Unit(tools, parameters["name"], Path(parameters["record"]))
    beside = Unit(tools, upgrade["name"], Path(upgrade["record"])) if upgrade else None
    found, found_beside = unit.find(), beside.find() if beside else None
    try:
        decision = decide(found, found_beside, wanted_of(parameters))
    except UpgradeRefusedError as error:
        module.fail_json(msg=str(error))
    if decision.start_beside and (problem := port_problem(upgrade)):
        module.fail_json(msg=problem)
    text = parameters["text"]
    differs = bool(text) and text != found.text
    result: dict[str, Any] = {
        "changed": bool(decision.reasons) or not found.state.enabled or differs or decision.end_beside,
        "reasons": decision.reasons,
        "ready_seconds": None,
        "measurements": [],
    }
    if result["changed"]:
        result["diff"] = diff_of(unit, found, decision, text)
    if not module.check_mode:
        texts = Texts(text, upgrade["text"] if upgrade else "")
        steward = Steward(
            unit,
            beside,
            texts,
            parameters["timeout_seconds"],
            parameters["notice_seconds"],
            Path(parameters["previous"]),
        )
        began = time.monotonic()
        try:
            found = replace(found, state=steward.carry_out(decision, found, found_beside))
        except StewardError as error:
            module.fail_json(msg=str(error), journal_tail=error.journal, result=error.result)
        seconds = round(time.monotonic() - began, 1)
        result["ready_seconds"] = seconds if decision.reasons else None
        result["upgrade"] = {"how": decision.how, "because": decision.because, "seconds": seconds}
        if decision.is_upgrade:
            result["measurements"] = [
                {
                    "name": "serving_upgrade",
                    "scope": unit.name,
                    "value": decision.how,
                    "conditions": {"because": decision.because, "seconds": seconds},
                }
            ]
    result["restarts"] = found.state.restarts
    module.exit_json(**result)


if __name__ == "__main__":
    main()
