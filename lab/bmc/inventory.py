"""What is in the box: processors, DIMMs, PCIe devices, network ports. All of it comes from the profile."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from .rest import Getter, Resource, collection, link

if TYPE_CHECKING:
    from .service import Service

Json = dict[str, Any]


def _status(part: Json) -> Json:
    return {"State": part.get("State", "Enabled"), "Health": part.get("Health", "OK")}


def dimm_parts(memory: Json) -> list[Json]:
    """Return one entry per slot of a profile's `memory`: a template, a naming pattern and the populated positions.

    `positions` are [socket, channel, slot]; `absent` lists empty slots in the same way; `differences` overrides single
    DIMMs by their locator, which makes the unbalanced and down-clocked machines of the field.
    """
    parts = []
    wanted = [(tuple(one), True) for one in memory.get("positions", [])]
    wanted += [(tuple(one), False) for one in memory.get("absent", [])]
    differences = memory.get("differences", {})
    in_socket: dict[int, int] = {}
    for index, ((socket, channel, slot), present) in enumerate(wanted, start=1):
        in_socket[socket] = in_socket.get(socket, 0) + 1
        names = {
            "socket": socket,
            "socket_letter": chr(ord("A") + socket),
            "n_in_socket": in_socket[socket],
            "channel": channel,
            "slot": slot,
            "socket1": socket + 1,
            "channel1": channel + 1,
            "letter": chr(ord("A") + channel),
            "slot1": slot + 1,
            "n": index,
        }
        locator = memory["locator"].format(**names)
        part = {
            "DeviceLocator": locator,
            "MemoryLocation": {"Socket": socket, "MemoryController": channel // 2, "Channel": channel, "Slot": slot},
        }
        if present:
            part.update(memory["template"])
            part["SerialNumber"] = f"{memory.get('serial', 'LAB')}{index:05d}"
            part.update(differences.get(locator, {}))
        else:
            part["State"] = "Absent"
        parts.append(part)
    return parts


class InventoryResources:
    """Resources under the system that do not change by themselves."""

    def __init__(self, service: Service) -> None:
        """Expand the profile's parts."""
        self.service = service
        self.paths = service.paths
        profile = service.profile
        self.memory_profile: Json = profile.get("memory", {})
        self.dimms = dimm_parts(self.memory_profile) if self.memory_profile else []
        self.processors: list[Json] = profile.get("processors", [])
        self.devices: list[Json] = profile.get("pcie_devices", [])
        self.ports: list[Json] = profile.get("ethernet", [])
        system = self.paths.system
        service.system_links.update(self.links(system))

    def links(self, system: str) -> Json:
        """Return what the system resource says of its parts."""
        present = [one for one in self.dimms if one.get("State", "Enabled") != "Absent"]
        cores = sum(one.get("TotalCores", 0) for one in self.processors)
        threads = sum(one.get("TotalThreads", 0) for one in self.processors)
        found: Json = {
            "Processors": link(f"{system}/Processors"),
            "ProcessorSummary": {
                "Count": len(self.processors),
                "CoreCount": cores,
                "LogicalProcessorCount": threads,
                "Model": self.processors[0].get("Model") if self.processors else None,
                "Status": {"State": "Enabled", "Health": "OK", "HealthRollup": "OK"},
            },
            "Memory": link(f"{system}/Memory"),
            "MemorySummary": {
                "TotalSystemMemoryGiB": sum(one["CapacityMiB"] for one in present) / 1024,
                "Status": {"State": "Enabled", "Health": "OK", "HealthRollup": "OK"},
            },
            "PCIeDevices": [link(f"{system}/PCIeDevices/{one['Id']}") for one in self.devices],
            "EthernetInterfaces": link(f"{system}/EthernetInterfaces"),
        }
        return found

    def resources(self) -> dict[str, Resource]:
        """Return the resources by URI."""
        system = self.paths.system
        table: dict[str, Resource] = {}

        def add(name: str, kind: str, members: dict[str, Getter]) -> None:
            base = f"{system}/{name}"
            uris = [f"{base}/{identity}" for identity in members]
            table[base] = Resource(get=partial(collection, base, kind, name, uris))
            table.update({f"{base}/{identity}": Resource(get=getter) for identity, getter in members.items()})

        add("Processors", "Processor", {one["Id"]: partial(self.processor, one) for one in self.processors})
        dimms = enumerate(self.dimms)
        add("Memory", "Memory", {self.dimm_id(one, index): partial(self.dimm, one, index) for index, one in dimms})
        add("PCIeDevices", "PCIeDevice", {one["Id"]: partial(self.device, one) for one in self.devices})
        add("EthernetInterfaces", "EthernetInterface", {one["Id"]: partial(self.port, one) for one in self.ports})
        for device in self.devices:
            name = f"PCIeDevices/{device['Id']}/PCIeFunctions"
            functions = device.get("functions", [])
            add(
                name,
                "PCIeFunction",
                {one["Id"]: partial(self.function, f"{system}/{name}/{one['Id']}", one) for one in functions},
            )
        return table

    def processor(self, part: Json) -> Json:
        """Return a Processor."""
        return {
            "@odata.id": f"{self.paths.system}/Processors/{part['Id']}",
            "@odata.type": "#Processor.v1_18_0.Processor",
            "Name": part.get("Socket", part["Id"]),
            "ProcessorType": "CPU",
            "Status": _status(part),
            **part,
        }

    @staticmethod
    def dimm_id(part: Json, index: int) -> str:
        """Return the id of a slot: its locator where that makes a URI, else its number."""
        text = str(part["DeviceLocator"])
        return text if text.replace("_", "").replace("-", "").replace(".", "").isalnum() else f"DIMM{index}"

    def speed(self, part: Json) -> int | None:
        """Return the configured speed (MT/s): the rated one, held down by a BIOS setting where the profile names it."""
        rated: int | None = part.get("OperatingSpeedMhz")
        limit = self.memory_profile.get("speed_attribute")
        if rated is None or limit is None:
            return rated
        chosen = limit["values"].get(str(self.service.bios.active.get(limit["name"])))
        return rated if chosen is None else min(rated, chosen)

    def dimm(self, part: Json, index: int) -> Json:
        """Return a Memory resource."""
        identity = self.dimm_id(part, index)
        body = {
            "@odata.id": f"{self.paths.system}/Memory/{identity}",
            "@odata.type": "#Memory.v1_19_0.Memory",
            "Id": identity,
            "Name": part["DeviceLocator"],
            **{key: value for key, value in part.items() if key not in ("State", "Health")},
        }
        if part.get("State", "Enabled") == "Absent":
            return {**body, "Status": {"State": "Absent", "Health": None}}
        return {**body, "OperatingSpeedMhz": self.speed(part), "Status": _status(part)}

    def device(self, part: Json) -> Json:
        """Return a PCIeDevice."""
        uri = f"{self.paths.system}/PCIeDevices/{part['Id']}"
        return {
            "@odata.id": uri,
            "@odata.type": "#PCIeDevice.v1_13_0.PCIeDevice",
            "Status": _status(part),
            **{key: value for key, value in part.items() if key not in ("functions", "State", "Health")},
            "PCIeFunctions": link(f"{uri}/PCIeFunctions"),
        }

    @staticmethod
    def function(uri: str, part: Json) -> Json:
        """Return a PCIeFunction."""
        return {
            "@odata.id": uri,
            "@odata.type": "#PCIeFunction.v1_5_0.PCIeFunction",
            "Name": f"Function {part['Id']}",
            "FunctionType": "Physical",
            "Status": _status(part),
            **part,
        }

    def port(self, part: Json) -> Json:
        """Return an EthernetInterface."""
        return {
            "@odata.id": f"{self.paths.system}/EthernetInterfaces/{part['Id']}",
            "@odata.type": "#EthernetInterface.v1_12_1.EthernetInterface",
            "Name": part["Id"],
            "Status": _status(part),
            "LinkStatus": "LinkUp",
            **part,
        }
