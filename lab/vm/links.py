"""PCIe links of the machine: what its cards can do, and what a link has trained to.

QEMU's cards are 2.5 GT/s x1, whatever their slot can do, and a link never trains down. So the PCI Express capability of a card is
written in QEMU's own memory, from where the guest reads it as its hardware: capabilities once, before the machine starts, and the
link's state at any time, as a link that trains down while the machine runs.

Registers: PCI Express Base Specification, 7.5.3 (link capabilities, link status).
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from lab.shell import LabError, read, write_atomically

SPEEDS_GTS = (2.5, 5.0, 8.0, 16.0)
WIDTHS = (1, 2, 4, 8, 16)
CONFIG_BYTES = 4096
_CAPABILITY_POINTER = 0x34
_EXPRESS = 0x10
_LINK_CAPABILITIES, _LINK_STATUS = 0x0C, 0x12
# Only in version 2 of the capability.
_LINK_CAPABILITIES_2, _LINK_CONTROL_2 = 0x2C, 0x30
_SUBSYSTEM = 0x2C
# The heap of QEMU is smaller; larger mappings are the guest's memory and the translated code.
_LARGEST_MAPPING = 512 << 20
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) rw-p [0-9a-f]+ 00:00 0\s*(?:\[heap\])?$", re.ASCII)


@dataclass(frozen=True)
class Link:
    """Speed in GT/s and width in lanes."""

    speed_gts: float
    width: int

    def __post_init__(self) -> None:
        """Refuse what PCI Express does not have."""
        if self.speed_gts not in SPEEDS_GTS or self.width not in WIDTHS:
            raise LabError(
                f"a PCIe link has one of the speeds {', '.join(f'{s:g}' for s in SPEEDS_GTS)} GT/s and of the widths "
                f"{', '.join(f'x{w}' for w in WIDTHS)}, found {self.speed_gts:g} GT/s x{self.width}"
            )

    @property
    def bits(self) -> int:
        """Speed and width as both registers have them: bits 0 to 3 and 4 to 9."""
        return SPEEDS_GTS.index(self.speed_gts) + 1 | self.width << 4

    def __str__(self) -> str:
        """As a person says it."""
        return f"{self.speed_gts:g} GT/s x{self.width}"


def parse(text: str) -> Link:
    """A link from `SPEEDxWIDTH`, such as `8x4`."""
    found = re.fullmatch(r"(\d+(?:\.\d)?)x(\d+)", text)
    if not found:
        raise LabError(f"expected a link as SPEEDxWIDTH, such as 8x4 (8 GT/s, 4 lanes), found '{text}'")
    return Link(float(found[1]), int(found[2]))


@dataclass(frozen=True)
class Card:
    """A card of the machine: how QEMU's process knows it, and what it can do."""

    name: str
    vendor: int
    device: int
    subsystem_vendor: int
    subsystem: int
    capable: Link

    def matches(self, config: bytes) -> bool:
        """Whether a block of memory begins like this card's configuration space."""
        ids = struct.pack("<HH", self.subsystem_vendor, self.subsystem)
        return config[:4] == self.identity and config[_SUBSYSTEM : _SUBSYSTEM + 4] == ids and config[0x0E] & 0x7F == 0

    @property
    def identity(self) -> bytes:
        """The first four bytes of its configuration space."""
        return struct.pack("<HH", self.vendor, self.device)


def express_capability(config: bytes) -> int:
    """Offset of the PCI Express capability; 0 when there is none."""
    at = config[_CAPABILITY_POINTER] & 0xFC
    for _ in range(48):
        if at < 0x40:
            return 0
        if config[at] == _EXPRESS:
            return at
        at = config[at + 1] & 0xFC
    return 0


def with_link(config: bytes, capable: Link, trained: Link) -> dict[int, bytes]:
    """What to write at which offset of a configuration space, so that its card can do one thing and does another."""
    base = express_capability(config)
    if not base:
        raise LabError("the card has no PCI Express capability")
    (capabilities,) = struct.unpack_from("<I", config, base + _LINK_CAPABILITIES)
    (status,) = struct.unpack_from("<H", config, base + _LINK_STATUS)
    changes = {
        base + _LINK_CAPABILITIES: struct.pack("<I", capabilities & ~0x3FF | capable.bits),
        base + _LINK_STATUS: struct.pack("<H", status & ~0x3FF | trained.bits),
    }
    if config[base + 2] & 0xF >= 2:
        generation = SPEEDS_GTS.index(capable.speed_gts) + 1
        (control,) = struct.unpack_from("<H", config, base + _LINK_CONTROL_2)
        # Every speed up to the highest, from bit 1 on; the target is the highest.
        changes[base + _LINK_CAPABILITIES_2] = struct.pack("<I", (1 << generation) - 1 << 1)
        changes[base + _LINK_CONTROL_2] = struct.pack("<H", control & ~0xF | generation)
    return changes


def mappings(text: str) -> Iterator[tuple[int, int]]:
    """Start and end of the anonymous writable mappings of a process that may be its heap."""
    for line in text.splitlines():
        found = _MAPPING.match(line.strip())
        if found:
            start, end = int(found[1], 16), int(found[2], 16)
            if end - start <= _LARGEST_MAPPING:
                yield start, end


def find(card: Card, look: Callable[[int, int], bytes], places: Iterator[tuple[int, int]]) -> int:
    """Where the card's configuration space lies. More than one place that looks like it is an error: nothing is guessed."""
    found = []
    for start, end in places:
        memory = look(start, end - start)
        at = memory.find(card.identity)
        while at >= 0:
            config = memory[at : at + 256]
            # Allocations are aligned to 16 bytes.
            if len(config) == 256 and (start + at) % 16 == 0 and card.matches(config) and express_capability(config):
                found.append(start + at)
            at = memory.find(card.identity, at + 1)
    if len(found) != 1:
        raise LabError(
            f"expected the configuration space of {card.name} once in QEMU's memory, found it {len(found)} times: this QEMU is not "
            "known to the lab (tried: 7.2)"
        )
    return found[0]


def check(card: Card, trained: Link) -> None:
    """Refuse a link that is faster than its card."""
    if trained.speed_gts > card.capable.speed_gts or trained.width > card.capable.width:
        raise LabError(f"{card.name} can do {card.capable}, found {trained}: a link cannot be faster than its card")


def _kept(state: Path) -> dict[str, str]:
    try:
        found = json.loads(read(state / "links.json"))
    except ValueError:
        return {}
    return {str(name): str(text) for name, text in found.items()} if isinstance(found, dict) else {}


def keep(state: Path, name: str, trained: Link) -> None:
    """Note what a card's link trains to from now on."""
    kept = {**_kept(state), name: f"{trained.speed_gts:g}x{trained.width}"}
    write_atomically(state / "links.json", json.dumps(kept, indent=2) + "\n", 0o644)


def wanted(state: Path, cards: Mapping[str, Card]) -> dict[str, Link]:
    """What each card's link trains to: all that it can do, or what was noted."""
    kept = _kept(state)
    return {name: parse(kept[name]) if name in kept else card.capable for name, card in cards.items()}


def train(pid: int, card: Card, trained: Link) -> None:
    """Let the card's link run at ``trained`` from now on."""
    check(card, trained)
    process = Path("/proc") / str(pid)
    try:
        with (process / "mem").open("r+b", buffering=0) as memory:

            def look(start: int, size: int) -> bytes:
                try:
                    memory.seek(start)
                    return memory.read(size) or b""
                except OSError:
                    return b""

            base = find(card, look, mappings((process / "maps").read_text()))
            for offset, content in with_link(look(base, CONFIG_BYTES), card.capable, trained).items():
                memory.seek(base + offset)
                memory.write(content)
    except PermissionError:
        raise LabError("setting a link needs root, to write to QEMU's memory: run this as root") from None
    except (FileNotFoundError, ProcessLookupError):
        raise LabError("the machine is off: turn it on first") from None
