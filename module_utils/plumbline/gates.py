"""Judge measurements by rules: the only place where a figure becomes OK, WARN, CRITICAL, UNKNOWN or SKIPPED.

Pure functions. A measurement comes from anywhere, so nothing about it is believed: what is no finite number in the
rule's unit becomes UNKNOWN with the reason, and UNKNOWN never counts as OK.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .gate_kinds import (
    CRITICAL,
    OK,
    SKIPPED,
    STATUSES,
    UNKNOWN,
    WARN,
    Verdict,
    expected_value,
    judge_value,
    same,
)
from .gate_rules import is_number, validate_rule
from .quantities import format_value

FAILING = frozenset({UNKNOWN, CRITICAL})

MAX_SAMPLES = 5000

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
        verdict = Verdict(UNKNOWN, f"no rule is called {name}, so nobody can say whether this is good")
        rule = {}
    elif problems := validate_rule(name, rule):
        verdict = Verdict(UNKNOWN, f"its rule is malformed: {problems[0]}")
        rule = {}
    else:
        verdict = _judge(measurement, rule)
    return check_of(measurement, rule, verdict)


def title_of(name: str, rule: Mapping[str, Any]) -> str:
    """Return how people call a check: the rule's title, else its name with spaces."""
    return str(rule.get("title") or name.replace("_", " "))


def _judge(measurement: Mapping[str, Any], rule: Mapping[str, Any]) -> Verdict:
    if error := measurement.get("error"):
        return Verdict(UNKNOWN, f"could not be measured: {error}")
    if skipped := measurement.get("skipped"):
        return Verdict(SKIPPED, str(skipped))
    if measurement.get("value") is None:
        return Verdict(UNKNOWN, "the measurement holds neither a value nor the reason why there is none")
    if "unit" in rule and measurement.get("unit", "") != rule["unit"]:
        found = measurement.get("unit") or "no unit"
        return Verdict(UNKNOWN, f"the rule is in {rule['unit']}, the measurement in {found}")
    return judge_value(measurement, rule)


def check_of(measurement: Mapping[str, Any], rule: Mapping[str, Any], verdict: Verdict) -> Check:
    unit = str(measurement.get("unit") or "")
    value, limit = measurement.get("value"), measurement.get("limit")
    conditions = measurement.get("conditions")
    conditions = dict(conditions) if isinstance(conditions, Mapping) else {}
    conditions.update({str(key): item for key, item in measurement.items() if key not in _FIELDS})
    samples = measurement.get("samples")
    # A rule's cause explains a figure that is too low; where there is none, it would mislead.
    of_rule = rule.get("cause") if value is not None else None
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
        expected=expected_value(measurement, rule),
        threshold=verdict.threshold,
        spread=verdict.spread,
        samples=tuple(samples[:MAX_SAMPLES]) if isinstance(samples, (list, tuple)) else (),
        conditions=conditions,
        rule=dict(rule),
        cause=str(measurement.get("cause") or of_rule or ""),
        next_command=str(measurement.get("next_command") or rule.get("next_command") or ""),
    )


def _unjudged(name: str, scope: str, reason: str) -> Check:
    return Check(name=name, scope=scope, status=UNKNOWN, reason=reason, title=title_of(name, {}))


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


__all__ = [
    "CRITICAL",
    "FAILING",
    "MAX_SAMPLES",
    "OK",
    "SKIPPED",
    "STATUSES",
    "UNKNOWN",
    "WARN",
    "Check",
    "judge",
    "judge_all",
    "same",
    "title_of",
    "worst",
]
