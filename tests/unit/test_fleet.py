"""A host beside its like: who is compared with whom, what is a miss, and what one pass over the evidence costs."""

from __future__ import annotations

import json
import math
import random
from datetime import datetime, timedelta, timezone
from pathlib import Path
from statistics import median

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import evidence, fleet, gates
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.fleet_evidence import survey_fleet
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.gate_rules import (
    validate_rule,
    validate_rules,
)
from hypothesis import given
from hypothesis import strategies as st

RULE = {
    "kind": "fleet_median",
    "of": "copy",
    "better": "higher",
    "warn": 0.95,
    "fail": 0.9,
    "fail_deviations": 5,
    "minimum_hosts": 4,
}
RULES = {"fleet_copy": RULE, "copy": {"kind": "record"}}
NOW = datetime(2026, 11, 30, 12, tzinfo=timezone.utc)


def record(host: str, value: object, name: str = "copy", scope: str = "numa0", **more: object) -> dict:
    """A line of evidence as the gate writes it."""
    check = gates.judge(
        {"name": name, "scope": scope, "value": value, "unit": "B/s", **more}, {name: {"kind": "record"}}
    )
    head = evidence.envelope("check", run="now", host=host, stage="validate", task="", check_mode=False)
    return {**head, **check.record()}


def fleet_of(values: dict[str, object], rule: dict = RULE, **more: object) -> dict[str, gates.Check]:
    """Judge each of several hosts with one figure beside the others."""
    records = {host: [record(host, value, **more)] for host, value in values.items()}
    figures = [figure for each in records.values() for figure in fleet.figures(each, ["copy"])]
    # What one task hands to the other goes through JSON.
    groups = json.loads(json.dumps(fleet.summarise(figures)))
    return {host: fleet.judge_host(each, groups, {"fleet_copy": rule})[0] for host, each in records.items()}


def statuses(values: dict[str, object], rule: dict = RULE) -> dict[str, str]:
    return {host: check.status for host, check in fleet_of(values, rule).items()}


GOOD = {f"node{number}": 200e9 + number * 1e9 for number in range(1, 9)}


def test_a_host_that_deviates_fails_alone_and_says_from_what() -> None:
    checks = fleet_of({**GOOD, "node9": 120e9})
    assert {host for host, check in checks.items() if check.status != "OK"} == {"node9"}
    check = checks["node9"]
    assert check.status == gates.CRITICAL
    assert check.reason == (
        "120 GB/s is 59 % of the fleet's median 204.5 GB/s (8 comparable hosts, spread 1.4 %, 28.5 scaled deviations away), "
        "at least 90 % is required"
    )
    assert check.required == "at least 184.1 GB/s, 90 % of the fleet's median"
    assert check.name == "fleet_copy"
    kept = check.record()["conditions"]
    assert kept["median"] == 204.5e9
    assert kept["scaled_median_absolute_deviation"] == pytest.approx(2e9 * 1.4826)
    assert kept["comparable_hosts"] == 8
    assert kept["hosts"] == "node[1-9]"
    assert (kept["lowest"], kept["highest"], kept["of_earlier_runs"]) == (120e9, 208e9, 0)
    assert check.spread == pytest.approx(2e9 * 1.4826 / 204.5e9)
    assert check.threshold == pytest.approx(0.9 * 204.5e9)


def test_a_little_less_is_a_warning_and_more_is_welcome() -> None:
    found = statuses({**GOOD, "node9": 190e9, "node10": 400e9})
    assert found.pop("node9") == gates.WARN
    assert set(found.values()) == {gates.OK}


def test_lower_may_be_better() -> None:
    rule = {**RULE, "better": "lower", "warn": 1.1, "fail": 1.3}
    found = statuses({**GOOD, "slow": 300e9, "late": 235e9, "fast": 1e9}, rule)
    assert (found["slow"], found["late"], found["fast"]) == (gates.CRITICAL, gates.WARN, gates.OK)


def test_in_a_noisy_fleet_a_figure_within_the_noise_is_no_miss() -> None:
    noisy = {f"n{number}": value for number, value in enumerate((100.0, 140.0, 180.0, 220.0, 260.0, 300.0))}
    # 100 is under half of the median 220, but the fleet itself is spread by a quarter.
    assert statuses(noisy)["n0"] != gates.CRITICAL
    without = {key: value for key, value in RULE.items() if key != "fail_deviations"}
    assert statuses(noisy, without)["n0"] == gates.CRITICAL


def test_in_a_fleet_too_noisy_to_find_anything_nothing_is_ok() -> None:
    noisy = {f"n{number}": value for number, value in enumerate((0.0, 140.0, 180.0, 220.0, 260.0, 300.0))}
    rule = {**RULE, "warn_deviations": 5}
    check = fleet_of(noisy, rule)["n0"]
    assert (check.status, check.required, check.threshold) == (gates.SKIPPED, "", None)
    assert check.reason.endswith("the hosts differ too much for any to count as slow")
    # Where a WARN is still possible, the check can fail, and does.
    assert statuses(noisy)["n0"] == gates.WARN
    assert statuses(noisy)["n5"] == gates.OK


def test_in_a_fleet_without_any_spread_the_fraction_decides() -> None:
    same = {f"n{number}": 100.0 for number in range(6)}
    assert set(statuses(same).values()) == {gates.OK}
    assert statuses({**same, "close": 99.0})["close"] == gates.OK
    assert statuses({**same, "far": 80.0})["far"] == gates.CRITICAL


def test_a_uniformly_slow_fleet_is_not_found_and_half_of_one_drags_nobody_down() -> None:
    assert set(statuses({f"n{number}": 10.0 for number in range(9)}).values()) == {gates.OK}
    found = statuses({**{f"a{number}": 100.0 for number in range(6)}, **{f"b{number}": 50.0 for number in range(3)}})
    assert {host for host, status in found.items() if status == gates.CRITICAL} == {"b0", "b1", "b2"}


@pytest.mark.parametrize(
    ("hosts", "words"), [(1, "0 comparable hosts"), (2, "1 comparable host,"), (4, "3 comparable")]
)
def test_a_fleet_that_is_too_small_is_skipped_with_the_reason(hosts: int, words: str) -> None:
    check = fleet_of({f"n{number}": 100.0 for number in range(hosts)})["n0"]
    assert (check.status, check.failed) == (gates.SKIPPED, False)
    assert check.reason.startswith(words)
    assert check.reason.endswith(", 4 are needed")


def test_a_machine_alone_is_told_so_once() -> None:
    rules = {**RULES, "fleet_fill": {**RULE, "of": "fill", "title": "fill beside the fleet"}}
    lines = [record("h", 1.0, scope=scope) for scope in ("numa0", "numa1")] + [record("h", 2.0, name="fill")]
    groups = fleet.summarise(fleet.figures(lines, ["copy", "fill"]))
    (check,) = fleet.judge_host(lines, groups, rules)
    assert (check.status, check.title) == (gates.SKIPPED, "beside the fleet")
    assert check.reason == "0 comparable hosts, 4 are needed"
    assert check.conditions["checks"] == ["fill beside the fleet", "fleet copy"]
    # Where one of them can be judged, each is told.
    more = [figure for n in range(9) for figure in fleet.figures([record(f"n{n}", 2.0, name="fill")], ["fill"])]
    groups = fleet.summarise([*fleet.figures(lines, ["copy", "fill"]), *more])
    assert [check.status for check in fleet.judge_host(lines, groups, rules)] == ["SKIPPED", "SKIPPED", "OK"]


def test_only_its_like_counts() -> None:
    def group(**more: object) -> str:
        return fleet.group_key({**record("h", 1.0), **more})

    assert group() == group(host="other", value=9.0, time="later", status="CRITICAL")
    different = [
        group(scope="numa1"),
        group(stage="accept"),
        group(limit=204.8e9),
        group(limit_source="6 channels"),
        group(hardware="2 x another processor"),
        group(conditions={"link_class": "16 GT/s x16"}),
        group(unit="B"),
    ]
    assert len({group(), *different}) == len(different) + 1


def test_the_hardware_of_a_host_is_its_processors_and_gpus_but_not_how_many() -> None:
    node = {"cpu": {"model": "AMD  EPYC 9654", "sockets": 2}, "virtualization": "none"}
    gpu = {"kind": "gpu", "vendor_id": "10de", "device_id": "2335"}
    pcie = {"functions": [gpu, {"kind": "nic", "vendor_id": "15b3", "device_id": "1021"}]}
    assert fleet.hardware_class(node, pcie) == "2 x AMD EPYC 9654; GPU 10de:2335"
    assert fleet.hardware_class(node, {"functions": [gpu] * 8}) == fleet.hardware_class(node, pcie)
    assert fleet.hardware_class({**node, "virtualization": "kvm"}, None) == "2 x AMD EPYC 9654; kvm"
    for nothing in (None, {}, [], "x", {"cpu": None}, {"cpu": {"model": ""}}):
        assert fleet.hardware_class(nothing, nothing) == ""


def test_the_newest_figure_counts_and_what_could_not_be_measured_is_none() -> None:
    old, new = record("h", 1.0), record("h", 2.0)
    assert [figure.value for figure in fleet.figures([old, new], ["copy"])] == [2.0]
    failed = record("h", None, error="gcc is missing")
    assert fleet.figures([old, failed], ["copy"]) == []
    groups = fleet.summarise(fleet.figures([record(f"n{number}", 1.0) for number in range(9)], ["copy"]))
    (check,) = fleet.judge_host([old, failed], groups, RULES)
    assert check.status == gates.SKIPPED
    assert "UNKNOWN" in check.reason
    assert "gcc is missing" in check.reason


def test_a_figure_without_a_limit_is_compared_all_the_same() -> None:
    skipped = {**record("h", 1.0), "status": "SKIPPED", "reason": "no limit is known that 1 B/s could be held against"}
    assert [figure.value for figure in fleet.figures([skipped], ["copy"])] == [1.0]
    assert fleet.figures([{**skipped, "value": None}], ["copy"]) == []
    assert fleet.figures([{**skipped, "status": "UNKNOWN"}], ["copy"]) == []


def test_what_does_not_apply_to_a_host_is_not_compared_whatever_its_unit() -> None:
    rules = {"fleet_copy": {**RULE, "unit": "B/s"}}
    skipped = record("h", None, skipped="there is no GPU", unit="")
    (check,) = fleet.judge_host([skipped], {}, rules)
    assert (check.status, check.reason) == (
        gates.SKIPPED,
        "none of what the fleet's rules compare was measured here: copy",
    )
    # Neither is what was measured before.
    assert fleet.judge_host([record("h", 1.0), skipped], {}, rules)[0].name == "fleet"
    assert fleet.figures([record("h", 1.0), skipped], ["copy"]) == []
    failed = record("h", None, error="gcc is missing", unit="")
    assert fleet.judge_host([failed], {}, rules)[0].status == gates.SKIPPED


def test_where_nothing_was_measured_that_is_said() -> None:
    (check,) = fleet.judge_host([record("h", 1.0, name="other")], {}, RULES)
    assert (check.status, check.scope) == (gates.SKIPPED, "host")
    assert check.reason.endswith("was measured here: copy")
    (check,) = fleet.judge_host([record("h", 1.0)], {}, {})
    assert (check.status, check.reason) == (gates.SKIPPED, "no rule compares hosts")


def test_a_malformed_rule_another_unit_and_a_median_of_zero_are_unknown() -> None:
    (check,) = fleet.judge_host([record("h", 1.0)], {}, {"fleet_copy": {**RULE, "better": "faster"}})
    assert check.status == gates.UNKNOWN
    assert "malformed" in check.reason
    assert set(statuses(dict.fromkeys("abcdef", 1.0), {**RULE, "unit": "s"}).values()) == {gates.UNKNOWN}
    assert set(statuses(dict.fromkeys("abcdef", 0.0)).values()) == {gates.UNKNOWN}


def test_a_miss_of_low_severity_is_a_warning() -> None:
    assert statuses({**GOOD, "node9": 1e9}, {**RULE, "severity": "warn"})["node9"] == gates.WARN


def test_the_gate_itself_does_not_judge_by_such_a_rule() -> None:
    check = gates.judge({"name": "fleet_copy", "scope": "h", "value": 1.0}, RULES)
    assert check.status == gates.UNKNOWN
    assert "fleet_gate" in check.reason


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"of": None}, "the option of is missing"),
        ({"better": "more"}, "better must be higher or lower, 'more' was found"),
        ({"better": None}, "better must be higher or lower, 'None' was found"),
        ({"fail": 1.2, "warn": 1.3}, "fail must be above 0 and up to 1 of the median, 1.2 was found"),
        ({"fail": 0}, "fail must be above 0"),
        ({"warn": 0.5}, "warn 0.5 lies beyond fail 0.9"),
        ({"better": "lower", "fail": 0.9, "warn": 0.9}, "fail must be 1 or more of the median"),
        ({"better": "lower", "fail": 1.2, "warn": 1.3}, "warn 1.3 lies beyond fail 1.2"),
        ({"fail": "0.9"}, "fail must be a finite number"),
        ({"minimum_hosts": 1}, "minimum_hosts must be a whole number of 2 or more, '1' was found"),
        ({"minimum_hosts": 2.5}, "minimum_hosts must be a whole number"),
        ({"fail_deviations": -1}, "must not be below zero"),
        ({"warn_deviations": 6}, "warn_deviations 6 lies beyond fail_deviations 5"),
        ({"earlier_days": math.inf}, "earlier_days must be a finite number"),
        ({"repeat": {"of": 2, "pass": 1}}, "takes no repeat"),
        ({"minimum": 5}, "option 'minimum' is unknown"),
    ],
)
def test_a_malformed_rule_is_refused_with_one_sentence(change: dict, words: str) -> None:
    problems = validate_rule("fleet_copy", {**RULE, **change})
    assert len(problems) == 1
    assert words in problems[0]


def test_a_rule_needs_its_measurement_and_its_fail() -> None:
    assert "fail is missing" in validate_rule("f", {"kind": "fleet_median", "of": "copy", "better": "higher"})[0]
    early = {key: value for key, value in RULE.items() if key != "fail_deviations"} | {"warn_deviations": 3}
    assert validate_rule("f", early) == ["gate rule f: warn_deviations needs fail_deviations beside it"]
    assert validate_rules(RULES) == []
    assert validate_rules({"fleet_copy": {**RULE, "of": "cpoy"}, "copy": {"kind": "record"}}) == [
        "gate rule fleet_copy: no measurement that a rule judges is called cpoy: did you mean copy?"
    ]


# The arithmetic: what a summary of a few numbers says is what the figures of all others would have said.

values_of_a_fleet = st.lists(
    st.floats(min_value=0, max_value=1e12) | st.integers(0, 5).map(float), min_size=2, max_size=40
)


@given(values_of_a_fleet)
def test_median_and_spread_of_the_others_are_exact(values: list[float]) -> None:
    figures = [fleet.Figure(f"n{number}", "k", value, {}) for number, value in enumerate(values)]
    (summary,) = fleet.summarise(figures).values()
    for number, value in enumerate(values):
        rest = values[:number] + values[number + 1 :]
        centre = median(rest)
        spread = median(abs(other - centre) for other in rest) * fleet.MAD_TO_SIGMA
        assert fleet.others(summary, value) == (len(rest), pytest.approx(centre), pytest.approx(spread))


@given(values_of_a_fleet, st.randoms(use_true_random=False))
def test_the_order_of_hosts_does_not_change_the_verdict(values: list[float], shuffler: random.Random) -> None:
    hosts = {f"n{number}": value for number, value in enumerate(values)}
    shuffled = list(hosts.items())
    shuffler.shuffle(shuffled)
    before, after = fleet_of(hosts), fleet_of(dict(shuffled))
    assert {host: check.record() for host, check in before.items()} == {
        host: check.record() for host, check in after.items()
    }


@given(values_of_a_fleet, st.floats(0, 1e12), st.floats(0, 1e12), st.sampled_from(["higher", "lower"]))
def test_a_better_figure_is_never_judged_worse(values: list[float], one: float, two: float, better: str) -> None:
    rule = {**RULE, "better": better, **({} if better == "higher" else {"warn": 1.1, "fail": 1.2})}
    others = {f"n{number}": value for number, value in enumerate(values)}
    worse, good = sorted((one, two), reverse=better == "lower")
    order = gates.STATUSES.index
    assert order(statuses({**others, "x": good}, rule)["x"]) <= order(statuses({**others, "x": worse}, rule)["x"])


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.just(10**400) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=6,
)
records = st.lists(
    st.fixed_dictionaries(
        {"kind": st.just("check"), "name": st.just("copy"), "host": st.sampled_from("abcdefg")},
        optional=dict.fromkeys(
            ["scope", "value", "unit", "limit", "limit_source", "status", "conditions", "hardware", "stage"], anything
        ),
    ),
    max_size=9,
)


@given(records)
def test_whatever_stands_in_the_evidence_is_judged_and_can_be_written(lines: list[dict]) -> None:
    figures = [figure for line in lines for figure in fleet.figures([line], ["copy"])]
    for check in fleet.judge_host(lines, fleet.summarise(figures), RULES):
        assert check.status in gates.STATUSES
        assert check.reason
        json.dumps(check.record(), allow_nan=False)


@given(anything)
def test_whatever_is_called_a_rule_is_sound_or_unknown(options: object) -> None:
    rule = {**RULE, **options} if isinstance(options, dict) else {"kind": "fleet_median", "of": options}
    groups = fleet.summarise(fleet.figures([record("h", 1.0)], ["copy"]))
    (check,) = fleet.judge_host([record("h", 1.0)], groups, {"fleet_copy": rule})[:1]
    if validate_rule("fleet_copy", rule):
        assert check.status in (gates.UNKNOWN, gates.SKIPPED)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["node1"], "node1"),
        (["node2", "node1", "node3", "node10"], "node10, node[1-3]"),
        (["gpu007", "gpu008", "gpu7"], "gpu7, gpu[007-008]"),
        (["n1.dc2.example", "n2.dc2.example", "n2.dc3.example"], "n2.dc3.example, n[1-2].dc2.example"),
        (["rack2-u7-gpu", "rack2-u8-gpu"], "rack2-u[7-8]-gpu"),
        (["10.0.0.1", "10.0.0.2", "10.0.1.1"], "10.0.0.[1-2], 10.0.1.1"),
        (["alpha", "beta"], "alpha, beta"),
        ([], ""),
    ],
)
def test_names_are_folded(names: list[str], text: str) -> None:
    assert fleet.fold_names(names) == text


def test_names_that_cannot_be_folded_are_cut_and_counted() -> None:
    names = [f"server-{letter * 12}" for letter in map(chr, range(200, 400))]
    text = fleet.fold_names(names)
    kept, _, more = text.rpartition(", and ")
    assert len(kept) <= 1500
    assert int(more.split()[0]) + len(kept.split(", ")) == 200


# The evidence of this run and of former ones


def write(directory: Path, host: str, *values: object, days_ago: float = 0, **more: object) -> None:
    stamp = (NOW - timedelta(days=days_ago)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    lines = [{**record(host, value, **more), "time": stamp} for value in values]
    evidence.append(directory / f"{host}.jsonl", lines)


def run_folder(root: Path, days_ago: float) -> Path:
    return root / (NOW - timedelta(days=days_ago)).strftime("%Y%m%dT%H%M%SZ")


def count(root: Path, rules: dict = RULES) -> tuple[int, int]:
    found = survey_fleet(run_folder(root, 0), rules, NOW)
    (group,) = found.groups.values()
    assert found.hosts == len(list(run_folder(root, 0).glob("*.jsonl")))
    return group["count"], group["earlier"]


def test_a_run_with_enough_hosts_reads_no_other(tmp_path: Path) -> None:
    for number in range(6):
        write(run_folder(tmp_path, 0), f"n{number}", 1.0)
        write(run_folder(tmp_path, 1), f"old{number}", 9.0, days_ago=1)
    assert count(tmp_path) == (6, 0)
    assert survey_fleet(run_folder(tmp_path, 0), RULES, NOW).files == 6


def test_the_newest_evidence_of_other_hosts_stands_in(tmp_path: Path) -> None:
    write(run_folder(tmp_path, 0), "a", 1.0)
    write(run_folder(tmp_path, 1), "a", 50.0, days_ago=1)  # its own past is no judge of a host
    write(run_folder(tmp_path, 1), "b", 2.0, 3.0, days_ago=1)
    write(run_folder(tmp_path, 2), "b", 60.0, days_ago=2)  # an older one than the newest
    write(run_folder(tmp_path, 2), "c", 4.0, days_ago=2)
    write(run_folder(tmp_path, 40), "d", 70.0, days_ago=40)  # too old
    write(run_folder(tmp_path, 3), "e", 80.0, days_ago=3, hardware="another")
    write(run_folder(tmp_path, 3), "f", 90.0, days_ago=3, scope="numa1")
    (tmp_path / "latest").symlink_to(run_folder(tmp_path, 0))
    found = survey_fleet(run_folder(tmp_path, 0), RULES, NOW)
    (group,) = [group for key, group in found.groups.items() if "numa0" in key]
    # hardware is a field of the head, not of the measurement: it stands in the conditions here and changes nothing
    assert (group["count"], group["earlier"], group["hosts"]) == (4, 3, "a, b, c, e")
    assert (group["lowest"], group["highest"]) == (1.0, 80.0)


def test_earlier_evidence_may_be_left_out(tmp_path: Path) -> None:
    write(run_folder(tmp_path, 0), "a", 1.0)
    write(run_folder(tmp_path, 1), "b", 2.0, days_ago=1)
    assert count(tmp_path) == (2, 1)
    assert count(tmp_path, {"fleet_copy": {**RULE, "earlier_days": 0}}) == (1, 0)
    assert count(tmp_path, {"fleet_copy": {**RULE, "earlier_days": 0.5}}) == (1, 0)


def test_no_older_run_is_opened_than_is_needed(tmp_path: Path) -> None:
    write(run_folder(tmp_path, 0), "a", 1.0)
    for day in range(1, 20):
        write(run_folder(tmp_path, day), f"n{day}", 1.0, days_ago=day)
    assert count(tmp_path) == (5, 4)
    assert survey_fleet(run_folder(tmp_path, 0), RULES, NOW).files == 5


def test_damaged_and_missing_evidence_is_no_reason_to_fail(tmp_path: Path) -> None:
    directory = run_folder(tmp_path, 0)
    assert survey_fleet(directory, RULES, NOW).groups == {}
    write(directory, "a", 1.0)
    write(run_folder(tmp_path, 1), "b", 1.0, days_ago=1)
    (directory / "c.jsonl").write_bytes(b'{"kind": "check", "name": "copy"\n\xff\xfe copy\n[]\n')
    (run_folder(tmp_path, 1) / "d.jsonl").mkdir()
    (tmp_path / "not-a-run.txt").write_text("copy")
    assert count(tmp_path) == (2, 1)
    assert survey_fleet(directory, {"copy": {"kind": "record"}}, NOW).files == 0


def test_a_host_is_judged_as_one_who_read_everything_would(tmp_path: Path) -> None:
    generator = random.Random(1)
    for number in range(60):
        write(run_folder(tmp_path, 0), f"n{number}", 70.0 if number == 7 else generator.gauss(100, 2))
    found = survey_fleet(run_folder(tmp_path, 0), RULES, NOW)
    bad = []
    for path in run_folder(tmp_path, 0).glob("*.jsonl"):
        (check,) = fleet.judge_host(evidence.read(path).records, found.groups, RULES)
        bad += [path.stem] if check.failed else []
    assert bad == ["n7"]
