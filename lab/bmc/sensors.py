"""Sensor readings: they move plausibly, follow the power state, and are judged by their thresholds."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable
from typing import Any

from .faults import Fault

Json = dict[str, Any]
_PERIOD_SECONDS = 300.0
_SLOT_SECONDS = 2.0

UNITS = {"Temperature": "Cel", "Rotational": "{rev}/min", "Voltage": "V", "Power": "W", "Percent": "%"}
_DIGITS = {"Temperature": 0, "Rotational": 0, "Voltage": 2, "Power": 0, "Percent": 0}


def _unit_interval(text: str) -> float:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big") / float(1 << 48)


class Sensors:
    """All sensors of a chassis.

    A sensor of the profile has `id`, `name`, `type` (Temperature, Rotational, Voltage, Power), `base`, `swing`
    (amplitude of a slow wave), `noise`, `off` (the reading without power; null reads as no reading), `absent` (never
    has a reading), `context` and `thresholds` (UpperCaution, UpperCritical, LowerCaution, LowerCritical).
    """

    def __init__(
        self,
        parts: list[Json],
        powered: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
        faults: Callable[[], list[Fault]] = list,
    ) -> None:
        """Take the profile's sensors; `powered` says whether the host is on, `faults` which sensors and supplies are broken."""
        self.parts = parts
        self._powered = powered
        self._clock = clock
        self._faults = faults
        self.forced: Json = {}

    def _fault(self, kind: str, name: str, value: Any) -> Fault | None:
        return next((one for one in self._faults() if one.kind == kind and one.parameters[name] == value), None)

    def is_dead(self, part: Json) -> bool:
        """Whether a sensor gives no reading and says that it is enabled."""
        return self._fault("sensor_dead", "sensor", part["id"]) is not None

    def supply_lost(self, index: int) -> bool:
        """Whether a power supply has lost its line."""
        return self._fault("power_supply_lost", "index", index) is not None

    def of_type(self, kind: str) -> list[Json]:
        """Return the sensors of a type."""
        return [one for one in self.parts if one["type"] == kind]

    def reading(self, part: Json) -> float | None:
        """Return the present reading, in the sensor's unit."""
        identity = part["id"]
        if self.is_dead(part):
            return None
        fault = self._fault("sensor_reading", "sensor", identity)
        if fault is not None:
            return float(fault.parameters["reading"])
        if identity in self.forced:
            value = self.forced[identity]
            return None if value is None else float(value)
        if part.get("absent", False):
            return None
        if not self._powered() and "off" in part:
            value = part["off"]
            return None if value is None else float(value)
        moment = self._clock()
        phase = _unit_interval(identity) * 2 * math.pi
        wave = math.sin(2 * math.pi * moment / _PERIOD_SECONDS + phase)
        noise = 2 * _unit_interval(f"{identity}{int(moment / _SLOT_SECONDS)}") - 1
        value = part["base"] + part.get("swing", 0.0) * wave + part.get("noise", 0.0) * noise
        digits = _DIGITS.get(part["type"], 2)
        return float(round(value, digits)) if digits else float(round(value))

    def state(self, part: Json, reading: float | None) -> Json:
        """Return the Status of a sensor with this reading."""
        if self.is_dead(part):
            return {"State": "Enabled", "Health": None}
        if part.get("absent", False) and reading is None:
            return {"State": "Absent", "Health": None}
        if reading is None:
            return {"State": "UnavailableOffline", "Health": None}
        return {"State": "Enabled", "Health": self.health(part, reading)}

    @staticmethod
    def health(part: Json, reading: float) -> str:
        """Judge a reading."""
        limits = part.get("thresholds", {})

        def beyond(upper: str, lower: str) -> bool:
            high, low = limits.get(upper), limits.get(lower)
            return (high is not None and reading >= high) or (low is not None and reading <= low)

        if beyond("UpperCritical", "LowerCritical"):
            return "Critical"
        return "Warning" if beyond("UpperCaution", "LowerCaution") else "OK"

    def worst(self) -> str:
        """Return the worst health of all."""
        order = ("OK", "Warning", "Critical")
        found = [self.health(one, value) for one in self.parts if (value := self.reading(one)) is not None]
        return max(found, key=order.index, default="OK")
