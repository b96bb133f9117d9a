"""What a BMC knows of its machine, in one form for all vendors: system, memory, PCIe devices, firmware (sensors: `bmc_redfish_sensors`).

Every function takes a logged-in client and returns plain data. A part that a BMC does not serve comes back empty; what it does
not know of a part is None, never a guess. Units are in the names.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite
from typing import Any

from .firmware_staged import staged_for
from .redfish_client import RedfishClient, link
from .redfish_document import address, items, mapping

Json = dict[str, Any]
_MIB = 1024 * 1024
_GIB = 1024 * _MIB


def _number(value: Any) -> float | None:
    # Python's JSON knows Infinity, and takes 1e999 for it.
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value) else None


def _status(document: Json, key: str) -> str:
    status = document.get("Status")
    return str(status.get(key) or "") if isinstance(status, dict) else ""


def _text(document: Json, *keys: str) -> str:
    for key in keys:
        if document.get(key) is not None:
            return str(document[key]).strip()
    return ""


def system_summary(client: RedfishClient, system: Json) -> Json:
    """Maker, model, power and POST state, BIOS version, and the BMC's own version."""
    memory, processors = mapping(system, "MemorySummary"), mapping(system, "ProcessorSummary")
    total_gib = _number(memory.get("TotalSystemMemoryGiB"))
    return {
        "id": _text(system, "Id"),
        "uri": _text(system, "@odata.id"),
        "manufacturer": _text(system, "Manufacturer"),
        "model": _text(system, "Model"),
        "sku": _text(system, "SKU"),
        "serial_number": _text(system, "SerialNumber"),
        "host_name": _text(system, "HostName"),
        "power_state": _text(system, "PowerState"),
        "boot_state": _text(mapping(system, "BootProgress"), "LastState"),
        "health": _status(system, "HealthRollup") or _status(system, "Health"),
        "bios_version": _text(system, "BiosVersion"),
        "processors": processors.get("Count"),
        "processor_model": _text(processors, "Model"),
        "memory_total_bytes": None if total_gib is None else int(total_gib * _GIB),
        "bmc": manager_summary(client),
    }


def manager_summary(client: RedfishClient) -> Json:
    """The BMC itself: model and firmware version; the first manager that says what it runs."""
    for manager in client.members(link(client.root, "Managers")):
        if manager.get("FirmwareVersion"):
            return {
                "id": _text(manager, "Id"),
                "model": _text(manager, "Model"),
                "firmware_version": _text(manager, "FirmwareVersion"),
                "health": _status(manager, "Health"),
            }
    return {}


def memory_modules(client: RedfishClient, system: Json) -> list[Json]:
    """One entry for every DIMM slot that the BMC lists; an empty slot has `present: false`.

    Redfish's `OperatingSpeedMhz` and `AllowedSpeedsMHz` hold transfer rates in MT/s.
    """
    result = []
    for module in client.members(link(system, "Memory")):
        place = mapping(module, "MemoryLocation")
        speeds = module.get("AllowedSpeedsMHz")
        allowed = [speed for speed in speeds if _number(speed)] if isinstance(speeds, list) else []
        capacity = _number(module.get("CapacityMiB"))
        absent = _status(module, "State") == "Absent" or capacity == 0
        result.append(
            {
                "id": _text(module, "Id"),
                "locator": _text(module, "DeviceLocator", "Name"),
                "present": not absent,
                "capacity_bytes": None if capacity is None else int(capacity * _MIB),
                "type": _text(module, "MemoryDeviceType"),
                "configured_mts": _number(module.get("OperatingSpeedMhz")),
                "rated_mts": max(allowed) if allowed else None,
                "data_width_bits": _number(module.get("DataWidthBits")),
                "rank_count": _number(module.get("RankCount")),
                "manufacturer": _text(module, "Manufacturer"),
                "part_number": _text(module, "PartNumber"),
                "serial_number": _text(module, "SerialNumber"),
                "socket": place.get("Socket"),
                "controller": place.get("MemoryController"),
                "channel": place.get("Channel"),
                "slot": place.get("Slot"),
                "state": _status(module, "State"),
                "health": _status(module, "Health"),
            }
        )
    return result


def _devices(client: RedfishClient, system: Json) -> Iterable[Json]:
    uris = dict.fromkeys(uri for uri in map(address, items(system, "PCIeDevices")) if uri)
    if uris:
        yield from (document for document in map(client.get_optional, uris) if document)
        return
    for chassis in _chassis(client, system):
        yield from client.members(link(chassis, "PCIeDevices"))


def pcie_devices(client: RedfishClient, system: Json) -> list[Json]:
    """The PCIe devices with the link that the BMC sees: `pcie_type` is the present generation, `max_pcie_type` the highest."""
    result = []
    for device in _devices(client, system):
        interface = mapping(device, "PCIeInterface")
        result.append(
            {
                "id": _text(device, "Id"),
                "name": _text(device, "Name"),
                "manufacturer": _text(device, "Manufacturer"),
                "model": _text(device, "Model"),
                "part_number": _text(device, "PartNumber"),
                "device_type": _text(device, "DeviceType"),
                "firmware_version": _text(device, "FirmwareVersion"),
                "pcie_type": _text(interface, "PCIeType"),
                "max_pcie_type": _text(interface, "MaxPCIeType"),
                "lanes": _number(interface.get("LanesInUse")),
                "max_lanes": _number(interface.get("MaxLanes")),
                "state": _status(device, "State"),
                "health": _status(device, "Health"),
            }
        )
    return result


def _chassis(client: RedfishClient, system: Json) -> list[Json]:
    uris = [uri for uri in map(address, items(mapping(system, "Links"), "Chassis")) if uri]
    if uris:
        return [document for document in map(client.get_optional, uris) if document]
    return client.members(link(client.root, "Chassis"))


def firmware_components(client: RedfishClient, system: Json) -> list[Json]:
    """All components of the firmware inventory; BIOS and BMC from their own resources where the inventory lacks them.

    `staged_version` is what the inventory shows as lying ready for a component, empty where it shows nothing. `related` holds the
    URIs of the resources that the firmware belongs to.
    """
    service = client.get_optional(link(client.root, "UpdateService"))
    result: list[Json] = []
    staged: dict[str, str] = {}
    for item in client.members(link(service, "FirmwareInventory")):
        identity = _text(item, "Id")
        # Dell lists what it could go back to, and what was uploaded, beside what is installed.
        if identity.startswith(("Previous-", "Available-")):
            continue
        owner = staged_for(identity)
        if owner:
            staged[owner.lower()] = _text(item, "Version")
            continue
        result.append(
            {
                "id": identity,
                "name": _text(item, "Name", "Id"),
                "version": _text(item, "Version"),
                "updateable": bool(item.get("Updateable")),
                "health": _status(item, "Health"),
                "source": _text(item, "@odata.id"),
                "related": [_text(one, "@odata.id") for one in items(item, "RelatedItem")],
            }
        )
    known = {str(entry[key]).lower() for entry in result for key in ("id", "name")}
    extra = {"BIOS": _text(system, "BiosVersion"), "BMC": manager_summary(client).get("firmware_version", "")}
    for name, version in extra.items():
        if version and name.lower() not in known:
            part = {"id": name, "name": name, "version": version, "updateable": False, "health": "", "source": "system"}
            result.append({**part, "related": []})
    return [{**entry, "staged_version": staged.get(str(entry["id"]).lower(), "")} for entry in result]
