"""Sensors from what `ipmitool` prints: `sensor` (with thresholds), `sdr list` and `sdr elist`.

Formats as ipmitool 1.8.11 to 1.8.19 print them under LC_ALL=C. Lines that are none of these are counted, never guessed at.
"""

from __future__ import annotations

import re
from typing import Any

from .bmc_sensors import kind_of, sensor, unit_of, with_labels

Json = dict[str, Any]

# The status column of `sdr` and `sensor`; `sdr elist` writes the side as well (`ucr`).
_HEALTH = {"ok": "ok", "nc": "warning", "cr": "critical", "nr": "critical"}
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?")
_READING = re.compile(rf"({_NUMBER.pattern})\s+(\S.*)")
_HEX = re.compile(r"0x[0-9a-fA-F]+")
_SENSOR_COLUMNS = ("lower_fatal", "lower_critical", "lower_warning", "upper_warning", "upper_critical", "upper_fatal")
_NONE = ("na", "no reading", "not readable", "disabled", "ns", "")
# States of discrete sensors that mean a failure (IPMI 2.0, tables 42-2 and 42-3, in ipmitool's words).
_CRITICAL = re.compile(
    r"failure detected|\bAC lost|input lost|redundancy lost|non-redundant: insufficient|thermal trip|\bIERR\b|"
    r"transition to (critical|non-recoverable)|\bcritical going|non-recoverable going|uncorrectable ECC|"
    r"drive fault|machine check|failed|bus fatal error",
    re.I,
)
_WARNING = re.compile(
    r"predictive failure|AC out-of-range|configuration error|redundancy degraded|non-redundant|intrusion|"
    r"transition to non-critical|non-critical going|limit exceeded|battery low|\bconfig.* err|throttled",
    re.I,
)
# A sensor that has but the states asserted and deasserted means a failure where its name does.
_NAMED_FAILURE = re.compile(r"\b(fail|fault|err|error|ierr|thermtrip|over temp|ac lost)\b", re.I)
_POWER_SUPPLY = re.compile(r"^(ps|psu|power supply) ?\d*([ _]?status)?$", re.I)
_POWER_SUPPLY_ENTITY = re.compile(r"^10\.\d+$")
_LINE_LIMIT = 1024


def lines_of(output: str) -> list[list[str]]:
    """The lines of an output that have columns, split at them; too long ones are no line of ipmitool."""
    return [
        [part.strip() for part in line.split("|")]
        for line in output.replace("\r", "").split("\n")
        if "|" in line and len(line) < _LINE_LIMIT
    ]


def _number(text: str) -> float | None:
    return float(text) if _NUMBER.fullmatch(text) else None


def _status(text: str) -> str:
    return _HEALTH.get(text.strip().lower()[-2:], "unknown")


def discrete_health(name: str, text: str) -> str:
    """What the states of a discrete sensor mean: `critical`, `warning`, or empty where they mean no harm or are not known."""
    if _CRITICAL.search(text) or (re.search(r"\bstate asserted\b", text, re.I) and _NAMED_FAILURE.search(name)):
        return "critical"
    return "warning" if _WARNING.search(text) else ""


def _kind(name: str, unit: str, context: str, text: str) -> str:
    kind = kind_of(name, unit)
    if _POWER_SUPPLY.match(name) and unit in ("", "watts"):
        return "power_supply"
    if kind != "discrete":
        return kind
    if re.search(r"redundan", name + text, re.I):
        return "redundancy"
    return "power_supply" if _POWER_SUPPLY_ENTITY.match(context) and name.lower() == "status" else kind


def _state(text: str, status: str) -> str:
    """Why there is no reading; `enabled` where there is one. `na` and `ns` do not tell, `Disabled` does."""
    if text.lower() == "disabled":
        return "disabled"
    return "no_reading" if text.lower() in _NONE[:-1] or status.lower() in ("ns", "na") else "enabled"


def parse_sdr(output: str) -> list[Json]:
    """The sensors of `ipmitool sdr list` (name, reading, status) or `sdr elist` (name, number, status, entity, reading)."""
    found = []
    for columns in lines_of(output):
        if len(columns) == 3:
            (name, text, status), identity, context = columns, "", ""
        elif len(columns) == 5 and re.fullmatch(r"[0-9A-Fa-f]+h", columns[1]):
            name, identity, status, context, text = columns
        else:
            continue
        if name:
            found.append(_of_text(name, text, status, identity, context))
    return with_labels(found)


def _of_text(name: str, text: str, status: str, identity: str, context: str) -> Json:
    state = _state(text, status)
    match = _READING.fullmatch(text) if state == "enabled" else None
    unit = unit_of(match.group(2)) if match else ""
    shown = "" if match or state != "enabled" or _HEX.fullmatch(text) else text
    health = _status(status)
    kind = _kind(name, unit, context, shown)
    if state == "enabled" and not match:
        # A discrete one, whatever its name sounds like (Fan Redundancy, CPU Temp Status).
        kind = _kind(name, "", context, shown) if kind in ("redundancy", "power_supply") else "discrete"
        health = discrete_health(name, shown) or health
    more: Json = {"id": identity, "context": context, "text": shown, "source": "ipmitool"}
    return sensor(name, kind, unit, match and float(match.group(1)), state=state, health=health, **more)


def parse_sensor_list(output: str) -> list[Json]:
    """The sensors of `ipmitool sensor`: name, reading, unit, status, and six thresholds from lower fatal to upper fatal."""
    found = []
    for columns in lines_of(output):
        if len(columns) not in (9, 10) or not columns[0]:
            continue
        name, text, unit_text, status = columns[:4]
        if unit_text.lower() == "discrete" or _HEX.fullmatch(text):
            state = "no_reading" if text.lower() in _NONE else "enabled"
            kind = _kind(name, "", "", "")
            kind = kind if kind in ("redundancy", "power_supply") else "discrete"
            found.append(sensor(name, kind, state=state, health="unknown", source="ipmitool"))
            continue
        unit = unit_of(unit_text)
        value = _number(text)
        limits = {level: _number(text) for level, text in zip(_SENSOR_COLUMNS, columns[4:])}
        state = _state(text, status) if value is None else "enabled"
        kind = _kind(name, unit, "", "")
        if kind == "discrete":
            # Thresholds but neither unit nor a name that tells: something is measured there.
            kind = "other" if any(limit is not None for limit in limits.values()) else kind
        found.append(sensor(name, kind, unit, value, limits, state=state, health=_status(status), source="ipmitool"))
    return with_labels(found)


def merge(measured: list[Json], described: list[Json]) -> list[Json]:
    """One list from `sensor` (thresholds) and `sdr elist` (entities, numbers, states of discrete sensors).

    Both list the sensors in the same order, but `sdr` also those that only raise events. Sensors of one name belong together by their
    order where both know as many of them; else what `sdr` says stands, and thresholds are taken over where all of that name have the
    same.
    """
    groups: dict[str, list[Json]] = {}
    for one in measured:
        groups.setdefault(one["name"], []).append(one)
    counts: dict[str, int] = {}
    for one in described:
        counts[one["name"]] = counts.get(one["name"], 0) + 1
    position: dict[str, int] = {}
    result = []
    for one in described:
        group = groups.get(one["name"], [])
        index = position.get(one["name"], 0)
        position[one["name"]] = index + 1
        if len(group) == counts[one["name"]]:
            result.append(_joined(group[index], one))
        elif group and all(_limits(other) == _limits(group[0]) for other in group):
            result.append(_joined(group[0], one))
        else:
            result.append(one)
    result += [one for one in measured if one["name"] not in counts]
    return with_labels([{**one, "label": one["name"]} for one in result])


def _limits(one: Json) -> Any:
    return one["unit"], one.get(f"thresholds_{one['unit']}")


def _joined(measured: Json, described: Json) -> Json:
    """What `sdr` says of a sensor (read last, so the later reading), with the thresholds that `sensor` says."""
    if described["state"] == "enabled":
        unit = described["unit"]
        if not unit or measured["unit"] != unit:
            return described
        return {**described, f"thresholds_{unit}": measured[f"thresholds_{unit}"]}
    more: Json = {key: described[key] for key in ("id", "context", "text", "source")}
    unit = measured["unit"]
    limits = measured[f"thresholds_{unit}"] if unit else None
    kind = measured["kind"] if described["kind"] == "discrete" else described["kind"]
    return sensor(described["name"], kind, unit, None, limits, state=described["state"], **more)


def parse_pairs(output: str) -> dict[str, str]:
    """The lines `Name : value` of `sel info`, `mc info` and the like; the first of a name counts."""
    found: dict[str, str] = {}
    for line in output.replace("\r", "").split("\n"):
        name, colon, value = line.partition(":")
        if colon and name.strip() and len(line) < _LINE_LIMIT:
            found.setdefault(name.strip(), value.strip())
    return found
