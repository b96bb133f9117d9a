"""The BMC itself, and the system event log."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from .clock import now
from .messages import refuse
from .rest import Call, Reply, Resource, collection, link

if TYPE_CHECKING:
    from .service import Finder, Service

Json = dict[str, Any]
_KEPT_ENTRIES = 500  # a SEL is small; older entries make room
_RESETS = ["GracefulRestart", "ForceRestart"]


class EventLog:
    """The SEL: numbered entries that survive a restart."""

    def __init__(self, service: Service) -> None:
        """Use the service's state."""
        self._service = service
        self._data: Json = service.state.section("log", {"next": 1, "entries": []})

    @property
    def entries(self) -> list[Json]:
        """The entries, oldest first."""
        return list(self._data["entries"])

    def add(self, severity: str, text: str) -> None:
        """Append an entry. Severity is OK, Warning or Critical."""
        number = self._data["next"]
        self._data["next"] = number + 1
        self._data["entries"].append({"id": number, "created": now(), "severity": severity, "message": text})
        del self._data["entries"][:-_KEPT_ENTRIES]

    def clear(self) -> None:
        """Forget all entries and say so in the first new one, as a SEL does."""
        self._data["entries"] = []
        self.add("OK", "Log cleared")
        self._service.state.save()


class ManagerResources:
    """The handlers of the BMC."""

    def __init__(self, service: Service) -> None:
        """Serve one manager."""
        self.service = service
        self.paths = service.paths
        self.log_service = f"{self.paths.system}/LogServices/SEL"
        service.system_links["LogServices"] = link(f"{self.paths.system}/LogServices")

    def resources(self) -> dict[str, Resource]:
        """Return the resources by URI."""
        paths = self.paths
        logs = f"{paths.system}/LogServices"
        manager_logs = f"{paths.manager}/LogServices"
        ports = f"{paths.manager}/EthernetInterfaces"
        return {
            paths.managers: Resource(get=lambda: collection(paths.managers, "Manager", "Managers", [paths.manager])),
            paths.manager: Resource(get=self.manager),
            f"{paths.manager}/Actions/Manager.Reset": Resource(post=self.reset),
            ports: Resource(get=lambda: collection(ports, "EthernetInterface", "Ports", [f"{ports}/1"])),
            f"{ports}/1": Resource(get=lambda: self.port(f"{ports}/1")),
            f"{paths.manager}/NetworkProtocol": Resource(get=self.network_protocol),
            logs: Resource(get=lambda: collection(logs, "LogService", "Logs", [self.log_service])),
            manager_logs: Resource(get=lambda: collection(manager_logs, "LogService", "Logs", [self.log_service])),
            self.log_service: Resource(get=self.log),
            f"{self.log_service}/Entries": Resource(get=self.entries),
            f"{self.log_service}/Actions/LogService.ClearLog": Resource(post=self.clear_log),
        }

    def finders(self) -> dict[str, Finder]:
        """Return the changing collections."""
        return {f"{self.log_service}/Entries": self.find_entry}

    def manager(self) -> Json:
        """Return the Manager."""
        paths = self.paths
        return {
            "@odata.id": paths.manager,
            "@odata.type": "#Manager.v1_19_1.Manager",
            "Id": paths.ids["manager"],
            "Name": "Manager",
            "ManagerType": "BMC",
            "Model": self.service.profile.get("manager_model", "BMC"),
            "FirmwareVersion": self.service.firmware_version(self.service.profile.get("manager_firmware", "BMC")),
            "DateTime": now(),
            "DateTimeLocalOffset": "+00:00",
            "PowerState": "On",
            "Status": {"State": "Enabled", "Health": "OK"},
            "EthernetInterfaces": link(f"{paths.manager}/EthernetInterfaces"),
            "NetworkProtocol": link(f"{paths.manager}/NetworkProtocol"),
            "LogServices": link(f"{paths.manager}/LogServices"),
            "Links": {"ManagerForServers": [link(paths.system)], "ManagerForChassis": [link(paths.chassis)]},
            "Actions": {
                "#Manager.Reset": {
                    "target": f"{paths.manager}/Actions/Manager.Reset",
                    "ResetType@Redfish.AllowableValues": _RESETS,
                }
            },
            **self.service.manager_links,
        }

    def reset(self, call: Call) -> Reply:
        """Restart the BMC: it is away for a while, the host goes on."""
        kind = call.body.get("ResetType", "GracefulRestart")
        if kind not in _RESETS:
            raise refuse(400, "ActionParameterNotSupported", "ResetType", "Manager.Reset", kind, ", ".join(_RESETS))
        self.service.log.add("OK", "BMC restart requested")
        self.service.restart_bmc_soon()
        return Reply(204)

    def port(self, uri: str) -> Json:
        """Return the BMC's port."""
        return {
            "@odata.id": uri,
            "@odata.type": "#EthernetInterface.v1_12_1.EthernetInterface",
            "Id": "1",
            "Name": "Manager port",
            "HostName": f"{self.service.node_name}-bmc",
            "MACAddress": "02:00:00:00:00:01",
            "IPv4Addresses": [{"Address": self.service.config.listen, "AddressOrigin": "Static"}],
            "InterfaceEnabled": True,
            "LinkStatus": "LinkUp",
            "Status": {"State": "Enabled", "Health": "OK"},
        }

    def network_protocol(self) -> Json:
        """Return which protocols are served: only HTTPS."""
        return {
            "@odata.id": f"{self.paths.manager}/NetworkProtocol",
            "@odata.type": "#ManagerNetworkProtocol.v1_10_1.ManagerNetworkProtocol",
            "Id": "NetworkProtocol",
            "Name": "Manager Network Protocol",
            "HostName": f"{self.service.node_name}-bmc",
            "HTTP": {"ProtocolEnabled": False, "Port": 80},
            "HTTPS": {"ProtocolEnabled": True, "Port": self.service.config.port},
            "IPMI": {"ProtocolEnabled": False, "Port": 623},
            "SSH": {"ProtocolEnabled": False, "Port": 22},
        }

    def log(self) -> Json:
        """Return the LogService."""
        return {
            "@odata.id": self.log_service,
            "@odata.type": "#LogService.v1_7_0.LogService",
            "Id": "SEL",
            "Name": "System Event Log",
            "LogEntryType": "SEL",
            "MaxNumberOfRecords": _KEPT_ENTRIES,
            "OverWritePolicy": "WrapsWhenFull",
            "DateTime": now(),
            "ServiceEnabled": True,
            "Status": {"State": "Enabled", "Health": "OK"},
            "Entries": link(f"{self.log_service}/Entries"),
            "Actions": {"#LogService.ClearLog": {"target": f"{self.log_service}/Actions/LogService.ClearLog"}},
        }

    def _entry(self, entry: Json) -> Json:
        return {
            "@odata.id": f"{self.log_service}/Entries/{entry['id']}",
            "@odata.type": "#LogEntry.v1_16_2.LogEntry",
            "Id": str(entry["id"]),
            "Name": f"Log entry {entry['id']}",
            "EntryType": "SEL",
            "Created": entry["created"],
            "Severity": entry["severity"],
            "Message": entry["message"],
            "MessageId": "Simulator.1.0.Event",
            "MessageArgs": [],
        }

    def entries(self) -> Json:
        """Return the entries, expanded, as most BMCs do."""
        entries = self.service.log.entries
        body = collection(f"{self.log_service}/Entries", "LogEntry", "Log entries", [])
        body["Members"] = [self._entry(one) for one in entries]
        body["Members@odata.count"] = len(entries)
        return body

    def find_entry(self, identity: str) -> Resource | None:
        """Return one entry's resource."""
        for entry in self.service.log.entries:
            if str(entry["id"]) == identity:
                return Resource(get=partial(self._entry, entry))
        return None

    def clear_log(self, _call: Call) -> Reply:
        """Clear the log."""
        self.service.log.clear()
        return Reply(204)
