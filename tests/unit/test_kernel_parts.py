"""Packages held back from unattended upgrades, the slice for inference, irqbalance and tuned: made, read back, removed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import kernel_services as services
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import kernel_slice as slices
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import kernel_unattended as unattended
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.kernel_measurements import measurements
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.kernel_report import report
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.kernel_settings import (
    RefusedError,
    apply_plan,
    make_plan,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.kernel_wish import KernelError

from tests.unit.kernel_machine import Kernel, Machine

HOLD_BACK = ["linux-image", "nvidia-", "libnvidia-"]
STATE = "var/lib/plumbline/kernel_settings.json"
# A file of Enterprise Linux 9 (dnf-automatic 4.14), shortened.
AUTOMATIC = """[commands]
upgrade_type = default
apply_updates = yes

[emitters]
emit_via = stdio

[base]
# This section overrides dnf.conf

# Use this to filter DNF core messages
debuglevel = 1
"""


class Host(Machine):
    """A machine with systemd on cgroup v2, two NUMA nodes of four cores with two threads each, and its services' commands."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.commands: list[list[str]] = []
        self.cleared = False
        self.put("/run/systemd/system/.keep", "")
        self.put("/proc/self/mounts", "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0")
        self.put("/proc/meminfo", "MemTotal:       131072000 kB")
        self.put("/sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory pids")
        self.put("/sys/devices/system/node/has_memory", "0-1")
        for node in (0, 1):
            first = node * 4
            self.put(f"/sys/devices/system/node/node{node}/cpulist", f"{first}-{first + 3},{first + 8}-{first + 11}")
            for core in range(first, first + 4):
                for cpu in (core, core + 8):
                    self.put(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", f"{core},{core + 8}")

    def run(self, command: list[str]) -> tuple[int, str, str]:
        self.commands.append(command)
        if command[:2] == ["apt-config", "dump"]:
            text = "" if self.cleared else self.get(unattended.APT) or ""
            words = re.findall(r'^\s+"(.*)";$', text, re.MULTILINE)
            return 0, "".join(f'Unattended-Upgrade::Package-Blacklist:: "{word}";\n' for word in ["vim", *words]), ""
        if command == ["systemctl", "start", "plumbline.slice"]:
            self.systemd()
        if command[:2] == ["systemctl", "is-active"]:
            off = self.tree.link(services.IRQBALANCE_MASK) is not None
            return (3, "inactive\n", "") if off else (0, "active\n", "")
        if command[:2] == ["tuned-adm", "profile"]:
            self.put(services.TUNED_ACTIVE, command[2])
        return 0, "", ""

    def systemd(self) -> None:
        """What systemd makes of the slice's unit."""
        files = {"AllowedCPUs": "cpuset.cpus", "AllowedMemoryNodes": "cpuset.mems", "MemoryMax": "memory.max"}
        for line in (self.get(slices.UNIT) or "").splitlines():
            name, _, value = line.partition("=")
            if name in files:
                # 95 % of all memory, rounded down to a page.
                told = "127506841600" if value == "95%" else value
                self.put(f"/sys/fs/cgroup/plumbline.slice/{files[name]}", told)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def converge(host: Host, wish: dict[str, Any]) -> tuple[bool, dict[str, dict[str, Any]]]:
    plan = make_plan(str(host.root), wish, False, host.run)
    rows, changed = report(plan), plan.is_changed
    apply_plan(plan, Kernel(host.tree), host.run)
    return changed, {row["name"]: row for row in rows}


def judge(host: Host, wish: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {found["scope"]: found for found in measurements(make_plan(str(host.root), wish, False, host.run))}


def left(host: Host, before: dict[str, str]) -> dict[str, str]:
    """What differs from before, but for the record and the kernel's own control groups."""
    after = {path: text for path, text in host.snapshot().items() if path != STATE and "cgroup/plumbline" not in path}
    return {path: after.get(path, "gone") for path in {*after, *before} if after.get(path) != before.get(path)}


# --- packages held back ---


def test_unattended_upgrades_gets_a_drop_in_that_apt_itself_confirms(host: Host) -> None:
    host.put("/etc/apt/apt.conf.d/50unattended-upgrades", 'Unattended-Upgrade::Package-Blacklist {\n  "vim";\n};')
    before = host.snapshot()
    changed, _ = converge(host, {"hold_back": HOLD_BACK})
    assert changed
    assert left(host, before).keys() == {"etc/apt/apt.conf.d/95-plumbline.conf"}
    assert '  "^linux-image";\n' in (host.get(unattended.APT) or "")
    assert not converge(host, {"hold_back": HOLD_BACK})[0]
    found = judge(host, {"hold_back": HOLD_BACK})["hold_back"]
    assert found["value"] == found["expected"] == "linux-image nvidia- libnvidia-"
    assert converge(host, {})[0]
    assert not left(host, before)


def test_a_list_that_another_file_clears_is_refused_and_later_found(host: Host) -> None:
    host.put("/etc/apt/apt.conf.d/50unattended-upgrades", "")
    host.cleared = True
    before = host.snapshot()
    with pytest.raises(
        RefusedError, match=r"apt-config does not show linux-image, nvidia-, .* clears Unattended-Upgrade"
    ):
        converge(host, {"hold_back": HOLD_BACK})
    assert host.snapshot() == before
    host.cleared = False
    converge(host, {"hold_back": HOLD_BACK})
    host.cleared = True
    found = judge(host, {"hold_back": HOLD_BACK})["hold_back"]
    assert found["value"] == "nothing"
    assert "clears" in found["cause"]


@pytest.mark.parametrize("theirs", ["", "excludepkgs = vim*, emacs*\n", "exclude=vim*\n"])
def test_dnf_automatic_gets_its_words_beside_the_sites_own(host: Host, theirs: str) -> None:
    host.put(unattended.DNF, AUTOMATIC + theirs)
    before = host.snapshot()
    assert converge(host, {"hold_back": HOLD_BACK})[0]
    text = host.get(unattended.DNF) or ""
    line = next(line for line in text.splitlines() if line.startswith("exclude"))
    assert line.endswith("linux-image* nvidia-* libnvidia-*")
    assert ("vim*" in line) == bool(theirs)
    assert "debuglevel = 1" in text
    assert not converge(host, {"hold_back": HOLD_BACK})[0]
    converge(host, {"hold_back": ["nvidia-"]})
    assert "linux-image*" not in (host.get(unattended.DNF) or "")
    found = judge(host, {"hold_back": HOLD_BACK})["hold_back"]
    assert (found["value"], found["expected"]) == ("nvidia-*", "linux-image* nvidia-* libnvidia-*")
    converge(host, {})
    assert set(left(host, before)) <= {"etc/dnf/automatic.conf"}
    # The site's own words, as the site ordered them.
    words = [w for w in re.split(r"[ ,=\n]+", host.get(unattended.DNF) or "") if w in ("vim*", "emacs*")]
    assert words == [w for w in ("vim*", "emacs*") if w in theirs]
    assert "nvidia" not in (host.get(unattended.DNF) or "")


def test_a_word_that_the_site_had_before_stays_when_ours_go(host: Host) -> None:
    host.put(unattended.DNF, AUTOMATIC + "excludepkgs = nvidia-*")
    converge(host, {"hold_back": HOLD_BACK})
    converge(host, {})
    assert "excludepkgs = nvidia-*" in (host.get(unattended.DNF) or "")


def test_where_nothing_upgrades_unattended_it_is_skipped(host: Host) -> None:
    assert "no package is upgraded" in judge(host, {"hold_back": HOLD_BACK})["hold_back"]["skipped"]


# --- the slice ---

SLICE = {"slice": {"housekeeping_cores_per_node": 1, "memory_max": "95%"}}


def test_the_first_core_of_every_node_keeps_house_with_both_threads(host: Host) -> None:
    before = host.snapshot()
    changed, rows = converge(host, SLICE)
    assert changed
    assert rows["slice"]["wanted"] == "AllowedCPUs=1-3,5-7,9-11,13-15, MemoryMax=95%"
    assert host.commands == [["systemctl", "daemon-reload"], ["systemctl", "start", "plumbline.slice"]]
    assert "[Slice]\nAllowedCPUs=1-3,5-7,9-11,13-15\nMemoryMax=95%\n" in (host.get(slices.UNIT) or "")
    host.commands.clear()
    assert not converge(host, SLICE)[0]
    assert host.commands == []
    found = judge(host, SLICE)
    assert {scope: one["value"] for scope, one in found.items()} == {
        "plumbline.slice cpuset.cpus": "1-3,5-7,9-11,13-15",
        "plumbline.slice memory.max": "95%",
    }
    assert all(one["value"] == one["expected"] for one in found.values())
    assert converge(host, {})[0]
    # Stopping the slice would stop the engine in it.
    assert host.commands[-1] == ["systemctl", "daemon-reload"]
    assert not left(host, before)


def test_one_numa_node_brings_its_memory_along(host: Host) -> None:
    wish = {"slice": {"numa_nodes": "1", "memory_max": "64G", "housekeeping_cpus": "0,8"}}
    _, rows = converge(host, wish)
    assert rows["slice"]["wanted"] == "AllowedCPUs=4-7,12-15, AllowedMemoryNodes=1, MemoryMax=64G"
    host.put("/sys/fs/cgroup/plumbline.slice/memory.max", str(64 << 30))
    assert all(one["value"] == one["expected"] for one in judge(host, wish).values())


def test_what_the_control_group_really_has_counts_and_not_the_file(host: Host) -> None:
    converge(host, SLICE)
    host.put("/sys/fs/cgroup/plumbline.slice/cpuset.cpus", "0-15")
    host.put("/sys/fs/cgroup/plumbline.slice/memory.max", "max")
    found = judge(host, SLICE)
    assert found["plumbline.slice cpuset.cpus"]["value"] == "0-15"
    assert found["plumbline.slice memory.max"]["value"] == "max"
    assert "set-property" in found["plumbline.slice memory.max"]["cause"]
    (host.root / "sys/fs/cgroup/plumbline.slice/cpuset.cpus").unlink()
    assert judge(host, SLICE)["plumbline.slice cpuset.cpus"]["value"] == "absent"


def test_a_share_in_a_container_is_one_of_its_own_limit(host: Host) -> None:
    converge(host, SLICE)
    host.put("/sys/fs/cgroup/plumbline.slice/memory.max", str(8 * 2**30 * 95 // 100))
    assert judge(host, SLICE)["plumbline.slice memory.max"]["value"] == "8160437862 bytes"
    host.put("/sys/fs/cgroup/memory.max", str(8 * 2**30))
    assert judge(host, SLICE)["plumbline.slice memory.max"]["value"] == "95%"


def test_the_legacy_layout_is_an_error_on_a_machine_and_a_reason_in_a_container(host: Host) -> None:
    converge(host, SLICE)
    host.put("/proc/self/mounts", "cgroup /sys/fs/cgroup/memory cgroup rw 0 0")
    assert "unified_cgroup_hierarchy=1" in judge(host, SLICE)["plumbline.slice cpuset.cpus"]["error"]
    host.become_container()
    assert "does not set cpuset.cpus" in judge(host, SLICE)["plumbline.slice cpuset.cpus"]["skipped"]


def test_the_rest_of_the_system_stays_on_the_housekeeping_cpus(host: Host) -> None:
    before = host.snapshot()
    wish = {"slice": {**SLICE["slice"], "confine_system": True}}
    converge(host, wish)
    assert "[Slice]\nAllowedCPUs=0,4,8,12" in (host.get("/etc/systemd/system/system.slice.d/95-plumbline.conf") or "")
    assert "[Scope]\nAllowedCPUs=0,4,8,12" in (host.get("/etc/systemd/system/init.scope.d/95-plumbline.conf") or "")
    host.put("/sys/fs/cgroup/system.slice/cpuset.cpus", "0,4,8,12")
    found = judge(host, wish)
    assert found["system.slice cpuset.cpus"]["value"] == found["system.slice cpuset.cpus"]["expected"]
    assert found["user.slice cpuset.cpus"]["value"] == "absent"
    converge(host, {})
    assert set(left(host, before)) == {"sys/fs/cgroup/system.slice/cpuset.cpus"}


@pytest.mark.parametrize(
    ("wish", "sentence"),
    [
        ({"housekeeping_cores_per_node": 4}, "expected CPUs to be left for inference on every NUMA node"),
        ({"housekeeping_cpus": "0-3,8-11"}, "left on node 0 when 0-3,8-11 keep house"),
        ({"housekeeping_cpus": "0,16"}, "expected CPUs among 0-15 (online), found 16"),
        ({"housekeeping_cpus": "first"}, "expected a list of CPUs"),
        ({"housekeeping_cpus": "3-1"}, "expected a list of CPUs such as 0-1,64-65, quoted, found '3-1'"),
        ({"numa_nodes": "1-0"}, "found '1-0'"),
        ({"numa_nodes": "2"}, "expected some of the NUMA nodes 0-1, found '2'"),
        ({"memory_max": "most"}, "a size such as 64G, a share such as 95%"),
        ({"memory_max": "64G", "confine_system": True}, "expected housekeeping CPUs to confine"),
        ({"confine_system": "yes"}, "expected true or false, found 'yes'"),
        ({"memory": "64G"}, "(did you mean memory_max?)"),
    ],
)
def test_a_wrong_slice_is_one_sentence_and_writes_nothing(host: Host, wish: dict[str, Any], sentence: str) -> None:
    before = host.snapshot()
    with pytest.raises(KernelError) as caught:
        make_plan(str(host.root), {"slice": wish}, False, host.run)
    assert sentence in str(caught.value)
    assert host.snapshot() == before


def test_without_systemd_there_is_no_slice(host: Host) -> None:
    (host.root / "run/systemd/system/.keep").unlink()
    (host.root / "run/systemd/system").rmdir()
    assert "systemd does not run" in judge(host, SLICE)["slice"]["skipped"]


def test_no_reservation_makes_no_limit_of_cpus(host: Host) -> None:
    _, rows = converge(host, {"slice": {"housekeeping_cores_per_node": 0, "numa_nodes": "all", "memory_max": "95%"}})
    assert rows["slice"]["wanted"] == "MemoryMax=95%"


# --- irqbalance ---


def test_interrupts_stay_off_the_slices_cpus(host: Host) -> None:
    host.put("/usr/lib/systemd/system/irqbalance.service", "")
    before = host.snapshot()
    wish = {**SLICE, "irqbalance": {"enabled": True, "banned_cpus": "slice"}}
    converge(host, wish)
    text = host.get(services.IRQBALANCE_DROP_IN) or ""
    assert "IRQBALANCE_BANNED_CPULIST=1-3,5-7,9-11,13-15" in text
    assert "IRQBALANCE_BANNED_CPUS=0000eeee" in text
    assert ["systemctl", "restart", "irqbalance.service"] in host.commands
    assert not converge(host, wish)[0]
    found = judge(host, wish)["irqbalance"]
    assert found["value"] == found["expected"] == "on, not on CPUs 1-3,5-7,9-11,13-15"
    host.put(services.IRQBALANCE_DROP_IN, "[Service]")
    assert judge(host, wish)["irqbalance"]["value"].endswith("with other settings")
    converge(host, {})
    assert not left(host, before)


def test_irqbalance_is_masked_and_given_back_unless_somebody_else_masked_it(host: Host) -> None:
    host.put("/usr/lib/systemd/system/irqbalance.service", "")
    before = host.snapshot()
    wish = {"irqbalance": {"enabled": False}}
    converge(host, wish)
    assert host.tree.link(services.IRQBALANCE_MASK) == "/dev/null"
    assert ["systemctl", "stop", "irqbalance.service"] in host.commands
    found = judge(host, wish)["irqbalance"]
    assert found["value"] == found["expected"] == "off"
    assert not converge(host, wish)[0]
    converge(host, {})
    assert not left(host, before)
    mask = host.root / services.IRQBALANCE_MASK.lstrip("/")
    mask.symlink_to("/dev/null")
    converge(host, wish)
    converge(host, {})
    assert mask.is_symlink()
    with pytest.raises(KernelError, match="found it masked"):
        make_plan(str(host.root), {"irqbalance": {"banned_cpus": "1"}}, False, host.run)


def test_irqbalance_that_is_not_there_is_skipped_or_asked_for(host: Host) -> None:
    assert "not installed" in judge(host, {"irqbalance": {"enabled": False}})["irqbalance"]["skipped"]
    with pytest.raises(KernelError, match="expected irqbalance to be installed"):
        make_plan(str(host.root), {"irqbalance": {"enabled": True}}, False, host.run)


@pytest.mark.parametrize(
    ("banned", "sentence"),
    [
        ("0-99", "expected some of the CPUs 0-15 and not all of them, found '0-99'"),
        ("0-15", "and not all of them"),
        ("7-2", "expected slice, or a list of CPUs"),
        ("slice", "expected a slice that leaves CPUs to the interrupts, found none in the wish"),
    ],
)
def test_cpus_that_are_not_there_or_all_of_them_are_not_banned(host: Host, banned: str, sentence: str) -> None:
    host.put("/usr/lib/systemd/system/irqbalance.service", "")
    host.put("/sys/devices/system/cpu/online", "0-15")
    with pytest.raises(KernelError) as caught:
        make_plan(str(host.root), {"irqbalance": {"banned_cpus": banned}}, False, host.run)
    assert sentence in str(caught.value)


def test_an_environment_file_that_would_win_is_named(host: Host) -> None:
    host.put("/usr/lib/systemd/system/irqbalance.service", "")
    host.put("/etc/default/irqbalance", "#IRQBALANCE_BANNED_CPUS=\nIRQBALANCE_BANNED_CPULIST=4-7")
    with pytest.raises(KernelError, match=r"/etc/default/irqbalance sets IRQBALANCE_BANNED_CPULIST, which would win"):
        make_plan(str(host.root), {"irqbalance": {"banned_cpus": "1"}}, False, host.run)


# --- tuned ---

WISH = {
    "sysctl": {"vm.swappiness": 1},
    "transparent_hugepage": {"enabled": "madvise"},
    "cpu": {"governor": "performance"},
}


def add_tuned(host: Host, reapply: str = "1") -> None:
    host.put(services.TUNED_ACTIVE, "site")
    host.put("/etc/tuned/tuned-main.conf", f"daemon = 1\nreapply_sysctl = {reapply}")
    host.put("/etc/systemd/system/multi-user.target.wants/tuned.service", "")
    host.put(
        "/etc/tuned/profiles/site/tuned.conf",
        "[main]\ninclude=throughput-performance\n[cpu]\ngovernor=performance|schedutil",
    )
    host.put(
        "/usr/lib/tuned/throughput-performance/tuned.conf",
        "[main]\nsummary=x\n[cpu]\ngovernor=powersave\n[vm]\ntransparent_hugepages=always\n[sysctl]\nvm.swappiness=10",
    )


def test_a_profile_that_says_otherwise_is_named_and_refused(host: Host) -> None:
    add_tuned(host)
    with pytest.raises(KernelError) as caught:
        make_plan(str(host.root), {**WISH, "tuned": "refuse"}, False, host.run)
    said = str(caught.value)
    assert "transparent_hugepage.enabled to 'always' (/usr/lib/tuned/throughput-performance/tuned.conf)" in said
    # The site's own governor wins over the one that it includes, and tuned reads /etc/sysctl.d again after its own.
    assert "governor" not in said
    assert "swappiness" not in said
    add_tuned(host, reapply="0")
    with pytest.raises(KernelError, match=r"vm\.swappiness to '10'"):
        make_plan(str(host.root), {**WISH, "tuned": "refuse"}, False, host.run)
    host.put("/etc/tuned/profiles/site/tuned.conf", "[main]\ninclude=nothing")
    assert make_plan(str(host.root), {**WISH, "tuned": "refuse"}, False, host.run).warnings


def test_a_profile_of_ours_stands_on_the_sites_and_is_given_back(host: Host) -> None:
    add_tuned(host)
    before = host.snapshot()
    wish = {**WISH, "tuned": "profile"}
    assert converge(host, wish)[0]
    text = host.get(services.TUNED_PROFILE) or ""
    assert "include=site\n" in text
    assert "[vm]\ntransparent_hugepages=madvise\n" in text
    assert "[cpu]\ngovernor=performance\n" in text
    assert "[sysctl]\nvm.swappiness=1" in text
    assert host.get(services.TUNED_ACTIVE) == "plumbline"
    assert not converge(host, wish)[0]
    assert judge(host, wish)["tuned"]["value"] == "plumbline"
    host.put(services.TUNED_ACTIVE, "balanced")
    assert judge(host, wish)["tuned"]["value"] == "balanced"
    host.put(services.TUNED_ACTIVE, "plumbline")
    converge(host, {})
    assert host.get(services.TUNED_ACTIVE) == "site"
    assert not left(host, before)


def test_tuned_that_is_not_enabled_is_left_alone(host: Host) -> None:
    host.put(services.TUNED_ACTIVE, "site")
    converge(host, {**WISH, "tuned": "profile"})
    assert host.get(services.TUNED_PROFILE) is None


# --- the CPU frequency driver's mode ---


def test_the_mode_comes_before_the_governor_that_only_it_offers(host: Host) -> None:
    host.put("/sys/devices/system/cpu/amd_pstate/status", "active")
    plan = make_plan(str(host.root), {"cpu": {"governor": "schedutil", "amd_pstate": "passive"}}, False, host.run)
    assert [setting.name for setting in plan.live] == ["cpu.amd_pstate", "cpu.governor"]
    with pytest.raises(KernelError, match="expected one of active, passive, guided, disable, found 'fast'"):
        make_plan(str(host.root), {"cpu": {"amd_pstate": "fast"}}, False, host.run)
    with pytest.raises(KernelError, match="expected one of performance, powersave, found 'schedutil'"):
        make_plan(str(host.root), {"cpu": {"governor": "schedutil", "amd_pstate": "active"}}, False, host.run)
    assert "not there" in judge(host, {"cpu": {"intel_pstate": "off"}})["cpu.intel_pstate"]["skipped"]


def test_uncore_idle_states_and_link_power_are_written_kept_and_given_back(host: Host) -> None:
    cpu = "/sys/devices/system/cpu"
    host.put("/sys/module/pcie_aspm/parameters/policy", "[default] performance powersave powersupersave")
    for package in (0, 1):
        host.put(f"{cpu}/intel_uncore_frequency/package_0{package}_die_00/min_freq_khz", "800000")
    for one in (0, 15):
        host.put(f"{cpu}/cpu{one}/power/pm_qos_resume_latency_us", "0")
    host.put(f"{cpu}/intel_pstate/status", "active")
    before = host.snapshot()
    wish = {
        "uncore": {"minimum_khz": 2200000},
        "cpu": {"resume_latency_us": 10, "intel_pstate": "passive"},
        "pcie_aspm_policy": "performance",
    }
    assert converge(host, wish)[0]
    assert host.get(f"{cpu}/intel_uncore_frequency/package_01_die_00/min_freq_khz") == "2200000"
    assert host.get(f"{cpu}/cpu15/power/pm_qos_resume_latency_us") == "10"
    assert host.get("/sys/module/pcie_aspm/parameters/policy") == "default [performance] powersave powersupersave"
    kept = host.get("/etc/tmpfiles.d/95-plumbline.conf") or ""
    assert f"w {cpu}/intel_uncore_frequency/package_*/min_freq_khz - - - - 2200000" in kept
    assert kept.index("intel_pstate/status") < kept.index("pm_qos_resume_latency_us")
    assert not converge(host, wish)[0]
    assert all(found["value"] == found["expected"] for found in judge(host, wish).values())
    converge(host, {})
    assert not left(host, before)


# --- limits ---
class Sessions:
    """A machine whose `runuser` begins sessions with these limits: user -> name -> (soft, hard)."""

    def __init__(self, **limits: dict[str, tuple[str, str]]) -> None:
        self.limits = limits

    def run(self, command: list[str]) -> tuple[int, str, str]:
        if command[0] != "runuser":
            return 0, "", ""
        if command[1] not in self.limits:
            return 1, "", "runuser: failed to open session: Permission denied"
        names = {"n": "nofile", "l": "memlock"}
        asked = [word.removeprefix("ulimit -") for word in command[-1].split("; ")]
        return 0, "".join(f"{self.limits[command[1]][names[word[1]]]['SH'.index(word[0])]}\n" for word in asked), ""


def limits_of(host: Host, sessions: Sessions, wish: dict[str, Any] | None = None) -> dict[str, dict[str, Any]]:
    plan = make_plan(
        str(host.root), {"limits": wish or {"nofile": 1048576, "memlock": "unlimited"}}, False, sessions.run
    )
    return {found["scope"]: found for found in measurements(plan) if found["name"] == "session_limit"}


def test_limits_are_those_of_a_session_and_not_of_the_file(host: Host) -> None:
    wide = {"nofile": ("1048576", "1048576"), "memlock": ("unlimited", "unlimited")}
    right = limits_of(host, Sessions(root=wide, nobody=wide))
    assert set(right) == {f"{name} of {who}" for name in ("nofile", "memlock") for who in ("root", "other users")}
    assert all(found["value"] == found["expected"] for found in right.values())
    # 99-site.conf comes behind ours, and speaks of everybody but root.
    narrow = {"nofile": ("1024", "1048576"), "memlock": ("8192", "8192")}
    found = limits_of(host, Sessions(root=wide, nobody=narrow))
    assert found["nofile of other users"]["value"] == "1024 (soft), 1048576 (hard)"
    assert found["memlock of other users"]["value"] == "8192"
    assert "behind 95-plumbline.conf says otherwise" in found["nofile of other users"]["cause"]
    assert found["nofile of root"]["value"] == "1048576"
    assert set(limits_of(host, Sessions(root=wide, nobody=wide), {"nofile": 4096})) == {
        "nofile of root",
        "nofile of other users",
    }


def test_a_session_that_cannot_be_begun_is_no_right_limit(host: Host) -> None:
    found = limits_of(host, Sessions())
    assert "value" not in found["nofile of root"]
    assert "failed to open session: Permission denied" in found["nofile of root"]["error"]
    host.become_container()
    assert "its runtime sets the limits" in limits_of(host, Sessions())["memlock of root"]["skipped"]


@pytest.mark.parametrize(
    ("wish", "sentence"),
    [
        ({"hold_back": "nvidia-"}, "expected a list of beginnings of package names"),
        ({"hold_back": ["nvidia*"]}, "expected the beginning of a package's name such as linux-image, found 'nvidia*'"),
        ({"hold_back": ["nvidia-", "nvidia-"]}, "nvidia- is given twice"),
        ({"boot": {"hold": "yes"}}, "boot.hold: expected true or false, found 'yes'"),
        ({"boot": {"release": "newest"}}, "a kernel release as uname -r prints it"),
        ({"boot": {"realease": "6.1"}}, "(did you mean release?)"),
        ({"irqbalance": {"banned_cpus": "some"}}, "slice, or a list of CPUs"),
        ({"tuned": "ignore"}, "expected refuse or profile, found 'ignore'"),
    ],
)
def test_a_wrong_part_is_one_sentence(host: Host, wish: dict[str, Any], sentence: str) -> None:
    with pytest.raises(KernelError) as caught:
        make_plan(str(host.root), wish, False, host.run)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
