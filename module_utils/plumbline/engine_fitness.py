"""Can this machine run that engine? Facts against requirements, each mismatch a sentence with its remedy."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .version_compare import compare_versions

_GIB = 1 << 30
_PROBE = (
    "import json, platform, sys; "
    "print(json.dumps([platform.python_implementation(), platform.python_version(), 'cp%d%d' % sys.version_info[:2]]))"
)


def machine_facts(python_executable: str, path: str, root: str = "/") -> dict[str, Any]:
    """What the engine's fitness depends on: Python, C library, processor flags, driver and free disk (bytes)."""
    implementation, version, tag, error = _python(python_executable) if python_executable else ("", "", "", "")
    return {
        "architecture": platform.machine(),
        "python_executable": python_executable,
        "python_implementation": implementation,
        "python_version": version,
        "python_tag": tag,
        "python_error": error,
        "glibc_version": _glibc(),
        "cpu_flags": _cpu_flags(Path(root)),
        "nvidia_driver_version": (driver := _driver(Path(root))),
        "nvidia_devices": sorted(path.name for path in (Path(root) / "dev").glob("nvidia[0-9]*")),
        "compute_capabilities": _compute_capabilities() if driver and root == "/" else [],
        "free_bytes": free_bytes(path),
    }


def free_bytes(path: str) -> int:
    """Bytes that an unprivileged writer could still put at a path that need not exist yet."""
    place = Path(path)
    while not place.exists() and place != place.parent:
        place = place.parent
    state = os.statvfs(place)
    return state.f_bavail * state.f_frsize


def problems(facts: dict[str, Any], needs: dict[str, Any], name: str, path: str) -> list[str]:
    """Return one sentence for each reason why the engine `name` cannot run on a machine with these facts.

    `needs` may hold architectures, python_tags, glibc, cpu_flags, nvidia_driver, compute_capability and disk_bytes; what is absent is not
    asked for.
    """
    sentences = []
    if facts["architecture"] not in needs.get("architectures", [facts["architecture"]]):
        sentences.append(
            f"The engine {name} is locked for {_either(needs['architectures'])}, this machine is {facts['architecture']}: "
            "make a lock for it with tools/lock-engine, or take the machine out of the group."
        )
    sentences += _python_problems(facts, needs, name)
    glibc = needs.get("glibc")
    if glibc and not facts["glibc_version"]:
        sentences.append(
            f"The engine {name} needs glibc {glibc} or newer, this machine's C library is another one: use a distribution with glibc."
        )
    elif glibc and compare_versions(facts["glibc_version"], glibc) < 0:
        sentences.append(
            f"The engine {name} needs glibc {glibc} or newer, this machine has {facts['glibc_version']}: "
            "upgrade the distribution (Debian 12, Ubuntu 22.04 and Enterprise Linux 9 are new enough)."
        )
    missing = sorted(set(needs.get("cpu_flags", [])) - set(facts["cpu_flags"]))
    if missing:
        sentences.append(
            f"The engine {name} needs the processor flags {', '.join(needs['cpu_flags'])}, this machine lacks {', '.join(missing)}: "
            "a virtual machine gets them from its host with the CPU model host-passthrough; an older processor cannot run it."
        )
    sentences += gpu_problems(facts, needs, name)
    disk = needs.get("disk_bytes", 0)
    if facts["free_bytes"] < disk:
        sentences.append(
            f"The engine {name} needs {disk / _GIB:.1f} GiB free at {path}, {facts['free_bytes'] / _GIB:.1f} GiB are: "
            "free some, or set engine_root to a larger file system."
        )
    return sentences


def _python_problems(facts: dict[str, Any], needs: dict[str, Any], name: str) -> list[str]:
    if not facts["python_executable"]:
        return []  # the engine brings its own
    if facts["python_error"]:
        return [
            f"The engine {name} needs the Python at {facts['python_executable']}, which does not run ({facts['python_error']}): "
            "install it, or name another in engine_python_executable."
        ]
    if facts["python_implementation"] != "CPython":
        return [
            f"The engine {name} needs CPython, {facts['python_executable']} is {facts['python_implementation']}: "
            "name a CPython in engine_python_executable."
        ]
    tags = needs.get("python_tags")
    if tags is not None and facts["python_tag"] not in tags:
        return [
            f"The engine {name} has locks for {_either(tags)}, {facts['python_executable']} is Python {facts['python_version']} "
            f"({facts['python_tag']}): name another Python in engine_python_executable, or make its lock with tools/lock-engine."
        ]
    return []


def gpu_problems(facts: Mapping[str, Any], needs: Mapping[str, Any], name: str) -> list[str]:
    """One sentence for each reason why the engine `name` does not run on this machine's GPUs and their driver."""
    wanted = needs.get("nvidia_driver")
    if not wanted:
        return []
    found = facts["nvidia_driver_version"]
    if not found:
        return [
            f"The engine {name} needs the NVIDIA driver {wanted} or newer, none is loaded: "
            "run the stages gpu_driver and restart first, or set engine_kind: cpu."
        ]
    if compare_versions(found, wanted) < 0:
        return [
            f"The engine {name} needs the NVIDIA driver {wanted} or newer, {found} is loaded: "
            "raise the version of the stage gpu_driver, or set engine_kind: cpu."
        ]
    oldest = needs.get("compute_capability")
    too_old = [
        capability
        for capability in facts["compute_capabilities"]
        if oldest and compare_versions(capability, oldest) < 0
    ]
    if too_old:
        return [
            f"The engine {name} needs GPUs of compute capability {oldest} or newer, this machine has one of {too_old[0]}: "
            "hide it (CUDA_VISIBLE_DEVICES), or set engine_kind: cpu."
        ]
    return []


def _python(executable: str) -> tuple[str, str, str, str]:
    try:
        done = subprocess.run(
            [executable, "-I", "-c", _PROBE],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=60,
            check=True,
            stdin=subprocess.DEVNULL,
        )
    except FileNotFoundError:
        return "", "", "", "no such file"
    except subprocess.CalledProcessError as error:
        return "", "", "", f"exit status {error.returncode}"
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", "", "", str(error)
    match = re.search(r'\["([^"]*)", "([^"]*)", "([^"]*)"\]', done.stdout)
    if match is None:
        return "", "", "", "it did not say its version"
    return match[1], match[2], match[3], ""


def _glibc() -> str:
    try:
        text = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):
        return ""
    return text.partition(" ")[2]


def _cpu_flags(root: Path) -> list[str]:
    try:
        text = (root / "proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    match = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", text, re.MULTILINE)
    return sorted(match[1].split()) if match else []


def _driver(root: Path) -> str:
    try:
        return (root / "sys/module/nvidia/version").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _compute_capabilities() -> list[str]:
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=60,
            check=True,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return sorted(set(re.findall(r"^\d+\.\d+$", done.stdout, re.MULTILINE)))


def _either(names: list[str]) -> str:
    return " or ".join(names) if names else "nothing"
