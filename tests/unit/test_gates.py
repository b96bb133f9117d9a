"""Each way in which a check can end, and each way in which a measurement can lie."""

from __future__ import annotations

import json
import math

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import gate_rules, gates
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.controller import (
    effective_rules,
    gate_problems,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.quantities import (
    format_percent,
    format_seconds,
    format_value,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.version_compare import compare_versions
from hypothesis import given
from hypothesis import strategies as st

BANDWIDTH = {"kind": "fraction_of_limit", "warn": 0.75, "fail": 0.6, "unit": "B/s"}


def judged(rule: dict, **measurement: object) -> gates.Check:
    return gates.judge({"name": "x", "scope": "host", **measurement}, {"x": rule})


def bandwidth(value: object, **measurement: object) -> gates.Check:
    return judged(BANDWIDTH, **{"value": value, "unit": "B/s", "limit": 204.8e9, **measurement})


@pytest.mark.parametrize(
    ("value", "status"), [(170e9, "OK"), (153.6e9, "OK"), (140e9, "WARN"), (122e9, "CRITICAL"), (0, "CRITICAL")]
)
def test_fraction_of_limit(value: float, status: str) -> None:
    check = bandwidth(value)
    assert check.status == status
    assert check.fraction == pytest.approx(value / 204.8e9)
    assert check.threshold == pytest.approx(122.88e9)


def test_a_failure_says_what_was_measured_and_required_the_cause_and_the_next_command() -> None:
    check = bandwidth(
        98.1e9,
        limit_source="8 channels x 3200 MT/s x 8 B (SMBIOS)",
        scope="numa1",
        cause="socket 1: 6 of 8 channels populated (C, G empty)",
        next_command="ansible-playbook playbooks/survey.yml",
    )
    assert check.line() == (
        "CRITICAL x (numa1): 98.1 GB/s is 48 % of the limit 204.8 GB/s (8 channels x 3200 MT/s x 8 B (SMBIOS)), "
        "at least 60 % is required. Probable cause: socket 1: 6 of 8 channels populated (C, G empty). "
        "Next: ansible-playbook playbooks/survey.yml"
    )
    assert check.required == "at least 122.9 GB/s, 60 % of the limit"


@pytest.mark.parametrize(
    "value",
    [None, math.nan, math.inf, -math.inf, -1.0, True, "163.2e9", "", [], {}, object(), 10**400, -(10**5000)],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_figure_is_unknown(value: object) -> None:
    check = bandwidth(value)
    assert check.status == gates.UNKNOWN
    assert check.failed
    assert check.reason
    json.dumps(check.record(), allow_nan=False)


@pytest.mark.parametrize("limit", [None, 0, -1, math.nan, math.inf, "204.8e9", True])
def test_without_a_limit_nothing_is_good(limit: object) -> None:
    assert bandwidth(100e9, limit=limit).status == gates.UNKNOWN
    skip = {**BANDWIDTH, "when_unlimited": "skip"}
    check = judged(skip, value=100e9, unit="B/s", limit=limit)
    assert (check.status, check.failed) == (gates.SKIPPED, False)
    assert "no limit is known" in check.reason


def test_a_figure_beyond_physics_is_not_believed() -> None:
    check = bandwidth(2.1 * 204.8e9)
    assert check.status == gates.UNKNOWN
    assert "either the limit or the measurement is wrong" in check.reason
    assert judged({**BANDWIDTH, "believable": 3}, value=2.1 * 204.8e9, unit="B/s", limit=204.8e9).status == gates.OK


@pytest.mark.parametrize(("unit", "found"), [("MB/s", "MB/s"), ("", "no unit"), (None, "no unit")])
def test_another_unit_is_unknown(unit: object, found: str) -> None:
    check = bandwidth(170e9, unit=unit)
    assert check.status == gates.UNKNOWN
    assert check.reason == f"the rule is in B/s, the measurement in {found}"


@pytest.mark.parametrize(
    ("kind", "value", "status"),
    [
        ("maximum", 0.8, "OK"),
        ("maximum", 0.95, "WARN"),
        ("maximum", 1.0, "WARN"),
        ("maximum", 1.01, "CRITICAL"),
        ("minimum", 1.2, "OK"),
        ("minimum", 1.05, "WARN"),
        ("minimum", 0.99, "CRITICAL"),
    ],
)
def test_bounds(kind: str, value: float, status: str) -> None:
    rule = {"kind": kind, "fail": 1.0, "warn": 0.9 if kind == "maximum" else 1.1, "unit": "s"}
    assert judged(rule, value=value, unit="s").status == status


def test_a_temperature_may_be_negative() -> None:
    assert judged({"kind": "maximum", "fail": 90}, value=-5, unit="Cel").status == gates.OK


@pytest.mark.parametrize(
    ("value", "expected", "status"),
    [
        ("NPS4", "NPS4", "OK"),
        ("NPS1", "NPS4", "CRITICAL"),
        (4, "4", "OK"),
        (4.0, 4, "OK"),
        (True, True, "OK"),
        (True, 1, "CRITICAL"),
        (True, "true", "CRITICAL"),
        (["a"], ["a"], "OK"),
        ("x", None, "UNKNOWN"),
        (math.nan, math.nan, "UNKNOWN"),
    ],
)
def test_equals(value: object, expected: object, status: str) -> None:
    assert judged({"kind": "equals"}, value=value, expected=expected).status == status


def test_a_rule_may_say_what_is_expected_and_the_measurement_knows_better() -> None:
    assert judged({"kind": "equals", "expected": True}, value=False).status == gates.CRITICAL
    assert judged({"kind": "equals", "expected": True}, value=False, expected=False).status == gates.OK


@pytest.mark.parametrize(
    ("value", "expected", "status"),
    [("2.19.1", "2.18", "OK"), ("2.9", "2.18", "CRITICAL"), ("unknown", "2.18", "UNKNOWN"), ("2.18", None, "UNKNOWN")],
)
def test_version_at_least(value: str, expected: object, status: str) -> None:
    assert judged({"kind": "version_at_least"}, value=value, expected=expected).status == status


@pytest.mark.parametrize(
    ("left", "right", "order"),
    [
        ("6.1.0-25-amd64", "6.1", 1),
        ("6.12-rc1", "6.12", -1),
        ("6.12", "6.12-rc1", 1),
        ("7.00.00.172", "7.00.30.00", -1),
        ("2.0", "2.0.0", 0),
        ("v2.68", "2.68", 0),
        ("535.104.05", "550.54", -1),
        ("1.0b", "1.0a", 1),
        ("1.10", "1.9", 1),
    ],
)
def test_versions(left: str, right: str, order: int) -> None:
    assert compare_versions(left, right) == order
    assert compare_versions(right, left) == -order


def test_record_keeps_the_figure_and_says_that_nothing_was_judged() -> None:
    check = judged({"kind": "record"}, value=163.2e9, unit="B/s")
    assert check.status == gates.OK
    assert check.reason == "163.2 GB/s, kept for the record and not judged"
    assert check.required == "recorded"
    assert judged({"kind": "record"}, value=math.nan).status == gates.UNKNOWN


def test_skipped_and_error_carry_their_reason() -> None:
    skipped = judged(BANDWIDTH, skipped="no NVIDIA device")
    assert (skipped.status, skipped.reason, skipped.failed) == (gates.SKIPPED, "no NVIDIA device", False)
    error = judged(BANDWIDTH, value=170e9, error="gcc is missing")
    assert (error.status, error.failed) == (gates.UNKNOWN, True)
    assert "gcc is missing" in error.reason
    nothing = judged(BANDWIDTH, unit="B/s")
    assert nothing.status == gates.UNKNOWN


def test_a_measurement_without_a_rule_is_unknown() -> None:
    check = gates.judge({"name": "y", "scope": "host", "value": 1}, {"x": BANDWIDTH})
    assert check.status == gates.UNKNOWN
    assert "no rule is called y" in check.reason


@pytest.mark.parametrize(
    "measurement",
    [
        None,
        1,
        "x",
        [],
        {},
        {"name": "x"},
        {"scope": "host", "value": 1},
        {"name": "", "scope": "h"},
        {"name": 1, "scope": 2},
    ],
)
def test_a_malformed_measurement_is_unknown(measurement: object) -> None:
    assert gates.judge(measurement, {"x": BANDWIDTH}).status == gates.UNKNOWN


@pytest.mark.parametrize("measurements", [[], (), None, "x", {}, 1])
def test_nothing_measured_is_unknown(measurements: object) -> None:
    checks = gates.judge_all(measurements, {})
    assert [check.status for check in checks] == [gates.UNKNOWN]


def test_a_miss_of_low_severity_is_a_warning_and_an_unknown_stays_one() -> None:
    rule = {**BANDWIDTH, "severity": "warn"}
    assert judged(rule, value=1e9, unit="B/s", limit=204.8e9).status == gates.WARN
    assert judged(rule, value=1e9, unit="B/s").status == gates.UNKNOWN


@pytest.mark.parametrize(
    ("samples", "status"),
    [
        ([170, 168, 171, 90, 80], "OK"),
        ([170, 168, 90, 91, 80], "CRITICAL"),
        ([170, 168, 140, 91, 80], "WARN"),
        ([170, 168, math.nan, None, 80], "UNKNOWN"),
        ([math.nan, math.nan, 80, 81, 82], "CRITICAL"),
        ([170, 168, 171, 172], "UNKNOWN"),
        ([1, 1, 1, 170, 168, 171, 170, 169], "OK"),
    ],
)
def test_three_of_five_repeats_must_pass(samples: list, status: str) -> None:
    rule = {**BANDWIDTH, "repeat": {"of": 5, "pass": 3}}
    scaled = [sample * 1e9 if isinstance(sample, (int, float)) else sample for sample in samples]
    check = judged(rule, value=170e9, unit="B/s", limit=204.8e9, samples=scaled)
    assert check.status == status
    json.dumps(check.record(), allow_nan=False)


def test_the_spread_of_repeats_is_kept() -> None:
    rule = {"kind": "minimum", "fail": 90, "repeat": {"of": 3, "pass": 2}}
    check = judged(rule, value=100, samples=[90, 100, 110])
    assert check.spread == pytest.approx(0.2)
    assert check.reason.startswith("3 of 3 repeats pass, 2 must (90, 100, 110")


@pytest.mark.parametrize(
    ("statuses", "worst"),
    [
        (["OK", "SKIPPED"], "OK"),
        (["SKIPPED"], "SKIPPED"),
        (["OK", "WARN", "UNKNOWN"], "UNKNOWN"),
        (["UNKNOWN", "CRITICAL"], "CRITICAL"),
        ([], "UNKNOWN"),
    ],
)
def test_the_worst_counts(statuses: list, worst: str) -> None:
    assert gates.worst(statuses) == worst


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.just(10**400) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=6,
)


@given(
    st.fixed_dictionaries(
        {"name": st.just("x"), "scope": st.just("host")},
        optional=dict.fromkeys(
            [
                "value",
                "unit",
                "limit",
                "limit_source",
                "expected",
                "samples",
                "conditions",
                "skipped",
                "error",
                "cause",
                "next_command",
            ],
            anything,
        ),
    ),
    st.sampled_from(
        [
            BANDWIDTH,
            {"kind": "minimum", "fail": 1},
            {"kind": "maximum", "fail": 1, "warn": 0.5},
            {"kind": "equals"},
            {"kind": "version_at_least", "expected": "1"},
            {"kind": "record"},
            {"kind": "minimum", "fail": 1, "repeat": {"of": 2, "pass": 1}},
        ]
    ),
)
def test_whatever_comes_is_judged_and_can_be_written(measurement: dict, rule: dict) -> None:
    check = gates.judge(measurement, {"x": rule})
    assert check.status in gates.STATUSES
    assert check.reason
    json.dumps(check.record(), allow_nan=False)


@given(anything)
def test_whatever_is_called_a_rule_is_sound_or_refused(rule: object) -> None:
    check = gates.judge({"name": "x", "scope": "host", "value": 1}, {"x": rule})
    if gate_rules.validate_rule("x", rule):
        assert check.status == gates.UNKNOWN


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("maximum", "a mapping was expected"),
        ({}, "no kind was found"),
        ({"kind": "maximun", "fail": 1}, "kind 'maximun' was found"),
        ({"kind": "maximum"}, "fail is missing"),
        ({"kind": "maximum", "fail": "1"}, "fail must be a finite number"),
        ({"kind": "maximum", "fail": math.nan}, "fail must be a finite number"),
        ({"kind": "maximum", "fail": 1, "warn": 2}, "warn 2 lies beyond fail 1"),
        ({"kind": "minimum", "fail": 2, "warn": 1}, "warn 1 lies beyond fail 2"),
        ({"kind": "fraction_of_limit", "fail": 60}, "must lie above 0 and up to 1"),
        ({"kind": "fraction_of_limit", "fail": 0.6, "warn": 0.5}, "warn 0.5 lies beyond fail 0.6"),
        ({"kind": "fraction_of_limit", "fail": 0.6, "when_unlimited": "ok"}, "when_unlimited must be unknown or skip"),
        ({"kind": "maximum", "fail": 1, "wran": 0.5}, "option 'wran' is unknown: did you mean warn?"),
        ({"kind": "equals", "fail": 1}, "option 'fail' is unknown"),
        ({"kind": "equals", "severity": "info"}, "severity must be critical or warn"),
        ({"kind": "maximum", "fail": 1, "unit": 5}, "unit must be a text"),
        ({"kind": "maximum", "fail": 1, "repeat": {"of": 3, "pass": 5}}, "pass must lie between 1 and of"),
        ({"kind": "maximum", "fail": 1, "repeat": 3}, "repeat must be written as"),
    ],
)
def test_a_malformed_rule_is_refused_with_one_sentence(rule: object, words: str) -> None:
    problems = gate_rules.validate_rule("x", rule)
    assert len(problems) == 1
    assert words in problems[0]
    assert "gate rule x" in problems[0]


def test_layers_of_rules() -> None:
    rules = {"a": {"kind": "maximum", "fail": 2, "warn": 1}, "b": {"kind": "equals"}}
    merged = effective_rules(rules, {"a": {"fail": 3}}, None, {"b": {"kind": "record"}, "c": {"kind": "record"}})
    assert merged == {"a": {"kind": "maximum", "fail": 3, "warn": 1}, "b": {"kind": "record"}, "c": {"kind": "record"}}


def test_the_slo_is_the_one_source_of_its_rules() -> None:
    slo = {"prompt_tokens": 1, "completion_tokens": 1, "end_to_end_latency_p99_seconds": 2}
    assert effective_rules({}, {}, slo, {})["end_to_end_latency_p99"]["fail"] == 2
    problems = gate_problems({"end_to_end_latency_p99": {"kind": "maximum", "fail": 1}}, {}, slo)
    assert problems == [
        "gate rule end_to_end_latency_p99: this check follows from gates_slo; change it there, or in gates_rules_overrides"
    ]
    assert gate_problems({}, {"end_to_end_latency_p99": {"fail": 1, "warn": 3}}, slo) == [
        "gate rule end_to_end_latency_p99: warn 3 lies beyond fail 1; below a maximum, warn must not exceed fail"
    ]
    assert gate_problems([], {}, None) == [
        "gates_rules: a mapping of measurement names to rules was expected, list was found"
    ]


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (204.8e9, "B/s", "204.8 GB/s"),
        (2**30, "B", "1 GiB"),
        (0.86, "s", "860 ms"),
        (3.0476, "s", "3.048 s"),
        (725, "s", "12 min 5 s"),
        (0.025, "fraction", "2.5 %"),
        (2666, "MT/s", "2666 MT/s"),
        (16.0, "GT/s", "16 GT/s"),
        (True, "", "yes"),
        (None, "B/s", "nothing"),
        (1234567, "tokens", "1,234,567 tokens"),
        (math.nan, "s", "nan"),
        (41.5, "Cel", "41.5 °C"),
        (0, "B/s", "0 B/s"),
        ("", "", "an empty text"),
    ],
)
def test_figures_for_people(value: object, unit: str, text: str) -> None:
    assert format_value(value, unit) == text


def test_percent_and_seconds() -> None:
    assert [format_percent(value) for value in (0.48, 0.009, 0.995, 1.0, 0.05)] == [
        "48 %",
        "0.9 %",
        "99.5 %",
        "100 %",
        "5 %",
    ]
    assert [format_seconds(value) for value in (0, 2e-6, 59.96, 7384)] == ["0 s", "2 µs", "59.96 s", "2 h 3 min"]
