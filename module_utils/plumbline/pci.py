"""The configuration space of one PCI function: header, PCI Express capability, AER, ACS.

Only what is asked for is read: a configuration read costs the CPU up to a microsecond a dword, so a walk through 4 KiB
of each of 400 functions would take longer than everything else.

Register layouts: PCI Express Base Specification, chapter 7; names as in Linux' pci_regs.h.
"""

from __future__ import annotations

import os
import struct
from typing import Any, Callable

from .limits import PCIE_SPEEDS_GTS

CONFIG_UNPRIVILEGED_BYTES = 64
"""What Linux lets a reader without CAP_SYS_ADMIN see of a configuration space."""
_CONFIG_PCI_BYTES = 256
_CONFIG_PCIE_BYTES = 4096

_STATUS_CAPABILITY_LIST = 0x10
_CAPABILITY_EXPRESS = 0x10
_EXTENDED_AER = 0x0001
_EXTENDED_ACS = 0x000D
# A chain cannot hold more than one capability per 4 bytes: whatever is longer is a loop.
_CHAIN_MAX = 48
_EXTENDED_CHAIN_MAX = 96

_PORT_TYPES = {
    0x0: "endpoint",
    0x1: "legacy_endpoint",
    0x4: "root_port",
    0x5: "upstream_port",
    0x6: "downstream_port",
    0x7: "pcie_to_pci_bridge",
    0x8: "pci_to_pcie_bridge",
    0x9: "root_complex_integrated_endpoint",
    0xA: "root_complex_event_collector",
}
_LINKLESS = ("root_complex_integrated_endpoint", "root_complex_event_collector")
DOWNSTREAM_FACING = ("root_port", "downstream_port", "pci_to_pcie_bridge")
"""Port types whose link leads away from the processor."""

_ASPM = {0: [], 1: ["L0s"], 2: ["L1"], 3: ["L0s", "L1"]}
_ACS_BITS = (
    "source_validation",
    "translation_blocking",
    "request_redirect",
    "completion_redirect",
    "upstream_forwarding",
    "egress_control",
    "direct_translated",
)
_UNCORRECTABLE_BITS = {
    4: "data_link_protocol",
    5: "surprise_down",
    12: "poisoned_tlp",
    13: "flow_control_protocol",
    14: "completion_timeout",
    15: "completer_abort",
    16: "unexpected_completion",
    17: "receiver_overflow",
    18: "malformed_tlp",
    19: "ecrc",
    20: "unsupported_request",
    21: "acs_violation",
    22: "internal",
}
_CORRECTABLE_BITS = {
    0: "receiver",
    6: "bad_tlp",
    7: "bad_dllp",
    8: "replay_rollover",
    12: "replay_timeout",
    13: "advisory_non_fatal",
    14: "corrected_internal",
}


class ConfigSpace:
    """A configuration space that is read where it is looked at; what lies past its readable end is `None`."""

    def __init__(self, read: Callable[[int, int], bytes]) -> None:
        """Take a function (offset, count) that returns the bytes there, fewer or none past the end."""
        self._read = read
        self._cache: dict[int, bytes] = {}

    def _bytes(self, offset: int, count: int) -> bytes | None:
        start = offset & ~0x3F
        block = self._cache.get(start)
        if block is None:
            block = self._cache[start] = self._read(start, 64)
        chunk = block[offset - start : offset - start + count]
        return chunk if len(chunk) == count else None

    def byte(self, offset: int) -> int | None:
        """The 8-bit register at an offset."""
        chunk = self._bytes(offset, 1)
        return None if chunk is None else chunk[0]

    def word(self, offset: int) -> int | None:
        """The 16-bit register at an offset (aligned)."""
        chunk = self._bytes(offset, 2)
        return None if chunk is None else int(struct.unpack("<H", chunk)[0])

    def dword(self, offset: int) -> int | None:
        """The 32-bit register at an offset (aligned)."""
        chunk = self._bytes(offset, 4)
        return None if chunk is None else int(struct.unpack("<I", chunk)[0])

    @property
    def readable_bytes(self) -> int:
        """0, 64, 256 or 4096: how much of the space can be read here."""
        for size, probe in ((_CONFIG_PCIE_BYTES, 0x100), (_CONFIG_PCI_BYTES, 0x40), (CONFIG_UNPRIVILEGED_BYTES, 0)):
            if self.dword(probe) is not None:
                return size
        return 0

    def capabilities(self) -> list[tuple[int, int]]:
        """The chain of capabilities as pairs (id, offset), in its order; cut where it is corrupt or unreadable."""
        status = self.word(0x06)
        if status is None or not status & _STATUS_CAPABILITY_LIST:
            return []
        header = self.byte(0x0E)
        pointer = self.byte(0x14 if header is not None and header & 0x7F == 2 else 0x34)
        found: list[tuple[int, int]] = []
        seen: set[int] = set()
        while pointer and len(found) < _CHAIN_MAX:
            pointer &= 0xFC
            entry = self.word(pointer)
            if pointer < 0x40 or pointer in seen or entry is None or entry == 0xFFFF:
                break
            seen.add(pointer)
            found.append((entry & 0xFF, pointer))
            pointer = entry >> 8
        return found

    def extended_capabilities(self, wanted: tuple[int, ...]) -> dict[int, int]:
        """The offsets of the first extended capability of each wanted id."""
        found: dict[int, int] = {}
        offset = 0x100
        seen: set[int] = set()
        while offset >= 0x100 and offset not in seen and len(seen) < _EXTENDED_CHAIN_MAX:
            seen.add(offset)
            header = self.dword(offset)
            if header is None or header in (0, 0xFFFFFFFF):
                break
            capability = header & 0xFFFF
            if capability in wanted:
                found.setdefault(capability, offset)
                if len(found) == len(wanted):
                    break
            offset = (header >> 20) & 0xFFC
        return found


def config_from_bytes(data: bytes) -> ConfigSpace:
    """A configuration space held in memory."""
    return ConfigSpace(lambda offset, count: data[offset : offset + count])


def config_from_file(descriptor: int) -> ConfigSpace:
    """A configuration space behind an open sysfs `config` file."""

    def read(offset: int, count: int) -> bytes:
        try:
            return os.pread(descriptor, count, offset)
        except OSError:
            return b""

    return ConfigSpace(read)


def parse_function(config: ConfigSpace) -> dict[str, Any]:
    """What a configuration space says of its function; keys that it cannot answer are `None`.

    `link_capabilities` holds every link that the function describes: none for integrated endpoints and virtual
    functions, two for some GPUs.
    """
    identity = config.dword(0x00)
    class_word = config.dword(0x08)
    header = config.byte(0x0E)
    facts: dict[str, Any] = {
        "vendor_id": None if identity is None else identity & 0xFFFF,
        "device_id": None if identity is None else identity >> 16,
        "class_code": None if class_word is None else class_word >> 8,
        "is_bridge": header is not None and header & 0x7F == 1,
        # A virtual function answers all ones for its ids alone: what does not answer at all has no class either.
        "responsive": identity != 0xFFFFFFFF or class_word not in (None, 0xFFFFFFFF),
        "secondary_bus": None,
        "subordinate_bus": None,
        "readable_bytes": 0,
        "port_type": None,
        "slot_number": None,
        "slot_occupied": None,
        "slot_powered": None,
        "max_payload_bytes": None,
        "max_payload_supported_bytes": None,
        "max_read_request_bytes": None,
        "link_capabilities": [],
        "acs": None,
        "aer_status": None,
    }
    if identity is None or not facts["responsive"]:
        return facts
    if facts["is_bridge"]:
        facts["secondary_bus"], facts["subordinate_bus"] = config.byte(0x19), config.byte(0x1A)
    facts["readable_bytes"] = CONFIG_UNPRIVILEGED_BYTES
    if config.dword(0x40) is None:
        return facts
    facts["readable_bytes"] = _CONFIG_PCI_BYTES
    for capability, offset in config.capabilities():
        if capability == _CAPABILITY_EXPRESS:
            _parse_express(config, offset, facts)
    # Integrated functions have neither a link nor redirections to look at, and there are hundreds of them.
    if facts["port_type"] is not None:
        facts["readable_bytes"] = _CONFIG_PCIE_BYTES if config.dword(0x100) is not None else _CONFIG_PCI_BYTES
        if facts["port_type"] not in _LINKLESS:
            _parse_extended(config, facts)
    return facts


def speed_of_code(code: int) -> float | None:
    """GT/s of a link speed field, `None` for a code that means nothing."""
    return PCIE_SPEEDS_GTS[code - 1] if 1 <= code <= len(PCIE_SPEEDS_GTS) else None


def _parse_express(config: ConfigSpace, offset: int, facts: dict[str, Any]) -> None:
    flags = config.word(offset + 0x02)
    if flags is None:
        return
    port_type = _PORT_TYPES.get((flags >> 4) & 0xF)
    device_capability, device_control = config.dword(offset + 0x04), config.word(offset + 0x08)
    if facts["port_type"] is None:
        facts["port_type"] = port_type
        if device_capability is not None:
            facts["max_payload_supported_bytes"] = _payload(device_capability & 0x7)
        if device_control is not None:
            facts["max_payload_bytes"] = _payload((device_control >> 5) & 0x7)
            facts["max_read_request_bytes"] = _payload((device_control >> 12) & 0x7)
        slot = config.dword(offset + 0x14)
        if flags & 0x100 and port_type in DOWNSTREAM_FACING and slot is not None:
            facts["slot_number"] = slot >> 19
            slot_control, slot_status = config.word(offset + 0x18), config.word(offset + 0x1A)
            facts["slot_occupied"] = None if slot_status is None else bool(slot_status & 0x40)
            # Without a power controller a slot always has power, and the control bit is reserved.
            facts["slot_powered"] = slot_control is None or not (slot & 0x2 and slot_control & 0x400)
    if port_type is None or port_type in _LINKLESS:
        return
    link = _parse_link(config, offset, flags)
    if link is not None:
        facts["link_capabilities"].append(link)


def _parse_link(config: ConfigSpace, offset: int, flags: int) -> dict[str, Any] | None:
    capability, status = config.dword(offset + 0x0C), config.word(offset + 0x12)
    control = config.word(offset + 0x10)
    if capability is None or status is None or control is None or capability in (0, 0xFFFFFFFF):
        return None
    supported: list[float] = []
    target = None
    flit = False
    retimers = 0
    if flags & 0xF >= 2:
        capability_2, control_2 = config.dword(offset + 0x2C), config.word(offset + 0x30)
        status_2 = config.word(offset + 0x32)
        if capability_2 is not None:
            # Bits 7:1; reserved in devices older than PCIe 3.0, where the vector is empty.
            supported = [speed for bit, speed in enumerate(PCIE_SPEEDS_GTS) if capability_2 >> (bit + 1) & 1]
        if control_2 is not None:
            target = speed_of_code(control_2 & 0xF)
        if status_2 is not None:
            flit = bool(status_2 & 0x400)
            retimers = (status_2 >> 6 & 1) + (status_2 >> 7 & 1)
    return {
        "offset": offset,
        "port_number": capability >> 24,
        "max_speed_gts": max(supported) if supported else speed_of_code(capability & 0xF),
        "supported_speeds_gts": supported,
        "max_width": (capability >> 4) & 0x3F,
        "speed_gts": speed_of_code(status & 0xF),
        "width": (status >> 4) & 0x3F,
        "target_speed_gts": target,
        "aspm_supported": _ASPM[(capability >> 10) & 0x3],
        "aspm_enabled": _ASPM[control & 0x3],
        "disabled": bool(control & 0x10),
        "training": bool(status & 0x800),
        # Ports that cannot report it read 0 whether or not the link is up.
        "active": bool(status & 0x2000) if capability & 0x100000 else None,
        "bandwidth_managed": bool(status & 0x4000),
        "bandwidth_autonomous": bool(status & 0x8000),
        "flit": flit,
        "retimers": retimers,
        "source": "config",
    }


def _parse_extended(config: ConfigSpace, facts: dict[str, Any]) -> None:
    found = config.extended_capabilities((_EXTENDED_AER, _EXTENDED_ACS))
    if _EXTENDED_ACS in found:
        offset = found[_EXTENDED_ACS]
        capability, control = config.word(offset + 4), config.word(offset + 6)
        if capability is not None and control is not None:
            facts["acs"] = {
                "supported": [name for bit, name in enumerate(_ACS_BITS) if capability >> bit & 1],
                "enabled": [name for bit, name in enumerate(_ACS_BITS) if control >> bit & 1],
            }
    if _EXTENDED_AER in found:
        offset = found[_EXTENDED_AER]
        uncorrectable, correctable = config.dword(offset + 4), config.dword(offset + 0x10)
        if uncorrectable is not None and correctable is not None:
            facts["aer_status"] = {
                "uncorrectable": [name for bit, name in _UNCORRECTABLE_BITS.items() if uncorrectable >> bit & 1],
                "correctable": [name for bit, name in _CORRECTABLE_BITS.items() if correctable >> bit & 1],
            }


def _payload(code: int) -> int | None:
    """Bytes of a payload or read request field; codes 6 and 7 are reserved."""
    return 128 << code if code <= 5 else None
