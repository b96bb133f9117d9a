"""The stages from survey to verify on a machine that really reboots. In this order: each test goes on with the machine of the one before.

Started by `make test-vm`, which ends at the first failure; about 20 minutes under emulation (docs/lab-vm.md).
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab.vm import machine, powers, settings
from lab.vm.bmc import SYSTEM, VmBmc
from lab.vm.ipmi import Ipmi
from tests.e2e.conftest import CHECKOUT, Outcome, lab_environment, run

pytestmark = pytest.mark.lab

STAGES = "survey,firmware,bios,kernel,gpu_driver,restart,verify"
CPLD = "1.0.8"
BOOT_SECONDS = 900
# Tasks that may reach the machine in a run that has nothing to do.
CONVERGED_TASKS = 25
LEFT_BEHIND, RATED = "2666", "3200"


@dataclass(frozen=True)
class Machine:
    """The running machine and the ways to reach into it."""

    lab: settings.VmLab
    environment: dict[str, str]
    firmware: Path

    def command(self, *words: str, timeout_seconds: int = 1800) -> Outcome:
        return run("python", "-m", "lab", "vm", *words, environment=self.environment, timeout_seconds=timeout_seconds)

    def playbook(self, name: str, *arguments: str) -> Outcome:
        words = ("ansible-playbook", "-i", "inventories/lab-vm", name, *arguments)
        counted = {
            "ANSIBLE_CALLBACK_PLUGINS": str(CHECKOUT / "bench" / "callback_plugins"),
            "ANSIBLE_CALLBACKS_ENABLED": "plumbline.plumbline.report,node_tasks",
        }
        outcome = run(*words, environment={**self.environment, **counted}, timeout_seconds=2400)
        print(outcome.output)
        print(f"{name} {' '.join(arguments)}: {outcome.seconds:.0f} s")
        return outcome

    def stages(self) -> Outcome:
        return self.playbook("site.yml", "--tags", STAGES, "-e", f"@{self.firmware}")

    def inside(self, command: str) -> str:
        outcome = self.command("shell", "--", "sh", "-c", command, timeout_seconds=180)
        assert outcome.returncode == 0, f"{command}: {outcome.output}"
        return outcome.output.strip()

    @property
    def bmc(self) -> VmBmc:
        return VmBmc(self.lab)

    def boot_id(self) -> str:
        return self.inside("cat /proc/sys/kernel/random/boot_id").splitlines()[-1]

    def memory_speeds(self) -> set[str]:
        return set(re.findall(r"Configured Memory Speed: (\d+) MT/s", self.inside("dmidecode -t 17")))

    def starts(self) -> int:
        """How often the machine was started, by the chassis' own log."""
        return (self.lab.state / "chassis.log").read_text().count("the machine runs")

    def wait_for(self, what: str, true: object, seconds: float = BOOT_SECONDS) -> None:
        assert callable(true)
        deadline = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < deadline, f"{what} did not come true within {seconds:.0f} s"
            time.sleep(1)

    def boot_progress(self) -> object:
        progress = self.bmc.ask(SYSTEM)["BootProgress"]
        assert isinstance(progress, dict)
        return progress["LastState"]

    def answers(self) -> bool:
        return self.command("shell", "--", "true", timeout_seconds=120).returncode == 0


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    environment = lab_environment()
    image = tmp_path_factory.mktemp("firmware") / "cpld.img"
    words = ("python", "-m", "lab.bmc.firmware", "--component", "CPLD", "--version", CPLD, "--model", "NF5280M6")
    made = run(*words, str(image), environment=environment)
    assert made.returncode == 0, made.output
    digest = hashlib.sha256(image.read_bytes()).hexdigest()
    wanted = {
        "firmware_floors": {"BIOS": "06.08.01", "BMC": "4.26.00", "CPLD": CPLD},
        "firmware_images": [{"component": "CPLD", "version": CPLD, "file": str(image), "sha256": digest}],
    }
    firmware = image.with_name("firmware.json")
    firmware.write_text(json.dumps(wanted))
    clean = run("python", "-m", "lab", "vm", "clean", environment=environment)
    assert clean.returncode == 0, clean.output
    try:
        up = run("make", "lab-vm", environment=environment, timeout_seconds=2400)
        print(up.output, f"make lab-vm: {up.seconds:.0f} s")
        assert up.returncode == 0, up.output
        yield Machine(settings.load(CHECKOUT, recorded_first=True), environment, firmware)
    finally:
        down = run("python", "-m", "lab", "vm", "clean", environment=environment)
    assert down.returncode == 0, down.output


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
