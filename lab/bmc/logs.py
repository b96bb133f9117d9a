"""The system event log: where a vendor keeps it, how it names it, and how it pages its entries.

`log` of a profile: `id` (SEL, Sel, IML, Log1, ...), `owner` (`both`: one log that system and manager list; `system`; `manager`), `page`
(entries a page, 0 for all at once), `newest_first`, `links` (entries as bare links, not whole), `capacity`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from .clock import now
from .messages import refuse
from .rest import Call, Reply, Resource, collection, link

if TYPE_CHECKING:
    from .service import Finder, Service

Json = dict[str, Any]
_DEFAULTS = {"id": "SEL", "owner": "both", "page": 0, "newest_first": False, "links": False, "capacity": 500}
_SEVERITIES = ("OK", "Warning", "Critical")
_MESSAGE_ID = "Simulator.1.0.Event"


class EventLog:
    """The SEL: numbered entries that survive a restart. It is small; older entries make room."""

    def __init__(self, service: Service) -> None:
        """Use the service's state."""
        self._service = service
        self._data: Json = service.state.section("log", {"next": 1, "entries": []})
        self.settings: Json = {**_DEFAULTS, **service.profile.get("log", {})}

    @property
    def entries(self) -> list[Json]:
        """The entries, oldest first."""
        return list(self._data["entries"])

    def add(self, severity: str, text: str, **more: Any) -> None:
        """Append an entry. Severity is OK, Warning or Critical; `more` are further members of the LogEntry (SensorType, ...)."""
        number = self._data["next"]
        self._data["next"] = number + 1
        entry = {"id": number, "created": now(), "severity": severity, "message": text, "more": more}
        self._data["entries"].append(entry)
        del self._data["entries"][: -self.settings["capacity"]]

    def add_described(self, parameters: Json) -> None:
        """Append the entry that a fault `log_entry` describes."""
        severity = parameters["severity"]
        if severity not in _SEVERITIES:
            raise refuse(
                400, "PropertyValueNotInList", severity, "severity", ", ".join(_SEVERITIES), related="/severity"
            )
        more = {"SensorType": parameters["sensor_type"], "SensorNumber": parameters["sensor_number"]}
        more["EntryCode"] = parameters["code"]
        self.add(severity, parameters["message"], **more)
        if parameters["created"]:
            self._data["entries"][-1]["created"] = parameters["created"]

    def clear(self) -> None:
        """Forget all entries and say so in the first new one, as a SEL does."""
        self._data["entries"] = []
        self.add("OK", "Log cleared")
        self._service.state.save()


class LogResources:
    """The handlers of the log service."""

    def __init__(self, service: Service) -> None:
        """Serve the log of one BMC under the system, the manager or both."""
        self.service = service
        self.settings = service.log.settings
        paths, owner = service.paths, self.settings["owner"]
        self.owners = {"both": [paths.system, paths.manager], "system": [paths.system], "manager": [paths.manager]}[
            owner
        ]
        self.uri = f"{self.owners[0]}/LogServices/{self.settings['id']}"
        for place, links in ((paths.system, service.system_links), (paths.manager, service.manager_links)):
            if place in self.owners:
                links["LogServices"] = link(f"{place}/LogServices")

    def resources(self) -> dict[str, Resource]:
        """Return the resources by URI."""

        members = {one: [self.uri] for one in self.owners}
        console = self.service.host_logger.uris
        if console:
            members[self.service.paths.system] = [*members.get(self.service.paths.system, []), *console]

        def listing(owner: str) -> Json:
            return collection(f"{owner}/LogServices", "LogService", "Logs", members[owner])

        table = {f"{one}/LogServices": Resource(get=partial(listing, one)) for one in members}
        table[self.uri] = Resource(get=self.log)
        table[f"{self.uri}/Entries"] = Resource(get=partial(self.entries, 0))
        table[f"{self.uri}/Actions/LogService.ClearLog"] = Resource(post=self.clear_log)
        return table

    def finders(self) -> dict[str, Finder]:
        """Return the changing collections."""
        return {f"{self.uri}/Entries": self.find_entry}

    def log(self) -> Json:
        """Return the LogService."""
        identity = self.settings["id"]
        return {
            "@odata.id": self.uri,
            "@odata.type": "#LogService.v1_7_0.LogService",
            "Id": identity,
            "Name": "System Event Log",
            "LogEntryType": "SEL" if identity.upper() == "SEL" else "Event",
            "MaxNumberOfRecords": self.settings["capacity"],
            "OverWritePolicy": "WrapsWhenFull",
            "DateTime": now(),
            "ServiceEnabled": True,
            "Status": {"State": "Enabled", "Health": "OK"},
            "Entries": link(f"{self.uri}/Entries"),
            "Actions": {"#LogService.ClearLog": {"target": f"{self.uri}/Actions/LogService.ClearLog"}},
        }

    def _entry(self, entry: Json) -> Json:
        return {
            "@odata.id": f"{self.uri}/Entries/{entry['id']}",
            "@odata.type": "#LogEntry.v1_16_2.LogEntry",
            "Id": str(entry["id"]),
            "Name": f"Log entry {entry['id']}",
            "EntryType": "SEL" if self.settings["id"].upper() == "SEL" else "Event",
            "Created": entry["created"],
            "Severity": entry["severity"],
            "Message": entry["message"],
            "MessageId": _MESSAGE_ID,
            "MessageArgs": [],
            **entry.get("more", {}),
        }

    def entries(self, skip: int) -> Json:
        """Return a page of the entries, expanded, as most BMCs do."""
        entries = self.service.log.entries
        if self.settings["newest_first"]:
            entries.reverse()
        page = self.settings["page"] or max(len(entries), 1)
        shown = entries[skip : skip + page]
        body = collection(f"{self.uri}/Entries", "LogEntry", "Log entries", [])
        links_only = self.settings["links"]
        body["Members"] = [link(f"{self.uri}/Entries/{one['id']}") if links_only else self._entry(one) for one in shown]
        body["Members@odata.count"] = len(entries)
        if skip + page < len(entries):
            # A next link is opaque (DSP0266); this one needs no query option, of which there is none.
            body["Members@odata.nextLink"] = f"{self.uri}/Entries/after/{skip + page}"
        return body

    def find_entry(self, identity: str) -> Resource | None:
        """Return one entry's resource, or a further page of the collection."""
        after, _, skip = identity.partition("/")
        if after.lower() == "after" and skip.isdecimal() and self.settings["page"]:
            return Resource(get=partial(self.entries, int(skip)))
        for entry in self.service.log.entries:
            if str(entry["id"]) == identity:
                return Resource(get=partial(self._entry, entry))
        return None

    def clear_log(self, _call: Call) -> Reply:
        """Clear the log."""
        self.service.log.clear()
        return Reply(204)
