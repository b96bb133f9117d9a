"""The virtual bare metal for the tests: one machine for all of them, made anew and gone at the end."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab.vm import settings
from lab.vm.bmc import SYSTEM, VmBmc
from tests.e2e.conftest import CHECKOUT, Outcome, lab_environment, run

STAGES = "survey,firmware,bios,kernel,gpu_driver,restart,verify"
CPLD = "1.0.8"
BOOT_SECONDS = 900


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

    def stages(self, tags: str = STAGES, **variables: object) -> Outcome:
        words = ["site.yml", "--tags", tags]
        # The image is newer than what the inventory asks for by itself.
        words += ["-e", f"@{self.firmware}"] if "firmware" in tags else []
        return self.playbook(*words, *(("-e", json.dumps(variables)) if variables else ()))

    def inside(self, command: str, timeout_seconds: int = 180) -> str:
        outcome = self.command("shell", "--", "sh", "-c", command, timeout_seconds=timeout_seconds)
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


@pytest.fixture(scope="session")
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
