"""The BMC itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .clock import now
from .messages import refuse
from .rest import Call, Reply, Resource, collection, link

if TYPE_CHECKING:
    from .service import Service

Json = dict[str, Any]
_RESETS = ["GracefulRestart", "ForceRestart"]


class ManagerResources:
    """The handlers of the BMC."""

    def __init__(self, service: Service) -> None:
        """Serve one manager."""
        self.service = service
        self.paths = service.paths

    def resources(self) -> dict[str, Resource]:
        """Return the resources by URI."""
        paths = self.paths
        ports = f"{paths.manager}/EthernetInterfaces"
        return {
            paths.managers: Resource(get=lambda: collection(paths.managers, "Manager", "Managers", [paths.manager])),
            paths.manager: Resource(get=self.manager),
            f"{paths.manager}/Actions/Manager.Reset": Resource(post=self.reset),
            ports: Resource(get=lambda: collection(ports, "EthernetInterface", "Ports", [f"{ports}/1"])),
            f"{ports}/1": Resource(get=lambda: self.port(f"{ports}/1")),
            f"{paths.manager}/NetworkProtocol": Resource(get=self.network_protocol),
        }

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
