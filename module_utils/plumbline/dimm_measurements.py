"""Measurements of DIMMs for the gate: population, balance, speeds and error counters, with the probable cause."""

from __future__ import annotations

from typing import Any

from .memory_checks import dimm_ecc, edac_measurements, memory_visible

_LOOK = "dmidecode -t memory | grep -E 'Locator|Size|Speed'"


def dimm_measurements(facts: dict[str, Any]) -> list[dict[str, Any]]:
    """Measurements from what `dimm_facts` found.

    `dimm_population` (channels) and `dimm_balance` (fraction) per socket, `dimm_configured_speed` (MT/s) once for
    all DIMMs that are alike in it, `dram_bandwidth_limit` (B/s) per socket and node,
    `memory_visible` (B) and `dimm_ecc` once, `edac_uncorrectable_errors` (count) and `edac_correctable_errors` (1/h).
    """
    modules = [dimm for dimm in facts["dimms"] if dimm["populated"]]
    if not facts["available"]:
        # No table: it does not apply here. A table that cannot be read or understood: it should have been measured.
        told = "error" if facts["table_present"] else "skipped"
        names = ("dimm_population", "dimm_configured_speed")
        next_command = {"next_command": _LOOK} if told == "error" else {}
        found = [{"name": name, "scope": "node", told: facts["reason"], **next_command} for name in names]
    elif facts["incomplete"]:
        # What is missing may be the firmware's entry of a DIMM, so nothing is laid at the door of the hardware.
        told = f"{facts['incomplete']}: DIMMs beyond that are unknown"
        cause = "the firmware's table is damaged, or a capture was cut: update the BIOS, or restart the machine so that it is made anew"
        found = [
            {"name": name, "scope": "node", "error": told, "cause": cause, "next_command": _LOOK}
            for name in ("dimm_population", "dimm_configured_speed")
        ]
    elif reason := _not_applicable(facts, modules):
        found = [_skip(name, reason) for name in ("dimm_population", "dimm_configured_speed")]
    else:
        found = [*_population(facts), *_balance(facts["sockets"]), *_speeds(modules), *_limits(facts)]
        found += [*dimm_ecc(facts, modules), *memory_visible(facts)]
    return found + edac_measurements(facts["edac"])


def _not_applicable(facts: dict[str, Any], modules: list[dict[str, Any]]) -> str:
    """Why a table that can be read says nothing of slots and channels; empty when it does."""
    if facts["hypervisor"]:
        return f"the hypervisor ({facts['hypervisor']}) makes up the SMBIOS table: its DIMMs are not those of the host"
    if not modules and facts["other_memory"]:
        held = sum(other["size_bytes"] or 0 for other in facts["other_memory"]) >> 30
        kinds = " and ".join(sorted({other["where"] for other in facts["other_memory"]}))
        return f"no DIMM is fitted: the memory is {held} GiB of {kinds}"
    if not any(dimm["speed_mts"] or dimm["configured_speed_mts"] for dimm in modules):
        return "no DIMM in the SMBIOS table tells its speed, as in the table that a hypervisor makes up"
    return ""


def _skip(name: str, reason: str) -> dict[str, Any]:
    return {"name": name, "scope": "node", "skipped": reason}


def _gigabytes(bytes_per_second: float) -> str:
    return f"{bytes_per_second / 1e9:.1f}"


def _population(facts: dict[str, Any]) -> list[dict[str, Any]]:
    remedy = "name the channels of a socket in survey_memory_channels_per_socket"
    if facts["soldered"]:
        return [_skip("dimm_population", "the memory is soldered: no channel can be without its own")]
    if not facts["sockets"]:
        error = f"the sockets and channels of the DIMMs cannot be told from their locators: {remedy}"
        return [{"name": "dimm_population", "scope": "node", "error": error, "next_command": _LOOK}]
    found = []
    for socket in facts["sockets"]:
        scope = f"socket{socket['socket']}"
        common = {"name": "dimm_population", "scope": scope, "unit": "channels", "conditions": _conditions(socket)}
        if socket["channels"] is None:
            error = f"the channels of socket {socket['socket']} cannot be counted from its locators: {remedy}"
            found.append({**common, "error": error, "next_command": _LOOK})
            continue
        measurement = {
            **common,
            "value": socket["channels_populated"],
            "limit": socket["channels"],
            "limit_source": f"slots in the SMBIOS table, channels by {socket['channel_source']}",
        }
        if socket["channels_populated"] < socket["channels"]:
            limit = ""
            if socket["bandwidth_full_bytes_per_second"]:
                now, full = socket["bandwidth_bytes_per_second"], socket["bandwidth_full_bytes_per_second"]
                limit = f": limit {_gigabytes(now)} of {_gigabytes(full)} GB/s"
            names = ", ".join(socket["empty_channels"])
            empty = f"{names} empty" if names else "the empty ones cannot be told"
            measurement["cause"] = (
                f"socket {socket['socket']}: {socket['channels_populated']} of {socket['channels']} channels populated "
                f"({empty}){limit}"
            )
            measurement["next_command"] = _LOOK
        found.append(measurement)
    return found


def _conditions(socket: dict[str, Any]) -> dict[str, Any]:
    keys = ("label", "slots", "dimms", "dimms_per_channel", "empty_channels", "configured_speed_mts", "memory_bytes")
    return {key: socket[key] for key in keys}


def _balance(sockets: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = []
    for socket in sockets:
        smallest, largest = socket["channel_bytes_smallest"], socket["channel_bytes_largest"]
        if not smallest or not largest:
            continue
        measurement = {
            "name": "dimm_balance",
            "scope": f"socket{socket['socket']}",
            "value": round(smallest / largest, 4),
            "unit": "fraction",
            "conditions": {"channel_bytes_smallest": smallest, "channel_bytes_largest": largest},
        }
        if smallest < largest:
            measurement["cause"] = (
                f"socket {socket['socket']}: its channels hold {smallest >> 30} to {largest >> 30} GiB: "
                "only a part of the memory is interleaved over all channels"
            )
            measurement["next_command"] = _LOOK
        found.append(measurement)
    totals = [socket["memory_bytes"] for socket in sockets]
    if len(totals) > 1 and max(totals):
        measurement = {
            "name": "dimm_balance",
            "scope": "node",
            "value": round(min(totals) / max(totals), 4),
            "unit": "fraction",
        }
        if min(totals) < max(totals):
            held = ", ".join(f"socket {s['socket']} {s['memory_bytes'] >> 30} GiB" for s in sockets)
            measurement["cause"] = f"the sockets hold unequal memory: {held}"
            measurement["next_command"] = _LOOK
        found.append(measurement)
    return found


def _speeds(modules: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One measurement for all DIMMs of the same rated and configured speed."""
    found = []
    groups: dict[tuple[Any, Any], list[dict[str, Any]]] = {}
    for dimm in modules:
        groups.setdefault((dimm["speed_mts"], dimm["configured_speed_mts"]), []).append(dimm)
    for (rated, configured), dimms in groups.items():
        others = any(told for _, told in groups)
        names = [dimm["locator"] or f"handle {dimm['handle']:#06x}" for dimm in dimms]
        called = f"DIMM {names[0]}" if len(names) == 1 else f"DIMMs {', '.join(names[:4])}"
        called += f" and {len(names) - 4} more" if len(names) > 4 else ""
        measurement: dict[str, Any] = {
            "name": "dimm_configured_speed",
            "scope": "node" if len(groups) == 1 else called.partition(" ")[2],
            "unit": "MT/s",
            "conditions": {"dimms": names},
        }
        if not rated or not configured:
            measurement["error"] = f"{called}: no {'rated' if not rated else 'configured'} speed in the SMBIOS table"
            if rated and others:
                measurement["cause"] = (
                    "other DIMMs tell theirs: the firmware may have switched this one off (look at the BMC's event log)"
                )
            measurement["next_command"] = _LOOK
        else:
            source = "rated speed of the DIMM (SMBIOS)" if len(names) == 1 else "rated speed of the DIMMs (SMBIOS)"
            measurement.update(value=configured, limit=rated, limit_source=source)
            if configured < rated:
                verbs = ("is", "runs") if len(names) == 1 else ("are", "run")
                slower = [
                    str(dimm["locator"])
                    for dimm in modules
                    if dimm["speed_mts"] and configured <= dimm["speed_mts"] < rated
                ]
                why = (
                    f"the slower DIMM {', '.join(slower[:4])} holds the others back"
                    if slower
                    else "a BIOS setting, two DIMMs in a channel, or the processor's own limit"
                )
                measurement["cause"] = f"{called} {verbs[0]} rated {rated} MT/s and {verbs[1]} at {configured}: {why}"
                measurement["next_command"] = _LOOK
        found.append(measurement)
    return found


def _limits(facts: dict[str, Any]) -> list[dict[str, Any]]:
    """What the memory can deliver at most, for the record: a measured bandwidth is held against it."""
    scopes = [(f"socket{socket['socket']}", socket) for socket in facts["sockets"]] + [("node", facts)]
    return [
        {
            "name": "dram_bandwidth_limit",
            "scope": scope,
            "value": owner["bandwidth_bytes_per_second"],
            "unit": "B/s",
            "statistic": "computed",
            "limit_source": owner["bandwidth_source"],
        }
        for scope, owner in scopes
        if owner["bandwidth_bytes_per_second"]
    ]
