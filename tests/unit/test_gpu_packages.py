"""Which packages a node's GPUs need: open or proprietary modules, the fabric manager, sources, and a directory of packages."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import package_index
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.distribution_packages import DNF
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.gates import judge_all
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.gpu_driver import (
    MODPROBE,
    ask_driver,
    kernel_log,
    observe,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.gpu_driver_measurements import measurements
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.gpu_driver_plan import (
    DriverWish,
    make_plan,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.gpu_packages import (
    asked_packages,
    choose_flavour,
    flavours,
    resolve,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.package_index import DirectoryError

from tests.unit.test_gpu_driver import KERNEL, MODINFO, RULES, Node, node  # noqa: F401 (a fixture)

OPEN = ["nvidia-kernel-open-dkms", "nvidia-driver-cuda"]
CLOSED = ["nvidia-kernel-dkms", "nvidia-driver-cuda"]
FABRIC = ["nvidia-fabricmanager-{branch}", "nvidia-fabricmanager"]
AUTO = DriverWish(
    packages=CLOSED,
    packages_open=OPEN,
    fabric_packages=FABRIC,
    version="580",
    distribution="Debian 12",
    can_install=True,
)
PASCAL, TURING, HOPPER, BLACKWELL, KEPLER = 0x1B38, 0x1EB8, 0x2335, 0x2901, 0x1023


class Machine(Node):
    """A bare node whose sources have both kinds of packages, and NVSwitches when asked for."""

    def __init__(self, root: Path, device: int = HOPPER, switches: int = 0) -> None:
        super().__init__(root)
        self.bare()
        self.put("/sys/bus/pci/devices/0000:00:06.0/device", hex(device))
        for index in range(switches):
            self.add_device(f"0000:c{index}:00.0", "0x10de", "0x068000")
        versions = ["580.200.01-1", "580.159.04-1", "535.261.03-1"]
        self.offered = {name: list(versions) for name in [*OPEN, *CLOSED]}
        self.offered[f"linux-headers-{KERNEL}"] = ["6.1"]
        self.offered["nvidia-fabricmanager-580"] = ["580.159.04-1"]
        self.states: dict[str, str] = {}

    def run(self, command: list[str]) -> tuple[int, str, str]:
        if command[0] == "systemctl":
            return 0, self.states.get(" ".join(command[1:]), "not-found") + "\n", ""
        return super().run(command)

    def look(self, wish: DriverWish = AUTO) -> tuple[dict[str, Any], DriverWish]:
        seen = observe(self.tree, self.run, asked_packages(wish), wish.manager, wish.fabric_manager)
        return seen, resolve(seen, wish)

    def plan(self, wish: DriverWish = AUTO) -> dict[str, Any]:
        seen, resolved = self.look(wish)
        return make_plan(self.tree, seen, resolved, ask_driver(self.run)["smi"])

    def judge(self, wish: DriverWish = AUTO) -> dict[str, str]:
        seen, resolved = self.look(wish)
        found = measurements(seen, ask_driver(self.run), kernel_log(self.run), resolved)
        return {f"{c.name} {c.scope}": c.status for c in judge_all(found, RULES) if c.status != "OK"}


# Devices of each generation, as pci.ids (2023.04.10, and for Blackwell later ones) and the names of their chips have them.
@pytest.mark.parametrize(
    ("device", "kinds"),
    [
        (KEPLER, []),
        (0x12BA, []),
        (0x1340, ["proprietary"]),
        (PASCAL, ["proprietary"]),
        (0x1DB6, ["proprietary"]),
        (0x1DF6, ["proprietary"]),
        (0x1E02, ["open", "proprietary"]),
        (TURING, ["open", "proprietary"]),
        (0x20B0, ["open", "proprietary"]),
        (HOPPER, ["open", "proprietary"]),
        (0x28E1, ["open", "proprietary"]),
        (BLACKWELL, ["open"]),
        (0x2B85, ["open"]),
        (0x31C2, ["open"]),
        (None, ["open", "proprietary"]),
    ],
)
def test_the_kinds_of_modules_by_generation(device: int | None, kinds: list[str]) -> None:
    assert flavours(device) == kinds


def test_the_ranges_agree_with_the_chips_of_pci_ids() -> None:
    """pci.ids names each device after its chip, and the first letters of a chip are its generation."""
    path = Path("/usr/share/misc/pci.ids")
    if not path.exists():
        pytest.skip("no pci.ids on this machine")
    text = path.read_text(errors="replace")
    nvidia = text[text.index("\n10de  ") :]
    nvidia = nvidia[: re.search(r"\n[0-9a-f]{4}  ", nvidia[6:]).start() + 6]
    wanted = {"GK": [], "GM": ["proprietary"], "GP": ["proprietary"], "GV": ["proprietary"], "GB": ["open"]}
    wanted |= {chip: ["open", "proprietary"] for chip in ("TU", "GA", "GH", "AD")}
    checked = 0
    # GPUs have a name in brackets; what a chip holds beside it (sound, USB, bridges) has another.
    for device, chip, name in re.findall(
        r"^\t([0-9a-f]{4})  (G[KMPVAHB]|TU|AD)[0-9]\w*\S* \[(.+)\]$", nvidia, re.MULTILINE
    ):
        if "NVSwitch" not in name:
            checked += 1
            assert flavours(int(device, 16)) == wanted[chip], f"{device} {chip} {name}"
    assert checked > 300


@pytest.mark.parametrize(
    ("devices", "wanted", "installed", "flavour", "words"),
    [
        ([HOPPER], "auto", "", "open", ""),
        ([HOPPER], "auto", "proprietary", "proprietary", ""),
        ([HOPPER], "proprietary", "", "proprietary", ""),
        ([PASCAL], "auto", "", "proprietary", ""),
        ([PASCAL, HOPPER], "auto", "", "proprietary", ""),
        ([BLACKWELL], "auto", "proprietary", "open", ""),
        ([BLACKWELL], "proprietary", "", "", "of Blackwell or newer: set gpu_driver_kernel_modules to open"),
        ([PASCAL], "open", "", "", "of a generation before Turing: set gpu_driver_kernel_modules to proprietary"),
        ([PASCAL, BLACKWELL], "auto", "", "", "no kind of kernel module runs all GPUs of this node"),
        ([KEPLER], "auto", "", "", "older than Maxwell: take it out of the machine"),
    ],
)
def test_the_kind_for_all_gpus_of_a_node(
    devices: list[int], wanted: str, installed: str, flavour: str, words: str
) -> None:
    named = {f"0000:0{index}:00.0": device for index, device in enumerate(devices)}
    found, problem = choose_flavour(named, wanted, installed)
    assert found == flavour
    assert words in problem
    assert bool(problem) is bool(words)
    assert "\n" not in problem


def test_a_bare_node_gets_the_packages_of_its_gpus(tmp_path: Path) -> None:
    plan = Machine(tmp_path).plan()
    assert (plan["problems"], plan["packages"], plan["kernel_modules"]) == ([], OPEN, "open")
    assert plan["install"] == ["nvidia-kernel-open-dkms=580.200.01-1", "nvidia-driver-cuda=580.200.01-1"]
    older = Machine(tmp_path, PASCAL).plan()
    assert (older["packages"], older["kernel_modules"]) == (CLOSED, "proprietary")


def test_packages_that_are_there_and_work_are_not_exchanged(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.installed = dict.fromkeys(CLOSED, ("580.159.04-1", "hi "))
    machine.add_kernel(KERNEL)
    assert "packages" not in machine.plan()["differences"]
    asked = machine.plan(replace(AUTO, kernel_modules="open"))
    assert asked["packages"] == OPEN
    assert "packages" in asked["differences"]


def test_packages_of_the_inventory_are_taken_as_they_are(tmp_path: Path) -> None:
    machine = Machine(tmp_path, KEPLER)
    legacy = DriverWish(packages=["nvidia-legacy-kernel-dkms"])
    assert machine.plan(legacy)["packages"] == ["nvidia-legacy-kernel-dkms"]
    (problem,) = machine.plan(replace(legacy, kernel_modules="open"))["problems"]
    assert "older than Maxwell" in problem


def test_names_with_a_branch_need_one(tmp_path: Path) -> None:
    names = ["nvidia-headless-{branch}-server-open"]
    machine = Machine(tmp_path)
    assert machine.look(replace(AUTO, packages_open=names))[1].packages == ["nvidia-headless-580-server-open"]
    problems = machine.plan(replace(AUTO, packages_open=names, version=""))["problems"]
    assert len(problems) == 1
    assert "gpu_driver_version: expected the branch of the driver" in problems[0]


def test_the_kind_that_runs_is_read_back(tmp_path: Path) -> None:
    healthy = Node(tmp_path)
    machine = Machine(tmp_path)
    machine.answers = healthy.answers
    machine.put("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Tue")
    machine.add_kernel(KERNEL)
    machine.installed = dict.fromkeys(OPEN, ("580.159.04-1", "hi "))
    assert machine.judge() == {"gpu_kernel_modules node": "CRITICAL"}
    machine.put(
        "/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release"
    )
    assert machine.judge() == {}


def test_behind_nvswitches_the_newest_version_that_the_fabric_manager_has_is_taken(tmp_path: Path) -> None:
    machine = Machine(tmp_path, switches=2)
    plan = machine.plan()
    assert plan["problems"] == []
    assert plan["install"] == [
        "nvidia-kernel-open-dkms=580.159.04-1",
        "nvidia-driver-cuda=580.159.04-1",
        "nvidia-fabricmanager-580=580.159.04-1",
    ]
    assert plan["hold_command"] == ["apt-mark", "hold", *OPEN, "nvidia-fabricmanager-580"]
    assert machine.plan(replace(AUTO, fabric_manager="never"))["packages"] == OPEN
    assert (
        Machine(tmp_path / "plain").plan(replace(AUTO, fabric_manager="always"))["packages"][-1]
        == "nvidia-fabricmanager-580"
    )


def test_a_fabric_manager_that_cannot_be_had_in_the_drivers_version_is_refused(tmp_path: Path) -> None:
    machine = Machine(tmp_path, switches=1)
    (problem,) = machine.plan(replace(AUTO, version="580.200.01"))["problems"]
    assert (
        "the driver's version 580.200.01, since this node has NVSwitches, the package sources offer 580.159.04-1"
        in problem
    )
    del machine.offered["nvidia-fabricmanager-580"]
    assert "offer none" in machine.plan()["problems"][0]
    # Another name for it.
    machine.offered["nvidia-fabricmanager"] = ["580.200.01-1"]
    assert machine.plan()["install"][-1] == "nvidia-fabricmanager=580.200.01-1"


def test_a_fabric_manager_of_another_version_is_a_difference_and_fails_its_gate(tmp_path: Path) -> None:
    healthy = Node(tmp_path)
    machine = Machine(tmp_path, switches=1)
    machine.answers = dict(healthy.answers)
    machine.put(
        "/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release"
    )
    machine.add_kernel(KERNEL)
    machine.installed = dict.fromkeys([*OPEN, "nvidia-fabricmanager-580"], ("580.159.04-1", "hi "))
    machine.states = {f"is-active {name}": "active" for name in ("nvidia-fabricmanager", "nvidia-persistenced")}
    assert "packages" not in machine.plan()["differences"]
    assert machine.judge() == {}
    machine.installed["nvidia-fabricmanager-580"] = ("580.200.01-1", "hi ")
    assert "packages" in machine.plan()["differences"]
    assert machine.judge() == {"gpu_driver_version fabric manager": "CRITICAL"}
    machine.states["is-active nvidia-fabricmanager"] = "failed"
    assert machine.judge()["gpu_fabric_manager node"] == "CRITICAL"


def test_the_inventory_decides_whether_the_fabric_managers_service_is_kept_and_judged(tmp_path: Path) -> None:
    fails = {"is-enabled nvidia-fabricmanager": "disabled", "is-active nvidia-fabricmanager": "failed"}
    # NVSwitches that are no PCI devices of the host.
    hidden = Machine(tmp_path / "hidden")
    hidden.states = fails
    always = replace(AUTO, fabric_manager="always")
    assert hidden.plan(always)["services_off"] == ["nvidia-fabricmanager"]
    assert hidden.judge(always)["gpu_fabric_manager node"] == "CRITICAL"
    assert "gpu_fabric_manager node" not in hidden.judge()
    # One that nobody wants is not switched on.
    visible = Machine(tmp_path / "visible", switches=1)
    visible.states = fails
    never = replace(AUTO, fabric_manager="never")
    assert visible.plan(never)["services_off"] == []
    assert "gpu_fabric_manager node" not in visible.judge(never)


def test_services_that_do_not_start_with_the_machine_are_a_difference(tmp_path: Path) -> None:
    machine = Machine(tmp_path, switches=1)
    machine.states = {"is-enabled nvidia-persistenced": "disabled", "is-enabled nvidia-fabricmanager": "enabled"}
    plan = machine.plan()
    assert "services" in plan["differences"]
    assert plan["services_off"] == ["nvidia-persistenced"]


def test_a_further_source_is_wanted_only_where_the_nodes_own_do_not_do(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    wish = replace(AUTO, source_file="/etc/apt/sources.list.d/plumbline-nvidia.sources", source_content="Types: deb\n")
    assert "source" not in machine.plan(wish)["differences"]
    newer = replace(wish, version="590")
    plan = machine.plan(newer)
    assert "source" in plan["differences"]
    # Nothing is refused before the source could be asked ...
    assert plan["problems"] == []
    machine.put(wish.source_file, "Types: deb")
    # ... and then it is.
    (problem,) = machine.plan(newer)["problems"]
    assert "expected version 590" in problem
    # A driver that is too old for the engine is told before anything is touched all the same.
    machine.remove(wish.source_file)
    assert "too old" in machine.plan(replace(newer, version="570", cuda_version="13.0"))["problems"][0]


# --- Enterprise Linux, as rpm, dnf and grubby print it ---
EL_KERNEL = "5.14.0-503.14.1.el9_5.x86_64"
EL = replace(
    AUTO,
    manager=DNF,
    distribution="rocky 9.5",
    packages=["kmod-nvidia-latest-dkms", "nvidia-driver-cuda"],
    packages_open=["kmod-nvidia-open-dkms", "nvidia-driver-cuda"],
)


class Enterprise(Machine):
    """A bare Enterprise Linux node."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.put("/proc/sys/kernel/osrelease", EL_KERNEL)
        self.add_kernel(EL_KERNEL, module="", headers=False)
        self.put("/usr/sbin/grubby", "")
        self.put(f"/boot/loader/entries/m1-{EL_KERNEL}.conf", f"linux /vmlinuz-{EL_KERNEL}\noptions ro")
        self.put("/boot/grub2/grubenv", f"# GRUB Environment Block\nsaved_entry=m1-{EL_KERNEL}\n####")
        self.rpms: dict[str, str] = {}
        self.locks: list[str] = []

    def run(self, command: list[str]) -> tuple[int, str, str]:
        if command[0] == "rpm":
            lines = [f"{n}\t{self.rpms[n]}" if n in self.rpms else f"package {n} is not installed" for n in command[4:]]
            return 1, "\n".join(lines) + "\n", ""
        if command[:3] == ["dnf", "-q", "-C"]:
            return 0, "\n".join(self.locks), ""
        if command[0] == "dnf":
            rows = [
                ("kmod-nvidia-open-dkms", "3:580.126.20-1.el9", "noarch"),
                ("kmod-nvidia-open-dkms", "3:580.159.04-1.el9", "noarch"),
                ("nvidia-driver-cuda", "3:580.159.04-1.el9", "x86_64"),
                ("kernel-devel", "0:5.14.0-503.14.1.el9_5", "x86_64"),
            ]
            return 0, "".join(f"{n}\t{v}\t{a}\n" for n, v, a in rows), ""
        if command[0] == "modinfo":
            assert command[1:3] == ["-k", EL_KERNEL]
            return 0, MODINFO if command[-2] == "-p" else "580.159.04\n", ""
        return super().run(command)


def test_enterprise_linux_is_asked_and_told_in_its_own_words(tmp_path: Path) -> None:
    machine = Enterprise(tmp_path)
    plan = machine.plan(EL)
    assert plan["problems"] == []
    assert plan["install"] == [
        "kmod-nvidia-open-dkms-3:580.159.04-1.el9",
        "nvidia-driver-cuda-3:580.159.04-1.el9",
        f"kernel-devel-{EL_KERNEL}",
    ]
    assert plan["hold_command"] == ["dnf", "-q", "versionlock", "add", "kmod-nvidia-open-dkms", "nvidia-driver-cuda"]
    assert plan["initramfs_command"] == ["dracut", "--force", "--kver", EL_KERNEL]


def test_the_module_is_for_the_kernel_that_grub_boots_whatever_grubby_says(tmp_path: Path) -> None:
    machine = Enterprise(tmp_path)
    newer = "5.14.0-570.12.1.el9_6.x86_64"
    machine.put(f"/boot/vmlinuz-{newer}", "")
    machine.put(f"/lib/modules/{newer}/modules.dep", "")
    machine.put(f"/boot/loader/entries/m1-{newer}.conf", f"linux /vmlinuz-{newer}\noptions ro")
    assert machine.look(EL)[0]["next_kernel"] == EL_KERNEL
    # Oracle 9.4 on a real machine (oracle/oracle-linux#148): entry 0, whatever is saved.
    machine.put("/boot/grub2/grub.cfg", 'else\n   set default="0"\nfi')
    assert machine.look(EL)[0]["next_kernel"] == newer


def test_a_converged_enterprise_linux_needs_nothing(tmp_path: Path) -> None:
    machine = Enterprise(tmp_path)
    machine.rpms = dict.fromkeys(["kmod-nvidia-open-dkms", "nvidia-driver-cuda"], "3:580.159.04-1.el9")
    machine.locks = [
        "kmod-nvidia-open-dkms-3:580.159.04-1.el9.*",
        "nvidia-driver-cuda-3:580.159.04-1.el9.*",
    ]
    machine.add_kernel(EL_KERNEL, module="extra/nvidia.ko.xz")
    plan = machine.plan(EL)
    assert "hold" not in plan["differences"]
    machine.put(MODPROBE, plan["modprobe_content"].strip())
    assert machine.plan(EL)["differences"] == []
    assert machine.look(EL)[0]["next_kernel"] == EL_KERNEL
    machine.locks.pop()
    assert machine.plan(EL)["differences"] == ["hold"]


# --- a directory of packages ---
def deb(directory: Path, name: str, version: str) -> Path:
    tree = directory.parent / f"tree-{name}"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "DEBIAN" / "control").write_text(
        f"Package: {name}\nVersion: {version}\nArchitecture: all\nMaintainer: P <p@p.invalid>\nDescription: stand-in\n"
    )
    target = directory / f"{name}_{version}_all.deb"
    subprocess.run(["dpkg-deb", "--build", "--root-owner-group", tree, target], check=True, capture_output=True)
    return target


def run(command: list[str]) -> tuple[int, str, str]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.skipif(
    shutil.which("dpkg-deb") is None or shutil.which("apt-get") is None, reason="needs dpkg-deb and apt-get"
)
def test_apt_finds_the_packages_of_a_directory(tmp_path: Path) -> None:
    directory, index = tmp_path / "packages", tmp_path / "index"
    directory.mkdir()
    deb(directory, "nvidia-smi", "580.159.04-1")
    deb(directory, "libcuda1", "580.159.04-1")
    content = package_index.make_index(sorted(directory.glob("*.deb")), run)
    assert not package_index.is_right(index, content, str(directory))
    package_index.write(index, content, str(directory))
    assert package_index.is_right(index, content, str(directory))
    assert sorted(path.name for path in directory.iterdir()) == [
        "libcuda1_580.159.04-1_all.deb",
        "nvidia-smi_580.159.04-1_all.deb",
    ]
    (tmp_path / "sources.list").write_text(f"deb [trusted=yes] file:{index} ./\n")
    (tmp_path / "lists" / "partial").mkdir(parents=True)
    options = [
        f"-oDir::Etc::SourceList={tmp_path}/sources.list",
        "-oDir::Etc::SourceParts=-",
        f"-oDir::State::Lists={tmp_path}/lists",
        f"-oDir::Cache={tmp_path}",
        "-oAPT::Sandbox::User=root",
    ]
    status, out, err = run(["apt-get", "update", *options])
    assert status == 0, out + err
    assert "nvidia-smi | 580.159.04-1" in run(["apt-cache", *options, "madison", "nvidia-smi"])[1]
    uris = run(["apt-get", *options, "-y", "--print-uris", "download", "nvidia-smi"])[1]
    assert "files/nvidia-smi_580.159.04-1_all.deb" in uris


def test_a_directory_that_cannot_be_one_is_refused(tmp_path: Path) -> None:
    directory = tmp_path / "packages"
    for path, words in (
        ("", "found none at an empty path"),
        (str(directory), "found none at"),
        ("relative", "found none"),
    ):
        with pytest.raises(DirectoryError, match=words):
            package_index.check_directory(path)
    directory.mkdir()
    with pytest.raises(DirectoryError, match=r"expected \*.deb files"):
        package_index.check_directory(str(directory))
    package = directory / "x.deb"
    package.write_text("no package")
    with pytest.raises(DirectoryError, match="is none"):
        package_index.make_index([package], run)
    package.chmod(0o666)
    with pytest.raises(DirectoryError, match="only root may change"):
        package_index.check_directory(str(directory))
