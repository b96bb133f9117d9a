"""Where a DIMM slot is: socket, channel and place in the channel, from the locators that vendors print on the board.

Each vendor names slots its own way and SMBIOS has no field for the channel. Rather than guess, a slot that no rule knows
stays without a channel, and what follows from channels is then said to be unknown.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple


class Place(NamedTuple):
    """A slot: the vendor's keys of socket and channel, the slot in the channel from 1, and how the channel was found."""

    socket: str | None
    channel: str | None
    slot: int | None
    source: str | None


UNKNOWN = Place(None, None, None, None)

_SOCKET = r"(?:CPU|PROC|SOCKET|P|NODE)[ _-]?(\d+)"

# Bank locators that name socket and channel.
_BANKS = (
    # AMI on Intel and AMD (Supermicro and others): P0_Node1_Channel3_Dimm0. A node is a memory controller or a die.
    (re.compile(r"^P(\d+)_Node(\d+)_Channel(\d+)_Dimm(\d+)$", re.I), lambda m: (m[1], f"{m[2]}.{m[3]}", int(m[4]) + 1)),
    # AMD's AGESA: P0 CHANNEL A (the DIMM is in the locator); older Supermicro: P2-CH-H.
    (re.compile(r"^P(\d+)[ _-]CH(?:ANNEL)?[ _-]?([A-Z])$", re.I), lambda m: (m[1], m[2].upper(), None)),
    # Intel's reference and Huawei: NODE 0 CHANNEL 1 DIMM 0, SOCKET 0 CHANNEL 3 DIMM 1.
    (
        re.compile(_SOCKET + r"[ _-]CH(?:ANNEL)?[ _-]?(\d+)[ _-]D(?:IMM)?[ _-]?(\d+)$", re.I),
        lambda m: (m[1], m[2], int(m[3]) + 1),
    ),
    # AMD as above, with the DIMM behind: P0 CHANNEL A DIMM 0. One socket: CHANNEL A DIMM0.
    (
        re.compile(r"^(?:P(\d+) )?CHANNEL ([A-Z]) DIMM ?(\d+)$", re.I),
        lambda m: (m[1] or "0", m[2].upper(), int(m[3]) + 1),
    ),
    # Huawei's older firmware: _Node0_Channel0_Dimm0. The node is the socket.
    (re.compile(r"^_?Node(\d+)_Channel(\d+)_Dimm(\d+)$", re.I), lambda m: (m[1], m[2], int(m[3]) + 1)),
)

# Locators that name the channel.
_LOCATORS = (
    # Inspur/IEIT: CPU0_C0D0; others: CPU0_CH0_DIMM0, CPU1_CH3_D1.
    (
        re.compile(r"^" + _SOCKET + r"[ _-]C(?:H|HANNEL)?[ _-]?(\d+)[ _-]?D(?:IMM)?[ _-]?(\d+)$", re.I),
        lambda m: (m[1], m[2], int(m[3]) + 1),
    ),
    # Supermicro: P1-DIMMA1, P1_DIMMA1; ASUS, Intel, Quanta: CPU1_DIMM_A1; xFusion: CPU1_A1.
    (
        re.compile(r"^" + _SOCKET + r"[ _-](?:DIMM[ _-]?)?([A-Z])(\d+)$", re.I),
        lambda m: (m[1], m[2].upper(), int(m[3])),
    ),
    # Gigabyte: DIMM_P0_A0.
    (re.compile(r"^DIMM[ _-]P(\d+)[ _-]([A-Z])(\d+)$", re.I), lambda m: (m[1], m[2].upper(), int(m[3]) + 1)),
    # Huawei: DIMM031 is socket 0, channel 3, slot 1.
    (re.compile(r"^DIMM(\d)(\d)(\d)$", re.I), lambda m: (m[1], m[2], int(m[3]) + 1)),
    # One socket: DIMMG2, DIMM_A1.
    (re.compile(r"^DIMM[ _-]?([A-Z])(\d)$", re.I), lambda m: ("0", m[1].upper(), int(m[2]))),
    # Intel's client boards: ChannelA-DIMM0, Controller1-ChannelA-DIMM0.
    (
        re.compile(r"^(?:Controller(\d)-)?Channel ?([A-Z])-DIMM ?(\d)$", re.I),
        lambda m: ("0", (m[1] or "") + m[2].upper(), int(m[3]) + 1),
    ),
)

# Locators that only number the slots of a socket, or of the board.
_DELL = re.compile(r"^([A-Z])(\d{1,2})$")
_HPE = re.compile(r"^PROC (\d+) DIMM (\d+)[A-Z]?$", re.I)
_NUMBERED = re.compile(r"^DIMM[ _]?(\d{1,2})$", re.I)

# Slots of a socket whose channels follow from their number alone: every server processor with so many slots of that kind
# pairs neighbours, or has one slot a channel. 12 slots of DDR4 are 6 x 2 or 4 x 3, so they are not here.
_CHANNELS_BY_SLOTS = {("DDR4", 16): 8, ("DDR5", 16): 8, ("DDR5", 12): 12, ("DDR5", 24): 12}


def place_slots(smbios: dict[str, Any], channels_per_socket: int = 0) -> dict[int, Place]:
    """The place of each memory device by its handle.

    `channels_per_socket`: what a person knows of the machine, where slots are only numbered; 0 leaves it to the table.
    """
    devices = smbios["memory_devices"]
    for placed in (_from_hpe_records(smbios), _from_names(devices, "bank_locator", _BANKS)):
        if placed and _all_modules_in(placed, devices):
            return _with_letters(placed, devices)
    placed = _from_names(devices, "locator", _LOCATORS)
    if placed and _all_modules_in(placed, devices):
        return placed
    return _from_dell_sets(devices, channels_per_socket) or _from_numbers(smbios, channels_per_socket)


def _all_modules_in(placed: dict[int, Place], devices: list[dict[str, Any]]) -> bool:
    """Some firmware names only some slots; a rule that misses a module that is there is the wrong rule."""
    return all(device["handle"] in placed for device in devices if device["size_bytes"])


def _from_names(devices: list[dict[str, Any]], key: str, rules: Any) -> dict[int, Place]:
    placed = {}
    for device in devices:
        for pattern, build in rules:
            match = pattern.match(device[key] or "")
            if match:
                socket, channel, slot = build(match)
                placed[device["handle"]] = Place(socket, channel, slot, key.replace("_", " "))
                break
    return placed


def _with_letters(placed: dict[int, Place], devices: list[dict[str, Any]]) -> dict[int, Place]:
    """Call channels as the board does (A to H) where the locator has the letter and letters and channels agree one to one."""
    names = _from_names(devices, "locator", _LOCATORS)
    pairs = {
        ((place.socket, place.channel), names[handle].channel) for handle, place in placed.items() if handle in names
    }
    by_channel = dict(pairs)
    sockets: dict[Any, list[Any]] = {}
    for (socket, _), letter in pairs:
        sockets.setdefault(socket, []).append(letter)
    unique = len(by_channel) == len(pairs) and all(len(set(found)) == len(found) for found in sockets.values())
    if not unique:
        return placed
    return {
        handle: place._replace(
            channel=by_channel.get((place.socket, place.channel)) or place.channel,
            slot=place.slot or (names[handle].slot if handle in names else None),
        )
        for handle, place in placed.items()
    }


def _from_hpe_records(smbios: dict[str, Any]) -> dict[int, Place]:
    """HPE's type 202 names the channel of each slot, also where a board has unlike channels."""
    maker = " ".join(
        str((smbios[key] or {}).get(name) or "") for key, name in (("bios", "vendor"), ("system", "manufacturer"))
    )
    if not re.search(r"\bHPE?\b|Hewlett", maker):
        return {}
    placed: dict[int, Place] = {}
    taken: dict[tuple[int, int], int] = {}
    for record in sorted(smbios["hpe_dimm_locations"], key=lambda r: (r["processor"] or 0, r["dimm_number"] or 0)):
        processor, channel = record["processor"], record["channel"]
        if not processor or not channel or 0xFF in (processor, channel):
            return {}
        slot = taken[processor, channel] = taken.get((processor, channel), 0) + 1
        placed[record["device_handle"]] = Place(str(processor), str(channel), slot, "HPE record 202")
    return placed


def _from_dell_sets(devices: list[dict[str, Any]], channels_per_socket: int) -> dict[int, Place]:
    """Dell: A1 is slot 1 of the first socket. Slots go round the channels, and a SMBIOS device set is one round."""
    slots: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    for device in devices:
        match = _DELL.match(device["locator"] or "")
        if not match:
            return {}
        slots.setdefault(match[1], []).append((int(match[2]), device))
    placed = {}
    for socket, numbered in slots.items():
        channels, source = channels_per_socket, "as told"
        if not channels:
            rounds: dict[int | None, int] = {}
            for _, device in numbered:
                rounds[device["set"]] = rounds.get(device["set"], 0) + 1
            sizes = set(rounds.values())
            channels, source = (sizes.pop() if len(sizes) == 1 and None not in rounds else 0), "device set"
        if not channels:
            channels, source = _channels_by_count([device for _, device in numbered]), "slot order"
        for number, device in numbered:
            place = Place(socket, None, None, None)
            if channels:
                place = Place(socket, str((number - 1) % channels + 1), (number - 1) // channels + 1, source)
            placed[device["handle"]] = place
    return placed


def _channels_by_count(devices: list[dict[str, Any]]) -> int:
    """Channels of a socket from the kind and number of its slots, 0 where more than one answer is possible."""
    types = {device["type"] for device in devices if device["size_bytes"]}
    return _CHANNELS_BY_SLOTS.get((types.pop() if len(types) == 1 else "", len(devices)), 0)


def _from_numbers(smbios: dict[str, Any], channels_per_socket: int) -> dict[int, Place]:
    """HPE (PROC 1 DIMM 7) and Lenovo (DIMM 1 to DIMM 32 over all sockets): neighbouring numbers share a channel."""
    devices = smbios["memory_devices"]
    slots: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    plain: list[tuple[int, dict[str, Any]]] = []
    for device in devices:
        hpe, numbered = _HPE.match(device["locator"] or ""), _NUMBERED.match(device["locator"] or "")
        if hpe:
            slots.setdefault(hpe[1], []).append((int(hpe[2]), device))
        elif numbered:
            plain.append((int(numbered[1]), device))
        else:
            return {}
    if plain:
        sockets = len([p for p in smbios["processors"] if p["central"]]) or 1
        if slots or len(plain) % sockets:
            return {}
        plain.sort(key=lambda pair: pair[0])
        share = len(plain) // sockets
        slots = {str(s + 1): plain[s * share : (s + 1) * share] for s in range(sockets)}
    placed = {}
    for socket, numbered_slots in slots.items():
        count = len(numbered_slots)
        channels = channels_per_socket or _channels_by_count([device for _, device in numbered_slots])
        if channels and count % channels:
            channels = 0
        for index, (_, device) in enumerate(sorted(numbered_slots, key=lambda pair: pair[0])):
            place = Place(socket, None, None, None)
            if channels:
                per_channel = count // channels
                source = "as told" if channels_per_socket else "slot order"
                place = Place(socket, str(index // per_channel + 1), index % per_channel + 1, source)
            placed[device["handle"]] = place
    return placed
