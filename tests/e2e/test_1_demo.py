"""`make demo`, twice: a judged endpoint, then nothing to change."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.e2e.conftest import CHECKOUT, Lab

pytestmark = pytest.mark.lab

STAGES = (
    "survey",
    "firmware",
    "bios",
    "kernel",
    "gpu_driver",
    "engine",
    "model",
    "tune",
    "serving",
    "gateway",
    "monitoring",
    "accept",
)


def newest_run() -> Path:
    runs = sorted(path for path in (CHECKOUT / "artifacts").iterdir() if (path / "lab-node1.jsonl").exists())
    return runs[-1]


def evidence() -> list[dict[str, object]]:
    return [json.loads(line) for line in (newest_run() / "lab-node1.jsonl").read_text().splitlines()]


def test_first_demo_shows_endpoint_answer_gates_and_report(lab: Lab) -> None:
    assert lab.first.recap()["failed"] == 0
    assert lab.first.recap()["changed"] > 0
    assert re.search(r"http://127\.0\.0\.1:\d+/v1", lab.first.output)
    assert "report.html" in lab.first.output
    assert "time to first token P99" in lab.first.output


def test_second_demo_changes_nothing(lab: Lab) -> None:
    assert lab.second.returncode == 0, lab.second.output[-5000:]
    recap = lab.second.recap()
    assert recap["changed"] == 0
    assert recap["failed"] == 0


def test_every_stage_left_its_judgement(lab: Lab) -> None:
    stages = {record.get("stage") for record in evidence()}
    assert stages.issuperset(STAGES)


def test_skipped_stages_say_why(lab: Lab) -> None:
    skipped = [record for record in evidence() if record.get("status") == "SKIPPED"]
    assert any(record["stage"] == "gpu_driver" for record in skipped)
    assert any(record["stage"] == "kernel" for record in skipped)
    assert all(record["reason"] for record in skipped)


def test_a_stranger_gets_no_answer(lab: Lab) -> None:
    match = re.search(r"http://127\.0\.0\.1:\d+/v1", lab.second.output)
    assert match
    with pytest.raises(urllib.error.HTTPError) as refusal:
        urllib.request.urlopen(f"{match[0]}/models", timeout=10)
    assert refusal.value.code == 401


def test_check_mode_on_a_converged_node_changes_nothing_and_passes(lab: Lab) -> None:
    outcome = lab.playbook("site.yml", "--check", "--diff")
    assert outcome.returncode == 0, outcome.output[-5000:]
    assert outcome.recap()["changed"] == 0
