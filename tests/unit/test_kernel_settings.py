"""The kernel stage on fake machines: all or nothing, honest about what it cannot change, and able to take it all back."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import kernel_files
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.kernel_measurements import measurements
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.kernel_report import differences, report
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.kernel_settings import (
    RefusedError,
    apply_plan,
    make_plan,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.kernel_wish import KernelError

from tests.unit.kernel_machine import Kernel, Machine

WISH: dict[str, Any] = {
    "sysctl": {"vm.swappiness": 1, "net.core.somaxconn": 8192, "net.ipv4.tcp_rmem": "4096 131072 16777216"},
    "numa_balancing": 0,
    "transparent_hugepage": {"enabled": "madvise", "defrag": "defer+madvise"},
    "cpu": {"governor": "performance"},
    "limits": {"nofile": 1048576, "memlock": "unlimited"},
    "minimum_version": "5.15",
    "cgroup_version": 2,
}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def kernel(machine: Machine) -> Kernel:
    return Kernel(machine.tree)


def converge(machine: Machine, wish: dict[str, Any], kernel: Kernel | None = None, run: Any = None) -> dict[str, Any]:
    """What the module does outside check mode; returns the rows by name, and `changed`."""
    plan = make_plan(str(machine.root), wish, False, run)
    rows = {row["name"]: row for row in report(plan)}
    changed = plan.is_changed
    apply_plan(plan, kernel or Kernel(machine.tree), run)
    return {**rows, "changed": changed}


def judge(machine: Machine, wish: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {f"{m['name']} {m['scope']}": m for m in measurements(make_plan(str(machine.root), wish, False, None))}


def states(rows: dict[str, Any]) -> dict[str, str]:
    return {name: row["state"] for name, row in rows.items() if name != "changed"}


def test_everything_is_set_kept_and_read_back(machine: Machine) -> None:
    rows = converge(machine, WISH)
    assert rows["changed"]
    assert set(states(rows).values()) == {"changed"}
    assert machine.get("/proc/sys/vm/swappiness") == "1"
    assert machine.get("/proc/sys/kernel/numa_balancing") == "0"
    assert machine.get("/sys/kernel/mm/transparent_hugepage/enabled") == "always [madvise] never"
    assert {machine.get(f"/sys/devices/system/cpu/cpufreq/policy{n}/scaling_governor") for n in range(12)} == {
        "performance"
    }
    kept = machine.get(kernel_files.SYSCTL) or ""
    assert "vm.swappiness = 1" in kept
    assert "net.ipv4.tcp_rmem = 4096 131072 16777216" in kept
    writes = machine.get(kernel_files.TMPFILES) or ""
    assert "w /sys/kernel/mm/transparent_hugepage/enabled - - - - madvise" in writes
    assert "w /sys/devices/system/cpu/cpufreq/policy*/scaling_governor - - - - performance" in writes
    unit = machine.get(kernel_files.UNIT) or ""
    assert f"systemd-sysctl {kernel_files.SYSCTL}" in unit
    assert f"systemd-tmpfiles --create {kernel_files.TMPFILES}" in unit
    assert machine.tree.link(kernel_files.UNIT_WANTED) == kernel_files.UNIT
    assert "* - nofile 1048576" in (machine.get(kernel_files.LIMITS) or "")
    assert "root - memlock unlimited" in (machine.get(kernel_files.LIMITS) or "")


def test_a_second_run_changes_nothing(machine: Machine) -> None:
    converge(machine, WISH)
    before = machine.snapshot()
    rows = converge(machine, WISH)
    assert not rows["changed"]
    assert set(states(rows).values()) == {"ok"}
    assert machine.snapshot() == before


def test_planning_alone_writes_nothing_and_the_diff_tells_what_it_would(machine: Machine) -> None:
    before = machine.snapshot()
    plan = make_plan(str(machine.root), WISH, False, None)
    assert plan.is_changed
    diffs = {diff["before_header"]: diff for diff in differences(plan)}
    assert "vm.swappiness = 60" in diffs["live"]["before"]
    assert "vm.swappiness = 1" in diffs["live"]["after"]
    assert diffs[kernel_files.SYSCTL]["before"] == ""
    assert diffs[kernel_files.UNIT_WANTED]["after"] == f"-> {kernel_files.UNIT}\n"
    assert machine.snapshot() == before


def test_a_right_live_value_that_no_file_keeps_is_a_change(machine: Machine) -> None:
    machine.put("/proc/sys/vm/swappiness", "1")
    rows = converge(machine, {"sysctl": {"vm.swappiness": 1}})
    assert rows["vm.swappiness"]["state"] == "changed"
    assert "kept" in rows["vm.swappiness"]["reason"]


def test_a_drifted_value_is_found_by_verify_and_put_right_again(machine: Machine) -> None:
    converge(machine, WISH)
    machine.put("/proc/sys/vm/swappiness", "60")
    found = judge(machine, WISH)["kernel_setting vm.swappiness"]
    assert (found["value"], found["expected"]) == ("60", "1")
    assert "after Plumbline" in found["cause"]
    assert converge(machine, WISH)["vm.swappiness"]["state"] == "changed"
    assert machine.get("/proc/sys/vm/swappiness") == "1"


def test_one_policy_out_of_many_is_told(machine: Machine) -> None:
    converge(machine, WISH)
    machine.put("/sys/devices/system/cpu/cpufreq/policy11/scaling_governor", "powersave")
    assert judge(machine, WISH)["kernel_setting cpu.governor"]["value"] == "performance on 11, powersave on 1"


def test_what_is_no_longer_wished_is_given_back(machine: Machine) -> None:
    converge(machine, WISH)
    rows = converge(machine, {"sysctl": {"net.core.somaxconn": 8192}})
    assert rows["vm.swappiness"]["state"] == "changed"
    assert "given back" in rows["vm.swappiness"]["reason"]
    assert machine.get("/proc/sys/vm/swappiness") == "60"
    assert machine.get("/sys/kernel/mm/transparent_hugepage/enabled") == "[always] madvise never"
    assert machine.get("/proc/sys/net/core/somaxconn") == "8192"
    assert machine.get(kernel_files.TMPFILES) is None
    assert machine.get(kernel_files.LIMITS) is None
    assert not converge(machine, {"sysctl": {"net.core.somaxconn": 8192}})["changed"]


def test_an_empty_wish_takes_everything_back(machine: Machine) -> None:
    before = machine.snapshot()
    converge(machine, WISH)
    converge(machine, {})
    left = {path: text for path, text in machine.snapshot().items() if before.get(path) != text}
    # Only the record stays, and the kernel's own spelling of three numbers.
    assert set(left) <= {kernel_files.STATE.lstrip("/"), "proc/sys/net/ipv4/tcp_rmem"}
    assert not converge(machine, {})["changed"]


class CutOffError(BaseException):
    """The machine loses its power: nothing is put back."""


class Mortal(Kernel):
    """A kernel whose machine goes off at a certain write of a value."""

    def __init__(self, machine: Machine, survives: int) -> None:
        super().__init__(machine.tree)
        self.survives = survives

    def write(self, path: str, value: str) -> None:
        self.survives -= 1
        if self.survives < 0:
            raise CutOffError
        super().write(path, value)


def settled(machine: Machine) -> dict[str, str]:
    """All but the record; several numbers of a key are the same whatever stands between them."""
    return {
        path: text.replace("\t", " ") for path, text in machine.snapshot().items() if not path.startswith("var/lib")
    }


@pytest.mark.parametrize("survives", range(0, 18, 3))
def test_a_machine_that_is_cut_off_in_the_middle_still_knows_what_was_there_first(
    machine: Machine, survives: int
) -> None:
    before = settled(machine)
    with pytest.raises(CutOffError):
        apply_plan(make_plan(str(machine.root), WISH, False, None), Mortal(machine, survives), None)
    # The wish is taken back at once, or after it was made good.
    if survives % 2:
        converge(machine, WISH)
        assert not converge(machine, WISH)["changed"]
    converge(machine, {})
    assert settled(machine) == before
    assert not converge(machine, {})["changed"]


def test_a_machine_that_is_cut_off_while_it_gives_back_goes_on_with_it(machine: Machine) -> None:
    before = settled(machine)
    converge(machine, WISH)
    with pytest.raises(CutOffError):
        apply_plan(make_plan(str(machine.root), {}, False, None), Mortal(machine, 2), None)
    converge(machine, {})
    assert settled(machine) == before


def test_what_somebody_else_changed_since_is_not_given_back(machine: Machine) -> None:
    converge(machine, WISH)
    machine.put("/proc/sys/vm/swappiness", "10")
    converge(machine, {})
    assert machine.get("/proc/sys/vm/swappiness") == "10"


def test_a_changed_wish_still_knows_what_was_there_first(machine: Machine) -> None:
    converge(machine, {"sysctl": {"vm.swappiness": 1}})
    converge(machine, {"sysctl": {"vm.swappiness": 5}})
    converge(machine, {})
    assert machine.get("/proc/sys/vm/swappiness") == "60"


@pytest.mark.parametrize(
    ("wish", "sentence"),
    [
        ({"sysctl": {"vm.swapiness": 1}}, "has no such key (did you mean vm.swappiness?)"),
        ({"sysctl": {"vm": 1}}, "found a group of keys"),
        ({"sysctl": {"net.ipv4.tcp_rmem": True}}, "YAML boolean true"),
        ({"sysctl": {"vm.swappiness": "low"}}, "expected a number as in the present '60', found 'low'"),
        ({"sysctl": {"vm.swappiness": [1]}}, "found a list [1]"),
        ({"sysctl": {"vm.swappiness": 1.5}}, "found the fraction 1.5: quote it"),
        ({"sysctl": {"vm//..//etc": 1}}, "expected a key such as vm.swappiness"),
        ({"sysctl": {"vm.swappiness": 1, "vm/swappiness": 2}}, "given twice"),
        ({"sysctl": ["vm.swappiness"]}, "expected a dictionary of keys and values"),
        ({"transparent_hugepage": {"enabled": "sometimes"}}, "expected one of always, madvise, never"),
        ({"transparent_hugepage": {"enabled": False}}, "write 0, or quote the word"),
        ({"transparent_hugepage": {"enable": "never"}}, "(did you mean enabled?)"),
        ({"transparent_hugepage": "never"}, "found the word 'never'"),
        ({"cpu": {"governor": "performence"}}, "(did you mean performance?)"),
        ({"cpu": {"resume_latency_us": "short"}}, "expected a whole number"),
        ({"pcie_aspm_policy": "off"}, "expected one of default, performance"),
        ({"limits": {"nofile": 2000000}}, "at most 1048576 (fs.nr_open)"),
        ({"limits": {"nofile": "unlimited"}}, "a positive number of files"),
        ({"limits": {"memlock": "lots"}}, "KiB or unlimited"),
        ({"minimum_version": 5.15}, "quote it (5.10 unquoted is 5.1)"),
        ({"minimum_version": "new"}, "expected a version"),
        ({"cgroup_version": 3}, "expected 1 or 2"),
        ({"sysctll": {}}, "(did you mean sysctl?)"),
        ({"arguments": "iommu=pt"}, "expected a list"),
        ({"arguments": ["a b"]}, "expected words such as iommu=pt"),
        ({"arguments": ['dyndbg="file x +p"']}, "expected words such as iommu=pt"),
        ({"arguments": ["x=$(reboot)"]}, "expected words such as iommu=pt"),
        ({"arguments": [{"iommu": "pt"}]}, "expected words such as iommu=pt"),
        ({"arguments": ["root=/dev/sda1"]}, "belongs to the boot loader's own entry"),
        ({"arguments": ["quiet", "quiet"]}, "given twice"),
        ({"arguments": ["iommu=pt"]}, "expected GRUB with /etc/default/grub"),
    ],
)
def test_a_wrong_wish_is_one_sentence_and_writes_nothing(machine: Machine, wish: dict[str, Any], sentence: str) -> None:
    before = machine.snapshot()
    with pytest.raises(KernelError) as caught:
        make_plan(
            str(machine.root), {**wish, **({"numa_balancing": 0} if "numa_balancing" not in wish else {})}, False, None
        )
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
    assert machine.snapshot() == before


def test_all_faults_of_a_wish_are_told_at_once(machine: Machine) -> None:
    with pytest.raises(KernelError, match=r"vm\.swapiness.*; .*performence"):
        make_plan(str(machine.root), {"sysctl": {"vm.swapiness": 1}, "cpu": {"governor": "performence"}}, False, None)


def test_a_null_is_left_alone_and_an_optional_key_may_be_missing(machine: Machine) -> None:
    rows = converge(machine, {"sysctl": {"vm.swappiness": None, "-vm.no_such_key": 1}, "cpu": None})
    assert states(rows) == {"vm.no_such_key": "skipped"}
    assert rows["vm.no_such_key"]["reason"] == "the kernel does not have this key"
    assert not rows["changed"]


def test_what_the_kernel_refuses_puts_everything_back(machine: Machine, kernel: Kernel) -> None:
    kernel.refused = {"/proc/sys/net/core/somaxconn": errno.EINVAL}
    before = machine.snapshot()
    plan = make_plan(str(machine.root), {"sysctl": {"vm.swappiness": 1, "net.core.somaxconn": -1}}, False, None)
    with pytest.raises(RefusedError) as caught:
        apply_plan(plan, kernel, None)
    assert "net.core.somaxconn: the kernel refused '-1'" in str(caught.value)
    assert str(caught.value).endswith("; nothing was changed")
    assert machine.snapshot() == before
    rows = {row["name"]: row for row in report(plan, caught.value)}
    assert rows["net.core.somaxconn"]["state"] == "failed"
    assert rows["vm.swappiness"]["state"] == "skipped"
    assert "put back" in rows["vm.swappiness"]["reason"]


def test_settings_that_undo_each_other_are_refused(machine: Machine) -> None:
    before = machine.snapshot()
    with pytest.raises(KernelError, match=r"vm\.dirty_bytes and vm\.dirty_ratio: expected at most one of the two"):
        make_plan(str(machine.root), {"sysctl": {"vm.dirty_bytes": 1000000, "vm.dirty_ratio": 10}}, False, None)
    assert machine.snapshot() == before
    # The 0 of the other one is no contradiction.
    assert converge(machine, {"sysctl": {"vm.dirty_bytes": 1000000, "vm.dirty_ratio": 0}})["changed"]


def test_a_pair_of_which_one_clears_the_other_is_put_back_by_the_one_that_counted(
    machine: Machine, kernel: Kernel
) -> None:
    before = settled(machine)
    wish = {"sysctl": {"vm.dirty_bytes": 1000000, "vm.swappiness": 1}}
    kernel.refused["/proc/sys/vm/swappiness"] = errno.EPERM
    with pytest.raises(RefusedError, match=r"vm\.swappiness: the kernel refused.*; nothing was changed$"):
        apply_plan(make_plan(str(machine.root), wish, False, None), kernel, None)
    # The kernel takes no 0 for the bytes: the share is what was in force.
    assert settled(machine) == before
    # Taken out of the inventory, or exchanged for the other one and taken out then.
    converge(machine, {"sysctl": {"vm.dirty_bytes": 1000000}})
    assert machine.get("/proc/sys/vm/dirty_ratio") == "0"
    converge(machine, {})
    assert settled(machine) == before
    converge(machine, {"sysctl": {"vm.dirty_bytes": 1000000}})
    converge(machine, {"sysctl": {"vm.dirty_ratio": 5}})
    assert (machine.get("/proc/sys/vm/dirty_ratio"), machine.get("/proc/sys/vm/dirty_bytes")) == ("5", "0")
    assert not converge(machine, {"sysctl": {"vm.dirty_ratio": 5}})["changed"]
    converge(machine, {})
    assert settled(machine) == before


def test_a_file_that_cannot_be_written_puts_the_live_values_back(machine: Machine) -> None:
    machine.put("/etc/tmpfiles.d", "a file where a directory should be")
    before = machine.snapshot()
    plan = make_plan(str(machine.root), WISH, False, None)
    with pytest.raises(RefusedError, match=r"/etc/tmpfiles\.d/95-plumbline\.conf: could not be written"):
        apply_plan(plan, Kernel(machine.tree), None)
    after = machine.snapshot()
    # The kernel tells several numbers by tabs, we write them back with spaces.
    after["proc/sys/net/ipv4/tcp_rmem"] = before["proc/sys/net/ipv4/tcp_rmem"]
    assert after == before
    assert not (machine.root / "etc/sysctl.d").exists()


@pytest.mark.parametrize("path", ["/etc/sysctl.d/99-site.conf", "/usr/lib/sysctl.d/96-vendor.conf", "/etc/sysctl.conf"])
def test_a_later_file_that_says_otherwise_is_refused(machine: Machine, path: str) -> None:
    machine.put(path, "# swap\n-vm/swappiness=60")
    with pytest.raises(KernelError, match=f"{path} sets it to '60' and is read after"):
        make_plan(str(machine.root), WISH, False, None)


def test_files_that_are_read_earlier_agree_or_hide_are_no_rivals(machine: Machine) -> None:
    machine.put("/etc/sysctl.d/10-site.conf", "vm.swappiness = 60")
    machine.put("/etc/sysctl.d/99-a.conf", "vm.swappiness = 60")
    machine.put(
        "/etc/sysctl.d/99-b.conf", "vm.swappiness = 1\nnet.ipv4.tcp_rmem=4096   131072\t16777216\nnet.core.* = 5"
    )
    # Hidden by the file of the same name in /etc.
    machine.put("/usr/lib/sysctl.d/99-b.conf", "vm.swappiness = 7")
    assert converge(machine, WISH)["vm.swappiness"]["state"] == "changed"


def test_a_machine_without_a_feature_skips_it_and_says_so(machine: Machine) -> None:
    wish = {"uncore": {"minimum_khz": 2400000}, "cpu": {"energy_performance_preference": "performance"}}
    rows = converge(machine, wish)
    assert set(states(rows).values()) == {"skipped"}
    assert "no uncore frequency control" in rows["uncore.minimum_khz"]["reason"]
    assert "skipped" in judge(machine, wish)["kernel_setting uncore.minimum_khz"]


def test_a_file_of_sys_is_found_for_every_cpu(machine: Machine) -> None:
    for cpu in (0, 1, 10):
        machine.put(f"/sys/devices/system/cpu/cpu{cpu}/power/pm_qos_resume_latency_us", "0")
    converge(machine, {"cpu": {"resume_latency_us": 50}})
    assert machine.get("/sys/devices/system/cpu/cpu10/power/pm_qos_resume_latency_us") == "50"


def test_a_container_writes_nothing_of_the_host(machine: Machine) -> None:
    machine.become_container()
    machine.add_grub()
    before = machine.snapshot()
    rows = converge(machine, {**WISH, "arguments": ["iommu=pt"], "pcie_aspm_policy": "performance"})
    assert {name for name, state in states(rows).items() if state == "changed"} == {
        "net.core.somaxconn",
        "net.ipv4.tcp_rmem",
    }
    for name, row in rows.items():
        if name not in ("changed", "net.core.somaxconn", "net.ipv4.tcp_rmem"):
            assert row["state"] == "skipped", name
            assert row["reason"].startswith("container (podman)"), name
    changed = {path for path, text in machine.snapshot().items() if before.get(path) != text}
    assert changed == {
        "proc/sys/net/core/somaxconn",
        "proc/sys/net/ipv4/tcp_rmem",
        "etc/sysctl.d/95-plumbline.conf",
        "etc/systemd/system/plumbline-kernel-settings.service",
        "etc/systemd/system/multi-user.target.wants/plumbline-kernel-settings.service",
        "var/lib/plumbline/kernel_settings.json",
    }
    assert "vm." not in (machine.get(kernel_files.SYSCTL) or "")
    assert not converge(machine, WISH)["changed"]


def test_a_container_is_judged_only_by_what_is_its_own(machine: Machine) -> None:
    machine.become_container()
    wish = {**WISH, "arguments": ["iommu=pt"]}
    converge(machine, wish)
    judged = judge(machine, wish)
    assert {name for name, found in judged.items() if "value" in found} == {
        "kernel_setting net.core.somaxconn",
        "kernel_setting net.ipv4.tcp_rmem",
    }
    assert all(found["skipped"].startswith("container (podman)") for found in judged.values() if "value" not in found)
    assert len(judged) == 14


def test_a_container_on_the_hosts_network_leaves_it_alone(machine: Machine) -> None:
    machine.become_container(own_network=False)
    before = machine.snapshot()
    rows = converge(machine, {"sysctl": {"net.core.somaxconn": 8192}})
    assert rows["net.core.somaxconn"]["reason"] == "container (podman): its network is the host's"
    assert machine.snapshot() == before


def test_a_container_without_marks_is_known_by_its_namespace(machine: Machine) -> None:
    machine.enter_pid_namespace(4026532252)
    rows = converge(machine, {"sysctl": {"vm.swappiness": 1}})
    assert rows["vm.swappiness"]["reason"].startswith("container (PID namespace pid:[4026532252])")
    assert machine.get("/proc/sys/vm/swappiness") == "60"


def test_the_survey_alone_makes_it_a_container(machine: Machine) -> None:
    plan = make_plan(str(machine.root), WISH, True, None)
    assert plan.container == "container (as the survey says)"
    assert all(setting.skipped for setting in plan.live if not setting.name.startswith("net."))


def test_a_containers_read_only_and_missing_keys_are_skipped_a_misspelt_one_refused(machine: Machine) -> None:
    machine.become_container()
    machine.put("/proc/sys/net/core/rmem_max", "212992")
    (machine.root / "proc/sys/net/core/rmem_max").chmod(0o444)
    rows = converge(machine, {"sysctl": {"net.core.rmem_max": 1, "net.core.netdev_max_backlog": 1, "-vm.none": 1}})
    assert "read only here" in rows["net.core.rmem_max"]["reason"]
    assert "does not have this key" in rows["net.core.netdev_max_backlog"]["reason"]
    assert rows["vm.none"]["state"] == "skipped"
    with pytest.raises(KernelError, match=r"did you mean vm\.swappiness"):
        make_plan(str(machine.root), {"sysctl": {"vm.swapiness": 1}}, False, None)


def test_an_unprivileged_containers_keys_are_skipped(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.become_container()
    monkeypatch.setattr("os.access", lambda path, mode: False)
    rows = converge(machine, {"sysctl": {"net.core.somaxconn": 8192}})
    assert "read only here" in rows["net.core.somaxconn"]["reason"]
    assert machine.get("/proc/sys/net/core/somaxconn") == "4096"


def test_the_record_of_a_machine_is_not_played_back_in_a_container_made_from_it(machine: Machine) -> None:
    converge(machine, WISH)
    machine.become_container()
    rows = converge(machine, {})
    assert machine.get("/proc/sys/vm/swappiness") == "1"
    assert {name for name in rows if name != "changed" and not name.startswith("net.")} == set()


@pytest.mark.parametrize(
    "text", ["not json", "[]", '{"live": 3}', '{"live": {"vm.swappiness": {}}}', '{"arguments": 1}']
)
def test_a_damaged_record_is_told_and_survived(machine: Machine, text: str) -> None:
    machine.put(kernel_files.STATE, text)
    plan = make_plan(str(machine.root), WISH, False, None)
    assert len(plan.warnings) == 1
    assert kernel_files.STATE in plan.warnings[0]
    apply_plan(plan, Kernel(machine.tree), None)
    assert not converge(machine, WISH)["changed"]


def test_tuned_is_warned_of(machine: Machine) -> None:
    machine.put("/etc/tuned/active_profile", "throughput-performance")
    assert "throughput-performance" in make_plan(str(machine.root), WISH, False, None).warnings[0]


def test_version_and_cgroups_are_measured_not_assumed(machine: Machine) -> None:
    machine.put(
        "/proc/self/mounts", "cgroup /sys/fs/cgroup/memory cgroup rw 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0"
    )
    judged = judge(machine, WISH)
    assert judged["kernel_version kernel"]["value"] == "6.1.0-27-amd64"
    assert judged["cgroup_version /sys/fs/cgroup"]["value"] == "hybrid"
    assert judged["cgroup_version /sys/fs/cgroup"]["expected"] == "2"
    machine.put("/proc/self/mounts", "tmpfs / tmpfs rw 0 0")
    assert "error" in judge(machine, WISH)["cgroup_version /sys/fs/cgroup"]
