"""What can be measured on a machine as it is, and what is said of what cannot."""

from __future__ import annotations

import importlib
import json
import shutil
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import measurability as m
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.gates import judge_all

from tests.module_documentation import attributes
from tests.unit.machine_facts import rules

MODULE: Any = importlib.import_module("ansible_collections.plumbline.plumbline.plugins.modules.measurability_info")


def program(folder: Path, name: str, script: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with nothing on it but what a test puts there."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "weights").write_bytes(b"\0" * (1 << 20))
    return folder


def run(capsys: pytest.CaptureFixture[str], **options: Any) -> dict[str, Any]:
    with patch_module_args(options), pytest.raises(SystemExit):
        MODULE.main()
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_machine_with_nothing_says_of_each_what_is_missing_and_what_would_install_it(
    tools: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program(tools, "apt-get", "exit 0")
    found = run(capsys, storage_candidates=[str(tmp_path / "models")])
    assert found["changed"] is False
    assert found["possible"] == []
    told = {one["name"]: (one["skipped"], one["next_command"]) for one in found["measurements"]}
    assert told["host_memory_bandwidth"] == (
        "there is no C compiler (gcc) to build the measurement with",
        "apt-get install gcc libc6-dev",
    )
    assert told["storage_read_bandwidth"][0].startswith("there is no file of 1 MiB or more to read in ")
    assert told["gpu_h2d_bandwidth"][0] == "there is no NVIDIA GPU (vendor 10de, class 03) on the PCI bus"
    assert told["collective_bus_bandwidth"][0] == "a reduction needs two GPUs, there is none"
    assert {check.status for check in judge_all(found["measurements"], rules())} == {"SKIPPED"}


@pytest.mark.parametrize("subject", m.SUBJECTS)
def test_what_is_required_and_cannot_be_measured_is_unknown(
    subject: str, tools: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = run(capsys, required=[subject])
    statuses = [check.status for check in judge_all(found["measurements"], rules())]
    assert sorted(statuses) == ["SKIPPED", "SKIPPED", "SKIPPED", "UNKNOWN"]


def test_what_is_not_to_be_measured_is_not_spoken_of(tools: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = run(capsys, measure=["memory"])
    assert [one["name"] for one in found["measurements"]] == ["host_memory_bandwidth"]


def test_a_compiler_without_headers_is_no_compiler(tools: Path) -> None:
    program(tools, "gcc", "echo 'stdin:1:10: fatal error: stdio.h: No such file' >&2; exit 1")
    program(tools, "dnf", "exit 0")
    found = m.memory()
    assert (
        found.reason == "the C compiler cannot build the measurement (stdin:1:10: fatal error: stdio.h: No such file)"
    )
    assert found.next_command == "dnf install gcc glibc-devel libgomp"


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc here")
def test_a_real_compiler_will_do() -> None:
    assert m.memory().reason == ""


def test_storage_takes_the_first_directory_with_something_to_read(tools: Path, tmp_path: Path, model: Path) -> None:
    program(tools, "fio", "exit 0")
    found = m.storage(["", str(tmp_path / "none"), str(model)], asked=False)
    assert (found.reason, found.facts["path"]) == ("", str(model))


def test_without_fio_storage_is_not_measured(tools: Path, model: Path) -> None:
    program(tools, "zypper", "exit 0")
    found = m.storage([str(model)], asked=False)
    assert (found.reason, found.next_command) == ("there is no fio to read with", "zypper install fio")


def test_a_directory_that_was_named_and_is_not_there_is_a_mistake(
    tools: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = run(capsys, measure=["storage"], storage_path=str(tmp_path / "typo"))
    (one,) = found["measurements"]
    assert one["error"].endswith("typo")
    assert judge_all([one], rules())[0].status == "UNKNOWN"


def test_gpus_are_measured_with_the_first_python_that_has_torch(tools: Path, tmp_path: Path) -> None:
    without = program(tmp_path, "without", "exit 1")
    with_torch = program(tmp_path, "with", "exit 0")
    found = m.gpu(2, ["", str(tmp_path / "none"), str(without), str(with_torch)], asked=False)
    assert (found.reason, found.facts) == ("", {"python": str(with_torch), "method": "torch"})
    assert m.collective(2, found).reason == ""
    assert m.collective(1, found).reason == "a reduction needs two GPUs, there is one"


def test_gpus_are_measured_with_nvbandwidth_where_there_is_no_torch(tools: Path) -> None:
    program(tools, "nvbandwidth", "exit 0")
    found = m.gpu(2, [], asked=False)
    assert (found.reason, found.facts["method"]) == ("", "nvbandwidth")
    assert "there is no Python that has it" in m.collective(2, found).reason
    # Who names a Python means that one.
    assert m.gpu(2, ["/nonexistent/python"], asked=True).wrong


def test_gpus_without_any_tool(tools: Path) -> None:
    found = m.gpu(8, ["/opt/plumbline/engines/current/bin/python"], asked=False)
    assert found.reason.startswith("there is neither a Python with torch (/opt/plumbline/engines/current/bin/python)")
    assert not found.wrong
    assert found.next_command


def test_torch_is_looked_for_and_not_imported() -> None:
    assert m._has_torch(sys.executable) is (importlib.util.find_spec("torch") is not None)


def test_without_a_package_manager_there_is_no_command(tools: Path) -> None:
    assert m.install_command("fio") == ""


def test_check_mode_observes_the_same(tools: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, _ansible_check_mode=True) == run(capsys)


def test_the_documentation_covers_what_the_module_takes_and_gives(
    tools: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    documentation = yaml.safe_load(MODULE.DOCUMENTATION)
    assert documentation["module"] == "measurability_info"
    assert set(attributes(documentation)) == {"check_mode", "diff_mode"}
    assert set(run(capsys)) - {"changed", "invocation"} == set(yaml.safe_load(MODULE.RETURN))
