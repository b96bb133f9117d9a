"""Memory of every kind that machines have: HBM, CXL, soldered, made up by a hypervisor, of many sockets and many vendors' names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.dimm_measurements import dimm_measurements
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.dimms import dimm_facts
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.gates import judge

from tests.tools import smbios_tables as made

RULES = yaml.safe_load((Path(__file__).parents[2] / "group_vars/all/gates.yml").read_text())["gates_rules"]
DDR5 = {"Type": "DDR5", "Speed": "4800 MT/s", "Configured Memory Speed": "4800 MT/s", "Total Width": "80 bits"}
FORM_FACTOR, MEMORY_TYPE = 0x0E, 0x12
DIE, HBM2, LPDDR5 = 0x10, 0x21, 0x23


def facts_of(structures: list[made.Structure], root: Path) -> dict[str, Any]:
    return dimm_facts(str(made.write(root, structures)))


def statuses(facts: dict[str, Any]) -> dict[str, str]:
    return {
        f"{check.name} {check.scope}": check.status for check in (judge(m, RULES) for m in dimm_measurements(facts))
    }


def alarms(facts: dict[str, Any]) -> list[str]:
    return [name for name, status in statuses(facts).items() if status in ("WARN", "CRITICAL", "UNKNOWN")]


def sockets(count: int, channels: str = "ABCDEFGH", **fields: str) -> list[made.Structure]:
    places = [(socket, channel) for socket in range(1, count + 1) for channel in channels]
    return [made.dimm(0x1000 + i, f"P{s}-DIMM{c}1", **{**DDR5, **fields}) for i, (s, c) in enumerate(places)]


def array(handle: int, location: int, slots: int) -> made.Structure:
    body = f"\tUse: System Memory\n\tMaximum Capacity: 8 TB\n\tNumber Of Devices: {slots}\n\tError Correction Type: Multi-bit ECC\n"
    structure = made._structure(16, 23, handle, body)
    structure.put("B", 4, location)
    return structure


def hbm(handle: int) -> made.Structure:
    structure = made.dimm(handle, f"CPU{handle % 2}_HBM{handle // 2 % 4}", **{"Size": "16 GB", "Speed": "3200 MT/s"})
    structure.put("B", MEMORY_TYPE, HBM2)
    return structure


@pytest.mark.parametrize("count", [1, 2, 4, 8])
@pytest.mark.parametrize("channels", ["ABCDEFGH", "ABCDEFGHIJKL"])
def test_sockets_of_8_and_12_channels(count: int, channels: str, tmp_path: Path) -> None:
    facts = facts_of(sockets(count, channels), tmp_path)
    assert [socket["channels"] for socket in facts["sockets"]] == [len(channels)] * count
    assert facts["bandwidth_bytes_per_second"] == count * len(channels) * 4800 * 8e6
    assert alarms(facts) == []


@pytest.mark.parametrize(
    ("total", "data"), [("80 bits", "64 bits"), ("40 bits", "32 bits"), ("72 bits", "72 bits"), ("64 bits", "72 bits")]
)
def test_a_ddr5_channel_is_64_bits_however_the_firmware_counts_it(total: str, data: str, tmp_path: Path) -> None:
    facts = facts_of(sockets(1, **{"Total Width": total, "Data Width": data}), tmp_path)
    assert facts["bandwidth_bytes_per_second"] == 8 * 4800 * 8e6


def test_hbm_beside_dimms_fills_no_channel(tmp_path: Path) -> None:
    facts = facts_of(sockets(2) + [hbm(0x2000 + index) for index in range(8)], tmp_path)
    assert [socket["channels"] for socket in facts["sockets"]] == [8, 8]
    assert {other["where"] for other in facts["other_memory"]} == {"HBM"}
    assert facts["bandwidth_bytes_per_second"] == 2 * 8 * 4800 * 8e6
    assert alarms(facts) == []


def test_a_machine_of_hbm_alone_is_skipped_with_the_reason(tmp_path: Path) -> None:
    empty = [made.dimm(0x1000 + i, f"P1-DIMM{c}1", Size="No Module Installed") for i, c in enumerate("ABCDEFGH")]
    facts = facts_of(empty + [hbm(0x2000 + index) for index in range(8)], tmp_path)
    (first, *_) = dimm_measurements(facts)
    assert first["skipped"] == "no DIMM is fitted: the memory is 128 GiB of HBM"
    assert alarms(facts) == []


def test_memory_behind_cxl_is_no_dimm_of_a_socket(tmp_path: Path) -> None:
    fitted = sockets(2)
    for device in fitted:
        device.put("H", 4, 0x10)
    card = made.dimm(0x3000, "CXL0", **{"Size": "128 GB", **DDR5})
    card.put("H", 4, 0x20)
    facts = facts_of([array(0x10, 3, 16), array(0x20, 0xA4, 2), *fitted, card], tmp_path)
    assert [(other["where"], other["locator"]) for other in facts["other_memory"]] == [("CXL", "CXL0")]
    assert facts["notes"] == []
    assert alarms(facts) == []


@pytest.mark.parametrize("mark", [(FORM_FACTOR, DIE), (MEMORY_TYPE, LPDDR5)])
def test_soldered_memory_has_no_empty_channel_and_each_package_its_own_width(
    mark: tuple[int, int], tmp_path: Path
) -> None:
    fields = {
        "Type": "DDR5",
        "Speed": "8533 MT/s",
        "Configured Memory Speed": "8533 MT/s",
        "Total Width": "32 bits",
        "Data Width": "32 bits",
    }
    packages = [made.dimm(0x1000 + index, "Motherboard", **fields) for index in range(16)]
    for package in packages:
        package.put("B", MEMORY_TYPE, LPDDR5)
        package.put("B", *mark)
    facts = facts_of(packages, tmp_path)
    assert facts["soldered"]
    assert statuses(facts)["dimm_population node"] == "SKIPPED"
    assert facts["bandwidth_bytes_per_second"] == 16 * 8533 * 4e6
    assert alarms(facts) == []


def test_a_table_that_a_hypervisor_made_up_is_not_judged(tmp_path: Path) -> None:
    (tmp_path / "sys/class/dmi/id").mkdir(parents=True)
    (tmp_path / "sys/class/dmi/id/sys_vendor").write_text("Amazon EC2\n")
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("processor\t: 0\nflags\t\t: fpu hypervisor lm\n")
    facts = facts_of([made.dimm(1, "Not Specified")], tmp_path)
    (first, *_) = dimm_measurements(facts)
    assert "amazon" in first["skipped"]
    assert facts["bandwidth_bytes_per_second"] is None
    assert [socket["bandwidth_bytes_per_second"] for socket in facts["sockets"]] in ([], [None])
    assert alarms(facts) == []


@pytest.mark.parametrize(
    ("kind", "rated", "told", "taken"),
    [
        ("DDR4", 2666, 1333, 2666),
        ("DDR4", 3200, 1600, 3200),
        ("DDR4", 2667, 1333, 2666),
        ("DDR4", 3200, 1333, 2666),
        ("DDR5", 4800, 2400, 4800),
        ("DDR4", 2400, 1866, 1866),
        ("DDR4", 3200, 2133, 2133),
        ("DDR5", 5600, 4400, 4400),
        ("DDR3", 1600, 800, 800),
    ],
)
def test_a_clock_is_not_taken_for_a_rate(kind: str, rated: int, told: int, taken: int, tmp_path: Path) -> None:
    fields = {"Type": kind, "Speed": f"{rated} MT/s", "Configured Memory Speed": f"{told} MT/s"}
    facts = facts_of(sockets(1, **fields), tmp_path)
    assert {dimm["configured_speed_mts"] for dimm in facts["dimms"]} == {taken}
    assert any("memory clock" in note for note in facts["notes"]) == (told != taken)


@pytest.mark.parametrize(("rated", "configured"), [(2667, 2666), (2933, 2934), (2133, 2132), (4800, 4800)])
def test_a_rate_that_was_rounded_is_no_fault(rated: int, configured: int, tmp_path: Path) -> None:
    kind = "DDR5" if rated > 4000 else "DDR4"
    fields = {"Type": kind, "Speed": f"{rated} MT/s", "Configured Memory Speed": f"{configured} MT/s"}
    assert alarms(facts_of(sockets(2, **fields), tmp_path)) == []


@pytest.mark.parametrize(
    ("locators", "banks", "channels"),
    [
        # Forms seen in captures of Huawei, of AMD boards and of small machines.
        ([f"DIMM0{c}0" for c in range(4)], [f"_Node0_Channel{c}_Dimm0" for c in range(4)], 4),
        ([f"DIMM0{c}0 J{c}" for c in range(4)], [f"SOCKET 0 CHANNEL {c} DIMM 0" for c in range(4)], 4),
        ([f"DIMM {c}" for c in range(8)], [f"P0 CHANNEL {c} DIMM 0" for c in "ABCDEFGH"], 8),
        (["SODIMM0", "SODIMM1"], ["CHANNEL A DIMM0", "CHANNEL B DIMM0"], 2),
        ([f"DIMM_P0_{c}0" for c in "ABCDEF"], [f"P1-CH {c}" for c in "ABCDEF"], 6),
        ([f"CPU0_DIMM_{c}{s}" for c in "ABCDEFGH" for s in "12"], [f"NODE {c // 4}" for c in range(16)], 8),
    ],
)
def test_names_of_slots_that_captures_show(
    locators: list[str], banks: list[str], channels: int, tmp_path: Path
) -> None:
    devices = [
        made.dimm(i, locator, **{"Bank Locator": bank}) for i, (locator, bank) in enumerate(zip(locators, banks))
    ]
    facts = facts_of(devices, tmp_path)
    assert [socket["channels"] for socket in facts["sockets"]] == [channels]
    assert alarms(facts) == []


def test_dell_without_device_sets_is_counted_by_its_slots(tmp_path: Path) -> None:
    devices = [made.dimm(i, f"{s}{n}", **DDR5) for i, (s, n) in enumerate((s, n) for s in "AB" for n in range(1, 17))]
    facts = facts_of(devices, tmp_path)
    assert [(s["channels"], s["dimms_per_channel"], s["channel_source"]) for s in facts["sockets"]] == [
        (8, [2], "slot order")
    ] * 2


def test_letters_that_go_on_at_the_next_socket_name_no_wrong_channel(tmp_path: Path) -> None:
    letters = [(0, c) for c in "ABCDEFGH"] + [(1, c) for c in "IJKLMNOP"]
    devices = [made.dimm(i, f"DIMM_P{s}_{c}0") for i, (s, c) in enumerate(letters)]
    facts = facts_of(devices[:-1], tmp_path)
    (check,) = [m for m in dimm_measurements(facts) if m["name"] == "dimm_population" and m["scope"] == "socket1"]
    assert check["cause"].startswith("socket 1: 7 of 8 channels populated (the empty ones cannot be told)")
