"""Firmware versions as vendors write them: ordered where that is certain, and never where it is not."""

from __future__ import annotations

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.firmware_floors import (
    find_components,
    floor_measurements,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.firmware_versions import (
    compare_versions,
    version_at_least,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.gates import judge_all

OLDER_NEWER = [
    ("1.9.4", "1.13.2"),  # Dell BIOS: numbers, not text
    ("6.10.80.00", "7.00.00.00"),  # iDRAC
    ("U58 v2.8", "U58 v2.60 (05/20/2024)"),  # HPE System ROM with its date
    ("2.50", "U58 v2.60"),  # a floor without the family
    ("iLO 6 v1.58", "iLO 6 v1.60"),
    ("05.01.00", "5.10"),
    ("4.22.01", "4.22.01(a)"),
    ("4.22.01(a)", "4.22.01(b)"),
    ("3.8", "3.8a"),  # Supermicro
    ("DVI401A-1.9", "DVI399M-1.10"),  # Lenovo: the build id does not order
    ("96.00.5E.00.01", "96.00.74.00.01"),  # NVIDIA VBIOS: hexadecimal bytes
    ("96.00.74.00.01", "96.00.9F.00.01"),
    ("1.2.0-rc1", "1.2.0"),
    ("2.10 build 9", "2.10 build 12"),
    ("28.35", "28.36.1010 (MT_0000000838)"),
    ("2024-04-30", "2024-05-01"),
    ("V1.34.9", "1.35.05"),  # IEIT
]
SAME = [("1.2", "1.2.0"), ("05.01.00", "5.1"), ("V1.35.05", "1.35.5"), ("abcdef", "ABCDEF"), ("2.60", "U58 v2.60")]
UNKNOWN = [
    ("U58 v2.60", "A42 v2.40"),  # two families
    ("DVI399M-1.10", "TEE142L-1.10"),
    ("N/A", "N/A"),
    ("", "1.0"),
    ("abcdef", "1.0"),
    ("96.00.5E.00.01", "1.2"),  # bytes against a release
    ("05/20/2024", "06/20/2024"),  # day or month first?
    ("2.1.V2", "2.1"),
]


@pytest.mark.parametrize(("older", "newer"), OLDER_NEWER)
def test_the_older_one_is_older_from_both_sides(older: str, newer: str) -> None:
    assert compare_versions(older, newer) == -1
    assert compare_versions(newer, older) == 1


@pytest.mark.parametrize(("left", "right"), SAME)
def test_different_spellings_of_one_version_are_the_same(left: str, right: str) -> None:
    assert compare_versions(left, right) == 0


@pytest.mark.parametrize(("left", "right"), UNKNOWN)
def test_what_cannot_be_ordered_has_no_order(left: str, right: str) -> None:
    assert compare_versions(left, right) is None
    assert version_at_least(left, right) is None


def component(identity: str, version: str, name: str = "") -> dict[str, str]:
    return {"id": identity, "name": name or identity, "version": version}


INVENTORY = [
    component("BIOS", "05.10.00"),
    component("BMC", "1.35.05"),
    component("GPU0", "96.00.5E.00.01", "GPU firmware"),
    component("GPU1", "96.00.74.00.01", "GPU firmware"),
    component("CPLD", "N/A"),
]


def test_a_component_is_found_by_id_by_name_and_by_pattern_in_any_capitals() -> None:
    assert [item["id"] for item in find_components(INVENTORY, "bios")] == ["BIOS"]
    assert [item["id"] for item in find_components(INVENTORY, "gpu firmware")] == ["GPU0", "GPU1"]
    assert [item["id"] for item in find_components(INVENTORY, "GPU*")] == ["GPU0", "GPU1"]
    assert find_components(INVENTORY, "GPU") == []


def judged(floors: dict[str, str]) -> dict[str, str]:
    rules = {"firmware_version": {"kind": "version_at_least"}}
    return {check.scope: check.status for check in judge_all(floor_measurements(INVENTORY, floors), rules)}


def test_the_gate_passes_what_is_new_enough_and_stops_what_is_older() -> None:
    assert judged({"BIOS": "05.10.00", "BMC": "1.36", "GPU*": "96.00.60.00.00"}) == {
        "BIOS": "OK",
        "BMC": "CRITICAL",
        "GPU0": "CRITICAL",
        "GPU1": "OK",
    }


def test_a_missing_component_and_an_unknown_order_are_unknown_and_say_what_there_is() -> None:
    assert judged({"NIC": "1.0", "CPLD": "1.0"}) == {"NIC": "UNKNOWN", "CPLD": "UNKNOWN"}
    missing = floor_measurements(INVENTORY, {"BIOZ": "1"})[0]
    assert 'did you mean "BIOS"?' in missing["error"]
    assert "BMC" in missing["error"]
