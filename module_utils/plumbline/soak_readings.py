"""What a soak reads of a node at one moment: memory, the engine's processes, GPUs, temperatures, links and error counters.

Runs on the node, standard library only. Whatever cannot be read is left out, never zero.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .edac import edac_facts
from .nvidia_smi import normalise_address
from .tree import Tree

_KIB = 1024
_NODE_FIELDS = ("AnonPages", "Mapped", "MemAvailable", "Shmem", "SUnreclaim", "SwapFree")
_LINE = re.compile(r"^(\w+):\s+([0-9]+) kB", re.MULTILINE)
_GPU_FIELDS = (
    "pci.bus_id",
    "memory.used",
    "temperature.gpu",
    "ecc.errors.uncorrected.volatile.total",
    "ecc.errors.corrected.volatile.total",
    "pcie.link.gen.current",
    "pcie.link.width.current",
)
_GPU_NAMES = ("address", "memory_bytes", "celsius", "ecc_uncorrected", "ecc_corrected", "generation", "width")
_PATIENCE_SECONDS = 30
_ACCELERATORS_AND_NICS = ("0x03", "0x02", "0x12", "0x0108")
_MOST_CELSIUS = 150.0  # hwmon drivers show 255 or 65261 for a sensor that is not there


def node_memory(tree: Tree) -> dict[str, int]:
    """Bytes by the names of /proc/meminfo."""
    found = {name: int(value) * _KIB for name, value in _LINE.findall(tree.text("/proc/meminfo") or "")}
    return {name: found[name] for name in _NODE_FIELDS if name in found}


def boot_identity(tree: Tree) -> str:
    """Changes with each start of the machine, or of the container."""
    return f"{tree.text('/proc/sys/kernel/random/boot_id') or ''}/{started(tree, 1)}"


def started(tree: Tree, process: int) -> str:
    """When a process began, in clock ticks since boot; empty where there is none."""
    fields = (tree.text(f"/proc/{process}/stat") or "").rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 else ""


def engine_processes(tree: Tree, unit: str) -> tuple[str, list[int]]:
    """Identity of the engine's start (empty: it does not run) and its processes, from systemd and the unit's control group."""
    try:
        done = subprocess.run(
            ["systemctl", "show", "--property=MainPID,ControlGroup", unit],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return "", []
    said = dict(line.partition("=")[::2] for line in done.stdout.splitlines())
    main = int(said.get("MainPID") or 0) if (said.get("MainPID") or "0").isdigit() else 0
    if not main:
        return "", []
    found = {main, *_of_group(tree, said.get("ControlGroup", ""))}
    return f"{main}/{started(tree, main)}", sorted(found if len(found) > 1 else {main, *_descendants(tree, main)})


def _descendants(tree: Tree, process: int) -> Iterator[int]:
    """Processes below one, where the control group cannot be seen."""
    children: dict[int, list[int]] = {}
    for name in tree.names("/proc"):
        if name.isdigit():
            fields = (tree.text(f"/proc/{name}/stat") or "").rpartition(")")[2].split()
            if len(fields) > 1:
                children.setdefault(int(fields[1]), []).append(int(name))
    waiting = [process]
    while waiting:
        below = children.pop(waiting.pop(), [])
        waiting += below
        yield from below


def _of_group(tree: Tree, group: str) -> Iterator[int]:
    if not group.strip("/"):
        return
    for hierarchy in ("", "/systemd", "/unified"):
        top = tree.path(f"/sys/fs/cgroup{hierarchy}{group}")
        for folder, _below, _files in os.walk(top):
            try:
                text = (Path(folder) / "cgroup.procs").read_text(encoding="ascii")
            except (OSError, ValueError):
                continue
            yield from (int(word) for word in text.split() if word.isdigit() and word != "0")


def process_memory(tree: Tree, processes: list[int]) -> dict[str, int]:
    """Resident bytes of processes together: all (`rss`, shared pages counted in each), `anonymous` and `shared` memory."""
    total: dict[str, int] = {}
    for process in processes:
        fields = dict(_LINE.findall(tree.text(f"/proc/{process}/status") or ""))
        if "VmRSS" not in fields:
            continue  # it ended just now
        total["count"] = total.get("count", 0) + 1
        for name, field in (("rss", "VmRSS"), ("anonymous", "RssAnon"), ("shared", "RssShmem"), ("swap", "VmSwap")):
            if field in fields:
                total[name] = total.get(name, 0) + int(fields[field]) * _KIB
    return total


def proportional_memory(tree: Tree, processes: list[int]) -> tuple[int | None, float]:
    """The proportional set size of processes together in bytes, None where one of them does not tell, and the seconds that asking took.

    The kernel walks all page tables of a process for it: seconds for hundreds of GB, in which the process cannot map memory.
    """
    begun, total = time.monotonic(), 0
    for process in processes:
        text = tree.text(f"/proc/{process}/smaps_rollup")
        found = dict(_LINE.findall(text or ""))
        if "Pss" not in found:
            if tree.exists(f"/proc/{process}") and text is None:
                return None, time.monotonic() - begun
            continue
        total += int(found["Pss"]) * _KIB
    return total or None, time.monotonic() - begun


def gpus(text: str | None = None) -> list[dict[str, Any]]:
    """Memory, temperature, ECC counters and link of each GPU, as `nvidia-smi --query-gpu` prints them (or the given text)."""
    if text is None:
        query = [f"--query-gpu={','.join(_GPU_FIELDS)}", "--format=csv,noheader,nounits"]
        try:
            text = subprocess.run(
                ["nvidia-smi", *query],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_PATIENCE_SECONDS,
                check=False,
            ).stdout
        except (OSError, subprocess.SubprocessError):
            return []
    found = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(_GPU_FIELDS) or ":" not in cells[0]:
            continue
        gpu: dict[str, Any] = {"address": normalise_address(cells[0])}
        for name, cell in zip(_GPU_NAMES[1:], cells[1:]):
            if re.fullmatch(r"[0-9]{1,15}", cell):
                gpu[name] = int(cell) * (1024 * 1024 if name == "memory_bytes" else 1)
        found.append(gpu)
    return found


def temperatures(tree: Tree) -> dict[str, dict[str, float]]:
    """Degrees Celsius by sensor of the kernel's hwmon drivers, with the critical temperature where the sensor has one."""
    found: dict[str, dict[str, float]] = {}
    for device in tree.names("/sys/class/hwmon"):
        base = f"/sys/class/hwmon/{device}"
        chip = tree.text(f"{base}/name") or device
        for name in tree.names(base):
            match = re.fullmatch(r"(temp[0-9]+)_input", name)
            value = tree.integer(f"{base}/{name}") if match else None
            if match is None or value is None or not 0 < value / 1000 < _MOST_CELSIUS:
                continue
            label = tree.text(f"{base}/{match[1]}_label") or match[1]
            critical = tree.integer(f"{base}/{match[1]}_crit")
            reading = {"celsius": value / 1000}
            if critical is not None and 0 < critical / 1000 < _MOST_CELSIUS:
                reading["critical_celsius"] = critical / 1000
            found[f"{chip} {label} ({device})"] = reading
    return found


def links(tree: Tree) -> dict[str, list[float]]:
    """Speed in GT/s and width in lanes by PCI address, of GPUs, NICs and NVMe drives."""
    found = {}
    base = "/sys/bus/pci/devices"
    for address in tree.names(base):
        if not (tree.text(f"{base}/{address}/class") or "").startswith(_ACCELERATORS_AND_NICS):
            continue
        speed = re.match(r"([0-9.]+) GT/s", tree.text(f"{base}/{address}/current_link_speed") or "")
        width = tree.integer(f"{base}/{address}/current_link_width")
        if speed and width and 0 < width <= 32:
            found[address] = [float(speed[1]), float(width)]
    return found


def memory_errors(tree: Tree) -> dict[str, int]:
    """Corrected and uncorrected errors that the memory controllers have counted, together; empty where none counts."""
    read = edac_facts(tree)
    if not read["available"]:
        return {}
    return {
        kind: sum(controller[kind] or 0 for controller in read["controllers"])
        for kind in ("correctable", "uncorrectable")
    }
