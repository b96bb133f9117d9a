"""The configuration-space parser on single functions, on what is cut short, and on noise."""

from __future__ import annotations

import struct

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.pci import config_from_bytes, parse_function
from hypothesis import given
from hypothesis import strategies as st


def endpoint(**overrides: int) -> bytearray:
    """A Gen4 x16 endpoint that runs at full speed; offsets of registers may be overridden by name."""
    config = bytearray(4096)
    struct.pack_into("<HHHH", config, 0, 0x10DE, 0x2330, 0x0406, 0x0010)
    struct.pack_into("<I", config, 8, 0x030200 << 8)
    config[0x34] = 0x60
    values = {
        "header": 0x0010,
        "flags": 0x0002,
        "devcap": 0x1,
        "devctl": 1 << 5 | 5 << 12,
        "lnkcap": 4 | 16 << 4 | 2 << 10,
        "lnkctl": 0x2,
        "lnksta": 4 | 16 << 4,
        "lnkcap2": 0b11110,
        "lnkctl2": 4,
        "lnksta2": 0,
        **overrides,
    }
    layout = {
        "header": ("<H", 0),
        "flags": ("<H", 2),
        "devcap": ("<I", 4),
        "devctl": ("<H", 8),
        "lnkcap": ("<I", 0xC),
        "lnkctl": ("<H", 0x10),
        "lnksta": ("<H", 0x12),
        "lnkcap2": ("<I", 0x2C),
        "lnkctl2": ("<H", 0x30),
        "lnksta2": ("<H", 0x32),
    }
    for name, (code, offset) in layout.items():
        struct.pack_into(code, config, 0x60 + offset, values[name])
    return config


def link(config: bytearray) -> dict:
    (only,) = parse_function(config_from_bytes(bytes(config)))["link_capabilities"]
    return only


def test_registers_of_a_full_speed_endpoint():
    facts = parse_function(config_from_bytes(bytes(endpoint())))
    assert (facts["vendor_id"], facts["class_code"], facts["port_type"]) == (0x10DE, 0x030200, "endpoint")
    assert (facts["max_payload_bytes"], facts["max_payload_supported_bytes"], facts["max_read_request_bytes"]) == (
        256,
        256,
        4096,
    )
    (found,) = facts["link_capabilities"]
    assert (found["max_speed_gts"], found["max_width"], found["speed_gts"], found["width"]) == (16.0, 16, 16.0, 16)
    assert found["supported_speeds_gts"] == [2.5, 5.0, 8.0, 16.0]
    assert (found["aspm_supported"], found["aspm_enabled"]) == (["L1"], ["L1"])


@pytest.mark.parametrize(
    ("code", "speed"),
    [(1, 2.5), (2, 5.0), (3, 8.0), (4, 16.0), (5, 32.0), (6, 64.0), (7, 128.0), (0, None), (15, None)],
)
def test_speed_codes(code, speed):
    assert link(endpoint(lnksta=code | 8 << 4))["speed_gts"] == speed


def test_supported_speeds_vector_wins_over_the_capability_field():
    # ConnectX-7 in some firmwares: the field says 5 (32 GT/s), the vector stops at 16.
    assert link(endpoint(lnkcap=5 | 16 << 4))["max_speed_gts"] == 16.0
    assert link(endpoint(lnkcap2=0))["max_speed_gts"] == 16.0


def test_a_version_1_capability_has_no_second_half():
    found = link(endpoint(flags=0x0001, lnkcap=1 | 4 << 4, lnkcap2=0xFFFFFFFF, lnkctl2=5))
    assert (found["max_speed_gts"], found["target_speed_gts"]) == (2.5, None)


def test_flit_mode_and_generation_6():
    found = link(endpoint(lnkcap=6 | 16 << 4, lnkcap2=0b1111110, lnksta=6 | 16 << 4, lnksta2=0x400))
    assert (found["max_speed_gts"], found["speed_gts"], found["flit"]) == (64.0, 64.0, True)


@pytest.mark.parametrize("kind", [0x9, 0xA])
def test_integrated_functions_have_no_link(kind):
    facts = parse_function(config_from_bytes(bytes(endpoint(flags=2 | kind << 4))))
    assert facts["link_capabilities"] == []


def test_two_link_capabilities_are_both_kept():
    config = endpoint(header=0x10 | 0xA0 << 8)
    second = endpoint(lnksta=0)
    config[0xA0 : 0xA0 + 0x40] = second[0x60:0xA0]
    links = parse_function(config_from_bytes(bytes(config)))["link_capabilities"]
    assert [(found["offset"], found["width"]) for found in links] == [(0x60, 16), (0xA0, 0)]


def test_64_bytes_leave_the_capabilities_unknown():
    facts = parse_function(config_from_bytes(bytes(endpoint()[:64])))
    assert facts["readable_bytes"] == 64
    assert facts["vendor_id"] == 0x10DE
    assert facts["port_type"] is None
    assert facts["link_capabilities"] == []


def test_all_ones_is_a_device_that_does_not_answer():
    facts = parse_function(config_from_bytes(b"\xff" * 4096))
    assert facts["responsive"] is False
    assert facts["link_capabilities"] == []


def test_a_virtual_function_answers_though_its_ids_read_all_ones():
    # SR-IOV, 3.4.1: vendor and device read FFFFh in every virtual function.
    config = endpoint()
    config[:4] = b"\xff" * 4
    facts = parse_function(config_from_bytes(bytes(config)))
    assert facts["responsive"]
    assert facts["class_code"] == 0x030200


@pytest.mark.parametrize(("status", "retimers"), [(0, 0), (1 << 6, 1), (1 << 6 | 1 << 7, 2)])
def test_retimers_are_counted(status, retimers):
    assert link(endpoint(lnksta2=status))["retimers"] == retimers


@pytest.mark.parametrize(
    ("capability", "control", "status", "occupied", "powered"),
    [(28 << 19, 0, 0x40, True, True), (28 << 19, 0x400, 0, False, True), (28 << 19 | 2, 0x400, 0x40, True, False)],
)
def test_what_a_slot_senses(capability, control, status, occupied, powered):
    config = endpoint(flags=2 | 6 << 4 | 0x100)
    struct.pack_into("<IHH", config, 0x60 + 0x14, capability, control, status)
    facts = parse_function(config_from_bytes(bytes(config)))
    assert (facts["slot_number"], facts["slot_occupied"], facts["slot_powered"]) == (28, occupied, powered)


def test_a_loop_of_extended_capabilities_ends():
    config = endpoint()
    struct.pack_into("<I", config, 0x100, 0x0003 | 1 << 16 | 0x140 << 20)
    struct.pack_into("<I", config, 0x140, 0x0004 | 1 << 16 | 0x100 << 20)
    facts = parse_function(config_from_bytes(bytes(config)))
    assert (facts["acs"], facts["aer_status"]) == (None, None)


def test_a_chain_that_bites_its_tail_ends():
    config = endpoint(header=0x10 | 0x60 << 8)
    assert len(parse_function(config_from_bytes(bytes(config)))["link_capabilities"]) == 1


def test_aer_and_acs_are_decoded_behind_byte_256():
    config = endpoint()
    struct.pack_into("<I", config, 0x100, 0x0001 | 2 << 16 | 0x150 << 20)
    struct.pack_into("<I", config, 0x104, 1 << 5 | 1 << 14)
    struct.pack_into("<I", config, 0x110, 1 << 0 | 1 << 8)
    struct.pack_into("<I", config, 0x150, 0x000D | 1 << 16)
    struct.pack_into("<HH", config, 0x154, 0b1011111, 0b1)
    facts = parse_function(config_from_bytes(bytes(config)))
    assert facts["aer_status"] == {
        "uncorrectable": ["surprise_down", "completion_timeout"],
        "correctable": ["receiver", "replay_rollover"],
    }
    assert facts["acs"]["enabled"] == ["source_validation"]
    assert "egress_control" not in facts["acs"]["supported"]


@given(st.binary(max_size=4096))
def test_noise_never_raises(noise):
    parse_function(config_from_bytes(noise))


@given(st.integers(0, 4096), st.lists(st.tuples(st.integers(0, 4095), st.integers(0, 255)), max_size=40))
def test_cut_or_corrupted_spaces_never_raise(size, flips):
    config = endpoint()
    for offset, value in flips:
        config[offset] = value
    facts = parse_function(config_from_bytes(bytes(config[:size])))
    assert all(found["width"] <= 63 for found in facts["link_capabilities"])
