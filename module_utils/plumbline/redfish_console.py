"""The last that a machine said: the console's log on its BMC, else its POST codes.

Redfish names no resource for the text of a console: `SerialConsole` says only how to watch it live. OpenBMC keeps a log of
it (`HostLogger`) and one of POST codes (`PostCodes`) among the system's LogServices; other vendors that keep one do so under
similar names.
"""

from __future__ import annotations

import re
from typing import Any

from .redfish_client import RedfishClient
from .redfish_connection import RedfishError
from .redfish_document import address, items, mapping, text

Json = dict[str, Any]

# Best first.
_KINDS = (
    (
        "console log",
        re.compile(r"host_?logger|(host|serial|sol)?_?console(_?log)?|sol_?log|serial_?log", re.IGNORECASE),
    ),
    ("POST codes", re.compile(r"(bios_?)?post_?codes?(_?log)?|bios post code log", re.IGNORECASE)),
)
_NO_LOG = "its BMC keeps no log of the console or of POST codes"
_PAGES_MAXIMUM = 50
_LINE_MAXIMUM = 300
_SLACK = 5
_SKIP = re.compile(r"[?&](?:\$|%24)skip=(\d+)")
# Escape sequences of terminals, and what else is no text.
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][0-9A-B]|[\x00-\x08\x0b-\x1f\x7f]")


def read_console(client: RedfishClient, system_id: str, maximum: int) -> Json:
    """`lines` (at most *maximum*, the last ones), their `source`, or `reason` why there are none; `power_state`, `boot_state`."""
    system = client.system(system_id)
    found: Json = {
        "lines": [],
        "source": "",
        "reason": "",
        "power_state": text(system, "PowerState"),
        "boot_state": text(mapping(system, "BootProgress"), "LastState"),
    }
    services = _services(client, system)
    empty: list[str] = []
    for kind, pattern in _KINDS:
        for service in services:
            names = {text(service, "Id"), address(service).rstrip("/").rsplit("/", 1)[-1]}
            if any(pattern.fullmatch(name) for name in names):
                lines = _last_lines(client, address(service, "Entries"), maximum)
                if lines:
                    found.update(lines=lines, source=f"{kind} {text(service, 'Id')}")
                    return found
                empty.append(text(service, "Id"))
    none = f"its BMC has written nothing into {' and '.join(empty)}" if empty else _NO_LOG
    found["reason"] = none + _live(system)
    return found


def _services(client: RedfishClient, system: Json) -> list[Json]:
    listing = address(system, "LogServices")
    if not listing:
        return []
    documents = [client.get_optional(address(one)) for one in items(client.get_optional(listing), "Members")]
    return [one for one in documents if one]


def _last_lines(client: RedfishClient, uri: str, maximum: int) -> list[str]:
    """The last lines of a log. A BMC that pages by `$skip` may hold many thousands: what lies between is left out."""
    entries: list[tuple[str, list[str]]] = []
    seen: set[str] = set()
    while uri and uri not in seen and len(seen) < _PAGES_MAXIMUM:
        seen.add(uri)
        try:
            page = client.get_optional(uri)
        except RedfishError:
            break
        for one in items(page, "Members"):
            entry = one if len(one) > 1 else client.get_optional(address(one))
            entries.append((text(entry, "Created"), [_clean(line) for line in text(entry, "Message").splitlines()]))
        uri = _further(page, maximum)
    # Some BMCs begin with the newest.
    if entries and entries[0][0] > entries[-1][0]:
        entries.reverse()
    return [line for _, lines in entries for line in lines if line][-maximum:]


def _further(page: Json, maximum: int) -> str:
    """The next page, or by its `$skip` the one that the last *maximum* entries begin with."""
    uri = text(page, "Members@odata.nextLink")
    skip = _SKIP.search(uri)
    count = page.get("Members@odata.count")
    dates = [text(one, "Created") for one in items(page, "Members")]
    if not skip or not isinstance(count, int) or (dates and dates[0] > dates[-1]):
        return uri
    # Lines that are empty do not count.
    begin = max(int(skip.group(1)), count - _SLACK * maximum)
    return uri[: skip.start(1)] + str(begin) + uri[skip.end(1) :]


def _clean(line: str) -> str:
    return _CONTROL.sub("", line).strip()[:_LINE_MAXIMUM]


def _live(system: Json) -> str:
    console = mapping(system, "SerialConsole")
    ways = []
    for name in ("SSH", "IPMI", "Telnet"):
        way = mapping(console, name)
        if way.get("ServiceEnabled") is True:
            port = way.get("Port")
            ways.append(f"{name} on port {port}" if isinstance(port, int) else name)
    return f"; it can be watched live over {' or '.join(ways)}" if ways else ""
