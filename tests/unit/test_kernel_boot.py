"""The kernel that boots next: known, chosen, held with its metapackages, given back, and never a reason to restart for ever."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import kernel_boot
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.kernel_arguments import DROP_IN
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.kernel_boot import (
    next_kernel,
    sorted_entries,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.kernel_measurements import measurements
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.kernel_packages import VERSIONLOCK, to_hold
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.kernel_report import differences, report
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.kernel_settings import (
    Plan,
    RefusedError,
    apply_plan,
    make_plan,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.kernel_wish import KernelError

from tests.unit.kernel_boots import Deb, El
from tests.unit.kernel_machine import Kernel, Machine

BOOT = Path(__file__).parents[1] / "fixtures" / "boot"
NEW, OLD = "5.15.0-119-generic", "5.15.0-105-generic"
EL_NEW, EL_OLD = "5.14.0-503.15.1.el9_5.x86_64", "5.14.0-427.13.1.el9_4.x86_64"


def plan_of(machine: Deb | El, wish: dict[str, Any]) -> Plan:
    return make_plan(str(machine.root), wish, False, machine.run)


def converge(machine: Deb | El, wish: dict[str, Any]) -> tuple[bool, dict[str, dict[str, Any]]]:
    plan = plan_of(machine, wish)
    rows, changed = report(plan), plan.is_changed
    apply_plan(plan, Kernel(machine.tree), machine.run)
    return changed, {row["name"]: row for row in rows}


def judge(machine: Deb | El, wish: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {found["scope"]: found for found in measurements(plan_of(machine, wish))}


def ubuntu(root: Path, running: str = NEW) -> Deb:
    machine = Deb(root, [NEW, OLD], running)
    machine.package("linux-generic", "linux-image-generic (= 5.15.0.119.119), linux-headers-generic (= 5.15.0.119.119)")
    machine.package(
        "linux-image-generic", f"linux-image-{NEW} | linux-image-unsigned-{NEW}, linux-firmware, intel-microcode"
    )
    machine.package("linux-headers-generic", f"linux-headers-{NEW}")
    machine.package("linux-firmware", "firmware-base")
    machine.package(f"linux-modules-nvidia-535-{NEW}", f"linux-modules-{NEW}")
    machine.package("linux-libc-dev", "")
    return machine


HELD = [f"linux-image-{NEW}", f"linux-modules-{NEW}"]
META = ["linux-generic", "linux-image-generic"]


def test_the_real_packages_are_held_and_every_metapackage_along(tmp_path: Path) -> None:
    machine = ubuntu(tmp_path)
    changed, rows = converge(machine, {"boot": {"hold": True}})
    assert changed
    # Neither the older kernel, nor the firmware, nor the driver's modules, whose branch must stay free to move, nor the headers, which
    # the driver stage may bring later: a second run would then hold them and so change something.
    assert machine.held() == sorted(HELD + META)
    assert rows["boot.hold"]["state"] == "changed"
    assert not rows["boot.running_kernel"]["restart_required"]
    machine.commands.clear()
    changed, rows = converge(machine, {"boot": {"hold": True}})
    assert not changed
    assert machine.commands == []
    assert rows["boot.hold"]["state"] == "ok"
    found = judge(machine, {"boot": {"hold": True}})
    assert found["boot.hold"]["value"] == found["boot.hold"]["expected"] == " ".join(HELD + META)
    assert found["boot.running_kernel"]["value"] == found["boot.running_kernel"]["expected"] == NEW


def test_debians_metapackage_is_found_by_what_it_depends_on(tmp_path: Path) -> None:
    machine = Deb(tmp_path, ["6.1.0-57-amd64"], "6.1.0-57-amd64")
    machine.package("linux-image-amd64", "linux-image-6.1.0-57-amd64 (= 6.1.192-3)")
    machine.package("linux-base", "debconf (>= 0.5) | debconf-2.0")
    converge(machine, {"boot": {"hold": True}})
    assert "linux-image-amd64" in machine.held()
    assert "linux-base" not in machine.held()


def test_a_released_hold_is_found_and_what_others_hold_stays_held(tmp_path: Path) -> None:
    machine = ubuntu(tmp_path)
    machine.package("linux-generic", "linux-image-generic", "hold")
    converge(machine, {"boot": {"hold": True}})
    machine.run(["apt-mark", "unhold", f"linux-image-{NEW}"])
    found = judge(machine, {"boot": {"hold": True}})["boot.hold"]
    assert found["value"] != found["expected"]
    assert f"linux-image-{NEW}" not in found["value"].split()
    assert "somebody released" in found["cause"]
    assert converge(machine, {"boot": {"hold": True}})[0]
    changed, rows = converge(machine, {})
    assert changed
    assert rows["boot.hold"]["reason"] == "no longer wished: released"
    assert machine.held() == ["linux-generic"]
    assert not converge(machine, {})[0]


def test_a_hold_moves_along_with_a_kernel_that_a_person_installed(tmp_path: Path) -> None:
    machine = ubuntu(tmp_path)
    converge(machine, {"boot": {"hold": True}})
    newest = "5.15.0-130-generic"
    machine.add_kernel(newest)
    machine.write_status()
    machine.run(["update-grub"])
    _, rows = converge(machine, {"boot": {"hold": True}})
    assert f"linux-image-{newest}" in machine.held()
    assert f"linux-image-{NEW}" not in machine.held()
    assert rows["boot.running_kernel"]["restart_required"]


def test_a_kernel_that_is_no_package_cannot_be_held(tmp_path: Path) -> None:
    machine = Deb(tmp_path, [NEW], NEW)
    machine.packages.clear()
    machine.write_status()
    with pytest.raises(KernelError, match=f"expected a package linux-image-{NEW} to hold, found none"):
        plan_of(machine, {"boot": {"hold": True}})


def test_a_failing_apt_mark_puts_everything_back(tmp_path: Path) -> None:
    machine = ubuntu(tmp_path)
    machine.broken = ["apt-mark"]
    before = machine.snapshot()
    plan = plan_of(machine, {"boot": {"hold": True}, "sysctl": {"vm.swappiness": 1}})
    with pytest.raises(
        RefusedError, match=r"boot: apt-mark hold .* ended with status 1 .E: apt-mark does not work today"
    ) as caught:
        apply_plan(plan, Kernel(machine.tree), machine.run)
    assert machine.snapshot() == before
    assert {row["name"]: row["state"] for row in report(plan, caught.value)}["boot.hold"] == "failed"


@pytest.mark.parametrize("command", ["apt-mark", "update-grub"])
def test_a_machine_that_is_cut_off_at_a_command_knows_what_it_has_to_take_back(tmp_path: Path, command: str) -> None:
    machine = ubuntu(tmp_path)
    machine.package("linux-generic", "linux-image-generic", "hold")
    wish = {"boot": {"release": OLD, "hold": True}, "arguments": ["iommu=pt"]}

    class CutOffError(BaseException):
        pass

    def run(words: list[str]) -> tuple[int, str, str]:
        done = machine.run(words)
        if words[0] == command:
            raise CutOffError
        return done

    with pytest.raises(CutOffError):
        apply_plan(make_plan(str(machine.root), wish, False, run), Kernel(machine.tree), run)
    # It starts again, and the wish has gone: nothing of it stays, and nothing that was there before goes.
    machine.boot(NEW, "boot-2")
    converge(machine, {})
    assert machine.held() == ["linux-generic"]
    assert machine.get(DROP_IN) is None
    assert next_kernel(machine.tree) == NEW
    assert "iommu=pt" not in (machine.get("/boot/grub/grub.cfg") or "")
    # Once more, and made good by the next run.
    with pytest.raises(CutOffError):
        apply_plan(make_plan(str(machine.root), wish, False, run), Kernel(machine.tree), run)
    was_told = command == "update-grub"
    machine.boot(OLD if was_told else NEW, "boot-3", "iommu=pt" if was_told else "")
    converge(machine, wish)
    assert next_kernel(machine.tree) == OLD
    assert judge(machine, wish)["boot.hold"]["value"] == judge(machine, wish)["boot.hold"]["expected"]
    rows = converge(machine, wish)[1]
    assert {rows[name]["restart_required"] for name in ("boot.running_kernel", "argument iommu=pt")} == {not was_told}


def test_a_dry_run_tells_the_commands_and_runs_none_that_writes(tmp_path: Path) -> None:
    machine = ubuntu(tmp_path)
    before = machine.snapshot()
    plan = plan_of(machine, {"boot": {"hold": True, "release": OLD}})
    shown = differences(plan)
    assert any("apt-mark hold" in one["after"] for one in shown)
    assert machine.commands == []
    assert machine.snapshot() == before


def test_an_older_release_boots_by_its_own_entry_and_no_longer_when_the_wish_goes(tmp_path: Path) -> None:
    machine = ubuntu(tmp_path)
    wish = {"boot": {"release": OLD, "hold": True}, "arguments": ["iommu=pt"]}
    changed, rows = converge(machine, wish)
    assert changed
    assert next_kernel(machine.tree) == OLD
    assert f'GRUB_DEFAULT="gnulinux-advanced-u1>gnulinux-{OLD}-advanced-u1"' in (machine.get(DROP_IN) or "")
    assert rows["boot.running_kernel"]["restart_required"]
    changed, rows = converge(machine, wish)
    assert not changed
    assert rows["boot.running_kernel"]["restart_required"]
    machine.boot(OLD, "boot-2", "iommu=pt")
    changed, rows = converge(machine, wish)
    assert not changed
    assert not any(row["restart_required"] for row in rows.values())
    assert [one["value"] == one["expected"] for one in judge(machine, wish).values()] == [True] * 4
    converge(machine, {"arguments": ["iommu=pt"]})
    assert next_kernel(machine.tree) == NEW
    assert "GRUB_DEFAULT" not in (machine.get(DROP_IN) or "")
    assert machine.held() == []


def test_a_held_machine_boots_the_newest_again_when_no_release_is_wished(tmp_path: Path) -> None:
    machine = ubuntu(tmp_path)
    converge(machine, {"boot": {"release": OLD, "hold": True}})
    machine.boot(OLD, "boot-2", "")
    wish = {"boot": {"hold": True}}
    changed, rows = converge(machine, wish)
    assert changed
    assert rows["boot.running_kernel"]["restart_required"]
    assert next_kernel(machine.tree) == NEW
    assert not [one for one in machine.held() if OLD in one]
    machine.boot(NEW, "boot-3", "")
    changed, rows = converge(machine, wish)
    assert not changed
    assert not any(row["restart_required"] for row in rows.values())


def test_a_default_chosen_for_the_minimum_stays_after_the_restart(tmp_path: Path) -> None:
    newer = "6.8.0-45-generic"
    machine = Deb(tmp_path, [newer, OLD], OLD)
    # A site whose own file names the old kernel, which its GRUB would boot again without our word.
    machine.put("/etc/default/grub", f'GRUB_DEFAULT="gnulinux-advanced-u1>gnulinux-{OLD}-advanced-u1"\n')
    machine.run(["update-grub"])
    assert next_kernel(machine.tree) == OLD
    wish = {"minimum_version": "6.8"}
    assert converge(machine, wish)[0]
    assert next_kernel(machine.tree) == newer
    machine.boot(newer, "boot-2")
    assert not converge(machine, wish)[0]
    assert next_kernel(machine.tree) == newer
    # Without any wish the site's own choice counts again.
    converge(machine, {})
    assert next_kernel(machine.tree) == OLD


def test_entries_boot_the_newest_again_when_no_release_is_wished(tmp_path: Path) -> None:
    machine = El(tmp_path, [EL_NEW, EL_OLD], EL_NEW)
    converge(machine, {"boot": {"release": EL_OLD}})
    assert next_kernel(machine.tree) == EL_OLD
    machine.put("/proc/sys/kernel/osrelease", EL_OLD)
    converge(machine, {"boot": {}})
    assert next_kernel(machine.tree) == EL_NEW
    assert not converge(machine, {"boot": {}})[0]


def test_a_machine_that_booted_another_kernel_fails_and_is_not_restarted_for_ever(tmp_path: Path) -> None:
    machine = ubuntu(tmp_path)
    wish = {"boot": {"release": OLD}}
    converge(machine, wish)
    machine.boot(NEW, "boot-2")
    changed, rows = converge(machine, wish)
    assert not changed
    assert rows["boot.running_kernel"]["state"] == "failed"
    assert not rows["boot.running_kernel"]["restart_required"]
    found = judge(machine, wish)["boot.running_kernel"]
    assert (found["value"], found["expected"]) == (NEW, OLD)
    assert "booted another entry" in found["cause"]


def test_a_machine_whose_boot_loader_somebody_changed_back_is_told_and_restarted_again(tmp_path: Path) -> None:
    machine = ubuntu(tmp_path)
    wish = {"boot": {"release": OLD}}
    converge(machine, wish)
    machine.boot(OLD, "boot-2")
    assert not converge(machine, wish)[0]
    (machine.root / DROP_IN.lstrip("/")).unlink()
    machine.run(["update-grub"])
    machine.boot(NEW, "boot-3")
    assert judge(machine, wish)["boot.next_kernel"]["value"] == NEW
    changed, rows = converge(machine, wish)
    assert changed
    assert rows["boot.running_kernel"]["restart_required"]
    assert next_kernel(machine.tree) == OLD
    # Told, and yet not booted: that is not tried again and again.
    machine.boot(NEW, "boot-4")
    _, rows = converge(machine, wish)
    assert not rows["boot.running_kernel"]["restart_required"]


def test_a_later_file_that_chooses_another_entry_is_told_and_everything_put_back(tmp_path: Path) -> None:
    machine = ubuntu(tmp_path)
    machine.put("/etc/default/grub.d/99-site.cfg", "GRUB_DEFAULT=0")
    before = machine.snapshot()
    with pytest.raises(RefusedError, match=f"expected {OLD} to boot next, found {NEW} after the boot loader was told"):
        converge(machine, {"boot": {"release": OLD}})
    assert machine.snapshot() == before


def test_a_release_that_is_not_installed_is_asked_for_first(tmp_path: Path) -> None:
    machine = ubuntu(tmp_path)
    wish = {"boot": {"release": "5.15.0-130-generic", "hold": True}}
    plan = plan_of(machine, wish)
    assert plan.boot.told()["install"] == ["release"]
    assert not any(part.commands for part in plan.parts)
    found = judge(machine, wish)["boot.next_kernel"]
    assert (found["value"], found["expected"]) == (f"{NEW} (not installed)", "5.15.0-130-generic")
    machine.add_kernel("5.15.0-130-generic")
    machine.write_status()
    machine.run(["update-grub"])
    converge(machine, wish)
    assert "linux-image-5.15.0-130-generic" in machine.held()


def test_a_full_boot_partition_is_told_before_a_package_is_left_half_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = ubuntu(tmp_path)
    for path, size in ((f"/boot/vmlinuz-{NEW}", 14 << 20), (f"/boot/initrd.img-{NEW}", 66 << 20)):
        machine.put(path, "")
        with (tmp_path / path.lstrip("/")).open("r+b") as stream:
            stream.truncate(size)
    free = {"mib": 99}
    monkeypatch.setattr(
        kernel_boot.os, "statvfs", lambda _: SimpleNamespace(f_bavail=free["mib"] << 8, f_frsize=4096), raising=True
    )
    wish = {"boot": {"release": "6.8.0-45-generic"}}
    with pytest.raises(
        KernelError, match="expected 100 MiB free in /boot for a kernel and its initramfs, found 99 MiB"
    ):
        plan_of(machine, wish)
    # Nothing is to be installed, or there is room.
    plan_of(machine, {"boot": {"release": OLD}})
    free["mib"] = 100
    assert plan_of(machine, wish).boot.install == ["release"]


def test_a_machine_whose_kernels_are_too_old_needs_one_and_one_that_waits_for_its_restart_does_not(
    tmp_path: Path,
) -> None:
    machine = Deb(tmp_path, ["5.4.0-190-generic"], "5.4.0-190-generic")
    plan = plan_of(machine, {"minimum_version": "5.15", "boot": {"hold": True}})
    assert plan.boot.told()["install"] == ["minimum"]
    assert plan.boot.wanted == "5.15 or newer"
    assert machine.held() == []
    machine.add_kernel(NEW)
    machine.write_status()
    machine.run(["update-grub"])
    plan = plan_of(machine, {"minimum_version": "5.15"})
    assert plan.boot.told()["install"] == []
    assert [row["restart_required"] for row in report(plan) if row["name"] == "boot.running_kernel"] == [True]


def test_a_wish_that_contradicts_itself_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KernelError, match=r"expected 6\.1 or newer \(minimum_version\), found 5\.15"):
        plan_of(ubuntu(tmp_path), {"minimum_version": "6.1", "boot": {"release": NEW}})


@pytest.mark.parametrize(
    ("default", "saved", "once", "boots"),
    [
        ("0", "", "", NEW),
        ("1>2", "", "", OLD),
        ("7", "", "", NEW),
        (f"Advanced options for Ubuntu>Ubuntu, with Linux {OLD}", "", "", OLD),
        ("saved", f"gnulinux-advanced-u1>gnulinux-{OLD}-advanced-u1", "", OLD),
        ("saved", "", "", NEW),
        ("0", "", f"gnulinux-advanced-u1>gnulinux-{OLD}-advanced-u1", OLD),
    ],
)
def test_grubs_default_is_read_as_grub_reads_it(
    tmp_path: Path, default: str, saved: str, once: str, boots: str
) -> None:
    machine = ubuntu(tmp_path)
    machine.put("/etc/default/grub", f'GRUB_DEFAULT="{default}"')
    machine.run(["update-grub"])
    machine.put("/boot/grub/grubenv", f"# GRUB Environment Block\nsaved_entry={saved}\nnext_entry={once}\n####")
    assert next_kernel(machine.tree) == boots


def test_an_entry_that_stayed_behind_on_enterprise_linux_is_put_right(tmp_path: Path) -> None:
    """A new kernel is installed, yet saved_entry names the old one (teuthology#2231)."""
    machine = El(tmp_path, [EL_NEW, EL_OLD], EL_OLD)
    assert next_kernel(machine.tree) == EL_OLD
    changed, rows = converge(machine, {"boot": {"release": EL_NEW}})
    assert changed
    assert ["grubby", "--set-default", f"/boot/vmlinuz-{EL_NEW}"] in machine.commands
    assert next_kernel(machine.tree) == EL_NEW
    assert rows["boot.running_kernel"]["restart_required"]
    assert not converge(machine, {"boot": {"release": EL_NEW}})[0]
    machine.default("gone")
    assert next_kernel(machine.tree) == EL_NEW


def test_a_grubby_that_does_nothing_is_told(tmp_path: Path) -> None:
    machine = El(tmp_path, [EL_NEW, EL_OLD], EL_OLD)
    machine.deaf = True
    before = machine.snapshot()
    with pytest.raises(RefusedError, match=f"expected {EL_NEW} to boot next, found {EL_OLD}"):
        converge(machine, {"boot": {"release": EL_NEW}})
    assert machine.snapshot() == before
    assert machine.commands[-1] == ["grubby", "--set-default", f"/boot/vmlinuz-{EL_OLD}"]


def test_enterprise_linux_is_held_by_versionlock_between_others_lines(tmp_path: Path) -> None:
    machine = El(tmp_path, [EL_NEW, EL_OLD], EL_NEW)
    before = machine.snapshot()
    assert converge(machine, {"boot": {"hold": True}})[0]
    lines = (machine.get(VERSIONLOCK) or "").splitlines()
    assert lines[:2] == ["# Added by a person", "bash-0:5.1.8-9.el9.*"]
    assert lines[3:-1] == [f"{name}-0:5.14.0-503.15.1.el9_5.*" for name in ("kernel", "kernel-core", "kernel-modules")]
    assert not converge(machine, {"boot": {"hold": True}})[0]
    found = judge(machine, {"boot": {"hold": True}})["boot.hold"]
    assert found["value"] == found["expected"]
    machine.put(VERSIONLOCK, "bash-0:5.1.8-9.el9.*")
    assert judge(machine, {"boot": {"hold": True}})["boot.hold"]["value"] == "nothing"
    machine.put(VERSIONLOCK, "\n".join(lines))
    assert converge(machine, {})[0]
    after = machine.snapshot()
    after.pop("var/lib/plumbline/kernel_settings.json")
    assert after == before


def test_enterprise_linux_without_the_plugin_asks_for_it_and_is_not_taken_for_held(tmp_path: Path) -> None:
    machine = El(tmp_path, [EL_NEW], EL_NEW, plugin=False)
    assert plan_of(machine, {"boot": {"hold": True}}).boot.told()["install"] == ["versionlock"]
    converge(machine, {"boot": {"hold": True}})
    assert judge(machine, {"boot": {"hold": True}})["boot.hold"]["value"] == "nothing"


# --- outputs of real machines (tests/fixtures/boot) ---
def real_entries(root: Path) -> tuple[El, list[str]]:
    """The machine of kayobe#878: the entries of two machine ids; its files are those of the listing."""
    listing = (BOOT / "rocky9_kayobe-878_entries.txt").read_text()
    names = re.findall(r"(\S+)\.conf$", listing, re.MULTILINE)
    releases = [name.split("-", 1)[1] for name in names if not name.endswith("rescue")]
    machine = El(root, sorted(releases, reverse=True), releases[0])
    for path in (root / "boot/loader/entries").iterdir():
        path.unlink()
    for name in names:
        kernel = name.split("-", 1)[1] if not name.endswith("rescue") else f"0-rescue-{name.split('-')[0]}"
        machine.put(
            f"/boot/loader/entries/{name}.conf",
            f"title Rocky Linux ({kernel}) 9.2\nversion {kernel}\nlinux /vmlinuz-{kernel}\noptions root=UUID=c2 ro",
        )
    (root / "boot/grub2/grubenv").unlink()
    return machine, names


def test_grub_boots_the_entry_of_an_images_machine_id_as_it_did_on_the_real_machine(tmp_path: Path) -> None:
    machine, names = real_entries(tmp_path)
    assert next_kernel(machine.tree) == "5.14.0-162.22.2.el9_1.x86_64"
    assert sorted_entries(machine.tree) == [names[1], names[0], names[4], names[3], names[2]]
    # grubby chooses the newest, and it is believed.
    machine.put("/boot/grub2/grubenv", f"# GRUB Environment Block\nsaved_entry={names[4]}\n####")
    assert next_kernel(machine.tree) == "5.14.0-284.30.1.el9_2.x86_64"


def test_a_default_that_grub_cfg_fixes_is_seen_and_grubbys_choice_not_believed(tmp_path: Path) -> None:
    # Rocky 9.2 and Oracle 9.4 on real machines: grubby names one kernel, GRUB boots entry 0.
    machine, names = real_entries(tmp_path)
    newest = "5.14.0-284.30.1.el9_2.x86_64"
    machine.put("/boot/grub2/grub.cfg", (BOOT / "rocky9_kayobe-1164_grub_cfg_excerpt.txt").read_text())
    machine.put("/boot/grub2/grubenv", f"# GRUB Environment Block\nsaved_entry={names[4]}\n####")
    assert next_kernel(machine.tree) == "5.14.0-162.22.2.el9_1.x86_64"
    with pytest.raises(RefusedError, match=rf"expected {newest} to boot next, found 5\.14\.0-162.*/etc/default/grub"):
        converge(machine, {"boot": {"release": newest}})
    # For one boot, next_entry wins.
    machine.put("/boot/grub2/grubenv", f"# GRUB Environment Block\nnext_entry={names[3]}\n####")
    assert next_kernel(machine.tree) == "5.14.0-284.11.1.el9_2.x86_64"


def test_arguments_of_real_entries_stay_and_a_rescue_entry_is_left_alone(tmp_path: Path) -> None:
    told = (BOOT / "rhel9_leapp-1302_grubby_info.txt").read_text()
    (theirs,) = re.findall(r'^args="(.*)"$', told, re.MULTILINE)
    (root,) = re.findall(r'^root="(.*)"$', told, re.MULTILINE)
    release = "5.14.0-518.el9.x86_64"
    machine = El(tmp_path, [release], release)
    path = f"/boot/loader/entries/m1-{release}.conf"
    machine.put(path, f"title RHEL\nlinux /vmlinuz-{release}\noptions root={root} {theirs}")
    machine.put("/boot/loader/entries/m1-0-rescue.conf", (BOOT / "rocky10_tinkerbell-165_rescue_entry.txt").read_text())
    plan = plan_of(machine, {"arguments": ["iommu=pt", "net.ifnames=0"]})
    assert (plan.arguments.add, plan.arguments.remove) == (["iommu=pt"], [])
    # Twice from elsewhere, and an order that counts: neither may be touched.
    for word in ("console=ttyS1", "rd.lvm.lv=vg/x", "crashkernel=512M"):
        with pytest.raises(KernelError, match=f"already has '{word.partition('=')[0]}=.*from elsewhere"):
            plan_of(machine, {"arguments": [word]})


def test_oracles_own_kernel_is_held_by_its_own_packages(tmp_path: Path) -> None:
    told = (BOOT / "oracle9_oracle-linux-148_grubby_info.txt").read_text()
    (release,) = re.findall(r"^/boot/vmlinuz-(\S+)$", told, re.MULTILINE)
    machine = El(tmp_path, [release], release)
    machine.names = ["kernel-uek", "kernel-uek-core", "kernel-uek-modules"]
    converge(machine, {"boot": {"hold": True}})
    lines = (machine.get(VERSIONLOCK) or "").splitlines()
    assert [line for line in lines if "uek" in line] == [
        f"{name}-0:5.15.0-207.156.6.el9uek.*" for name in machine.names
    ]


def test_a_container_and_a_machine_without_kernels_are_skipped_with_the_reason(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    plan = make_plan(str(tmp_path), {"boot": {"hold": True}}, False, None)
    assert "booted from elsewhere" in measurements(plan)[0]["skipped"]
    machine.become_container()
    plan = make_plan(str(tmp_path), {"boot": {"hold": True}}, False, None)
    assert measurements(plan)[0]["skipped"] == "container (podman): the kernel is the host's"
    assert not plan.is_changed


def test_nothing_is_held_where_nothing_is_installed() -> None:
    assert to_hold({}, NEW) == []
