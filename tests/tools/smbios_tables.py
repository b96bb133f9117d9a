"""Turn the text of `dmidecode` into the binary tables that it was made from, as firmware would present them.

Types 0, 1, 2, 4, 16, 17, 19 and 20 are rebuilt field by field, others from their hexadecimal dump, or as empty structures of their length.
"""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any

MEMORY_TYPES = {
    "RAM": 0x07,
    "DRAM": 0x03,
    "DDR3": 0x18,
    "DDR4": 0x1A,
    "DDR5": 0x22,
    "Unknown": 0x02,
    "<OUT OF SPEC>": 0x1A,
}
ECC = {"None": 3, "Parity": 4, "Single-bit ECC": 5, "Multi-bit ECC": 6, "CRC": 7}
TECHNOLOGIES = {"DRAM": 3, "NVDIMM-N": 4, "Intel Optane DC persistent memory": 7, "Intel persistent memory": 7}
UNITS = {"bytes": 1, "kB": 1 << 10, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}


class Structure:
    """One structure under construction; bytes past its length are dropped, as in an older version of the standard."""

    def __init__(self, kind: int, length: int, handle: int) -> None:
        self.kind, self.handle = kind, handle
        self.data = bytearray(length)
        struct.pack_into("<BBH", self.data, 0, kind, length, handle)
        self.strings: list[str] = []

    def put(self, layout: str, offset: int, value: int) -> None:
        raw = struct.pack("<" + layout, value)
        room = len(self.data) - offset
        if room >= len(raw):
            self.data[offset : offset + len(raw)] = raw

    def string(self, offset: int, text: str | None) -> None:
        if text in (None, "Not Specified", ""):
            return
        assert text is not None
        if text not in self.strings:
            self.strings.append(text)
        self.put("B", offset, self.strings.index(text) + 1)

    def bytes(self) -> bytes:
        strings = b"".join(text.encode() + b"\0" for text in self.strings) or b"\0"
        return bytes(self.data) + strings + b"\0"


def _size(text: str | None) -> int | None:
    match = re.match(r"(\d+) (\w+)", text or "")
    return int(match.group(1)) * UNITS[match.group(2)] if match else None


def _number(text: str | None) -> int:
    match = re.match(r"(\d+)", text or "")
    return int(match.group(1)) if match else 0


def memory_device(handle: int, length: int, fields: dict[str, str]) -> Structure:
    """A type 17 structure from the names and values that dmidecode prints."""
    made = Structure(17, length, handle)
    made.put("H", 4, int(fields.get("Array Handle", "0x1000"), 16))
    made.put("H", 6, 0xFFFE)
    for offset, key in ((8, "Total Width"), (0xA, "Data Width")):
        made.put("H", offset, _number(fields.get(key)) or 0xFFFF)
    size = _size(fields.get("Size"))
    if size is None:
        made.put("H", 0xC, 0 if "No Module" in fields.get("Size", "") else 0xFFFF)
    elif size >> 20 >= 0x7FFF:
        made.put("H", 0xC, 0x7FFF)
        made.put("I", 0x1C, size >> 20)
    else:
        made.put("H", 0xC, size >> 20)
    device_set = fields.get("Set", "None")
    made.put("B", 0xF, 0 if device_set == "None" else 0xFF if device_set == "Unknown" else int(device_set))
    for offset, key in (
        (0x10, "Locator"),
        (0x11, "Bank Locator"),
        (0x17, "Manufacturer"),
        (0x18, "Serial Number"),
        (0x1A, "Part Number"),
    ):
        made.string(offset, fields.get(key))
    made.put("B", 0x12, MEMORY_TYPES[fields.get("Type", "Unknown")])
    for offset, wide, key in ((0x15, 0x54, "Speed"), (0x20, 0x58, "Configured Memory Speed")):
        speed = _number(fields.get(key) or fields.get(key.replace("Memory", "Clock")))
        made.put("H", offset, speed if speed < 0xFFFF else 0xFFFF)
        if speed >= 0xFFFF:
            made.put("I", wide, speed)
    made.put("B", 0x1B, _number(fields.get("Rank")))
    for offset, key in ((0x22, "Minimum Voltage"), (0x24, "Maximum Voltage"), (0x26, "Configured Voltage")):
        volts = re.match(r"([\d.]+)", fields.get(key) or fields.get(key.replace(" V", " v")) or "")
        made.put("H", offset, round(float(volts.group(1)) * 1000) if volts else 0)
    made.put("B", 0x28, TECHNOLOGIES.get(fields.get("Memory Technology", ""), 2))
    return made


def _range(made: Structure, fields: dict[str, str], wide: int) -> None:
    first, last = (fields[f"{name} Address"] for name in ("Starting", "Ending"))
    # dmidecode 3.1 puts a "k" behind extended addresses, which are bytes.
    start, end = (int(text.rstrip("k"), 16) for text in (first, last))
    if end >> 10 >= 0xFFFFFFFF:
        made.put("I", 4, 0xFFFFFFFF)
        made.put("I", 8, 0xFFFFFFFF)
        made.put("Q", wide, start)
        made.put("Q", wide + 8, end)
    else:
        made.put("I", 4, start >> 10)
        made.put("I", 8, end >> 10)


def _processor(made: Structure, fields: dict[str, str]) -> None:
    made.string(4, fields.get("Socket Designation"))
    made.put("B", 5, 3)
    made.string(7, fields.get("Manufacturer"))
    made.string(0x10, fields.get("Version"))
    made.put("H", 0x14, _number(fields.get("Max Speed")))
    made.put("H", 0x16, _number(fields.get("Current Speed")))
    made.put("B", 0x18, 0x41 if "Populated, Enabled" in fields.get("Status", "") else 0)
    for offset, wide, key in (
        (0x23, 0x2A, "Core Count"),
        (0x24, 0x2C, "Core Enabled"),
        (0x25, 0x2E, "Thread Count"),
    ):
        count = _number(fields.get(key))
        made.put("B", offset, min(count, 0xFF))
        made.put("H", wide, count)


def _structure(kind: int, length: int, handle: int, body: str) -> Structure:
    fields = dict(re.findall(r"(?m)^\s+([A-Z][A-Za-z0-9 -]*?): (.*?)\s*$", body))
    if kind == 17:
        return memory_device(handle, length, fields)
    made = Structure(kind, length, handle)
    if kind == 4:
        _processor(made, fields)
    elif kind == 0:
        for offset, key in ((4, "Vendor"), (5, "Version"), (8, "Release Date")):
            made.string(offset, fields.get(key))
    elif kind in (1, 2):
        for offset, key in ((4, "Manufacturer"), (5, "Product Name"), (6, "Version"), (7, "Serial Number")):
            made.string(offset, fields.get(key))
        if kind == 1:
            made.string(0x19, fields.get("SKU Number"))
            made.string(0x1A, fields.get("Family"))
    elif kind == 16:
        made.put("B", 4, 3)
        made.put("B", 5, 3 if fields.get("Use") == "System Memory" else 1)
        made.put("B", 6, ECC.get(fields.get("Error Correction Type", ""), 2))
        capacity = _size(fields.get("Maximum Capacity")) or 0
        wide = capacity >> 10 >= 0x80000000
        made.put("I", 7, 0x80000000 if wide else capacity >> 10)
        made.put("Q", 0xF, capacity if wide else 0)
        made.put("H", 0xD, _number(fields.get("Number Of Devices")))
    elif kind == 19:
        _range(made, fields, 0xF)
        made.put("H", 0xC, int(fields["Physical Array Handle"], 16))
        made.put("B", 0xE, _number(fields.get("Partition Width")))
    elif kind == 20:
        _range(made, fields, 0x13)
        made.put("H", 0xC, int(fields["Physical Device Handle"], 16))
        made.put("H", 0xE, int(fields["Memory Array Mapped Address Handle"], 16))
    else:
        dump = re.search(r"Header and Data:\n((?:\s+(?:[0-9A-F]{2} ?)+\n)+)", body + "\n")
        if dump:
            raw = bytes.fromhex("".join(dump.group(1).split()))
            made.data[: len(raw)] = raw[: len(made.data)]
    return made


def structures(text: str) -> list[Structure]:
    """The structures of a dmidecode text, in its order."""
    parts = re.split(r"(?m)^Handle 0x([0-9A-Fa-f]{4}), DMI type (\d+), (\d+) bytes\s*$", text)[1:]
    return [
        _structure(int(parts[i + 1]), int(parts[i + 2]), int(parts[i], 16), parts[i + 3])
        for i in range(0, len(parts), 4)
    ]


def table(made: list[Structure]) -> bytes:
    """The table, ended by a structure of type 127 where the text has none."""
    raw = b"".join(structure.bytes() for structure in made)
    return raw if any(structure.kind == 127 for structure in made) else raw + Structure(127, 4, 0xFEFF).bytes()


def entry_point(version: tuple[int, int], raw: bytes, count: int) -> bytes:
    """An entry point: 3.x from version 3 on, else 2.1."""
    major, minor = version
    if major >= 3:
        made = bytearray(struct.pack("<5sBBBBBBBIQ", b"_SM3_", 0, 24, major, minor, 0, 1, 0, len(raw), 0xF0000))
        made[5] = -sum(made) & 0xFF
        return bytes(made)
    tail = bytearray(struct.pack("<5sBHIHB", b"_DMI_", 0, len(raw), 0xF0000, count, major << 4 | minor))
    tail[5] = -sum(tail) & 0xFF
    made = bytearray(struct.pack("<4sBBBBHB5s", b"_SM_", 0, 31, major, minor, 256, 0, b"") + tail)
    made[4] = -sum(made) & 0xFF
    return bytes(made)


def write(root: Path, made: list[Structure], version: tuple[int, int] = (3, 3)) -> Path:
    """Write the tables below *root* where sysfs has them."""
    directory = root / "sys/firmware/dmi/tables"
    directory.mkdir(parents=True, exist_ok=True)
    raw = table(made)
    (directory / "DMI").write_bytes(raw)
    count = len(made) + (0 if any(structure.kind == 127 for structure in made) else 1)
    (directory / "smbios_entry_point").write_bytes(entry_point(version, raw, count))
    return root


def capture(path: Path) -> tuple[list[Structure], tuple[int, int]]:
    """The structures and the version of a captured text."""
    text = path.read_text()
    version = re.search(r"SMBIOS (\d+)\.(\d+)", text)
    return structures(text), (int(version.group(1)), int(version.group(2))) if version else (3, 3)


def dimm(handle: int, locator: str, **fields: Any) -> Structure:
    """A type 17 structure of a test's own."""
    values = {
        "Size": "32 GB",
        "Type": "DDR4",
        "Speed": "3200 MT/s",
        "Configured Memory Speed": "3200 MT/s",
        "Total Width": "72 bits",
        "Data Width": "64 bits",
        "Rank": "2",
    }
    return memory_device(handle, 92, {**values, "Locator": locator, **fields})
