"""The system event log (SEL) in one form, and what its entries mean.

An entry: `id`, `time` (ISO 8601; None where the BMC's clock was not set), `severity` (`ok`, `warning`, `critical`), `sensor`, `message`,
`message_id`, `asserted` (False: the condition ended), `resolved` (the condition ended later, or somebody marked it as repaired), `lasting`
(an error that was, such as an uncorrectable one: it does not become undone).
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from typing import Any

from .bmc_ipmi import lines_of, parse_pairs

Json = dict[str, Any]

# In this order; the first that fits counts. Words of IPMI 2.0 tables 42-2 and 42-3 as ipmitool, iDRAC, iLO, XCC, OpenBMC and AMI put them.
_HARMLESS = re.compile(
    r"correctable ECC logging limit not|non-fatal.*recovered|log (area )?(cleared|reset)|presence detected|"
    r"fully redundant|redundancy (is )?(regained|restored|normal)|transition to (ok|running|idle|power)|timestamp clock sync|"
    r"returned to (normal|ok)|has been restored|is (now )?normal",
    re.I,
)
_LASTING = re.compile(
    r"\buncorrect(able|ed)\b(?!.*\bcorrected\b)|multi-?bit|\bIERR\b|thermal trip|thermtrip|machine check (exception|error)|CATERR|"
    r"(?<!non[ -])\bfatal\b|\bPCI (SERR|PERR)\b|\bSERR\b|kernel panic|run-time critical stop|memory parity|FRB[123]|"
    r"configuration error.*(disabled|halt)",
    re.I,
)
_CRITICAL = re.compile(
    r"(?<!non-)(?<!non )\bcritical going|non-recoverable going|transition to (critical|non-recoverable)|"
    r"\b(AC|input|power source)\b.{0,40}\blost\b|failure detected|loss of (input|redundancy)|redundancy (is )?lost|"
    r"insufficient resources|drive fault|"
    r"\b(fan|power supply|psu|memory|dimm|processor|battery)\b.*\b(failed|(?<!predictive )failure|fault)\b|"
    r"power (good|unit) fail|over[- ]?temperature|power ?off due to|critical over",
    re.I,
)
_WARNING = re.compile(
    r"non-critical going|transition to non-critical|predictive failure|redundancy degraded|non-redundant|correctable|"
    r"logging (limit|disabled)|out-of-range|\bdegraded\b|bus degraded|throttl|chassis intrusion|battery low",
    re.I,
)
_LIMITS = ("ok", "warning", "critical")
_EARLIEST_YEAR = 2008  # a BMC whose clock was never set counts from 1970 or 2000
_MIN_COLUMNS = 5
_DATES = ("%m/%d/%Y", "%m/%d/%y", "%Y-%m-%d")
_TIMES = ("%H:%M:%S", "%I:%M:%S %p")


def meaning(text: str) -> tuple[str, bool]:
    """Severity of an event by its words, and whether it is lasting."""
    if _LASTING.search(text):
        return "critical", True
    if _HARMLESS.search(text):
        return "ok", False
    if _CRITICAL.search(text):
        return "critical", False
    return ("warning", False) if _WARNING.search(text) else ("ok", False)


def event(text: str, severity: str = "", **fields: Any) -> Json:
    """An entry in the one form. `severity` is the BMC's own word for it; the worse of it and the words of the message counts."""
    by_words, lasting = meaning(f"{fields.get('sensor', '')} {text}")
    asserted = fields.get("asserted", True)
    own = severity if severity in _LIMITS else "ok"
    grade = max(by_words, own, key=_LIMITS.index) if asserted else "ok"
    return {
        "id": "",
        "time": None,
        "sensor": "",
        "message_id": "",
        "resolved": False,
        **fields,
        "message": text.strip(),
        "severity": grade,
        "asserted": asserted,
        "lasting": lasting and asserted,
    }


def iso_time(text: Any) -> str | None:
    """A Redfish time in UTC, ISO 8601; None for what is no time, and for the time of a clock that was never set."""
    if not isinstance(text, str):
        return None
    cleaned = re.sub(r"\.\d+", "", text.strip()).replace("Z", "+00:00")
    cleaned = re.sub(r"([+-]\d\d)(\d\d)$", r"\1:\2", cleaned)
    try:
        moment = datetime.fromisoformat(cleaned)
    except ValueError:
        return None
    return _utc(moment)


def _utc(moment: datetime) -> str | None:
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    try:
        moment = moment.astimezone(timezone.utc)
    except OverflowError:
        return None
    return None if moment.year < _EARLIEST_YEAR else moment.isoformat().replace("+00:00", "Z")


def ipmi_time(date: str, clock: str) -> str | None:
    """Date and time as `ipmitool` prints them under TZ=UTC, in ISO 8601; None for `Pre-Init` and the like."""
    clock = re.sub(r"\s+(?!AM\b|PM\b)([A-Za-z]{2,6}|[+-]\d\d:?(\d\d)?)$", "", clock.strip())
    for day in _DATES:
        for time in _TIMES:
            try:
                return _utc(datetime.strptime(f"{date.strip()} {clock}", f"{day} {time}").replace(tzinfo=timezone.utc))
            except ValueError:
                continue
    return None


def parse_sel(output: str) -> list[Json]:
    """The entries of `ipmitool sel list` or `sel elist`, oldest first as the SEL has them."""
    found = []
    for line in output.replace("\r", "").split("\n"):
        # ipmitool's own decoding writes bars between parentheses: (CPU 1 | APIC ID 3).
        closed = re.sub(r"\([^()]*\)", lambda match: match.group().replace("|", "/"), line)
        for columns in lines_of(closed):
            entry = _entry(columns)
            if entry:
                found.append(entry)
    return found


def _entry(columns: list[str]) -> Json | None:
    if not re.fullmatch(r"[0-9a-fA-F]{1,4}", columns[0]):
        return None
    if len(columns) == 2:
        # What an operating system writes at its end has no time: `9 | Linux kernel panic: Fatal excep`.
        return event(columns[1], id=columns[0].lower()) if re.search(r"panic|OEM record", columns[1]) else None
    if columns[1].startswith("OEM record"):
        return event(" ".join(columns[1:]), id=columns[0].lower())
    if len(columns) < _MIN_COLUMNS:
        return None
    date, clock, where, what = columns[1:5]
    if where.startswith("OEM record"):
        return event(" ".join(columns[3:]), id=columns[0].lower(), time=ipmi_time(date, clock))
    direction = columns[5].lower() if len(columns) > _MIN_COLUMNS else ""
    extra = f" ({columns[6]})" if len(columns) > _MIN_COLUMNS + 1 and columns[6] else ""
    return {
        **event(
            what, id=columns[0].lower(), time=ipmi_time(date, clock), sensor=where, asserted=direction != "deasserted"
        ),
        "message": f"{what}{extra}" or "an event that ipmitool has no words for",
    }


def parse_sel_info(output: str) -> Json:
    """What `ipmitool sel info` says: `entries`, `used_fraction`, `overflow`; None for what it does not say."""
    pairs = parse_pairs(output)
    entries = re.match(r"\d+", pairs.get("Entries", ""))
    used = re.fullmatch(r"(\d{1,3})\s*%", pairs.get("Percent Used", ""))
    overflow = pairs.get("Overflow", "").lower()
    return {
        "entries": int(entries.group()[:9]) if entries else None,
        "used_fraction": int(used.group(1)) / 100 if used else None,
        "overflow": {"true": True, "false": False}.get(overflow),
    }


def with_resolution(entries: list[Json]) -> list[Json]:
    """Mark the conditions that ended: a later entry of the sensor takes the same event back, or says that all is well again.

    `entries` are oldest first. What is lasting stays: an uncorrectable error is data that was lost.
    """
    ended: set[tuple[str, str]] = set()
    well: set[tuple[str, str]] = set()
    for entry in reversed(entries):
        sensor, condition = str(entry["sensor"]), _condition(str(entry["message"]))
        # Vendors' messages name the part by its number, and their sensor is but a type: "power supply 1 is restored".
        part = (sensor, " ".join(re.findall(r"\d+", condition)))
        if not entry["asserted"]:
            ended.add((sensor, condition))
        elif entry["severity"] == "ok" and sensor and _HARMLESS.search(condition):
            well.add(part)
        elif entry["severity"] != "ok" and not entry["lasting"] and ((sensor, condition) in ended or part in well):
            entry["resolved"] = True
    return entries


def _condition(message: str) -> str:
    return re.sub(r"\s*\(.*$|\s+", " ", message).strip().lower()


def recent(entries: list[Json], now: str, days: int) -> list[Json]:
    """The entries of the last `days`, oldest first, by the BMC's own clock `now` (ISO 8601).

    An entry without a time was written before the clock was set; it counts where the next one that has a time does, or where there is
    none.
    """
    moment = iso_time(now)
    if moment is None:
        return list(entries)
    since = _utc(datetime.fromisoformat(moment.replace("Z", "+00:00")) - timedelta(days=days)) or ""
    result = []
    counts = True
    for entry in reversed(entries):
        if entry["time"] is not None:
            counts = entry["time"] >= since
        if counts:
            result.append(entry)
    return result[::-1]
