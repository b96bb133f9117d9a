"""The module as Ansible runs it: in-band with an `ipmitool` that prints captured output, over Redfish, and in the survey."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import bmc_ipmi_run

from lab.bmc.testing import RunningBmc, running

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests/fixtures/ipmi"
# What stands for ipmitool: prints the capture of a call, and keeps what it was called with.
IPMITOOL = """#!/bin/sh
echo "$LC_ALL $TZ $*" >> {log}
case "$*" in
  "sdr dump "*) {dump} ;;
  *"sdr elist") cat {fixtures}/openipmi_sim_faults_sdr_elist.txt ;;
  *sensor) {sensor} ;;
  *"sel elist") {sel} ;;
  "sel info") cat {fixtures}/openipmi_sim_sel_info.txt ;;
  "sel time get") echo "{clock}" ;;
  "mc info") echo "Firmware Revision         : 9.08" ;;
  *) echo "no such call: $*" >&2; exit 1 ;;
esac
"""


def module() -> Any:
    return importlib.import_module("ansible_collections.plumbline.plumbline.plugins.modules.bmc_sensors_info")


def run(capsys: Any, **arguments: Any) -> dict[str, Any]:
    with patch_module_args(arguments), pytest.raises(SystemExit):
        module().main()
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def ipmitool(tmp_path: Path, monkeypatch: Any) -> Any:
    """A function that puts an `ipmitool` on PATH and returns the file with its calls."""

    def put(**parts: str) -> Path:
        calls = tmp_path / "calls"
        values = {
            "log": str(calls),
            "fixtures": str(FIXTURES),
            "dump": 'echo sdr > "$3"',
            "sensor": f"cat {FIXTURES}/openipmi_sim_faults_sensor.txt",
            "sel": f"cat {FIXTURES}/openipmi_sim_sel_elist.txt",
            "clock": "S+ 03:37:39",
            **parts,
        }
        script = tmp_path / "ipmitool"
        script.write_text(IPMITOOL.format(**values))
        script.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setattr(bmc_ipmi_run, "DEVICES", ("dev/null",))
        return calls

    return put


def test_in_band_in_few_calls_that_do_not_depend_on_the_user_s_locale(ipmitool, capsys):
    calls = ipmitool()
    result = run(capsys)
    assert (result["changed"], result["available"], result["source"]) == (False, True, "ipmitool")
    assert len(result["sensors"]) == 13
    assert result["labels_with_reading"][:2] == ["Temp (3.1)", "Temp (3.2)"]
    assert "GPU1 Temp" not in result["labels_with_reading"]
    assert len(result["log"]) == 9
    assert result["log_service"]["used_fraction"] == 0.04
    assert result["notes"] == []
    lines = calls.read_text().splitlines()
    assert len(lines) == 7
    assert all(line.startswith("C UTC ") for line in lines)
    # The description of the sensors is read once and handed to the other calls.
    assert sum(" -S " in line for line in lines) == 3


def test_without_a_cache_of_the_sensors_it_goes_on_without(ipmitool, capsys):
    calls = ipmitool(dump="exit 1")
    assert len(run(capsys)["sensors"]) == 13
    assert " -S " not in calls.read_text()


def test_a_call_that_fails_or_hangs_leaves_what_it_printed_and_says_so(ipmitool, capsys):
    failing = "head -n 5 {}/openipmi_sim_faults_sensor.txt; echo 'Get SDR command failed' >&2; exit 1"
    ipmitool(sensor=failing.format(FIXTURES), sel="sleep 30")
    result = run(capsys, ipmitool_timeout_seconds=1)
    assert len(result["sensors"]) == 13
    assert result["notes"][0] == "`ipmitool sensor` ended with status 1: Get SDR command failed"
    assert "still running after 1 s and was ended" in result["notes"][1]
    errors = {one["name"]: one["error"] for one in result["measurements"] if one.get("error")}
    assert list(errors) == ["log_critical_entries"]
    assert "`ipmitool sel elist` was still running after 1 s" in errors["log_critical_entries"]


def test_a_bmc_that_says_nothing_at_all_is_unknown_not_sound(tmp_path, monkeypatch, capsys):
    script = tmp_path / "ipmitool"
    script.write_text("#!/bin/sh\necho 'Could not open device at /dev/ipmi0' >&2\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(bmc_ipmi_run, "DEVICES", ("dev/null",))
    result = run(capsys)
    errors = {one["name"]: one["error"] for one in result["measurements"] if one.get("error")}
    assert set(errors) == {"sensor_readings", "log_critical_entries"}
    assert "Could not open device" in errors["sensor_readings"]


def test_output_that_is_no_text_does_no_harm(ipmitool, capsys):
    ipmitool(sensor="head -c 4000 /dev/urandom", sel="head -c 4000 /dev/urandom")
    assert len(run(capsys)["sensors"]) == 13


def test_where_there_is_no_bmc_or_no_tool_it_is_skipped_with_the_reason(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(bmc_ipmi_run, "DEVICES", ("dev/nothing",))
    result = run(capsys)
    assert (result["available"], result["sensors"]) == (False, [])
    assert "/dev/ipmi0" in result["reason"]
    assert [one["skipped"] for one in result["measurements"]] == [result["reason"]]
    monkeypatch.setattr(bmc_ipmi_run, "DEVICES", ("dev/null",))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run(capsys)["reason"].startswith("ipmitool is not installed")


def test_a_tool_that_is_not_there_is_one_sentence(tmp_path):
    text, problem = bmc_ipmi_run.IpmiTool(1, [str(tmp_path / "none")]).run("sensor")
    assert (text, problem) == ("", "`ipmitool sensor` cannot be started: No such file or directory")


def test_over_redfish(capsys):
    with running() as bmc:
        bmc.inject("power_supply_lost", index=1)
        result = run(capsys, **connection(bmc), known=["Inlet_Temp", "Gone"])
    assert result["source"] == "redfish"
    assert result["power_state"] == "on"
    failed = {one["name"]: one for one in result["measurements"] if one.get("value") and one.get("cause")}
    assert failed["sensor_critical"]["next_command"].startswith(
        f"curl -u admin --cacert {bmc.ca_file} {bmc.base_url}/redfish/v1/Chassis/1/Power"
    )
    assert "Gone" in failed["sensor_lost"]["cause"]
    assert "correct-horse" not in json.dumps(result["measurements"])


def connection(bmc: RunningBmc) -> dict[str, Any]:
    return {"base_url": bmc.base_url, "username": bmc.username, "password": bmc.password, "ca_file": bmc.ca_file}


def test_a_bmc_that_does_not_answer_is_one_sentence(capsys):
    result = run(capsys, base_url="https://127.0.0.1:9", username="admin", password="x", timeout_seconds=1)
    assert result["failed"]
    assert "127.0.0.1:9" in result["msg"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"ignored": ["("]}, 'ignored: expected regular expressions, found "("'),
        ({"required": ["*"]}, "required: expected regular expressions"),
        ({"log_days": 0}, "log_days: expected 1 to 3650, found 0"),
        ({"log_entries_maximum": 0}, "log_entries_maximum: expected 1 to 10000"),
        ({"ipmitool_timeout_seconds": -1}, "ipmitool_timeout_seconds: expected 1 to 3600"),
    ],
)
def test_bad_options_are_one_sentence(arguments, words, capsys):
    result = run(capsys, **arguments)
    assert result["failed"]
    assert words in result["msg"]


def test_the_documentation_says_what_there_is(capsys):
    documented = yaml.safe_load(module().RETURN)
    result = run(capsys)
    assert set(documented) == set(result) - {"changed", "invocation"}
    options = yaml.safe_load(module().DOCUMENTATION)["options"]
    assert {"base_url", "ignored", "required", "known", "log_days", "log_entries_maximum"} <= set(options)


class Survey:
    """The survey of one machine, this one, as a user runs it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def run(self, bmc: RunningBmc | None, **variables: Any) -> tuple[int, dict[tuple[str, str], dict[str, Any]], str]:
        host: dict[str, Any] = {
            "ansible_connection": "local",
            "ansible_python_interpreter": sys.executable,
            **variables,
        }
        if bmc:
            host.update(bmc_host="127.0.0.1", bmc_port=int(bmc.base_url.rsplit(":", 1)[1]), bmc_username=bmc.username)
            host.update(bmc_password=bmc.password, bmc_ca_file=bmc.ca_file, bmc_timeout_seconds=5)
        inventory = self.directory / "hosts.json"
        inventory.write_text(json.dumps({"nodes": {"hosts": {"node1": host}}}))
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PLUMBLINE_ARTIFACTS_DIR": str(self.directory / "artifacts"),
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_LOCAL_TEMP": str(self.directory / "tmp"),
        }
        done = subprocess.run(
            ["ansible-playbook", "-i", str(inventory), "playbooks/survey.yml"],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=180,
        )
        assert "Traceback" not in done.stdout + done.stderr
        newest = max((self.directory / "artifacts").glob("*/node1.jsonl"), key=lambda path: path.stat().st_mtime_ns)
        records = [json.loads(line) for line in newest.read_text().splitlines()]
        checks = {(one["name"], one["scope"]): one for one in records if "status" in one}
        return done.returncode, checks, done.stdout

    @property
    def known(self) -> list[str]:
        return (self.directory / "artifacts/sensors-node1.txt").read_text().splitlines()


def test_the_survey_judges_sensors_and_remembers_which_have_a_reading(tmp_path):
    survey = Survey(tmp_path)
    with running() as bmc:
        status, checks, output = survey.run(bmc)
        assert status == 0, output
        assert checks["sensor_critical", "fans"]["status"] == "OK"
        assert checks["sensor_lost", "bmc"]["status"] == "SKIPPED"
        assert "FAN3_Speed" in survey.known
        assert "GPU1_Temp" not in survey.known
        # The chassis no longer knows of a sensor, another is dead, and a line is lost.
        bmc.service.sensors.parts = [one for one in bmc.service.sensors.parts if one["id"] != "FAN3_Speed"]
        try:
            bmc.inject("sensor_dead", sensor="PCH_Temp")
            bmc.inject("power_supply_lost", index=0)
            status, checks, output = survey.run(bmc, survey_sensors_ignored=["PSU.*"])
        finally:
            bmc.clear_faults()
    assert status == 2
    assert "FAN3_Speed had a reading" in checks["sensor_lost", "bmc"]["cause"]
    assert "PCH_Temp is enabled and has no reading" in checks["sensor_dead", "bmc"]["cause"]
    assert "PSU0" not in checks["sensor_critical", "power supplies"]["cause"]
    assert "PowerSupply Redundancy" in checks["sensor_critical", "power supplies"]["cause"]
    assert "FAN3_Speed" in survey.known
    assert "changed=0" in output


def test_the_survey_of_a_machine_whose_bmc_does_not_answer_has_one_reason(tmp_path):
    survey = Survey(tmp_path)
    unreachable = {
        "bmc_host": "127.0.0.1",
        "bmc_port": 9,
        "bmc_username": "a",
        "bmc_password": "b",
        "bmc_timeout_seconds": 1,
    }
    status, checks, output = survey.run(None, **unreachable)
    assert status == 2
    assert checks["bmc_answers", "bmc"]["status"] == "UNKNOWN"
    assert checks["sensor_readings", "bmc"]["status"] == "SKIPPED"
    assert "the BMC did not answer" in output
