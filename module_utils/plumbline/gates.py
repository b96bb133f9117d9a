"""Judge measurements by rules: the only place where a figure becomes OK, WARN, CRITICAL, UNKNOWN or SKIPPED.

Pure functions. A measurement comes from anywhere, so nothing about it is believed: what is no finite number in the
rule's unit becomes UNKNOWN with the reason, and UNKNOWN never counts as OK.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Callable

from .firmware_versions import compare_versions as vendor_order
from .gate_rules import is_number, validate_rule
from .quantities import format_percent, format_value
from .version_compare import compare_versions

OK = "OK"
WARN = "WARN"
CRITICAL = "CRITICAL"
UNKNOWN = "UNKNOWN"
SKIPPED = "SKIPPED"

STATUSES = (SKIPPED, OK, WARN, UNKNOWN, CRITICAL)
"""From the least to the most alarming."""
FAILING = frozenset({UNKNOWN, CRITICAL})

MAX_SAMPLES = 5000
# A figure that beats its limit by more than this is no good news: the limit or the measurement is wrong.
DEFAULT_BELIEVABLE = 1.1

_MAY_BE_NEGATIVE = frozenset({"Cel", "V", "A", "dB"})
_TEXTS = ("name", "scope", "unit", "statistic", "limit_source", "skipped", "error", "cause", "next_command")
_FIELDS = frozenset((*_TEXTS, "value", "limit", "expected", "samples", "conditions"))


@dataclass(frozen=True)
class Check:
    """One judged measurement; ``record()`` is what evidence keeps of it."""

    name: str
    scope: str
    status: str
    reason: str
    title: str = ""
    measured: str = ""
    required: str = ""
    value: Any = None
    unit: str = ""
    statistic: str = ""
    limit: float | None = None
    limit_source: str = ""
    fraction: float | None = None
    expected: Any = None
    threshold: float | None = None
    spread: float | None = None
    samples: Sequence[float] = field(default_factory=tuple)
    conditions: Mapping[str, Any] = field(default_factory=dict)
    rule: Mapping[str, Any] = field(default_factory=dict)
    cause: str = ""
    next_command: str = ""

    @property
    def failed(self) -> bool:
        """Whether this check stops the host."""
        return self.status in FAILING

    def record(self) -> dict[str, Any]:
        """Return the check as a plain dictionary that JSON can hold (no NaN, no infinity)."""
        record = dict(self.__dict__)
        record["samples"] = [number for number in self.samples if is_number(number)][:MAX_SAMPLES]
        return {key: _jsonable(value) for key, value in record.items()}

    def line(self) -> str:
        """Return one line for people: what, measured against required, the probable cause, the next command."""
        text = f"{self.status} {self.title} ({self.scope}): {self.reason.rstrip('.')}."
        if self.status != OK and self.cause:
            text += f" Probable cause: {self.cause.rstrip('.')}."
        if self.status != OK and self.next_command:
            text += f" Next: {self.next_command}"
        return text


@dataclass(frozen=True)
class _Verdict:
    status: str
    reason: str
    required: str = ""
    measured: str = ""
    fraction: float | None = None
    threshold: float | None = None
    spread: float | None = None


def worst(statuses: Iterable[str]) -> str:
    """Return the most alarming status; UNKNOWN when there is none, because nothing was measured."""
    return max(statuses, key=STATUSES.index, default=UNKNOWN)


def judge_all(measurements: Any, rules: Mapping[str, Any]) -> list[Check]:
    """Judge a list of measurements; an empty list is one UNKNOWN check, for nothing was measured."""
    if not isinstance(measurements, (list, tuple)):
        found = "nothing" if measurements is None else type(measurements).__name__
        return [_unjudged("measurements", "host", f"a list of measurements was expected, {found} was found")]
    if not measurements:
        return [_unjudged("measurements", "host", "nothing was measured")]
    return [judge(measurement, rules) for measurement in measurements]


def judge(measurement: Any, rules: Mapping[str, Any]) -> Check:
    """Judge one measurement by the rule of its name."""
    if not isinstance(measurement, Mapping):
        return _unjudged("measurement", "host", f"a measurement is a mapping, {type(measurement).__name__} was found")
    name, scope = measurement.get("name"), measurement.get("scope")
    if not (isinstance(name, str) and name) or not (isinstance(scope, str) and scope):
        return _unjudged(str(name or "measurement"), str(scope or "host"), "the measurement lacks a name or a scope")
    rule = rules.get(name)
    if rule is None:
        verdict = _Verdict(UNKNOWN, f"no rule is called {name}, so nobody can say whether this is good")
        rule = {}
    elif problems := validate_rule(name, rule):
        verdict = _Verdict(UNKNOWN, f"its rule is malformed: {problems[0]}")
        rule = {}
    else:
        verdict = _judge(measurement, rule)
    return _check(measurement, rule, verdict)


def title_of(name: str, rule: Mapping[str, Any]) -> str:
    """Return how people call a check: the rule's title, else its name with spaces."""
    return str(rule.get("title") or name.replace("_", " "))


def _judge(measurement: Mapping[str, Any], rule: Mapping[str, Any]) -> _Verdict:
    if error := measurement.get("error"):
        return _Verdict(UNKNOWN, f"could not be measured: {error}")
    if skipped := measurement.get("skipped"):
        return _Verdict(SKIPPED, str(skipped))
    value, kind = measurement.get("value"), str(rule["kind"])
    if value is None:
        return _Verdict(UNKNOWN, "the measurement holds neither a value nor the reason why there is none")
    if "unit" in rule and measurement.get("unit", "") != rule["unit"]:
        found = measurement.get("unit") or "no unit"
        return _Verdict(UNKNOWN, f"the rule is in {rule['unit']}, the measurement in {found}")
    verdict = _judge_repeats(measurement, rule) if "repeat" in rule else _KINDS[kind](value, measurement, rule)
    if verdict.status == CRITICAL and rule.get("severity") == "warn":
        return _replace_status(verdict, WARN)
    return verdict


def _judge_repeats(measurement: Mapping[str, Any], rule: Mapping[str, Any]) -> _Verdict:
    """N of M repeats must pass. One that could not be read is no pass, and no proof of a fault either."""
    wanted, needed = rule["repeat"]["of"], rule["repeat"]["pass"]
    samples = measurement.get("samples") or []
    if not isinstance(samples, (list, tuple)) or len(samples) < wanted:
        made = len(samples) if isinstance(samples, (list, tuple)) else 0
        return _Verdict(UNKNOWN, f"{made} repeats were made, the rule wants {wanted}")
    samples = samples[-wanted:]
    judge_one = _KINDS[str(rule["kind"])]
    verdicts = [judge_one(sample, measurement, rule) for sample in samples]
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
    spread = (numbers[-1] - numbers[0]) / median(numbers) if numbers and median(numbers) > 0 else None
    unit = str(measurement.get("unit") or "")
    figures = ", ".join(format_value(sample, unit) for sample in samples)
    required = next((verdict.required for verdict in verdicts if verdict.required), "")
    reason = f"{passed} of {wanted} repeats pass, {needed} must ({figures}; each: {required or verdicts[0].reason})"
    return _Verdict(
        status,
        reason,
        required=f"{required} in {needed} of {wanted} repeats",
        threshold=next((verdict.threshold for verdict in verdicts if verdict.threshold is not None), None),
        spread=spread,
    )


def _numeric(value: Any, measurement: Mapping[str, Any]) -> str:
    """Return why a value is no figure to judge, or an empty text."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return f"a number was expected, '{format_value(value)}' was found"
    if not is_number(value):
        return f"a finite number was expected, {format_value(value)} was found"
    if value < 0 and str(measurement.get("unit") or "") not in _MAY_BE_NEGATIVE:
        return f"{format_value(value, str(measurement.get('unit') or ''))} is below zero, which cannot be"
    return ""


def _fraction_of_limit(value: Any, measurement: Mapping[str, Any], rule: Mapping[str, Any]) -> _Verdict:
    if problem := _numeric(value, measurement):
        return _Verdict(UNKNOWN, problem)
    unit, limit = str(measurement.get("unit") or ""), measurement.get("limit")
    if not is_number(limit) or limit is None or limit <= 0:
        status = SKIPPED if rule.get("when_unlimited") == "skip" else UNKNOWN
        return _Verdict(status, f"no limit is known that {format_value(value, unit)} could be held against")
    fraction, fail = value / limit, float(rule["fail"])
    warn = float(rule.get("warn", fail))
    source = measurement.get("limit_source")
    of_limit = f"the limit {format_value(limit, unit)}" + (f" ({source})" if source else "")
    measured = f"{format_value(value, unit)}, {format_percent(fraction)} of the limit"
    required = f"at least {format_value(limit * fail, unit)}, {format_percent(fail)} of the limit"
    facts = {"required": required, "measured": measured, "fraction": fraction, "threshold": limit * fail}
    figure = f"{format_value(value, unit)} is {format_percent(fraction)} of {of_limit}"
    if fraction > float(rule.get("believable", DEFAULT_BELIEVABLE)):
        return _Verdict(UNKNOWN, f"{figure}: either the limit or the measurement is wrong", **facts)
    if fraction < fail:
        return _Verdict(CRITICAL, f"{figure}, at least {format_percent(fail)} is required", **facts)
    wanted = "" if fraction >= warn else f", {format_percent(warn)} is wanted"
    return _Verdict(WARN if wanted else OK, figure + wanted, **facts)


def _minimum(value: Any, measurement: Mapping[str, Any], rule: Mapping[str, Any]) -> _Verdict:
    return _bound(value, measurement, rule, lower=True)


def _maximum(value: Any, measurement: Mapping[str, Any], rule: Mapping[str, Any]) -> _Verdict:
    return _bound(value, measurement, rule, lower=False)


def _bound(value: Any, measurement: Mapping[str, Any], rule: Mapping[str, Any], *, lower: bool) -> _Verdict:
    if problem := _numeric(value, measurement):
        return _Verdict(UNKNOWN, problem)
    unit, fail = str(measurement.get("unit") or ""), float(rule["fail"])
    warn = float(rule.get("warn", fail))
    word = "at least" if lower else "at most"
    figure, required = format_value(value, unit), f"{word} {format_value(rule['fail'], unit)}"
    facts: dict[str, Any] = {"required": required, "measured": figure, "threshold": fail}
    if value < fail if lower else value > fail:
        return _Verdict(CRITICAL, f"{figure}, {required} is required", **facts)
    if value < warn if lower else value > warn:
        usual = format_value(rule["warn"], unit)
        return _Verdict(WARN, f"{figure}, {required} is required and {word} {usual} is wanted", **facts)
    return _Verdict(OK, f"{figure}, {required} is required", **facts)


def _expected(measurement: Mapping[str, Any], rule: Mapping[str, Any]) -> Any:
    expected = measurement.get("expected")
    return rule.get("expected") if expected is None else expected


def _equals(value: Any, measurement: Mapping[str, Any], rule: Mapping[str, Any]) -> _Verdict:
    expected, unit = _expected(measurement, rule), str(measurement.get("unit") or "")
    if expected is None:
        return _Verdict(UNKNOWN, "neither the measurement nor its rule says what is expected")
    found, wanted = format_value(value, unit), format_value(expected, unit)
    if isinstance(value, float) and not math.isfinite(value):
        return _Verdict(UNKNOWN, f"a finite number was expected, {value} was found", required=wanted)
    if same(value, expected):
        return _Verdict(OK, f"{found}, as required", required=wanted, measured=found)
    return _Verdict(CRITICAL, f"{found} was found, {wanted} is required", required=wanted, measured=found)


def same(value: Any, expected: Any) -> bool:
    """Return whether a setting reads as wanted: ``4`` is ``"4"``, but ``true`` is neither ``1`` nor ``"true"``."""
    if isinstance(value, bool) or isinstance(expected, bool):
        return type(value) is type(expected) and bool(value == expected)
    if isinstance(value, (int, float, str)) and isinstance(expected, (int, float, str)):
        return bool(value == expected) or str(value) == str(expected)
    return bool(value == expected)


def _version_at_least(value: Any, measurement: Mapping[str, Any], rule: Mapping[str, Any]) -> _Verdict:
    expected = _expected(measurement, rule)
    if expected is None:
        return _Verdict(UNKNOWN, "neither the measurement nor its rule says which version is required")
    required = f"{expected} or newer"
    try:
        # Vendors' forms first (families, hexadecimal bytes); what is none of them, such as a kernel's release, in RPM's order.
        order = vendor_order(str(value), str(expected))
        order = compare_versions(str(value), str(expected)) if order is None else order
    except ValueError as error:
        return _Verdict(UNKNOWN, str(error), required=required)
    status = CRITICAL if order < 0 else OK
    return _Verdict(status, f"version {value}, {required} is required", required=required, measured=str(value))


def _record(value: Any, measurement: Mapping[str, Any], _rule: Mapping[str, Any]) -> _Verdict:
    if isinstance(value, float) and not math.isfinite(value):
        return _Verdict(UNKNOWN, f"a finite number was expected, {value} was found")
    figure = format_value(value, str(measurement.get("unit") or ""))
    return _Verdict(OK, f"{figure}, kept for the record and not judged", required="recorded", measured=figure)


_KINDS: dict[str, Callable[[Any, Mapping[str, Any], Mapping[str, Any]], _Verdict]] = {
    "fraction_of_limit": _fraction_of_limit,
    "minimum": _minimum,
    "maximum": _maximum,
    "equals": _equals,
    "version_at_least": _version_at_least,
    "record": _record,
}


def _check(measurement: Mapping[str, Any], rule: Mapping[str, Any], verdict: _Verdict) -> Check:
    unit = str(measurement.get("unit") or "")
    value, limit = measurement.get("value"), measurement.get("limit")
    conditions = measurement.get("conditions")
    conditions = dict(conditions) if isinstance(conditions, Mapping) else {}
    conditions.update({str(key): item for key, item in measurement.items() if key not in _FIELDS})
    samples = measurement.get("samples")
    return Check(
        name=str(measurement["name"]),
        scope=str(measurement["scope"]),
        status=verdict.status,
        reason=verdict.reason,
        title=title_of(str(measurement["name"]), rule),
        measured=verdict.measured or ("" if value is None else format_value(value, unit)),
        required=verdict.required,
        value=value,
        unit=unit,
        statistic=str(measurement.get("statistic") or ""),
        limit=limit if is_number(limit) else None,
        limit_source=str(measurement.get("limit_source") or ""),
        fraction=verdict.fraction,
        expected=_expected(measurement, rule),
        threshold=verdict.threshold,
        spread=verdict.spread,
        samples=tuple(samples[:MAX_SAMPLES]) if isinstance(samples, (list, tuple)) else (),
        conditions=conditions,
        rule=dict(rule),
        cause=str(measurement.get("cause") or rule.get("cause") or ""),
        next_command=str(measurement.get("next_command") or rule.get("next_command") or ""),
    )


def _unjudged(name: str, scope: str, reason: str) -> Check:
    return Check(name=name, scope=scope, status=UNKNOWN, reason=reason, title=title_of(name, {}))


def _replace_status(verdict: _Verdict, status: str) -> _Verdict:
    return _Verdict(**{**verdict.__dict__, "status": status})


def _jsonable(value: Any) -> Any:
    """Return what JSON can hold; NaN and infinity become text, so that the figure is not lost."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, int) and not isinstance(value, bool) and not is_number(value):
        return format_value(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_jsonable(item) for item in value]
    return str(value)
