"""Compares a node's NVIDIA driver with the one that is wanted: what is missing, and what forbids to go on."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from .gpu_driver import MODPROBE, changed_since_boot, initramfs_is_older, matches, upstream
from .kernel_wish import nearest
from .tree import Tree

_HEADER = "# Managed by Plumbline (role gpu_driver): change the inventory, not this file.\n"
# What survives modprobe.d's own splitting and its shell.
_OPTION_VALUE = re.compile(r"^[A-Za-z0-9_.,:;=/+-]+$")
# CUDA's major release -> the oldest driver branch that runs its programs (NVIDIA, "CUDA Compatibility", table 1).
OLDEST_DRIVER_OF_CUDA = {11: "450", 12: "525", 13: "580"}


@dataclass(frozen=True)
class DriverWish:
    """What the inventory asks for."""

    packages: list[str] = field(default_factory=list)
    version: str = ""
    hold: bool = True
    module_options: dict[str, Any] = field(default_factory=dict)
    cuda_version: str = ""
    # Whether the role knows how to install on this node's distribution; its name, for the message.
    can_install: bool = True
    distribution: str = ""
    # A container sees its host's PCI bus and kernel log, and is given some of its GPUs.
    container: bool = False


def make_plan(tree: Tree, seen: dict[str, Any], wish: DriverWish) -> dict[str, Any]:
    """`problems` (sentences), `differences` (packages, module, hold, modprobe, initramfs), `install`, `modprobe_content`.

    `left_alone` is true when a driver that came from elsewhere runs in the wanted version: then only its options count.
    """
    foreign = bool(seen["loaded_version"] or seen["module_file"]) and not _driver_packages(seen, wish)
    version = seen["loaded_version"] or seen["module_version"]
    left_alone = foreign and bool(version) and matches(version, wish.version)
    # Without a wish of its own a file from an earlier run goes, but one that never was is not made.
    content = modprobe_content(seen["module_name"], wish) if wish.module_options or not left_alone else ""
    differences = []
    if not left_alone and _packages_differ(seen, wish):
        differences.append("packages")
    elif not left_alone and not seen["module_file"]:
        differences.append("module")
    if not left_alone and wish.hold and not _all_held(seen, wish):
        differences.append("hold")
    if (tree.text(MODPROBE) or "") != content.strip():
        differences.append("modprobe")
    if "modprobe" in differences or initramfs_is_older(tree, seen["next_kernel"]):
        differences.append("initramfs")
    install = install_list(seen, wish)
    return {
        "left_alone": left_alone,
        "differences": differences,
        "install": install,
        "modprobe_file": MODPROBE,
        "modprobe_content": content,
        "restart_due": _restart_due(tree, seen),
        "problems": _problems(seen, wish, foreign and not left_alone, differences),
    }


def install_list(seen: dict[str, Any], wish: DriverWish) -> list[str]:
    """What to give to apt: each package in the newest version of the wanted branch, else in whatever there is."""
    chosen = []
    for name in wish.packages:
        fitting = [version for version in seen["available"].get(name, []) if matches(upstream(version), wish.version)]
        chosen.append(f"{name}={fitting[0]}" if wish.version and fitting else name)
    if not seen["headers_installed"] and seen["headers_package"] in seen["available"]:
        chosen.append(seen["headers_package"])
    return chosen


def modprobe_content(module_name: str, wish: DriverWish) -> str:
    """The file for modprobe.d: nouveau off, the driver's options on."""
    lines = ["blacklist nouveau\n", "options nouveau modeset=0\n"]
    if wish.module_options:
        words = [f"{name}={value}" for name, value in wish.module_options.items() if value is not None]
        lines.append(f"options {module_name or 'nvidia'} {' '.join(words)}\n")
    return _HEADER + "".join(lines)


def option_faults(options: dict[str, Any], known: list[str] | None) -> list[str]:
    """A sentence for each option that the module does not know, or whose value cannot be written."""
    faults = []
    for name, value in options.items():
        if value is None:
            continue
        if isinstance(value, bool) or not _OPTION_VALUE.match(str(value)):
            faults.append(
                f"module option {name}: expected a number or a word without blanks and quotes, found {value!r}"
            )
        elif known is not None and name not in known:
            hint = nearest(name, known) or ": modinfo -p lists them"
            faults.append(f"module option {name}: the installed module has no such parameter{hint}")
        elif known is None and not re.match(r"^[A-Za-z_][A-Za-z0-9_]*$", name):
            faults.append(f"module option {name!r}: expected a name such as NVreg_EnablePCIERelaxedOrderingMode")
    return faults


def cuda_fault(driver: str, cuda_version: str) -> str:
    """A sentence when a driver is too old for a CUDA release; empty when it fits or one of them is not known."""
    major = cuda_version.partition(".")[0]
    oldest = OLDEST_DRIVER_OF_CUDA.get(int(major)) if major.isdigit() else None
    branch = driver.partition(".")[0]
    if oldest is None or not branch.isdigit() or int(branch) >= int(oldest):
        return ""
    return (
        f"driver {driver} is too old for the engine's CUDA {cuda_version}: expected {oldest} or newer; take a newer branch "
        "(gpu_driver_version, gpu_driver_apt_source), or an engine built for an older CUDA"
    )


def _restart_due(tree: Tree, seen: dict[str, Any]) -> bool:
    """Whether a restart would change something: options, or the version that is loaded.

    Only for what was written after the boot: a driver that did not load although the machine has restarted would otherwise
    ask for a restart on every run. A module built for a newer kernel in the version that runs asks for none.
    """
    if changed_since_boot(tree, [MODPROBE]):
        return True
    return seen["loaded_version"] != seen["module_version"] and changed_since_boot(tree, [seen["module_file"]])


def _driver_packages(seen: dict[str, Any], wish: DriverWish) -> list[str]:
    """The wanted packages that are installed and carry the driver's version; the first one wanted stands for them all."""
    return [name for name in wish.packages[:1] if name in seen["packages"]]


def _packages_differ(seen: dict[str, Any], wish: DriverWish) -> bool:
    if any(name not in seen["packages"] for name in wish.packages):
        return True
    first = seen["packages"].get(wish.packages[0]) if wish.packages else None
    return bool(first and not matches(upstream(first["version"]), wish.version))


def _all_held(seen: dict[str, Any], wish: DriverWish) -> bool:
    return all(seen["packages"].get(name, {}).get("held") for name in wish.packages)


def _problems(seen: dict[str, Any], wish: DriverWish, other_foreign: bool, differences: list[str]) -> list[str]:
    problems = option_faults(wish.module_options, seen["module_parameters"])
    if wish.module_options and seen["module_file"] and seen["module_parameters"] is None:
        problems.append(
            f"module options: modinfo -k {seen['next_kernel']} -p {seen['module_name']} does not list what {seen['module_file']} "
            "takes, so they cannot be checked: install kmod, or run depmod for that kernel"
        )
    present = seen["loaded_version"] or seen["module_version"]
    must_build = "packages" in differences or "module" in differences
    if not wish.can_install and wish.module_options and "modprobe" in differences:
        problems.append(
            f"module options: setting them on {wish.distribution} has never been tried: set them in /etc/modprobe.d by hand, and "
            "take gpu_driver_module_options out of the inventory"
        )
    if not must_build:
        return [*problems, *filter(None, [cuda_fault(present, wish.cuda_version)])]
    if not wish.packages:
        return [*problems, "no driver is installed, and gpu_driver_packages is empty: name the packages to install"]
    if other_foreign:
        return [
            *problems,
            f"driver {present} is installed, but not from the package {_first(wish)}, and {wish.version} is wanted: remove it "
            "(nvidia-uninstall, or the packages it came in), or set gpu_driver_version to what is there",
        ]
    if not wish.can_install:
        return [
            *problems,
            f"no driver is installed, and installing it on {wish.distribution} has never been tried: install it by the "
            "distribution's own means and run again; Plumbline then verifies it and leaves it alone",
        ]
    if seen["secure_boot"] == "enabled" and not seen["signing_key_enrolled"]:
        problems.append(
            "Secure Boot is enabled, and the firmware does not trust the key that DKMS signs modules with on this machine, so "
            "the driver would not load: enrol it (mokutil --import /var/lib/dkms/mok.pub, restart, confirm at the console), or "
            "turn Secure Boot off in the BIOS"
        )
    return problems + _package_problems(seen, wish)


def _package_problems(seen: dict[str, Any], wish: DriverWish) -> list[str]:
    problems = []
    offered = seen["available"].get(_first(wish), [])
    if offered:
        fitting = [version for version in offered if matches(upstream(version), wish.version)]
        if not fitting:
            problems.append(
                f"{_first(wish)}: expected version {wish.version}, the package sources offer {', '.join(offered)}: correct "
                "gpu_driver_version, or add a source that has it (gpu_driver_apt_source)"
            )
        else:
            problems += filter(None, [cuda_fault(upstream(fitting[0]), wish.cuda_version)])
    elif wish.version:
        problems += filter(None, [cuda_fault(wish.version, wish.cuda_version)])
    if not seen["headers_installed"] and seen["available"] and seen["headers_package"] not in seen["available"]:
        problems.append(
            f"{seen['headers_package']}: the package sources do not have the headers of the kernel that boots next, so DKMS "
            "cannot build for it: upgrade the kernel (apt-get install linux-image-amd64), restart, and run again"
        )
    return problems


def _first(wish: DriverWish) -> str:
    return wish.packages[0] if wish.packages else "nvidia-driver"
