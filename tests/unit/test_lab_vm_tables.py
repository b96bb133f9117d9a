"""The virtual machine's own tables: SMBIOS as our parser and dmidecode read it, IPMI records, and what follows the BIOS settings."""

from __future__ import annotations

import json
import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import smbios as reader
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.dimm_places import place_slots

from lab.vm import ipmi, machine, settings, smbios
from lab.vm.settings import VmLab


@pytest.fixture
def lab(tmp_path: Path) -> VmLab:
    made = settings.load(tmp_path, {})
    made.state.mkdir(parents=True)
    return made


def remember(lab: VmLab, speed: str) -> None:
    (lab.state / "bmc-state.json").write_text(
        json.dumps({"bios": {"active": {"XmpDdrFreqLimit": speed}}, "firmware": {"BIOS": "06.09.00"}})
    )


def table_of(lab: VmLab) -> bytes:
    # QEMU adds the end.
    return b"".join(machine.Tables(lab).structures()) + bytes([127, 4, 0, 0x7F, 0, 0])


def facts_of(lab: VmLab) -> dict[str, list[dict[str, object]]]:
    structures, notes = reader.parse_structures(table_of(lab))
    assert notes == []
    return reader.decode(structures)


def test_our_parser_reads_sixteen_dimms_in_sixteen_channels(lab: VmLab) -> None:
    facts = facts_of(lab)
    dimms = facts["memory_devices"]
    assert len(dimms) == 16
    assert {(one["size_bytes"], one["type"], one["speed_mts"], one["form_factor"]) for one in dimms} == {
        (32 << 30, "DDR4", 3200, "DIMM")
    }
    assert len({one["serial_number"] for one in dimms}) == 16
    places = place_slots(facts)
    assert len({(place.socket, place.channel) for place in places.values()}) == 16
    assert {place.socket for place in places.values()} == {"0", "1"}
    assert [(one["populated"], one["cores"]) for one in facts["processors"]] == [(True, 28)] * 2
    assert facts["memory_arrays"][0]["error_correction"] == "multi-bit ECC"
    assert facts["memory_arrays"][0]["maximum_capacity_bytes"] == 512 << 30


@pytest.mark.parametrize(("setting", "runs"), [("2666", 2666), ("3200", 3200), ("Auto", 3200), ("nonsense", 3200)])
def test_the_configured_speed_follows_the_bios_setting(lab: VmLab, setting: str, runs: int) -> None:
    remember(lab, setting)
    facts = facts_of(lab)
    assert {one["configured_speed_mts"] for one in facts["memory_devices"]} == {runs}
    assert {one["speed_mts"] for one in facts["memory_devices"]} == {3200}
    assert facts["bios"]["version"] == "06.09.00"  # type: ignore[call-overload]


@pytest.mark.parametrize("content", [None, "", "{", "[]", '{"bios": 3}'])
def test_without_the_bmcs_memory_the_factory_settings_count(lab: VmLab, content: str | None) -> None:
    if content is not None:
        (lab.state / "bmc-state.json").write_text(content)
    active, version = machine.Tables(lab).active_attributes()
    assert active["XmpDdrFreqLimit"] == "Auto"
    assert version == "06.08.01"


def test_one_file_for_each_structure(lab: VmLab) -> None:
    count = machine.Tables(lab).write()
    files = sorted((lab.state / "smbios").iterdir())
    assert len(files) == count
    assert b"".join(path.read_bytes() for path in files) == table_of(lab)[:-6]


def test_an_empty_slot_is_an_empty_slot() -> None:
    made = smbios.memory_device(3, {"DeviceLocator": "CPU0_C0D1"}, 3200) + bytes([127, 4, 0, 0x7F, 0, 0])
    structures, notes = reader.parse_structures(made)
    assert notes == []
    (slot,) = reader.decode(structures)["memory_devices"]
    assert (slot["size_bytes"], slot["speed_mts"], slot["configured_speed_mts"]) == (0, None, None)


@pytest.mark.skipif(
    shutil.which("dmidecode", path="/usr/sbin:/usr/bin:/sbin:/bin") is None, reason="dmidecode is not installed"
)
def test_dmidecode_reads_the_same(lab: VmLab, tmp_path: Path) -> None:
    remember(lab, "2933")
    table = table_of(lab)
    entry = bytearray(b"_SM3_\0\x18\x03\x03\0\x01\0" + struct.pack("<IQ", len(table), 0x20))
    entry[5] = -sum(entry) & 0xFF
    dump = tmp_path / "dump.bin"
    dump.write_bytes(bytes(entry) + bytes(8) + table)
    program = shutil.which("dmidecode", path="/usr/sbin:/usr/bin:/sbin:/bin")
    done = subprocess.run([str(program), "--from-dump", str(dump)], capture_output=True, text=True, check=True)
    said = done.stdout
    for word in ("wrong", "invalid", "broken", "BAD INDEX", "OUT OF SPEC", "truncated"):
        assert word not in said, said
    assert said.count("Configured Memory Speed: 2933 MT/s") == 16
    assert said.count("\tSize: 32 GB\n") == 16
    assert len(re.findall(r"Type: x16 PCI Express 4 x16", said)) == 2
    assert "Error Correction Type: Multi-bit ECC" in said
    assert "UUID: 5d1c2f1e-6a0b-4a57-9f0e-0a9a6b3f7c07" in said


def test_sensor_records_are_what_the_specification_lays_out() -> None:
    sensor = ipmi.Sensor("CPU0_VRM_Temp", 0x01, 0x14, 1, 52, {"unc": 85, "uc": 95})
    record = sensor.record(7)
    assert record[2:4] == b"\x51\x01"
    assert record[4] == len(record) - 5
    assert record[5:10] == bytes([0x20, 0, 7, 0x14, 1])
    assert struct.unpack_from("<HHBB", record, 14) == (1 << 7 | 1 << 9, 1 << 7 | 1 << 9, 0b011000, 0b011000)
    assert record[36:42] == bytes([0, 95, 85, 0, 0, 0])
    assert record[47] == 0xC0 | 13
    assert record[48:] == b"CPU0_VRM_Temp"


def test_a_negative_exponent_and_a_factor_keep_their_bits() -> None:
    record = ipmi.Sensor("P12V", 0x02, 0x07, 1, 201, {"lc": 180}, 6, -2).record(1)
    assert (record[24], record[25] >> 6, record[29] >> 4) == (6, 0, 14)


def test_the_controller_gets_every_sensor_with_its_file(lab: VmLab, tmp_path: Path) -> None:
    wanted = ipmi.sensors(machine.Tables(lab).dimms(), machine.SOCKETS)
    labels = [sensor.label for sensor in wanted]
    assert len(set(labels)) == len(labels)
    assert all(len(label) <= 16 for label in labels), "a record's name has 16 bytes"
    assert sum(label.startswith("CPU0_C") for label in labels) == 8
    assert {"CPU0_VRM_Temp", "CPU1_DVRM_Volt"} <= set(labels)
    text = ipmi.commands(wanted, tmp_path)
    assert text.count("\nsensor_add ") == len(wanted)
    assert f'file "{tmp_path}/CPU1_VRM_Temp"' in text
    assert text.rstrip().endswith("mc_enable 0x20")
    assert "127.0.0.1 9223 codec VM" in ipmi.configuration(9223)
