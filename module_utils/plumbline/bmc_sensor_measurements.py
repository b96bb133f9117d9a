"""Measurements of sensors and of the event log for the gate: few lines where all is well, and the name of each sensor that is not.

Nothing is judged here but what the machine itself judges: a sensor's own thresholds, the health that its BMC reports, the severity of
an event. What that means for the host is the rule's business (`group_vars/all/gates.yml`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from .bmc_event_log import recent
from .bmc_sensors import Json, breach, health_of, reading_of, reading_text, thresholds_of

# Kinds that fail together are one line.
_GROUPS = {
    "temperatures": ("temperature",),
    "fans": ("fan",),
    "power supplies": ("power_supply", "redundancy"),
    "voltages and currents": ("voltage", "current", "power"),
}
_OTHERS = "other sensors"
_ADVICE = {
    "temperatures": "look for a failed fan, a blocked air path, a missing blank or a warm room",
    "fans": "replace the fan, or seat it again",
    "power supplies": "look at the cable and the feed, then replace the power supply (or the fan that redundancy lacks)",
    "voltages and currents": "a power supply or a regulator of the board fails, or the machine draws more than it may",
}
_TOTAL_POWER = re.compile(
    r"^(total[ _]?(node )?power|pwr consumption|power meter|sys(tem)?[ _]?power|chassis power|.*power control)$", re.I
)
_SHOWN = 6


def sensor_measurements(
    facts: Json,
    *,
    ignored: Iterable[str] = (),
    required: Iterable[str] = (),
    known: Iterable[str] = (),
    log_days: int = 30,
    curl: str = "",
) -> list[Json]:
    """Measurements from what a BMC told.

    Args:
        facts: `sensors`, `sensors_error`, `log`, `log_error`, `log_service`, `power_state` as `bmc_ipmi_run.observe` returns them.
        ignored: regular expressions; a sensor whose label or name one of them matches as a whole is not judged.
        required: regular expressions; for each there must be a sensor that has a reading.
        known: labels of sensors that had a reading in an earlier survey.
        log_days: days of the event log that count.
        curl: how the BMC is asked over Redfish, for the next command: `curl -u admin https://10.0.0.7`; empty in-band.
    """
    log = _log(facts, log_days, curl)
    if facts["sensors_error"]:
        look = f"{curl}/redfish/v1/Chassis" if curl else "LC_ALL=C ipmitool sensor"
        return [_unread(facts["sensors_error"], look), *log]
    skip = [re.compile(one) for one in ignored]
    out = {
        one["label"]
        for one in facts["sensors"]
        if any(pattern.fullmatch(one["label"]) or pattern.fullmatch(one["name"]) for pattern in skip)
    }
    judged = [one for one in facts["sensors"] if one["label"] not in out]
    expected = {label for label in known if label not in out and not any(one.fullmatch(label) for one in skip)}
    found = [
        _readings(judged, facts),
        *_temperature_margin(judged, curl),
        *_breaches(judged, curl),
        _standing(judged, curl),
    ]
    found += [_dead(judged, list(required), facts, curl), _lost(judged, expected, facts, curl), *_power(judged)]
    return found + log


def _unread(error: str, look: str) -> Json:
    return {"name": "sensor_readings", "scope": "bmc", "error": error, "next_command": look}


def _look(sensors: list[Json], curl: str) -> str:
    """The command that shows the first of some sensors."""
    if not curl:
        return "LC_ALL=C ipmitool sensor; LC_ALL=C ipmitool sdr elist"
    path = str(sensors[0].get("id") or "").partition("#")[0]
    return f"{curl}{path if path.startswith('/') else '/redfish/v1/Chassis'}"


def sensors_skipped(reason: str) -> list[Json]:
    """The one measurement of a machine whose sensors nobody can read."""
    return [{"name": "sensor_readings", "scope": "bmc", "skipped": reason}]


def _listed(sensors: list[Json], told: Callable[[Json], str]) -> str:
    shown = "; ".join(told(one) for one in sensors[:_SHOWN])
    return shown + (f"; and {len(sensors) - _SHOWN} more" if len(sensors) > _SHOWN else "")


def _told(one: Json) -> str:
    """A sensor with its reading and the limit beyond which it is: `CPU1 Temp 96 °C (critical from 95 on)`."""
    value, limits = reading_of(one), thresholds_of(one)
    for grade in ("fatal", "critical", "warning"):
        upper, lower = limits.get(f"upper_{grade}"), limits.get(f"lower_{grade}")
        if value is not None and upper is not None and value >= upper:
            return f"{one['label']} {reading_text(one)} ({grade} from {upper:g} on)"
        if value is not None and lower is not None and value <= lower and breach(one):
            return f"{one['label']} {reading_text(one)} ({grade} from {lower:g} down)"
    said = (
        f", and its BMC says {one['health']}" if one["health"] in ("warning", "critical") and value is not None else ""
    )
    words = f" ({one['text']})" if one["text"] and value is not None else ""
    return f"{one['label']} {reading_text(one)}{words}{said}"


def _count(name: str, scope: str, failed: list[Json], cause: str, curl: str, **conditions: Any) -> Json:
    measurement: Json = {"name": name, "scope": scope, "value": len(failed), "unit": "count", "conditions": conditions}
    if failed:
        measurement["conditions"] = {**conditions, "sensors": [one["label"] for one in failed]}
        measurement.update(cause=cause, next_command=_look(failed, curl))
    return measurement


def _readings(sensors: list[Json], facts: Json) -> Json:
    """How many sensors have a reading. A powered machine always has a temperature."""
    having = [one for one in sensors if reading_of(one) is not None]
    measurement: Json = {"name": "sensor_readings", "scope": "bmc", "value": len(having), "unit": "count"}
    measurement["conditions"] = {"sensors": len(facts["sensors"]), "notes": facts.get("notes", [])}
    if facts["power_state"] == "on" and sensors and not any(one["kind"] == "temperature" for one in having):
        del measurement["value"]
        measurement["error"] = (
            f"none of the {len(sensors)} sensors of the BMC tells a temperature: its sensor subsystem hangs"
        )
        measurement["next_command"] = (
            "restart the BMC (ipmitool mc reset cold, or Manager.Reset over Redfish); the host goes on"
        )
    return measurement


def _temperature_margin(sensors: list[Json], curl: str) -> list[Json]:
    """The smallest distance of a temperature to its own upper critical threshold, in °C."""
    margins = []
    for one in sensors:
        value, limits = reading_of(one), thresholds_of(one)
        limit = limits.get("upper_critical")
        limit = limits.get("upper_fatal") if limit is None else limit
        if one["kind"] == "temperature" and one["unit"] == "celsius" and value is not None and limit is not None:
            margins.append((limit - value, one, limit))
    common = {"name": "sensor_temperature_margin", "unit": "Cel"}
    if not margins:
        return [
            {
                "name": common["name"],
                "scope": "bmc",
                "skipped": "no temperature sensor tells an upper critical threshold of its own",
            }
        ]
    margins.sort(key=lambda item: item[0])
    margin, worst, limit = margins[0]
    close = [
        {"sensor": one["label"], "reading_celsius": reading_of(one), "critical_celsius": top}
        for _, one, top in margins[:_SHOWN]
    ]
    return [
        {
            **common,
            "scope": worst["label"],
            "value": round(margin, 3),
            "statistic": f"smallest of {len(margins)} sensors",
            "conditions": {"reading_celsius": reading_of(worst), "critical_celsius": limit, "closest": close},
            "cause": f"{worst['label']} reads {reading_text(worst)}, and is critical from {limit:g} °C on: {_ADVICE['temperatures']}",
            "next_command": _look([worst], curl),
        }
    ]


def _breaches(sensors: list[Json], curl: str) -> list[Json]:
    """For each group of kinds, how many sensors are critical; for all together, how many are a warning."""
    # A power supply without its line may be called unavailable, and critical all the same.
    present = [one for one in sensors if one["state"] in ("enabled", "unavailable")]
    healths = {id(one): health_of(one) for one in present}
    group_of = {kind: group for group, kinds in _GROUPS.items() for kind in kinds}
    groups: dict[str, list[Json]] = {group: [] for group in (*_GROUPS, _OTHERS)}
    for one in present:
        groups[group_of.get(one["kind"], _OTHERS)].append(one)
    found = []
    for group, members in groups.items():
        if not members:
            continue
        failed = [one for one in members if healths[id(one)] == "critical"]
        cause = _listed(failed, _told) + (f": {_ADVICE[group]}" if group in _ADVICE else "")
        found.append(_count("sensor_critical", group, failed, cause, curl, judged=len(members)))
    warned = [one for one in present if healths[id(one)] == "warning"]
    found.append(_count("sensor_warning", "bmc", warned, _listed(warned, _told), curl, judged=len(present)))
    return found


def _standing(sensors: list[Json], curl: str) -> Json:
    """Fans that stand still although others of their name turn, and no threshold of theirs objects."""
    rows: dict[str, list[Json]] = {}
    for one in sensors:
        if one["kind"] == "fan" and one["state"] == "enabled" and reading_of(one) is not None:
            rows.setdefault(re.sub(r"\d+", "#", one["name"]), []).append(one)
    standing = []
    for row in rows.values():
        still = [one for one in row if reading_of(one) == 0 and health_of(one) not in ("warning", "critical")]
        if still and len(still) < len(row):
            standing += still
    cause = (
        _listed(standing, lambda one: f"{one['label']} stands still while its neighbours turn") + f": {_ADVICE['fans']}"
    )
    return _count("sensor_fan_standstill", "fans", standing, cause, curl)


def _dead(sensors: list[Json], required: list[str], facts: Json, curl: str) -> Json:
    """Sensors that the BMC calls enabled and that have no reading, and required ones without one."""
    if facts["power_state"] != "on":
        return {"name": "sensor_dead", "scope": "bmc", "skipped": "the host is off, and most sensors with it"}
    dead = [one for one in sensors if one["state"] == "dead"]
    missing = []
    for pattern in required:
        wanted = re.compile(pattern)
        having = [one for one in sensors if wanted.fullmatch(one["label"]) or wanted.fullmatch(one["name"])]
        if not any(reading_of(one) is not None or (not one["unit"] and one["state"] == "enabled") for one in having):
            # What is dead already is not counted twice.
            missing += [one for one in having if one["state"] != "dead"]
            missing += [] if having else [{"label": pattern, "state": "missing"}]
    said = {"dead": "is enabled and has no reading", "missing": "is required, and the BMC lists none of that name"}
    failed = [*dead, *missing]
    cause = _listed(failed, lambda one: f"{one['label']} {said.get(one['state'], 'is required and has no reading')}")
    cause += ": the sensor or its bus is dead, or the BMC needs a restart"
    return _count("sensor_dead", "bmc", failed, cause, curl)


def _lost(sensors: list[Json], known: set[str], facts: Json, curl: str) -> Json:
    """Sensors that had a reading in an earlier survey and have none now. Many of a machine's sensors never have one, which is no fault."""
    if not known:
        return {
            "name": "sensor_lost",
            "scope": "bmc",
            "skipped": "no earlier survey tells which sensors have a reading",
        }
    if facts["power_state"] != "on":
        return {"name": "sensor_lost", "scope": "bmc", "skipped": "the host is off, and most sensors with it"}
    by_label = {one["label"]: one for one in sensors}
    lost = [by_label.get(label, {"label": label, "state": "missing"}) for label in sorted(known)]
    # What is dead or critical is counted there.
    lost = [one for one in lost if one["state"] not in ("enabled", "dead") and one.get("health") != "critical"]
    cause = _listed(
        lost,
        lambda one: (
            f"{one['label']} had a reading in an earlier survey and has none now ({one['state'].replace('_', ' ')})"
        ),
    )
    cause += ": the part was taken out, or the sensor is dead"
    return _count("sensor_lost", "bmc", lost, cause, curl)


def _power(sensors: list[Json]) -> list[Json]:
    """What the machine draws, for the record: the sensor that stands for the whole, else the sum of its power supplies."""
    whole = [
        one
        for one in sensors
        if one["kind"] == "power" and _TOTAL_POWER.match(one["name"]) and reading_of(one) is not None
    ]
    if whole:
        value, source = max(reading_of(one) or 0.0 for one in whole), whole[0]["label"]
    else:
        inputs = [one for one in sensors if one["kind"] == "power_supply" and reading_of(one) is not None]
        if not inputs:
            return []
        value, source = sum(reading_of(one) or 0.0 for one in inputs), f"sum of {len(inputs)} power supplies"
    return (
        [{"name": "system_power", "scope": "node", "value": value, "unit": "W", "statistic": source}]
        if value >= 0
        else []
    )


def _log(facts: Json, days: int, curl: str) -> list[Json]:
    name = "log_critical_entries"
    service = facts["log_service"]
    look = f"{curl}{service['uri'] or '/redfish/v1/Managers'}" if curl else "LC_ALL=C ipmitool sel elist"
    if facts["log_error"]:
        told = "skipped" if facts["log_error"].startswith("the BMC serves no") else "error"
        return [{"name": name, "scope": "event log", told: facts["log_error"], "next_command": look}]
    entries = recent(facts["log"], service["time"] or "", days)
    critical = [one for one in entries if one["severity"] == "critical"]
    standing = [one for one in critical if not one["resolved"]]
    ended = [one for one in critical if one["resolved"]]
    conditions = {"days": days, "entries": len(entries), "log": service["name"]}
    repair = "repair it, then clear the log"
    found = [
        _events(name, standing, f"did not end: {repair}", look, conditions),
        _events("log_recovered_entries", ended, "ended", look, conditions),
    ]
    if service["used_fraction"] is not None:
        found.append({"name": "log_used", "scope": "event log", "value": service["used_fraction"], "unit": "fraction"})
        found[-1].update(
            cause="a full event log takes no further entry, so that the next failure leaves no trace: save and clear it"
        )
        found[-1]["next_command"] = look
    return found


def _events(name: str, entries: list[Json], what: str, look: str, conditions: Json) -> Json:
    measurement: Json = {
        "name": name,
        "scope": "event log",
        "value": len(entries),
        "unit": "count",
        "conditions": conditions,
    }
    if entries:
        newest = entries[-1]
        noun = "entry" if len(entries) == 1 else "entries"
        where = f"{newest['sensor']}: " if newest["sensor"] else ""
        when = newest["time"] or "at a time when the BMC's clock was not set"
        kinds: dict[str, int] = {}
        for one in entries:
            key = f"{one['sensor']}: {one['message']}" if one["sensor"] else one["message"]
            kinds[key] = kinds.get(key, 0) + 1
        measurement["cause"] = f"{where}{newest['message']} ({when}); {len(entries)} critical {noun} {what}"
        measurement["next_command"] = look
        measurement["conditions"] = {
            **conditions,
            "kinds": dict(sorted(kinds.items(), key=lambda item: -item[1])[:_SHOWN]),
        }
    return measurement
