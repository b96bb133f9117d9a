#!/usr/bin/python
# Copyright (c) The Plumbline founders
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: sensors and event log of a machine, over Redfish or in-band."""

from __future__ import annotations

DOCUMENTATION = r"""
module: bmc_sensors_info
short_description: Observe temperatures, fans, power, voltages, currents and the event log of a machine
description:
  - Over Redfish where O(base_url) is set (run it on the controller); else in-band, from C(ipmitool) on the node itself, which needs
    root and the kernel's IPMI driver. Both give the same structure.
  - Over Redfish it reads what the BMC has - C(Thermal) and C(Power), or C(Sensors), C(ThermalSubsystem), C(PowerSubsystem) and
    C(EnvironmentMetrics) - and the event log wherever the vendor keeps it.
  - Units are in the names of the fields. A sensor without a reading has V(null), never 0.
  - Nothing is judged but by the machine itself - a sensor's own thresholds, the health that its BMC reports, the severity of an event.
version_added: 0.1.0
extends_documentation_fragment:
  - plumbline.plumbline.redfish
options:
  base_url:
    description: Address of the BMC's Redfish service, for instance V(https://bmc.example:443). Unset, C(ipmitool) is asked on the node.
    type: str
    default: ''
  username:
    description: Account of the BMC. Reading needs the role ReadOnly.
    type: str
    default: ''
  password:
    description: Its password.
    type: str
    default: ''
  log_entries_maximum:
    description: How many of the newest entries of the event log are returned.
    type: int
    default: 500
  log_days:
    description: Days of the event log that RV(measurements) count, by the BMC's own clock.
    type: int
    default: 30
  ignored:
    description: Regular expressions. A sensor whose C(label) or C(name) one of them matches as a whole is returned and not measured.
    type: list
    elements: str
    default: []
  required:
    description: Regular expressions. For each a sensor must have a reading, else it counts as dead.
    type: list
    elements: str
    default: []
  known:
    description: Labels of sensors that had a reading in an earlier survey (RV(labels_with_reading)); one that has none now counts as lost.
    type: list
    elements: str
    default: []
  ipmitool_timeout_seconds:
    description: How long one call of C(ipmitool) may take. It reads each sensor over a slow bus.
    type: int
    default: 120
attributes:
  check_mode:
    description: Reads only.
    support: full
  diff_mode:
    description: Changes nothing.
    support: none
author:
  - The Plumbline founders
seealso:
  - module: plumbline.plumbline.redfish_info
"""

EXAMPLES = r"""
- name: The sensors are known, over Redfish
  plumbline.plumbline.bmc_sensors_info:
    base_url: https://10.0.0.7
    username: admin
    password: "{{ bmc_password }}"
    ca_file: /etc/ssl/certs/bmc-ca.pem
  delegate_to: localhost
  register: sensors

- name: The sensors are known, from the node itself
  plumbline.plumbline.bmc_sensors_info:
  become: true
  register: sensors

- name: The warmest sensors come first
  ansible.builtin.debug:
    msg: >-
      {{ sensors.sensors | selectattr('kind', 'eq', 'temperature') | rejectattr('reading_celsius', 'none')
      | sort(attribute='reading_celsius', reverse=true) | map(attribute='label') | list }}

- name: No sensor is beyond its limits
  plumbline.plumbline.gate:
    measurements: "{{ sensors.measurements }}"
"""

RETURN = r"""
available:
  description: Whether the sensors could be asked for at all.
  returned: success
  type: bool
  sample: true
reason:
  description: Why not, where RV(available) is false.
  returned: success
  type: str
  sample: ''
source:
  description: V(redfish) or V(ipmitool); empty where RV(available) is false.
  returned: success
  type: str
  sample: redfish
power_state:
  description: V(on) or V(off) or whatever the BMC says. Without power most sensors have no reading.
  returned: success
  type: str
  sample: 'on'
sensors:
  description:
    - Every sensor. C(name) as the BMC calls it, C(label) (unique on the machine), C(id), C(kind), C(context) (IPMI entity or Redfish
      PhysicalContext), C(unit), C(reading_UNIT), C(thresholds_UNIT), C(state), C(health), C(text) (states of a discrete sensor), C(source).
    - C(kind) is V(temperature), V(power), V(fan), V(voltage), V(current), V(power_supply), V(redundancy), V(discrete), V(utilization),
      V(energy), V(humidity), V(airflow) or V(other).
    - C(unit) is V(celsius), V(watts), V(revolutions_per_minute), V(percent), V(volts), V(amperes), V(joules), V(hertz),
      V(cubic_feet_per_minute), V(unspecified), or empty for a discrete sensor, which has neither C(reading_UNIT) nor C(thresholds_UNIT).
    - C(thresholds_UNIT) holds C(lower_fatal), C(lower_critical), C(lower_warning), C(upper_warning), C(upper_critical) and
      C(upper_fatal), V(null) where there is none.
    - C(state) is V(enabled), V(dead) (enabled by the BMC's word, and without a reading), V(no_reading) (the BMC does not say why),
      V(disabled), V(absent) or V(unavailable). C(health) is V(ok), V(warning), V(critical) or V(unknown).
  returned: success
  type: list
  elements: dict
  sample:
    - name: CPU1 Temp
      label: CPU1 Temp
      id: 01h
      kind: temperature
      context: '3.1'
      unit: celsius
      reading_celsius: 47.0
      thresholds_celsius:
        lower_fatal: null
        lower_critical: null
        lower_warning: null
        upper_warning: 90.0
        upper_critical: 95.0
        upper_fatal: null
      state: enabled
      health: ok
      text: ''
      source: ipmitool
labels_with_reading:
  description: Labels of the sensors that have a reading, for O(known) of a later call.
  returned: success
  type: list
  elements: str
  sample: [CPU1 Temp, FAN1]
log:
  description: >-
    The newest entries of the event log, oldest first - C(id), C(time) (UTC, by the BMC's clock; V(null) where that was not set),
    C(severity) (ok, warning, critical), C(sensor), C(message), C(message_id), C(asserted), C(resolved) (ended later, or marked as
    repaired), C(lasting) (such as an uncorrectable error, which does not become undone).
  returned: success
  type: list
  elements: dict
  sample:
    - id: 2e6
      time: '2026-12-31T16:11:36Z'
      severity: critical
      sensor: Power Supply PS1 Status
      message: Power Supply AC lost
      message_id: ''
      asserted: true
      resolved: true
      lasting: false
log_service:
  description: >-
    C(name), C(entries) (all), C(used_fraction) (V(null) for a log that overwrites its oldest entries), C(time) and C(uri) of the log.
  returned: success
  type: dict
  sample: {name: SEL, entries: 107, used_fraction: 0.02, time: '2027-01-01T08:00:00Z', uri: ''}
notes:
  description: What could not be read, a sentence each.
  returned: success
  type: list
  elements: str
  sample: []
measurements:
  description: >-
    For the action M(plumbline.plumbline.gate) - V(sensor_readings), V(sensor_temperature_margin), V(sensor_critical) (one for each group
    of kinds), V(sensor_warning), V(sensor_fan_standstill), V(sensor_dead), V(sensor_lost), V(system_power), V(log_critical_entries),
    V(log_recovered_entries) and V(log_used).
  returned: success
  type: list
  elements: dict
  sample:
    - name: sensor_critical
      scope: temperatures
      value: 0
      unit: count
"""

import re
import shlex
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import bmc_ipmi_run
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.bmc_sensor_measurements import (
    sensor_measurements,
    sensors_skipped,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.bmc_sensors import reading_of

_DAYS_MAXIMUM = 3650
_ENTRIES_MAXIMUM = 10000


def problem_of(parameters: dict[str, Any]) -> str:
    """What is wrong with the options, in one sentence; empty where nothing is."""
    bounds = {"log_days": _DAYS_MAXIMUM, "log_entries_maximum": _ENTRIES_MAXIMUM, "ipmitool_timeout_seconds": 3600}
    for name, most in bounds.items():
        if not 1 <= parameters[name] <= most:
            return f"{name}: expected 1 to {most}, found {parameters[name]}"
    for name in ("ignored", "required"):
        for pattern in parameters[name]:
            try:
                re.compile(pattern)
            except re.error as error:
                return f'{name}: expected regular expressions, found "{pattern}" ({error}); write \\( for a parenthesis in a name'
    return ""


def _curl(parameters: dict[str, Any]) -> str:
    """How a person asks the same BMC, with the same trust in its certificate; curl prompts for the password."""
    words = ["curl", "-u", parameters["username"]]
    if not parameters["validate_certs"]:
        words.append("--insecure")
    elif parameters["ca_file"]:
        words += ["--cacert", parameters["ca_file"]]
    return shlex.join([*words, parameters["base_url"].rstrip("/")])


def result_of(facts: dict[str, Any], source: str, parameters: dict[str, Any]) -> dict[str, Any]:
    measurements = sensor_measurements(
        facts,
        ignored=parameters["ignored"],
        required=parameters["required"],
        known=parameters["known"],
        log_days=parameters["log_days"],
        curl=_curl(parameters) if source == "redfish" else "",
    )
    return {
        "changed": False,
        "available": True,
        "reason": "",
        "source": source,
        "power_state": facts["power_state"],
        "sensors": facts["sensors"],
        "labels_with_reading": [one["label"] for one in facts["sensors"] if reading_of(one) is not None],
        "log": facts["log"],
        "log_service": facts["log_service"],
        "notes": facts["notes"],
        "measurements": measurements,
    }


def in_band(module: AnsibleModule) -> None:
    reason = bmc_ipmi_run.obstacle()
    if reason:
        module.exit_json(
            changed=False,
            available=False,
            reason=reason,
            source="",
            power_state="on",
            sensors=[],
            labels_with_reading=[],
            log=[],
            log_service={"name": "", "entries": None, "used_fraction": None, "time": None, "uri": ""},
            notes=[],
            measurements=sensors_skipped(reason),
        )
    tool = bmc_ipmi_run.IpmiTool(module.params["ipmitool_timeout_seconds"])
    facts = bmc_ipmi_run.observe(tool, module.params["log_entries_maximum"])
    module.exit_json(**result_of(facts, "ipmitool", module.params))


def over_redfish(module: AnsibleModule) -> None:
    # Only here: the node needs none of it.
    from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import (  # noqa: PLC0415
        bmc_redfish,
        redfish_module,
    )

    redfish_module.run(
        module,
        lambda client: result_of(
            bmc_redfish.observe(client, module.params["system_id"], module.params["log_entries_maximum"]),
            "redfish",
            module.params,
        ),
    )


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "base_url": {"type": "str", "default": ""},
            "username": {"type": "str", "default": ""},
            "password": {"type": "str", "default": "", "no_log": True},
            "ca_file": {"type": "path"},
            "validate_certs": {"type": "bool", "default": True},
            "timeout_seconds": {"type": "float", "default": 30},
            "system_id": {"type": "str", "default": ""},
            "log_entries_maximum": {"type": "int", "default": 500},
            "log_days": {"type": "int", "default": 30},
            "ignored": {"type": "list", "elements": "str", "default": []},
            "required": {"type": "list", "elements": "str", "default": []},
            "known": {"type": "list", "elements": "str", "default": []},
            "ipmitool_timeout_seconds": {"type": "int", "default": 120},
        },
        supports_check_mode=True,
    )
    problem = problem_of(module.params)
    if problem:
        module.fail_json(msg=problem)
    if module.params["base_url"]:
        over_redfish(module)
    else:
        in_band(module)


if __name__ == "__main__":
    main()
