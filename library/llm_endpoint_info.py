#!/usr/bin/python
# Copyright (c) The Plumbline founders
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: whether an endpoint answers rightly."""

from __future__ import annotations

DOCUMENTATION = r"""
module: llm_endpoint_info
short_description: Ask an OpenAI-compatible endpoint a question, check the answer, and check that a wrong key is refused
description:
  - Yields measurements for the gate; changes nothing.
  - A right answer is one in which O(expected) is found and whose token probabilities are not all equal. C(/health) is not
    asked, since it answers 200 for a model that answers nonsense.
author:
  - The Plumbline founders
options:
  base_url:
    description: Base URL of the API as seen from the node.
    type: str
    required: true
  api_key:
    description: The key.
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
  unit:
    description: The unit that serves the endpoint; its state becomes the measurement C(serving_unit). Left out, it is not looked at.
    type: str
  scope:
    description: Scope of the measurements, for example the URL that users are given. O(base_url) when left out.
    type: str
  planned_cache_blocks:
    description: >-
      Blocks of the key-value cache as M(plumbline.plumbline.serving_plan) reckoned them; the engine's own number, from its metrics, is held
      against it. 0 does not look.
    type: int
    default: 0
  timeout_seconds:
    description: How long the answer may take.
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
- name: The endpoint was asked
  plumbline.plumbline.llm_endpoint_info:
    base_url: http://127.0.0.1:8000/v1
    api_key: "{{ serving_api_key }}"
    model: smollm2-135m-instruct
    question: What is the capital of France?
    expected: Paris
    unit: plumbline-serving.service
  register: __serving_endpoint_info
"""

RETURN = r"""
measurements:
  description: >-
    C(completion) (V(true) for a right answer), C(wrong_api_key_refused) (V(true) when HTTP 401 or 403 came back) and, with
    O(unit), C(serving_unit) (C(ActiveState)). Each carries C(expected).
  returned: always
  type: list
  elements: dict
  sample:
    - {name: completion, scope: "http://127.0.0.1:8000/v1", value: true, expected: true, conditions: {answer: Paris., seconds: 1.4}}
answer:
  description: The model's answer, empty when none came.
  returned: always
  type: str
  sample: The capital of France is Paris.
"""

import re
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.readiness import (
    KeyRefused,
    NotYet,
    Question,
    Refused,
    ask,
    judge,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.serving_cache_info import measure_cache
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.systemd_service import (
    PROPERTIES,
    parse_show,
)

NOT_THE_KEY = "plumbline-wrong-key"


def _completion(module: AnsibleModule, scope: str, question: Question) -> tuple[dict[str, Any], str]:
    """Return the measurement `completion` and the answer's text."""
    parameters = module.params
    entry: dict[str, Any] = {"name": "completion", "scope": scope, "expected": True, "value": None}
    try:
        answer = ask(
            parameters["base_url"], parameters["api_key"], parameters["model"], question, parameters["timeout_seconds"]
        )
    except NotYet as error:
        entry.update(
            error=str(error), next_command=f"journalctl -u {parameters['unit'] or 'plumbline-serving.service'}"
        )
        return entry, ""
    except Refused as error:
        entry.update(value=False, cause=str(error))
        return entry, ""
    problem = judge(question, answer)
    entry.update(value=not problem, cause=problem)
    entry["conditions"] = {
        "question": question.text,
        "answer": answer.text.strip()[:500],
        "expected_pattern": question.expected,
        "model": answer.model,
        "completion_tokens": answer.completion_tokens,
        "seconds": round(answer.seconds, 3),
    }
    return entry, answer.text.strip()


def _wrong_key(module: AnsibleModule, scope: str, question: Question) -> dict[str, Any]:
    """Return the measurement `wrong_api_key_refused`."""
    parameters = module.params
    entry: dict[str, Any] = {"name": "wrong_api_key_refused", "scope": scope, "expected": True, "value": None}
    try:
        ask(parameters["base_url"], NOT_THE_KEY, parameters["model"], question, parameters["timeout_seconds"])
    except KeyRefused:
        entry["value"] = True
    except NotYet as error:
        entry["error"] = str(error)
    except Refused as error:
        entry.update(value=False, cause=f"a request with a wrong key got past the key check: {error}")
    else:
        entry.update(
            value=False, cause="a request with a wrong key was answered; was the service started without VLLM_API_KEY?"
        )
    return entry


def _unit_state(module: AnsibleModule) -> str:
    systemctl = module.get_bin_path("systemctl", required=True)
    command = [systemctl, "show", module.params["unit"], f"--property={','.join(PROPERTIES)}"]
    return parse_show(module.run_command(command)[1]).active or "unknown"


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "base_url": {"type": "str", "required": True},
            "api_key": {"type": "str", "required": True, "no_log": True},
            "model": {"type": "str", "required": True},
            "question": {"type": "str", "required": True},
            "expected": {"type": "str", "required": True},
            "api": {"type": "str", "choices": ["chat", "completions"], "default": "chat"},
            "unit": {"type": "str"},
            "scope": {"type": "str"},
            "planned_cache_blocks": {"type": "int", "default": 0},
            "timeout_seconds": {"type": "float", "default": 120},
        },
        supports_check_mode=True,
    )
    parameters = module.params
    scope = parameters["scope"] or parameters["base_url"]
    try:
        re.compile(parameters["expected"])
    except re.error as error:
        module.fail_json(msg=f"expected must be a regular expression, {parameters['expected']!r} is none ({error})")
    measurements: list[dict[str, Any]] = []
    if parameters["unit"]:
        active = _unit_state(module)
        if module.check_mode and active != "active":
            reason = f"check mode: {parameters['unit']} does not run yet"
            scopes = {"serving_unit": parameters["unit"], "completion": scope, "wrong_api_key_refused": scope}
            if parameters["planned_cache_blocks"] > 0:
                scopes["serving_cache_of_plan"] = scope
            skipped = [{"name": name, "scope": where, "skipped": reason} for name, where in scopes.items()]
            module.exit_json(changed=False, measurements=skipped, answer="")
        measurements.append(
            {"name": "serving_unit", "scope": parameters["unit"], "value": active, "expected": "active"}
        )
    question = Question(parameters["question"], parameters["expected"], parameters["api"])
    completion, answer = _completion(module, scope, question)
    measurements += [completion, _wrong_key(module, scope, question)]
    if (planned := parameters["planned_cache_blocks"]) > 0:
        measurements.append(measure_cache(parameters["base_url"], scope, planned, parameters["timeout_seconds"]))
    module.exit_json(changed=False, measurements=measurements, answer=answer)


if __name__ == "__main__":
    main()
