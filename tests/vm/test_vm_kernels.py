"""A restart that the machine does not come back from, and a machine with two kernels. After test_virtual_bare_metal.py, on its machine."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

import pytest

from lab.vm import powers
from tests.e2e.conftest import CHECKOUT
from tests.vm.conftest import Machine

pytestmark = pytest.mark.lab

MARK = CHECKOUT / "artifacts" / "marks" / "lab-vm1.json"
# An entry that GRUB boots once: no initramfs and no root, so the kernel panics.
BROKEN = """menuentry 'broken' {
    set root='(hd0,msdos1)'
    linux /boot/vmlinuz-%s root=/dev/nowhere ro console=ttyS0 loglevel=4
}
"""
ARGUMENTS = ["iommu=pt", "plumbline.lab=1"]
STAGES = "survey,kernel,gpu_driver,restart,verify"
CLEARED = "#clear Unattended-Upgrade::Package-Blacklist;"


@dataclass(frozen=True)
class Kernels:
    """The kernel that the machine came with, an older one that the archive still has, and the metapackage's version of that time."""

    newest: str
    older: str
    metapackage: str


@pytest.fixture(scope="module")
def on(bare: Machine) -> Machine:
    if not powers.running(bare.lab):
        bare.bmc.reset("On")
    bare.wait_for("an answer over SSH", bare.answers)
    return bare


@pytest.fixture(scope="module")
def kernels(on: Machine) -> Kernels:
    on.inside("apt-get -qq -o Acquire::Languages=none update", timeout_seconds=900)
    offered = on.inside("apt-cache madison linux-image-amd64").splitlines()
    versions = [line.split("|")[1].strip() for line in offered if "Packages" in line]
    newest = on.inside("uname -r").splitlines()[-1]
    depends = on.inside(
        f"apt-cache show linux-image-amd64={versions[-1]} | sed -n 's/^Depends: linux-image-\\([^ ]*\\).*/\\1/p'"
    )
    if depends == newest:
        pytest.skip(f"the archive offers no kernel but {newest}")
    return Kernels(newest, depends, versions[-1])


def unattended(on: Machine, configuration: str = "") -> str:
    """What an unattended upgrade would do now, in its own words."""
    command = "unattended-upgrade --dry-run --debug 2>&1"
    if configuration:
        # Behind our own file, as a site's might be.
        file = "/etc/apt/apt.conf.d/99test"
        command = f"echo '{configuration}' > {file}; {command}; rm {file}"
    return on.inside(command, timeout_seconds=600)


def moves_the_kernel(said: str) -> bool:
    found = re.search(r"Packages that will be upgraded: (.*)|No packages found that can be upgraded unattended", said)
    assert found, said[-2000:]
    return "linux-image" in (found.group(1) or "")


def test_a_machine_that_does_not_come_back_is_marked_with_the_last_lines_of_its_console(on: Machine) -> None:
    running = on.inside("uname -r").splitlines()[-1]
    on.inside(
        f"cat > /boot/grub/custom.cfg <<'END'\n{BROKEN % running}END\n"
        "grub-editenv /boot/grub/grubenv create && grub-reboot broken && sync"
    )
    lost = on.stages("survey,kernel,restart", kernel_arguments=ARGUMENTS, restart_timeout_seconds=150)
    lost.refused_with(
        "lab-vm1 was expected to be back with a new boot within 150 s of its restart",
        "The last lines of its console log HostLogger:",
        "Kernel panic - not syncing: VFS: Unable to mount root fs",
    )
    mark = json.loads(MARK.read_text())
    assert (mark["because"], mark["console_source"], mark["power_state"]) == ("kernel", "console log HostLogger", "On")
    assert any("Kernel panic" in line for line in mark["console"]), mark
    # Taken off and on again by hand, it boots as it should, and the mark goes when it answers.
    on.bmc.reset("ForceRestart")
    on.wait_for("an answer over SSH", on.answers)
    assert set(ARGUMENTS) <= set(on.inside("cat /proc/cmdline").split())
    survey = on.playbook("playbooks/survey.yml")
    assert "lab-vm1 did not come back from its restart of" in survey.output
    assert not MARK.exists()


def test_an_older_kernel_is_installed_booted_and_held_with_one_restart(on: Machine, kernels: Kernels) -> None:
    before = on.starts()
    outcome = on.stages(STAGES, kernel_release=kernels.older)
    assert outcome.returncode == 0, outcome.output[-4000:]
    assert "Restarts: 1" in outcome.output
    assert on.starts() == before + 1
    assert on.inside("uname -r").splitlines()[-1] == kernels.older
    # The arguments of the run before have gone with the same restart.
    words = on.inside("cat /proc/cmdline").split()
    assert ("iommu=pt" in words, "plumbline.lab=1" in words) == (True, False)
    assert on.inside("apt-mark showhold").splitlines() == [f"linux-image-{kernels.older}", "linux-image-amd64"]
    again = on.stages(STAGES, kernel_release=kernels.older)
    assert again.returncode == 0, again.output[-4000:]
    assert again.recap("lab-vm1")["changed"] == 0
    assert "Restarts: 0" in again.output


def test_an_unattended_upgrade_leaves_the_kernel_alone_by_the_hold_and_by_the_list(
    on: Machine, kernels: Kernels
) -> None:
    # As on a machine that was installed when this kernel was the newest.
    forced = "--yes --allow-downgrades --allow-change-held-packages"
    on.inside(f"apt-get -qq install {forced} linux-image-amd64={kernels.metapackage}", timeout_seconds=600)
    on.inside("apt-mark hold linux-image-amd64")
    assert not moves_the_kernel(unattended(on))
    # Each of the two alone does it, and without both the kernel would move.
    assert not moves_the_kernel(unattended(on, CLEARED))
    on.inside("apt-mark unhold linux-image-amd64")
    assert not moves_the_kernel(unattended(on))
    assert moves_the_kernel(unattended(on, CLEARED))


def test_without_the_wish_the_newest_kernel_boots_again(on: Machine, kernels: Kernels) -> None:
    outcome = on.stages(STAGES)
    assert outcome.returncode == 0, outcome.output[-4000:]
    assert "Restarts: 1" in outcome.output
    assert on.inside("uname -r").splitlines()[-1] == kernels.newest
    assert on.inside("apt-mark showhold").splitlines() == [f"linux-image-{kernels.newest}", "linux-image-amd64"]
