"""The PCI tree of a machine from sysfs: functions, the links between them, and the way of each device to its root port.

A link has two ends. What it can do is what both ends can do, so a Gen4 drive in a Gen5 bay is not "downgraded".
"""

from __future__ import annotations

import re
from typing import Any

from .limits import pcie_bandwidth
from .pci import CONFIG_UNPRIVILEGED_BYTES, DOWNSTREAM_FACING
from .pci_sysfs import DEVICES, physical_slots, read_function
from .tree import Tree

_ADDRESS = re.compile(r"^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")
# The deepest tree that PCIe's 256 buses allow, far beyond any machine: a corrupt capture must not loop.
_HOPS_MAX = 64

_CLASS_NVME = 0x0108
_CLASS_NETWORK = 0x02
_CLASS_DISPLAY = 0x03
_CLASS_3D = 0x0302
_CLASS_ACCELERATOR = 0x1200
_CLASS_BRIDGE = 0x06
# The graphics of a management controller sits on PCI or on one lane; no GPU that computes does.
_GPU_WIDTH_MIN = 4

DEVICE_KINDS = ("gpu", "nic", "nvme")
"""Kinds of devices whose links a serving node depends on."""


def pci_facts(root: str = "/") -> dict[str, Any]:
    """Functions, links, devices that matter and switches of a machine (or a captured tree), and what could not be read.

    `functions` and `devices` are lists of dictionaries as `pcie_info` documents them, in order of address.
    """
    tree = Tree(root)
    addresses = [name for name in tree.names(DEVICES) if _ADDRESS.match(name)]
    if not addresses:
        reason = "there is no PCI device in /sys/bus/pci/devices"
        return {"available": False, "reason": reason, "functions": [], "links": [], "devices": [], "notes": []}
    slots = physical_slots(tree)
    functions = {address: read_function(tree, address, slots) for address in addresses}
    _find_parents(tree, functions)
    _infer_port_types(functions)
    _choose_links(functions)
    for address, function in functions.items():
        function["path"] = _path(functions, address)
        function["kind"] = _kind(function)
    links = _links(functions)
    devices = _devices(functions, links)
    return {
        "available": True,
        "reason": "",
        "functions": list(functions.values()),
        "links": list(links.values()),
        "devices": devices,
        "notes": _notes(functions, tree.remedy),
        "root_remedy": tree.remedy,
    }


def readable(facts: dict[str, Any], which: str) -> list[dict[str, Any]]:
    """The functions as a person reads them (ids in hexadecimal): `all`, `none`, or `devices` and the bridges above."""
    if which == "none":
        return []
    wanted = None
    if which == "devices":
        wanted = {device["address"] for device in facts["devices"]}
        wanted |= {step for f in facts["functions"] if f["address"] in wanted for step in f["path"]}
    found = []
    for function in facts["functions"]:
        if wanted is not None and function["address"] not in wanted:
            continue
        shown = dict(function)
        for key, digits in (("vendor_id", 4), ("device_id", 4), ("class_code", 6)):
            shown[key] = None if function[key] is None else f"0x{function[key]:0{digits}x}"
        found.append(shown)
    return found


def _find_parents(tree: Tree, functions: dict[str, dict[str, Any]]) -> None:
    """Fill in `parent`: the bridge above, from the link in sysfs, else from the bridges' bus numbers."""
    by_bus = {}
    for address, function in functions.items():
        if function["secondary_bus"]:
            by_bus[address.partition(":")[0], function["secondary_bus"]] = address
    for address, function in functions.items():
        target = tree.link(f"{DEVICES}/{address}")
        above = [part for part in (target or "").split("/") if _ADDRESS.match(part)][:-1]
        if above and above[-1] in functions:
            function["parent"] = above[-1]
        elif not target:
            # A capture may hold plain directories in place of sysfs' links.
            domain, bus, _ = address.split(":")
            parent = by_bus.get((domain, int(bus, 16)))
            function["parent"] = parent if parent != address else None


def _infer_port_types(functions: dict[str, dict[str, Any]]) -> None:
    """Without root the port types cannot be read, but they alternate on the way down: root, upstream, downstream, upstream."""

    def infer(function: dict[str, Any], depth: int = 0) -> None:
        if (
            function["port_type"] is not None
            or not function["is_bridge"]
            or not function["other_links"]
            or depth > _HOPS_MAX
        ):
            return
        above = functions.get(function["parent"] or "")
        # Intel's VMD shows its root ports below an endpoint of its own.
        if above is None or not above["is_bridge"]:
            function["port_type"] = "root_port"
            return
        infer(above, depth + 1)
        function["port_type"] = "upstream_port" if above["port_type"] in DOWNSTREAM_FACING else "downstream_port"

    for function in functions.values():
        infer(function)


def _choose_links(functions: dict[str, dict[str, Any]]) -> None:
    """Move the link that counts from `other_links` to `link`.

    Of two, the one that says what the port above says of the same link; else the first that is up.
    """
    for function in functions.values():
        candidates = function["other_links"]
        if not candidates:
            continue
        port = functions.get(function["parent"] or "", {})
        above = (port.get("link") or (port.get("other_links") or [None])[0]) if port else None
        best = max(
            candidates,
            key=lambda link: (
                bool(above and (link["speed_gts"], link["width"]) == (above["speed_gts"], above["width"])),
                bool(link["speed_gts"] and link["width"]),
                -candidates.index(link),
            ),
        )
        function["link"] = best
        function["other_links"] = [link for link in candidates if link is not best]


def _path(functions: dict[str, dict[str, Any]], address: str) -> list[str]:
    """The bridges from a function up to its root port."""
    path: list[str] = []
    function = functions[address]
    while function["parent"] and len(path) < _HOPS_MAX and function["port_type"] != "root_port":
        if function["parent"] in path:
            break
        path.append(function["parent"])
        function = functions[function["parent"]]
    return path


def _kind(function: dict[str, Any]) -> str | None:
    code = function["class_code"]
    if code is None:
        return None
    base, sub = code >> 16, code >> 8
    if base == _CLASS_BRIDGE:
        return "bridge"
    if sub == _CLASS_NVME:
        return "nvme"
    if base == _CLASS_NETWORK:
        return "nic"
    width = (function["link"] or {}).get("max_width") or 0
    if sub in (_CLASS_3D, _CLASS_ACCELERATOR) or (base == _CLASS_DISPLAY and width >= _GPU_WIDTH_MIN):
        return "gpu"
    return "display" if base == _CLASS_DISPLAY else None


def _links(functions: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The links, by the address of the lower end's first function.

    A device passed through to a virtual machine may show its link while the port above stays hidden.
    """
    below: dict[tuple[str | None, str], list[str]] = {}
    for address, function in functions.items():
        if not function["link"] or function["port_type"] in DOWNSTREAM_FACING:
            continue
        port = functions.get(function["parent"] or "")
        if _reserved(function, port):
            continue
        if port and port["link"] and (port["port_type"] is None or port["port_type"] in DOWNSTREAM_FACING):
            below.setdefault((port["address"], ""), []).append(address)
        elif not port and function["kind"] in DEVICE_KINDS:
            below.setdefault((None, address.rpartition(".")[0]), []).append(address)
    return {
        members[0]: _link(functions.get(port or ""), [functions[member] for member in members])
        for (port, _), members in below.items()
    }


def _reserved(function: dict[str, Any], port: dict[str, Any] | None) -> bool:
    """Whether a device that answers says that it has no link at all: then it is a virtual function in a guest, whose registers of the
    link are reserved and read 0. A link that is really down is down at its port, too."""
    link = function["link"]
    if link["width"] or link["speed_gts"] is not None:
        return False
    return not (port and port["link"] and port["link"]["width"] == 0)


def _link(port: dict[str, Any] | None, members: list[dict[str, Any]]) -> dict[str, Any]:
    device = members[0]
    lower = device["link"]
    upper = port["link"] if port else {}
    # A disagreement of the two ends is a snapshot during a change: the slower reading is the careful one.
    speed, width, max_speed, max_width = (
        _least(lower[key], upper.get(key)) for key in ("speed_gts", "width", "max_speed_gts", "max_width")
    )
    flit = bool(lower["flit"] or upper.get("flit"))
    slot_number = port["slot_number"] if port else None
    return {
        "port": port["address"] if port else None,
        "device": device["address"],
        "functions": [member["address"] for member in members],
        "slot": device["slot"] or (str(slot_number) if slot_number else None),
        "numa_node": device["numa_node"],
        "speed_gts": speed,
        "width": width,
        "max_speed_gts": max_speed,
        "max_width": max_width,
        "device_max_speed_gts": lower["max_speed_gts"],
        "device_max_width": lower["max_width"],
        "port_max_speed_gts": upper.get("max_speed_gts"),
        "port_max_width": upper.get("max_width"),
        "target_speed_gts": upper.get("target_speed_gts"),
        "flit": flit,
        "bandwidth_bytes_per_second": _bandwidth(speed, width, flit),
        "limit_bytes_per_second": _bandwidth(max_speed, max_width, flit),
        "devices_below": [],
    }


def _least(*values: Any) -> Any:
    known = [value for value in values if value is not None]
    return min(known) if known else None


def _bandwidth(speed: float | None, width: int | None, flit: bool) -> float | None:
    return None if speed is None or width is None else round(pcie_bandwidth(speed, width, flit))


def _devices(functions: dict[str, dict[str, Any]], links: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The devices that matter with the links of their way up, and who shares them. Virtual functions are not devices."""
    devices = []
    lower_end = {member: link for link in links.values() for member in link["functions"]}
    for address, function in functions.items():
        if function["kind"] not in DEVICE_KINDS or function["physical_function"]:
            continue
        hops = [lower_end[step] for step in [address, *function["path"]] if step in lower_end]
        for hop in hops:
            hop["devices_below"].append(address)
        devices.append(
            {
                "address": address,
                "kind": function["kind"],
                "responsive": function["responsive"],
                "driver": function["driver"],
                "numa_node": function["numa_node"],
                "slot": hops[0]["slot"] if hops else function["slot"],
                "root_port": function["path"][-1] if function["path"] else None,
                "hops": [hop["device"] for hop in hops],
                **_narrowest(hops),
                "shared_with": [],
            }
        )
    for device in devices:
        others = {other for hop in device["hops"] for other in links[hop]["devices_below"]}
        own = lower_end.get(device["address"], {"functions": []})["functions"]
        device["shared_with"] = sorted(others - {device["address"]} - set(own))
    return devices


def _narrowest(hops: list[dict[str, Any]]) -> dict[str, Any]:
    """The slowest hop now, and the slowest by what the hops can do."""
    now = [hop for hop in hops if hop["bandwidth_bytes_per_second"] is not None]
    able = [hop for hop in hops if hop["limit_bytes_per_second"] is not None]
    slowest = min(now, key=lambda hop: hop["bandwidth_bytes_per_second"], default=None)
    limit = min(able, key=lambda hop: hop["limit_bytes_per_second"], default=None)
    return {
        "narrowest_hop": slowest["device"] if slowest else None,
        "bandwidth_bytes_per_second": slowest["bandwidth_bytes_per_second"] if slowest else None,
        "limit_hop": limit["device"] if limit else None,
        "limit_bytes_per_second": limit["limit_bytes_per_second"] if limit else None,
    }


def _notes(functions: dict[str, dict[str, Any]], remedy: str) -> list[str]:
    """What is missing and why, one sentence each."""
    notes = []
    short = [f for f in functions.values() if f["responsive"] and f["readable_bytes"] <= CONFIG_UNPRIVILEGED_BYTES]
    if short:
        notes.append(
            f"{len(short)} of {len(functions)} configuration spaces show only their first 64 bytes: target speeds, ASPM, "
            f"payload sizes and ACS are unknown, port types follow from the tree; to read them, {remedy}"
        )
    dead = [f["address"] for f in functions.values() if not f["responsive"]]
    if dead:
        notes.append(f"the configuration space of {', '.join(dead[:8])} reads all ones: the device does not answer")
    return notes
