"""Measurements of DIMMs for the gate: population, balance, speeds and error counters, with the probable cause."""

from __future__ import annotations

from typing import Any

_SECONDS_PER_HOUR = 3600
_LOOK = "dmidecode -t memory | grep -E 'Locator|Size|Speed'"


def dimm_measurements(facts: dict[str, Any]) -> list[dict[str, Any]]:
    """Measurements from what `dimm_facts` found.

    `dimm_population` (channels) and `dimm_balance` (fraction) per socket, `dimm_configured_speed` (MT/s) once for
    all DIMMs that are alike in it, `dram_bandwidth_limit` (B/s) per socket and node,
    `edac_uncorrectable_errors` (count) and `edac_correctable_errors` (1/h).
    """
    modules = [dimm for dimm in facts["dimms"] if dimm["populated"]]
    if not facts["available"]:
        # No table: it does not apply here. A table that cannot be read or understood: it should have been measured.
        told = "error" if facts["table_present"] else "skipped"
        names = ("dimm_population", "dimm_configured_speed")
        found = [{"name": name, "scope": "node", told: facts["reason"]} for name in names]
    elif not any(dimm["speed_mts"] or dimm["configured_speed_mts"] for dimm in modules):
        reason = "no DIMM in the SMBIOS table tells its speed, as in the table that a hypervisor makes up"
        found = [_skip(name, reason) for name in ("dimm_population", "dimm_configured_speed")]
    else:
        found = [*_population(facts), *_balance(facts["sockets"]), *_speeds(modules), *_limits(facts)]
    return found + _edac(facts["edac"])


def _skip(name: str, reason: str) -> dict[str, Any]:
    return {"name": name, "scope": "node", "skipped": reason}


def _gigabytes(bytes_per_second: float) -> str:
    return f"{bytes_per_second / 1e9:.1f}"


def _population(facts: dict[str, Any]) -> list[dict[str, Any]]:
    remedy = "name the channels of a socket in survey_memory_channels_per_socket"
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
            measurement["cause"] = (
                f"socket {socket['socket']}: {socket['channels_populated']} of {socket['channels']} channels populated "
                f"({', '.join(socket['empty_channels']) or 'which ones is unknown'} empty){limit}"
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
            measurement["next_command"] = _LOOK
        else:
            source = "rated speed of the DIMM (SMBIOS)" if len(names) == 1 else "rated speed of the DIMMs (SMBIOS)"
            measurement.update(value=configured, limit=rated, limit_source=source)
            if configured < rated:
                verbs = ("is", "runs") if len(names) == 1 else ("are", "run")
                measurement["cause"] = (
                    f"{called} {verbs[0]} rated {rated} MT/s and {verbs[1]} at {configured}: a BIOS setting, two DIMMs in a "
                    "channel, a slower DIMM beside, or the processor's own limit"
                )
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


def _edac(edac: dict[str, Any]) -> list[dict[str, Any]]:
    if not edac["available"]:
        return [_skip("edac_uncorrectable_errors", edac["reason"])]
    found = []
    for controller in edac["controllers"]:
        scope = controller["name"]
        for kind in ("uncorrectable", "correctable"):
            measurement: dict[str, Any] = {"name": f"edac_{kind}_errors", "scope": scope}
            count, seconds = controller[kind], controller["seconds"]
            if count is None:
                found.append({**measurement, "error": f"memory controller {scope} does not tell its {kind} errors"})
                continue
            hours = max((seconds or 0) / _SECONDS_PER_HOUR, 1.0)
            where = ", ".join(
                f"{dimm[kind]} at {dimm['label'] or dimm['location'] or dimm['name']}"
                for dimm in controller["dimms"]
                if dimm[kind]
            )
            per_hour = kind == "correctable"
            measurement.update(
                value=round(count / hours, 3) if per_hour else count,
                unit="1/h" if per_hour else "count",
                conditions={"count": count, "seconds": seconds, "driver": controller["driver"]},
            )
            if count:
                measurement["cause"] = (
                    f"memory controller {scope} counted {count} {kind} errors"
                    + (f" ({where})" if where else "")
                    + ": replace the DIMM"
                )
                measurement["next_command"] = f"grep . /sys/devices/system/edac/mc/{scope}/*/dimm_*e_count"
            found.append(measurement)
    return found
