"""Sensors over Redfish: the classic resources (Thermal, Power) and the modern ones (Sensors, ThermalSubsystem, PowerSubsystem,
EnvironmentMetrics), whichever a chassis has. One form comes out; see `bmc_sensors`."""

from __future__ import annotations

import re
from typing import Any

from .bmc_sensors import Json, kind_of, sensor, unit_of, with_labels, worst
from .redfish_client import RedfishClient
from .redfish_document import address, items, mapping, text

_CLASSIC_LIMITS = {
    "lower_fatal": "LowerThresholdFatal",
    "lower_critical": "LowerThresholdCritical",
    "lower_warning": "LowerThresholdNonCritical",
    "upper_warning": "UpperThresholdNonCritical",
    "upper_critical": "UpperThresholdCritical",
    "upper_fatal": "UpperThresholdFatal",
}
_MODERN_LIMITS = {
    "lower_fatal": "LowerFatal",
    "lower_critical": "LowerCritical",
    "lower_warning": "LowerCaution",
    "upper_warning": "UpperCaution",
    "upper_critical": "UpperCritical",
    "upper_fatal": "UpperFatal",
}
_KINDS = {
    "temperature": "temperature",
    "rotational": "fan",
    "power": "power",
    "voltage": "voltage",
    "current": "current",
    "humidity": "humidity",
    "airflow": "airflow",
    "energyjoules": "energy",
    "energykwh": "energy",
    "energywh": "energy",
    "percent": "utilization",
}
_STATES = {
    "absent": "absent",
    "disabled": "disabled",
    "unavailableoffline": "unavailable",
    "standbyoffline": "unavailable",
}
_HEALTHS = {"ok": "ok", "warning": "warning", "critical": "critical"}
_LINE_STATUS = {"lossofinput": "critical", "outofrange": "warning"}


def read_sensors(client: RedfishClient, chassis: list[Json]) -> list[Json]:
    """All sensors of some chassis, each once."""
    found: list[Json] = []
    for one in chassis:
        found += _of_chassis(client, one)
    return with_labels(_without_repeats(found))


def chassis_of(client: RedfishClient, system: Json) -> list[Json]:
    """The chassis of a system, and what they contain; every chassis where the BMC has but one system (GPU trays are not linked)."""
    single = len(items(client.get_optional(address(client.root, "Systems")), "Members")) < 2
    links = [address(one) for one in items(mapping(system, "Links"), "Chassis")]
    if single or not links:
        listed = items(client.get_optional(address(client.root, "Chassis")), "Members")
        links += [address(one) for one in listed]
    found: dict[str, Json] = {}
    while links:
        uri = links.pop(0).rstrip("/")
        if not uri or uri.lower() in found:
            continue
        document = client.get_optional(uri)
        found[uri.lower()] = document
        links += [address(one) for one in items(mapping(document, "Links"), "Contains")]
    return [document for document in found.values() if document]


def _of_chassis(client: RedfishClient, chassis: Json) -> list[Json]:
    where = text(chassis, "Id")
    thermal = client.get_optional(address(chassis, "Thermal"))
    power = client.get_optional(address(chassis, "Power"))
    found = _thermal(thermal, where) + _power(power, where)
    if thermal and power:
        return found
    measured = [_modern(one, where) for one in client.members(address(chassis, "Sensors"))]
    known = {one["id"].rstrip("/").lower(): one for one in measured}
    if not thermal:
        cooling = client.get_optional(address(chassis, "ThermalSubsystem"))
        found += _fans(client, cooling, where, known)
        found += _redundancies(items(cooling, "FanRedundancy"), "Fan redundancy", where)
    if not power:
        supplies = client.get_optional(address(chassis, "PowerSubsystem"))
        found += _supplies(client, supplies, where)
        found += _redundancies(items(supplies, "PowerSupplyRedundancy"), "Power supply redundancy", where)
        found += _environment(client, chassis, where, known)
    classic = {"temperature", "fan"} if thermal else {"power", "voltage"} if power else set()
    return [one for one in measured if one["kind"] not in classic] + found


def _without_repeats(sensors: list[Json]) -> list[Json]:
    """A sensor that two chassis list is one."""
    seen: dict[str, Json] = {}
    for index, one in enumerate(sensors):
        seen.setdefault(one["id"].rstrip("/").lower() or str(index), one)
    return list(seen.values())


def _state(document: Json, reading: Any, *, measures: bool = True) -> str:
    """The state of a sensor. One that is said to be enabled, and has no reading, is dead."""
    said = text(mapping(document, "Status"), "State").lower()
    if said in _STATES:
        return _STATES[said]
    if not measures or (isinstance(reading, (int, float)) and not isinstance(reading, bool)):
        return "enabled"
    return "dead" if said == "enabled" else "no_reading"


def _health(document: Json) -> str:
    return _HEALTHS.get(text(mapping(document, "Status"), "Health").lower(), "unknown")


def _identity(document: Json, fallback: str) -> str:
    return address(document) or fallback


def _classic(document: Json, unit: str, reading: Any, identity: str, where: str) -> Json:
    kind = kind_of("fan", unit)
    name = text(document, "Name", "FanName", "MemberId") or identity
    limits = {level: document.get(key) for level, key in _CLASSIC_LIMITS.items()}
    more: Json = {
        "id": _identity(document, identity),
        "context": text(document, "PhysicalContext") or where,
        "source": "redfish",
    }
    return sensor(name, kind, unit, reading, limits, state=_state(document, reading), health=_health(document), **more)


def _thermal(thermal: Json, where: str) -> list[Json]:
    found = [
        _classic(one, "celsius", one.get("ReadingCelsius"), f"{where}/Temperatures/{index}", where)
        for index, one in enumerate(items(thermal, "Temperatures"))
    ]
    for index, one in enumerate(items(thermal, "Fans")):
        unit = "percent" if text(one, "ReadingUnits").lower().startswith("percent") else "revolutions_per_minute"
        # Older schemas say ReadingRPM.
        reading = one.get("Reading", one.get("ReadingRPM"))
        found.append(_classic(one, unit, reading, f"{where}/Fans/{index}", where))
    return found + _redundancies(items(thermal, "Redundancy"), "Fan redundancy", where)


def _power(power: Json, where: str) -> list[Json]:
    found = [
        _classic(one, "watts", one.get("PowerConsumedWatts"), f"{where}/PowerControl/{index}", where)
        for index, one in enumerate(items(power, "PowerControl"))
    ]
    found += [
        _supply(one, None, f"{where}/PowerSupplies/{index}", where)
        for index, one in enumerate(items(power, "PowerSupplies"))
    ]
    found += [
        _classic(one, "volts", one.get("ReadingVolts"), f"{where}/Voltages/{index}", where)
        for index, one in enumerate(items(power, "Voltages"))
    ]
    return found + _redundancies(items(power, "Redundancy"), "Power supply redundancy", where)


def _supply(document: Json, watts: Any, identity: str, where: str) -> Json:
    """A power supply: its reading is the power that it draws, where it tells; a failure shows in its health and its line."""
    if watts is None:
        watts = next(
            (document[key] for key in ("PowerInputWatts", "LastPowerOutputWatts") if document.get(key) is not None),
            None,
        )
    line = text(document, "LineInputStatus")
    health = worst(_health(document), _LINE_STATUS.get(line.lower(), "unknown"))
    state = _state(document, watts, measures=False)
    name = text(document, "Name", "MemberId", "Id") or identity
    more: Json = {"id": _identity(document, identity), "context": where, "source": "redfish"}
    return sensor(name, "power_supply", "watts", watts, state=state, health=health, text=_words(document, line), **more)


def _words(document: Json, line: str = "") -> str:
    """The states of a part, and what the BMC says about them, as text."""
    status = mapping(document, "Status")
    state = text(status, "State")
    said = ["" if state == "Enabled" else state, text(status, "Health"), line]
    said += [text(one, "Message") for one in items(status, "Conditions")]
    return ", ".join(dict.fromkeys(one for one in said if one))


def _redundancies(groups: list[Json], name: str, where: str) -> list[Json]:
    found = []
    for index, one in enumerate(groups):
        health = _health(one)
        state = _state(one, None, measures=False)
        if health == "unknown" and state == "enabled":
            continue
        more: Json = {
            "id": _identity(one, f"{where}/{name}/{index}"),
            "context": where,
            "text": _words(one),
            "source": "redfish",
        }
        found.append(sensor(text(one, "Name") or name, "redundancy", state=state, health=health, **more))
    return found


def _modern(document: Json, where: str) -> Json:
    """A Sensor resource."""
    limits = {level: mapping(document, "Thresholds", key).get("Reading") for level, key in _MODERN_LIMITS.items()}
    reading = document.get("Reading")
    name = text(document, "Name", "Id")
    unit = unit_of(text(document, "ReadingUnits"))
    kind = _KINDS.get(text(document, "ReadingType").lower()) or kind_of(name, unit)
    if kind == "utilization" and re.search(r"fan|pwm|tach", name, re.I):
        kind = "fan"
    identity = _identity(document, f"{where}/Sensors/{text(document, 'Id')}")
    more: Json = {"id": identity, "context": text(document, "PhysicalContext") or where, "source": "redfish"}
    return sensor(name, kind, unit, reading, limits, state=_state(document, reading), health=_health(document), **more)


def _excerpt(document: Json, name: str) -> tuple[Any, str]:
    """The reading and the source of a sensor excerpt such as `"PowerWatts": {"Reading": 374, "DataSourceUri": ...}`."""
    part = mapping(document, name)
    return part.get("Reading"), text(part, "DataSourceUri").rstrip("/").lower()


def _fans(client: RedfishClient, cooling: Json, where: str, known: dict[str, Json]) -> list[Json]:
    """Fan resources. The health of a fan goes to its sensor where that is listed; else the fan is a sensor of its own."""
    found = []
    for one in client.members(address(cooling, "Fans")):
        percent, source = _excerpt(one, "SpeedPercent")
        turns = mapping(one, "SpeedPercent").get("SpeedRPM")
        if source in known:
            known[source]["health"] = worst(known[source]["health"], _health(one))
            continue
        unit, reading = ("revolutions_per_minute", turns) if turns is not None else ("percent", percent)
        name = text(one, "Name", "Id")
        # A fan that tells no speed has no sensor: what counts is its health.
        state = _state(one, reading, measures=bool(mapping(one, "SpeedPercent")))
        more: Json = {"id": address(one), "context": text(one, "PhysicalContext") or where, "source": "redfish"}
        found.append(sensor(name, "fan", unit, reading, state=state, health=_health(one), text=_words(one), **more))
    return found


def _supplies(client: RedfishClient, supplies: Json, where: str) -> list[Json]:
    found = []
    for one in client.members(address(supplies, "PowerSupplies")):
        metrics = client.get_optional(address(one, "Metrics"))
        found.append(
            _supply(one, _excerpt(metrics, "InputPowerWatts")[0], f"{where}/PowerSupplies/{text(one, 'Id')}", where)
        )
    return found


def _environment(client: RedfishClient, chassis: Json, where: str, known: dict[str, Json]) -> list[Json]:
    """The power of the chassis as a whole, where no sensor in the list is its source."""
    metrics = client.get_optional(address(chassis, "EnvironmentMetrics"))
    watts, source = _excerpt(metrics, "PowerWatts")
    if watts is None or source in known:
        return []
    more: Json = {"id": f"{address(metrics)}#/PowerWatts", "context": where, "source": "redfish"}
    return [sensor("Chassis power", "power", "watts", watts, health="unknown", **more)]
