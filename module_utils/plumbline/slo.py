"""The service level that an endpoint promises: its rules, and whether it contradicts itself.

A promise that arithmetic refutes is refused before any load is sent: 128 tokens at 42 tokens/s are 3 s, whatever the
machine, so 860 ms for such a request cannot be kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .gate_rules import is_number
from .quantities import format_number, format_value

PERCENTILES = ("p50", "p90", "p99")
_LATENCIES = ("time_to_first_token", "end_to_end_latency")
DEFAULT_WARN_AT = 0.9

DEFAULT_RATE_FRACTION = 0.9

REQUIRED_FIELDS = ("prompt_tokens", "completion_tokens")
OPTIONAL_FIELDS = (
    "decode_tokens_per_second",
    "maximum_error_fraction",
    "request_rate_per_second",
    "minimum_request_rate_fraction",
    "minimum_throughput_tokens_per_second",
    "warn_at",
    *(f"{latency}_{percentile}_seconds" for latency in _LATENCIES for percentile in PERCENTILES),
)
_COUNTS = ("prompt_tokens", "completion_tokens")
_FRACTIONS = ("maximum_error_fraction", "minimum_request_rate_fraction", "warn_at")


def validate_slo(slo: Any) -> list[str]:
    """Return a sentence, with the arithmetic in it, for each thing that is wrong with an SLO."""
    if not isinstance(slo, Mapping):
        return [f"gates_slo: a mapping was expected, {type(slo).__name__} was found"]
    problems = [f"gates_slo: {field} is missing" for field in REQUIRED_FIELDS if field not in slo]
    known = (*REQUIRED_FIELDS, *OPTIONAL_FIELDS)
    problems += [f"gates_slo: {field} is unknown; it takes {', '.join(known)}" for field in slo if field not in known]
    wrong = {field: problem for field in known if field in slo and (problem := _field_problem(field, slo[field]))}
    # The arithmetic goes on with what is sound, so that one run names everything.
    sound = {field: value for field, value in slo.items() if field in known and field not in wrong}
    return [*problems, *wrong.values(), *_contradictions(sound)]


def _field_problem(field: str, value: Any) -> str:
    if not is_number(value):
        return f"gates_slo: {field} must be a number, '{value}' was found"
    if field in _COUNTS and (value != int(value) or value < 1):
        return f"gates_slo: {field} must be a whole number of 1 or more, {value} was found"
    if field in _FRACTIONS:
        lowest_excluded = field != "maximum_error_fraction"
        if value > 1 or value < 0 or (lowest_excluded and value == 0):
            return f"gates_slo: {field} is a fraction and must lie between 0 and 1, {value} was found"
    elif value <= 0:
        return f"gates_slo: {field} must be above zero, {value} was found"
    return ""


def _contradictions(slo: Mapping[str, Any]) -> list[str]:
    problems = []
    for latency in _LATENCIES:
        bounds = [(p, slo[f"{latency}_{p}_seconds"]) for p in PERCENTILES if f"{latency}_{p}_seconds" in slo]
        problems += [
            f"gates_slo contradicts itself: {_bound(f'{latency}_{low}_seconds', low_bound)} lies above"
            f" {_bound(f'{latency}_{high}_seconds', high_bound)}, but a higher percentile is never faster"
            for (low, low_bound), (high, high_bound) in zip(bounds, bounds[1:])
            if low_bound > high_bound
        ]
    return [*problems, *_impossible_latencies(slo), *_impossible_throughput(slo)]


def _impossible_latencies(slo: Mapping[str, Any]) -> list[str]:
    tokens, rate = slo.get("completion_tokens"), slo.get("decode_tokens_per_second")
    if tokens is None or rate is None:
        return []
    problems = []
    # The first token comes with the time to first token; the others follow at the decode rate.
    decode = (tokens - 1) / rate
    speech = f"{format_number(tokens)} tokens at {format_number(rate)} tokens/s take {_seconds(decode)}"
    for percentile in PERCENTILES:
        name = f"end_to_end_latency_{percentile}_seconds"
        bound = slo.get(name)
        if bound is None:
            continue
        first_name = f"time_to_first_token_{percentile}_seconds"
        first = slo.get(first_name, 0)
        if decode > bound:
            problems.append(
                f"gates_slo contradicts itself: {speech}, so no request can end within {_bound(name, bound)};"
                " promise fewer tokens, a faster decode or a longer latency"
            )
        elif first + decode > bound:
            problems.append(
                f"gates_slo contradicts itself: {speech} after the first, which may take {_bound(first_name, first)};"
                f" {_seconds(first + decode)} in all are more than {_bound(name, bound)}"
            )
    return problems


def _impossible_throughput(slo: Mapping[str, Any]) -> list[str]:
    throughput, requests = slo.get("minimum_throughput_tokens_per_second"), slo.get("request_rate_per_second")
    tokens = slo.get("completion_tokens")
    if throughput is None or requests is None or tokens is None or throughput <= requests * tokens:
        return []
    return [
        f"gates_slo contradicts itself: {format_number(requests)} requests/s (request_rate_per_second) of"
        f" {format_number(tokens)} tokens each ask for {format_number(requests * tokens)} tokens/s, so"
        f" minimum_throughput_tokens_per_second {format_number(throughput)} cannot be reached"
    ]


def rules_of_slo(slo: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the gate rules that a sound SLO stands for; a percentile without a bound is recorded, not judged.

    Units: seconds, tokens/s, requests/s and fractions. From ``warn_at`` of a bound on the check is a WARN.
    """
    margin = slo.get("warn_at", DEFAULT_WARN_AT)
    rules: dict[str, dict[str, Any]] = {}
    for latency, hint in (
        ("time_to_first_token", "prompts wait for each other or prefill is slow: look at the queue before the prefill"),
        ("end_to_end_latency", "more requests at once than the machine decodes in time"),
    ):
        for percentile in PERCENTILES:
            bound = slo.get(f"{latency}_{percentile}_seconds")
            title = f"{latency.replace('_', ' ')} {percentile.upper()}"
            rules[f"{latency}_{percentile}"] = _rule("maximum", bound, margin, unit="s", title=title, cause=hint)
    rules["output_tokens_per_second"] = _rule(
        "minimum",
        slo.get("minimum_throughput_tokens_per_second"),
        margin,
        unit="tokens/s",
        title="output throughput",
        cause="too few requests decode together, or memory bandwidth is below its limit",
    )
    rate = slo.get("request_rate_per_second")
    rules["achieved_request_rate"] = _rule(
        "minimum",
        None if rate is None else rate * slo.get("minimum_request_rate_fraction", DEFAULT_RATE_FRACTION),
        1.0,
        unit="requests/s",
        title="achieved request rate",
        cause="the endpoint or the load generator falls behind, so the latencies are those of a smaller load",
    )
    rules["request_error_fraction"] = _rule(
        "maximum",
        slo.get("maximum_error_fraction", 0),
        1.0,
        unit="fraction",
        title="requests that failed",
        cause="the endpoint refused or dropped requests under load: read its journal",
    )
    return rules


def _rule(kind: str, bound: Any, margin: float, *, unit: str, title: str, cause: str) -> dict[str, Any]:
    if bound is None:
        return {"kind": "record", "unit": unit, "title": title}
    warn = bound * margin if kind == "maximum" else bound / margin
    return {"kind": kind, "warn": warn, "fail": bound, "unit": unit, "title": title, "cause": cause}


def _bound(name: str, value: float) -> str:
    """Return a field as the file has it, and as people read it."""
    return f"{name} {format_number(value)} ({_seconds(value)})"


def _seconds(value: float) -> str:
    return format_value(float(value), "s")
