"""The chassis: Power, Thermal and Sensors, three views of the same readings; the modern subsystems are in subsystems.py.

The quirk `chassis` says which a firmware has: `classic` (Power, Thermal), `modern` (ThermalSubsystem, PowerSubsystem,
EnvironmentMetrics) or `both`. Sensors it always has.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from .messages import RedfishError, message
from .rest import Call, Reply, Resource, collection, link
from .sensors import UNITS, Sensors
from .subsystems import Subsystems

if TYPE_CHECKING:
    from .service import Service

Json = dict[str, Any]
_OLD_NAMES = {
    "UpperCaution": "UpperThresholdNonCritical",
    "UpperCritical": "UpperThresholdCritical",
    "LowerCaution": "LowerThresholdNonCritical",
    "LowerCritical": "LowerThresholdCritical",
}


def _old_thresholds(part: Json) -> Json:
    limits = part.get("thresholds", {})
    return {old: limits[new] for new, old in _OLD_NAMES.items() if new in limits}


class ChassisResources:
    """The handlers of one chassis."""

    def __init__(self, service: Service) -> None:
        """Use the sensors of the service."""
        self.service = service
        self.paths = service.paths
        self.sensors: Sensors = service.sensors
        self.supplies: list[Json] = service.profile.get("power_supplies", [])
        views = service.profile.quirks.get("chassis", "classic")
        self.classic = views in ("classic", "both")
        self.subsystems = Subsystems(service, self.supply_state) if views in ("modern", "both") else None

    def resources(self) -> dict[str, Resource]:
        """Return the resources by URI."""
        paths = self.paths
        base = f"{paths.chassis}/Sensors"
        table = {
            paths.chassis_all: Resource(
                get=lambda: collection(paths.chassis_all, "Chassis", "Chassis", [paths.chassis])
            ),
            paths.chassis: Resource(get=self.chassis, patch=self.patch_chassis),
            base: Resource(
                get=lambda: collection(base, "Sensor", "Sensors", [f"{base}/{one['id']}" for one in self.sensors.parts])
            ),
        }
        for part in self.sensors.parts:
            table[f"{base}/{part['id']}"] = Resource(get=partial(self.sensor, part))
        if self.classic:
            table[f"{paths.chassis}/Power"] = Resource(get=self.power)
            table[f"{paths.chassis}/Thermal"] = Resource(get=self.thermal)
        if self.subsystems is not None:
            table.update(self.subsystems.resources())
        return table

    def health(self) -> str:
        """Return the worst health of sensors and supplies."""
        lost = any(self.sensors.supply_lost(index) for index in range(len(self.supplies)))
        return "Critical" if lost else self.sensors.worst()

    def chassis(self) -> Json:
        """Return the Chassis."""
        paths, system = self.paths, self.service.profile.data["system"]
        known = ("Manufacturer", "Model", "SerialNumber", "PartNumber", "SKU")
        return {
            "@odata.id": paths.chassis,
            "@odata.type": "#Chassis.v1_25_0.Chassis",
            "Id": paths.ids["chassis"],
            "Name": "Computer System Chassis",
            "ChassisType": "RackMount",
            **{key: system[key] for key in known if key in system},
            "PowerState": "On" if self.service.power.state == "On" else "Off",
            "IndicatorLED": self.service.state.data.get("indicator_led", "Off"),
            "Status": {"State": "Enabled", "Health": self.health(), "HealthRollup": self.health()},
            **({name: link(f"{paths.chassis}/{name}") for name in ("Power", "Thermal")} if self.classic else {}),
            **({} if self.subsystems is None else self.subsystems.links()),
            "Sensors": link(f"{paths.chassis}/Sensors"),
            "Links": {"ComputerSystems": [link(paths.system)], "ManagedBy": [link(paths.manager)]},
        }

    def patch_chassis(self, call: Call) -> Reply:
        """Change the indicator."""
        allowed = ["Lit", "Blinking", "Off"]
        errors = []
        for name, value in call.body.items():
            if name != "IndicatorLED":
                errors.append(message("PropertyNotWritable", name, "it is informational", related=f"/{name}"))
            elif value not in allowed:
                errors.append(message("PropertyValueNotInList", value, name, ", ".join(allowed), related=f"/{name}"))
        if errors:
            raise RedfishError(400, *errors)
        self.service.state.data["indicator_led"] = call.body.get("IndicatorLED", "Off")
        self.service.state.save()
        return Reply(204)

    def sensor(self, part: Json) -> Json:
        """Return a Sensor."""
        reading = self.sensors.reading(part)
        return {
            "@odata.id": f"{self.paths.chassis}/Sensors/{part['id']}",
            "@odata.type": "#Sensor.v1_9_0.Sensor",
            "Id": part["id"],
            "Name": part["name"],
            "ReadingType": part["type"],
            "Reading": reading,
            "ReadingUnits": UNITS[part["type"]],
            "PhysicalContext": part.get("context", "SystemBoard"),
            "Thresholds": {name: {"Reading": value} for name, value in part.get("thresholds", {}).items()},
            "Status": self.sensors.state(part, reading),
        }

    def _member(self, resource: str, array: str, index: int, part: Json) -> tuple[Json, float | None]:
        reading = self.sensors.reading(part)
        return {
            "@odata.id": f"{self.paths.chassis}/{resource}#/{array}/{index}",
            "MemberId": str(index),
            "Name": part["name"],
            "PhysicalContext": part.get("context", "SystemBoard"),
            "Status": self.sensors.state(part, reading),
            **_old_thresholds(part),
        }, reading

    def thermal(self) -> Json:
        """Return Thermal: temperatures and fans."""
        temperatures, fans = [], []
        for index, part in enumerate(self.sensors.of_type("Temperature")):
            body, reading = self._member("Thermal", "Temperatures", index, part)
            temperatures.append({**body, "SensorNumber": index + 1, "ReadingCelsius": reading})
        for index, part in enumerate(self.sensors.of_type("Rotational")):
            body, reading = self._member("Thermal", "Fans", index, part)
            speed = None if reading is None else int(reading)
            fans.append({**body, "FanName": part["name"], "Reading": speed, "ReadingUnits": "RPM"})
        return {
            "@odata.id": f"{self.paths.chassis}/Thermal",
            "@odata.type": "#Thermal.v1_7_3.Thermal",
            "Id": "Thermal",
            "Name": "Thermal",
            "Temperatures": temperatures,
            "Fans": fans,
        }

    def power(self) -> Json:
        """Return Power: consumption, supplies, voltages."""
        total = next((one for one in self.sensors.of_type("Power") if one.get("total")), None)
        consumed = None if total is None else self.sensors.reading(total)
        capacity = sum(one["PowerCapacityWatts"] for one in self.supplies if one.get("State") != "Absent")
        voltages = []
        for index, part in enumerate(self.sensors.of_type("Voltage")):
            body, reading = self._member("Power", "Voltages", index, part)
            voltages.append({**body, "SensorNumber": index + 100, "ReadingVolts": reading})
        uri = f"{self.paths.chassis}/Power"
        return {
            "@odata.id": uri,
            "@odata.type": "#Power.v1_7_3.Power",
            "Id": "Power",
            "Name": "Power",
            "PowerControl": [
                {
                    "@odata.id": f"{uri}#/PowerControl/0",
                    "MemberId": "0",
                    "Name": "System Power Control",
                    "PowerConsumedWatts": consumed,
                    "PowerCapacityWatts": capacity,
                    "PowerLimit": {"LimitInWatts": None, "LimitException": "NoAction"},
                    "Status": {"State": "Enabled", "Health": "OK"},
                }
            ],
            "PowerSupplies": [self._supply(uri, index, part, consumed) for index, part in enumerate(self.supplies)],
            "Redundancy": self._redundancy(uri),
            "Voltages": voltages,
        }

    def _present(self) -> list[int]:
        return [index for index, one in enumerate(self.supplies) if one.get("State") != "Absent"]

    def _redundancy(self, uri: str) -> list[Json]:
        present = self._present()
        if len(present) < 2:
            return []
        lost = any(self.sensors.supply_lost(index) for index in present)
        return [
            {
                "@odata.id": f"{uri}#/Redundancy/0",
                "MemberId": "0",
                "Name": "PowerSupply Redundancy",
                "Mode": "N+m",
                "MinNumNeeded": 1,
                "MaxNumSupported": len(self.supplies),
                "RedundancySet": [link(f"{uri}#/PowerSupplies/{index}") for index in present],
                "Status": {"State": "Enabled", "Health": "Critical" if lost else "OK"},
            }
        ]

    def supply_state(self, index: int, consumed: float | None) -> tuple[Json, float | None]:
        """Return the Status of a power supply, and the watts that it delivers."""
        part = self.supplies[index]
        if part.get("State") == "Absent":
            return {"State": "Absent", "Health": None}, None
        if self.sensors.supply_lost(index):
            return {"State": "UnavailableOffline", "Health": "Critical"}, 0.0
        feeding = [one for one in self._present() if not self.sensors.supply_lost(one)]
        share = None if consumed is None else float(round(consumed / len(feeding)))
        return {"State": part.get("State", "Enabled"), "Health": part.get("Health", "OK")}, share

    def _supply(self, uri: str, index: int, part: Json, consumed: float | None) -> Json:
        status, share = self.supply_state(index, consumed)
        absent, lost = status["State"] == "Absent", self.sensors.supply_lost(index)
        return {
            "@odata.id": f"{uri}#/PowerSupplies/{index}",
            "MemberId": str(index),
            "Name": f"PSU{index}",
            **{key: value for key, value in part.items() if key not in ("State", "Health")},
            "LineInputVoltage": None if absent else 0 if lost else 230,
            "LastPowerOutputWatts": share,
            "PowerInputWatts": None if share is None else round(share / 0.94),
            "Status": status,
        }
