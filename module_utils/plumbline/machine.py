"""What a machine is, in one small document: the surveys' facts in, the content of the evidence record `machine` out.

Nothing is judged here. What is unknown is null or left out, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .loose import count, known_sum, mapping, mappings, number, texts, words
from .machine_sensors import sensor_summary

# What firmware writes where its maker left a field as it came.
_PLACEHOLDERS = frozenset(
    {"", "none", "n/a", "not specified", "unknown", "default string", "to be filled by o.e.m.", "system product name",
     "system manufacturer", "system serial number", "0123456789", "0", "empty"}
)  # fmt: skip
_DEVICES_MOST = 512  # beyond any machine; a damaged fact must not fill the evidence


def describe(node: Any, pcie: Any, dimm: Any, bmc: Any = None, sensors: Any = None) -> dict[str, Any]:
    """Return the document: `system`, `os`, `cpu`, `numa`, `memory`, `devices`, `shared`, `sensors`, `errors` and `notes`.

    Takes the results of `node_info`, `pcie_info`, `dimm_info`, `redfish_info` and `bmc_sensors_info`; any may be missing or cut.
    """
    node, pcie, dimm, bmc, sensors = (mapping(facts) for facts in (node, pcie, dimm, bmc, sensors))
    return {
        "system": _system(node, dimm, bmc),
        "os": _operating_system(node),
        "cpu": _cpu(node, dimm),
        "numa": [
            {
                "node": count(numa.get("node")),
                "cpus": words(numa.get("cpus")),
                "memory_bytes": count(numa.get("memory_total_bytes")),
            }
            for numa in mappings(node.get("numa_nodes"))
        ],
        "memory": _memory(node, dimm),
        "devices": _devices(node, pcie),
        "shared": _shared(pcie),
        "sensors": sensor_summary(bmc, sensors),
        "errors": _errors(pcie, dimm),
        "notes": [*texts(pcie.get("notes")), *texts(dimm.get("notes"))][:20],
    }


def _told(*values: Any) -> str | None:
    """Return the first text that says something."""
    return next((text for value in values if (text := words(value)).lower() not in _PLACEHOLDERS), None)


def _system(node: Mapping[str, Any], dimm: Mapping[str, Any], bmc: Mapping[str, Any]) -> dict[str, Any]:
    """Of the SMBIOS table, else of the kernel's copies of its strings, else of the BMC."""
    system, bios, dmi = mapping(dimm.get("system")), mapping(dimm.get("bios")), mapping(node.get("dmi"))
    redfish = mapping(bmc.get("system")) if bmc.get("available") else {}
    manager = mapping(mapping(redfish).get("bmc"))
    return {
        "manufacturer": _told(system.get("manufacturer"), dmi.get("manufacturer"), redfish.get("manufacturer")),
        "product": _told(system.get("product_name"), dmi.get("product_name"), redfish.get("model")),
        "serial_number": _told(system.get("serial_number"), dmi.get("serial_number"), redfish.get("serial_number")),
        "bios_vendor": _told(bios.get("vendor"), dmi.get("bios_vendor")),
        "bios_version": _told(bios.get("version"), dmi.get("bios_version"), redfish.get("bios_version")),
        "bios_date": _told(bios.get("release_date"), dmi.get("bios_date")),
        "bmc_version": _told(manager.get("firmware_version")),
    }


def _operating_system(node: Mapping[str, Any]) -> dict[str, Any]:
    user = count(node.get("effective_user_id"))
    return {
        "hostname": _told(node.get("hostname")),
        "distribution": _told(f"{words(node.get('distribution'))} {words(node.get('distribution_version'))}".strip()),
        "kernel": _told(node.get("kernel_release")),
        "architecture": _told(node.get("architecture")),
        "virtualization": words(node.get("virtualization")) or None,
        "root": None if user is None else user == 0,
    }


def _cpu(node: Mapping[str, Any], dimm: Mapping[str, Any]) -> dict[str, Any]:
    cpu = mapping(node.get("cpu"))
    sockets = [socket for socket in mappings(dimm.get("processors")) if socket.get("populated")]
    return {
        "model": _told(cpu.get("model"), *(socket.get("model") for socket in sockets)),
        # A kernel that shows no topology shows no sockets, which is no count.
        "sockets": count(cpu.get("sockets")) or len(sockets) or None,
        "cores": count(cpu.get("cores")) or None,
        "threads": count(cpu.get("threads")) or None,
        "allowed": count(cpu.get("allowed_count")) or None,
    }


def _memory(node: Mapping[str, Any], dimm: Mapping[str, Any]) -> dict[str, Any]:
    groups: dict[tuple[Any, ...], int] = {}
    slots = mappings(dimm.get("dimms"))
    for module in slots:
        if module.get("populated"):
            keys = ("size_bytes", "type", "rank", "speed_mts", "configured_speed_mts")
            key = tuple(words(module.get(key)) or None if key == "type" else count(module.get(key)) for key in keys)
            groups[key] = groups.get(key, 0) + 1
    return {
        "available": bool(dimm.get("available")),
        "reason": words(dimm.get("reason")) or (None if dimm else "the DIMMs were not surveyed"),
        "visible_bytes": count(node.get("memory_total_bytes")) or None,
        "limit_bytes": count(node.get("memory_limit_bytes")),
        "installed_bytes": count(dimm.get("memory_bytes")) or None,
        "slots": len(slots) or None,
        "groups": [
            {
                "count": times,
                "size_bytes": size,
                "type": kind,
                "ranks": ranks,
                "rated_mts": rated,
                "configured_mts": now,
            }
            for (size, kind, ranks, rated, now), times in sorted(groups.items(), key=lambda item: -item[1])
        ],
        "sockets": [
            {
                "socket": count(socket.get("socket")),
                "channels": count(socket.get("channels")),
                "channels_populated": count(socket.get("channels_populated")),
                "empty_channels": texts(socket.get("empty_channels")),
                "bandwidth_bytes_per_second": number(socket.get("bandwidth_bytes_per_second")),
            }
            for socket in mappings(dimm.get("sockets"))
        ],
        "bandwidth_bytes_per_second": number(dimm.get("bandwidth_bytes_per_second")),
        "bandwidth_source": words(dimm.get("bandwidth_source")) or None,
    }


def _devices(node: Mapping[str, Any], pcie: Mapping[str, Any]) -> list[dict[str, Any]]:
    functions = {words(function.get("address")): function for function in mappings(pcie.get("functions"))}
    names = mapping(node.get("device_names"))
    links = _links_by_function(pcie)
    found = []
    for device in mappings(pcie.get("devices"))[:_DEVICES_MOST]:
        address = words(device.get("address"))
        function, named, link = functions.get(address, {}), mapping(names.get(address)), links.get(address, {})
        # The hop that limits by what it can do; where all can do the same, the device's own.
        hop = links.get(words(device.get("limit_hop")), {})
        slowest = links.get(words(device.get("narrowest_hop")), {})
        numa = count(device.get("numa_node"))
        found.append(
            {
                "address": address,
                "kind": words(device.get("kind")),
                "name": _told(named.get("name")),
                "vendor_id": _hexadecimal(function.get("vendor_id")),
                "device_id": _hexadecimal(function.get("device_id")),
                "driver": _told(device.get("driver")),
                "numa_node": numa if numa is not None and numa >= 0 else None,
                "slot": words(device.get("slot")) or None,
                "responsive": device.get("responsive") is not False,
                "link": _link(link),
                # Only where it is not the device's own link, which stands beside it.
                "limit_hop": _hop(hop, link),
                "narrowest_hop": _hop(slowest, link),
                "limit_bytes_per_second": number(device.get("limit_bytes_per_second")),
                "interfaces": [
                    {
                        "name": words(interface.get("name")),
                        "state": words(interface.get("state")) or None,
                        "bits_per_second": number(interface.get("bits_per_second")),
                    }
                    for interface in mappings(named.get("interfaces"))
                ],
                "size_bytes": count(named.get("size_bytes")),
            }
        )
    return found


def _hexadecimal(value: Any) -> str | None:
    text = words(value).lower()
    return text.removeprefix("0x") or None


def _links_by_function(pcie: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    found = {}
    for link in mappings(pcie.get("links")):
        for address in {words(link.get("device")), *texts(link.get("functions"))}:
            found[address] = link
    return found


def _link(link: Mapping[str, Any]) -> dict[str, Any] | None:
    if not link:
        return None
    return {
        "speed_gts": number(link.get("speed_gts")),
        "width": count(link.get("width")),
        "max_speed_gts": number(link.get("max_speed_gts")),
        "max_width": count(link.get("max_width")),
    }


def _hop(hop: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any] | None:
    if not hop or hop is own:
        return None
    return {"address": words(hop.get("device")), "port": words(hop.get("port")) or None, **(_link(hop) or {})}


def _shared(pcie: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Links that several devices with a GPU among them go through; of those that the same devices share, the narrowest."""
    kinds = {words(device.get("address")): words(device.get("kind")) for device in mappings(pcie.get("devices"))}
    best: dict[tuple[str, ...], Mapping[str, Any]] = {}
    for link in mappings(pcie.get("links")):
        below, own = texts(link.get("devices_below")), set(texts(link.get("functions")))
        if len(below) < 2 or own.issuperset(below) or "gpu" not in {kinds.get(address) for address in below}:
            continue
        key, limit = tuple(below), number(link.get("limit_bytes_per_second"))
        now = best.get(key)
        least = number(now.get("limit_bytes_per_second")) if now else None
        if now is None or (limit is not None and (least is None or limit < least)):
            best[key] = link
    return [
        {"address": words(link.get("device")), "devices": list(below), **(_link(link) or {})}
        for below, link in list(best.items())[:64]
    ]


def _errors(pcie: Mapping[str, Any], dimm: Mapping[str, Any]) -> dict[str, Any]:
    """Counters since boot; null where nobody counts."""
    edac = mapping(dimm.get("edac"))
    controllers = mappings(edac.get("controllers"))
    counted = [aer for function in mappings(pcie.get("functions")) if (aer := mapping(function.get("aer")))]

    def total(*kinds: str) -> int | None:
        errors = [mapping(aer.get(kind)) for aer in counted for kind in kinds]
        # Requests for what a device does not implement are normal while a bus is enumerated.
        harmless = [number(error.get("UnsupReq")) for error in errors]
        found = known_sum([number(error.get("total")) for error in errors])
        return None if found is None else int(max(0, found - (known_sum(harmless) or 0)))

    return {
        "memory_corrected": count(known_sum([number(controller.get("correctable")) for controller in controllers])),
        "memory_uncorrected": count(known_sum([number(controller.get("uncorrectable")) for controller in controllers])),
        "memory_reason": words(edac.get("reason")) or None,
        "pcie_correctable": total("correctable"),
        "pcie_uncorrectable": total("nonfatal", "fatal"),
        "pcie_reason": None if counted else "the kernel keeps no error counters (AER) for these functions",
    }
