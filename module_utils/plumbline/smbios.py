"""SMBIOS tables in plain Python: entry points 2.1 and 3.x, and the structures that describe processors and memory.

Layouts: DMTF DSP0134, System Management BIOS Reference Specification. A table comes from firmware, so nothing in it is
believed: what is cut off, overlaps or loops ends the parse there, and a note says what is missing.
"""

from __future__ import annotations

import struct
from typing import Any, Callable, NamedTuple

_HEADER_BYTES = 4
_TYPE_END = 127
_MIB = 1 << 20
_KIB = 1 << 10

_MEMORY_TYPES = {
    0x01: "Other",
    0x03: "DRAM",
    0x07: "RAM",
    0x0F: "SDRAM",
    0x12: "DDR",
    0x13: "DDR2",
    0x14: "DDR2 FB-DIMM",
    0x18: "DDR3",
    0x19: "FBD2",
    0x1A: "DDR4",
    0x1B: "LPDDR",
    0x1C: "LPDDR2",
    0x1D: "LPDDR3",
    0x1E: "LPDDR4",
    0x1F: "Logical non-volatile device",
    0x20: "HBM",
    0x21: "HBM2",
    0x22: "DDR5",
    0x23: "LPDDR5",
    0x24: "HBM3",
    0x25: "MRDIMM",
}
_TECHNOLOGIES = {0x03: "DRAM", 0x04: "NVDIMM-N", 0x05: "NVDIMM-F", 0x06: "NVDIMM-P", 0x07: "persistent memory"}
_FORM_FACTORS = {
    0x03: "SIMM",
    0x05: "chip",
    0x09: "DIMM",
    0x0B: "row of chips",
    0x0C: "RIMM",
    0x0D: "SODIMM",
    0x0E: "SRIMM",
    0x0F: "FB-DIMM",
    0x10: "die",
    0x11: "CAMM",
}
_ERROR_CORRECTION = {0x03: "none", 0x04: "parity", 0x05: "single-bit ECC", 0x06: "multi-bit ECC", 0x07: "CRC"}
_USE_SYSTEM_MEMORY = 0x03
_LOCATION_CXL = 0xA4
_PROCESSOR_CENTRAL = 0x03


class Structure(NamedTuple):
    """One structure: its type, handle, formatted area (header included) and strings."""

    type: int
    handle: int
    data: bytes
    strings: list[str]

    def number(self, offset: int, size: int) -> int | None:
        """An unsigned number of 1, 2, 4 or 8 bytes, `None` when this (older) structure does not reach so far."""
        chunk = self.data[offset : offset + size]
        return int.from_bytes(chunk, "little") if len(chunk) == size else None

    def text(self, offset: int) -> str | None:
        """The string that the byte at an offset refers to, `None` when there is none."""
        index = self.number(offset, 1)
        if not index or index > len(self.strings):
            return None
        return self.strings[index - 1].strip() or None


class EntryPoint(NamedTuple):
    """Version, the most bytes that the table may take, and the number of structures where the entry point tells it."""

    version: str
    table_bytes: int
    structures: int | None


def parse_entry_point(data: bytes) -> tuple[EntryPoint | None, list[str]]:
    """The entry point (`None` when it is none) and notes of what is wrong with it."""
    notes = []
    if data[:5] == b"_SM3_" and len(data) >= 24:
        if sum(data[: data[6]]) & 0xFF:
            notes.append("the checksum of the SMBIOS 3 entry point is wrong")
        return EntryPoint(f"{data[7]}.{data[8]}", struct.unpack_from("<I", data, 0x0C)[0], None), notes
    if data[:4] == b"_SM_" and len(data) >= 31:
        if sum(data[: data[5]]) & 0xFF:
            notes.append("the checksum of the SMBIOS entry point is wrong")
        length, _, count = struct.unpack_from("<HIH", data, 0x16)
        return EntryPoint(f"{data[6]}.{data[7]}", length, count or None), notes
    notes.append(f"expected an SMBIOS entry point (_SM_ or _SM3_), found {data[:5]!r} in {len(data)} bytes")
    return None, notes


def parse_structures(table: bytes, entry: EntryPoint | None = None) -> tuple[list[Structure], list[str]]:
    """All structures of a table and notes of what is missing. Without an entry point the whole table is read."""
    structures: list[Structure] = []
    notes: list[str] = []
    limit = len(table)
    if entry is not None and entry.structures is not None and entry.table_bytes > len(table):
        notes.append(f"the SMBIOS table is cut off: {len(table)} of {entry.table_bytes} bytes are there")
    offset = 0
    ended = False
    while offset + _HEADER_BYTES <= limit:
        kind, length, handle = struct.unpack_from("<BBH", table, offset)
        if length < _HEADER_BYTES:
            notes.append(f"the SMBIOS table is corrupt at byte {offset}: a structure of {length} bytes")
            break
        if offset + length > limit:
            notes.append(f"the SMBIOS table is cut off at byte {offset}: a structure of type {kind} does not fit")
            break
        end = table.find(b"\0\0", offset + length)
        if end < 0:
            notes.append(f"the SMBIOS table is cut off at byte {offset}: the strings of a structure do not end")
            end = limit
        strings = [part.decode("utf-8", "replace") for part in table[offset + length : end].split(b"\0") if part]
        structures.append(Structure(kind, handle, bytes(table[offset : offset + length]), strings))
        offset = end + 2
        if kind == _TYPE_END:
            ended = True
            break
    counted = entry.structures if entry is not None else None
    if not ended and not notes and (counted is None or len(structures) < counted):
        wanted = f"{len(structures)} of {counted} structures" if counted else "no end-of-table structure"
        notes.append(f"the SMBIOS table is incomplete: {wanted} found")
    return structures, notes


def decode(structures: list[Structure]) -> dict[str, Any]:
    """What the structures say of firmware, system, boards, processors and memory; unknown values are `None`."""
    facts: dict[str, Any] = {key: [] for key, _ in _DECODERS.values()}
    for structure in structures:
        key, decoder = _DECODERS.get(structure.type, (None, None))
        if key is not None and decoder is not None:
            facts[key].append({"handle": structure.handle, **decoder(structure)})
    for key in ("bios", "system"):
        facts[key] = facts[key][0] if facts[key] else None
    return facts


def _bios(structure: Structure) -> dict[str, Any]:
    return {"vendor": structure.text(0x04), "version": structure.text(0x05), "release_date": structure.text(0x08)}


def _system(structure: Structure) -> dict[str, Any]:
    return {
        "manufacturer": structure.text(0x04),
        "product_name": structure.text(0x05),
        "version": structure.text(0x06),
        "serial_number": structure.text(0x07),
        "sku": structure.text(0x19),
        "family": structure.text(0x1A),
    }


def _board(structure: Structure) -> dict[str, Any]:
    return {
        "manufacturer": structure.text(0x04),
        "product_name": structure.text(0x05),
        "version": structure.text(0x06),
        "serial_number": structure.text(0x07),
    }


def _processor(structure: Structure) -> dict[str, Any]:
    status = structure.number(0x18, 1)
    return {
        "socket": structure.text(0x04),
        "central": structure.number(0x05, 1) in (_PROCESSOR_CENTRAL, None),
        "manufacturer": structure.text(0x07),
        "model": structure.text(0x10),
        "populated": None if status is None else bool(status & 0x40),
        "enabled": None if status is None else status & 0x7 == 1,
        "max_speed_mhz": structure.number(0x14, 2) or None,
        "current_speed_mhz": structure.number(0x16, 2) or None,
        "cores": _extended(structure, 0x23, 0x2A),
        "cores_enabled": _extended(structure, 0x24, 0x2C),
        "threads": _extended(structure, 0x25, 0x2E),
    }


def _extended(structure: Structure, offset: int, wide_offset: int) -> int | None:
    """A count of one byte, whose 255 says that it stands in a word further on."""
    count = structure.number(offset, 1)
    if count == 0xFF:
        wide = structure.number(wide_offset, 2)
        return wide if wide not in (0, 0xFFFF) else None
    return count or None


def _memory_array(structure: Structure) -> dict[str, Any]:
    capacity = structure.number(0x07, 4)
    wide = structure.number(0x0F, 8)
    capacity_bytes = wide if capacity == 0x80000000 else None if capacity is None else capacity * _KIB
    return {
        "system_memory": structure.number(0x05, 1) == _USE_SYSTEM_MEMORY,
        "cxl": structure.number(0x04, 1) == _LOCATION_CXL,
        "error_correction": _ERROR_CORRECTION.get(structure.number(0x06, 1) or 0),
        "maximum_capacity_bytes": capacity_bytes or None,
        "slots": structure.number(0x0D, 2),
    }


def _memory_device(structure: Structure) -> dict[str, Any]:
    attributes = structure.number(0x1B, 1)
    device_set = structure.number(0x0F, 1)
    return {
        "array_handle": structure.number(0x04, 2),
        "total_width_bits": _width(structure.number(0x08, 2)),
        "data_width_bits": _width(structure.number(0x0A, 2)),
        "size_bytes": _size(structure),
        "form_factor": _FORM_FACTORS.get(structure.number(0x0E, 1) or 0),
        "set": device_set if device_set not in (0, 0xFF) else None,
        "locator": structure.text(0x10),
        "bank_locator": structure.text(0x11),
        "type": _MEMORY_TYPES.get(structure.number(0x12, 1) or 0),
        "technology": _TECHNOLOGIES.get(structure.number(0x28, 1) or 0),
        "speed_mts": _speed(structure, 0x15, 0x54),
        "configured_speed_mts": _speed(structure, 0x20, 0x58),
        "minimum_voltage_volts": _voltage(structure.number(0x22, 2)),
        "maximum_voltage_volts": _voltage(structure.number(0x24, 2)),
        "configured_voltage_volts": _voltage(structure.number(0x26, 2)),
        "rank": (attributes & 0xF or None) if attributes is not None else None,
        "manufacturer": structure.text(0x17),
        "serial_number": structure.text(0x18),
        "part_number": structure.text(0x1A),
    }


def _width(value: int | None) -> int | None:
    return value if value not in (0, 0xFFFF) else None


def _size(structure: Structure) -> int | None:
    """Bytes of a module: 0 for an empty slot, `None` when firmware does not know."""
    size = structure.number(0x0C, 2)
    if size is None or size == 0xFFFF:
        return None
    if size == 0x7FFF:
        extended = structure.number(0x1C, 4)
        return None if extended is None else (extended & 0x7FFFFFFF) * _MIB
    return (size & 0x7FFF) * (_KIB if size & 0x8000 else _MIB)


def _speed(structure: Structure, offset: int, wide_offset: int) -> int | None:
    """Mega-transfers per second; 65535 says that the figure stands in a double word further on."""
    speed = structure.number(offset, 2)
    if speed == 0xFFFF:
        wide = structure.number(wide_offset, 4)
        return (wide & 0x7FFFFFFF or None) if wide is not None else None
    return speed or None


def _voltage(millivolts: int | None) -> float | None:
    return millivolts / 1000 if millivolts else None


def _range(structure: Structure, wide_start: int, wide_end: int) -> dict[str, Any]:
    start, end = structure.number(0x04, 4), structure.number(0x08, 4)
    if start == 0xFFFFFFFF:
        first, last = structure.number(wide_start, 8), structure.number(wide_end, 8)
        return {"start_bytes": first, "end_bytes": None if last is None else last + 1}
    known = start is not None and end is not None
    # In KiB, and the end is the last one that belongs to the range.
    return {
        "start_bytes": start * _KIB if known and start is not None else None,
        "end_bytes": (end + 1) * _KIB if known and end is not None else None,
    }


def _array_mapping(structure: Structure) -> dict[str, Any]:
    return {
        **_range(structure, 0x0F, 0x17),
        "array_handle": structure.number(0x0C, 2),
        "devices_per_row": structure.number(0x0E, 1),
    }


def _device_mapping(structure: Structure) -> dict[str, Any]:
    return {
        **_range(structure, 0x13, 0x1B),
        "device_handle": structure.number(0x0C, 2),
        "array_mapping_handle": structure.number(0x0E, 2),
        "interleave_position": structure.number(0x11, 1),
        "interleave_depth": structure.number(0x12, 1),
    }


def _hpe_dimm_location(structure: Structure) -> dict[str, Any]:
    """HPE's own record of where a module sits (type 202): processor, DIMM, memory controller and channel, all from 1."""
    return {
        "device_handle": structure.number(0x04, 2),
        "dimm_number": structure.number(0x07, 1),
        "processor": structure.number(0x08, 1),
        "controller": structure.number(0x0D, 1),
        "channel": structure.number(0x0E, 1),
    }


_DECODERS: dict[int, tuple[str, Callable[[Structure], dict[str, Any]]]] = {
    0: ("bios", _bios),
    1: ("system", _system),
    2: ("boards", _board),
    4: ("processors", _processor),
    16: ("memory_arrays", _memory_array),
    17: ("memory_devices", _memory_device),
    19: ("array_mappings", _array_mapping),
    20: ("device_mappings", _device_mapping),
    202: ("hpe_dimm_locations", _hpe_dimm_location),
}
