"""The driver stage on fake nodes: what differs, what forbids to go on, and which cause a failing gate names."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import gpu_driver, kernel_boot
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.gate_rules import validate_rules
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.gates import judge_all
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.gpu_driver import (
    MODPROBE,
    ask_driver,
    kernel_log,
    observe,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.gpu_driver_measurements import (
    measurements,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.gpu_driver_plan import (
    DriverWish,
    cuda_fault,
    make_plan,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.gpu_memory_health import memory_measurements
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.nvidia_smi import parse_smi
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.tree import Tree

FIXTURES = Path(__file__).parents[1] / "fixtures" / "nvidia"
H200 = (FIXTURES / "h200_580_nvidia-smi-q-x_v13.xml").read_text()
PARAMETERS = (FIXTURES / "h200_580_proc_driver_nvidia_params.txt").read_text()
KERNEL = "6.1.0-27-amd64"
PACKAGES = ["nvidia-kernel-dkms", "nvidia-smi"]
WISH = DriverWish(packages=PACKAGES, version="580", distribution="Debian 12")
RULES = yaml.safe_load((Path(__file__).parents[2] / "group_vars/all/gates.yml").read_text())["gates_rules"]
MODINFO = """NVreg_EnablePCIERelaxedOrderingMode: (int)
NVreg_EnablePCIeGen3: (int)
NVreg_InitializeSystemMemoryAllocations: (int)
rm_firmware_active:(charp)
"""


class Node:
    """A node with one H200 whose driver 580 is installed from packages, loaded, held and healthy."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.tree = Tree(str(root))
        self.put("/proc/sys/kernel/osrelease", KERNEL)
        self.put("/proc/driver/nvidia/version", (FIXTURES / "h200_580_proc_driver_nvidia_version.txt").read_text())
        self.put("/proc/driver/nvidia/params", PARAMETERS)
        self.put("/proc/stat", f"cpu 1 2 3\nbtime {int(root.stat().st_mtime) + 1000}")
        self.add_kernel(KERNEL)
        self.add_device("0000:00:06.0", "0x10de", "0x030200")
        self.add_device("0000:00:01.0", "0x8086", "0x030000")
        self.installed = dict.fromkeys(PACKAGES, ("580.159.04-1", "hi "))
        self.offered = {name: ["580.159.04-1", "535.261.03-1"] for name in [*PACKAGES, f"linux-headers-{KERNEL}"]}
        self.answers: dict[str, tuple[int, str, str]] = {
            "timeout": (0, H200, ""),
            "journalctl": (0, "kernel: Linux version 6.1.0", ""),
            "mokutil": (1, "is not enrolled", ""),
        }
        self.modinfo = {"version": "580.159.04", "signer": "", "-p": MODINFO}

    def put(self, path: str, text: str) -> None:
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text + "\n")

    def add_kernel(self, release: str, module: str = "updates/dkms/nvidia-current.ko", headers: bool = True) -> None:
        dep = f"{module}: \nupdates/dkms/nvidia-current-uvm.ko: {module}\n" if module else "kernel/fs/ext4/ext4.ko:\n"
        self.put(f"/lib/modules/{release}/modules.dep", dep)
        self.put(f"/boot/vmlinuz-{release}", "")
        if module:
            self.put(f"/lib/modules/{release}/{module}", "")
        if headers:
            self.put(f"/lib/modules/{release}/build/Makefile", "")

    def add_device(self, address: str, vendor: str, class_code: str) -> None:
        self.put(f"/sys/bus/pci/devices/{address}/vendor", vendor)
        self.put(f"/sys/bus/pci/devices/{address}/class", class_code)

    def remove(self, *paths: str) -> None:
        for path in paths:
            (self.root / path.lstrip("/")).unlink(missing_ok=True)

    def unload(self) -> None:
        self.remove("/proc/driver/nvidia/version", "/proc/driver/nvidia/params")
        self.answers["timeout"] = (
            9,
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n",
            "",
        )

    def bare(self) -> None:
        """Nothing of NVIDIA is installed."""
        self.unload()
        self.add_kernel(KERNEL, module="")
        self.remove(f"/lib/modules/{KERNEL}/updates/dkms/nvidia-current.ko")
        self.installed = {}
        self.answers["timeout"] = (127, "", "nvidia-smi: not found")

    def run(self, command: list[str]) -> tuple[int, str, str]:
        if command[0] == "dpkg-query":
            lines = [f"{n}\t{v}\t{s}\n" for n, (v, s) in self.installed.items() if n in command]
            return (0 if lines else 1), "".join(lines), ""
        if command[0] == "apt-cache":
            rows = [(name, version) for name in command[2:] for version in self.offered.get(name, [])]
            return (
                0,
                "".join(f" {n} | {v} | http://deb.debian.org bookworm/non-free amd64 Packages\n" for n, v in rows),
                "",
            )
        if command[0] == "modinfo":
            assert command[1:3] == ["-k", KERNEL]
            said = self.modinfo.get(command[-2])
            return (1, "", "not found") if said is None else (0, said + "\n", "")
        return self.answers.get(command[0], (127, "", ""))

    def plan(self, wish: DriverWish = WISH) -> dict[str, Any]:
        return make_plan(self.tree, observe(self.tree, self.run, wish.packages), wish)

    def measure(self, wish: DriverWish = WISH) -> dict[str, dict[str, Any]]:
        seen = observe(self.tree, self.run, wish.packages)
        found = measurements(seen, ask_driver(self.run), kernel_log(self.run), wish)
        return {f"{m['name']} {m['scope']}": m for m in found}

    def judge(self, wish: DriverWish = WISH) -> dict[str, str]:
        checks = judge_all(list(self.measure(wish).values()), RULES)
        return {f"{c.name} {c.scope}": c.status for c in checks if c.status != "OK"}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    node = Node(tmp_path)
    node.put(MODPROBE, node.plan()["modprobe_content"].strip())
    return node


def test_a_healthy_node_needs_nothing_and_passes_every_gate(node: Node) -> None:
    plan = node.plan()
    assert (plan["differences"], plan["problems"], plan["left_alone"], plan["restart_due"]) == ([], [], False, False)
    assert node.judge(replace(WISH, cuda_version="13.0")) == {}
    # Beside the driver and its modes: six of the memory, three of the Xids.
    assert {name.split()[0] for name in node.measure()} >= {
        "gpu_ecc_uncorrected",
        "gpu_ecc_corrected",
        "gpu_ecc_uncorrected_lifetime",
        "gpu_memory_repair",
        "gpu_memory_failure",
        "gpu_remapped_rows",
        "gpu_exhausted_banks",
        "gpu_xid",
        "gpu_xid_recovered",
        "gpu_xid_application",
    }


def test_the_rules_of_the_gates_are_sound() -> None:
    assert validate_rules(RULES) == []


def test_gpus_are_found_without_a_driver(node: Node) -> None:
    node.bare()
    node.add_device("0000:c1:00.0", "0x10de", "0x068000")
    seen = observe(node.tree, node.run, PACKAGES)
    assert (seen["gpus"], seen["nvswitches"]) == (["0000:00:06.0"], ["0000:c1:00.0"])


def test_a_bare_node_gets_the_newest_version_of_the_wanted_branch(node: Node) -> None:
    node.bare()
    plan = node.plan(replace(WISH, version="535"))
    assert plan["problems"] == []
    assert plan["install"] == ["nvidia-kernel-dkms=535.261.03-1", "nvidia-smi=535.261.03-1"]
    assert plan["differences"] == ["packages", "hold"]
    assert node.plan(replace(WISH, version=""))["install"] == PACKAGES


def test_headers_of_the_kernel_that_boots_next_are_installed_along(node: Node) -> None:
    node.bare()
    node.remove(f"/lib/modules/{KERNEL}/build/Makefile")
    assert node.plan()["install"][-1] == f"linux-headers-{KERNEL}"
    del node.offered[f"linux-headers-{KERNEL}"]
    assert "do not have the headers of the kernel that boots next" in node.plan()["problems"][0]


def test_the_newest_kernel_counts_not_the_running_one(node: Node) -> None:
    node.add_kernel("6.1.0-9-amd64")
    assert gpu_driver.next_kernel(node.tree) == KERNEL
    node.add_kernel("6.1.0-100-amd64", module="")
    assert gpu_driver.next_kernel(node.tree) == "6.1.0-100-amd64"
    assert gpu_driver.built_module(node.tree, "6.1.0-100-amd64") == ("", "")
    # Headers or modules without an image are no kernel that could boot.
    node.put("/lib/modules/6.9.0-1-amd64/modules.dep", "")
    assert gpu_driver.next_kernel(node.tree) == "6.1.0-100-amd64"


def test_a_module_that_was_not_built_for_the_next_kernel_is_a_difference(node: Node) -> None:
    node.add_kernel(KERNEL, module="")
    assert node.plan()["differences"] == ["module"]


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("updates/dkms/nvidia-current.ko: x", "nvidia-current"),
        ("updates/dkms/nvidia-current-open.ko.xz:", "nvidia-current-open"),
        ("extra/nvidia.ko.xz:", "nvidia"),
        ("kernel/nvidia-580/nvidia.ko.zst: kernel/drivers/acpi/video.ko", "nvidia"),
        ("updates/dkms/nvidia-tesla-470.ko:", "nvidia-tesla-470"),
        ("kernel/drivers/net/ethernet/nvidia/forcedeth.ko:", ""),
        ("updates/dkms/nvidia-current-uvm.ko: updates/dkms/nvidia-current.ko", ""),
        ("kernel/drivers/platform/x86/nvidia-wmi-ec-backlight.ko:", ""),
    ],
)
def test_the_module_is_known_under_the_distributions_names(node: Node, line: str, name: str) -> None:
    node.put(f"/lib/modules/{KERNEL}/modules.dep", line)
    assert gpu_driver.built_module(node.tree, KERNEL)[1] == name


def test_a_driver_from_elsewhere_in_the_wanted_version_is_left_alone(node: Node) -> None:
    node.installed = {}
    node.remove(MODPROBE)
    plan = node.plan()
    assert plan["left_alone"]
    assert (plan["differences"], plan["problems"], plan["modprobe_content"]) == ([], [], "")
    # Also where nothing could be installed.
    assert node.plan(replace(WISH, can_install=False))["problems"] == []


@pytest.mark.parametrize(
    ("prepare", "wish", "sentence"),
    [
        (lambda n: n.installed.clear(), {"version": "535"}, "driver 580.159.04 is installed, but not from the package"),
        (lambda n: n.bare(), {"can_install": False}, "installing it on Debian 12 has never been tried"),
        (lambda n: n.bare(), {"packages": []}, "gpu_driver_packages is empty"),
        (lambda n: n.bare(), {"version": "570"}, "offer 580.159.04-1, 535.261.03-1: correct"),
        (
            lambda n: n.bare(),
            {"version": "535", "cuda_version": "13.0"},
            "535.261.03 is too old for the engine's CUDA 13.0",
        ),
        (lambda n: None, {"cuda_version": "14.0", "module_options": {"x y": 1}}, "has no such parameter"),
        (
            lambda n: None,
            {"can_install": False, "module_options": {"NVreg_EnablePCIeGen3": 1}},
            "in /etc/modprobe.d by hand",
        ),
    ],
)
def test_what_forbids_to_go_on_is_one_sentence(node: Node, prepare: Any, wish: dict[str, Any], sentence: str) -> None:
    prepare(node)
    problems = node.plan(replace(WISH, **wish))["problems"]
    assert len(problems) == 1
    problem = problems[0]
    assert sentence in problem
    assert "\n" not in problem


def test_a_full_boot_partition_is_told_before_the_initramfs_is_made(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.bare()
    assert node.plan()["problems"] == []
    monkeypatch.setattr(kernel_boot.os, "statvfs", lambda _: SimpleNamespace(f_bavail=1 << 8, f_frsize=4096))
    (problem,) = node.plan()["problems"]
    assert problem.startswith("boot: expected 32 MiB free in /boot for a kernel and its initramfs, found 1 MiB")


def test_secure_boot_is_told_before_anything_is_built_unless_the_key_is_enrolled(node: Node) -> None:
    node.bare()
    path = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
    node.put(path, "")
    (node.root / path.lstrip("/")).write_bytes(b"\x06\0\0\0\x01")
    (problem,) = node.plan()["problems"]
    # Nothing was ever built here, so there is no key to enrol yet.
    made = "openssl req -new -x509 -nodes -days 36500 -subj '/CN=DKMS module signing key' -newkey rsa:2048 -keyout /var/lib/dkms/mok.key"
    assert made in problem
    assert "mokutil --import /var/lib/dkms/mok.pub" in problem
    (ubuntu,) = node.plan(replace(WISH, distribution="ubuntu 22.04"))["problems"]
    assert "update-secureboot-policy --new-key" in ubuntu
    assert "mokutil --import /var/lib/shim-signed/mok/MOK.der" in ubuntu
    node.put("/var/lib/dkms/mok.pub", "")
    (problem,) = node.plan()["problems"]
    assert "openssl" not in problem
    assert "mokutil --import /var/lib/dkms/mok.pub" in problem
    node.answers["mokutil"] = (0, "/var/lib/dkms/mok.pub is already enrolled", "")
    assert node.plan()["problems"] == []


@pytest.mark.parametrize(
    ("raw", "state"),
    [
        (b"\x06\0\0\0\x01", "enabled"),
        (b"\x06\0\0\0\0", "disabled"),
        (b"", "unknown"),
        (b"\x06\0\0\0\x07", "unknown"),
        (b"12", "unknown"),
    ],
)
def test_states_of_secure_boot(node: Node, raw: bytes, state: str) -> None:
    assert gpu_driver.secure_boot(node.tree) == "unsupported"
    path = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
    node.put(path, "")
    (node.root / path.lstrip("/")).write_bytes(raw)
    assert gpu_driver.secure_boot(node.tree) == state


def test_an_option_that_does_not_exist_is_refused_with_the_nearest_that_does(node: Node) -> None:
    (problem,) = node.plan(replace(WISH, module_options={"NVreg_InitializeSystemMemoryPolicy": 1}))["problems"]
    assert problem == (
        "module option NVreg_InitializeSystemMemoryPolicy: the installed module has no such parameter "
        "(did you mean NVreg_InitializeSystemMemoryAllocations?)"
    )
    for value in (True, "a b", 'x"y', ""):
        (problem,) = node.plan(replace(WISH, module_options={"NVreg_EnablePCIeGen3": value}))["problems"]
        assert "without blanks and quotes" in problem


def test_options_that_cannot_be_checked_are_refused(node: Node) -> None:
    node.modinfo.clear()
    (problem,) = node.plan(replace(WISH, module_options={"NVreg_EnablePCIeGen3": 1}))["problems"]
    assert "cannot be checked" in problem
    node.bare()
    # Nothing to ask yet: they are checked as soon as the module is installed.
    assert node.plan(replace(WISH, module_options={"NVreg_EnablePCIeGen3": 1}))["problems"] == []


def test_options_are_written_for_the_modules_own_name_and_need_an_initramfs(node: Node) -> None:
    plan = node.plan(
        replace(WISH, module_options={"NVreg_EnablePCIERelaxedOrderingMode": 1, "NVreg_EnablePCIeGen3": None})
    )
    assert plan["modprobe_content"].splitlines()[1:] == [
        "blacklist nouveau",
        "options nouveau modeset=0",
        "options nvidia-current NVreg_EnablePCIERelaxedOrderingMode=1",
    ]
    assert plan["differences"] == ["modprobe", "initramfs"]


def test_an_initramfs_from_before_the_options_is_found(node: Node) -> None:
    node.put(f"/boot/initrd.img-{KERNEL}", "")
    os.utime(node.root / f"boot/initrd.img-{KERNEL}", (1, 1))
    assert node.plan()["differences"] == ["initramfs"]


def test_packages_that_lost_their_hold_are_held_again(node: Node) -> None:
    node.installed["nvidia-smi"] = ("580.159.04-1", "ii ")
    assert node.plan()["differences"] == ["hold"]
    assert node.plan(replace(WISH, hold=False))["differences"] == []


def test_a_removed_package_with_its_configuration_left_is_not_installed(node: Node) -> None:
    node.installed["nvidia-smi"] = ("580.159.04-1", "rc ")
    assert "packages" in node.plan()["differences"]


def test_another_branch_is_a_change_of_packages(node: Node) -> None:
    plan = node.plan(replace(WISH, version="535"))
    assert plan["differences"][0] == "packages"
    assert plan["install"][0] == "nvidia-kernel-dkms=535.261.03-1"


def test_a_restart_is_due_for_what_was_written_after_the_boot_and_is_not_in_force(node: Node) -> None:
    assert not node.plan()["restart_due"]
    node.put("/proc/stat", "btime 1000")
    assert node.plan()["restart_due"]
    # A module in the version that runs, as for a newer kernel, changes nothing; the options were written before the boot.
    os.utime(node.root / MODPROBE.lstrip("/"), (1, 1))
    assert not node.plan()["restart_due"]
    node.modinfo["version"] = "580.200.01"
    assert node.plan()["restart_due"]
    # Built before the boot, and still not loaded: restarting again would not help.
    os.utime(node.root / f"lib/modules/{KERNEL}/updates/dkms/nvidia-current.ko", (1, 1))
    assert not node.plan()["restart_due"]


@pytest.mark.parametrize(
    ("driver", "cuda", "fits"),
    [
        ("535.261.03", "12.9", True),
        ("535.261.03", "13.0", False),
        ("580.1", "13.2", True),
        ("580", "", True),
        ("", "13", True),
        ("470.1", "12.0", False),
        ("580.1", "99.0", True),
    ],
)
def test_driver_and_cuda_fit_or_do_not(driver: str, cuda: str, fits: bool) -> None:
    assert (cuda_fault(driver, cuda) == "") is fits


def test_a_driver_that_does_not_answer_has_a_cause(node: Node) -> None:
    node.unload()
    found = node.measure()["gpu_driver nvidia-smi"]
    assert found["value"] is False
    assert "is built for kernel 6.1.0-27-amd64 but not loaded" in found["cause"]
    assert "couldn't communicate" in found["cause"]
    assert node.judge() == {"gpu_driver nvidia-smi": "CRITICAL"}
    node.put("/sys/module/nouveau/refcnt", "1")
    assert "nouveau holds the GPU" in node.measure()["gpu_driver nvidia-smi"]["cause"]


def test_other_causes_of_silence(node: Node) -> None:
    node.answers["timeout"] = (18, "Failed to initialize NVML: Driver/library version mismatch\n", "")
    assert "restart after the update is still due" in node.measure()["gpu_driver nvidia-smi"]["cause"]
    node.answers["timeout"] = (124, "", "")
    assert "did not answer within 90 s" in node.measure()["gpu_driver nvidia-smi"]["cause"]
    node.unload()
    node.put("/proc/sys/kernel/osrelease", "6.1.0-9-amd64")
    assert "the machine runs kernel 6.1.0-9-amd64" in node.measure()["gpu_driver nvidia-smi"]["cause"]
    node.put("/proc/sys/kernel/osrelease", KERNEL)
    node.bare()
    assert "no driver module was built" in node.measure()["gpu_driver nvidia-smi"]["cause"]


def test_versions_that_disagree_are_found(node: Node) -> None:
    node.put("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54.03  Tue Jun  6")
    node.modinfo["version"] = "580.200.01"
    assert node.judge() == {
        "gpu_driver_version loaded module": "CRITICAL",
        "gpu_driver_version module of the next kernel": "CRITICAL",
    }
    assert node.judge(replace(WISH, version="570"))["gpu_driver_version nvidia-smi"] == "CRITICAL"
    assert "gpu_driver_cuda_version nvidia-smi" in node.judge(replace(WISH, cuda_version="14.0"))


def test_a_gpu_that_the_driver_does_not_know_is_named(node: Node) -> None:
    node.add_device("0000:17:00.0", "0x10de", "0x030200")
    assert node.judge() == {"gpu_count node": "CRITICAL"}
    assert "0000:17:00.0" in node.measure()["gpu_count node"]["cause"]


@pytest.mark.parametrize(
    ("old", "new", "check", "status"),
    [
        ("<dram_uncorrectable>0", "<dram_uncorrectable>4", "gpu_ecc_uncorrected 0000:00:06.0", "WARN"),
        ("<remapped_row_pending>No", "<remapped_row_pending>Yes", "gpu_memory_repair 0000:00:06.0", "WARN"),
        ("<channel_repair_pending>No", "<channel_repair_pending>Yes", "gpu_memory_repair 0000:00:06.0", "WARN"),
        ("<remapped_row_failure>No", "<remapped_row_failure>Yes", "gpu_memory_failure 0000:00:06.0", "CRITICAL"),
        ("<unrepairable_memory>No", "<unrepairable_memory>Yes", "gpu_memory_failure 0000:00:06.0", "CRITICAL"),
        ("<sram_threshold_exceeded>No", "<sram_threshold_exceeded>Yes", "gpu_memory_failure 0000:00:06.0", "CRITICAL"),
        ("<dram_correctable>0", "<dram_correctable>20000000", "gpu_ecc_corrected 0000:00:06.0", "WARN"),
        ("<dram_correctable>0", "<dram_correctable>2000", "", ""),
        ("histogram_none>0 bank", "histogram_none>1 bank", "gpu_exhausted_banks 0000:00:06.0", "WARN"),
        # What was repaired, and errors of the GPU's whole life, are on record and no fault of today.
        ("<remapped_row_unc>0", "<remapped_row_unc>7", "", ""),
        ("<remapped_row_corr>0", "<remapped_row_corr>9", "", ""),
        ("<pending_ecc>Enabled", "<pending_ecc>Disabled", "gpu_ecc_mode 0000:00:06.0", "CRITICAL"),
        ("<gpu_recovery_action>None", "<gpu_recovery_action>Reset", "gpu_recovery_action 0000:00:06.0", "CRITICAL"),
        ("<persistence_mode>Enabled", "<persistence_mode>Disabled", "gpu_persistence_mode 0000:00:06.0", "WARN"),
        (
            "</nvidia_smi_log>",
            "</nvidia_smi_log>\nWARNING: infoROM is corrupted at gpu 0000:00:06.0",
            "gpu_inforom node",
            "CRITICAL",
        ),
        ("<remapped_row_corr>", "<remapped_row_corr>", "", ""),
    ],
)
def test_each_fault_of_the_hardware_fails_its_own_gate(node: Node, old: str, new: str, check: str, status: str) -> None:
    assert old in H200
    node.answers["timeout"] = (0, H200.replace(old, new), "")
    assert node.judge() == ({check: status} if check else {})


def test_a_card_without_ecc_is_skipped_not_passed(node: Node) -> None:
    node.answers["timeout"] = (0, (FIXTURES / "telegraf_nvidia-smi_rtx-4000-sff-ada-v13.xml").read_text(), "")
    judged = node.judge(replace(WISH, version=""))
    assert judged["gpu_ecc_uncorrected 0000:06:00.0"] == "SKIPPED"


def test_xids_stop_a_node_unless_a_program_caused_them(node: Node) -> None:
    node.answers["journalctl"] = (0, (FIXTURES / "gpud_dmesg_xid119.log").read_text(), "")
    assert node.judge() == {"gpu_xid 0000:9b:00.0": "CRITICAL"}
    assert "GSP" in node.measure()["gpu_xid 0000:9b:00.0"]["cause"]
    node.answers["journalctl"] = (0, "NVRM: Xid (PCI:0000:00:06): 31, pid=1, name=python3, MMU Fault", "")
    assert node.judge() == {"gpu_xid_application node": "WARN"}


def test_a_contained_memory_error_warns_and_one_that_was_not_contained_stops_the_node(node: Node) -> None:
    line = "NVRM: Xid (PCI:0000:00:06): {}, pid=1, name=python3"
    node.answers["journalctl"] = (0, "\n".join(line.format(code) for code in (48, 63, 94)), "")
    assert node.judge() == {"gpu_xid_recovered node": "WARN"}
    assert "Xid 63 on 0000:00:06.0: a memory row" in node.measure()["gpu_xid_recovered node"]["cause"]
    node.answers["journalctl"] = (0, "\n".join(line.format(code) for code in (48, 95)), "")
    assert node.judge() == {"gpu_xid 0000:00:06.0": "CRITICAL"}


def test_each_fault_of_the_memory_says_what_to_do(node: Node) -> None:
    node.answers["timeout"] = (0, H200.replace("<remapped_row_pending>No", "<remapped_row_pending>Yes"), "")
    found = node.measure()["gpu_memory_repair 0000:00:06.0"]
    assert "next reset" in found["cause"]
    assert "nvidia-smi --gpu-reset -i 0000:00:06.0" in found["next_command"]
    node.answers["timeout"] = (0, H200.replace("<remapped_row_failure>No", "<remapped_row_failure>Yes"), "")
    found = node.measure()["gpu_memory_failure 0000:00:06.0"]
    assert found["value"] == "row remap failed"
    assert "replace the GPU" in found["cause"]
    # Nothing is said of the cause where nothing is wrong.
    assert "cause" not in node.measure()["gpu_memory_repair 0000:00:06.0"]


@pytest.mark.parametrize(("pages", "status"), [(0, "OK"), (15, "OK"), (16, "WARN"), (61, "WARN")])
def test_retired_pages_of_an_older_gpu(pages: int, status: str) -> None:
    gpu = dict.fromkeys(parse_smi(H200)["gpus"][0]) | {"address": "0000:3b:00.0", "retired_pages": pages}
    checks = {check.name: check.status for check in judge_all(memory_measurements(gpu), RULES)}
    assert checks == {
        "gpu_ecc_uncorrected": "SKIPPED",
        "gpu_memory_repair": "SKIPPED",
        "gpu_memory_failure": "SKIPPED",
        "gpu_retired_pages": status,
    }


def test_a_kernel_log_that_cannot_be_read_is_not_a_clean_one(node: Node) -> None:
    node.answers["journalctl"] = (0, "", "")
    node.answers["dmesg"] = (1, "", "dmesg: read kernel buffer failed: Operation not permitted")
    assert node.judge() == {"gpu_xid node": "UNKNOWN"}
    assert "Operation not permitted" in node.measure()["gpu_xid node"]["error"]
    node.answers["dmesg"] = (0, "[1.0] NVRM: loading NVIDIA UNIX", "")
    assert node.judge() == {}


def test_options_are_read_back_from_the_running_driver(node: Node) -> None:
    wish = replace(
        WISH,
        module_options={
            "NVreg_EnablePCIERelaxedOrderingMode": 1,
            "NVreg_UsePageAttributeTable": -1,
            "NVreg_DeviceFileMode": "0666",
            "NVreg_RestrictProfilingToAdminUsers": 0,
            "NVreg_NoSuchThing": 1,
        },
    )
    judged = {name: status for name, status in node.judge(wish).items() if name.startswith("gpu_module_option")}
    assert judged == {
        "gpu_module_option NVreg_EnablePCIERelaxedOrderingMode": "CRITICAL",
        "gpu_module_option NVreg_NoSuchThing": "UNKNOWN",
    }


def test_a_captured_tree_runs_no_command(node: Node) -> None:
    seen = observe(node.tree, None, PACKAGES)
    assert seen["loaded_version"] == "580.159.04"
    assert seen["module_parameters"] is None
    found = measurements(seen, ask_driver(None), kernel_log(None), WISH)
    assert next(m for m in found if m["name"] == "gpu_xid")["error"]


def test_a_container_is_not_blamed_for_what_is_its_hosts(node: Node) -> None:
    node.add_device("0000:17:00.0", "0x10de", "0x030200")
    node.answers["journalctl"] = (0, "", "")
    judged = node.judge(replace(WISH, container=True))
    assert judged == {"gpu_count node": "SKIPPED", "gpu_xid node": "SKIPPED"}
