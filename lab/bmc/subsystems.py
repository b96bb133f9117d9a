"""The modern view of a chassis: ThermalSubsystem, PowerSubsystem and EnvironmentMetrics, whose readings are excerpts of its Sensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from .rest import Resource, collection, link

if TYPE_CHECKING:
    from .service import Service

Json = dict[str, Any]
_FULL_SPEED_RPM = 20000
_EFFICIENCY = 0.94


class Subsystems:
    """The handlers of the subsystems of one chassis. `supply_state` gives the Status and the watts of a power supply."""

    def __init__(
        self, service: Service, supply_state: Callable[[int, float | None], tuple[Json, float | None]]
    ) -> None:
        """Use the sensors of the service."""
        self.sensors = service.sensors
        self.supply_state = supply_state
        self.supplies: list[Json] = service.profile.get("power_supplies", [])
        base = service.paths.chassis
        self.base = base
        self.thermal, self.power = f"{base}/ThermalSubsystem", f"{base}/PowerSubsystem"
        self.fans = self.sensors.of_type("Rotational")

    def links(self) -> Json:
        """Return what the Chassis links to."""
        return {
            name: link(f"{self.base}/{name}") for name in ("ThermalSubsystem", "PowerSubsystem", "EnvironmentMetrics")
        }

    def resources(self) -> dict[str, Resource]:
        """Return the resources by URI."""
        fans, supplies = f"{self.thermal}/Fans", f"{self.power}/PowerSupplies"
        fan_uris = [f"{fans}/{one['id']}" for one in self.fans]
        supply_uris = [f"{supplies}/{index}" for index in range(len(self.supplies))]
        table = {
            self.thermal: Resource(get=self.thermal_subsystem),
            f"{self.thermal}/ThermalMetrics": Resource(get=self.thermal_metrics),
            fans: Resource(get=lambda: collection(fans, "Fan", "Fans", fan_uris)),
            self.power: Resource(get=self.power_subsystem),
            supplies: Resource(get=lambda: collection(supplies, "PowerSupply", "Power supplies", supply_uris)),
            f"{self.base}/EnvironmentMetrics": Resource(get=self.environment),
        }
        for part, uri in zip(self.fans, fan_uris, strict=True):
            table[uri] = Resource(get=partial(self.fan, part, uri))
        for index, uri in enumerate(supply_uris):
            table[uri] = Resource(get=partial(self.supply, index, uri))
            table[f"{uri}/Metrics"] = Resource(get=partial(self.supply_metrics, index, uri))
        return table

    def _excerpt(self, part: Json) -> Json:
        return {"DataSourceUri": f"{self.base}/Sensors/{part['id']}", "Reading": self.sensors.reading(part)}

    def _total(self) -> Json | None:
        return next((one for one in self.sensors.of_type("Power") if one.get("total")), None)

    def _consumed(self) -> float | None:
        total = self._total()
        return None if total is None else self.sensors.reading(total)

    def thermal_subsystem(self) -> Json:
        """Return the ThermalSubsystem."""
        return {
            "@odata.id": self.thermal,
            "@odata.type": "#ThermalSubsystem.v1_3_0.ThermalSubsystem",
            "Id": "ThermalSubsystem",
            "Name": "Thermal Subsystem",
            "Fans": link(f"{self.thermal}/Fans"),
            "ThermalMetrics": link(f"{self.thermal}/ThermalMetrics"),
            "Status": {"State": "Enabled", "Health": "OK"},
        }

    def thermal_metrics(self) -> Json:
        """Return the ThermalMetrics."""
        return {
            "@odata.id": f"{self.thermal}/ThermalMetrics",
            "@odata.type": "#ThermalMetrics.v1_3_0.ThermalMetrics",
            "Id": "ThermalMetrics",
            "Name": "Thermal Metrics",
            "TemperatureReadingsCelsius": [
                {**self._excerpt(part), "DeviceName": part["name"]} for part in self.sensors.of_type("Temperature")
            ],
        }

    def fan(self, part: Json, uri: str) -> Json:
        """Return a Fan."""
        turns = self.sensors.reading(part)
        percent = None if turns is None else round(100 * turns / _FULL_SPEED_RPM)
        return {
            "@odata.id": uri,
            "@odata.type": "#Fan.v1_5_0.Fan",
            "Id": part["id"],
            "Name": part["name"],
            "PhysicalContext": "Chassis",
            "SpeedPercent": {**self._excerpt(part), "Reading": percent, "SpeedRPM": turns},
            "Status": self.sensors.state(part, turns),
        }

    def power_subsystem(self) -> Json:
        """Return the PowerSubsystem."""
        present = [index for index, one in enumerate(self.supplies) if one.get("State") != "Absent"]
        lost = any(self.sensors.supply_lost(index) for index in present)
        group = {
            "RedundancyType": "NPlusM",
            "MinNeededInGroup": 1,
            "MaxSupportedInGroup": len(self.supplies),
            "RedundancyGroup": [link(f"{self.power}/PowerSupplies/{index}") for index in present],
            "Status": {"State": "Enabled", "Health": "Critical" if lost else "OK"},
        }
        return {
            "@odata.id": self.power,
            "@odata.type": "#PowerSubsystem.v1_1_2.PowerSubsystem",
            "Id": "PowerSubsystem",
            "Name": "Power Subsystem",
            "CapacityWatts": sum(self.supplies[index]["PowerCapacityWatts"] for index in present),
            "PowerSupplies": link(f"{self.power}/PowerSupplies"),
            "PowerSupplyRedundancy": [group] if len(present) > 1 else [],
            "Status": {"State": "Enabled", "Health": "OK"},
        }

    def supply(self, index: int, uri: str) -> Json:
        """Return a PowerSupply."""
        status = self.supply_state(index, self._consumed())[0]
        part = self.supplies[index]
        return {
            "@odata.id": uri,
            "@odata.type": "#PowerSupply.v1_6_0.PowerSupply",
            "Id": str(index),
            "Name": f"PSU{index}",
            **{key: value for key, value in part.items() if key not in ("State", "Health")},
            "LineInputStatus": "LossOfInput" if self.sensors.supply_lost(index) else "Normal",
            "Metrics": link(f"{uri}/Metrics"),
            "Status": status,
        }

    def supply_metrics(self, index: int, uri: str) -> Json:
        """Return the PowerSupplyMetrics."""
        output = self.supply_state(index, self._consumed())[1]
        return {
            "@odata.id": f"{uri}/Metrics",
            "@odata.type": "#PowerSupplyMetrics.v1_1_1.PowerSupplyMetrics",
            "Id": "Metrics",
            "Name": f"Metrics of PSU{index}",
            "OutputPowerWatts": {"Reading": output},
            "InputPowerWatts": {"Reading": None if output is None else round(output / _EFFICIENCY)},
            "Status": {"State": "Enabled", "Health": "OK"},
        }

    def environment(self) -> Json:
        """Return the EnvironmentMetrics."""
        total = self._total()
        intake = next((one for one in self.sensors.of_type("Temperature") if one.get("context") == "Intake"), None)
        return {
            "@odata.id": f"{self.base}/EnvironmentMetrics",
            "@odata.type": "#EnvironmentMetrics.v1_3_1.EnvironmentMetrics",
            "Id": "EnvironmentMetrics",
            "Name": "Chassis Environment Metrics",
            **({} if total is None else {"PowerWatts": self._excerpt(total)}),
            **({} if intake is None else {"TemperatureCelsius": self._excerpt(intake)}),
        }
