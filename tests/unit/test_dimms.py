"""Sockets, channels, speeds and their gates over captured machines, and with DIMMs removed, slowed or unlike."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.dimm_measurements import dimm_measurements
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.dimms import dimm_facts
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.gates import judge
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.tools import smbios_tables as made

FIXTURES = Path(__file__).parents[1] / "fixtures/smbios"
ICX, SPR, DELL = "csit_sm_icx_dmidecode_memory", "csit_sm_spr_dmidecode_memory", "dell_24slot_8populated_2666of3200"
M630, DSS, HPE, SSG = (
    "netbox-agent_Dell_PowerEdge_M630",
    "netbox-agent_Dell_DSS7500",
    "netbox-agent_HP_BL460c_Gen10",
    "netbox-agent_SM_SSG-6028R",
)
RULES = yaml.safe_load((Path(__file__).parents[2] / "group_vars/all/gates.yml").read_text())["gates_rules"]


def captured(name: str) -> list[made.Structure]:
    return made.capture(FIXTURES / f"{name}.txt")[0]


def facts_of(structures: list[made.Structure], tmp_path: Path, channels: int = 0) -> dict:
    return dimm_facts(str(made.write(tmp_path, structures)), channels)


def alarms(facts: dict) -> list:
    checks = [judge(measurement, RULES) for measurement in dimm_measurements(facts)]
    return [check for check in checks if check.status in ("WARN", "CRITICAL", "UNKNOWN")]


def modules(structures: list[made.Structure]) -> list[made.Structure]:
    return [structure for structure in structures if structure.kind == 17 and structure.data[0xC:0xE] != b"\0\0"]


def remove(structure: made.Structure) -> None:
    """What firmware shows of a slot whose module is gone."""
    structure.put("H", 0xC, 0)
    structure.put("H", 0x15, 0)
    structure.put("H", 0x20, 0)


@pytest.mark.parametrize(
    ("name", "channels", "populated", "speed", "source"),
    [
        (ICX, 8, 8, 3200, "bank locator"),
        (SPR, 8, 8, 4800, "bank locator"),
        (DELL, 6, 4, 2666, "device set"),
        (M630, 4, 4, 2133, "device set"),
        (DSS, 4, 4, 2133, "device set"),
        (HPE, 6, 2, 2666, "HPE record 202"),
    ],
)
def test_channels_of_captured_machines(name, channels, populated, speed, source, tmp_path):  # noqa: PLR0917
    facts = facts_of(captured(name), tmp_path)
    assert facts["available"]
    assert facts["notes"] == []
    assert len(facts["sockets"]) == 2
    for socket in facts["sockets"]:
        assert (socket["channels"], socket["channels_populated"], socket["channel_source"]) == (
            channels,
            populated,
            source,
        )
        assert socket["configured_speed_mts"] == speed
        assert socket["bandwidth_bytes_per_second"] == populated * speed * 8e6
    assert facts["bandwidth_bytes_per_second"] == 2 * populated * speed * 8e6
    assert facts["bandwidth_full_bytes_per_second"] == 2 * channels * speed * 8e6


def test_channels_are_called_as_the_board_calls_them(tmp_path):
    facts = facts_of(captured(ICX), tmp_path)
    assert facts["sockets"][1]["channel_names"] == list("ABCDEFGH")


def test_a_socket_without_processor_is_left_out_and_hidden_slots_are_not_counted(tmp_path):
    facts = facts_of(captured(SSG), tmp_path)
    (socket,) = facts["sockets"]
    assert (socket["channels"], socket["channels_populated"]) == (None, 4)
    (check,) = alarms(facts)
    assert (check.status, check.name) == ("UNKNOWN", "dimm_population")
    assert "survey_memory_channels_per_socket" in check.reason
    told = facts_of(captured(SSG), tmp_path, channels=4)
    assert alarms(told) == []
    assert told["bandwidth_full_bytes_per_second"] == told["bandwidth_bytes_per_second"] == 4 * 2133 * 8e6
    (short,) = alarms(facts_of(captured(SSG), tmp_path, channels=6))
    assert "4 of 6 channels populated" in short.cause


@pytest.mark.parametrize("name", [ICX, SPR, M630])
def test_healthy_machines_raise_no_alarm(name, tmp_path):
    assert alarms(facts_of(captured(name), tmp_path)) == []


def test_the_unbalanced_and_slowed_machine(tmp_path):
    found = alarms(facts_of(captured(DELL), tmp_path))
    population = [check for check in found if check.name == "dimm_population"]
    assert [check.status for check in population] == ["CRITICAL", "CRITICAL"]
    assert population[1].cause == "socket 1: 4 of 6 channels populated (3, 6 empty): limit 85.3 of 128.0 GB/s"
    (speed,) = [check for check in found if check.name == "dimm_configured_speed"]
    assert speed.status == "WARN"
    assert speed.cause.startswith("DIMMs A1, A2, A4, A5 and 4 more are rated 3200 MT/s and run at 2666")


def test_one_slow_channel_lowers_the_limit_of_its_socket(tmp_path):
    structures = captured(ICX)
    modules(structures)[12].put("H", 0x20, 2666)
    facts = facts_of(structures, tmp_path)
    assert [socket["bandwidth_bytes_per_second"] for socket in facts["sockets"]] == [
        8 * 3200 * 8e6,
        (7 * 3200 + 2666) * 8e6,
    ]


def test_a_socket_with_half_the_memory_is_unbalanced(tmp_path):
    found = alarms(facts_of(captured(DSS), tmp_path))
    (check,) = [check for check in found if check.name == "dimm_balance"]
    assert check.cause == "the sockets hold unequal memory: socket 0 128 GiB, socket 1 64 GiB"


@pytest.mark.parametrize(
    ("locators", "fields", "channels"),
    [
        ([f"CPU{c}_C{n}D{d}" for c in (0, 1) for n in range(8) for d in (0, 1)], {}, 8),  # Inspur
        ([f"CPU{c}_CH{n}_DIMM0" for c in (0, 1) for n in range(8)], {}, 8),
        ([f"DIMM{c}{n}{d}" for c in (0, 1) for n in range(8) for d in (0, 1)], {}, 8),  # Huawei
        ([f"CPU{c}_DIMM_{n}1" for c in (1, 2) for n in "ABCDEFGH"], {}, 8),
        ([f"DIMM_P{c}_{n}0" for c in (0, 1) for n in "ABCDEFGHIJKL"], {"Type": "DDR5"}, 12),  # Gigabyte
        ([f"P{c}_DIMM{n}{d}" for c in (1, 2) for n in "ABCD" for d in (1, 2)], {}, 4),
        ([f"PROC {c} DIMM {n}" for c in (1, 2) for n in range(1, 17)], {"Type": "DDR5"}, 8),  # HPE without its records
        ([f"PROC {c} DIMM {n}" for c in (1, 2) for n in range(1, 13)], {"Type": "DDR5"}, 12),
    ],
)
def test_locators_of_common_vendors(locators, fields, channels, tmp_path):
    facts = facts_of([made.dimm(index, locator, **fields) for index, locator in enumerate(locators)], tmp_path)
    assert [socket["channels"] for socket in facts["sockets"]] == [channels, channels]
    assert alarms(facts) == []


def test_lenovo_numbers_run_over_both_sockets(tmp_path):
    processors = [
        made._structure(4, 48, 0x40 + n, f"\tSocket Designation: CPU {n}\n\tStatus: Populated, Enabled\n")
        for n in (1, 2)
    ]
    structures = processors + [made.dimm(n, f"DIMM {n}") for n in range(1, 33)]
    remove(structures[2 + 16])  # DIMM 17, the first of the second socket
    remove(structures[2 + 17])
    facts = facts_of(structures, tmp_path)
    assert [
        (socket["channels"], socket["channels_populated"], socket["channel_source"]) for socket in facts["sockets"]
    ] == [
        (8, 8, "slot order"),
        (8, 7, "slot order"),
    ]


def test_amd_bank_locators(tmp_path):
    structures = [
        made.dimm(index, f"DIMM {slot}", **{"Bank Locator": f"P{p} CHANNEL {channel}"})
        for index, (p, channel, slot) in enumerate((p, c, s) for p in (0, 1) for c in "ABCDEFGH" for s in (0, 1))
    ]
    facts = facts_of(structures, tmp_path)
    assert [socket["channels"] for socket in facts["sockets"]] == [8, 8]
    assert facts["sockets"][0]["dimms_per_channel"] == [2]


def test_twelve_slots_of_ddr4_could_be_six_or_four_channels_so_they_are_not_guessed(tmp_path):
    structures = [made.dimm(n, f"PROC 1 DIMM {n}") for n in range(1, 13)]
    (check,) = alarms(facts_of(structures, tmp_path))
    assert check.status == "UNKNOWN"
    assert facts_of(structures, tmp_path, channels=6)["sockets"][0]["dimms_per_channel"] == [2]


def test_the_table_that_qemu_makes_up_is_skipped(tmp_path):
    body = {
        "Type": "RAM",
        "Speed": "Unknown",
        "Configured Memory Speed": "Unknown",
        "Total Width": "Unknown",
        "Data Width": "Unknown",
    }
    facts = facts_of([made.dimm(1, "DIMM 0", **body)], tmp_path)
    checks = [judge(measurement, RULES) for measurement in dimm_measurements(facts)]
    assert {check.status for check in checks} == {"SKIPPED"}
    assert "hypervisor" in checks[0].reason


def test_without_a_table_everything_is_skipped_with_the_reason(tmp_path):
    facts = dimm_facts(str(tmp_path))
    assert facts["available"] is False
    assert "container" in facts["reason"]
    checks = [judge(measurement, RULES) for measurement in dimm_measurements(facts)]
    assert {check.status for check in checks} == {"SKIPPED"}


def test_a_table_without_entry_point_is_read_and_says_so(tmp_path):
    made.write(tmp_path, captured(ICX))
    (tmp_path / "sys/firmware/dmi/tables/smbios_entry_point").unlink()
    facts = dimm_facts(str(tmp_path))
    assert facts["available"]
    assert "smbios_entry_point" in facts["notes"][0]


def test_a_slot_that_the_table_forgets_is_noted(tmp_path):
    structures = captured(HPE)
    structures.remove(next(s for s in structures if s.kind == 17))
    facts = facts_of(structures, tmp_path)
    assert any("8 slots, 7 are described" in note for note in facts["notes"])


WHOLE = {name: captured(name) for name in (HPE, DSS, SSG)}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(sorted(WHOLE)),
    flips=st.lists(st.tuples(st.integers(0, 20_000), st.integers(0, 255)), max_size=80),
    size=st.integers(0, 12_000),
    channels=st.integers(0, 12),
)
def test_corrupted_tables_never_raise(name, flips, size, channels, tmp_path_factory):
    root = tmp_path_factory.mktemp("table")
    made.write(root, WHOLE[name])
    path = root / "sys/firmware/dmi/tables/DMI"
    table = bytearray(path.read_bytes())
    for offset, value in flips:
        table[offset % len(table)] = value
    path.write_bytes(bytes(table[:size]))
    facts = dimm_facts(str(root), channels)
    assert facts["available"] or facts["reason"]
    for measurement in dimm_measurements(facts):
        assert {"value", "skipped", "error"} & set(measurement)
        judge(measurement, RULES)
