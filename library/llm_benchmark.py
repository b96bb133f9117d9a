#!/usr/bin/python
# Copyright (c) The Plumbline founders
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: latency, throughput and errors of an endpoint under an open-loop load."""

from __future__ import annotations

DOCUMENTATION = r"""
module: llm_benchmark
short_description: Measure latency, throughput and errors of an OpenAI-compatible endpoint under an open-loop load
description:
  - Sends streaming chat completions when they are due, whether or not earlier ones were answered, and times each from when
    it was I(due). A stall of the server, or of the client, is therefore in the figures (no coordinated omission).
  - Prompts are real text of the wanted length, each different from its first words on, and different in every run, so that
    no prefix cache answers them. Warm-up requests go first and are left out.
  - When fewer requests per second were finished than were asked for, the run is invalid and latencies are errors, not figures.
  - Yields measurements for the gate. Percentiles are by linear interpolation between order statistics.
author:
  - The Plumbline founders
options:
  base_url:
    description: Base URL of the API.
    type: str
    required: true
  api_key:
    description: The key; may be empty for an endpoint without one.
    type: str
    required: true
  model:
    description: Name of the served model. Left out, the first that the endpoint lists.
    type: str
  ca_file:
    description: CA certificates for an https endpoint; the system's when left out.
    type: path
  scope:
    description: Scope of the measurements. O(base_url) when left out.
    type: str
  arrival:
    description: V(constant) spaces the requests evenly, V(poisson) draws the gaps as independent users would make them.
    type: str
    choices: [constant, poisson]
    default: constant
  rate_per_second:
    description: Requests per second.
    type: float
    required: true
  requests:
    description: Requests to measure, 2 to 100000.
    type: int
    required: true
  warmup_requests:
    description: Requests before that, one after the other, left out of the figures. At least one is always sent.
    type: int
    default: 1
  prompt_tokens:
    description: >-
      About how many tokens each prompt has, the chat template included. The words that make so many are found with the
      warm-up requests; the mean that the server counted is recorded.
    type: int
    default: 128
  output_tokens:
    description: Tokens of each answer.
    type: int
    default: 64
  ignore_eos:
    description: Let every answer be exactly O(output_tokens) long. An extension of vLLM; set V(false) for other servers.
    type: bool
    default: true
  request_timeout_seconds:
    description: A request that takes longer is an error of kind C(timeout).
    type: float
    default: 120
  max_duration_seconds:
    description: The measured part ends after this time, whatever is still under way.
    type: float
    default: 300
  max_in_flight:
    description: Requests under way at once, at most. Reaching it delays sending, which shows in the latencies.
    type: int
    default: 256
  minimum_rate_fraction:
    description: Achieved over requested rate, below which the run is invalid.
    type: float
    default: 0.9
  seed:
    description: Seed of the V(poisson) gaps.
    type: int
    default: 1
  bytes_read_per_token:
    description: Bytes of weights that decoding one token reads. With O(memory_bandwidth), the limit of the decode rate follows.
    type: float
  memory_bandwidth:
    description: Bandwidth of the memory that holds the weights, in B/s.
    type: float
attributes:
  check_mode:
    description: Applies no load in check mode; every measurement is then skipped with that reason.
    support: full
  diff_mode:
    description: Changes nothing.
    support: none
"""

EXAMPLES = r"""
- name: The endpoint was loaded with two requests a second for a minute
  plumbline.plumbline.llm_benchmark:
    base_url: http://127.0.0.1:8000/v1
    api_key: "{{ serving_api_key }}"
    rate_per_second: 2
    requests: 120
    arrival: poisson
    prompt_tokens: 512
    output_tokens: 128
  register: __accept_load
"""

RETURN = r"""
measurements:
  description: >-
    C(time_to_first_token_p50|p90|p99), C(inter_token_latency_p50|p99), C(end_to_end_latency_p50|p90|p99) (s),
    C(output_tokens_per_second) and C(stream_decode_tokens_per_second) (tokens/s), C(request_error_fraction) (fraction) and
    C(achieved_request_rate) (requests/s, limit: the requested rate). The P99s carry their samples.
  returned: always
  type: list
  elements: dict
  sample:
    - {name: time_to_first_token_p99, scope: "http://127.0.0.1:8000/v1", value: 0.41, unit: s, statistic: P99 of 120}
errors:
  description: Failed requests by kind, for example C(timeout), C(http_503), C(connection), C(incomplete), C(empty).
  returned: when a load was applied
  type: dict
  sample: {}
invalid:
  description: Why the run does not show what was asked for; empty when it does.
  returned: when a load was applied
  type: str
  sample: ""
"""

import time
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.load_client import (
    LoadPlan,
    http_sender,
    run_load,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.load_report import (
    decode_measurement,
    failed_measurements,
    measurements,
    skipped_measurements,
    summarise,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.openai_client import Endpoint, RequestFailed

# What each number must be at least, and at most where that makes sense.
BOUNDS = {
    "rate_per_second": (0.001, 10_000),
    "requests": (2, 100_000),
    "warmup_requests": (0, 10_000),
    "prompt_tokens": (1, None),
    "output_tokens": (1, None),
    "request_timeout_seconds": (0.001, None),
    "max_duration_seconds": (0.001, None),
    "max_in_flight": (1, 4096),
    "minimum_rate_fraction": (0.001, 1),
}


def _refuse_nonsense(module: AnsibleModule) -> None:
    for name, (least, most) in BOUNDS.items():
        value = module.params[name]
        if value < least or (most is not None and value > most):
            upper = f" and at most {most}" if most is not None else ""
            module.fail_json(msg=f"{name} must be at least {least}{upper}, {value} was found")
    span = (module.params["requests"] - 1) / module.params["rate_per_second"]
    if span >= module.params["max_duration_seconds"]:
        module.fail_json(
            msg=(
                f"{module.params['requests']} requests at {module.params['rate_per_second']:g}/s take {span:.0f} s, which "
                f"does not fit into max_duration_seconds {module.params['max_duration_seconds']:g}; send fewer, faster, or allow more time"
            )
        )


def _first_model(endpoint: Endpoint) -> str:
    listed = endpoint.get_json("/models", 30)
    try:
        return str(listed["data"][0]["id"])
    except (KeyError, IndexError, TypeError) as error:
        raise RequestFailed("malformed", "the endpoint lists no model") from error


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "base_url": {"type": "str", "required": True},
            "api_key": {"type": "str", "required": True, "no_log": True},
            "model": {"type": "str"},
            "ca_file": {"type": "path"},
            "scope": {"type": "str"},
            "arrival": {"type": "str", "choices": ["constant", "poisson"], "default": "constant"},
            "rate_per_second": {"type": "float", "required": True},
            "requests": {"type": "int", "required": True},
            "warmup_requests": {"type": "int", "default": 1},
            "prompt_tokens": {"type": "int", "default": 128, "no_log": False},
            "output_tokens": {"type": "int", "default": 64, "no_log": False},
            "ignore_eos": {"type": "bool", "default": True},
            "request_timeout_seconds": {"type": "float", "default": 120},
            "max_duration_seconds": {"type": "float", "default": 300},
            "max_in_flight": {"type": "int", "default": 256},
            "minimum_rate_fraction": {"type": "float", "default": 0.9},
            "seed": {"type": "int", "default": 1},
            "bytes_read_per_token": {"type": "float", "no_log": False},
            "memory_bandwidth": {"type": "float"},
        },
        supports_check_mode=True,
    )
    _refuse_nonsense(module)
    parameters: dict[str, Any] = module.params
    scope = parameters["scope"] or parameters["base_url"]
    endpoint = Endpoint(parameters["base_url"], parameters["api_key"], parameters["ca_file"] or "")
    try:
        endpoint.connect(1)
    except (ValueError, OSError) as error:
        module.fail_json(msg=str(error))
    if module.check_mode:
        module.exit_json(changed=False, measurements=skipped_measurements(scope, "check mode applies no load"))
    try:
        model = parameters["model"] or _first_model(endpoint)
    except (RequestFailed, OSError) as error:
        module.exit_json(
            changed=False, measurements=failed_measurements(scope, f"the endpoint lists no model: {error}")
        )
    plan = LoadPlan(
        arrival=parameters["arrival"],
        rate_per_second=parameters["rate_per_second"],
        requests=parameters["requests"],
        warmup_requests=parameters["warmup_requests"],
        prompt_tokens=parameters["prompt_tokens"],
        output_tokens=parameters["output_tokens"],
        ignore_eos=parameters["ignore_eos"],
        request_timeout_seconds=parameters["request_timeout_seconds"],
        max_duration_seconds=parameters["max_duration_seconds"],
        max_in_flight=parameters["max_in_flight"],
        seed=parameters["seed"],
        first_prompt=int(time.time()),
    )
    result = run_load(plan, http_sender(endpoint, model))
    if result.warmup_error:
        failed = failed_measurements(scope, f"no warm-up request succeeded: {result.warmup_error}")
        module.exit_json(changed=False, measurements=failed)
    summary = summarise(result, parameters["minimum_rate_fraction"])
    decode = decode_measurement(summary, scope, parameters["bytes_read_per_token"], parameters["memory_bandwidth"])
    module.exit_json(
        changed=False,
        measurements=[*measurements(summary, scope), decode],
        errors=summary.errors,
        invalid=summary.invalid,
    )


if __name__ == "__main__":
    main()
