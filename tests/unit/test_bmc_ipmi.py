"""Sensors from `ipmitool`: every format, names that repeat, readings that are missing, and output that is cut or corrupt."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import bmc_ipmi, bmc_sensors
from hypothesis import given
from hypothesis import strategies as st

FIXTURES = Path(__file__).parents[1] / "fixtures/ipmi"
SDR = {
    "datakit_R620v1.txt": 139,
    "datakit_R740v1.txt": 199,
    "datakit_R740v2.txt": 199,
    "hardware_HP_ipmitool_sdr.txt": 52,
    "inspur_gpu_node_ipmitool_sdr_list.txt": 96,
    "openipmi_sim_faults_sdr_elist.txt": 13,
}
SENSOR = {
    "hpe_dl_sensor_excerpt.txt": 27,
    "gpu_node_one_cpu_sensor_excerpt.txt": 23,
    "openipmi_sim_faults_sensor.txt": 13,
}
EVERY = [*SDR, *SENSOR]


def text(name: str) -> str:
    return (FIXTURES / name).read_text()


def parsed(name: str) -> list[dict[str, Any]]:
    return bmc_ipmi.parse_sdr(text(name)) if name in SDR else bmc_ipmi.parse_sensor_list(text(name))


def by_label(sensors: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {one["label"]: one for one in sensors}


@pytest.mark.parametrize("name", EVERY)
def test_every_line_of_a_capture_is_a_sensor_of_its_own(name):
    sensors = parsed(name)
    assert len(sensors) == {**SDR, **SENSOR}[name]
    assert len(by_label(sensors)) == len(sensors)
    for one in sensors:
        unit = one["unit"]
        assert set(one) - {f"reading_{unit}", f"thresholds_{unit}"} == {
            *("name", "label", "id", "kind", "context", "unit", "state", "health", "text", "source")
        }
        # What has no reading has null, and what has none is never taken for sound or for sick.
        if one["state"] != "enabled":
            assert bmc_sensors.reading_of(one) is None
            assert one["health"] == "unknown"


@pytest.mark.parametrize("name", [name for name in EVERY if not name.startswith("openipmi")])
def test_the_captured_machines_are_healthy(name):
    assert {bmc_sensors.health_of(one) for one in parsed(name)} <= {"ok", "unknown"}


def test_units_are_in_the_names():
    sensors = by_label(parsed("datakit_R740v1.txt"))
    assert sensors["Temp #1"]["reading_celsius"] == 36
    assert sensors["Temp #2"]["reading_celsius"] == 45
    assert sensors["Fan1"]["reading_revolutions_per_minute"] == 3600
    assert sensors["Current 2"]["reading_amperes"] == 0.2
    assert sensors["Voltage 1"]["reading_volts"] == 220
    assert sensors["Pwr Consumption"]["reading_watts"] == 208
    assert sensors["CPU Usage"]["reading_percent"] == 1
    assert by_label(parsed("hardware_HP_ipmitool_sdr.txt"))["Fan 1"]["reading_percent"] == 33.32


def test_a_sensor_without_a_reading_is_null_and_says_as_much_as_is_known():
    sensors = by_label(parsed("datakit_R620v1.txt"))
    assert sensors["Current 2"]["state"] == "no_reading"
    assert sensors["Current 2"]["reading_amperes"] is None
    assert sensors["Voltage 2"]["reading_volts"] is None
    inspur = by_label(parsed("inspur_gpu_node_ipmitool_sdr_list.txt"))
    assert inspur["GPU0_Temp"]["reading_celsius"] is None
    assert inspur["GPU1_Temp"]["reading_celsius"] == 23
    assert inspur["FAN_M2_Speed"]["reading_revolutions_per_minute"] == 0
    described = by_label(parsed("datakit_R740v2.txt"))
    assert described["GPU1 Temp"]["state"] == "disabled"
    assert described["CPU Machine Chk"]["state"] == "no_reading"
    assert by_label(parsed("hardware_HP_ipmitool_sdr.txt"))["Temp 18"]["state"] == "disabled"


def test_two_sensors_of_one_name_stay_apart_and_go_by_their_entity():
    sensors = by_label(parsed("datakit_R740v2.txt"))
    assert (sensors["Temp (3.1)"]["reading_celsius"], sensors["Temp (3.2)"]["reading_celsius"]) == (34, 45)
    assert sensors["Temp (3.1)"]["id"] == "01h"
    assert {sensors["Status (10.1)"]["kind"], sensors["Status (10.2)"]["kind"]} == {"power_supply"}
    assert sensors["Status (3.1)"]["kind"] == "discrete"
    assert sensors["PS Redundancy"]["kind"] == "redundancy"
    assert sensors["PS Redundancy"]["text"] == "Fully Redundant"


def test_thresholds_come_in_the_order_of_ipmitool():
    sensors = by_label(parsed("gpu_node_one_cpu_sensor_excerpt.txt"))
    assert sensors["+12V"]["thresholds_volts"] == {
        "lower_fatal": 9.628,
        "lower_critical": 10.208,
        "lower_warning": 10.788,
        "upper_warning": 13.224,
        "upper_critical": 13.804,
        "upper_fatal": 14.384,
    }
    missing = sensors["CPU2 Temperature"]
    assert (missing["kind"], missing["reading_celsius"]) == ("temperature", None)
    assert missing["thresholds_celsius"]["upper_critical"] == 93
    assert sensors["+VCORE0_CPU2"]["reading_volts"] is None


def test_a_limit_of_zero_above_a_milder_limit_is_none():
    sensors = by_label(parsed("hpe_dl_sensor_excerpt.txt"))
    assert sensors["15.2-PCI 1-SFP28"]["thresholds_celsius"]["upper_critical"] == 78
    assert sensors["15.2-PCI 1-SFP28"]["thresholds_celsius"]["upper_fatal"] is None
    assert sensors["15.1-PCI 1-Netwo"]["thresholds_celsius"]["upper_fatal"] == 115
    assert set(bmc_sensors.clean_thresholds(dict.fromkeys(bmc_sensors.LEVELS, 0)).values()) == {None}
    # A thermal margin counts from below: zero is where it ends.
    margin = bmc_sensors.clean_thresholds({"upper_warning": -5, "upper_critical": 0})
    assert (margin["upper_warning"], margin["upper_critical"]) == (-5, 0)


def test_both_lists_together_give_thresholds_entities_and_states():
    sensor, elist = text("openipmi_sim_faults_sensor.txt"), text("openipmi_sim_faults_sdr_elist.txt")
    sensors = by_label(bmc_ipmi.merge(bmc_ipmi.parse_sensor_list(sensor), bmc_ipmi.parse_sdr(elist)))
    assert len(sensors) == 13
    assert sensors["Temp (3.2)"]["reading_celsius"] == 44
    assert sensors["Temp (3.2)"]["thresholds_celsius"]["upper_critical"] == 95
    gpu = sensors["GPU1 Temp"]
    assert (gpu["kind"], gpu["state"], gpu["reading_celsius"]) == ("temperature", "disabled", None)
    assert gpu["thresholds_celsius"]["upper_critical"] == 95
    health = {label: one["health"] for label, one in sensors.items() if one["health"] == "critical"}
    assert set(health) == {"Exhaust Temp", "FAN2", "PS2 Status", "PS Redundancy", "Mem ECC"}
    assert sensors["PS2 Status"]["text"] == "Presence detected, Power Supply AC lost"
    assert Counter(one["kind"] for one in sensors.values()) == {
        **{"temperature": 5, "fan": 2, "voltage": 1, "power": 1},
        **{"power_supply": 2, "redundancy": 1, "discrete": 1},
    }


def test_sensors_of_one_name_are_joined_in_order_or_not_at_all():
    measured = bmc_ipmi.parse_sensor_list(
        "Temp | 40.0 | degrees C | ok | na | na | na | 80.0 | 90.0 | na\n"
        "Temp | 50.0 | degrees C | ok | na | na | na | 85.0 | 95.0 | na\n"
    )
    elist = "Temp | 01h | ok | 3.1 | 41 degrees C\nTemp | 02h | ok | 3.2 | 51 degrees C\n"
    first, second = bmc_ipmi.merge(measured, bmc_ipmi.parse_sdr(elist))
    assert (first["reading_celsius"], first["thresholds_celsius"]["upper_critical"]) == (41, 90)
    assert (second["reading_celsius"], second["thresholds_celsius"]["upper_critical"]) == (51, 95)
    # One more in one list than in the other: which limit is whose is not known, and so none is given.
    three = bmc_ipmi.merge(measured, bmc_ipmi.parse_sdr(elist + "Temp | 03h | ok | 3.3 | 52 degrees C\n"))
    assert [one["thresholds_celsius"]["upper_critical"] for one in three] == [None, None, None]
    alike = [{**one, "thresholds_celsius": measured[0]["thresholds_celsius"]} for one in measured]
    three = bmc_ipmi.merge(alike, bmc_ipmi.parse_sdr(elist + "Temp | 03h | ok | 3.3 | 52 degrees C\n"))
    assert [one["thresholds_celsius"]["upper_critical"] for one in three] == [90, 90, 90]


def test_one_list_alone_is_enough():
    measured = bmc_ipmi.parse_sensor_list(text("openipmi_sim_faults_sensor.txt"))
    assert [one["label"] for one in bmc_ipmi.merge(measured, [])][:2] == ["Temp #1", "Temp #2"]
    described = bmc_ipmi.parse_sdr(text("openipmi_sim_faults_sdr_elist.txt"))
    assert [one["label"] for one in bmc_ipmi.merge([], described)][:2] == ["Temp (3.1)", "Temp (3.2)"]


@pytest.mark.parametrize(
    ("name", "states", "health"),
    [
        ("PS2 Status", "Presence detected, Failure detected", "critical"),
        ("PS2 Status", "Presence detected, Predictive failure", "warning"),
        ("PS2 Status", "Presence detected, AC out-of-range, but present", "warning"),
        ("PS Redundancy", "Redundancy Degraded", "warning"),
        ("PS Redundancy", "Non-Redundant: Sufficient from Redundant", "warning"),
        ("PS Redundancy", "Non-Redundant: Insufficient Resources", "critical"),
        ("CPU1 Status", "IERR", "critical"),
        ("CPU1 Status", "Thermal Trip", "critical"),
        ("PS1 PG FAIL", "State Asserted", "critical"),
        ("PS1 PG FAIL", "State Deasserted", ""),
        ("CPU1_Presence", "State Asserted", ""),
        ("Drive 0", "Drive Present, Drive Fault", "critical"),
        ("Drive 0", "Drive Present", ""),
        ("SEL", "Log Cleared", ""),
        ("VRD Status", "Transition to Critical from less severe", "critical"),
    ],
)
def test_states_of_discrete_sensors_that_mean_a_failure(name, states, health):
    assert bmc_ipmi.discrete_health(name, states) == health


def test_a_fan_redundancy_sensor_is_no_fan_and_an_unknown_unit_is_said_to_be_one():
    [one] = bmc_ipmi.parse_sdr("Fan Redundancy | 78h | ok | 7.1 | Redundancy Lost")
    assert (one["kind"], one["health"], one["unit"]) == ("redundancy", "critical", "")
    [one] = bmc_ipmi.parse_sdr("CPU_ResourceRate | 3 unspecified | ok")
    assert (one["kind"], one["reading_unspecified"]) == ("other", 3)


def test_lines_that_are_no_sensor_are_left_out():
    noise = "Get SDR 00a1 command failed: Timeout\nSensor list|\n\n | | \nFan | x | y | z\n" + "A|" * 5000
    assert bmc_ipmi.parse_sdr(noise) == bmc_ipmi.parse_sensor_list(noise) == []
    huge = bmc_ipmi.parse_sensor_list("T | 1e999 | degrees C | ok | na | na | na | 9e999 | nan | inf")[0]
    assert (huge["reading_celsius"], set(huge["thresholds_celsius"].values())) == (None, {None})


@st.composite
def damaged(draw: st.DrawFn) -> str:
    """A capture that was cut anywhere, with a few characters replaced."""
    whole = text(draw(st.sampled_from(EVERY)))[: draw(st.integers(0, 4000))]
    for _ in range(draw(st.integers(0, 5))):
        at = draw(st.integers(0, max(len(whole) - 1, 0)))
        whole = whole[:at] + draw(st.text(max_size=3)) + whole[at + 1 :]
    return whole


@given(damaged(), damaged())
def test_cut_and_corrupt_output_never_raises(first, second):
    measured, described = bmc_ipmi.parse_sensor_list(first), bmc_ipmi.parse_sdr(second)
    for one in bmc_ipmi.merge(measured, described):
        assert one["kind"]
        assert bmc_sensors.health_of(one) in bmc_sensors.HEALTHS
        assert bmc_sensors.reading_text(one)
    assert isinstance(bmc_ipmi.parse_pairs(first), dict)


@given(st.text())
def test_any_text_at_all_never_raises(anything):
    for one in bmc_ipmi.merge(bmc_ipmi.parse_sensor_list(anything), bmc_ipmi.parse_sdr(anything)):
        assert bmc_sensors.health_of(one) in bmc_sensors.HEALTHS
