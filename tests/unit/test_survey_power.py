"""A node that does not answer: what the survey says of its power, through ansible-playbook against the simulator."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.bmc.testing import RunningBmc, running
from tests.unit.test_redfish_playbooks import Run, Site

SILENT = {
    "ansible_connection": "ssh",
    "ansible_host": "127.0.0.1",
    "ansible_port": 1,
    "ansible_ssh_retries": 0,
    "survey_power_on_timeout_seconds": 5,
}


@pytest.fixture
def off() -> Iterator[RunningBmc]:
    with running() as simulator:
        simulator.reset("ForceOff")
        yield simulator


def survey(directory: Path, bmc: RunningBmc, *options: str, **variables: object) -> Run:
    return Site(directory, bmc, {**SILENT, **variables}).run("survey", options=options, survey=True)


def sentence(run: Run) -> str:
    return " ".join(record["message"] for record in run.evidence if record["kind"] == "failure")


def test_a_machine_that_is_off_is_said_to_be_off(tmp_path: Path, off: RunningBmc) -> None:
    run = survey(tmp_path, off)
    assert run.status != 0
    assert "Expected node1 to answer, found: " in sentence(run)
    assert "Connection refused" in sentence(run)
    assert "Its BMC says that its power is Off" in sentence(run)
    assert "turn it on, or let Plumbline do it with survey_power_on: true." in sentence(run)
    assert off.truth()["power"] == "Off", "nothing was asked for"


def test_a_machine_that_is_off_is_turned_on_where_that_is_allowed(tmp_path: Path, off: RunningBmc) -> None:
    run = survey(tmp_path, off, survey_power_on=True)
    assert off.truth()["power"] == "On"
    # The simulator powers nothing, so it never answers, which is said by the task that waits.
    assert run.status != 0
    assert "turned on answers" in run.output


def test_a_dry_run_turns_nothing_on(tmp_path: Path, off: RunningBmc) -> None:
    run = survey(tmp_path, off, "--check", survey_power_on=True)
    assert off.truth()["power"] == "Off"
    assert "or run without --check: survey_power_on is true" in sentence(run)


def test_a_machine_that_is_on_and_silent(tmp_path: Path) -> None:
    with running() as bmc:
        run = survey(tmp_path, bmc, survey_power_on=True)
    assert "Its BMC says that its power is On" in sentence(run)
    assert "look at its console, its network and ansible_host" in sentence(run)


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"bmc_host": ""}, "It has no BMC in the inventory (bmc_host) that could tell"),
        ({"bmc_password": "wrong"}, "Its BMC does not say whether its power is on: "),
    ],
)
def test_a_silent_machine_whose_power_nobody_knows(
    tmp_path: Path, off: RunningBmc, variables: dict, words: str
) -> None:
    run = survey(tmp_path, off, **variables)
    assert run.status != 0
    assert words in sentence(run)
