"""The event log: times, what an event means, what ended, and which entries count."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import bmc_event_log as log
from hypothesis import given
from hypothesis import strategies as st

FIXTURES = Path(__file__).parents[1] / "fixtures/ipmi"


def entries(name: str) -> list[dict[str, object]]:
    return log.with_resolution(log.parse_sel((FIXTURES / name).read_text()))


def test_a_captured_log_in_one_form():
    found = {one["id"]: one for one in entries("intel_server_sel_elist_excerpt.txt")}
    assert len(found) == 19
    assert found["2cd"] == {
        "id": "2cd",
        "time": "2015-07-13T12:00:27Z",
        "severity": "critical",
        "sensor": "Memory Mmry ECC Sensor",
        "message": "Uncorrectable ECC",
        "message_id": "",
        "asserted": True,
        "resolved": False,
        "lasting": True,
    }
    assert found["2be"]["message"] == "Lower Critical going low (Reading 0 < Threshold 0 degrees C)"
    assert found["2ce"]["message"] == "an event that ipmitool has no words for"
    # The sensor of an event is called critical, the event is not.
    assert found["2ce"]["severity"] == "ok"
    assert found["2e5"]["severity"] == "ok"


def test_what_was_taken_back_is_resolved_and_what_is_lasting_is_not():
    found = {one["id"]: one for one in entries("intel_server_sel_elist_excerpt.txt")}
    assert [one["id"] for one in found.values() if one["resolved"]] == ["2bd", "2be", "2e4", "2e6"]
    standing = [one["id"] for one in found.values() if one["severity"] == "critical" and not one["resolved"]]
    assert standing == ["2cd"]
    again = log.parse_sel(
        "1 | 01/01/2026 | 10:00:00 | Memory M | Uncorrectable ECC | Asserted\n"
        "2 | 01/01/2026 | 10:00:01 | Memory M | Uncorrectable ECC | Deasserted\n"
        "3 | 01/01/2026 | 10:00:02 | Power Supply PS1 | Power Supply AC lost | Deasserted\n"
        "4 | 01/01/2026 | 10:00:03 | Power Supply PS1 | Power Supply AC lost | Asserted\n"
    )
    assert [one["resolved"] for one in log.with_resolution(again)] == [False, False, False, False]


def test_redundancy_that_came_back_ends_its_loss_and_another_supply_does_not():
    text = (
        "1 | 01/01/2026 | 10:00:00 | Power Supply PS Redundancy | Redundancy Lost | Asserted\n"
        "2 | 01/01/2026 | 10:00:00 | Power Supply PS2 Status | Power Supply AC lost | Asserted\n"
        "3 | 01/01/2026 | 10:05:00 | Power Supply PS Redundancy | Fully Redundant | Asserted\n"
        "4 | 01/01/2026 | 10:05:00 | Power Supply PS1 Status | Presence detected | Asserted\n"
    )
    assert [one["resolved"] for one in log.with_resolution(log.parse_sel(text))] == [True, False, False, False]
    # Vendors that name only the type of the sensor number the part in the message.
    lost, other, back = "power input of supply 2 is lost", "power input of supply 1 is lost", "supply 2 is now normal"
    made = [log.event(one, sensor="Power Supply") for one in (lost, other, back)]
    assert [one["resolved"] for one in log.with_resolution(made)] == [True, False, False]


def test_a_real_tool_s_log_without_a_clock():
    found = entries("openipmi_sim_sel_elist.txt")
    assert [one["time"] for one in found] == [None] * 9
    assert [one["severity"] for one in found] == [
        *("warning", "critical", "warning", "critical", "ok", "ok", "critical", "critical", "critical")
    ]
    assert log.recent(found, "", 30) == found
    assert entries("openipmi_sim_sel_list.txt")[0]["sensor"] == "Temperature #0x04"


def test_times_oem_records_and_bars_within_parentheses():
    found = {one["id"]: one for one in entries("synthetic_sel_formats.txt")}
    assert list(found) == ["1", "3a", "3b", "3c", "3d", "fe3c", "fe3d", "fe3e", "9"]
    assert found["1"]["time"] is None
    assert found["3a"]["time"] == "2026-12-14T23:09:44Z"
    assert found["3c"]["time"] == "2027-02-25T16:50:09Z"
    assert found["3c"]["message"] == "Uncorrectable ECC (UnCorrectable ECC /  DIMMD7)"
    assert found["3d"]["time"] == "2027-02-26T04:50:09Z"
    assert (found["3d"]["severity"], found["3d"]["lasting"]) == ("critical", True)
    assert found["fe3c"]["severity"] == "ok"
    assert found["fe3e"]["time"] == "2027-02-28T10:00:00Z"
    assert found["9"]["severity"] == "critical"


@pytest.mark.parametrize(
    ("text", "severity", "lasting"),
    [
        ("Memory #0x01 Uncorrectable ECC", "critical", True),
        ("Memory #0x01 Correctable ECC", "warning", False),
        ("Memory Correctable ECC logging limit reached", "warning", False),
        ("Critical Interrupt PCIE Fatal Err Bus Fatal Error", "critical", True),
        ("Critical Interrupt Non Fatal PCI Er Bus Correctable Error", "warning", False),
        ("Critical Interrupt Bus Uncorrectable Error", "critical", True),
        ("Critical Interrupt PCI SERR", "critical", True),
        ("Power Supply PS1 Status Power Supply AC lost", "critical", False),
        ("Power Supply PS1 Status Predictive failure", "warning", False),
        ("Power Supply PS1 Status Failure detected", "critical", False),
        ("Power Supply PS1 Status Presence detected", "ok", False),
        ("The power input for power supply 2 is lost.", "critical", False),
        ("Power supply redundancy is lost.", "critical", False),
        ("Processor CPU1 Thermal Trip", "critical", True),
        ("Temperature CPU1 Upper Non-critical going high", "warning", False),
        ("Temperature CPU1 Upper Critical going high", "critical", False),
        ("Fan FAN1 Lower Non-recoverable going low", "critical", False),
        ("Fan 3 has failed: Fan fault", "critical", False),
        ("Power Unit Power off/down", "ok", False),
        ("System Event Timestamp Clock Sync", "ok", False),
        ("Event Logging Disabled Log area reset/cleared", "ok", False),
        ("A corrected error: uncorrected error was corrected", "ok", False),
    ],
)
def test_what_an_event_means(text, severity, lasting):
    assert log.meaning(text) == (severity, lasting)


def test_the_worse_of_the_bmc_s_word_and_the_message_counts():
    assert log.event("Something that nobody has words for", "critical")["severity"] == "critical"
    assert log.event("Uncorrectable ECC", "ok")["severity"] == "critical"
    assert log.event("Uncorrectable ECC", "critical", asserted=False)["severity"] == "ok"


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2026-11-30T10:00:00Z", "2026-11-30T10:00:00Z"),
        ("2026-11-30T10:00:00+08:00", "2026-11-30T02:00:00Z"),
        ("2026-11-30T10:00:00+0800", "2026-11-30T02:00:00Z"),
        ("2026-11-30T10:00:00.123Z", "2026-11-30T10:00:00Z"),
        ("2026-11-30T10:00:00", "2026-11-30T10:00:00Z"),
        ("1970-01-03T09:06:50+00:00", None),
        ("yesterday", None),
        ("", None),
        (None, None),
        (5, None),
        ("0001-01-01T00:00:00+23:59", None),
    ],
)
def test_redfish_times(text, time):
    assert log.iso_time(text) == time


def test_only_the_last_days_by_the_bmc_s_own_clock_count():
    found = entries("intel_server_sel_elist_excerpt.txt")
    assert [one["id"] for one in log.recent(found, "2016-01-06T00:00:00Z", 1)] == ["2f1"]
    assert log.recent(found, "2016-01-06T00:00:00Z", 7)[0]["id"] == "2e4"
    assert log.recent(found, "2026-01-06T00:00:00Z", 30) == []
    # An entry from before the clock was set counts with the next that has a time.
    undated = {**found[0], "id": "x", "time": None}
    mixed = [undated, found[0], {**undated, "id": "y"}, found[-1], {**undated, "id": "z"}]
    assert [one["id"] for one in log.recent(mixed, "2016-01-06T00:00:00Z", 7)] == ["y", "2f1", "z"]


def test_what_sel_info_says():
    assert log.parse_sel_info((FIXTURES / "openipmi_sim_sel_info.txt").read_text()) == {
        "entries": 9,
        "used_fraction": 0.04,
        "overflow": False,
    }
    assert log.parse_sel_info("Percent Used : unknown\nEntries : many") == dict.fromkeys(
        ("entries", "used_fraction", "overflow")
    )


@given(st.text() | st.lists(st.text(alphabet="0123456789abcdef|:/ APM#()<\n", max_size=40), max_size=8).map("|".join))
def test_any_text_at_all_never_raises(text):
    found = log.with_resolution(log.parse_sel(text))
    for one in found:
        assert one["severity"] in ("ok", "warning", "critical")
    assert len(log.recent(found, "2026-01-01T00:00:00Z", 30)) <= len(found)
    log.parse_sel_info(text)
    log.iso_time(text)


@given(st.integers(0, 2000), st.integers(0, 2000), st.text(max_size=5))
def test_a_log_that_is_cut_or_corrupt_never_raises(cut, at, put):
    text = (FIXTURES / "intel_server_sel_elist_excerpt.txt").read_text()[:cut]
    assert isinstance(log.with_resolution(log.parse_sel(text[:at] + put + text[at + 1 :])), list)
