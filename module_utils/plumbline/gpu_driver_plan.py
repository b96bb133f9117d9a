"""Compares a node's NVIDIA driver with the one that is wanted: what is missing, and what forbids to go on."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from .cuda_compatibility import cuda_fault
from .distribution_packages import APT, chosen, hold_command, initramfs_command
from .gpu_driver import MODPROBE, SIGNING_KEYS, changed_since_boot, initramfs_is_older, matches, upstream
from .gpu_modes import mode_plan, mode_problems
from .kernel_boot import room_fault
from .kernel_wish import nearest
from .tree import Tree

_HEADER = "# Managed by Plumbline (role gpu_driver): change the inventory, not this file.\n"
# What survives modprobe.d's own splitting and its shell.
_OPTION_VALUE = re.compile(r"^[A-Za-z0-9_.,:;=/+-]+$")


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
    manager: str = APT
    # Instead of `packages` where the GPUs run on open modules; both lists may name `{branch}`.
    packages_open: list[str] = field(default_factory=list)
    kernel_modules: str = "auto"
    # Names that the fabric manager's package may have, and whether it is wanted: auto (where there are NVSwitches), always, never.
    fabric_packages: list[str] = field(default_factory=list)
    fabric_manager: str = "auto"
    # The file that tells the package manager of a further source, and what it is to hold; empty for none.
    source_file: str = ""
    source_content: str = ""
    power_limit_watts: float = 0
    compute_mode: str = ""
    ecc: str = ""
    # What `gpu_packages.resolve` found out on the node.
    flavour: str = ""
    fabric: str = ""
    package_problem: str = ""
    # The package that carries the version, for each kind of module: one of them tells that the driver came from packages we know.
    first_packages: tuple[str, ...] = ()


def make_plan(tree: Tree, seen: dict[str, Any], wish: DriverWish, smi: dict[str, Any] | None = None) -> dict[str, Any]:
    """`problems` (sentences), `differences`, `install`, `modprobe_content`, and the plan of the modes (`mode_plan`).

    Differences are out of packages, source, module, hold, services, modprobe, initramfs, modes, ecc. `left_alone` is true when a
    driver that came from elsewhere runs in the wanted version: then only its options and modes count. *smi* is what nvidia-smi
    answered.
    """
    foreign = bool(seen["loaded_version"] or seen["module_file"]) and not _is_known(seen, wish)
    version = seen["loaded_version"] or seen["module_version"]
    left_alone = foreign and bool(version) and matches(version, wish.version)
    # Without a wish of its own a file from an earlier run goes, but one that never was is not made.
    content = modprobe_content(seen["module_name"], wish) if wish.module_options or not left_alone else ""
    differences = []
    if not left_alone and _packages_differ(seen, wish):
        differences.append("packages")
        if _needs_source(tree, seen, wish):
            differences.append("source")
    elif not left_alone and not seen["module_file"]:
        differences.append("module")
    if not left_alone and wish.hold and not _all_held(seen, wish):
        differences.append("hold")
    if any(said["enabled"] == "disabled" for said in seen["services"].values()):
        differences.append("services")
    if (tree.text(MODPROBE) or "") != content.strip():
        differences.append("modprobe")
    if "modprobe" in differences or initramfs_is_older(tree, seen["next_kernel"], wish.manager):
        differences.append("initramfs")
    install = install_list(seen, wish)
    modes = mode_plan(tree, smi, wish)
    differences += modes.pop("differences")
    return {
        "left_alone": left_alone,
        "differences": differences,
        "packages": driver_packages(wish),
        "kernel_modules": wish.flavour,
        "install": install,
        "hold_command": hold_command(wish.manager, driver_packages(wish)),
        "initramfs_command": initramfs_command(wish.manager, seen["next_kernel"]),
        "services_off": [name for name, said in seen["services"].items() if said["enabled"] == "disabled"],
        "modprobe_file": MODPROBE,
        "modprobe_content": content,
        **modes,
        "restart_due": _restart_due(tree, seen) or modes["ecc_waits"],
        "problems": [
            *_problems(seen, wish, foreign and not left_alone, differences),
            *mode_problems(smi, wish),
            *filter(None, [room_fault(tree) if {"packages", "module", "initramfs"} & set(differences) else ""]),
        ],
    }


def driver_packages(wish: DriverWish) -> list[str]:
    """Everything that is installed and held together; the first one carries the driver's version."""
    return [*wish.packages, *([wish.fabric] if wish.fabric and wish.fabric not in wish.packages else [])]


def install_list(seen: dict[str, Any], wish: DriverWish) -> list[str]:
    """What to give to the package manager: each package in the newest version of the wanted branch, else in whatever there is.

    The fabric manager works with the driver of its own version only, so the newest version counts that both have.
    """
    target = _target(seen, wish)
    found = []
    for name in wish.packages:
        fitting = [version for version in seen["available"].get(name, []) if matches(upstream(version), wish.version)]
        exact = [version for version in fitting if wish.fabric and upstream(version) == target]
        pinned = bool(wish.version or exact) and bool(fitting)
        found.append(chosen(wish.manager, name, (exact or fitting)[0]) if pinned else name)
    if wish.fabric and wish.fabric not in wish.packages:
        same = [version for version in seen["available"].get(wish.fabric, []) if upstream(version) == target]
        found.append(chosen(wish.manager, wish.fabric, same[0]) if same else wish.fabric)
    if not seen["headers_installed"] and seen["headers_package"] in seen["available"]:
        found.append(seen["headers_package"])
    return found


def _target(seen: dict[str, Any], wish: DriverWish) -> str:
    """The driver's version that will be there: the installed one where it fits, else the newest that all its packages have."""
    if not wish.packages:
        return str(seen["loaded_version"] or seen["module_version"])
    first = seen["packages"].get(wish.packages[0])
    if first and matches(upstream(first["version"]), wish.version):
        return upstream(first["version"])
    offered = [upstream(version) for version in seen["available"].get(wish.packages[0], [])]
    fitting = [version for version in offered if matches(version, wish.version)]
    fabric = {upstream(version) for version in seen["available"].get(wish.fabric, [])}
    common = [version for version in fitting if version in fabric] if wish.fabric else fitting
    return (common or fitting or [""])[0]


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


def _restart_due(tree: Tree, seen: dict[str, Any]) -> bool:
    """Whether a restart would change something: options, or the version that is loaded.

    Only for what was written after the boot: a driver that did not load although the machine has restarted would otherwise
    ask for a restart on every run. A module built for a newer kernel in the version that runs asks for none.
    """
    if changed_since_boot(tree, [MODPROBE]):
        return True
    return seen["loaded_version"] != seen["module_version"] and changed_since_boot(tree, [seen["module_file"]])


def _is_known(seen: dict[str, Any], wish: DriverWish) -> bool:
    """Whether the driver came from one of our packages; the one that carries its version stands for them all."""
    return any(name in seen["packages"] for name in wish.first_packages or wish.packages[:1])


def _packages_differ(seen: dict[str, Any], wish: DriverWish) -> bool:
    if any(name not in seen["packages"] for name in driver_packages(wish)):
        return True
    first = seen["packages"].get(wish.packages[0]) if wish.packages else None
    if first and not matches(upstream(first["version"]), wish.version):
        return True
    fabric = seen["packages"].get(wish.fabric)
    return bool(first and fabric and upstream(first["version"]) != upstream(fabric["version"]))


def _needs_source(tree: Tree, seen: dict[str, Any], wish: DriverWish) -> bool:
    """Whether a further package source helps: what is wanted is not among what the node can have, and the source is not there."""
    if not wish.source_content.strip() or (tree.text(wish.source_file) or "") == wish.source_content.strip():
        return False
    for name in driver_packages(wish):
        offered = seen["available"].get(name, [])
        if not offered or (
            name == wish.packages[0] and not any(matches(upstream(one), wish.version) for one in offered)
        ):
            return True
    return False


def _all_held(seen: dict[str, Any], wish: DriverWish) -> bool:
    return all(seen["packages"].get(name, {}).get("held") for name in driver_packages(wish))


def _problems(seen: dict[str, Any], wish: DriverWish, other_foreign: bool, differences: list[str]) -> list[str]:
    problems = option_faults(wish.module_options, seen["module_parameters"])
    if wish.module_options and seen["module_file"] and seen["module_parameters"] is None:
        problems.append(
            f"module options: modinfo -k {seen['next_kernel']} -p {seen['module_name']} does not list what {seen['module_file']} "
            "takes, so they cannot be checked: install kmod, or run depmod for that kernel"
        )
    if wish.package_problem:
        problems.append(wish.package_problem)
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
            f"the driver would not load: {_enrolment(seen['signing_key'], wish.distribution)}, or turn Secure Boot off in the BIOS"
        )
    if "source" in differences:
        # What the further source has is known when it is there.
        return [*problems, *filter(None, [cuda_fault(wish.version, wish.cuda_version)])]
    return problems + ([] if wish.package_problem else _package_problems(seen, wish))


def _enrolment(key: str, distribution: str) -> str:
    """How the key comes to be trusted; on a machine that never built a module there is none yet."""
    made = ""
    if not key and distribution.lower().startswith("ubuntu"):
        key = SIGNING_KEYS[1]
        made = "make the key (apt install shim-signed; update-secureboot-policy --new-key) and "
    elif not key:
        # What DKMS would run when it builds its first module.
        key = SIGNING_KEYS[0]
        made = (
            "make the key (mkdir -p /var/lib/dkms; openssl req -new -x509 -nodes -days 36500 -subj '/CN=DKMS module signing key' "
            f"-newkey rsa:2048 -keyout /var/lib/dkms/mok.key -outform DER -out {key}) and "
        )
    return f"{made}enrol it (mokutil --import {key}, restart, confirm at the console)"


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
            problems += filter(None, [cuda_fault(upstream(fitting[0]), wish.cuda_version), _fabric_fault(seen, wish)])
    elif wish.version:
        problems += filter(None, [cuda_fault(wish.version, wish.cuda_version)])
    if not seen["headers_installed"] and seen["available"] and seen["headers_package"] not in seen["available"]:
        problems.append(
            f"{seen['headers_package']}: the package sources do not have the headers of the kernel that boots next, so DKMS "
            f"cannot build for it: upgrade the kernel ({wish.manager} upgrade), restart, and run again"
        )
    return problems


def _fabric_fault(seen: dict[str, Any], wish: DriverWish) -> str:
    """A sentence when the node has NVSwitches and no fabric manager of the driver's version can be had."""
    target = _target(seen, wish)
    if not wish.fabric or any(upstream(version) == target for version in seen["available"].get(wish.fabric, [])):
        return ""
    offered = ", ".join(seen["available"].get(wish.fabric, [])) or "none"
    return (
        f"{wish.fabric}: expected the fabric manager in the driver's version {target}, since this node has NVSwitches, the package "
        f"sources offer {offered}: name a version that both have in gpu_driver_version, or a source that has it"
    )


def _first(wish: DriverWish) -> str:
    return wish.packages[0] if wish.packages else "nvidia-driver"
