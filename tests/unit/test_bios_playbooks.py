"""Backup, restore and comparison of BIOS settings as a user runs them, on simulators of captured machines."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lab.bmc.testing import RunningBmc, running
from tests.unit.bios_fleet import Fleet, changed


@pytest.fixture(scope="module")
def machines() -> Iterator[dict[str, RunningBmc]]:
    """Three HPE servers, of which one differs in what is a setting and in what belongs to it alone."""
    with running("hpe-dl380a-gen11") as one, running("hpe-dl380a-gen11") as two, running("hpe-dl380a-gen11") as three:
        yield {"node1": one, "node2": two, "node3": three}


@pytest.fixture
def fleet(machines: dict[str, RunningBmc], tmp_path: Path) -> Fleet:
    for bmc in machines.values():
        bmc.call(bmc.service.bios.clear)
        bmc.call(lambda bmc=bmc: bmc.service.bios._data["active"].update(bmc.service.bios._factory))
    odd = machines["node2"]
    different = {"ProcHyperthreading": "Disabled", "Sriov": "Disabled", "SerialNumber": "2M2D2J00L5"}
    odd.call(lambda: odd.service.bios._data["active"].update(different))
    return Fleet(tmp_path, dict(machines))


def test_a_backup_is_one_file_a_machine_and_is_left_alone_the_second_time(fleet: Fleet) -> None:
    fleet.machines["node9"] = None
    directory = fleet.directory / "backups"
    dry, output = fleet.play("bios_backup", options=("--check",), bios_backup_directory=str(directory))
    assert (dry, changed(output, "node1")) == (0, 1), output
    assert not directory.exists()
    status, output = fleet.play("bios_backup", bios_backup_directory=str(directory))
    assert (status, changed(output, "node1"), changed(output, "node9")) == (0, 1, 0), output
    assert "bmc_host is not set for node9" in output
    path = directory / "node1.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not (directory / "node9.json").exists()
    document = json.loads(path.read_text())
    bmc = fleet.machines["node1"]
    assert bmc is not None
    assert document["attributes"] == bmc.active
    assert document["registry"] == "BiosAttributeRegistryU58.v1_2_44"
    assert (document["model"], document["host"]) == ("ProLiant DL380a Gen11", "node1")
    assert document["taken_at"].endswith("Z")
    assert document["display_names"]["WorkloadProfile"] == "Workload Profile"
    status, output = fleet.play("bios_backup", bios_backup_directory=str(directory))
    assert (status, changed(output, "node1")) == (0, 0), output


def test_a_backup_replaces_nothing_but_a_backup(fleet: Fleet) -> None:
    for text, words in (('{"name": "a web page"}', "there is no key"), ('{"attributes": {"A"', "is not whole JSON")):
        path = fleet.directory / "node1.json"
        path.write_text(text)
        status, output = fleet.play(
            "bios_backup", options=("--limit", "node1"), bios_backup_directory=str(fleet.directory)
        )
        assert status != 0
        assert f"Expected {path} to be missing or an earlier backup" in output
        assert words in output
        assert "move it away and run again" in output
        assert path.read_text() == text


def test_the_odd_machine_of_a_fleet_is_found_by_majority(fleet: Fleet) -> None:
    status, output = fleet.play("bios_diff", options=("--check",))
    assert status == 0, output
    assert "2 of 3 machines have the same BIOS settings as the majority of 3 machines." in output
    assert "node2: 2 differences" in output
    row = next(line for line in output.splitlines() if "ProcHyperthreading" in line)
    assert row.split('"')[1].split()[-2:] == ["Enabled", "Disabled"]
    assert "passed over, as it belongs to one machine: SerialNumber" in output
    assert all(changed(output, host) == 0 for host in fleet.machines)
    comparison = json.loads((fleet.artifacts / "comparison.json").read_text())
    assert comparison["differing"] == ["node2"]
    assert [group["hosts"] for group in comparison["groups"]] == [["node1", "node3"], ["node2"]]
    assert comparison["groups"][1]["differences"][1] == {
        "attribute": "Sriov",
        "display_name": comparison["groups"][1]["differences"][1]["display_name"],
        "reference": "Enabled",
        "found": "Disabled",
    }
    failed, output = fleet.play("bios_diff", bios_diff_fail=True)
    assert failed != 0
    assert "Expected the same BIOS settings everywhere, found: 1 machine differs" in output
    passed, output = fleet.play("bios_diff", bios_diff_fail=True, bios_diff_ignore=["Sriov", "ProcHyper*"])
    assert passed == 0, output


def test_two_machines_are_compared_with_each_other(fleet: Fleet) -> None:
    status, output = fleet.play("bios_diff", options=("--limit", "node1,node2"))
    assert status == 0, output
    assert "0 of 1 machines have the same BIOS settings as node1." in output
    alone, output = fleet.play("bios_diff", options=("--limit", "node1"))
    assert alone != 0
    assert "A comparison needs two machines, or one and a golden file, found 1" in output


def test_a_machine_that_cannot_be_asked_is_named_and_the_others_are_compared(fleet: Fleet) -> None:
    fleet.machines["node8"] = None
    one = fleet.machines["node1"]
    assert one is not None
    fleet.machines["node7"] = replace(one, base_url="https://127.0.0.1:1")
    status, output = fleet.play("bios_diff", bios_diff_fail=True, bios_diff_ignore=["Sriov", "ProcHyper*"])
    assert status != 0
    assert "node8 is not compared: its BIOS attributes could not be read in this run" in output
    assert "The BMC at https://127.0.0.1:1 could not be asked" in output
    assert "node7 is not compared" in output
    assert "3 of 3 machines have the same BIOS settings" in output
    assert "2 could not be compared" in output


def test_a_backup_is_put_on_the_odd_machine_and_then_they_are_alike(fleet: Fleet) -> None:
    bmc = fleet.machines["node2"]
    assert bmc is not None
    fleet.play("bios_backup", options=("--limit", "node1"), bios_backup_directory=str(fleet.directory))
    golden = str(fleet.directory / "node1.json")
    restore = {"bios_restore_file": golden}
    predicted, output = fleet.play("bios_restore", options=("--check", "--diff", "--limit", "node2"), **restore)
    assert (predicted, changed(output, "node2")) == (0, 1), output
    assert "-ProcHyperthreading: applied Disabled, pending nothing, desired Enabled" in output
    assert "+ProcHyperthreading: applied Disabled, pending Enabled, desired Enabled" in output
    assert "- SerialNumber: it belongs to one machine" in output
    assert bmc.pending == {}
    status, output = fleet.play("bios_restore", options=("--limit", "node2"), **restore)
    assert (status, changed(output, "node2")) == (0, 1), output
    assert bmc.pending == {"ProcHyperthreading": "Enabled", "Sriov": "Enabled"}
    bmc.reset()
    again, output = fleet.play("bios_restore", options=("--limit", "node2"), **restore)
    assert (again, changed(output, "node2")) == (0, 0), output
    alike, output = fleet.play("bios_diff", bios_diff_golden_file=golden, bios_diff_fail=True)
    assert alike == 0, output
    assert "3 of 3 machines have the same BIOS settings" in output
    assert bmc.active["SerialNumber"] == "2M2D2J00L5"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read on the controller"),
        ("{model: Other, attributes: {Sriov: Enabled}}", "of the model Other, this machine is a ProLiant DL380a Gen11"),
        ("attributes: {Sriov: Enable}", 'Sriov has no value \\"Enable\\"'),
    ],
)
def test_a_file_that_does_not_fit_is_refused_with_one_sentence(fleet: Fleet, content: str | None, words: str) -> None:
    golden = fleet.directory / "golden.yml"
    if content is not None:
        golden.write_text(content)
    status, output = fleet.play("bios_restore", options=("--limit", "node2"), bios_restore_file=str(golden))
    assert status != 0
    assert words in output or words.replace("\\", "") in output, output
    bmc = fleet.machines["node2"]
    assert bmc is not None
    assert bmc.pending == {}


def test_a_file_of_another_model_can_be_allowed_and_leaves_out_what_is_not_known(fleet: Fleet) -> None:
    golden = fleet.directory / "golden.yml"
    golden.write_text("{model: Other, attributes: {Sriov: Enabled, ProcHyperthreading: Sometimes, NotHere: 1}}")
    status, output = fleet.play(
        "bios_restore", options=("--limit", "node2"), bios_restore_file=str(golden), bios_restore_other_model=True
    )
    assert status == 0, output
    assert "- NotHere: this machine does not have it" in output
    assert "- ProcHyperthreading: ProcHyperthreading has no value" in output
    bmc = fleet.machines["node2"]
    assert bmc is not None
    assert bmc.pending == {"Sriov": "Enabled"}


def test_a_restore_without_a_file_says_what_is_missing(fleet: Fleet) -> None:
    status, output = fleet.play("bios_restore", options=("--limit", "node2"))
    assert status != 0
    assert "Expected bios_restore_file to name a backup or golden file" in output
