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
  - Yields measurements for the gate. Percentiles come from an HDR histogram of three significant digits.
  - The load is applied by a process of its own, in a Python that has aiohttp.
author:
  - The Plumbline founders
requirements:
  - aiohttp (in O(python))
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
    description: CA certificates for an https endpoint, readable by everybody; the system's when left out.
    type: path
  python:
    description: The interpreter that applies the load; it has aiohttp, as the engine's has. The module's own when left out.
    type: path
  scope:
    description: Scope of the measurements. O(base_url) when left out.
    type: str
  arrival:
    description: >-
      V(constant) spaces the requests evenly, V(poisson) draws the gaps as independent users would make them. V(closed) lets
      O(concurrency) users ask again when they are answered; such a load does not see stalls, and has no requested rate.
    type: str
    choices: [constant, poisson, closed]
    default: constant
  rate_per_second:
    description: Requests per second. Needed unless O(arrival=closed).
    type: float
  concurrency:
    description: Users of O(arrival=closed).
    type: int
    default: 0
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
  prompts_file:
    description: >-
      JSONL on the host with prompts to send instead, in turn: a text, an object with C(prompt), or one with C(messages) on each line;
      C(output_tokens) beside it overrules O(output_tokens).
    type: path
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
  slo:
    description: >-
      Bounds that a good request keeps, in seconds: C(time_to_first_token_seconds), C(inter_token_latency_seconds) (mean of the
      request), C(end_to_end_latency_seconds). The goodput counts the good ones.
    type: dict
    default: {}
  sweep:
    description: >-
      Afterwards, find the highest rate that keeps C(bounds), in seconds by name such as C(time_to_first_token_p99). It begins at
      O(rate_per_second), doubles until a rate does not hold, and halves the gap. Each rate takes C(seconds) (30) and at least 20 requests;
      C(steps) (12) rates at most, up to C(maximum_rate) (10000), until they lie within C(resolution) (0.05);
      C(rate_fraction) (0.9) and C(error_fraction) (0) are what else a rate must keep.
    type: dict
    default: {}
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
    python: "{{ engine_python }}"
    rate_per_second: 2
    requests: 120
    arrival: poisson
    prompt_tokens: 512
    output_tokens: 128
  register: __accept_load

- name: The highest rate that keeps a first token within half a second is known
  plumbline.plumbline.llm_benchmark:
    base_url: http://127.0.0.1:8000/v1
    api_key: "{{ serving_api_key }}"
    python: "{{ engine_python }}"
    rate_per_second: 2
    requests: 60
    sweep:
      bounds:
        time_to_first_token_p99: 0.5
"""

RETURN = r"""
measurements:
  description: >-
    C(time_to_first_token_p50|p90|p99), C(inter_token_latency_p50|p99), C(end_to_end_latency_p50|p90|p99) (s),
    C(output_tokens_per_second) and C(stream_decode_tokens_per_second) (tokens/s), C(request_error_fraction) (fraction),
    C(achieved_request_rate), C(goodput_request_rate) and C(highest_rate_within_slo) (requests/s), C(client_send_lag_p99) (s).
    The P99s carry their samples, and P50 to P99.9 in C(conditions.percentiles_seconds).
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
histograms:
  description: Each latency's histogram (HdrHistogram V2, microseconds), to be merged with others.
  returned: when a load was applied
  type: dict
  sample: {}
"""

import json
import math
import sys
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.checkpoint_errors import CheckpointError
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.load_program import NEEDS, WORKER
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.load_report import (
    decode_measurement,
    failed_measurements,
    measurements,
    skipped_measurements,
    summarise,
    sweep_measurement,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.load_spec import (
    LoadSpec,
    read_prompts,
    read_spec,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.load_sweep_plan import (
    longest_seconds,
    read_sweep,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.worker import run_worker

# What each number must be at least, and at most where that makes sense.
BOUNDS = {
    "rate_per_second": (0.001, 10_000),
    "concurrency": (0, 4096),
    "requests": (2, 100_000),
    "warmup_requests": (0, 10_000),
    "prompt_tokens": (1, None),
    "output_tokens": (1, None),
    "request_timeout_seconds": (0.001, None),
    "max_duration_seconds": (0.001, None),
    "max_in_flight": (1, 4096),
    "minimum_rate_fraction": (0.001, 1),
}
_INTERVALS = 60
_START_SECONDS = 60

# What a load takes as this module does.
_SAME = (
    "base_url",
    "api_key",
    "arrival",
    "concurrency",
    "requests",
    "warmup_requests",
    "prompt_tokens",
    "output_tokens",
    "ignore_eos",
    "request_timeout_seconds",
    "max_duration_seconds",
    "max_in_flight",
    "seed",
    "slo",
)


def _refuse_nonsense(module: AnsibleModule) -> None:
    for name, (least, most) in BOUNDS.items():
        value = module.params[name]
        if value is None:
            continue
        if value < least or (most is not None and value > most):
            upper = f" and at most {most}" if most is not None else ""
            module.fail_json(msg=f"{name} must be at least {least}{upper}, {value} was found")
    rate = module.params["rate_per_second"]
    if rate is None:
        return
    span = (module.params["requests"] - 1) / rate
    if span >= module.params["max_duration_seconds"]:
        module.fail_json(
            msg=(
                f"{module.params['requests']} requests at {rate:g}/s take {span:.0f} s, which "
                f"does not fit into max_duration_seconds {module.params['max_duration_seconds']:g}; send fewer, faster, or allow more time"
            )
        )


def _job(module: AnsibleModule) -> tuple[dict[str, Any], LoadSpec]:
    """Return the load as its worker takes it, and as it was understood."""
    parameters = module.params
    job = {name: parameters[name] for name in _SAME}
    for name in ("ca_file", "model", "rate_per_second"):
        if parameters[name]:
            job[name] = parameters[name]
    job["first_prompt"] = int(time.time())
    span = parameters["requests"] / parameters["rate_per_second"] if parameters["rate_per_second"] else 0
    # Whole seconds: shorter ones hold too few requests to say anything.
    job["interval_seconds"] = max(1, math.ceil(span / _INTERVALS))
    try:
        if parameters["prompts_file"]:
            # Read here: the worker has no rights to files of root.
            text = Path(parameters["prompts_file"]).read_text(encoding="utf-8")
            job["prompts"] = read_prompts(text, parameters["prompts_file"])
        spec = read_spec(job)
        spec.target()
        if parameters["sweep"]:
            read_sweep(parameters["sweep"])
            if parameters["arrival"] == "closed":
                raise ValueError(
                    "a sweep looks for a rate, which arrival closed has none of: choose constant or poisson"
                )
    except (OSError, ValueError) as error:
        module.fail_json(msg=str(error))
    return job, spec


def _seconds(spec: LoadSpec, sweep: dict[str, Any]) -> int:
    """How long the worker may take before it is taken for stuck."""
    seconds = _START_SECONDS + spec.max_duration_seconds
    seconds += (max(1, spec.warmup_requests) + 1) * (spec.request_timeout_seconds + 1)
    if sweep:
        plan = read_sweep(sweep)
        seconds += longest_seconds(plan, spec.rate_per_second) + plan.steps * spec.request_timeout_seconds
    return math.ceil(seconds)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "base_url": {"type": "str", "required": True},
            "api_key": {"type": "str", "required": True, "no_log": True},
            "model": {"type": "str"},
            "ca_file": {"type": "path"},
            "python": {"type": "path"},
            "scope": {"type": "str"},
            "arrival": {"type": "str", "choices": ["constant", "poisson", "closed"], "default": "constant"},
            "rate_per_second": {"type": "float"},
            "concurrency": {"type": "int", "default": 0},
            "requests": {"type": "int", "required": True},
            "warmup_requests": {"type": "int", "default": 1},
            "prompt_tokens": {"type": "int", "default": 128, "no_log": False},
            "output_tokens": {"type": "int", "default": 64, "no_log": False},
            "prompts_file": {"type": "path"},
            "ignore_eos": {"type": "bool", "default": True},
            "request_timeout_seconds": {"type": "float", "default": 120},
            "max_duration_seconds": {"type": "float", "default": 300},
            "max_in_flight": {"type": "int", "default": 256},
            "minimum_rate_fraction": {"type": "float", "default": 0.9},
            "seed": {"type": "int", "default": 1},
            "slo": {"type": "dict", "default": {}},
            "sweep": {"type": "dict", "default": {}},
            "bytes_read_per_token": {"type": "float", "no_log": False},
            "memory_bandwidth": {"type": "float"},
        },
        supports_check_mode=True,
    )
    _refuse_nonsense(module)
    job, spec = _job(module)
    parameters: dict[str, Any] = module.params
    scope = parameters["scope"] or parameters["base_url"]
    if module.check_mode:
        module.exit_json(changed=False, measurements=skipped_measurements(scope, "check mode applies no load"))
    python = parameters["python"] or sys.executable
    try:
        result = run_worker(
            python,
            WORKER,
            NEEDS,
            json.dumps({**job, "sweep": parameters["sweep"]}),
            timeout=_seconds(spec, parameters["sweep"]),
            punctual=True,  # a client that waits behind the engine for a processor would measure its own wait
        ).result
    except OSError as error:
        module.fail_json(
            msg=f"The load is applied by {python}, which does not run: {error}. Name another with the option python."
        )
    except CheckpointError as error:
        if "No module named 'aiohttp'" in str(error):
            module.fail_json(
                msg=f"{python} has no aiohttp: name by the option python one that has it, as the engine's has (engine_python)."
            )
        module.fail_json(msg=str(error))
    if result["warmup_error"]:
        module.exit_json(changed=False, measurements=failed_measurements(scope, result["warmup_error"]))
    summary = summarise(result, spec, parameters["minimum_rate_fraction"])
    decode = decode_measurement(summary, scope, parameters["bytes_read_per_token"], parameters["memory_bandwidth"])
    module.exit_json(
        changed=False,
        measurements=[*measurements(summary, scope), decode, sweep_measurement(result.get("sweep"), scope)],
        errors=dict(summary.total.failed),
        invalid=summary.invalid,
        histograms=result["total"]["histograms"],
    )


if __name__ == "__main__":
    main()
