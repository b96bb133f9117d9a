"""Measurements of the PCI tree beside the links' speed and width: payload sizes, detours by ACS, slots whose card is not
there, and how many devices there are. Each is one figure for the machine while nothing is wrong, and one a fault otherwise.
"""

from __future__ import annotations

from typing import Any

from .pci import CONFIG_UNPRIVILEGED_BYTES, DOWNSTREAM_FACING

COUNTED_KINDS = ("gpu", "nic", "nvme")
"""Kinds of devices whose number can be asked for."""

_NAMES = {"gpu": "GPU", "nic": "NIC", "nvme": "NVMe drive"}
# Either of them sends a request or its answer to the root complex first, though both ends sit below one switch.
_DETOURS = ("request_redirect", "completion_redirect")


def tree_measurements(facts: dict[str, Any], expected: dict[str, int]) -> list[dict[str, Any]]:
    """Measurements from what `pci_facts` found; *expected* says how many devices of a kind there should be.

    `pcie_payload_mismatches`, `pcie_peer_detours` and `pcie_untrained_slots` (counts, 0 is right) and
    `pcie_device_count` (for each kind that is asked for).
    """
    functions = {function["address"]: function for function in facts["functions"]}
    found = [_count(facts, functions, kind, number) for kind, number in sorted(expected.items())]
    links = [link for link in facts["links"] if link["devices_below"] and link["port"]]
    if any(function["readable_bytes"] > CONFIG_UNPRIVILEGED_BYTES for function in functions.values()):
        found += _payloads(links, functions) if links else []
        found += _detours(facts["devices"], functions)
        found += _untrained(functions)
    elif links:
        reason = f"only the first 64 bytes of the configuration spaces can be read: {facts['root_remedy']}"
        found.append({"name": "pcie_payload_mismatches", "scope": "node", "skipped": reason})
    return found


def _payloads(links: list[dict[str, Any]], functions: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """A device may not send larger payloads than its port takes: the port throws them away as malformed (PCIe, 2.2.2)."""
    found = []
    for link in links:
        above = functions[link["port"]]["max_payload_bytes"]
        # With ARI and without, function 0 rules; virtual functions have no setting of their own.
        below = functions[link["device"]]["max_payload_bytes"]
        if above and below and below > above:
            kind = _NAMES.get(functions[link["device"]]["kind"] or "", "switch")
            found.append(
                {
                    "name": "pcie_payload_mismatches",
                    "scope": link["device"],
                    "value": 1,
                    "unit": "count",
                    "conditions": {"device_bytes": below, "port": link["port"], "port_bytes": above},
                    "cause": (
                        f"{kind} {link['device']} sends payloads of up to {below} B and its port {link['port']} takes {above}: "
                        "larger ones are lost as malformed packets. Boot with pci=pcie_bus_safe, then look at BIOS maximum payload"
                    ),
                    "next_command": f"lspci -vv -s {link['port']} | grep -E 'MaxPayload|MalfTLP'",
                }
            )
    return found or [_none("pcie_payload_mismatches", links=len(links))]


def _detours(devices: list[dict[str, Any]], functions: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Ports above GPUs that send what goes to a neighbour below the same switch up to the processor and back."""
    peers = {device["address"] for device in devices if device["kind"] in ("gpu", "nic")}
    found = []
    counted = 0
    for device in devices:
        port = functions.get(functions[device["address"]]["parent"] or "")
        if device["kind"] != "gpu" or not port or port["port_type"] != "downstream_port" or not port["acs"]:
            continue
        neighbours = sorted(peers & set(device["shared_with"]))
        if not neighbours:
            continue
        counted += 1
        on = [name.replace("_", " ") for name in _DETOURS if name in port["acs"]["enabled"]]
        if on:
            found.append(
                {
                    "name": "pcie_peer_detours",
                    "scope": device["address"],
                    "value": 1,
                    "unit": "count",
                    "conditions": {"port": port["address"], "acs": on, "neighbours": neighbours},
                    "cause": (
                        f"GPU {device['address']}: ACS ({', '.join(on)}) of the port {port['address']} sends copies to its neighbours "
                        f"({', '.join(neighbours[:3])}) through the processor. Switch ACS off in the BIOS unless GPUs are passed "
                        "through to virtual machines"
                    ),
                    "next_command": f"lspci -vv -s {port['address']} | grep ACSCtl",
                }
            )
    return found or ([_none("pcie_peer_detours", gpus=counted)] if counted else [])


def _untrained(functions: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Slots that see a card whose link never came up."""
    busy = {function["parent"] for function in functions.values()}
    found = []
    slots = 0
    for port in functions.values():
        if port["port_type"] not in DOWNSTREAM_FACING or port["slot_occupied"] is None:
            continue
        slots += 1
        link = port["link"] or {}
        if (
            port["slot_occupied"]
            and port["slot_powered"]
            and port["address"] not in busy
            and link.get("active") is False
        ):
            found.append(
                {
                    "name": "pcie_untrained_slots",
                    "scope": port["address"],
                    "value": 1,
                    "unit": "count",
                    "conditions": {"slot": port["slot_number"], "link_disabled": link.get("disabled")},
                    "cause": (
                        f"slot {port['slot_number']} (port {port['address']}) sees a card, but its link is "
                        + ("switched off" if link.get("disabled") else "down")
                        + ": look at the card's power, reseat it, then replace the riser"
                    ),
                    "next_command": f"lspci -vv -s {port['address']} | grep -E 'SltSta|LnkSta|LnkCtl'; dmesg | grep {port['address']}",
                }
            )
    return found or ([_none("pcie_untrained_slots", slots=slots)] if slots else [])


def _count(facts: dict[str, Any], functions: dict[str, dict[str, Any]], kind: str, expected: int) -> dict[str, Any]:
    """Devices of a kind, one for each link, so that a NIC of two ports counts once."""
    there: dict[str, list[str]] = {}
    for device in facts["devices"]:
        if device["kind"] == kind:
            there.setdefault(device["address"].rpartition(".")[0], []).append(device["address"])
    measurement: dict[str, Any] = {
        "name": "pcie_device_count",
        "scope": kind,
        "value": len(there),
        "unit": "count",
        "expected": expected,
        "conditions": {"addresses": [addresses[0] for addresses in there.values()]},
    }
    if len(there) != expected:
        busy = {function["parent"] for function in functions.values()}
        empty = [
            port["address"] + (f" (slot {port['slot_number']})" if port["slot_number"] else "")
            for port in functions.values()
            if port["port_type"] in DOWNSTREAM_FACING and port["link"] and port["address"] not in busy
        ]
        where = f"; ports with nothing below: {', '.join(empty[:6])}" if empty else ""
        less = len(there) < expected
        measurement["cause"] = f"{len(there)} of {expected} {_NAMES[kind]}s are on the PCI bus" + (
            f"{where}: look at their power and cables, then reseat them" if less else ": the inventory expects fewer"
        )
        measurement["next_command"] = "lspci -tv; dmesg | grep -iE 'pciehp|link down|not responding'"
    return measurement


def _none(name: str, **conditions: Any) -> dict[str, Any]:
    return {"name": name, "scope": "node", "value": 0, "unit": "count", "conditions": conditions}
