"""What a node says of its NVIDIA driver: files of the kernel, packages, and what the driver's own tools answer."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .distribution_packages import APT, available, headers_package, initramfs, installed
from .kernel_boot import next_kernel
from .node import nvidia_gpus
from .nvidia_smi import SmiError, parse_smi
from .nvidia_xid import find_xids
from .tree import Tree

# Runs a command; returns its exit status (127 where it does not exist), stdout and stderr.
Runner = Callable[[list[str]], "tuple[int, str, str]"]

MODPROBE = "/etc/modprobe.d/95-plumbline-nvidia.conf"
# efivarfs puts four bytes of attributes before the value.
_SECURE_BOOT = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
_PATIENCE_SECONDS = 90
_NVSWITCH_CLASS = 0x0680
_NVIDIA = 0x10DE
_DEVICES = "/sys/bus/pci/devices"
PERSISTENCE_SERVICE, FABRIC_SERVICE = "nvidia-persistenced", "nvidia-fabricmanager"
# DKMS's own, and Ubuntu's.
SIGNING_KEYS = ("/var/lib/dkms/mok.pub", "/var/lib/shim-signed/mok/MOK.der")
_LOADED = re.compile(r"Kernel Module(?:\s+for\s+\S+)?\s+(\d+(?:\.\d+)+)")
# Debian renames the module (nvidia-current), Ubuntu and Enterprise Linux do not.
_MODULE = re.compile(
    r"^(\S*/|)(nvidia(?:-current|-tesla|-tesla-\d+|-legacy-\w+)?(?:-open)?)\.ko(?:\.\w+)?:", re.MULTILINE
)
# The driver calls these parameters of its module by another name in /proc/driver/nvidia/params.
_ALIASES = {"RestrictProfilingToAdminUsers": "RmProfilingAdminOnly"}


def observe(
    tree: Tree, run: Runner | None, packages: list[str], manager: str = APT, fabric_manager: str = "auto"
) -> dict[str, Any]:
    """Everything that can be seen; without *run* (a captured tree) what commands would say is empty.

    *manager* is how the distribution installs: `apt` or `dnf`. *fabric_manager* says whether its service is looked at.
    """
    kernel = next_kernel(tree)
    module_file, module_name = built_module(tree, kernel)
    headers = headers_package(manager, kernel)
    version_text = tree.text("/proc/driver/nvidia/version") or ""
    loaded = _LOADED.search(version_text)
    module_version, module_signer, parameters = _module(run, kernel, module_name) if module_name else ("", "", None)
    asked = [*packages, headers] if packages else []
    gpus, switches = nvidia_gpus(tree), _nvswitches(tree)
    with_fabric = wants_fabric_manager(fabric_manager, switches)
    return {
        "gpus": gpus,
        "gpu_devices": {address: tree.integer(f"{_DEVICES}/{address}/device") for address in gpus},
        "nvswitches": switches,
        "fabric_manager": _fabric_manager(run) if with_fabric else "",
        "services": _services(run, with_fabric) if gpus else {},
        "running_kernel": tree.text("/proc/sys/kernel/osrelease") or "",
        "next_kernel": kernel,
        "headers_package": headers,
        "headers_installed": tree.exists(f"/lib/modules/{kernel}/build/Makefile"),
        "secure_boot": secure_boot(tree),
        "signing_key": next((key for key in SIGNING_KEYS if tree.exists(key)), ""),
        "signing_key_enrolled": _key_enrolled(tree, run),
        "nouveau_loaded": tree.exists("/sys/module/nouveau"),
        "loaded_version": loaded.group(1) if loaded else tree.text("/sys/module/nvidia/version") or "",
        "loaded_open": "Open Kernel Module" in version_text,
        "loaded_parameters": driver_parameters(tree.text("/proc/driver/nvidia/params") or ""),
        "module_name": module_name,
        "module_file": module_file,
        "module_version": module_version,
        "module_signer": module_signer,
        "module_parameters": parameters,
        "packages": installed(run, manager, asked),
        "available": available(run, manager, asked),
    }


def wants_fabric_manager(choice: str, switches: list[str]) -> bool:
    """Whether the node needs the fabric manager: `always`, `never`, or by the NVSwitches on its PCI bus (`auto`)."""
    return choice == "always" or (choice == "auto" and bool(switches))


def ask_driver(run: Runner | None) -> dict[str, Any]:
    """What nvidia-smi answers (`smi`), or one sentence why it does not (`smi_problem`)."""
    if run is None:
        return {"smi": None, "smi_problem": "nvidia-smi is not run for a captured tree"}
    # A GPU whose system processor hangs keeps nvidia-smi waiting for minutes for each GPU.
    status, out, err = run(["timeout", "-k", "5", str(_PATIENCE_SECONDS), "nvidia-smi", "-q", "-x"])
    if status == 127:
        return {"smi": None, "smi_problem": "nvidia-smi is not installed"}
    if status in (124, 137):
        return {"smi": None, "smi_problem": f"nvidia-smi did not answer within {_PATIENCE_SECONDS} s"}
    try:
        return {"smi": parse_smi(out), "smi_problem": ""}
    except SmiError as error:
        said = next((line.strip() for line in (out + "\n" + err).splitlines() if line.strip()), "")
        told = f"nvidia-smi ended with status {status} ({said[:200]})" if status else str(error)
        return {"smi": None, "smi_problem": told}


def kernel_log(run: Runner | None) -> tuple[list[dict[str, Any]], str]:
    """The Xids since boot, and one sentence when no kernel log could be read."""
    if run is None:
        return [], "the kernel log is not read for a captured tree"
    faults = []
    for command in (["journalctl", "-k", "-b", "-o", "short-iso", "--no-pager", "-q"], ["dmesg"]):
        status, out, err = run(command)
        # A container's journal has no kernel messages: nothing there is no evidence of health.
        if status == 0 and out.strip():
            return find_xids(out), ""
        said = (err.strip().splitlines() or ["nothing in it"])[-1][:200] if status != 127 else "not installed"
        faults.append(f"{command[0]}: {said}")
    return [], f"the kernel log of this boot could not be read ({'; '.join(faults)})"


def built_module(tree: Tree, kernel: str) -> tuple[str, str]:
    """File and name of the driver's module for a kernel; one that DKMS or the site put there comes first."""
    text = tree.text(f"/lib/modules/{kernel}/modules.dep") or ""
    found = [(match.group(0)[:-1], match.group(2)) for match in _MODULE.finditer(text)]
    found.sort(key=lambda pair: not pair[0].startswith(("updates/", "extra/", "weak-updates/")))
    return (f"/lib/modules/{kernel}/{found[0][0]}", found[0][1]) if found else ("", "")


def secure_boot(tree: Tree) -> str:
    """`enabled`, `disabled`, `unsupported` (no UEFI) or `unknown`."""
    if not tree.exists("/sys/firmware/efi"):
        return "unsupported"
    raw = tree.raw(_SECURE_BOOT) or b""
    return {1: "enabled", 0: "disabled"}.get(raw[4], "unknown") if len(raw) == 5 else "unknown"


def driver_parameters(text: str) -> dict[str, str]:
    """The running driver's parameters, by the name that the module's options have without `NVreg_`."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            found[name.strip()] = value.strip().strip('"')
    for option, name in _ALIASES.items():
        if name in found:
            found.setdefault(option, found[name])
    return found


def same_value(wanted: str, found: str) -> bool:
    """Whether two parameters agree: numbers in any base, and -1 is the largest 32-bit number."""
    if wanted == found:
        return True
    try:
        return _kernel_number(wanted) == _kernel_number(found)
    except ValueError:
        return False


def _kernel_number(text: str) -> int:
    """A number as the kernel reads a parameter: 0x for hexadecimal, a leading 0 for octal. Raises ValueError."""
    return int(text, 8 if re.match(r"^0[0-7]+$", text) else 0) & 0xFFFFFFFF


def changed_since_boot(tree: Tree, paths: list[str]) -> bool:
    """Whether one of the files was written after the machine booted: the restart that activates it is still due."""
    for line in (tree.text("/proc/stat") or "").splitlines():
        if line.startswith("btime "):
            boot = int(line.split()[1])
            return any(_modified(tree, path) > boot for path in paths if path)
    return False


def initramfs_is_older(tree: Tree, kernel: str, manager: str = APT) -> bool:
    """Whether the initramfs of a kernel was made before Plumbline's modprobe file, and so holds none or an old one."""
    return tree.exists(MODPROBE) and 0 < _modified(tree, initramfs(manager, kernel)) < _modified(tree, MODPROBE)


def upstream(version: str) -> str:
    """NVIDIA's version within a package's: `1:535.261.03-1~deb12u1` is 535.261.03."""
    return re.split(r"[-~+]", version.partition(":")[2] or version)[0]


def matches(version: str, wanted: str) -> bool:
    """Whether a version is the wanted one, or of the wanted branch (535 takes 535.261.03)."""
    return not wanted or version == wanted or version.startswith(wanted + ".")


def _modified(tree: Tree, path: str) -> float:
    try:
        return Path(tree.path(path)).stat().st_mtime
    except OSError:
        return 0.0


def _nvswitches(tree: Tree) -> list[str]:
    return [
        address
        for address in tree.names(_DEVICES)
        if tree.integer(f"{_DEVICES}/{address}/vendor") == _NVIDIA
        and (tree.integer(f"{_DEVICES}/{address}/class") or 0) >> 8 == _NVSWITCH_CLASS
    ]


def _fabric_manager(run: Runner | None) -> str:
    """The fabric manager's own version; empty where there is none."""
    if run is None:
        return ""
    _, out, err = run(["timeout", "-k", "5", "20", "nv-fabricmanager", "--version"])
    found = re.search(r"Fabric Manager version is *:? *([0-9][0-9.]*)", out + err)
    return found.group(1) if found else ""


def _services(run: Runner | None, with_fabric: bool) -> dict[str, dict[str, str]]:
    """Service -> what systemctl says of it: `enabled` (enabled, disabled, not-found, ...) and `active`."""
    if run is None:
        return {}
    found = {}
    for name in [PERSISTENCE_SERVICE, *([FABRIC_SERVICE] if with_fabric else [])]:
        said = {verb: run(["systemctl", f"is-{verb}", name])[1].strip() for verb in ("enabled", "active")}
        found[name] = said
    return found


def _module(run: Runner | None, kernel: str, name: str) -> tuple[str, str, list[str] | None]:
    """Version, signer and parameter names of a module; `None` for parameters that could not be asked for."""
    if run is None:
        return "", "", None
    answers = [run(["modinfo", "-k", kernel, *what, name]) for what in (["-F", "version"], ["-F", "signer"], ["-p"])]
    parameters = None
    if answers[2][0] == 0:
        lines = answers[2][1].splitlines()
        parameters = sorted({line.partition(":")[0].strip() for line in lines if ":" in line})
    version, signer = (answer[1].strip() if answer[0] == 0 else "" for answer in answers[:2])
    return version, signer, parameters


def _key_enrolled(tree: Tree, run: Runner | None) -> bool:
    """Whether the firmware trusts the key that DKMS signs with on this machine."""
    for key in SIGNING_KEYS:
        if run and tree.exists(key):
            _, out, _ = run(["mokutil", "--test-key", key])
            if "already enrolled" in out:
                return True
    return False
