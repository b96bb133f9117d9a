"""Kernel arguments: staged once, read back, in order, without touching anybody else's, and taken away again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import kernel_files
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.kernel_arguments import (
    DROP_IN,
    not_in,
    split_command_line,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.kernel_measurements import measurements
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.kernel_report import differences, report
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.kernel_settings import (
    RefusedError,
    apply_plan,
    make_plan,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.kernel_wish import KernelError

from tests.unit.kernel_machine import Kernel, Machine

ARGUMENTS = ["iommu=pt", "hugepagesz=1G", "hugepages=16", "hugepagesz=2M", "hugepages=512"]
CMDLINE = "BOOT_IMAGE=/vmlinuz root=UUID=0 ro quiet"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path)
    machine.add_grub()
    return machine


def converge(machine: Machine, arguments: list[Any], run: Any = None) -> tuple[bool, dict[str, dict[str, Any]]]:
    runner = run or machine.update_grub
    plan = make_plan(str(machine.root), {"arguments": arguments}, False, runner)
    rows, changed = report(plan), plan.is_changed
    apply_plan(plan, Kernel(machine.tree), runner)
    return changed, {row["name"]: row for row in rows}


def restart(machine: Machine, arguments: list[str], boot_id: str = "boot-2") -> None:
    machine.put("/proc/cmdline", " ".join([CMDLINE, *arguments]))
    machine.put("/proc/sys/kernel/random/boot_id", boot_id)


def judge(machine: Machine, arguments: list[str], run: Any) -> list[dict[str, Any]]:
    return measurements(make_plan(str(machine.root), {"arguments": arguments}, False, run))


def test_grub_gets_a_drop_in_once_and_the_restart_is_asked_for_until_it_happens(machine: Machine) -> None:
    changed, rows = converge(machine, ARGUMENTS)
    assert changed
    assert machine.commands == [["update-grub"]]
    assert {row["state"] for row in rows.values()} == {"changed"}
    assert all(row["restart_required"] for row in rows.values())
    text = machine.get(DROP_IN) or ""
    assert text.endswith('"${GRUB_CMDLINE_LINUX_DEFAULT:+$GRUB_CMDLINE_LINUX_DEFAULT }' + " ".join(ARGUMENTS) + '"')
    assert machine.get("/etc/default/grub") == 'GRUB_CMDLINE_LINUX_DEFAULT="quiet"'

    changed, rows = converge(machine, ARGUMENTS)
    assert not changed
    assert machine.commands == [["update-grub"]]
    assert {row["state"] for row in rows.values()} == {"ok"}
    assert all(row["restart_required"] for row in rows.values())

    restart(machine, ARGUMENTS)
    changed, rows = converge(machine, ARGUMENTS)
    assert not changed
    assert not any(row["restart_required"] for row in rows.values())
    assert [m["value"] == m["expected"] for m in judge(machine, ARGUMENTS, machine.update_grub)] == [True] * 5


def test_before_the_restart_verify_says_that_it_has_not_happened(machine: Machine) -> None:
    found = judge(machine, ["iommu=pt"], machine.update_grub)[0]
    assert (found["value"], found["expected"]) == ("absent", "iommu=pt")
    assert "not staged" in found["cause"]
    converge(machine, ["iommu=pt"])
    assert "has not restarted since" in judge(machine, ["iommu=pt"], machine.update_grub)[0]["cause"]


def test_a_machine_that_booted_another_entry_fails_and_is_not_restarted_for_ever(machine: Machine) -> None:
    converge(machine, ["iommu=pt"])
    restart(machine, [])
    changed, rows = converge(machine, ["iommu=pt"])
    assert not changed
    assert rows["argument iommu=pt"]["state"] == "failed"
    assert not rows["argument iommu=pt"]["restart_required"]
    assert "booted another entry" in judge(machine, ["iommu=pt"], machine.update_grub)[0]["cause"]


def test_arguments_are_taken_away_and_the_restart_is_asked_for(machine: Machine) -> None:
    converge(machine, ["iommu=pt", "nosmt"])
    restart(machine, ["iommu=pt", "nosmt"])
    changed, rows = converge(machine, ["iommu=pt"])
    assert changed
    assert rows["argument nosmt"]["restart_required"]
    assert "nosmt" not in (machine.get("/boot/grub/grub.cfg") or "")
    changed, rows = converge(machine, ["iommu=pt"])
    assert not changed
    assert rows["argument nosmt"]["restart_required"]
    restart(machine, ["iommu=pt"], "boot-3")
    changed, rows = converge(machine, ["iommu=pt"])
    assert not changed
    assert list(rows) == ["argument iommu=pt"]
    converge(machine, [])
    assert machine.get(DROP_IN) is None
    assert len(machine.commands) == 3


def test_arguments_that_another_file_overwrites_are_put_back_and_told(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    commands = machine.add_grub(reaches=False)
    before = machine.snapshot()
    with pytest.raises(RefusedError, match=r"iommu=pt did not reach /boot/grub/grub\.cfg.*nothing was changed"):
        converge(machine, ["iommu=pt"])
    assert machine.snapshot() == before
    # Nothing came of it, so nothing is to be put back.
    assert commands == [["update-grub"]]


def test_a_failing_update_grub_puts_live_values_back_too(machine: Machine) -> None:
    before = machine.snapshot()

    def run(command: list[str]) -> tuple[int, str, str]:
        return 1, "", "some noise\n/usr/sbin/grub-probe: error: failed to get canonical path of `overlay'."

    plan = make_plan(str(machine.root), {"arguments": ["iommu=pt"], "sysctl": {"vm.swappiness": 1}}, False, run)
    with pytest.raises(RefusedError) as caught:
        apply_plan(plan, Kernel(machine.tree), run)
    assert "update-grub ended with status 1 (/usr/sbin/grub-probe: error" in str(caught.value)
    # GRUB's configuration is as it was, so nobody needs to beware.
    assert str(caught.value).endswith("; nothing was changed")
    assert machine.snapshot() == before
    rows = {row["name"]: row["state"] for row in report(plan, caught.value)}
    assert rows == {"argument iommu=pt": "failed", "vm.swappiness": "skipped"}


def test_a_grub_configuration_that_was_cut_short_is_put_back(machine: Machine) -> None:
    before = machine.snapshot()

    def run(command: list[str]) -> tuple[int, str, str]:
        # As on a full file system: grub-mkconfig empties grub.cfg and cannot fill it.
        machine.put("/boot/grub/grub.cfg", "")
        return 1, "", "cat: write error: No space left on device"

    plan = make_plan(str(machine.root), {"arguments": ["iommu=pt"]}, False, run)
    with pytest.raises(RefusedError, match=r"No space left on device.*; nothing was changed$"):
        apply_plan(plan, Kernel(machine.tree), run)
    assert machine.snapshot() == before


def test_a_run_that_was_cut_off_before_update_grub_is_made_good(machine: Machine) -> None:
    converge(machine, ["iommu=pt"])
    restart(machine, ["iommu=pt"])
    # The drop-in went, grub.cfg did not follow, the record is the old one.
    (machine.root / DROP_IN.lstrip("/")).unlink()
    changed, _ = converge(machine, [])
    assert changed
    assert "iommu" not in (machine.get("/boot/grub/grub.cfg") or "")
    assert len(machine.commands) == 2


def test_a_later_word_of_the_same_name_counts() -> None:
    assert not_in(["a=1"], ["a=1", "a=2"]) == ["a=1"]
    assert not_in(["a=1"], ["a=2", "a=1"]) == []
    assert not_in(["quiet", "a=1", "a=2"], ["a=1", "a=2"]) == ["quiet"]


def test_a_command_line_is_split_as_the_kernel_does() -> None:
    line = 'ro dyndbg="file a.c +p" quiet  x'
    assert split_command_line(line) == ["ro", 'dyndbg="file a.c +p"', "quiet", "x"]


def test_the_diff_shows_the_words(machine: Machine) -> None:
    plan = make_plan(str(machine.root), {"arguments": ["iommu=pt"]}, False, machine.update_grub)
    assert differences(plan)[-1] == {
        "before_header": "kernel arguments (grub)",
        "after_header": "kernel arguments (grub)",
        "before": "",
        "after": "iommu=pt\n",
    }


class Bls:
    """A machine with boot loader entries, and a grubby that edits them as the real one does."""

    def __init__(self, root: Path) -> None:
        self.machine = Machine(root)
        self.machine.put("/usr/sbin/grubby", "")
        self.commands: list[list[str]] = []
        for name in ("a-5.14.0-503.el9", "a-5.14.0-427.el9"):
            self.entry(name, "root=/dev/sda ro crashkernel=1G")
        self.entry("a-0-rescue", "root=/dev/sda ro")

    def entry(self, name: str, options: str) -> None:
        self.machine.put(f"/boot/loader/entries/{name}.conf", f"title x\nversion 5\noptions {options}")

    def options(self, name: str = "a-5.14.0-503.el9") -> list[str]:
        text = self.machine.get(f"/boot/loader/entries/{name}.conf") or ""
        return text.splitlines()[-1].split()[1:]

    def grubby(self, command: list[str]) -> tuple[int, str, str]:
        self.commands.append(command)
        add = next((word[len("--args=") :].split() for word in command if word.startswith("--args=")), [])
        remove = next((word[len("--remove-args=") :].split() for word in command if word.startswith("--remove-")), [])
        for name in ("a-5.14.0-503.el9", "a-5.14.0-427.el9"):
            names = {word.partition("=")[0] for word in add}
            kept = [w for w in self.options(name) if w not in remove and w.partition("=")[0] not in names]
            self.entry(name, " ".join(kept + add))
        return 0, "", ""


@pytest.fixture
def bls(tmp_path: Path) -> Bls:
    return Bls(tmp_path)


def test_boot_loader_entries_get_what_they_lack_and_lose_what_is_no_longer_wished(bls: Bls) -> None:
    changed, rows = converge(bls.machine, ["iommu=pt", "nosmt"], bls.grubby)
    assert changed
    assert rows["argument iommu=pt"]["persisted_in"] == "bls"
    assert bls.commands == [["grubby", "--update-kernel=ALL", "--args=iommu=pt nosmt"]]
    assert bls.options() == ["root=/dev/sda", "ro", "crashkernel=1G", "iommu=pt", "nosmt"]
    assert bls.options("a-0-rescue") == ["root=/dev/sda", "ro"]
    assert not converge(bls.machine, ["nosmt", "iommu=pt"], bls.grubby)[0]
    changed, _ = converge(bls.machine, ["iommu=on"], bls.grubby)
    assert changed
    assert bls.commands[-1] == ["grubby", "--update-kernel=ALL", "--args=iommu=on", "--remove-args=nosmt"]
    assert bls.options() == ["root=/dev/sda", "ro", "crashkernel=1G", "iommu=on"]
    converge(bls.machine, [], bls.grubby)
    assert bls.options() == ["root=/dev/sda", "ro", "crashkernel=1G"]
    assert not converge(bls.machine, [], bls.grubby)[0]


def test_a_new_kernels_entry_that_lacks_the_arguments_is_given_them(bls: Bls) -> None:
    converge(bls.machine, ["iommu=pt"], bls.grubby)
    bls.entry("a-5.14.0-427.el9", "root=/dev/sda ro crashkernel=1G")
    assert converge(bls.machine, ["iommu=pt"], bls.grubby)[0]


def test_others_arguments_of_the_same_name_are_not_replaced(bls: Bls) -> None:
    before = bls.machine.snapshot()
    with pytest.raises(KernelError, match="already has 'crashkernel=1G' from elsewhere"):
        make_plan(str(bls.machine.root), {"arguments": ["crashkernel=2G"]}, False, bls.grubby)
    assert bls.machine.snapshot() == before


def test_repeated_names_are_refused_where_grubby_would_lose_them(bls: Bls) -> None:
    with pytest.raises(KernelError, match="hugepages is given more than once"):
        make_plan(str(bls.machine.root), {"arguments": ARGUMENTS}, False, bls.grubby)


def test_shared_options_of_older_entries_are_looked_up(bls: Bls) -> None:
    bls.entry("a-5.14.0-503.el9", "$kernelopts $tuned_params")
    bls.entry("a-5.14.0-427.el9", "$kernelopts")
    bls.machine.put("/boot/grub2/grubenv", "# GRUB\nkernelopts=root=/dev/sda ro iommu=pt")
    plan = make_plan(str(bls.machine.root), {"arguments": ["iommu=pt"]}, False, bls.grubby)
    assert plan.arguments.is_staged


def test_a_grubby_that_does_nothing_is_caught(bls: Bls) -> None:
    with pytest.raises(RefusedError, match="grubby succeeded, yet a boot entry lacks iommu=pt"):
        converge(bls.machine, ["iommu=pt"], lambda command: (0, "", ""))
    assert bls.machine.get(kernel_files.STATE) is None
