"""SMBIOS structures of the virtual machine: the reverse of `module_utils/plumbline/smbios.py`.

Layouts: DMTF DSP0134, System Management BIOS Reference Specification, 3.3 (structures of type 4, 16, 17 and 19). QEMU takes one
file for each structure (`-smbios file=`); what it describes by itself has one DIMM of 16 GiB each, all with one serial number.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Any

MEMORY_ARRAY = 0x1000
_FIRST_DIMM = 0x1100
_FIRST_PROCESSOR = 0x0400
_MAPPED_ADDRESS = 0x1300
_UNKNOWN_WORD = 0xFFFF
_DDR = {"DDR3": 0x18, "DDR4": 0x1A, "DDR5": 0x22}
_FORM_DIMM = 0x09
_REGISTERED = 0x2000
_MULTI_BIT_ECC = 0x06
_NO_ERROR_INFORMATION = 0xFFFE
_LARGE_MIB = 0x7FFF
_VOLATILE = 0x0008  # operating mode capability
_TECHNOLOGY_DRAM = 0x03
_KIB_IN_MIB = 1024


class _Strings:
    """The strings behind a structure, numbered from 1 as they are asked for."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def number(self, text: str) -> int:
        if not text:
            return 0
        if text not in self.texts:
            self.texts.append(text)
        return self.texts.index(text) + 1

    def packed(self) -> bytes:
        return b"".join(text.encode("ascii", "replace") + b"\0" for text in self.texts) + (
            b"\0" if self.texts else b"\0\0"
        )


def structure(kind: int, handle: int, body: bytes, strings: _Strings | None = None) -> bytes:
    """One structure: header, formatted area and strings."""
    return struct.pack("<BBH", kind, 4 + len(body), handle) + body + (strings or _Strings()).packed()


def bios(vendor: str, version: str, date: str) -> bytes:
    """Type 0. ``date`` is mm/dd/yyyy."""
    strings = _Strings()
    numbers = strings.number(vendor), strings.number(version), strings.number(date)
    body = struct.pack("<BBHBB", numbers[0], numbers[1], 0xE000, numbers[2], 0xFF)
    # Characteristics: PCI is supported, and the firmware is not a virtual machine's (bit 4 of the second extension byte).
    body += struct.pack("<QBBBBBBH", 0x80, 0x01, 0x00, 0xFF, 0xFF, 0xFF, 0xFF, 32)
    return structure(0, 0x0000, body, strings)


def system(described: Mapping[str, Any]) -> bytes:
    """Type 1 from a Redfish ComputerSystem's properties; the UUID's first three fields are little-endian."""
    strings = _Strings()
    names = [strings.number(str(described.get(key) or "")) for key in ("Manufacturer", "Model")]
    version = strings.number("1")
    serial = strings.number(str(described.get("SerialNumber") or ""))
    text = str(described.get("UUID") or "00000000-0000-0000-0000-000000000000").replace("-", "")
    raw = bytes.fromhex(text)
    uuid = raw[3::-1] + raw[5:3:-1] + raw[7:5:-1] + raw[8:]
    sku, family = strings.number(str(described.get("SKU") or "")), strings.number("Server")
    return structure(
        1, 0x0100, struct.pack("<BBBB", *names, version, serial) + uuid + struct.pack("<BBB", 6, sku, family), strings
    )


def board(described: Mapping[str, Any]) -> bytes:
    """Type 2, the main board."""
    strings = _Strings()
    numbers = [
        strings.number(text)
        for text in (
            str(described.get("Manufacturer") or ""),
            str(described.get("PartNumber") or described.get("Model") or ""),
            "1",
            str(described.get("SerialNumber") or "") + "-B",
        )
    ]
    return structure(2, 0x0200, struct.pack("<BBBBBBBHBB", *numbers, 0, 0x09, 0, 0x0300, 0x0A, 0), strings)


def processor(index: int, described: Mapping[str, Any]) -> bytes:
    """Type 4 from a Redfish Processor: an x86-64 server processor in its socket, enabled."""
    strings = _Strings()
    socket = strings.number(str(described.get("Socket") or f"CPU{index}"))
    maker = strings.number(str(described.get("Manufacturer") or ""))
    model = strings.number(str(described.get("Model") or ""))
    maximum = int(described.get("MaxSpeedMHz") or 0)
    current = int(described.get("OperatingSpeedMHz") or maximum)
    cores, threads = int(described.get("TotalCores") or 1), int(described.get("TotalThreads") or 1)
    body = struct.pack("<BBBBQBB", socket, 0x03, 0xB3, maker, 0, model, 0x80 | 18)
    body += struct.pack("<HHHBB", 100, maximum, current, 0x41, 0x01)
    body += struct.pack("<HHHBBB", _UNKNOWN_WORD, _UNKNOWN_WORD, _UNKNOWN_WORD, 0, 0, 0)
    body += struct.pack("<BBBHH", min(cores, 0xFF), min(cores, 0xFF), min(threads, 0xFF), 0x00FC, 0x00B3)
    body += struct.pack("<HHH", cores, cores, threads)
    return structure(4, _FIRST_PROCESSOR + index, body, strings)


def memory_array(slots: int, capacity_mib: int) -> bytes:
    """Type 16: the system's memory on the main board, with multi-bit ECC."""
    body = struct.pack(
        "<BBBIHHQ", 0x03, 0x03, _MULTI_BIT_ECC, 0x80000000, _NO_ERROR_INFORMATION, slots, capacity_mib << 20
    )
    return structure(16, MEMORY_ARRAY, body)


def memory_device(index: int, part: Mapping[str, Any], configured_mts: int) -> bytes:
    """Type 17 from a Redfish Memory; a part without a capacity is an empty slot. ``configured_mts`` in mega-transfers a second."""
    strings = _Strings()
    size_mib = int(part.get("CapacityMiB") or 0)
    locator = strings.number(str(part["DeviceLocator"]))
    place = part.get("MemoryLocation") or {}
    bank = strings.number(
        f"NODE {place['Socket']} CHANNEL {place['Channel']} DIMM {place['Slot']}"
        if {"Socket", "Channel", "Slot"} <= set(place)
        else ""
    )
    rated = int((part.get("AllowedSpeedsMHz") or [part.get("OperatingSpeedMhz") or 0])[0]) if size_mib else 0
    maker, serial = (strings.number(str(part.get(key) or "")) for key in ("Manufacturer", "SerialNumber"))
    tag = strings.number("")
    number = strings.number(str(part.get("PartNumber") or ""))
    total, data = int(part.get("BusWidthBits") or 72), int(part.get("DataWidthBits") or 64)
    if size_mib:
        size = struct.pack("<HHH", total, data, size_mib if size_mib < _LARGE_MIB else _LARGE_MIB)
    else:
        size = struct.pack("<HHH", _UNKNOWN_WORD, _UNKNOWN_WORD, 0)
    kind = _DDR.get(str(part.get("MemoryDeviceType") or ""), 0x02)
    body = struct.pack("<HH", MEMORY_ARRAY, _NO_ERROR_INFORMATION) + size
    body += struct.pack("<BBBBBH", _FORM_DIMM, 0, locator, bank, kind, 0x0080 | _REGISTERED)
    body += struct.pack("<HBBBB", rated, maker, serial, tag, number)
    body += struct.pack(
        "<BIH",
        int(part.get("RankCount") or 0),
        size_mib if size_mib >= _LARGE_MIB else 0,
        configured_mts if size_mib else 0,
    )
    body += struct.pack("<HHH", 1200, 1200, 1200)
    body += struct.pack("<BHBHHHH", _TECHNOLOGY_DRAM, _VOLATILE, 0, 0, 0, 0, 0)
    body += struct.pack("<QQQQ", 0, size_mib << 20, 0, 0)
    body += struct.pack("<II", 0, 0)
    return structure(17, _FIRST_DIMM + index, body, strings)


def array_mapping(memory_mib: int) -> bytes:
    """Type 19: which addresses the array fills."""
    end = memory_mib * _KIB_IN_MIB - 1
    return structure(19, _MAPPED_ADDRESS, struct.pack("<IIHBQQ", 0, end, MEMORY_ARRAY, 1, 0, 0))


def slot(index: int, designation: str, bus: int, device: int) -> bytes:
    """Type 9: a PCI Express Gen4 x16 slot in use."""
    strings = _Strings()
    named = strings.number(designation)
    body = struct.pack("<BBBBBHBBHBB", named, 0xBD, 0x0D, 0x04, 0x04, index, 0x04, 0x01, 0, bus, device << 3)
    return structure(9, 0x0900 + index, body, strings)


def configured_speed(rated_mts: int, limit: Mapping[str, Any] | None, active: Mapping[str, Any]) -> int:
    """Mega-transfers a second that a DIMM runs at: as rated, held down by the BIOS setting that the profile names."""
    if not limit:
        return rated_mts
    chosen = limit["values"].get(str(active.get(limit["name"])))
    return rated_mts if chosen is None else min(rated_mts, int(chosen))


def table(
    described: Mapping[str, Any],
    processors: Iterable[Mapping[str, Any]],
    dimms: Iterable[Mapping[str, Any]],
    *,
    speed_limit: Mapping[str, Any] | None,
    active: Mapping[str, Any],
    bios_version: str,
    slots: Iterable[tuple[str, int, int]] = (),
) -> list[bytes]:
    """All structures, in terms of what Redfish says of the same machine.

    ``active``: the BIOS attributes that the machine runs with; ``slots``: designation, bus and device of each PCIe slot.
    """
    parts = list(dimms)
    total_mib = sum(int(part.get("CapacityMiB") or 0) for part in parts)
    made = [
        bios(str(described.get("Manufacturer") or ""), bios_version, "03/01/2024"),
        system(described),
        board(described),
    ]
    made += [processor(index, one) for index, one in enumerate(processors)]
    made += [slot(index, *one) for index, one in enumerate(slots, start=1)]
    made.append(memory_array(len(parts), total_mib))
    for index, part in enumerate(parts):
        rated = int(part.get("OperatingSpeedMhz") or 0)
        made.append(memory_device(index, part, configured_speed(rated, speed_limit, active)))
    made.append(array_mapping(total_mib))
    return made
