"""The sensors of a machine in a few figures: the hottest, the power, the supplies, and those that say nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from .loose import mapping, mappings, number, words

_SUPPLY = re.compile(r"\b(?:psu|ps|power[ _-]?supply)[ _-]?(\d+)", re.IGNORECASE)
_NOT_OF_A_SUPPLY = ("temperature", "fan")
_GRADES = {"": 0, "unknown": 0, "ok": 1, "good": 1, "nominal": 1, "warning": 2, "critical": 3}
_ABSENT = frozenset({"absent", "disabled", "unavailable", "unavailableoffline", "standbyspare"})
_MOST = 16  # supplies, and sensors that are not well, that are named


def sensor_summary(bmc: Mapping[str, Any], sensors: Mapping[str, Any]) -> dict[str, Any]:
    """Return `available`, `reason`, `hottest`, `power_watts`, `supplies`, `count`, `silent` and `unwell`.

    Takes what `bmc_sensors_info` found where there is such, else the sensors of `redfish_info`. A sensor without a reading that
    should have one is counted in `silent`; it has no value.
    """
    readings = [_reading(sensor) for sensor in mappings(sensors.get("sensors")) or mappings(bmc.get("sensors"))]
    # A power supply without its line is called unavailable, and is critical all the same.
    readings = [reading for reading in readings if reading["state"] not in _ABSENT or reading["grade"] > 1]
    if not readings:
        return {
            "available": False,
            "reason": words(sensors.get("reason")) or words(bmc.get("reason")) or "no sensor was read",
        }
    measuring = [reading for reading in readings if reading["unit"] or reading["value"] is not None]
    known = [reading for reading in measuring if reading["value"] is not None]
    return {
        "available": True,
        "reason": None,
        "hottest": _hottest(known),
        "power_watts": _power(known),
        "supplies": _supplies(readings)[:_MOST],
        "count": len(measuring),
        "silent": len(measuring) - len(known),
        "unwell": [reading["name"] for reading in readings if reading["grade"] > 1][:_MOST],
    }


def _reading(sensor: Mapping[str, Any]) -> dict[str, Any]:
    """One form for both: `reading_celsius` and `thresholds_celsius`, or `value` and `upper_critical`."""
    unit = words(sensor.get("unit"))
    thresholds = mapping(sensor.get(f"thresholds_{unit}")) or sensor
    limits = (number(thresholds.get(f"upper_{grade}")) for grade in ("critical", "fatal", "warning"))
    reading = sensor.get(f"reading_{unit}")
    health = words(sensor.get("health")).lower()
    return {
        "name": words(sensor.get("label")) or words(sensor.get("name")),
        "kind": words(sensor.get("kind")).lower(),
        "unit": unit,
        "value": number(reading if reading is not None else sensor.get("value")),
        "limit": next((limit for limit in limits if limit is not None), None),
        "state": words(sensor.get("state")).lower(),
        "health": health,
        "grade": _GRADES.get(health, 2),
    }


def _hottest(readings: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The temperature nearest to its limit where limits are known, else the highest."""
    hot = [reading for reading in readings if reading["kind"] == "temperature"]
    if not hot:
        return None
    # A limit of 0 is that of a margin to the throttling point, which is no temperature.
    bounded = [reading for reading in hot if reading["limit"] is not None and reading["limit"] > 0]
    if bounded:
        found = min(bounded, key=lambda reading: reading["limit"] - reading["value"])
    else:
        found = max(hot, key=lambda reading: reading["value"])
    return {"name": found["name"], "celsius": found["value"], "limit_celsius": found["limit"]}


def _power(readings: Sequence[Mapping[str, Any]]) -> float | None:
    """The whole is the largest figure that is no supply's; without one it is what the supplies take together."""
    power = [reading for reading in readings if reading["kind"] == "power"]
    others = [reading["value"] for reading in power if not _SUPPLY.search(reading["name"])]
    if others:
        return float(max(others))
    watts = [supply["watts"] for supply in _supplies(power) if supply["watts"] is not None]
    return sum(watts) if watts else None


def _supplies(readings: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each power supply with the worst health of its sensors, and its power: of input and output the larger, the input."""
    found: dict[str, dict[str, Any]] = {}
    for reading in readings:
        match = _SUPPLY.search(reading["name"])
        if not match or reading["kind"] in _NOT_OF_A_SUPPLY:
            continue
        supply = found.setdefault(match[1], {"name": f"PSU {match[1]}", "watts": None, "health": None, "grade": 0})
        if reading["kind"] in ("power", "power_supply") and reading["value"] is not None:
            supply["watts"] = max(reading["value"], supply["watts"] or 0.0)
        if reading["grade"] > supply["grade"]:
            supply["grade"], supply["health"] = reading["grade"], reading["health"]
    return [{key: supply[key] for key in ("name", "watts", "health")} for supply in found.values()]
