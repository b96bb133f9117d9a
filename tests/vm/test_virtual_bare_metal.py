"""The stages from survey to verify on a machine that really reboots. In this order: each test goes on with the machine of the one before.

Started by `make test-vm`, which ends at the first failure; about 20 minutes under emulation (docs/lab-vm.md).
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from lab.vm import machine, powers
from lab.vm.bmc import SYSTEM
from lab.vm.ipmi import Ipmi
from tests.vm.conftest import CPLD, Machine

pytestmark = pytest.mark.lab

# Tasks that may reach the machine in a run that has nothing to do.
CONVERGED_TASKS = 25
LEFT_BEHIND, RATED = "2666", "3200"


def test_it_looks_like_the_machine_that_its_bmc_describes(bare: Machine) -> None:
    table = bare.inside("dmidecode -t 17")
    assert len(re.findall(r"^\s*Size: 32 GB$", table, re.MULTILINE)) == 16
    assert len(set(re.findall(r"Serial Number: (\S+)", table))) == 16
    assert {part["SerialNumber"] for part in machine.Tables(bare.lab).dimms()} == set(
        re.findall(r"Serial Number: (\S+)", table)
    )
    assert bare.memory_speeds() == {RATED}
    assert bare.inside("stat -fc %T /sys/fs/cgroup") == "cgroup2fs"


def test_a_redfish_reset_reboots_it_and_what_was_pending_is_what_it_sees(bare: Machine) -> None:
    before, starts = bare.boot_id(), bare.starts()
    bare.bmc.ask(f"{SYSTEM}/Bios/SD", {"Attributes": {"XmpDdrFreqLimit": LEFT_BEHIND}}, "PATCH")
    assert bare.memory_speeds() == {RATED}, "a pending value must not be seen before the reset"
    bare.bmc.reset("ForceRestart")
    bare.wait_for("a new start", lambda: bare.starts() == starts + 1, 120)
    bare.wait_for("an answer over SSH", bare.answers)
    assert bare.boot_id() != before
    assert bare.memory_speeds() == {LEFT_BEHIND}


def test_the_stages_make_it_right_with_one_restart(bare: Machine) -> None:
    before, starts = bare.boot_id(), bare.starts()
    outcome = bare.stages()
    assert outcome.returncode == 0, outcome.output[-4000:]
    recap = outcome.recap("lab-vm1")
    assert (recap["failed"], recap["unreachable"]) == (0, 0)
    assert recap["changed"] > 0
    assert "Restarts: 1" in outcome.output
    assert bare.starts() == starts + 1
    assert bare.boot_id() != before
    # Firmware, BIOS and kernel, each read past Plumbline.
    found = bare.bmc.ask("/redfish/v1/UpdateService/FirmwareInventory/CPLD")
    assert found["Version"] == CPLD
    assert bare.memory_speeds() == {RATED}
    assert "iommu=pt" in bare.inside("cat /proc/cmdline").split()
    assert bare.inside("cat /proc/sys/vm/swappiness") == "1"


def test_a_second_run_changes_nothing_and_restarts_nothing(bare: Machine) -> None:
    before, starts = bare.boot_id(), bare.starts()
    outcome = bare.stages()
    assert outcome.returncode == 0, outcome.output[-4000:]
    recap = outcome.recap("lab-vm1")
    assert (recap["changed"], recap["failed"], recap["unreachable"]) == (0, 0, 0)
    assert "Restarts: 0" in outcome.output
    figures = json.loads(next(line for line in outcome.output.splitlines() if line.startswith("NODE_TASKS "))[11:])
    assert 0 < figures["node_tasks"]["lab-vm1"] <= CONVERGED_TASKS, figures
    assert (bare.boot_id(), bare.starts()) == (before, starts)


def test_a_degraded_link_is_found_with_its_cause(bare: Machine) -> None:
    trained = bare.command("link", "nic1", "8x8")
    assert trained.returncode == 0, trained.output
    outcome = bare.playbook("playbooks/survey.yml")
    outcome.refused_with(
        "PCIe link width (0000:01:00.0): 8 lanes is 50 %", "it and its port 0000:00:04.0 can do x16: lanes do not train"
    )
    outcome.refused_with("PCIe link speed (0000:01:00.0): 8 GT/s is 50 %", "the link trained down")
    assert bare.command("link", "nic1", "full").returncode == 0
    assert "Speed 16GT/s, Width x16" in bare.inside("lspci -vv -s 01:00.0")


def test_a_hot_voltage_regulator_is_found_in_band(bare: Machine, tmp_path: Path) -> None:
    sensor = Ipmi(bare.lab).directory / "CPU0_VRM_Temp"
    cool = sensor.read_text()
    sensor.write_text("97\n")
    try:
        # Without a BMC in the inventory the sensors come from ipmitool on the node.
        # Their names are other ones: beside the evidence of its own, so that none counts as lost.
        outcome = bare.playbook(
            "playbooks/survey.yml", "-e", "bmc_host=", "-e", f"plumbline_artifacts_dir={tmp_path / 'artifacts'}"
        )
    finally:
        sensor.write_text(cool)
    outcome.refused_with(
        "CPU0_VRM_Temp 97 °C (critical from 95 on)", "Upper Critical going high (Reading 97 > Threshold 95"
    )
    listed = bare.inside("ipmitool sdr")
    assert len(re.findall(r"^CPU\d_C\dD0_Temp .* ok$", listed, re.MULTILINE)) == 16
    assert len(re.findall(r"^CPU\d_D?VRM_(?:Temp|Volt) ", listed, re.MULTILINE)) == 8


def test_its_power_is_the_bmcs(bare: Machine) -> None:
    bare.bmc.reset("GracefulShutdown")
    bare.wait_for("a shutdown", lambda: bare.bmc.look() == "Off", 300)
    assert powers.chassis_pid(bare.lab) is None
    assert "reboot: Power down" in (bare.lab.state / "console.log").read_text(errors="replace")
    bare.bmc.reset("On")
    bare.wait_for("power", lambda: bool(powers.running(bare.lab)), 120)
    qemu = Path("/proc") / str(powers.running(bare.lab)["qemu"])
    assert "qemu" in (qemu / "cmdline").read_text()
    # Until the transition has ended the BMC refuses another one.
    bare.wait_for("the end of POST", lambda: bare.boot_progress() == "OSRunning", 60)
    bare.bmc.reset("ForceOff")
    bare.wait_for("no power", lambda: powers.chassis_pid(bare.lab) is None, 60)
    assert not qemu.exists()
