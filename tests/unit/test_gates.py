"""Each way in which a check can end, and each way in which a measurement can lie."""

from __future__ import annotations

import json
import math
import random

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
        # All samples count by their share, three in five: some modules keep them sorted and thinned.
        ([1, 1, 1, 170, 168, 171, 170, 169], "OK"),
        ([1, 1, 1, 1, 170, 168, 171, 170], "CRITICAL"),
        ([1] * 41 + [170] * 59, "CRITICAL"),
        ([1] * 40 + [170] * 60, "OK"),
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


def test_many_repeats_are_told_by_their_range() -> None:
    rule = {**BANDWIDTH, "repeat": {"of": 5, "pass": 3}}
    check = judged(rule, value=170e9, unit="B/s", limit=204.8e9, samples=[100e9 + number * 1e9 for number in range(80)])
    assert check.status == gates.WARN
    assert check.fraction == pytest.approx(170 / 204.8)
    assert check.reason == (
        "170 GB/s is 83 % of the limit 204.8 GB/s; 57 of 80 repeats pass, 48 must, 26 of them with the margin that is wanted "
        "(100 GB/s to 179 GB/s, median 139.5 GB/s; each: at least 122.9 GB/s, 60 % of the limit)"
    )
    assert check.measured == "57 of 80 repeats pass, median 139.5 GB/s"


def test_repeats_of_what_does_not_apply_are_skipped() -> None:
    rule = {**BANDWIDTH, "when_unlimited": "skip", "repeat": {"of": 2, "pass": 1}}
    check = judged(rule, value=2e9, unit="B/s", samples=[1e9, 2e9])
    assert (check.status, check.reason) == (
        gates.SKIPPED,
        "no limit is known that 2 GB/s could be held against",
    )


def test_the_cause_of_a_low_figure_is_not_told_where_there_is_no_figure() -> None:
    rule = {**BANDWIDTH, "cause": "the drives are busy", "next_command": "iostat"}
    low = judged(rule, value=1e9, unit="B/s", limit=100e9)
    assert (low.status, low.cause, low.next_command) == (gates.CRITICAL, "the drives are busy", "iostat")
    none = judged(rule, error="there is no file to read")
    assert (none.status, none.cause, none.next_command) == (gates.UNKNOWN, "", "iostat")
    assert judged(rule, error="no file", cause="the disk is gone").cause == "the disk is gone"


def test_a_misspelt_amendment_names_the_rule_that_was_meant_and_a_malformed_one_is_told_once() -> None:
    rules = {"host_memory_bandwidth": {"kind": "record"}, "fleet": {**FLEET, "of": "host_memory_bandwidth"}}
    (problem,) = gate_rules.validate_rules({**rules, "host_memory_bandwith": {"fail": 0.5}})
    assert problem.endswith("did you mean the rule host_memory_bandwidth?")
    (problem,) = gate_rules.validate_rules({**rules, "host_memory_bandwidth": 5})
    assert problem == "gate rule host_memory_bandwidth: a mapping was expected, '5' was found"


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (BANDWIDTH, "no limit is known that 2 GB/s could be held against"),
        (
            {"kind": "minimum_by_class", "floors": {"32 GT/s x16": {"fail": 1}}},
            "the measurement does not say its link_class",
        ),
        (
            {**BANDWIDTH, "unit": "B/s"},
            "2 GB/s is 200 % of the limit 1 GB/s: either the limit or the measurement is wrong",
        ),
    ],
)
def test_repeats_that_cannot_be_judged_tell_the_value_and_no_sample(rule: dict, said: str) -> None:
    limit = {"limit": 1e9} if "200 %" in said else {}
    check = judged({**rule, "repeat": {"of": 2, "pass": 1}}, value=2e9, unit="B/s", samples=[1.5e9, 1.9e9], **limit)
    assert (check.status, check.measured.partition(",")[0]) == (gates.UNKNOWN, "2 GB/s")
    assert check.reason.startswith(said)
    assert "1.5" not in check.reason


FLEET = {"kind": "fleet_median", "better": "higher", "fail": 0.9}
FLOORS = {"32 GT/s x16": {"warn": 50e9, "fail": 42e9}, "16 GT/s x16": {"fail": 21e9}}


def by_class(
    value: object, link: object = "32 GT/s x16", rule: dict | None = None, **measurement: object
) -> gates.Check:
    rule = rule or {"kind": "minimum_by_class", "unit": "B/s", "floors": FLOORS}
    return judged(rule, **{"value": value, "unit": "B/s", "link_class": link, **measurement})


@pytest.mark.parametrize(
    ("value", "link", "status"),
    [
        (55e9, "32 GT/s x16", "OK"),
        (45e9, "32 GT/s x16", "WARN"),
        (40e9, "32 GT/s x16", "CRITICAL"),
        (22e9, "16 GT/s x16", "OK"),
        (20e9, "16 GT/s x16", "CRITICAL"),
        (22e9, "16.0 GT/s  x16", "OK"),
        (22e9, " 16 gt/s x16 ", "OK"),
        (55e9, "8 GT/s x16", "UNKNOWN"),
        (55e9, "16 GT/s x160", "UNKNOWN"),
        (55e9, None, "UNKNOWN"),
        (55e9, ["32 GT/s x16"], "UNKNOWN"),
        (math.nan, "32 GT/s x16", "UNKNOWN"),
    ],
)
def test_floors_by_the_class_of_the_link(value: float, link: object, status: str) -> None:
    assert by_class(value, link).status == status


def test_a_floor_says_of_which_class_it_is_and_what_is_known() -> None:
    check = by_class(40e9)
    assert check.reason == "40 GB/s, at least 42 GB/s is required of a 32 GT/s x16 link"
    assert check.required == "at least 42 GB/s of a 32 GT/s x16 link"
    assert check.threshold == 42e9
    assert by_class(1e9, "8 GT/s x16").reason == (
        "no floor is set for the class 8 GT/s x16; there are floors for 32 GT/s x16, 16 GT/s x16"
    )
    assert by_class(1e9, None).reason.startswith("the measurement does not say its link_class; there are floors for")


def test_a_class_may_stand_in_the_conditions_or_be_another_field() -> None:
    assert by_class(22e9, None, conditions={"link_class": "16 GT/s x16"}).status == gates.OK
    rule = {"kind": "minimum_by_class", "class_by": "rate_gbits", "floors": {"200": {"fail": 22e9}}}
    check = judged(rule, value=10e9, conditions={"rate_gbits": 200})
    assert (check.status, check.required) == (gates.CRITICAL, "at least 22,000,000,000 of 200")


BOTH = {"kind": "fraction_of_limit", "unit": "B/s", "warn": 0.8, "fail": 0.65, "floors": FLOORS}


@pytest.mark.parametrize(
    ("value", "limit", "link", "status", "words"),
    [
        (55e9, 63e9, "32 GT/s x16", "OK", "87 % of the limit 63 GB/s; 55 GB/s, at least 42 GB/s is required of a 32"),
        (43e9, 63e9, "32 GT/s x16", "WARN", "80 % is wanted"),  # both: 68 %, and under 50 GB/s
        (
            41e9,
            48e9,
            "32 GT/s x16",
            "CRITICAL",
            "at least 42 GB/s is required",
        ),  # a limit that is too low hides nothing
        (44e9, 126e9, "32 GT/s x16", "CRITICAL", "35 % of the limit"),  # and the floor no miss of the limit
        (52e9, None, "32 GT/s x16", "UNKNOWN", "no limit is known"),
        (55e9, 63e9, "64 GT/s x16", "OK", "87 % of the limit 63 GB/s"),
        (30e9, 63e9, "64 GT/s x16", "CRITICAL", "48 % of the limit"),
    ],
)
def test_fraction_and_floor_are_both_judged_and_the_worse_counts(
    value: float, limit: object, link: str, status: str, words: str
) -> None:
    check = by_class(value, link, BOTH, limit=limit)
    assert check.status == status
    assert words in check.reason


@pytest.mark.parametrize(
    ("policy", "status"), [("fraction", "OK"), ("unknown", "UNKNOWN"), ("skip", "SKIPPED"), (None, "OK")]
)
def test_what_becomes_of_a_class_without_a_floor_is_said(policy: object, status: str) -> None:
    rule = {**BOTH, **({"without_floor": policy} if policy else {})}
    assert by_class(55e9, "8 GT/s x16", rule, limit=63e9).status == status


def test_where_the_limit_is_missing_by_leave_the_floor_alone_counts() -> None:
    rule = {**BOTH, "when_unlimited": "skip"}
    assert by_class(55e9, rule=rule).status == gates.OK
    assert by_class(41e9, rule=rule).status == gates.CRITICAL
    assert by_class(41e9, "8 GT/s x16", rule).status == gates.SKIPPED


def test_a_site_adds_and_takes_away_single_floors() -> None:
    rules = {"x": BOTH}
    merged = effective_rules(rules, {"x": {"floors": {"16 GT/s x16": None, "8 GT/s x16": {"fail": 10e9}}}}, None, {})
    assert gate_rules.validate_rules(merged) == []
    assert merged["x"]["floors"]["32 GT/s x16"] == FLOORS["32 GT/s x16"]
    assert gates.judge({"name": "x", "scope": "g", "value": 9e9, "unit": "B/s", "limit": 10e9, "link_class": "8 GT/s x16"}, merged).status == "CRITICAL"  # fmt: skip  # noqa: E501
    assert gates.judge({"name": "x", "scope": "g", "value": 9e9, "unit": "B/s", "limit": 10e9, "link_class": "16 GT/s x16"}, merged).status == "OK"  # fmt: skip  # noqa: E501
    assert rules == {"x": BOTH}


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
            {"kind": "minimum_by_class", "floors": {"a": {"fail": 1}}, "class_by": "unit"},
            {**BANDWIDTH, "floors": {"a": {"fail": 1}}, "class_by": "limit_source", "repeat": {"of": 2, "pass": 1}},
            {"kind": "fleet_median", "of": "y", "better": "higher", "fail": 0.9},
        ]
    ),
)
def test_whatever_comes_is_judged_and_can_be_written(measurement: dict, rule: dict) -> None:
    check = gates.judge(measurement, {"x": rule})
    assert check.status in gates.STATUSES
    assert check.reason
    json.dumps(check.record(), allow_nan=False)


RANKED = st.sampled_from(
    [
        {"kind": "minimum", "fail": 20, "warn": 40},
        {"kind": "fraction_of_limit", "fail": 0.3, "warn": 0.6, "believable": 1e9},
        {"kind": "minimum_by_class", "floors": {"a": {"fail": 20, "warn": 40}}},
        {
            "kind": "fraction_of_limit",
            "fail": 0.3,
            "warn": 0.6,
            "believable": 1e9,
            "floors": {"a": {"fail": 20, "warn": 40}},
        },
        {"kind": "minimum", "fail": 20, "warn": 40, "repeat": {"of": 2, "pass": 1}},
    ]
)


@given(RANKED, st.floats(0, 1e6), st.floats(0, 1e6), st.lists(st.floats(0, 100), min_size=1, max_size=8))
def test_a_better_figure_is_never_judged_worse(rule: dict, one: float, two: float, more: list) -> None:
    def rank(value: float) -> int:
        check = judged(rule, value=value, limit=100, link_class="a", samples=[value, *more])
        return gates.STATUSES.index(check.status)

    assert rank(max(one, two)) <= rank(min(one, two))


@given(st.lists(st.floats(0, 100), min_size=2, max_size=40), st.randoms(use_true_random=False))
def test_the_order_of_repeats_does_not_change_the_verdict(samples: list, shuffler: random.Random) -> None:
    rule = {"kind": "minimum", "fail": 20, "warn": 40, "repeat": {"of": 2, "pass": 1}}
    shuffled = list(samples)
    shuffler.shuffle(shuffled)
    assert judged(rule, value=1, samples=samples).status == judged(rule, value=1, samples=shuffled).status


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
        ({"kind": "maximum", "fail": "50e9"}, "YAML takes a figure for a text unless it has a point and a sign"),
        ({"kind": "minimum_by_class"}, "floors must map a class to {warn: .., fail: ..}, nothing was found"),
        ({"kind": "minimum_by_class", "floors": {}}, "floors must map a class"),
        ({"kind": "minimum_by_class", "floors": [1]}, "floors must map a class"),
        (
            {"kind": "minimum_by_class", "floors": {"a": 5}},
            "floors, a: {warn: .., fail: ..} was expected, '5' was found",
        ),
        ({"kind": "minimum_by_class", "floors": {"a": {"warn": 5}}}, "floors, a: {warn: .., fail: ..} was expected"),
        ({"kind": "minimum_by_class", "floors": {"a": {"fail": 5, "warn": 4}}}, "floors, a: warn 4 lies beyond fail 5"),
        ({"kind": "minimum_by_class", "floors": {"a": {"fail": "x"}}}, "floors, a: fail must be a finite number"),
        (
            {"kind": "minimum_by_class", "floors": {"16 GT/s": {"fail": 1}, "16.0 GT/s": {"fail": 2}}},
            "floors, 16.0 GT/s: the class is there twice",
        ),
        (
            {"kind": "minimum_by_class", "floors": {"a": {"fail": 5}}, "without_floor": "fraction"},
            "without_floor must be unknown or skip, 'fraction' was found",
        ),
        ({"kind": "minimum_by_class", "floors": {"a": {"fail": 5}}, "class_by": 5}, "class_by must name a field"),
        ({"kind": "minimum", "fail": 5, "floors": {"a": {"fail": 5}}}, "option 'floors' is unknown"),
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
