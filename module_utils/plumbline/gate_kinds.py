"""How each kind of rule judges one value: the arithmetic behind gates.py.

Pure functions of a value, its measurement and its rule; nothing about a measurement is believed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Callable

from .firmware_versions import compare_versions as vendor_order
from .gate_rules import LINK_CLASS, class_name, is_number
from .quantities import format_percent, format_value
from .version_compare import compare_versions

OK = "OK"
WARN = "WARN"
CRITICAL = "CRITICAL"
UNKNOWN = "UNKNOWN"
SKIPPED = "SKIPPED"

STATUSES = (SKIPPED, OK, WARN, UNKNOWN, CRITICAL)
"""From the least to the most alarming."""

# A figure that beats its limit by more than this is no good news: the limit or the measurement is wrong.
DEFAULT_BELIEVABLE = 1.1

MOST_TOLD = 5
"""How many repeats a sentence tells one by one."""

_MAY_BE_NEGATIVE = frozenset({"Cel", "V", "A", "dB"})


@dataclass(frozen=True)
class Verdict:
    """What a rule says of a measurement."""

    status: str
    reason: str
    required: str = ""
    measured: str = ""
    fraction: float | None = None
    threshold: float | None = None
    spread: float | None = None
    figure: str = ""
    """The value beside what it is held against, without a judgement."""


def judge_value(measurement: Mapping[str, Any], rule: Mapping[str, Any]) -> Verdict:
    """Judge a measurement that has a value in the rule's unit by the rule's kind, repeats included."""
    value = measurement.get("value")
    verdict = (
        _judge_repeats(measurement, rule) if "repeat" in rule else KINDS[str(rule["kind"])](value, measurement, rule)
    )
    return with_severity(verdict, rule)


def with_severity(verdict: Verdict, rule: Mapping[str, Any]) -> Verdict:
    """Return the verdict, a miss being a WARN where the rule has ``severity: warn``."""
    if verdict.status == CRITICAL and rule.get("severity") == "warn":
        return replace(verdict, status=WARN)
    return verdict


def _judge_repeats(measurement: Mapping[str, Any], rule: Mapping[str, Any]) -> Verdict:
    """N of every M repeats must pass. One that could not be read is no pass, and no proof of a fault either.

    All samples count, by their share: some modules keep them in the order of time, others sorted and thinned.
    """
    wanted, needed = rule["repeat"]["of"], rule["repeat"]["pass"]
    samples = measurement.get("samples") or []
    if not isinstance(samples, (list, tuple)) or len(samples) < wanted:
        made = len(samples) if isinstance(samples, (list, tuple)) else 0
        return Verdict(UNKNOWN, f"{made} repeats were made, the rule wants {wanted}")
    needed, wanted = -(-len(samples) * needed // wanted), len(samples)
    judge_one = KINDS[str(rule["kind"])]
    own = judge_one(measurement.get("value"), measurement, rule)
    verdicts = [judge_one(sample, measurement, rule) for sample in samples]
    if own.status in (SKIPPED, UNKNOWN) and all(verdict.status == own.status for verdict in verdicts):
        return own  # what does not apply, or cannot be judged, is so whatever the value; the sentence tells the value, not a sample
    passed = sum(verdict.status == OK for verdict in verdicts)
    bearable = sum(verdict.status in (OK, WARN) for verdict in verdicts)
    unread = sum(verdict.status == UNKNOWN for verdict in verdicts)
    if passed >= needed:
        status = OK
    elif bearable >= needed:
        status = WARN
    else:
        status = UNKNOWN if bearable + unread >= needed else CRITICAL
    numbers = sorted(float(sample) for sample in samples if is_number(sample))
    middle = median(numbers) if numbers else 0
    unit = str(measurement.get("unit") or "")
    required = next((verdict.required for verdict in verdicts if verdict.required), "")
    # What is required is the bound of a failure, so all that is beyond it passes; a WARN says how few keep the margin.
    count = f"{bearable} of {wanted} repeats pass"
    margin = f", {passed} of them with the margin that is wanted" if status == WARN else ""
    figure = f"{own.figure}; " if own.figure else ""
    reason = f"{figure}{count}, {needed} must{margin} ({_told(samples, numbers, middle, unit)}; each: "
    return Verdict(
        status,
        reason + (required or verdicts[0].reason) + ")",
        figure=own.figure,
        fraction=own.fraction,
        required=f"{required} in {needed} of {wanted} repeats",
        measured=f"{count}, median {format_value(middle, unit)}" if numbers else "",
        threshold=next((verdict.threshold for verdict in verdicts if verdict.threshold is not None), None),
        spread=(numbers[-1] - numbers[0]) / middle if middle > 0 else None,
    )


def _told(samples: Sequence[Any], numbers: Sequence[float], middle: float, unit: str) -> str:
    """Return the figures of repeats: each of a few, lowest, middle and highest of many."""
    if len(samples) <= MOST_TOLD or not numbers:
        return ", ".join(format_value(sample, unit) for sample in samples[:MOST_TOLD])
    low, mid, high = (format_value(number, unit) for number in (numbers[0], middle, numbers[-1]))
    return f"{low} to {high}, median {mid}"


def numeric_problem(value: Any, measurement: Mapping[str, Any]) -> str:
    """Return why a value is no figure to judge, or an empty text."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return f"a number was expected, '{format_value(value)}' was found"
    if not is_number(value):
        return f"a finite number was expected, {format_value(value)} was found"
    if value < 0 and str(measurement.get("unit") or "") not in _MAY_BE_NEGATIVE:
        return f"{format_value(value, str(measurement.get('unit') or ''))} is below zero, which cannot be"
    return ""


def _fraction_of_limit(value: Any, measurement: Mapping[str, Any], rule: Mapping[str, Any]) -> Verdict:
    """Judge by the limit, and where the rule has floors by that of the class as well: the worse of the two counts."""
    fraction = _against_limit(value, measurement, rule)
    if not rule.get("floors"):
        return fraction
    _name, floor = _floor(measurement, rule)
    if floor is None and rule.get("without_floor", "fraction") == "fraction":
        return fraction
    verdict = _minimum_by_class(value, measurement, rule)
    if floor is None and verdict.status == SKIPPED:
        return verdict
    worse, other = sorted((fraction, verdict), key=lambda each: -STATUSES.index(each.status))
    required = " and ".join(text for text in (fraction.required, verdict.required) if text)
    # What fails is told alone; where both pass, so are both.
    reason = worse.reason if worse.status in (CRITICAL, UNKNOWN) else f"{worse.reason}; {other.reason}"
    return replace(
        fraction,
        status=worse.status,
        reason=reason,
        required=required,
        measured=fraction.measured or verdict.measured,
        threshold=max((each.threshold for each in (fraction, verdict) if each.threshold is not None), default=None),
    )


def _floor(measurement: Mapping[str, Any], rule: Mapping[str, Any]) -> tuple[str, Mapping[str, Any] | None]:
    """Return the class that a measurement says it is of, and the floor of that class."""
    field = str(rule.get("class_by", LINK_CLASS))
    conditions = measurement.get("conditions")
    found = measurement.get(field)
    if found is None and isinstance(conditions, Mapping):
        found = conditions.get(field)
    name = class_name(found) if isinstance(found, (str, int, float)) and not isinstance(found, bool) else ""
    floors = {class_name(key): floor for key, floor in rule["floors"].items() if floor is not None}
    return name, floors.get(name) if name else None


def _minimum_by_class(value: Any, measurement: Mapping[str, Any], rule: Mapping[str, Any]) -> Verdict:
    """Judge by the floor of the class, that is, of the link, that the measurement names; never by a product."""
    name, floor = _floor(measurement, rule)
    if floor is None:
        field = str(rule.get("class_by", LINK_CLASS))
        known = ", ".join(class_name(key) for key, each in rule["floors"].items() if each is not None)
        what = f"no floor is set for the class {name}" if name else f"the measurement does not say its {field}"
        status = SKIPPED if rule.get("without_floor") == "skip" else UNKNOWN
        return Verdict(status, f"{what}; there are floors for {known or 'none'}")
    verdict = _bound(value, measurement, floor, lower=True)
    of_class = f" of a {name} link" if rule.get("class_by", LINK_CLASS) == LINK_CLASS else f" of {name}"
    return replace(
        verdict,
        reason=verdict.reason.replace(" is required", f" is required{of_class}", 1),
        required=f"{verdict.required}{of_class}" if verdict.required else "",
    )


def _fleet_median(_value: Any, _measurement: Mapping[str, Any], _rule: Mapping[str, Any]) -> Verdict:
    return Verdict(UNKNOWN, "its rule compares hosts with each other: the action fleet_gate judges by it, not gate")


def _against_limit(value: Any, measurement: Mapping[str, Any], rule: Mapping[str, Any]) -> Verdict:
    if problem := numeric_problem(value, measurement):
        return Verdict(UNKNOWN, problem)
    unit, limit = str(measurement.get("unit") or ""), measurement.get("limit")
    if not is_number(limit) or limit is None or limit <= 0:
        status = SKIPPED if rule.get("when_unlimited") == "skip" else UNKNOWN
        return Verdict(status, f"no limit is known that {format_value(value, unit)} could be held against")
    fraction, fail = value / limit, float(rule["fail"])
    warn = float(rule.get("warn", fail))
    source = measurement.get("limit_source")
    of_limit = f"the limit {format_value(limit, unit)}" + (f" ({source})" if source else "")
    measured = f"{format_value(value, unit)}, {format_percent(fraction)} of the limit"
    required = f"at least {format_value(limit * fail, unit)}, {format_percent(fail)} of the limit"
    figure = f"{format_value(value, unit)} is {format_percent(fraction)} of {of_limit}"
    facts = {
        "required": required,
        "measured": measured,
        "fraction": fraction,
        "threshold": limit * fail,
        "figure": figure,
    }
    if fraction > float(rule.get("believable", DEFAULT_BELIEVABLE)):
        return Verdict(UNKNOWN, f"{figure}: either the limit or the measurement is wrong", **facts)
    if fraction < fail:
        return Verdict(CRITICAL, f"{figure}, at least {format_percent(fail)} is required", **facts)
    wanted = "" if fraction >= warn else f", {format_percent(warn)} is wanted"
    return Verdict(WARN if wanted else OK, figure + wanted, **facts)


def _minimum(value: Any, measurement: Mapping[str, Any], rule: Mapping[str, Any]) -> Verdict:
    return _bound(value, measurement, rule, lower=True)


def _maximum(value: Any, measurement: Mapping[str, Any], rule: Mapping[str, Any]) -> Verdict:
    return _bound(value, measurement, rule, lower=False)


def _bound(value: Any, measurement: Mapping[str, Any], rule: Mapping[str, Any], *, lower: bool) -> Verdict:
    if problem := numeric_problem(value, measurement):
        return Verdict(UNKNOWN, problem)
    unit, fail = str(measurement.get("unit") or ""), float(rule["fail"])
    warn = float(rule.get("warn", fail))
    word = "at least" if lower else "at most"
    figure, required = format_value(value, unit), f"{word} {format_value(rule['fail'], unit)}"
    facts: dict[str, Any] = {"required": required, "measured": figure, "threshold": fail}
    if value < fail if lower else value > fail:
        return Verdict(CRITICAL, f"{figure}, {required} is required", **facts)
    if value < warn if lower else value > warn:
        usual = format_value(rule["warn"], unit)
        return Verdict(WARN, f"{figure}, {required} is required and {word} {usual} is wanted", **facts)
    return Verdict(OK, f"{figure}, {required} is required", **facts)


def _growth(value: Any, measurement: Mapping[str, Any], rule: Mapping[str, Any]) -> Verdict:
    """Judge a growth by its confidence interval, not by its estimate: it passes where all of it lies within the bound.

    It fails where all of it lies above zero and not all within the bound. Else the series was too short: the interval of a slope
    narrows with the power 3/2 of the time, which tells how long would do.
    """
    low, high, seconds = (measurement.get(name) for name in ("low", "high", "judged_seconds"))
    if not (is_number(value) and is_number(low) and is_number(high) and is_number(seconds)):
        return Verdict(UNKNOWN, "a growth with its interval was expected: value, low, high and judged_seconds")
    unit, fail = str(measurement.get("unit") or ""), float(rule["fail"])
    horizon = measurement.get("horizon_seconds")
    per = f" in {format_value(float(horizon), 's').removesuffix(' 0 min')}" if is_number(horizon) else ""
    measured = f"{format_value(value, unit)}{per} ({format_value(low, unit)} to {format_value(high, unit)})"
    required = f"at most {format_value(rule['fail'], unit)}{per}"
    facts: dict[str, Any] = {"required": required, "measured": measured, "threshold": fail}
    if high <= fail:
        return Verdict(OK, f"{measured}, {required} is required", **facts)
    if low > 0:
        return Verdict(CRITICAL, f"it grows: {measured}, {required} is required", **facts)
    enough = seconds * max(1.0, (high - low) / fail) ** (2 / 3) if fail > 0 else math.inf
    told = f"; about {format_value(enough, 's')} after the warm-up would do" if math.isfinite(enough) else ""
    return Verdict(
        UNKNOWN,
        f"too short to judge: {measured} after {format_value(seconds, 's')}, {required} is required{told}",
        **facts,
    )


def expected_value(measurement: Mapping[str, Any], rule: Mapping[str, Any]) -> Any:
    """Return what a value should be: the measurement knows best, else its rule."""
    expected = measurement.get("expected")
    return rule.get("expected") if expected is None else expected


def _equals(value: Any, measurement: Mapping[str, Any], rule: Mapping[str, Any]) -> Verdict:
    expected, unit = expected_value(measurement, rule), str(measurement.get("unit") or "")
    if expected is None:
        return Verdict(UNKNOWN, "neither the measurement nor its rule says what is expected")
    found, wanted = format_value(value, unit), format_value(expected, unit)
    if isinstance(value, float) and not math.isfinite(value):
        return Verdict(UNKNOWN, f"a finite number was expected, {value} was found", required=wanted)
    if same(value, expected):
        return Verdict(OK, f"{found}, as required", required=wanted, measured=found)
    return Verdict(CRITICAL, f"{found} was found, {wanted} is required", required=wanted, measured=found)


def same(value: Any, expected: Any) -> bool:
    """Return whether a setting reads as wanted: ``4`` is ``"4"``, but ``true`` is neither ``1`` nor ``"true"``."""
    if isinstance(value, bool) or isinstance(expected, bool):
        return type(value) is type(expected) and bool(value == expected)
    if isinstance(value, (int, float, str)) and isinstance(expected, (int, float, str)):
        return bool(value == expected) or str(value) == str(expected)
    return bool(value == expected)


def _version_at_least(value: Any, measurement: Mapping[str, Any], rule: Mapping[str, Any]) -> Verdict:
    expected = expected_value(measurement, rule)
    if expected is None:
        return Verdict(UNKNOWN, "neither the measurement nor its rule says which version is required")
    required = f"{expected} or newer"
    try:
        # Vendors' forms first (families, hexadecimal bytes); what is none of them, such as a kernel's release, in RPM's order.
        order = vendor_order(str(value), str(expected))
        order = compare_versions(str(value), str(expected)) if order is None else order
    except ValueError as error:
        return Verdict(UNKNOWN, str(error), required=required)
    status = CRITICAL if order < 0 else OK
    return Verdict(status, f"version {value}, {required} is required", required=required, measured=str(value))


def _record(value: Any, measurement: Mapping[str, Any], _rule: Mapping[str, Any]) -> Verdict:
    if isinstance(value, float) and not math.isfinite(value):
        return Verdict(UNKNOWN, f"a finite number was expected, {value} was found")
    figure = format_value(value, str(measurement.get("unit") or ""))
    return Verdict(OK, f"{figure}, kept for the record and not judged", required="recorded", measured=figure)


KINDS: dict[str, Callable[[Any, Mapping[str, Any], Mapping[str, Any]], Verdict]] = {
    "fraction_of_limit": _fraction_of_limit,
    "minimum_by_class": _minimum_by_class,
    "fleet_median": _fleet_median,
    "minimum": _minimum,
    "maximum": _maximum,
    "growth": _growth,
    "equals": _equals,
    "version_at_least": _version_at_least,
    "record": _record,
}
