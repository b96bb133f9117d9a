"""The slice that inference runs in: which CPUs, memory nodes and how much memory; what is left for housekeeping."""

from __future__ import annotations

from dataclasses import dataclass

from .kernel_files import FileWish
from .kernel_parts import Command, Context, Part, measured, row
from .kernel_wish import KernelError
from .node import cgroup_version
from .tree import Tree, format_cpu_list, parse_cpu_list

SLICE = "plumbline.slice"
UNIT = f"/etc/systemd/system/{SLICE}"
_WANTED_BY = f"/etc/systemd/system/multi-user.target.wants/{SLICE}"
# What is confined to the housekeeping CPUs, where that is wished.
_OTHERS = ("system.slice", "user.slice", "init.scope")
_CGROUP = f"/sys/fs/cgroup/{SLICE}"
_HEADER = "# Managed by Plumbline (role kernel): change the inventory, not this file.\n"
_KIB = 1024
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
# systemd rounds to pages, and takes the memory as it was when it started.
_TOLERANCE = 0.01


@dataclass(frozen=True)
class Division:
    """CPUs and memory nodes of the slice, and the CPUs that are left; empty lists mean: no limit."""

    cpus: list[int]
    memory_nodes: list[int]
    housekeeping: list[int]


def divide(tree: Tree, wanted: dict[str, str]) -> Division:
    """Which CPUs the slice gets. Raises KernelError when the machine cannot be divided so."""
    nodes = _nodes(tree)
    chosen = sorted(nodes)
    if wanted.get("numa_nodes", "all") != "all":
        chosen = parse_cpu_list(wanted["numa_nodes"])
        strange = [node for node in chosen if node not in nodes]
        if strange or not chosen:
            raise KernelError(
                f"slice.numa_nodes: expected some of the NUMA nodes {format_cpu_list(sorted(nodes))}, found "
                f"{wanted['numa_nodes']!r}: correct kernel_slice"
            )
    every = sorted(cpu for cpus in nodes.values() for cpu in cpus)
    housekeeping = _housekeeping(tree, wanted, nodes)
    strange = [cpu for cpu in housekeeping if cpu not in every]
    if strange:
        raise KernelError(
            f"slice.housekeeping_cpus: expected CPUs among {format_cpu_list(every)} (online), found "
            f"{format_cpu_list(strange)}: correct kernel_housekeeping_cpus"
        )
    cpus = sorted(cpu for node in chosen for cpu in nodes[node] if cpu not in housekeeping)
    empty = [node for node in chosen if nodes[node] and not set(nodes[node]) - set(housekeeping)]
    if not cpus or empty:
        raise KernelError(
            f"slice: expected CPUs to be left for inference on every NUMA node, found none of "
            f"{format_cpu_list(every)} left{' on node ' + format_cpu_list(empty) if cpus else ''} when "
            f"{format_cpu_list(housekeeping)} keep house: reserve fewer"
        )
    if len(cpus) == len(every):
        return Division([], [], [])
    with_memory = parse_cpu_list(tree.text("/sys/devices/system/node/has_memory"))
    memory_nodes = [node for node in chosen if not with_memory or node in with_memory]
    return Division(cpus, memory_nodes if len(chosen) < len(nodes) else [], housekeeping)


def plan_slice(context: Context) -> Part:
    """The part `slice`."""
    part = Part("slice")
    tree, wanted = context.tree, context.wanted("slice")
    confine = wanted.get("confine_system") == "yes"
    # Flags, the count 0 and "all" alone ask for nothing.
    is_wished = any(value not in ("no", "yes", "0", "all", "infinity") for value in wanted.values())
    if is_wished and not tree.exists("/run/systemd/system"):
        reason = "systemd does not run here, so there are no slices"
        part.rows = [row("slice", "skipped", (SLICE, ""), reason)]
        part.measurements = [measured("slice", SLICE, skipped=reason)]
        return part
    division = divide(tree, wanted) if is_wished else Division([], [], [])
    if confine and is_wished and not division.housekeeping:
        raise KernelError(
            "slice.confine_system: expected housekeeping CPUs to confine the rest of the system to, found none: set "
            "kernel_housekeeping_cpus or kernel_housekeeping_cores_per_node, or leave it out"
        )
    limits = _limits(division, wanted)
    is_made = is_wished and bool(limits)
    part.files = [
        FileWish(UNIT, _unit(limits) if is_made else None),
        FileWish(_WANTED_BY, link=UNIT) if is_made else FileWish(_WANTED_BY),
    ]
    for name in _OTHERS:
        text = f"{_HEADER}[{'Scope' if name.endswith('.scope') else 'Slice'}]\nAllowedCPUs={format_cpu_list(division.housekeeping)}\n"
        part.files.append(
            FileWish(f"/etc/systemd/system/{name}.d/95-plumbline.conf", text if is_made and confine else None)
        )
    wrong = [wish for wish in part.files if not wish.is_right(tree)]
    reload = Command(["systemctl", "daemon-reload"], ["systemctl", "daemon-reload"])
    # daemon-reload is not harmless (containers with GPUs may lose them), so only when a unit has changed.
    if wrong and tree.exists("/run/systemd/system"):
        part.commands = [reload]
        # An active slice stays when its unit goes: stopping it would stop the engine that is in it. It loses its limits.
        if is_made:
            part.commands.append(Command(["systemctl", "start", SLICE]))
    if not is_made:
        part.rows = [row("slice", "changed", ("", SLICE), "no longer wished", UNIT)] if wrong else []
        return part
    before = "" if tree.text(UNIT) is None else SLICE
    told = ", ".join(f"{name}={value}" for name, value in limits.items())
    part.rows = [row("slice", "changed" if wrong else "ok", (told, before), "", UNIT)]
    part.measurements = _measurements(context, limits)
    if confine:
        part.measurements += [
            _reading(context, f"/sys/fs/cgroup/{name}", "cpuset.cpus", format_cpu_list(division.housekeeping))
            for name in _OTHERS
        ]
    return part


def _limits(division: Division, wanted: dict[str, str]) -> dict[str, str]:
    limits = {}
    if division.cpus:
        limits["AllowedCPUs"] = format_cpu_list(division.cpus)
    if division.memory_nodes:
        limits["AllowedMemoryNodes"] = format_cpu_list(division.memory_nodes)
    if wanted.get("memory_max", "infinity") != "infinity":
        limits["MemoryMax"] = wanted["memory_max"]
    return limits


def _unit(limits: dict[str, str]) -> str:
    return (
        f"{_HEADER}[Unit]\nDescription=Inference, on the CPUs and in the memory that are not kept for the rest of the system\n"
        "Before=slices.target\n\n[Slice]\n"
        + "".join(f"{name}={value}\n" for name, value in limits.items())
        + "\n[Install]\nWantedBy=multi-user.target\n"
    )


def _measurements(context: Context, limits: dict[str, str]) -> list[dict[str, object]]:
    files = {"AllowedCPUs": "cpuset.cpus", "AllowedMemoryNodes": "cpuset.mems", "MemoryMax": "memory.max"}
    return [_reading(context, _CGROUP, files[name], value) for name, value in limits.items()]


def _reading(context: Context, group: str, name: str, wanted: str) -> dict[str, object]:
    """What the control group really has beside what was wished."""
    tree = context.tree
    scope = f"{group.rpartition('/')[2]} {name}"
    version = cgroup_version(tree)
    if version != 2:
        told = f"the control groups are of layout {version}, where systemd does not set {name}"
        if context.container:
            return measured(scope, wanted, skipped=f"{context.container}: {told}")
        return measured(scope, wanted, error=f"{told}: boot with systemd.unified_cgroup_hierarchy=1 (kernel_arguments)")
    controllers = (tree.text("/sys/fs/cgroup/cgroup.controllers") or "").split()
    controller = name.partition(".")[0]
    if context.container and controller not in controllers:
        return measured(
            scope, wanted, skipped=f"{context.container}: the host hands it no control group controller {controller}"
        )
    found = tree.text(f"{group}/{name}")
    value = found if found is not None else "absent"
    if name == "memory.max" and value.isdigit():
        limit = _bytes(tree, wanted)
        is_near = limit > 0 and abs(int(value) - limit) <= limit * _TOLERANCE
        value = wanted if is_near else f"{value} bytes"
    elif name.startswith("cpuset.") and found:
        value = format_cpu_list(parse_cpu_list(found))
    return measured(
        scope,
        wanted,
        value=value or "no limit",
        cause=f"{SLICE} is not active, or the controller {controller} is not handed to it"
        if found is None
        else "somebody set it since (systemctl set-property leaves a drop-in), or systemd has not been reloaded",
        next_command=f"systemctl cat {SLICE}; systemctl status {SLICE}; cat {group}/{name}",
    )


def _bytes(tree: Tree, size: str) -> int:
    """A size as systemd takes it; a share is one of all memory, or of a container's limit."""
    if size.endswith("%"):
        limit = tree.integer("/sys/fs/cgroup/memory.max")
        for line in (tree.text("/proc/meminfo") or "").splitlines():
            if line.startswith("MemTotal:"):
                total = int(line.split()[1]) * _KIB
                return (min(total, limit) if limit else total) * int(size[:-1]) // 100
        return 0
    return int(size[:-1]) * _UNITS[size[-1]] if size[-1] in _UNITS else int(size)


def _nodes(tree: Tree) -> dict[int, list[int]]:
    """NUMA node -> its online CPUs; node 0 with all of them where the kernel knows no nodes."""
    base = "/sys/devices/system/node"
    nodes = {
        int(name[4:]): parse_cpu_list(tree.text(f"{base}/{name}/cpulist"))
        for name in tree.names(base)
        if name.startswith("node") and name[4:].isdigit()
    }
    return nodes or {0: parse_cpu_list(tree.text("/sys/devices/system/cpu/online"))}


def _housekeeping(tree: Tree, wanted: dict[str, str], nodes: dict[int, list[int]]) -> list[int]:
    if "housekeeping_cpus" in wanted:
        return parse_cpu_list(wanted["housekeeping_cpus"])
    found: set[int] = set()
    for cpus in nodes.values():
        cores: list[list[int]] = []
        for cpu in cpus:
            if not any(cpu in core for core in cores):
                beside = parse_cpu_list(tree.text(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"))
                cores.append([one for one in beside if one in cpus] or [cpu])
        for core in cores[: int(wanted.get("housekeeping_cores_per_node", "0"))]:
            found.update(core)
    return sorted(found)
