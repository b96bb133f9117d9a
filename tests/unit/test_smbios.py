"""The SMBIOS parser: entry points, old and new structure lengths, extended fields, cut and corrupt tables."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.smbios import (
    decode,
    parse_entry_point,
    parse_structures,
)
from hypothesis import given
from hypothesis import strategies as st

from tests.tools import smbios_tables as made

FIXTURES = Path(__file__).parents[1] / "fixtures/smbios"


def devices(*structures: made.Structure) -> list[dict]:
    parsed, notes = parse_structures(made.table(list(structures)))
    assert notes == []
    return decode(parsed)["memory_devices"]


@pytest.mark.parametrize("version", [(2, 8), (3, 3)])
def test_entry_points_of_both_kinds(version):
    table = made.table([made.dimm(1, "A1")])
    entry, notes = parse_entry_point(made.entry_point(version, table, 2))
    assert notes == []
    assert entry is not None
    assert entry.version == f"{version[0]}.{version[1]}"
    assert entry.table_bytes == len(table)
    assert entry.structures == (2 if version[0] == 2 else None)


@pytest.mark.parametrize("version", [(2, 8), (3, 3)])
def test_a_wrong_checksum_is_told_and_borne(version):
    raw = bytearray(made.entry_point(version, b"\0" * 64, 1))
    raw[8] ^= 0x10
    entry, notes = parse_entry_point(bytes(raw))
    assert entry is not None
    assert "checksum" in notes[0]


def test_what_is_no_entry_point_is_said_to_be_none():
    entry, notes = parse_entry_point(b"_SM3")
    assert entry is None
    assert "expected an SMBIOS entry point" in notes[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("16384 MB", 16 << 30),
        ("32 GB", 32 << 30),
        ("31 GB", 31 << 30),
        ("2 TB", 2 << 40),
        ("No Module Installed", 0),
        ("Unknown", None),
    ],
)
def test_sizes_old_and_extended(text, expected):
    (device,) = devices(made.dimm(1, "A1", Size=text))
    assert device["size_bytes"] == expected


def test_a_size_in_kilobytes():
    structure = made.dimm(1, "A1")
    structure.put("H", 0xC, 0x8000 | 512)
    assert devices(structure)[0]["size_bytes"] == 512 << 10


def test_speeds_beyond_a_word_stand_further_on():
    (device,) = devices(made.dimm(1, "A1", Speed="70000 MT/s", **{"Configured Memory Speed": "68000 MT/s"}))
    assert (device["speed_mts"], device["configured_speed_mts"]) == (70000, 68000)


def test_an_old_short_structure_leaves_the_rest_unknown():
    (device,) = devices(
        made.memory_device(1, 0x1B, {"Locator": "A1", "Size": "8192 MB", "Speed": "1333 MT/s", "Type": "DDR3"})
    )
    assert (device["size_bytes"], device["speed_mts"], device["type"]) == (8 << 30, 1333, "DDR3")
    assert (device["configured_speed_mts"], device["configured_voltage_volts"], device["rank"]) == (None, None, None)


def test_voltage_rank_and_widths():
    (device,) = devices(made.dimm(1, "A1", **{"Configured Voltage": "1.2 V", "Minimum Voltage": "Unknown"}))
    assert (device["configured_voltage_volts"], device["minimum_voltage_volts"]) == (1.2, None)
    assert (device["rank"], device["total_width_bits"], device["data_width_bits"]) == (2, 72, 64)


def test_counts_of_processors_with_many_cores():
    body = "\tSocket Designation: CPU1\n\tStatus: Populated, Enabled\n\tCore Count: 288\n\tThread Count: 576\n"
    parsed, _ = parse_structures(made.table([made._structure(4, 48, 4, body)]))
    (processor,) = decode(parsed)["processors"]
    assert (processor["cores"], processor["threads"], processor["populated"]) == (288, 576, True)


def test_arrays_beyond_2_tib_stand_in_the_extended_field():
    body = "\tUse: System Memory\n\tMaximum Capacity: 8 TB\n\tNumber Of Devices: 32\n\tError Correction Type: Multi-bit ECC\n"
    parsed, _ = parse_structures(made.table([made._structure(16, 23, 16, body)]))
    (array,) = decode(parsed)["memory_arrays"]
    assert array["maximum_capacity_bytes"] == 8 << 40
    assert (array["slots"], array["error_correction"], array["system_memory"]) == (32, "multi-bit ECC", True)


@pytest.mark.parametrize("path", sorted(FIXTURES.glob("*.txt")), ids=lambda path: path.stem)
def test_captured_tables_parse_without_a_note(path):
    text = path.read_text()
    structures, version = made.capture(path)
    table = made.table(structures)
    entry, notes = parse_entry_point(made.entry_point(version, table, len(structures) + 1))
    parsed, more = parse_structures(table, entry)
    assert notes + more == []
    facts = decode(parsed)
    assert len(facts["memory_devices"]) == text.count("DMI type 17,")
    assert sum((device["size_bytes"] or 0) > 0 for device in facts["memory_devices"]) == text.count(
        "Rank: "
    ) - text.count("Rank: Unknown")
    assert len(facts["array_mappings"]) == text.count("DMI type 19,")
    assert len(facts["device_mappings"]) == text.count("DMI type 20,")
    assert len(facts["processors"]) == text.count("DMI type 4,")


def test_mapped_ranges():
    structures, _ = made.capture(FIXTURES / "netbox-agent_HP_BL460c_Gen10.txt")
    facts = decode(parse_structures(made.table(structures))[0])
    assert [(m["start_bytes"], m["end_bytes"]) for m in facts["array_mappings"]] == [(0, 3 << 30), (4 << 30, 65 << 30)]


def test_every_cut_of_a_table_gives_what_is_left_and_says_what_is_missing():
    structures, _ = made.capture(FIXTURES / "csit_sm_icx_dmidecode_memory.txt")
    table = made.table(structures)
    entry, _ = parse_entry_point(made.entry_point((2, 8), table, len(structures) + 1))
    for size in range(len(table) - 1):
        parsed, notes = parse_structures(table[:size], entry)
        assert len(parsed) <= len(structures) + 1
        assert notes, size


def test_a_table_without_an_end_is_incomplete():
    _, notes = parse_structures(made.dimm(1, "A1").bytes())
    assert "incomplete" in notes[0]


def test_a_structure_shorter_than_its_header_ends_the_parse():
    parsed, notes = parse_structures(made.dimm(1, "A1").bytes() + b"\x11\x02\x00\x00\0\0")
    assert len(parsed) == 1
    assert "corrupt at byte" in notes[0]


@given(st.binary(max_size=2000), st.binary(max_size=40))
def test_noise_never_raises(noise, entry):
    parse_entry_point(entry)
    decode(parse_structures(noise)[0])


@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=60), st.integers(0, 6000))
def test_corrupted_tables_never_raise(flips, size):
    table = bytearray(CAPTURED)
    for offset, value in flips:
        table[offset % len(table)] = value
    parsed, notes = parse_structures(bytes(table[:size]))
    decode(parsed)
    assert all(isinstance(note, str) and note for note in notes)


CAPTURED = made.table(made.capture(FIXTURES / "netbox-agent_SM_SSG-6028R.txt")[0])
