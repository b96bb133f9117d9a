"""The system event log over Redfish: vendors keep it under the Manager, the System or the Chassis, and call it Sel, SEL, IML, Log1, ..."""

from __future__ import annotations

import re
from typing import Any

from .bmc_event_log import event, iso_time, with_resolution
from .redfish_client import RedfishClient
from .redfish_connection import RedfishError
from .redfish_document import address, items, mapping, text

Json = dict[str, Any]

# Best first. What is left out: audit, lifecycle, POST code, dump and journal logs, which tell of logins and settings.
_NAMES = (r"sel", r"iml", r"eventlog|log1|logs|event|platformlog|platformevent(log)?|standardlog|activelog|healthlog")
_PAGES_MAXIMUM = 200
_SEVERITIES = {"ok": "ok", "informational": "ok", "warning": "warning", "critical": "critical"}
_DEASSERTED = ("deassert", "deasserted", "deassertion event", "deassertion")


def read_log(client: RedfishClient, system: Json, chassis: list[Json], maximum: int) -> Json:
    """The newest `maximum` entries, oldest first, and what is known of the log: `name`, `entries`, `used_fraction`, `time`."""
    managers = _managers(client, system)
    clock = next((time for one in managers if (time := iso_time(one.get("DateTime")))), None)
    found: Json = {
        "log": [],
        "log_service": {"name": "", "entries": None, "used_fraction": None, "time": clock, "uri": ""},
        "notes": [],
    }
    services = _services(client, [system, *managers, *chassis])
    for service in services:
        uri = address(service, "Entries")
        entries, total, complete = _newest(client, uri, maximum) if uri else ([], None, True)
        if not complete:
            found["notes"].append(
                f"the log {text(service, 'Id')} has more pages than were read; its newest entries may be missing"
            )
        found["log"] += entries
        capacity = service.get("MaxNumberOfRecords")
        if not found["log_service"]["name"]:
            used = None
            if isinstance(capacity, int) and not isinstance(capacity, bool) and capacity > 0 and total is not None:
                used = round(min(total / capacity, 1.0), 4)
            wraps = text(service, "OverWritePolicy") == "WrapsWhenFull"
            # A log that writes over its oldest entries is never full.
            found["log_service"].update(name=text(service, "Id"), entries=total, used_fraction=None if wraps else used)
            found["log_service"]["uri"] = uri
            found["log_service"]["time"] = iso_time(service.get("DateTime")) or clock
    found["log"] = with_resolution(_in_order(found["log"])[-maximum:])
    found["log_error"] = (
        "" if services else "the BMC serves no system event log (LogServices of system, manager and chassis)"
    )
    return found


def _managers(client: RedfishClient, system: Json) -> list[Json]:
    linked = [address(one) for one in items(mapping(system, "Links"), "ManagedBy")]
    if linked:
        return [document for document in map(client.get_optional, linked) if document]
    return client.members(address(client.root, "Managers"))


def _services(client: RedfishClient, owners: list[Json]) -> list[Json]:
    """The log services of the best kind that there is, each once."""
    ranked: dict[str, tuple[int, Json]] = {}
    for owner in owners:
        for one in items(client.get_optional(address(owner, "LogServices")), "Members"):
            uri = address(one).rstrip("/")
            if not uri or uri.lower() in ranked:
                continue
            service = client.get_optional(uri)
            ranked[uri.lower()] = (_rank(service), service)
    best = min((rank for rank, _ in ranked.values()), default=len(_NAMES))
    return [service for rank, service in ranked.values() if rank == best < len(_NAMES)]


def _rank(service: Json) -> int:
    if text(service, "LogEntryType").upper() == "SEL":
        return 0
    identity = text(service, "Id")
    return next((rank for rank, name in enumerate(_NAMES) if re.fullmatch(name, identity, re.I)), len(_NAMES))


def _newest(client: RedfishClient, uri: str, maximum: int) -> tuple[list[Json], int | None, bool]:
    """The entries of a log, as many as needed for the newest; their number by the BMC; whether the pages came to an end.

    BMCs page from the oldest or from the newest entry on. From the newest on, `maximum` entries are enough; from the oldest on, the
    link to the next page says how its pages are numbered, and the last ones are asked for directly.
    """
    found: list[Json] = []
    total: int | None = None
    seen: set[str] = set()
    while uri and uri not in seen and len(seen) < _PAGES_MAXIMUM:
        seen.add(uri)
        try:
            page = client.get_optional(uri)
        except RedfishError:
            if len(seen) < 2:
                raise
            return found, total, False
        count = page.get("Members@odata.count")
        total = count if isinstance(count, int) and not isinstance(count, bool) else total
        found += [_entry(one) for one in _members(client, page)]
        following = text(page, "Members@odata.nextLink")
        times = [one["time"] for one in found if one["time"]]
        newest_first = len(times) > 1 and times[0] > times[-1]
        if newest_first and len(found) >= maximum:
            return found, total, True
        if len(seen) == 1 and not newest_first and total is not None and total - maximum > len(found):
            following = re.sub(r"(\$skip=)\d+", rf"\g<1>{total - maximum}", following)
        uri = following
    return found, total, not uri


def _members(client: RedfishClient, page: Json) -> list[Json]:
    """Entries come whole with most BMCs, and as bare links with some."""
    members = items(page, "Members")
    return [one if len(one) > 1 else client.get_optional(address(one)) for one in members]


def _entry(document: Json) -> Json:
    code = text(document, "EntryCode", "SensorEventType").lower()
    kind, number = text(document, "SensorType"), text(document, "SensorNumber")
    origin = address(document, "Links", "OriginOfCondition").rstrip("/").rsplit("/", 1)[-1]
    repaired = any(part.get("Repaired") is True for part in mapping(document, "Oem").values() if isinstance(part, dict))
    entry = event(
        text(document, "Message", "Name"),
        _SEVERITIES.get(text(document, "Severity", "MessageSeverity").lower(), ""),
        id=text(document, "Id"),
        time=iso_time(document.get("EventTimestamp")) or iso_time(document.get("Created")),
        sensor=f"{kind} #{number}" if kind and number else kind or origin,
        message_id=text(document, "MessageId"),
        asserted=code not in _DEASSERTED,
    )
    entry["resolved"] = repaired or document.get("Resolved") is True
    return entry


def _in_order(entries: list[Json]) -> list[Json]:
    """Oldest first, whichever way the BMC has them; what has no time stays beside its neighbour."""
    times = [one["time"] for one in entries if one["time"]]
    if len(times) > 1 and times[0] > times[-1]:
        entries = entries[::-1]
    latest = ""
    keyed = []
    for one in entries:
        latest = one["time"] or latest
        keyed.append((latest, one))
    return [one for _, one in sorted(keyed, key=lambda pair: pair[0])]
