"""Which CPUs and memory nodes a serving unit keeps to, and whether its processes do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .kernel_slice import divide
from .kernel_wish import KernelError
from .sockets import unit_of
from .tree import Tree, format_cpu_list, parse_cpu_list

_INDEX = re.compile(r"[0-9]+")


class BindingError(Exception):
    """The wish cannot be met on this machine; the message is the sentence for the user."""


@dataclass(frozen=True)
class Wish:
    """What the inventory says: `auto`, `all` or a list of NUMA nodes, the GPUs that count, and the CPUs that are kept for housekeeping."""

    nodes: str = "auto"
    gpus: Sequence[str] = ()
    visible_devices: str = ""
    gpu_count: int = 0
    housekeeping_cpus: str = ""
    housekeeping_cores_per_node: int = 0


@dataclass(frozen=True)
class Binding:
    """Lists in the kernel's form; empty ones bind nothing. *reason* says why it is so."""

    cpus: str = ""
    memory_nodes: str = ""
    reason: str = ""

    def as_dict(self) -> dict[str, str]:
        """Return it for a module's answer."""
        return {"cpus": self.cpus, "memory_nodes": self.memory_nodes, "reason": self.reason}


def used_gpus(wish: Wish) -> list[str]:
    """Return the GPUs that the engine will use: those that CUDA_VISIBLE_DEVICES numbers, of these as many as it wants.

    vLLM takes the first ones; CUDA numbers GPUs of one kind by their PCI address. Names (UUIDs) cannot be told apart here: all count then.
    """
    gpus = sorted(wish.gpus)
    named = [word.strip() for word in wish.visible_devices.split(",") if word.strip()]
    if named and not all(_INDEX.fullmatch(word) and int(word) < len(gpus) for word in named):
        return gpus
    chosen = [gpus[int(word)] for word in named] if named else gpus
    return chosen[: wish.gpu_count] if 0 < wish.gpu_count <= len(chosen) else chosen


def bind(tree: Tree, wish: Wish) -> Binding:
    """Return what the unit is bound to.

    :raises BindingError: for nodes that the machine has not, and where the reserved CPUs leave none.
    """
    nodes, reason = _nodes(tree, wish)
    housekeeping = (
        {"housekeeping_cpus": wish.housekeeping_cpus}
        if wish.housekeeping_cpus
        else {"housekeeping_cores_per_node": str(wish.housekeeping_cores_per_node)}
    )
    try:
        division = divide(tree, {"numa_nodes": nodes, **housekeeping})
    except KernelError as error:
        told = str(error).removeprefix("slice: ")
        raise BindingError(told.replace("correct kernel_slice", "correct serving_numa_nodes")) from error
    if division.housekeeping:
        reason += f", without the CPUs {format_cpu_list(division.housekeeping)} that are kept for housekeeping"
    return Binding(format_cpu_list(division.cpus), format_cpu_list(division.memory_nodes), reason)


def _nodes(tree: Tree, wish: Wish) -> tuple[str, str]:
    if wish.nodes == "all":
        return "all", "all NUMA nodes, as asked for"
    if wish.nodes != "auto":
        return wish.nodes, f"NUMA node {wish.nodes}, as asked for"
    gpus = used_gpus(wish)
    if not gpus:
        return "all", "all NUMA nodes, for the engine computes on the CPUs"
    found = {gpu: tree.integer(f"/sys/bus/pci/devices/{gpu}/numa_node") for gpu in gpus}
    unknown = [gpu for gpu, node in found.items() if node is None or node < 0]
    if unknown:
        return "all", f"all NUMA nodes, for the firmware does not say which one the GPU {unknown[0]} hangs on"
    nodes = sorted({node for node in found.values() if node is not None})
    if not all(parse_cpu_list(tree.text(f"/sys/devices/system/node/node{node}/cpulist")) for node in nodes):
        return "all", f"all NUMA nodes, for the GPUs' node {format_cpu_list(nodes)} has no CPUs"
    return format_cpu_list(nodes), f"NUMA node {format_cpu_list(nodes)}, on which {', '.join(gpus)} hang"


@dataclass
class Processes:
    """What the processes of a unit may use, and who runs as its user outside of it."""

    pids: list[int] = field(default_factory=list)
    cpus: set[int] = field(default_factory=set)
    memory_nodes: set[int] = field(default_factory=set)
    strays: list[str] = field(default_factory=list)


def processes(root: Path, units: Sequence[str], uid: int | None) -> Processes:
    """Look at every process below *root*: those of the first unit, and those of the user that are in none of the units."""
    found = Processes()
    for directory in (root / "proc").iterdir():
        if not directory.name.isdigit():
            continue
        try:
            unit = unit_of((directory / "cgroup").read_text(encoding="utf-8", errors="replace"))
            if unit == units[0]:
                found.pids.append(int(directory.name))
                _threads(directory, found)
            elif uid is not None and unit not in units and directory.stat().st_uid == uid:
                command = (
                    (directory / "cmdline").read_text(encoding="utf-8", errors="replace").replace("\0", " ").strip()
                )
                found.strays.append(f"{directory.name} ({command[:80] or 'ending'})")
        except OSError:
            continue  # it ended meanwhile
    return found


def _threads(directory: Path, found: Processes) -> None:
    for thread in (directory / "task").iterdir():
        text = (thread / "status").read_text(encoding="utf-8", errors="replace")
        for line in text.splitlines():
            name, _, value = line.partition(":")
            if name == "Cpus_allowed_list":
                found.cpus.update(parse_cpu_list(value))
            elif name == "Mems_allowed_list":
                found.memory_nodes.update(parse_cpu_list(value))


def judge_allowed(allowed: set[int], wanted: str) -> str:
    """Return what to report beside *wanted*: the same where every thread keeps to it, else what they may use."""
    return wanted if allowed and allowed <= set(parse_cpu_list(wanted)) else format_cpu_list(sorted(allowed)) or "none"


def bound(name: str, unit: str, allowed: set[int], wanted: str, obstacle: tuple[str, str]) -> dict[str, Any]:
    """Return the measurement of one binding.

    The obstacle is why systemd could not set it, empty where it can, and the container that this is, empty where it is none.
    """
    unsettable, container = obstacle
    entry: dict[str, Any] = {"name": name, "scope": unit, "expected": wanted, "value": judge_allowed(allowed, wanted)}
    if entry["value"] == wanted:
        return entry
    if unsettable and container:
        return {**entry, "value": None, "skipped": f"{container}: {unsettable}"}
    entry["cause"] = (
        unsettable or "somebody set it since (systemctl set-property leaves a drop-in), or the slice allows other ones"
    )
    entry["next_command"] = (
        f"systemctl show {unit} -p AllowedCPUs,AllowedMemoryNodes,EffectiveCPUs,EffectiveMemoryNodes,Slice"
    )
    return entry
