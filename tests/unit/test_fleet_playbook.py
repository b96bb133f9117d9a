"""The fleet's comparison in real runs: strategy, batches, hosts that failed or are missing, former runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.playbook_run import CHECKOUT, RUN, Outcome, play, run_playbook

RULES = {
    "copy_bandwidth": {"kind": "minimum", "unit": "B/s", "fail": 10.0},
    "fleet_copy_bandwidth": {
        "kind": "fleet_median",
        "of": "copy_bandwidth",
        "better": "higher",
        "warn": 0.95,
        "fail": 0.9,
        "fail_deviations": 5,
        "minimum_hosts": 4,
        "title": "copy beside the fleet",
    },
}
FIGURES = {f"node{number}": 200 + number for number in range(1, 7)}
MEASURE = {
    "name": "The copy is measured and judged alone",
    "plumbline.plumbline.gate": {
        "measurements": [{"name": "copy_bandwidth", "scope": "numa0", "value": "{{ figures[inventory_hostname] | float }}", "unit": "B/s"}]
    },
}  # fmt: skip
FLEET = {
    "name": "The fleet",
    "ansible.builtin.include_tasks": str(CHECKOUT / "playbooks/tasks/fleet.yml"),
}
AFTER = {"name": "The host went on", "ansible.builtin.debug": {"msg": "{{ inventory_hostname }} went on"}}


def fleet_run(tmp_path: Path, figures: dict, *options: str, tasks: list | None = None, **keywords: object) -> Outcome:
    keywords.setdefault("strategy", "linear")
    variables = {"figures": figures, "gates_rules": RULES, "gates_rules_overrides": {}}
    plays = [play(tasks or [MEASURE, FLEET, AFTER], "validate", **keywords)]
    return run_playbook(tmp_path, plays, *options, hosts=tuple(figures), variables=variables, ANSIBLE_FORKS="3")


def fleet_check(outcome: Outcome, host: str) -> dict:
    (found,) = [line for line in outcome.evidence(host) if line.get("name") == "fleet_copy_bandwidth"]
    return found


def test_a_host_that_deviates_fails_alone(tmp_path: Path) -> None:
    outcome = fleet_run(tmp_path, {**FIGURES, "node7": 120})
    assert outcome.status == 2
    checks = {host: fleet_check(outcome, host) for host in [*FIGURES, "node7"]}
    assert {host for host, check in checks.items() if check["status"] != "OK"} == {"node7"}
    assert checks["node7"]["conditions"]["comparable_hosts"] == 6
    assert checks["node7"]["conditions"]["hosts"] == "node[1-7]"
    assert checks["node7"]["stage"] == "validate"
    assert "120 B/s is 59 % of the fleet's median 203.5 B/s (6 comparable hosts" in outcome.output
    for host in FIGURES:
        assert f"{host} went on" in outcome.output
    assert "node7 went on" not in outcome.output
    # The gate wrote its own record, so the report tells it once, as a check and not as a failed task.
    assert "failure" not in outcome.kinds("node7")
    assert "copy beside the fleet" in (outcome.directory / RUN / "report.md").read_text()


def test_a_healthy_fleet_passes_in_check_mode_too(tmp_path: Path) -> None:
    outcome = fleet_run(tmp_path, FIGURES, "--check")
    assert outcome.status == 0, outcome.output
    assert fleet_check(outcome, "node1")["check_mode"] is True


def test_a_small_fleet_is_skipped_until_former_runs_stand_in(tmp_path: Path) -> None:
    few = {"node1": 120, "node2": 201}
    outcome = fleet_run(tmp_path, few)
    assert outcome.status == 0, outcome.output
    check = fleet_check(outcome, "node1")
    assert (check["status"], check["reason"]) == ("SKIPPED", "1 comparable host, 4 are needed")
    # A run of yesterday, with other hosts.
    former = tmp_path / "artifacts" / "yesterday"
    former.mkdir()
    (line,) = [line for line in outcome.evidence("node2") if line.get("name") == "copy_bandwidth"]
    for number in range(3, 7):
        (former / f"node{number}.jsonl").write_text(
            json.dumps({**line, "host": f"node{number}", "value": 200 + number})
        )
    outcome = fleet_run(tmp_path, few)
    assert outcome.status == 2
    check = [line for line in outcome.evidence("node1") if line.get("name") == "fleet_copy_bandwidth"][-1]
    assert check["status"] == "CRITICAL"
    assert check["conditions"]["of_earlier_runs"] == 4
    assert "node1 went on" not in outcome.output
    assert "node2 went on" in outcome.output


def test_batches_are_compared_with_themselves_and_those_before(tmp_path: Path) -> None:
    outcome = fleet_run(tmp_path, FIGURES, serial=3)
    assert outcome.status == 0, outcome.output
    assert fleet_check(outcome, "node1")["reason"] == "2 comparable hosts, 4 are needed"
    assert fleet_check(outcome, "node6")["conditions"]["comparable_hosts"] == 5


def test_a_host_that_failed_before_and_one_that_is_missing_hinder_nobody(tmp_path: Path) -> None:
    figures = {"gone": 200, "node0": 1, **FIGURES}
    reach = {"name": "The host can be reached", "ansible.builtin.raw": "true"}
    unreachable = {"ansible_connection": "ssh", "ansible_port": 1, "ansible_ssh_retries": 0}
    plays_tasks = [
        {**reach, "vars": unreachable, "when": "inventory_hostname == 'gone'"},
        MEASURE,
        FLEET,
        AFTER,
    ]
    outcome = fleet_run(tmp_path, figures, tasks=plays_tasks)
    assert outcome.status != 0
    assert "gone" in outcome.output
    assert [line["status"] for line in outcome.evidence("node0") if line["kind"] == "check"] == ["CRITICAL"]
    for host in FIGURES:
        check = fleet_check(outcome, host)
        assert check["status"] == "OK"
        # node0 has a figure, however bad; the one that is gone has none.
        assert check["conditions"]["comparable_hosts"] == 6
        assert f"{host} went on" in outcome.output


def test_nothing_measured_is_skipped_and_said(tmp_path: Path) -> None:
    outcome = fleet_run(tmp_path, {"node1": 1}, tasks=[FLEET, AFTER])
    assert outcome.status == 0, outcome.output
    (check,) = [line for line in outcome.evidence("node1") if line["kind"] == "check"]
    assert (check["status"], check["reason"]) == (
        "SKIPPED",
        "none of what the fleet's rules compare was measured here: copy_bandwidth",
    )


@pytest.mark.parametrize("given", [{}, {"groups": 5}])
def test_what_is_no_summary_of_a_fleet_is_refused_with_one_sentence(tmp_path: Path, given: dict) -> None:
    outcome = fleet_run(
        tmp_path, {"node1": 1}, tasks=[{"name": "x", "plumbline.plumbline.fleet_gate": {"fleet": given}}]
    )
    assert outcome.status == 2
    assert "the registered result of the action fleet_info was expected" in outcome.output
    assert "Traceback" not in outcome.output
