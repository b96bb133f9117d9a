"""The log of the host's console, as OpenBMC keeps it: `HostLogger` among the system's LogServices, one entry a line.

Fed by a file that whoever runs the host writes (`console_log` of the configuration), with an older one beside it that ends in
`.1`. As in bmcweb an entry has no `Created`, a page has at most 1,000 entries, and its next link carries `$skip`.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .messages import refuse
from .rest import Resource, collection, link

if TYPE_CHECKING:
    from .service import Finder, Service

Json = dict[str, Any]
PAGE = 1000
# What is kept of each file: a console that talks without end must not fill the BMC's answer.
_KEPT_BYTES = 1 << 20
# Query options of bmcweb's collection.
QUERY = frozenset({"$skip", "$top"})


class HostLogger:
    """The handlers of the log; without a file there is none."""

    def __init__(self, service: Service) -> None:
        """Serve the console's log of one BMC."""
        self.service = service
        file = service.config.console_log
        self.file = Path(file) if file else None
        self.uri = f"{service.paths.system}/LogServices/HostLogger"
        if self.file is not None:
            service.system_links.setdefault("LogServices", link(f"{service.paths.system}/LogServices"))

    @property
    def uris(self) -> list[str]:
        """The log services to list under the system: this one, or none."""
        return [self.uri] if self.file is not None else []

    def resources(self) -> dict[str, Resource]:
        """Return the resources by URI."""
        if self.file is None:
            return {}
        return {
            self.uri: Resource(get=self.log),
            f"{self.uri}/Entries": Resource(get=partial(self.entries, {}), paged=self.entries, options=QUERY),
        }

    def finders(self) -> dict[str, Finder]:
        """Return the changing collection."""
        return {f"{self.uri}/Entries": self.find_entry} if self.file is not None else {}

    def lines(self) -> list[str]:
        """Return what the console said, oldest first; nothing where it has said nothing yet."""
        if self.file is None:
            return []
        text = ""
        for path in (self.file.with_name(f"{self.file.name}.1"), self.file):
            try:
                with path.open("rb") as stream:
                    stream.seek(max(0, path.stat().st_size - _KEPT_BYTES))
                    text += stream.read().decode(errors="replace").rstrip("\n") + "\n"
            except OSError:
                continue
        return [line for line in text.split("\n") if line.strip()]

    def log(self) -> Json:
        """Return the LogService."""
        return {
            "@odata.id": self.uri,
            "@odata.type": "#LogService.v1_2_0.LogService",
            "Id": "HostLogger",
            "Name": "Host Logger Service",
            "Description": "Host Logger Service",
            "Entries": link(f"{self.uri}/Entries"),
        }

    def _entry(self, number: int, line: str) -> Json:
        return {
            "@odata.id": f"{self.uri}/Entries/{number}",
            "@odata.type": "#LogEntry.v1_9_0.LogEntry",
            "Id": str(number),
            "Name": "Host Logger Entry",
            "EntryType": "Oem",
            "OemRecordFormat": "Host Logger Entry",
            "Severity": "OK",
            "Message": line,
        }

    def entries(self, query: dict[str, str]) -> Json:
        """Return a page of the entries, oldest first."""
        numbers = {name: query.get(name, default) for name, default in (("$skip", "0"), ("$top", str(PAGE)))}
        for name, text in numbers.items():
            if not text.isdecimal():
                raise refuse(400, "QueryParameterValueTypeError", text, name)
        skip, top = int(numbers["$skip"]), min(int(numbers["$top"]), PAGE)
        lines = self.lines()
        body = collection(f"{self.uri}/Entries", "LogEntry", "HostLogger Entries", [])
        body["Members"] = [self._entry(skip + place, line) for place, line in enumerate(lines[skip : skip + top])]
        body["Members@odata.count"] = len(lines)
        if skip + top < len(lines):
            body["Members@odata.nextLink"] = f"{self.uri}/Entries?$skip={skip + top}"
        return body

    def find_entry(self, identity: str) -> Resource | None:
        """Return one entry's resource."""
        lines = self.lines()
        if identity.isdecimal() and int(identity) < len(lines):
            return Resource(get=partial(self._entry, int(identity), lines[int(identity)]))
        return None
