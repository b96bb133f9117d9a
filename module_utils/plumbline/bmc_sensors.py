"""One form for the sensors of a machine, whoever told of them: Redfish or `ipmitool`.

A sensor is a plain dictionary:

    {"name": "Temp", "label": "Temp (3.1)", "id": "01h", "kind": "temperature", "context": "3.1", "unit": "celsius",
     "reading_celsius": 47.0, "thresholds_celsius": {"lower_fatal": None, ..., "upper_critical": 92.0, ...},
     "state": "enabled", "health": "ok", "text": "", "source": "ipmitool"}

`name` is what the BMC calls it, `label` is unique on the machine. The keys of reading and thresholds end in the unit; a sensor without
a reading has None there, never 0. A discrete sensor has no unit: its states are in `text`, as the BMC words them.

`state`: `enabled`, `no_reading` (there is none, and the source does not say why: not populated, asleep or dead), `dead` (the BMC says
that it is enabled, and it has none), `disabled`, `absent` or `unavailable` (the BMC says why). `health`: `ok`, `warning`, `critical` or
`unknown`.
"""

from __future__ import annotations

import math
import re
from typing import Any

Json = dict[str, Any]

LEVELS = ("lower_fatal", "lower_critical", "lower_warning", "upper_warning", "upper_critical", "upper_fatal")
HEALTHS = ("unknown", "ok", "warning", "critical")
# unit: how Redfish (UCUM codes) and ipmitool write it, in lower case
_UNIT_NAMES = {
    "celsius": ("cel", "degrees c", "c", "°c"),
    "watts": ("w", "watts", "watt"),
    "revolutions_per_minute": ("{rev}/min", "rpm", "rev/min"),
    "percent": ("%", "percent"),
    "volts": ("v", "volts", "volt"),
    "amperes": ("a", "amps", "amp", "amperes"),
    "joules": ("j", "joules"),
    "hertz": ("hz", "hertz"),
    "cubic_feet_per_minute": ("[ft_i]3/min", "cfm"),
}
_UNITS = {text: unit for unit, texts in _UNIT_NAMES.items() for text in texts}
_KIND_OF_UNIT = {
    "celsius": "temperature",
    "watts": "power",
    "revolutions_per_minute": "fan",
    "volts": "voltage",
    "amperes": "current",
    "joules": "energy",
    "cubic_feet_per_minute": "airflow",
}
_UNIT_OF_KIND = {
    "temperature": "celsius",
    "power": "watts",
    "fan": "revolutions_per_minute",
    "voltage": "volts",
    "current": "amperes",
}
# What a sensor without unit and reading measures can only be told from its name.
_KIND_OF_NAME = (
    ("fan", re.compile(r"fan(?!.*(status|present|presence|redund))|tach", re.I)),
    ("temperature", re.compile(r"temp|therm(?!.*trip)|ambient|inlet|exhaust|[\b_ ]dts\b", re.I)),
    ("power", re.compile(r"power (in|out|meter|consum)|_power$|pwr consumption|[ _]p(in|out)\b", re.I)),
    ("voltage", re.compile(r"volt|vcore|[ _]v(in|out)\b|^\+?p?\d+v\d*$", re.I)),
    ("current", re.compile(r"^current|[ _]i(in|out)\b|curr_", re.I)),
)


def number(value: Any) -> float | None:
    """A finite number as a float; None for anything else (a boolean is none)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def unit_of(text: str) -> str:
    """Our name of a unit; `unspecified` for one that is not known, such as `unspecified` and `msec`; empty for none."""
    key = text.strip().lower()
    return _UNITS.get(key, "unspecified") if key else ""


def kind_of(name: str, unit: str) -> str:
    """What a sensor measures, by its unit, else by its name; `discrete` where neither tells."""
    if unit == "percent":
        return "fan" if re.search(r"fan|pwm|tach", name, re.I) else "utilization"
    if unit:
        return _KIND_OF_UNIT.get(unit, "other")
    return next((kind for kind, pattern in _KIND_OF_NAME if pattern.search(name)), "discrete")


def sensor(
    name: str,
    kind: str,
    unit: str = "",
    reading: Any = None,
    thresholds: Json | None = None,
    *,
    state: str = "enabled",
    health: str = "unknown",
    **more: Any,
) -> Json:
    """A sensor in the one form. `unit` follows from `kind` where it is empty; `more`: `id`, `context`, `text`, `source`."""
    unit = unit or _UNIT_OF_KIND.get(kind, "")
    found: Json = {
        "name": name.strip(),
        "label": name.strip(),
        "kind": kind,
        "unit": unit,
        "state": state,
        "health": health,
    }
    found.update({key: more.get(key, "") for key in ("id", "context", "text", "source")})
    if unit:
        found[f"reading_{unit}"] = number(reading) if state == "enabled" else None
        found[f"thresholds_{unit}"] = clean_thresholds(thresholds or {})
    return found


def reading_of(one: Json) -> float | None:
    """The reading of a sensor, in its unit."""
    return number(one.get(f"reading_{one['unit']}")) if one["unit"] else None


def thresholds_of(one: Json) -> Json:
    """The thresholds of a sensor, in its unit."""
    return dict(one.get(f"thresholds_{one['unit']}") or {})


def clean_thresholds(given: Json) -> Json:
    """Thresholds as numbers, without those that cannot be meant.

    BMCs write 0 for "none": all six of them, or an upper one that would lie below a milder upper one (HPE's SFP sensors: critical
    75, fatal 0).
    """
    found = {level: number(given.get(level)) for level in LEVELS}
    if not any(found.values()):
        return dict.fromkeys(LEVELS)
    highest: float | None = None
    for level in ("upper_warning", "upper_critical", "upper_fatal"):
        value = found[level]
        if value == 0 and (highest is None or highest > 0):
            # Zero is a limit only to what is below zero, such as a thermal margin, and then a milder one lies below zero too.
            found[level] = None
        elif value is not None:
            highest = value if highest is None else max(highest, value)
    return found


def breach(one: Json) -> str:
    """What the reading is by the sensor's own thresholds: `critical`, `warning` or empty (within them, or none to tell)."""
    value, limits = reading_of(one), thresholds_of(one)
    if value is None:
        return ""

    def beyond(grade: str) -> bool:
        upper, lower = limits.get(f"upper_{grade}"), limits.get(f"lower_{grade}")
        if upper is not None and value >= upper:
            return True
        # At a lower limit of 0 lies what is switched off, but a fan that stands still is what the limit is for.
        return lower is not None and (value < lower or (value == lower and (lower > 0 or one["kind"] == "fan")))

    if beyond("critical") or beyond("fatal"):
        return "critical"
    return "warning" if beyond("warning") else ""


def worst(*healths: str) -> str:
    """The worst of some healths."""
    return max(healths, key=lambda one: HEALTHS.index(one) if one in HEALTHS else 0, default="unknown")


def health_of(one: Json) -> str:
    """The health of a sensor: the worse of what the BMC says and what its thresholds say."""
    return worst(str(one["health"]), breach(one) or "unknown")


def with_labels(sensors: list[Json]) -> list[Json]:
    """Give every sensor a label of its own: its name, with the context where several share it, with a number where that is not enough."""
    for key in ("name", "label"):
        counts: dict[str, int] = {}
        for one in sensors:
            counts[one[key]] = counts.get(one[key], 0) + 1
        seen: dict[str, int] = {}
        for one in sensors:
            value = one[key]
            if counts[value] < 2:
                continue
            if key == "name" and one["context"]:
                one["label"] = f"{value} ({one['context']})"
            elif key == "label":
                seen[value] = seen.get(value, 0) + 1
                one["label"] = f"{value} #{seen[value]}"
    return sensors


def reading_text(one: Json) -> str:
    """A reading for people: `96 °C`, `no reading`, or the states of a discrete sensor."""
    signs = {
        "celsius": "°C",
        "watts": "W",
        "volts": "V",
        "amperes": "A",
        "percent": "%",
        "revolutions_per_minute": "RPM",
    }
    value = reading_of(one)
    if value is None:
        return str(one["text"] or "no reading")
    return f"{value:g} {signs.get(one['unit'], '')}".strip()
