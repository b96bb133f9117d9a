#!/usr/bin/python
# Copyright (c) The Plumbline founders
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: what the gateway does."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gateway_info
short_description: Ask a question through the gateway, with a key, a wrong key and none, and look at the nodes behind it
description:
  - Yields measurements for the gate; changes nothing.
author:
  - The Plumbline founders
options:
  unit:
    description: Name of the unit.
    type: str
    default: plumbline-gateway.service
  socket:
    description: HAProxy's runtime socket.
    type: path
    default: /run/plumbline-gateway/admin.sock
  directory:
    description: Where the configurations are.
    type: path
    default: /etc/plumbline/gateway
  address:
    description: Address at which this machine reaches the gateway.
    type: str
    default: 127.0.0.1
  port:
    description: Its port.
    type: int
    required: true
  tls:
    description: Whether it speaks TLS.
    type: bool
    default: true
  server_name:
    description: The name that its certificate must be for.
    type: str
    default: ""
  api_key:
    description: A key of a client.
    type: str
    required: true
  model:
    description: Name of the served model.
    type: str
    required: true
  question:
    description: What to ask.
    type: str
    required: true
  expected:
    description: Regular expression that must be found in the answer.
    type: str
    required: true
  api:
    description: V(completions) is for models without a chat template.
    type: str
    choices: [chat, completions]
    default: chat
  scope:
    description: Scope of the measurements, for example the URL that users are given.
    type: str
    required: true
  settle_seconds:
    description: How long to wait for the first health checks after a start.
    type: float
    default: 15
  timeout_seconds:
    description: How long one answer may take.
    type: float
    default: 120
attributes:
  check_mode:
    description: >-
      Observes only, so check mode is the same as a normal run; where the unit does not run yet, check mode yields
      measurements that are skipped with that reason.
    support: full
  diff_mode:
    description: Changes nothing.
    support: none
"""

EXAMPLES = r"""
- name: The gateway was asked
  plumbline.plumbline.gateway_info:
    port: 8443
    server_name: llm.example.net
    api_key: "{{ gateway_api_keys.alice }}"
    model: smollm2-135m-instruct
    question: What is the capital of France?
    expected: Paris
    scope: https://llm.example.net:8443/v1
  register: __gateway_info
"""

RETURN = r"""
measurements:
  description: >-
    C(gateway_unit), C(gateway_configuration) (what runs is what lies on the disk), C(gateway_node) for each node, C(gateway_nodes_ready),
    C(completion), C(wrong_api_key_refused) for a wrong key and for none, C(gateway_certificate_days) and C(gateway_certificate_origin).
  returned: always
  type: list
  elements: dict
  sample:
    - {name: gateway_node, scope: node1, value: ready, expected: ready}
"""

import re
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import (
    gateway_files,
    gateway_probe,
    gateway_runtime,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.readiness import Question
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.systemd_service import (
    PROPERTIES,
    parse_show,
)

POLL_SECONDS = 0.3


def _configuration(parameters: dict[str, Any], info: str) -> dict[str, Any]:
    wanted = gateway_files.current(Path(parameters["directory"]))
    return {
        "name": "gateway_configuration",
        "scope": parameters["unit"],
        "value": gateway_runtime.running_configuration(info) or "another program's",
        "expected": wanted.name if wanted is not None else "none",
    }


def _servers(parameters: dict[str, Any]) -> list[gateway_runtime.Server]:
    """Return the servers, once a node is ready or the time for the first health checks is over."""
    deadline = time.monotonic() + parameters["settle_seconds"]
    while True:
        servers = gateway_runtime.parse_servers(gateway_runtime.ask(Path(parameters["socket"]), "show stat"))
        nodes = {server.node for server in servers if not server.drained}
        if nodes <= {server.node for server in servers if server.ready} or time.monotonic() > deadline:
            return servers
        time.sleep(POLL_SECONDS)


def observe(parameters: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what the running gateway does."""
    scope, model = parameters["scope"], parameters["model"]
    try:
        info = gateway_runtime.ask(Path(parameters["socket"]), "show info")
        measurements = [_configuration(parameters, info), *gateway_probe.nodes(_servers(parameters))]
    except gateway_runtime.GatewayError as error:
        measurements = [{"name": "gateway_configuration", "scope": parameters["unit"], "error": str(error)}]
    certificate = str(Path(parameters["directory"]) / "certificate.pem") if parameters["tls"] else ""
    target = gateway_probe.Target(
        parameters["address"], parameters["port"], certificate, parameters["server_name"], parameters["timeout_seconds"]
    )
    question = Question(parameters["question"], parameters["expected"], parameters["api"])
    completion, reply = gateway_probe.completion(target, parameters["api_key"], model, question, scope)
    measurements += [completion, *gateway_probe.key_required(target, model, question, scope)]
    if reply is not None:
        measurements += gateway_probe.certificate(reply.certificate, scope, time.time())
    return measurements


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "unit": {"type": "str", "default": "plumbline-gateway.service"},
            "socket": {"type": "path", "default": "/run/plumbline-gateway/admin.sock"},
            "directory": {"type": "path", "default": "/etc/plumbline/gateway"},
            "address": {"type": "str", "default": "127.0.0.1"},
            "port": {"type": "int", "required": True},
            "tls": {"type": "bool", "default": True},
            "server_name": {"type": "str", "default": ""},
            "api_key": {"type": "str", "required": True, "no_log": True},
            "model": {"type": "str", "required": True},
            "question": {"type": "str", "required": True},
            "expected": {"type": "str", "required": True},
            "api": {"type": "str", "choices": ["chat", "completions"], "default": "chat"},
            "scope": {"type": "str", "required": True},
            "settle_seconds": {"type": "float", "default": 15},
            "timeout_seconds": {"type": "float", "default": 120},
        },
        supports_check_mode=True,
    )
    parameters = module.params
    try:
        re.compile(parameters["expected"])
    except re.error as error:
        module.fail_json(msg=f"expected must be a regular expression, {parameters['expected']!r} is none ({error})")
    systemctl = module.get_bin_path("systemctl", required=True)
    shown = module.run_command([systemctl, "show", parameters["unit"], f"--property={','.join(PROPERTIES)}"])[1]
    active = parse_show(shown).active or "unknown"
    unit = {"name": "gateway_unit", "scope": parameters["unit"], "value": active, "expected": "active"}
    if module.check_mode and active != "active":
        reason = f"check mode: {parameters['name']} does not run yet"
        skipped = {"scope": parameters["scope"], "skipped": reason}
        module.exit_json(
            changed=False, measurements=[{**skipped, "name": "gateway_unit"}, {**skipped, "name": "completion"}]
        )
    module.exit_json(changed=False, measurements=[unit, *observe(parameters)])


if __name__ == "__main__":
    main()
