"""The stages firmware, bios and restart as a user runs them: ansible-playbook against the simulator.

The node is this machine over a local connection; nothing on it is changed or restarted, since the simulator powers nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lab.bmc.testing import RunningBmc, running

ROOT = Path(__file__).parents[2]


@pytest.fixture
def bmc() -> Iterator[RunningBmc]:
    with running() as simulator:
        yield simulator


@dataclass
class Run:
    """What a run came to."""

    status: int
    output: str
    evidence: list[dict[str, Any]]

    def checks(self, stage: str) -> list[tuple[str, str, str]]:
        """Name, scope and status of the checks of a stage."""
        records = [record for record in self.evidence if record.get("stage") == stage and "status" in record]
        return [(record["name"], record["scope"], record["status"]) for record in records]

    def changed(self) -> int:
        """How many tasks changed something, from the recap."""
        recap = next(line for line in self.output.splitlines() if line.startswith("node1 ") and "changed=" in line)
        return int(recap.split("changed=")[1].split()[0])


@dataclass
class Site:
    """An inventory for one simulated machine."""

    directory: Path
    bmc: RunningBmc
    host: dict[str, Any] = field(default_factory=dict)
    """Further variables of the node."""

    def run(self, *playbooks: str, options: tuple[str, ...] = (), survey: bool = False, **variables: Any) -> Run:
        """Run playbooks in one process, as site.yml would; without a survey unless told, which saves seconds."""
        if not survey:
            variables["survey_node"] = {"boot_identity": "before", "container": False, "system": "Linux", "gpus": []}
        inventory = {
            "nodes": {
                "hosts": {
                    "node1": {
                        "ansible_connection": "local",
                        "ansible_python_interpreter": sys.executable,
                        "bmc_host": "127.0.0.1",
                        "bmc_port": int(self.bmc.base_url.rsplit(":", 1)[1]),
                        "bmc_username": self.bmc.username,
                        "bmc_password": self.bmc.password,
                        "bmc_ca_file": self.bmc.ca_file,
                        "bmc_timeout_seconds": 5,
                        **self.host,
                    }
                }
            }
        }
        (self.directory / "hosts.json").write_text(json.dumps(inventory))
        artifacts = self.directory / "artifacts"
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PLUMBLINE_ARTIFACTS_DIR": str(artifacts),
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default",
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_LOCAL_TEMP": str(self.directory / "tmp"),
        }
        done = subprocess.run(
            [
                *("ansible-playbook", "-i", str(self.directory / "hosts.json"), *options),
                *("-e", json.dumps(variables), *[f"playbooks/{name}.yml" for name in playbooks]),
            ],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=180,
        )
        # `latest` is a link to one of the runs.
        files = [path for path in artifacts.glob("*/node1.jsonl") if not path.parent.is_symlink()]
        evidence = [json.loads(line) for path in files for line in path.read_text().splitlines()]
        for path in files:
            path.unlink()
        output = done.stdout + done.stderr
        assert "Traceback" not in output
        return Run(done.returncode, output, evidence)


@pytest.fixture
def site(bmc: RunningBmc, tmp_path: Path) -> Site:
    return Site(tmp_path, bmc)


WANTED = {"bios_logical": {"c_states": "disabled"}, "bios_unlock": True}
STAGED = {
    "C6Enable": "Disabled",
    "PackageCState": "C0SUPPORT",
    "PowerProfile": "CUSTOM",
    "ProcessorC1eEnable": "Disabled",
}


def test_bios_settings_are_predicted_staged_and_left_alone_the_second_time(site: Site) -> None:
    predicted = site.run("bios", options=("--check", "--diff"), **WANTED)
    assert predicted.status == 0, predicted.output
    assert predicted.changed() == 1
    assert "+C6Enable: applied Auto, pending Disabled, desired Disabled" in predicted.output
    assert site.bmc.pending == {}

    staged = site.run("bios", options=("--diff",), **WANTED)
    assert (staged.status, staged.changed()) == (0, 1), staged.output
    assert site.bmc.pending == STAGED
    again = site.run("bios", **WANTED)
    assert (again.status, again.changed()) == (0, 0), again.output
    # An earlier run staged them and nobody restarted: the second run knows that a restart is due, and may not do it.
    refused = site.run("bios", "restart", restart_allowed=False, **WANTED)
    assert refused.status != 0
    assert "Expected restart_allowed to be true, since bios staged changes" in refused.output
    assert "power cycle" in refused.output
    assert site.bmc.truth()["resets"] == 0
    assert site.bmc.truth()["sessions"] == 0


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"bios_settings": {"TurboMod": "Enabled"}}, ["TurboMod", "did you mean", "TurboMode"]),
        ({"bios_settings": {"TurboMode": "Enable"}}, ["no value", "Enabled"]),
        ({"bmc_password": "wrong"}, ["refused the login of user", "HTTP 401", "bmc_password"]),
        ({"bmc_port": 1}, ["connection refused", "https://127.0.0.1:1"]),
    ],
)
def test_bad_input_ends_with_one_sentence_and_changes_nothing(
    site: Site, variables: dict[str, Any], words: list[str]
) -> None:
    run = site.run("bios", **{**WANTED, **variables})
    assert run.status != 0
    for word in words:
        assert word in run.output
    assert site.bmc.pending == {}


def test_a_bmc_that_answers_503_is_named_once_the_time_is_over(site: Site) -> None:
    site.bmc.inject("http_error", status=503, retry_after=1, message="BMC is starting")
    run = site.run("bios", bmc_timeout_seconds=1, **WANTED)
    assert run.status != 0
    assert "HTTP 503" in run.output
    assert "bmc_timeout_seconds" in run.output


def test_the_restart_is_one_power_cycle_and_its_proof_is_a_new_boot(site: Site) -> None:
    # The simulator powers nothing here, so the node keeps its boot, and that is noticed.
    late = site.run("bios", "restart", survey=True, restart_allowed=True, restart_timeout_seconds=3, **WANTED)
    assert late.status != 0
    assert "node1 was expected to be back with a new boot within 3 s" in late.output
    assert "still runs the boot from before the restart" in late.output
    assert site.bmc.truth()["resets"] == 1
    assert site.bmc.pending == {}
    assert site.bmc.active["C6Enable"] == "Disabled"
    # Everything is applied now: nothing is staged, nothing restarts.
    converged = site.run("firmware", "bios", "restart", **WANTED)
    assert (converged.status, converged.changed()) == (0, 0), converged.output
    assert converged.checks("restart") == [("restart_duration", "node", "SKIPPED")]
    assert site.bmc.truth()["resets"] == 1


def test_the_chain_goes_on_after_a_restart(site: Site) -> None:
    # As if the survey had seen another boot: what the node answers now is then a new one.
    run = site.run("bios", "restart", restart_allowed=True, restart_timeout_seconds=20, **WANTED)
    assert run.status == 0, run.output
    assert site.bmc.truth()["resets"] == 1
    record = next(entry for entry in run.evidence if entry.get("name") == "restart_duration")
    assert record["status"] == "OK"
    assert record["value"] > 0


def test_a_dry_run_restarts_nothing_and_says_what_would(site: Site) -> None:
    run = site.run("bios", "restart", options=("--check",), restart_allowed=True, **WANTED)
    assert run.status == 0, run.output
    assert site.bmc.truth()["resets"] == 0
    reason = next(entry for entry in run.evidence if entry.get("name") == "restart_duration")["reason"]
    assert "bios would need a power cycle" in reason


def test_firmware_floors_stop_what_is_too_old_and_pass_the_rest(site: Site) -> None:
    good = site.run("firmware", firmware_floors={"BIOS": "05.10.00", "BMC": "1.35"})
    assert good.status == 0, good.output
    assert ("firmware_version", "BMC", "OK") in good.checks("firmware")
    bad = site.run("firmware", firmware_floors={"BIOS": "05.11.00", "NIC9": "1.0"})
    assert bad.status != 0
    assert ("firmware_version", "BIOS", "CRITICAL") in bad.checks("firmware")
    assert ("firmware_version", "NIC9", "UNKNOWN") in bad.checks("firmware")
    unquoted = site.run("firmware", firmware_floors={"BIOS": 5.10})
    assert unquoted.status != 0
    assert "put every version in quotes" in unquoted.output


def test_without_a_bmc_the_stages_are_skipped_with_the_reason(site: Site) -> None:
    run = site.run("firmware", "bios", "restart", bmc_host="", **WANTED)
    assert run.status == 0, run.output
    assert run.checks("firmware") == [("firmware_version", "firmware", "SKIPPED")]
    assert run.checks("bios") == [("bios_setting", "bios", "SKIPPED")]
    reasons = [
        entry["reason"] for entry in run.evidence if entry["stage"] in ("firmware", "bios") and "reason" in entry
    ]
    assert len(reasons) == 2
    assert all("bmc_host is not set" in reason for reason in reasons)
