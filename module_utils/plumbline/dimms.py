"""DIMMs, channels and sockets of a machine, from its SMBIOS tables: population, balance, speeds and the DRAM bandwidth they allow."""

from __future__ import annotations

from typing import Any

from .dimm_devices import data_bits, slots_and_others, soldered, transfer_rates
from .dimm_places import UNKNOWN, Place, place_slots
from .edac import edac_facts
from .limits import dram_channel_bandwidth
from .node import hypervisor_type
from .smbios import decode, parse_entry_point, parse_structures
from .tree import Tree

_TABLES = "/sys/firmware/dmi/tables"


def dimm_facts(root: str = "/", channels_per_socket: int = 0) -> dict[str, Any]:
    """All that `dimm_info` returns but its measurements; `available: false` with the reason where there is no table."""
    tree = Tree(root)
    facts: dict[str, Any] = {
        "available": False,
        "reason": "",
        "table_present": tree.exists(f"{_TABLES}/DMI"),
        "notes": [],
        "incomplete": "",
        "smbios_version": None,
        "bios": None,
        "system": None,
        "boards": [],
        "processors": [],
        "memory_arrays": [],
        "dimms": [],
        "other_memory": [],
        "soldered": False,
        "sockets": [],
        "mappings": [],
        "memory_bytes": None,
        "bandwidth_bytes_per_second": None,
        "bandwidth_full_bytes_per_second": None,
        "bandwidth_source": "",
        "edac": edac_facts(tree),
        "hypervisor": hypervisor_type(tree, _cpu_flags(tree)),
        "kernel_memory_bytes": _kernel_memory(tree),
    }
    table, entry, reason = _read_tables(tree, facts["notes"])
    if table is None:
        facts["reason"] = reason
        return facts
    structures, notes = parse_structures(table, entry)
    facts["notes"] += notes
    facts["incomplete"] = notes[0] if notes else ""
    if entry is not None:
        facts["smbios_version"] = entry.version
    smbios = decode(structures)
    for key in ("bios", "system", "boards", "processors", "memory_arrays"):
        facts[key] = smbios[key]
    facts["mappings"] = smbios["array_mappings"]
    if not smbios["memory_devices"]:
        facts["reason"] = "the SMBIOS table describes no memory device (type 17)" + (f": {notes[0]}" if notes else "")
        return facts
    facts["available"] = True
    _describe(facts, smbios, channels_per_socket)
    return facts


def _cpu_flags(tree: Tree) -> dict[str, str]:
    """The flags of the first processor, as `hypervisor_type` takes them; empty in a capture without /proc."""
    # The first processor's part is enough: the whole file is long on a large machine, and slow to make.
    raw = tree.raw("/proc/cpuinfo", 8192) or b""
    for line in raw.decode("utf-8", "replace").splitlines():
        if line.startswith("flags"):
            return {"flags": line.partition(":")[2]}
    return {}


def _kernel_memory(tree: Tree) -> int | None:
    """Bytes of memory that the kernel manages (MemTotal), `None` where it does not tell."""
    words = (tree.text("/proc/meminfo") or "").split(maxsplit=3)
    known = (
        len(words) > 2 and words[0] == "MemTotal:" and words[1].isascii() and words[1].isdigit() and len(words[1]) < 20
    )
    return int(words[1]) * 1024 if known else None


def _read_tables(tree: Tree, notes: list[str]) -> tuple[bytes | None, Any, str]:
    table = tree.raw(f"{_TABLES}/DMI")
    if table is None:
        if tree.exists(f"{_TABLES}/DMI"):
            return None, None, f"{_TABLES}/DMI cannot be read: {tree.remedy}"
        return (
            None,
            None,
            f"there is no SMBIOS table ({_TABLES}/DMI): a container, or a machine whose firmware has none",
        )
    raw_entry = tree.raw(f"{_TABLES}/smbios_entry_point")
    if raw_entry is None:
        notes.append(
            "there is no smbios_entry_point beside the SMBIOS table: its end and version are taken from the table"
        )
        return table, None, ""
    entry, problems = parse_entry_point(raw_entry)
    notes += problems
    return table, entry, ""


def _describe(facts: dict[str, Any], smbios: dict[str, Any], channels_per_socket: int) -> None:
    devices, facts["other_memory"] = slots_and_others(smbios)
    facts["notes"] += transfer_rates(devices)
    fitted = [device for device in devices if device["size_bytes"]]
    facts["soldered"] = bool(fitted) and all(soldered(device) for device in fitted)
    places = {} if facts["soldered"] else place_slots({**smbios, "memory_devices": devices}, channels_per_socket)
    mapped = {m["device_handle"]: m for m in smbios["device_mappings"]}
    keys = _socket_keys(places, devices)
    facts["dimms"] = [_dimm(device, places.get(device["handle"], UNKNOWN), keys, mapped) for device in devices]
    facts["memory_bytes"] = sum(dimm["size_bytes"] or 0 for dimm in facts["dimms"])
    _missing_slots(facts, devices)
    facts["sockets"] = _sockets(facts["dimms"], keys, smbios["processors"], facts["notes"])
    _count_channels(facts["sockets"], channels_per_socket, facts["notes"])
    _total(facts)


def _socket_keys(places: dict[int, Place], devices: list[dict[str, Any]]) -> list[str]:
    found = {place.socket for d in devices if (place := places.get(d["handle"], UNKNOWN)).socket is not None}
    return sorted((key for key in found if key is not None), key=lambda key: (len(key), key))


def _dimm(device: dict[str, Any], place: Place, keys: list[str], mapped: dict[int, Any]) -> dict[str, Any]:
    total, data = device["total_width_bits"], device["data_width_bits"]
    # NVDIMMs that keep DRAM's speed count as DRAM; persistent memory sits in a channel without adding bandwidth to it.
    technology = device["technology"] or "DRAM"
    mapping = mapped.get(device["handle"])
    return {
        "locator": device["locator"],
        "bank_locator": device["bank_locator"],
        "socket": keys.index(place.socket) if place.socket in keys else None,
        "channel": place.channel,
        "slot": place.slot,
        "channel_source": place.source,
        "populated": None if device["size_bytes"] is None else device["size_bytes"] > 0,
        "size_bytes": device["size_bytes"],
        "type": device["type"],
        "form_factor": device["form_factor"],
        "technology": technology,
        "rank": device["rank"],
        "total_width_bits": total,
        "data_width_bits": data_bits(device["type"], data),
        # Some firmware has the two widths the wrong way round.
        "ecc": None if total is None or data is None else max(total, data) > data_bits(device["type"], data),
        "speed_mts": device["speed_mts"],
        "configured_speed_mts": device["configured_speed_mts"],
        "configured_voltage_volts": device["configured_voltage_volts"],
        "minimum_voltage_volts": device["minimum_voltage_volts"],
        "maximum_voltage_volts": device["maximum_voltage_volts"],
        "manufacturer": device["manufacturer"],
        "part_number": device["part_number"],
        "serial_number": device["serial_number"],
        "mapped_start_bytes": mapping["start_bytes"] if mapping else None,
        "handle": device["handle"],
        "array_handle": device["array_handle"],
    }


def _missing_slots(facts: dict[str, Any], devices: list[dict[str, Any]]) -> None:
    """An array that has more slots than the table describes: a module that is gone may have taken its entry along."""
    for array in facts["memory_arrays"]:
        described = sum(device["array_handle"] == array["handle"] for device in devices)
        described += sum(other["array_handle"] == array["handle"] for other in facts["other_memory"])
        if array["system_memory"] and not array["cxl"] and array["slots"] and described < array["slots"]:
            facts["notes"].append(
                f"memory array {array['handle']:#06x} has {array['slots']} slots, {described} are described"
            )


def _sockets(
    dimms: list[dict[str, Any]], keys: list[str], processors: list[dict[str, Any]], notes: list[str]
) -> list[dict[str, Any]]:
    central = [processor for processor in processors if processor["central"]]
    sockets = []
    for index, key in enumerate(keys):
        slots = [dimm for dimm in dimms if dimm["socket"] == index]
        processor = central[index] if len(central) == len(keys) else None
        present = processor["populated"] if processor else None
        if present is False and not any(dimm["populated"] for dimm in slots):
            continue  # the slots of a processor that is not there
        # Slots that the firmware does not name leave the channels uncounted: an empty channel would not be seen.
        arrays = {dimm["array_handle"] for dimm in slots}
        unnamed = sum(dimm["socket"] is None and dimm["array_handle"] in arrays for dimm in dimms)
        sockets.append(_socket(index, key, processor, slots, unnamed))
    unplaced = [dimm for dimm in dimms if dimm["socket"] is None and dimm["populated"]]
    if unplaced:
        names = ", ".join(str(dimm["locator"]) for dimm in unplaced[:4])
        notes.append(f"the sockets of {len(unplaced)} DIMMs cannot be told from their locators ({names})")
    named_processors = [processor for processor in central if processor["populated"]]
    if central and keys and len(named_processors) > len(sockets):
        notes.append(f"{len(named_processors)} processors are there, memory is named for {len(sockets)} of them")
    return sockets


def _socket(
    index: int, key: str, processor: dict[str, Any] | None, slots: list[dict[str, Any]], unnamed: int
) -> dict[str, Any]:
    modules = [dimm for dimm in slots if dimm["populated"]]
    dram = [dimm for dimm in modules if dimm["technology"] in ("DRAM", "NVDIMM-N")]
    placed = all(dimm["channel"] is not None for dimm in slots)
    per_channel: dict[str, list[dict[str, Any]]] = {}
    if placed:
        for dimm in slots:
            per_channel.setdefault(dimm["channel"], [])
        for dimm in dram:
            per_channel[dimm["channel"]].append(dimm)
    used = {channel: members for channel, members in per_channel.items() if members}
    counted = placed and not unnamed
    speeds = [dimm["configured_speed_mts"] or dimm["speed_mts"] for dimm in dram]
    known_speeds = [speed for speed in speeds if speed]
    bandwidth = _channels_bandwidth(used) if used else None
    slowest = min(known_speeds, default=None)
    width = dram[0]["data_width_bits"] if dram else data_bits("DDR", None)
    capacities = [sum(dimm["size_bytes"] for dimm in members) for members in used.values()]
    return {
        "socket": index,
        "label": key,
        "processor": processor["model"] if processor else None,
        "slots": len(slots) + unnamed,
        "dimms": len(modules),
        "memory_bytes": sum(dimm["size_bytes"] for dimm in modules),
        "channels": len(per_channel) if counted else None,
        "channels_populated": len(used) if placed else None,
        "channel_names": _natural(per_channel),
        "empty_channels": _natural(channel for channel, members in per_channel.items() if not members)
        if counted
        else [],
        "channel_source": next((dimm["channel_source"] for dimm in slots if dimm["channel_source"]), None),
        "dimms_per_channel": sorted({len(members) for members in used.values()}),
        "channel_bytes_smallest": min(capacities, default=None),
        "channel_bytes_largest": max(capacities, default=None),
        "configured_speed_mts": slowest,
        "bandwidth_bytes_per_second": bandwidth,
        "channel_bandwidth_bytes_per_second": dram_channel_bandwidth(slowest, width) if slowest else None,
        "bandwidth_full_bytes_per_second": None,
        "bandwidth_source": f"{len(used)} channels x {slowest} MT/s x {width // 8} B (SMBIOS)" if bandwidth else "",
    }


def _count_channels(sockets: list[dict[str, Any]], channels_per_socket: int, notes: list[str]) -> None:
    """Settle how many channels each socket has: as told, as its slots show, or as many as its neighbour of the same kind.

    Firmware may drop the entry of a module that is gone; the other socket still shows the channel that it sat in.
    """
    most = max(
        (socket for socket in sockets if socket["channels"]), key=lambda socket: socket["channels"], default=None
    )
    for socket in sockets:
        if socket["channels_populated"] is None:
            continue
        if channels_per_socket:
            socket["channels"] = channels_per_socket
        elif most and socket["channels"] and socket["channels"] < most["channels"]:
            notes.append(
                f"socket {socket['socket']} shows {socket['channels']} channels and socket {most['socket']} {most['channels']}: "
                "taken to be alike"
            )
            # Some boards go on with the letters at the next socket (A to H, I to P): then nobody knows which one is gone.
            alike = set(socket["channel_names"]) <= set(most["channel_names"])
            gone = set(most["channel_names"]) - set(socket["channel_names"]) if alike else set()
            socket["channels"] = most["channels"]
            socket["empty_channels"] = _natural(gone | set(socket["empty_channels"]))
        now, each = socket["bandwidth_bytes_per_second"], socket["channel_bandwidth_bytes_per_second"]
        if now is not None and each is not None and socket["channels"]:
            empty = max(0, socket["channels"] - socket["channels_populated"])
            socket["bandwidth_full_bytes_per_second"] = now + empty * each


def _natural(channels: Any) -> list[str]:
    return sorted(channels, key=lambda channel: (len(channel), channel))


def _channels_bandwidth(used: dict[str, list[dict[str, Any]]]) -> float | None:
    """The sum over the channels, each at the speed of its slowest module; `None` when one does not tell."""
    total = 0.0
    for members in used.values():
        speeds = [dimm["configured_speed_mts"] or dimm["speed_mts"] for dimm in members]
        if not all(speeds):
            return None
        total += dram_channel_bandwidth(min(speeds), members[0]["data_width_bits"])
    return total


def _total(facts: dict[str, Any]) -> None:
    sockets = facts["sockets"]
    if facts["hypervisor"]:
        # Its table is made up: what the host's memory can do follows from it no more than the DIMMs do.
        for socket in sockets:
            socket.update(bandwidth_bytes_per_second=None, bandwidth_full_bytes_per_second=None, bandwidth_source="")
        return
    if facts["soldered"]:
        _soldered_total(facts)
        return
    unplaced = any(dimm["populated"] and dimm["socket"] is None for dimm in facts["dimms"])
    if not sockets or unplaced:
        return
    for key in ("bandwidth_bytes_per_second", "bandwidth_full_bytes_per_second"):
        figures = [socket[key] for socket in sockets]
        # A socket without any module adds nothing; one whose speed is unknown makes the sum unknown.
        known = [0 if figure is None and not socket["dimms"] else figure for figure, socket in zip(figures, sockets)]
        facts[key] = sum(known) if None not in known and any(known) else None
    sources = {socket["bandwidth_source"] for socket in sockets if socket["bandwidth_source"]}
    if facts["bandwidth_bytes_per_second"]:
        alike = len(sources) == 1 and len(sockets) > 1
        facts["bandwidth_source"] = (
            f"{len(sockets)} sockets x {sources.pop()}" if alike else " + ".join(sorted(sources))
        )


def _soldered_total(facts: dict[str, Any]) -> None:
    """Soldered packages are all there is: each adds its own data width, at its own speed."""
    figures = [
        (dimm["configured_speed_mts"] or dimm["speed_mts"], dimm["data_width_bits"])
        for dimm in facts["dimms"]
        if dimm["populated"]
    ]
    if not figures or not all(speed and width for speed, width in figures):
        return
    total = sum(dram_channel_bandwidth(speed, width) for speed, width in figures)
    facts["bandwidth_bytes_per_second"] = facts["bandwidth_full_bytes_per_second"] = total
    facts["bandwidth_source"] = (
        f"{len(figures)} soldered packages, {sum(width for _, width in figures)} bits in all (SMBIOS)"
    )
