"""validate.yml on the lab's node: it measures, judges, changes nothing, and ends with the machine on one screen."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.e2e.conftest import Lab
from tests.e2e.test_1_demo import evidence, newest_run

pytestmark = pytest.mark.lab


def test_validate_measures_the_node_and_changes_nothing(lab: Lab) -> None:
    outcome = lab.playbook("playbooks/validate.yml", "-e", json.dumps({"validate_measure": ["memory", "storage"]}))
    assert outcome.returncode == 0, outcome.output[-5000:]
    assert outcome.recap()["changed"] == 0
    records: list[dict[str, Any]] = evidence()
    (machine,) = [record for record in records if record["kind"] == "machine"]
    assert machine["machine"]["system"]["bmc_version"]
    assert machine["machine"]["sensors"]["hottest"]["celsius"] > 0
    (triad,) = [
        record for record in records if record.get("name") == "host_memory_bandwidth" and record["scope"] == "node"
    ]
    assert triad["status"] in ("OK", "WARN")
    assert triad["value"] > 0
    screen = (newest_run() / "lab-node1.txt").read_text()
    # What the terminal showed is what lies beside the report.
    assert all(line in outcome.output for line in screen.splitlines()[:3])
    assert "\n  Measured   triad " in screen


def test_what_is_required_and_cannot_be_measured_fails(lab: Lab) -> None:
    wanted = {"validate_measure": ["gpu"], "validate_required": ["gpu"]}
    lab.playbook("playbooks/validate.yml", "-e", json.dumps(wanted)).refused_with("there is no NVIDIA GPU", "UNKNOWN:")
