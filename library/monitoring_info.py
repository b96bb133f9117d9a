#!/usr/bin/python
# Copyright (c) The Plumbline founders
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: what a Prometheus sees, and by which rules it judges."""

from __future__ import annotations

DOCUMENTATION = r"""
module: monitoring_info
short_description: Measure whether a Prometheus scrapes what it should, by rules that are loaded and metrics that are there
description:
  - Asks the API of Prometheus on the host itself, and waits for the first figures after a start. Changes nothing.
version_added: 0.1.0
author:
  - The Plumbline founders
options:
  address:
    description: Where Prometheus listens.
    type: str
    default: 127.0.0.1
  port:
    description: Its port.
    type: int
    default: 9090
  mode:
    description: V(own) and V(centre) judge by rules; an V(agent) sends its figures to a centre.
    type: str
    choices: [own, agent, centre]
    default: own
  targets:
    description: What must be up, each with C(job) and C(target) (host:port).
    type: list
    elements: dict
    default: []
  nodes:
    description: Hosts whose figures must have come.
    type: list
    elements: str
    default: []
  alerts:
    description: Names of the alerts that must be loaded.
    type: list
    elements: str
    default: []
  metrics:
    description: Names of the metrics that must be there, by job.
    type: dict
    default: {}
  bounds:
    description: Names of the bounds that each node must tell.
    type: list
    elements: str
    default: []
  settle_seconds:
    description: How long to wait for the first figures.
    type: int
    default: 60
  scope:
    description: Scope of the measurements.
    type: str
    required: true
attributes:
  check_mode:
    description: Observes only. Where Prometheus does not run yet, its measurements say that they were skipped.
    support: full
  diff_mode:
    description: Changes nothing.
    support: none
"""

EXAMPLES = r"""
- name: What the monitoring sees is known
  plumbline.plumbline.monitoring_info:
    targets:
      - {job: node, target: "127.0.0.1:9100"}
    alerts: [EndpointDown]
    scope: "{{ inventory_hostname }}"
  register: __monitoring_info
"""

RETURN = r"""
measurements:
  description: >-
    C(monitoring_target) for each target; with rules C(monitoring_rules), C(monitoring_metrics_missing), C(monitoring_bounds_missing),
    C(monitoring_node) for each node and C(monitoring_alerts); of an agent C(monitoring_samples_unsent).
  returned: always
  type: list
  elements: dict
  sample:
    - {name: monitoring_target, scope: vllm on node1, value: up, expected: up}
"""

import time
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import monitoring_measurements as measure
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.prometheus_api import (
    Prometheus,
    PrometheusError,
)

_PAUSE_SECONDS = 1.0


def _judged(prometheus: Prometheus, parameters: dict[str, Any]) -> list[dict[str, Any]]:
    """What there is to say of a Prometheus that has rules."""
    scope = parameters["scope"]
    jobs = sorted({target["job"] for target in parameters["targets"]})
    # Only this host's: a monitoring host has the others' figures, too.
    known = {job: prometheus.metric_names(f'{{job="{job}", node="{scope}"}}') for job in jobs}
    bounds = prometheus.vector("plumbline_limit")
    return [
        measure.rule_measurement(parameters["alerts"], prometheus.rules(), scope),
        measure.metric_measurement(parameters["metrics"], jobs, known, scope),
        measure.bound_measurement(parameters["bounds"], bounds, [scope], scope),
        *measure.node_measurements(parameters["nodes"], prometheus.vector('up{job="node"} == 1')),
        measure.firing_measurement(prometheus.firing(), scope),
    ]


def _observe(prometheus: Prometheus, parameters: dict[str, Any]) -> list[dict[str, Any]]:
    found = measure.target_measurements(parameters["targets"], prometheus.targets(), parameters["scope"])
    if parameters["mode"] == "agent":
        return [*found, measure.sending_measurement(prometheus.own_metrics(), parameters["scope"])]
    return found + _judged(prometheus, parameters)


def _lacks(measurements: list[dict[str, Any]]) -> bool:
    """Whether waiting may still help: something has not come yet."""
    return any(
        one.get("error")
        or (one["name"].endswith("_missing") and one["value"])
        or ("expected" in one and one["value"] != one["expected"])
        for one in measurements
    )


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "address": {"type": "str", "default": "127.0.0.1"},
            "port": {"type": "int", "default": 9090},
            "mode": {"type": "str", "choices": ["own", "agent", "centre"], "default": "own"},
            "targets": {"type": "list", "elements": "dict", "default": []},
            "nodes": {"type": "list", "elements": "str", "default": []},
            "alerts": {"type": "list", "elements": "str", "default": []},
            "metrics": {"type": "dict", "default": {}},
            "bounds": {"type": "list", "elements": "str", "default": []},
            "settle_seconds": {"type": "int", "default": 60},
            "scope": {"type": "str", "required": True},
        },
        supports_check_mode=True,
    )
    prometheus = Prometheus(module.params["address"], module.params["port"])
    end = time.monotonic() + (0 if module.check_mode else module.params["settle_seconds"])
    while True:
        try:
            measurements, problem = _observe(prometheus, module.params), ""
        except PrometheusError as error:
            measurements, problem = [], str(error)
        if time.monotonic() >= end or not (problem or _lacks(measurements)):
            break
        time.sleep(_PAUSE_SECONDS)
    if problem:
        kind = "skipped" if module.check_mode else "error"
        said = f"check mode: {problem}" if module.check_mode else problem
        measurements = [{"name": "monitoring_rules", "scope": module.params["scope"], kind: said}]
    module.exit_json(changed=False, measurements=measurements)


if __name__ == "__main__":
    main()
