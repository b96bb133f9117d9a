"""Measurements of PCIe links for the gate, with the probable cause when a link is not what its two ends can do.

Only links above devices that matter are measured: a management controller's graphics may run as it likes.
"""

from __future__ import annotations

from typing import Any

from .limits import pcie_bandwidth_text
from .pci_checks import tree_measurements

# A link that saves power goes to the lowest speed; between that and the full speed it may be saving or trained down.
_LOWEST_SPEED_GTS = 2.5
_NAMES = {"gpu": "GPU", "nic": "NIC", "nvme": "NVMe drive", "bridge": "switch"}
# Requests for what a device does not implement are normal while a bus is enumerated: they are no fault of a link.
_HARMLESS_NONFATAL = ("UnsupReq",)
_SECONDS_PER_HOUR = 3600


def pcie_measurements(
    facts: dict[str, Any], uptime_seconds: float | None = None, expected: dict[str, int] | None = None
) -> list[dict[str, Any]]:
    """Measurements from what `pci_facts` found.

    `pcie_link_width` (lanes) and `pcie_link_speed` (GT/s) once per link, against what both ends can do;
    `pcie_link_speed_unloaded` in place of the latter where a GPU may be saving power at a middle speed;
    `pcie_uncorrectable_errors` since boot and `pcie_correctable_errors` per hour; `pcie_bandwidth_limit` per device;
    and what `tree_measurements` says of the tree, with *expected* devices by kind.
    """
    functions = {function["address"]: function for function in facts["functions"]}
    links = [link for link in facts["links"] if link["devices_below"]]
    silent = [device for device in facts["devices"] if not device["responsive"]]
    if not links and not silent:
        reason = facts["reason"] or _without_links(facts["devices"])
        found = [_measurement(name, "node", skipped=reason) for name in ("pcie_link_width", "pcie_link_speed")]
        return found + tree_measurements(facts, expected or {})
    found = []
    for device in silent:
        found += _silent(device, functions)
    for link in links:
        found += [_width(link, functions), _speed(link, functions)]
    found += _errors(links, functions, uptime_seconds)
    found += tree_measurements(facts, expected or {})
    found += [_limit(device, facts["links"]) for device in facts["devices"] if device["limit_bytes_per_second"]]
    return found


def link_under_load(
    link: dict[str, Any], functions: dict[str, dict[str, Any]]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Speed and width of a link whose `speed_gts` and `width` were seen while a copy ran: there is no idling to excuse it."""
    speed, width = _speed(link, functions, loaded=True), _width(link, functions)
    return {**speed, "name": "pcie_link_speed_under_load"}, {**width, "name": "pcie_link_width_under_load"}


def _measurement(name: str, scope: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "scope": scope, **fields}


def _without_links(devices: list[dict[str, Any]]) -> str:
    if not devices:
        return "there is no GPU, NIC or NVMe drive on PCI here"
    return f"no GPU, NIC or NVMe drive here has a PCIe link (virtual or integrated devices: {len(devices)})"


def _silent(device: dict[str, Any], functions: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    name, function = _NAMES[device["kind"]], functions[device["address"]]
    # The topmost bridge that is silent as well took all below along.
    above = [address for address in function["path"] if not functions[address]["responsive"]]
    if function.get("power_state") == "D3cold":
        told = {"skipped": f"{name} {device['address']} sleeps in D3cold: its link is off to save power"}
    else:
        told = {
            "error": f"the configuration space of {name} {device['address']} reads all ones",
            "cause": f"{name} {device['address']} fell off the bus: "
            + (
                f"the bridge {above[-1]} above it does not answer either, look there"
                if above
                else "it lost power, or its link is down"
            ),
            "next_command": f"dmesg | grep -iE '{device['address']}|pcieport|xid'",
        }
    return [_measurement(metric, device["address"], **told) for metric in ("pcie_link_width", "pcie_link_speed")]


def _title(link: dict[str, Any], functions: dict[str, dict[str, Any]]) -> str:
    """`GPU 0000:81:00.0`, or `switch 0000:16:00.0 above GPU 0000:19:00.0 and 2 more`."""
    device = link["device"]
    title = f"{_NAMES.get(functions[device]['kind'] or '', 'device')} {device}"
    others = [address for address in link["devices_below"] if address not in link["functions"]]
    if others:
        # What a person looks for first: a GPU.
        others.sort(key=lambda address: (functions[address]["kind"] != "gpu", address))
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        title += f" above {_NAMES[functions[others[0]]['kind']]} {others[0]}{more}"
    return title


def _conditions(link: dict[str, Any], functions: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {
        "port": link["port"],
        "kind": functions[link["device"]]["kind"],
        "slot": link["slot"],
        "devices_below": link["devices_below"],
        "target_speed_gts": link["target_speed_gts"],
        "device_max": _able(link["device_max_speed_gts"], link["device_max_width"]),
        "port_max": _able(link["port_max_speed_gts"], link["port_max_width"]),
    }


def _able(speed: float | None, width: int | None) -> str:
    return f"{_gts(speed)} GT/s x{'?' if width is None else width}"


def _gts(speed: float | None) -> str:
    return "?" if speed is None else f"{speed:.1f}"


def _port(link: dict[str, Any]) -> str:
    return f"its port {link['port']}" if link["port"] else "(the port above is not visible here) its slot"


def _source(link: dict[str, Any]) -> str:
    return "what both ends of the link can do" if link["port"] else "what the device can do; its port is not visible"


def _next(link: dict[str, Any]) -> str:
    return f"lspci -vv -s {link['port'] or link['device']} | grep -E 'LnkCap|LnkSta|LnkCtl2'"


def _width(link: dict[str, Any], functions: dict[str, dict[str, Any]]) -> dict[str, Any]:
    name, title = "pcie_link_width", _title(link, functions)
    common = {"unit": "lanes", "conditions": _conditions(link, functions)}
    width, limit = link["width"], link["max_width"]
    if width is None or limit is None:
        error = f"{title} does not tell the width of its link"
        return _measurement(name, link["device"], error=error, next_command=_next(link), **common)
    found = _measurement(name, link["device"], value=width, limit=limit, limit_source=_source(link), **common)
    if width < limit:
        slot = f" (slot {link['slot']})" if link["slot"] else ""
        found["cause"] = (
            f"{title}{slot} runs x{width}; it and {_port(link)} can do x{limit}: lanes do not train. "
            "Reseat the card, clean its contacts, then replace the riser or cable"
            if width
            else f"the link of {title} to {_port(link)} is down"
        )
        found["next_command"] = _next(link)
    return found


def _speed(link: dict[str, Any], functions: dict[str, dict[str, Any]], *, loaded: bool = False) -> dict[str, Any]:
    name, title = "pcie_link_speed", _title(link, functions)
    common = {"unit": "GT/s", "conditions": _conditions(link, functions)}
    speed, limit, target = link["speed_gts"], link["max_speed_gts"], link["target_speed_gts"]
    if speed is None or limit is None:
        error = f"{title} does not tell the speed of its link"
        return _measurement(name, link["device"], error=error, next_command=_next(link), **common)
    fields = {"value": speed, "limit": limit, "limit_source": _source(link), **common}
    if speed >= limit:
        return _measurement(name, link["device"], **fields)
    runs = f"{title} runs {_gts(speed)} GT/s x{link['width']}; it and its slot can do {_gts(limit)}"
    if target is not None and target < limit:
        fields["cause"] = (
            f"{runs}: the port {link['port']} has target speed {_gts(target)} GT/s. "
            "Look at BIOS slot speed, then reseat or replace the riser"
        )
    else:
        asks = f", and the port {link['port']} asks for {_gts(target)}" if target is not None else ""
        fields["cause"] = f"{runs}{asks}: the link trained down. Reseat the card, then replace the riser or cable"
        if not loaded and _saves_power(link, functions):
            if speed <= _LOWEST_SPEED_GTS:
                reason = (
                    f"{title} is idle at {_gts(speed)} of {_gts(limit)} GT/s, as a GPU that saves power is: "
                    "its link is judged under load"
                )
                return _measurement(name, link["device"], skipped=reason, **common)
            name = "pcie_link_speed_unloaded"
            fields["cause"] += "; a GPU may also save power at this speed, so look again while it copies"
    fields["next_command"] = _next(link)
    return _measurement(name, link["device"], **fields)


def _saves_power(link: dict[str, Any], functions: dict[str, dict[str, Any]]) -> bool:
    """Whether a GPU rules this link's speed: its own, or that of a bridge of its maker that is part of its card."""
    device = functions[link["device"]]
    if device["kind"] == "gpu":
        return True
    below = [functions[address] for address in link["devices_below"]]
    return device["kind"] == "bridge" and all(
        f["kind"] == "gpu" and f["vendor_id"] == device["vendor_id"] for f in below
    )


def _errors(
    links: list[dict[str, Any]], functions: dict[str, dict[str, Any]], uptime_seconds: float | None
) -> list[dict[str, Any]]:
    """Counters of both ends of each link; one zero for the machine when no link has any."""
    uncorrectable, correctable = [], []
    counted = 0
    hours = max(uptime_seconds / _SECONDS_PER_HOUR, 1.0) if uptime_seconds else None
    for link in links:
        addresses = [address for address in (link["port"], *link["functions"]) if address]
        ends = [functions[address] for address in addresses if functions[address]["aer"]]
        counted += len(ends)
        title = _title(link, functions)
        bad = {end["address"]: count for end in ends if (count := _uncorrectable(end["aer"]))}
        if bad:
            found = _error(link, title, ends, "pcie_uncorrectable_errors", bad)
            uncorrectable.append({**found, "value": sum(bad.values()), "unit": "count"})
        replays = {end["address"]: count for end in ends if (count := end["aer"]["correctable"]["total"])}
        if replays and hours:
            found = _error(link, title, ends, "pcie_correctable_errors", replays)
            correctable.append({**found, "value": round(sum(replays.values()) / hours, 3), "unit": "1/h"})
    if not counted:
        reason = "the kernel keeps no error counters (AER) for these links"
        return [_measurement("pcie_uncorrectable_errors", "node", skipped=reason)]
    common = {"conditions": {"links": len(links), "functions_with_counters": counted}}
    if not uncorrectable:
        uncorrectable = [_measurement("pcie_uncorrectable_errors", "node", value=0, unit="count", **common)]
    if not hours:
        reason = "/proc/uptime does not tell how long these counters have counted"
        correctable = [_measurement("pcie_correctable_errors", "node", skipped=reason)]
    elif not correctable:
        correctable = [_measurement("pcie_correctable_errors", "node", value=0, unit="1/h", **common)]
    return uncorrectable + correctable


def _uncorrectable(aer: dict[str, dict[str, int]]) -> int:
    nonfatal = aer["nonfatal"]
    harmless = sum(nonfatal.get(name, 0) for name in _HARMLESS_NONFATAL)
    return max(0, aer["fatal"]["total"] + nonfatal["total"] - harmless)


def _error(
    link: dict[str, Any], title: str, ends: list[dict[str, Any]], name: str, by: dict[str, int]
) -> dict[str, Any]:
    kinds = ("fatal", "nonfatal") if name == "pcie_uncorrectable_errors" else ("correctable",)
    named = sorted(
        {f"{kind} {key}" for end in ends for kind in kinds for key in end["aer"][kind] if key != "total"}
        - {f"nonfatal {key}" for key in _HARMLESS_NONFATAL}
    )
    counts = ", ".join(f"{count} at {address}" for address, count in by.items())
    return _measurement(
        name,
        link["device"],
        conditions={"counters": by, "errors": named, "port": link["port"]},
        cause=f"the link of {title} had {', '.join(named) or 'errors'} since boot ({counts}): a bad contact, riser or cable",
        next_command=f"grep . /sys/bus/pci/devices/{link['device']}/aer_dev_* | grep -v ' 0$'",
    )


def _limit(device: dict[str, Any], links: list[dict[str, Any]]) -> dict[str, Any]:
    """What the way to a device can carry at most, for the record: other measurements are held against it."""
    hop = next(link for link in links if link["device"] == device["limit_hop"])
    return _measurement(
        "pcie_bandwidth_limit",
        device["address"],
        value=device["limit_bytes_per_second"],
        unit="B/s",
        statistic="computed, one direction",
        limit_source=pcie_bandwidth_text(hop["max_speed_gts"], hop["max_width"], hop["flit"]),
        conditions={
            "kind": device["kind"],
            "narrowest_hop": device["limit_hop"],
            "port": hop["port"],
            "shared_with": device["shared_with"],
            "numa_node": device["numa_node"],
        },
    )
