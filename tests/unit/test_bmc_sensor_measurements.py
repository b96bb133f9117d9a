"""What the gate gets of sensors and log: nothing to say of healthy machines, and the name of each sensor that is not."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import bmc_event_log, bmc_ipmi, gates
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.bmc_sensor_measurements import (
    sensor_measurements,
    sensors_skipped,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.bmc_sensors import reading_of, sensor
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests/fixtures/ipmi"
RULES = yaml.safe_load((ROOT / "group_vars/all/gates.yml").read_text())["gates_rules"]
HEALTHY = [
    "datakit_R620v1.txt",
    "datakit_R740v1.txt",
    "datakit_R740v2.txt",
    "hardware_HP_ipmitool_sdr.txt",
    "inspur_gpu_node_ipmitool_sdr_list.txt",
    "hpe_dl_sensor_excerpt.txt",
    "gpu_node_one_cpu_sensor_excerpt.txt",
]
Json = dict[str, Any]


def facts(sensors: list[Json], log: str = "", **changes: Any) -> Json:
    base: Json = {
        "sensors": sensors,
        "sensors_error": "",
        "log": bmc_event_log.with_resolution(bmc_event_log.parse_sel(log)),
        "log_error": "",
        "log_service": {"name": "SEL", "entries": 0, "used_fraction": 0.02, "time": "2016-01-06T00:00:00Z", "uri": ""},
        "power_state": "on",
        "notes": [],
    }
    return {**base, **changes}


def machine(name: str) -> list[Json]:
    text = (FIXTURES / name).read_text()
    return bmc_ipmi.parse_sensor_list(text) if "_sensor" in name else bmc_ipmi.parse_sdr(text)


def judged(found: list[Json]) -> dict[tuple[str, str], Json]:
    """The checks that the gate makes of measurements, by name and scope."""
    return {(one["name"], one["scope"]): gates.judge(one, RULES).record() for one in found}


def bad(found: list[Json]) -> dict[str, Json]:
    """The checks that are neither OK nor SKIPPED, by name."""
    return {key[0]: one for key, one in judged(found).items() if one["status"] not in ("OK", "SKIPPED")}


def measure(sensors: list[Json], log: str = "", **options: Any) -> list[Json]:
    changes = {key: options.pop(key) for key in list(options) if key in ("power_state", "log_service", "log_error")}
    return sensor_measurements(facts(sensors, log, **changes), **options)


def temperature(reading: Any, name: str = "CPU1 Temp", **more: Any) -> Json:
    limits = {"upper_warning": 90, "upper_critical": 95, "lower_critical": 3}
    return sensor(name, "temperature", "celsius", reading, limits, **{"health": "ok", **more})


def fan(reading: Any, name: str = "FAN1", limits: Json | None = None, **more: Any) -> Json:
    return sensor(name, "fan", "", reading, limits, **{"health": "ok", **more})


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_machine_raises_no_alarm_although_dozens_of_its_sensors_have_no_reading(name):
    sensors = machine(name)
    found = measure(sensors, known=[one["label"] for one in sensors if reading_of(one) is not None])
    assert bad(found) == {}
    # 199 sensors are a screen of lines at most.
    assert len(found) <= 15
    assert all(one.get("error", "") == "" for one in found)


def test_a_machine_whose_bmc_cannot_be_asked_is_skipped_with_the_reason():
    [check] = judged(sensors_skipped("there is no /dev/ipmi0")).values()
    assert (check["status"], "/dev/ipmi0" in check["reason"]) == ("SKIPPED", True)


def test_faults_of_a_real_tool_s_output_are_all_named():
    texts = [(FIXTURES / f"openipmi_sim_faults_{part}.txt").read_text() for part in ("sensor", "sdr_elist")]
    sensors = bmc_ipmi.merge(bmc_ipmi.parse_sensor_list(texts[0]), bmc_ipmi.parse_sdr(texts[1]))
    checks = judged(measure(sensors, (FIXTURES / "openipmi_sim_sel_elist.txt").read_text()))
    named = {
        "temperatures": "Exhaust Temp 96 °C (critical from 95 on)",
        "fans": "FAN2 0 RPM (critical from 500 down)",
        "power supplies": "PS2 Status Presence detected, Power Supply AC lost; PS Redundancy Redundancy Lost",
        "other sensors": "Mem ECC Uncorrectable ECC",
    }
    for scope, cause in named.items():
        check = checks["sensor_critical", scope]
        assert check["status"] == "CRITICAL"
        assert cause in check["cause"]
        assert check["next_command"]
    assert checks["sensor_critical", "voltages and currents"]["status"] == "OK"
    assert checks["sensor_temperature_margin", "Exhaust Temp"]["status"] == "CRITICAL"
    log = checks["log_critical_entries", "event log"]
    assert log["status"] == "CRITICAL"
    said = (
        "Memory Mem ECC: Uncorrectable ECC (at a time when the BMC's clock was not set); 5 critical entries did not end"
    )
    assert said in log["cause"]


@pytest.mark.parametrize(
    ("reading", "status"), [(60, "OK"), (90, "OK"), (91, "WARN"), (94.5, "CRITICAL"), (99, "CRITICAL")]
)
def test_the_margin_of_the_warmest_sensor_by_its_own_limit(reading, status):
    found = measure([temperature(40, "Inlet"), temperature(reading), sensor("NVMe", "temperature", "", 200)])
    [check] = [one for (name, _), one in judged(found).items() if name == "sensor_temperature_margin"]
    assert check["status"] == status
    if status != "OK":
        assert check["scope"] == "CPU1 Temp"
        assert f"CPU1 Temp reads {reading} °C, and is critical from 95 °C on" in check["cause"]


def test_without_a_threshold_there_is_no_margin_to_judge():
    found = measure([sensor("Temp", "temperature", "", 40)])
    assert judged(found)["sensor_temperature_margin", "bmc"]["status"] == "SKIPPED"


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (temperature(97), "CPU1 Temp 97 °C (critical from 95 on)"),
        (temperature(2), "CPU1 Temp 2 °C (critical from 3 down)"),
        (temperature(70, health="critical"), "CPU1 Temp 70 °C, and its BMC says critical"),
        (fan(0, limits={"lower_critical": 500}), "FAN1 0 RPM (critical from 500 down)"),
        (fan(450, limits={"lower_critical": 500}), "FAN1 450 RPM (critical from 500 down)"),
        (fan(0, limits={"lower_fatal": 0, "lower_critical": 0, "lower_warning": 520}), "FAN1 0 RPM"),
        (fan(0, health="critical"), "FAN1 0 RPM, and its BMC says critical"),
        (sensor("P12V", "voltage", "", 10.2, {"lower_critical": 10.8}), "P12V 10.2 V (critical from 10.8 down)"),
        (sensor("P12V", "voltage", "", 13.4, {"upper_critical": 13.2}), "P12V 13.4 V (critical from 13.2 on)"),
        (sensor("PSU1", "power_supply", "", None, health="critical", text="LossOfInput"), "PSU1 LossOfInput"),
        (sensor("PSU1", "power_supply", "", None, state="unavailable", health="critical", text="Off"), "PSU1 Off"),
        (sensor("PS Redundancy", "redundancy", health="critical", text="Redundancy Lost"), "Redundancy Lost"),
        (sensor("Curr", "current", "", 60, {"upper_critical": 53}), "Curr 60 A (critical from 53 on)"),
    ],
)
def test_a_sensor_beyond_its_limits_or_in_bad_health_is_named(one, words):
    check = bad(measure([temperature(40, "Inlet"), one]))["sensor_critical"]
    assert check["status"] == "CRITICAL"
    assert words in check["cause"]


@pytest.mark.parametrize(
    "one", [temperature(91), fan(700, limits={"lower_warning": 900}), sensor("PS1", "power_supply", health="warning")]
)
def test_a_warning_is_a_warning(one):
    check = bad(measure([temperature(40, "Inlet"), one]))["sensor_warning"]
    assert check["status"] == "WARN"
    assert one["name"] in check["cause"]


def test_many_failures_are_counted_and_the_first_are_named():
    check = bad(measure([temperature(97, f"T{index}") for index in range(20)]))["sensor_critical"]
    assert "T0 97" in check["cause"]
    assert "and 14 more" in check["cause"]
    assert len(check["conditions"]["sensors"]) == 20


def test_a_fan_that_stands_still_among_its_neighbours_is_a_warning_and_a_lone_one_is_not():
    row = [fan(5000, f"FAN{index}") for index in range(3)]
    check = bad(measure([temperature(40), *row, fan(0, "FAN3")]))["sensor_fan_standstill"]
    assert check["status"] == "WARN"
    assert "FAN3 stands still while its neighbours turn" in check["cause"]
    assert bad(measure([temperature(40), *row, fan(0, "FAN_M2")])) == {}
    # One that its own limit objects to is counted there.
    still = bad(measure([temperature(40), *row, fan(0, "FAN3", {"lower_critical": 500})]))
    assert set(still) == {"sensor_critical"}


def test_a_sensor_that_is_enabled_and_silent_is_dead_and_one_that_says_why_is_not():
    dead = temperature(None, "DIMM A1", state="dead", health="unknown")
    check = bad(measure([temperature(40), dead]))["sensor_dead"]
    assert check["status"] == "CRITICAL"
    assert "DIMM A1 is enabled and has no reading" in check["cause"]
    for state in ("absent", "disabled", "unavailable", "no_reading"):
        assert bad(measure([temperature(40), {**dead, "state": state}])) == {}
    assert bad(measure([temperature(40), dead], power_state="off")) == {}


def test_a_required_sensor_must_have_a_reading():
    silent = temperature(None, "GPU1 Temp", state="no_reading", health="unknown")
    sensors = [temperature(40), silent, sensor("PS1 Status", "power_supply", text="Presence detected")]
    assert bad(measure(sensors, required=["CPU1 Temp", "PS1 Status"])) == {}
    assert (
        "GPU1 Temp is required and has no reading"
        in bad(measure(sensors, required=["GPU. Temp"]))["sensor_dead"]["cause"]
    )
    missing = bad(measure(sensors, required=["GPU9 Temp"]))["sensor_dead"]
    assert "GPU9 Temp is required, and the BMC lists none of that name" in missing["cause"]
    dead = {**silent, "state": "dead"}
    assert bad(measure([temperature(40), dead], required=["GPU1 Temp"]))["sensor_dead"]["value"] == 1


@pytest.mark.parametrize("name", HEALTHY)
def test_any_sensor_of_a_healthy_machine_that_loses_its_reading_is_noticed(name):
    sensors = machine(name)
    known = [one["label"] for one in sensors if reading_of(one) is not None]
    for label in known:
        silenced = copy.deepcopy(sensors)
        one = next(one for one in silenced if one["label"] == label)
        one.update({f"reading_{one['unit']}": None, "state": "no_reading", "health": "unknown"})
        # A HP whose only temperature is gone, and the like, is worse than lost.
        check = bad(measure(silenced, known=known))["sensor_lost"]
        assert check["status"] == "WARN"
        assert label in check["cause"]


def test_a_sensor_that_vanished_from_the_list_is_lost_unless_it_is_ignored():
    found = measure([temperature(40)], known=["CPU1 Temp", "GPU4 Temp"])
    assert (
        "GPU4 Temp had a reading in an earlier survey and has none now (missing)" in bad(found)["sensor_lost"]["cause"]
    )
    assert bad(measure([temperature(40)], known=["CPU1 Temp", "GPU4 Temp"], ignored=["GPU. Temp"])) == {}
    assert judged(measure([temperature(40)]))["sensor_lost", "bmc"]["status"] == "SKIPPED"


def test_what_a_site_ignores_is_not_judged():
    sensors = [temperature(40), temperature(150, "TR1 Temperature")]
    assert set(bad(measure(sensors))) == {"sensor_critical", "sensor_temperature_margin"}
    assert bad(measure(sensors, ignored=["TR[0-9] Temperature"])) == {}


def test_sensors_that_cannot_be_read_or_tell_nothing_are_unknown():
    failed = sensor_measurements(facts([], sensors_error="`ipmitool sensor` ended with status 1"))
    assert bad(failed)["sensor_readings"]["status"] == "UNKNOWN"
    mute = [{**one, "reading_celsius": None, "state": "no_reading"} for one in [temperature(40)]]
    check = bad(measure(mute))["sensor_readings"]
    assert check["status"] == "UNKNOWN"
    assert "none of the 1 sensors of the BMC tells a temperature" in check["reason"]
    assert bad(measure(mute, power_state="off"))["sensor_readings"]["status"] == "CRITICAL"


def test_the_power_of_the_machine_is_recorded():
    def power(sensors: list[Json]) -> Any:
        return next((one["value"] for one in measure(sensors) if one["name"] == "system_power"), None)

    assert power(machine("inspur_gpu_node_ipmitool_sdr_list.txt")) == 296
    assert power(machine("datakit_R740v2.txt")) == 208
    assert power(machine("hpe_dl_sensor_excerpt.txt")) == 130
    supplies = [sensor(f"PSU{index}", "power_supply", "watts", 300) for index in range(2)]
    assert power([temperature(40), *supplies]) == 600
    assert power([temperature(40)]) is None


INTEL = (FIXTURES / "intel_server_sel_elist_excerpt.txt").read_text()


def test_only_recent_critical_entries_that_did_not_end_stop_the_host():
    found = bad(measure([temperature(40)], INTEL, log_days=365))
    assert found["log_critical_entries"]["status"] == "CRITICAL"
    assert found["log_critical_entries"]["value"] == 1
    assert "Memory Mmry ECC Sensor: Uncorrectable ECC (2015-07-13T12:00:27Z)" in found["log_critical_entries"]["cause"]
    recent = bad(measure([temperature(40)], INTEL))
    assert set(recent) == {"log_recovered_entries"}
    assert recent["log_recovered_entries"]["status"] == "WARN"
    assert "Power Supply PS1 Status: Power Supply AC lost" in recent["log_recovered_entries"]["cause"]
    assert bad(measure([temperature(40)], INTEL, log_days=5)) == {}


@pytest.mark.parametrize(
    "event",
    [
        "Memory DIMM_A1 | Uncorrectable ECC",
        "Critical Interrupt PCIE Fatal Err | Bus Fatal Error",
        "Critical Interrupt #0x72 | PCI SERR",
        "Power Supply PS2 Status | Power Supply AC lost",
        "Power Supply PS2 Status | Failure detected",
        "Processor CPU1 Status | Thermal Trip",
        "Processor CPU1 Status | IERR",
        "Temperature CPU1 Temp | Upper Critical going high",
        "Fan FAN3 | Lower Non-recoverable going low",
        "Power Unit Redundancy | Redundancy Lost",
    ],
)
def test_each_kind_of_critical_entry_stops_the_host(event):
    line = f"  1 | 01/05/2016 | 10:00:00 | {event} | Asserted\n"
    check = bad(measure([temperature(40)], line))["log_critical_entries"]
    assert check["status"] == "CRITICAL"
    assert event.split(" | ")[0] in check["cause"]
    assert "clear the log" in check["cause"]
    assert check["next_command"] == "LC_ALL=C ipmitool sel elist"


def test_a_log_that_cannot_be_read_is_unknown_and_one_that_is_not_there_is_skipped():
    assert bad(measure([temperature(40)], log_error="timeout"))["log_critical_entries"]["status"] == "UNKNOWN"
    none = measure([temperature(40)], log_error="the BMC serves no system event log")
    assert judged(none)["log_critical_entries", "event log"]["status"] == "SKIPPED"


def test_a_log_that_is_nearly_full_is_a_warning():
    service = {"name": "SEL", "entries": 500, "used_fraction": 0.97, "time": None, "uri": ""}
    check = bad(measure([temperature(40)], log_service=service))["log_used"]
    assert check["status"] == "WARN"
    service["used_fraction"] = None
    assert bad(measure([temperature(40)], log_service=service)) == {}


@given(
    st.lists(
        st.builds(
            lambda name, kind, reading, state, health, limits: sensor(
                name, kind, "", reading, limits, state=state, health=health
            ),
            st.text(max_size=8),
            st.sampled_from(["temperature", "fan", "power", "voltage", "power_supply", "discrete", "other"]),
            st.none() | st.floats() | st.integers() | st.text(max_size=3) | st.booleans(),
            st.sampled_from(["enabled", "dead", "no_reading", "absent"]),
            st.sampled_from(["ok", "warning", "critical", "unknown"]),
            st.dictionaries(
                st.sampled_from(["upper_critical", "lower_critical", "upper_fatal"]), st.floats() | st.none()
            ),
        ),
        max_size=12,
    )
)
def test_any_sensors_at_all_give_checks(sensors):
    for check in judged(measure(sensors)).values():
        assert check["status"] in ("OK", "WARN", "CRITICAL", "UNKNOWN", "SKIPPED")


def test_the_next_command_shows_what_failed():
    one = temperature(97, id="/redfish/v1/Chassis/1/Thermal#/Temperatures/3")
    over_redfish = bad(measure([one], curl="curl -u admin https://10.0.0.7"))["sensor_critical"]
    assert over_redfish["next_command"] == "curl -u admin https://10.0.0.7/redfish/v1/Chassis/1/Thermal"
    assert bad(measure([one]))["sensor_critical"]["next_command"].startswith("LC_ALL=C ipmitool sensor")


@pytest.mark.parametrize("name", [*HEALTHY, "openipmi_sim_faults_sensor.txt"])
def test_each_reading_beyond_each_of_its_limits_is_caught_and_named(name):
    found = 0
    for one in machine(name):
        unit = one["unit"]
        limits = one.get(f"thresholds_{unit}") or {}
        for level, limit in limits.items():
            # A limit of 0 below, as that of a fan which may stand still, has nothing below it.
            if limit is None or reading_of(one) is None or (level.startswith("lower") and limit <= 0):
                continue
            beyond = {**one, f"reading_{unit}": limit + (1 if level.startswith("upper") else -1), "health": "ok"}
            checks = bad(measure([temperature(20, "Inlet"), beyond]))
            check = checks.get("sensor_critical") or checks["sensor_warning"]
            assert check["status"] == (
                "WARN" if level.endswith("warning") and "sensor_critical" not in checks else "CRITICAL"
            )
            assert one["label"] in check["cause"]
            found += 1
    # What `sdr` lists has no thresholds.
    assert (found > 10) is ("_sensor" in name)
