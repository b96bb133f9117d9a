"""Where to measure memory bandwidth: processors by NUMA node, caches that arrays must exceed, memory that may be used."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from .loose import mappings, number, words
from .node import numa_nodes
from .tree import Tree, parse_cpu_list

_CPU = "/sys/devices/system/cpu"
_KIB = 1024
_MIB = 1 << 20
ARRAY_OVER_CACHE = 4
"""Arrays are this many times the last-level caches of the processors that work on them, as STREAM wants it."""
ARRAYS = 3
# Small machines: below this, the overhead of starting and joining threads shows.
_ARRAY_BYTES_MIN = 64 * _MIB
# What is left to the rest of the machine.
_SHARE_OF_FREE_MEMORY = 0.5
# Assumed per processor where the kernel does not tell the caches (as on some ARM systems).
_CACHE_BYTES_UNKNOWN = 4 * _MIB


@dataclass
class Group:
    """Processors that measure together and the array size for them."""

    scope: str
    nodes: list[int]
    cpus: list[int]
    cache_bytes: int
    cache_known: bool
    array_bytes: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def array_over_cache(self) -> float:
        """How many times the caches one array is."""
        return round(self.array_bytes / self.cache_bytes, 2)


@dataclass
class Plan:
    """Each NUMA node with processors, all of them together, and nodes that have memory only."""

    groups: list[Group]
    whole: Group
    memory_only: list[int]
    packages: dict[int, int]


def plan(tree: Tree, allowed: set[int] | None = None) -> Plan:
    """Plan for the processors that this process may use (`allowed`: for tests)."""
    usable = allowed if allowed is not None else os.sched_getaffinity(0)
    facts = numa_nodes(tree)
    groups, memory_only = [], []
    for node in facts:
        cpus = _one_thread_per_core(tree, [cpu for cpu in parse_cpu_list(node["cpus"]) if cpu in usable])
        if cpus:
            groups.append(_group(tree, f"numa{node['node']}", [node["node"]], cpus))
        elif node["memory_total_bytes"] and not node["cpu_count"]:
            memory_only.append(node["node"])
    everything = [cpu for group in groups for cpu in group.cpus]
    whole = _group(tree, "node", [number for group in groups for number in group.nodes], everything)
    free = free_memory(tree)
    by_node = {node["node"]: node["memory_free_bytes"] for node in facts}
    for group in groups:
        # The page cache gives way to arrays, so a node's own free memory binds only where there are several.
        room = min(free, by_node.get(group.nodes[0], free)) if len(groups) > 1 else free
        _size(group, room)
    _size(whole, free)
    return Plan(groups, whole, memory_only, {group.nodes[0]: _package(tree, group.cpus[0]) for group in groups})


def _group(tree: Tree, scope: str, nodes: list[int], cpus: list[int]) -> Group:
    cache = last_level_cache_bytes(tree, cpus)
    return Group(scope, nodes, cpus, cache or _CACHE_BYTES_UNKNOWN * max(1, len(cpus)), cache > 0)


def _size(group: Group, room: int) -> None:
    wanted = max(_ARRAY_BYTES_MIN, ARRAY_OVER_CACHE * group.cache_bytes)
    most = int(room * _SHARE_OF_FREE_MEMORY / ARRAYS)
    group.array_bytes = min(wanted, most) // _MIB * _MIB
    if group.array_bytes < wanted:
        group.notes.append(
            f"free memory allows arrays of {group.array_bytes // _MIB} MiB only, {group.array_over_cache:g} times the "
            f"last-level caches in place of {ARRAY_OVER_CACHE}"
        )
    if not group.cache_known:
        group.notes.append("the kernel does not tell the caches: 4 MiB a processor were assumed")


def _one_thread_per_core(tree: Tree, cpus: list[int]) -> list[int]:
    """The first usable thread of each core: a second one shares its core's way to memory and only disturbs."""
    chosen, seen = [], set()
    for cpu in cpus:
        siblings = tree.text(f"{_CPU}/cpu{cpu}/topology/thread_siblings_list") or str(cpu)
        if siblings not in seen:
            seen.add(siblings)
            chosen.append(cpu)
    return chosen


def last_level_cache_bytes(tree: Tree, cpus: list[int]) -> int:
    """Sum of the last-level caches that these processors use, 0 when the kernel does not tell."""
    caches: dict[str, int] = {}
    for cpu in cpus:
        base = f"{_CPU}/cpu{cpu}/cache"
        best = (0, "", 0)
        for name in tree.names(base):
            level, kind = tree.integer(f"{base}/{name}/level"), tree.text(f"{base}/{name}/type")
            size = tree.text(f"{base}/{name}/size") or ""
            if level is None or kind == "Instruction" or not size[:-1].isdigit():
                continue
            size_bytes = int(size[:-1]) * {"K": _KIB, "M": _MIB}.get(size[-1], 0)
            best = max(best, (level, tree.text(f"{base}/{name}/shared_cpu_list") or str(cpu), size_bytes))
        if best[0]:
            caches[best[1]] = best[2]
    return sum(caches.values())


def free_memory(tree: Tree) -> int:
    """Bytes that can be used without swapping, within the control group's limit."""
    available = _field(tree.text("/proc/meminfo"), "MemAvailable") or 0
    for limit_file, usage_file in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        limit, usage = tree.integer(limit_file), tree.integer(usage_file)
        if limit is not None and usage is not None:
            available = min(available, max(0, limit - usage))
    return available


def cpu_quota(tree: Tree) -> float | None:
    """Processors' worth of time that the control group may use, `None` without a quota."""
    words = (tree.text("/sys/fs/cgroup/cpu.max") or "").split()
    if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]):
        return int(words[0]) / int(words[1])
    quota, period = (
        tree.integer("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"),
        tree.integer("/sys/fs/cgroup/cpu/cpu.cfs_period_us"),
    )
    return quota / period if quota and period and quota > 0 else None


def _field(text: str | None, name: str) -> int | None:
    for line in (text or "").splitlines():
        key, _, value = line.partition(":")
        words = value.split()
        if key == name and words and words[0].isdigit():
            return int(words[0]) * _KIB
    return None


def _package(tree: Tree, cpu: int) -> int:
    package = tree.integer(f"{_CPU}/cpu{cpu}/topology/physical_package_id")
    return package if package is not None and package >= 0 else 0


def node_limits(packages: dict[int, int], dimm: dict[str, Any] | None) -> dict[str, tuple[float, str]]:
    """Limit in B/s and its source by scope (`node`, `numa0`...), from what `dimm_info` returned; what is unknown is left out."""
    limits: dict[str, tuple[float, str]] = {}
    if not dimm or not dimm.get("available"):
        return limits
    whole = number(dimm.get("bandwidth_bytes_per_second"))
    if whole:
        limits["node"] = (whole, words(dimm.get("bandwidth_source")) or "DIMMs (SMBIOS)")
    order = sorted(set(packages.values()))
    sockets = mappings(dimm.get("sockets"))
    if len(order) != len(sockets):
        return limits
    for node, package in packages.items():
        socket = sockets[order.index(package)]
        share = sum(other == package for other in packages.values())
        bandwidth = number(socket.get("bandwidth_bytes_per_second"))
        if bandwidth:
            source = words(socket.get("bandwidth_source")) or "DIMMs (SMBIOS)"
            limits[f"numa{node}"] = (
                bandwidth / share,
                source + (f", shared by {share} NUMA nodes" if share > 1 else ""),
            )
    return limits
