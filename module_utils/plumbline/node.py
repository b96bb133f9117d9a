"""What a machine says of itself in /proc and /sys: operating system, processors, NUMA, container, restarts."""

from __future__ import annotations

import os
import platform
import shlex
from typing import Any

from .device_names import device_names, dmi_ids
from .tree import Tree, format_cpu_list, parse_cpu_list

_NVIDIA = 0x10DE
# PCI class codes, upper 16 bits: VGA compatible controller, 3D controller.
_DISPLAY_CLASSES = (0x0300, 0x0302)
_KIB = 1024
# cgroup v1 says "no limit" with the largest multiple of the page size below 2^63.
_CGROUP_V1_UNLIMITED = 1 << 62
_PID1_STAT_START_TIME = 22

_HYPERVISORS_BY_DMI = (
    ("qemu", "qemu"),
    ("kvm", "kvm"),
    ("amazon ec2", "amazon"),
    ("google compute engine", "google"),
    ("google", "google"),
    ("vmware", "vmware"),
    ("virtualbox", "oracle"),
    ("innotek", "oracle"),
    ("xen", "xen"),
    ("bochs", "bochs"),
    ("parallels", "parallels"),
    ("bhyve", "bhyve"),
    ("openstack", "kvm"),
    ("alibaba cloud ecs", "kvm"),
)


def node_facts(root: str = "/") -> dict[str, Any]:
    """All facts of `node_info`; what the machine does not say is `None` or empty."""
    tree = Tree(root)
    cpuinfo = _cpuinfo(tree)
    container = container_type(tree)
    hypervisor = hypervisor_type(tree, cpuinfo)
    distribution, version = _distribution(tree)
    return {
        "system": os.uname().sysname if tree.is_live else tree.text("/proc/sys/kernel/ostype"),
        "hostname": tree.text("/proc/sys/kernel/hostname") or tree.text("/etc/hostname"),
        "architecture": os.uname().machine if tree.is_live else tree.text("/proc/sys/kernel/arch"),
        "python_version": platform.python_version(),
        "distribution": distribution,
        "distribution_version": version,
        "kernel_release": tree.text("/proc/sys/kernel/osrelease"),
        "kernel_cmdline": tree.text("/proc/cmdline"),
        "init": tree.text("/proc/1/comm"),
        "container": container is not None,
        "container_type": container,
        "hypervisor": hypervisor,
        "virtualization": container or hypervisor or "none",
        "boot_identity": boot_identity(tree),
        "cpu": _cpu(tree, cpuinfo),
        "numa_nodes": numa_nodes(tree),
        "memory_total_bytes": _meminfo(tree.text("/proc/meminfo"), "MemTotal"),
        "memory_limit_bytes": _memory_limit(tree),
        "cgroup_version": cgroup_version(tree),
        "gpus": nvidia_gpus(tree),
        "effective_user_id": os.geteuid() if tree.is_live else None,
        "dmi": dmi_ids(tree),
        "device_names": device_names(tree),
    }


def boot_identity(tree: Tree) -> str | None:
    """`BOOT_ID:START` of the machine; START is when PID 1 began, in clock ticks since the kernel booted.

    The boot id alone belongs to the kernel, so it stays the same when a container restarts; PID 1 does not.
    """
    boot_id = tree.text("/proc/sys/kernel/random/boot_id")
    stat = tree.text("/proc/1/stat")
    start = None
    if stat and ")" in stat:
        # Field 2 is the command in parentheses and may hold spaces: count from behind it, where field 3 begins.
        fields = stat[stat.rindex(")") + 1 :].split()
        if len(fields) > _PID1_STAT_START_TIME - 3:
            start = fields[_PID1_STAT_START_TIME - 3]
    if boot_id is None and start is None:
        return None
    return f"{boot_id or ''}:{start or ''}"


def container_type(tree: Tree) -> str | None:
    """`podman`, `docker`, `lxc`, `systemd-nspawn`, `container-other`... or `None` outside a container.

    The order is systemd's (`systemd-detect-virt --container`), then the control group of PID 1 for engines that leave
    no other mark.
    """
    if tree.exists("/proc/vz") and not tree.exists("/proc/bc"):
        return "openvz"
    told = tree.text("/run/systemd/container") or _environment_of_pid1(tree).get("container")
    if told and told not in ("oci", "none"):
        return told
    for file, name in (("/run/.containerenv", "podman"), ("/.dockerenv", "docker")):
        if tree.exists(file):
            return name
    groups = tree.text("/proc/1/cgroup") or ""
    for mark, name in (("libpod", "podman"), ("docker", "docker"), ("kubepods", "container-other"), ("/lxc/", "lxc")):
        if mark in groups:
            return name
    return "container-other" if told == "oci" else None


def hypervisor_type(tree: Tree, cpuinfo: dict[str, str] | None = None) -> str | None:
    """The hypervisor by its firmware's strings, `vm-other` when only the CPU tells, `None` on bare metal."""
    xen = tree.text("/sys/hypervisor/type")
    if xen:
        # The control domain of Xen runs on the bare machine's devices.
        return None if "control_d" in (tree.text("/proc/xen/capabilities") or "") else xen
    strings = " ".join(
        tree.text(f"/sys/class/dmi/id/{name}") or ""
        for name in ("product_name", "sys_vendor", "board_vendor", "bios_vendor")
    ).lower()
    under_hypervisor = "hypervisor" in (cpuinfo or {}).get("flags", "").split()
    for mark, name in _HYPERVISORS_BY_DMI:
        # "Google" and "Amazon EC2" also name bare metal there: on x86 the CPU must say so as well.
        if mark in strings and (under_hypervisor or not cpuinfo or "flags" not in cpuinfo):
            return name
    if "microsoft corporation" in strings and under_hypervisor:
        return "microsoft"
    return "vm-other" if under_hypervisor else None


def cgroup_version(tree: Tree) -> Any:
    """1, 2 or `hybrid` by what is mounted at /sys/fs/cgroup; `None` when nothing is."""
    at_root = None
    types: set[str] = set()
    for line in (tree.text("/proc/self/mounts") or tree.text("/proc/mounts") or "").splitlines():
        fields = line.split()
        if len(fields) < 3:
            continue
        if fields[1] == "/sys/fs/cgroup":
            at_root = fields[2]  # the last mount on top wins
            types = set()
        elif fields[1].startswith("/sys/fs/cgroup/") and fields[2] in ("cgroup", "cgroup2"):
            types.add(fields[2])
    if at_root == "cgroup2":
        return 2
    if types == {"cgroup", "cgroup2"}:
        return "hybrid"
    return 1 if "cgroup" in types else None


def numa_nodes(tree: Tree) -> list[dict[str, Any]]:
    """The NUMA nodes with their CPUs, memory and distances; one node with every CPU where the kernel knows none."""
    base = "/sys/devices/system/node"
    nodes = []
    for number in sorted(int(name[4:]) for name in tree.names(base) if name.startswith("node") and name[4:].isdigit()):
        directory = f"{base}/node{number}"
        cpus = parse_cpu_list(tree.text(f"{directory}/cpulist"))
        memory = tree.text(f"{directory}/meminfo")
        nodes.append(
            {
                "node": number,
                "cpus": format_cpu_list(cpus),
                "cpu_count": len(cpus),
                "memory_total_bytes": _meminfo(memory, "MemTotal") or 0,
                "memory_free_bytes": _meminfo(memory, "MemFree") or 0,
                "distances": [
                    int(word) for word in (tree.text(f"{directory}/distance") or "").split() if word.isdigit()
                ],
            }
        )
    if nodes:
        return nodes
    cpus = parse_cpu_list(tree.text("/sys/devices/system/cpu/online"))
    memory = tree.text("/proc/meminfo")
    return [
        {
            "node": 0,
            "cpus": format_cpu_list(cpus),
            "cpu_count": len(cpus),
            "memory_total_bytes": _meminfo(memory, "MemTotal") or 0,
            "memory_free_bytes": _meminfo(memory, "MemFree") or 0,
            "distances": [10],
        }
    ]


def nvidia_gpus(tree: Tree) -> list[str]:
    """PCI addresses of NVIDIA VGA and 3D controllers (an NVSwitch is a bridge, so it is not one)."""
    base = "/sys/bus/pci/devices"
    gpus = []
    for address in tree.names(base):
        if tree.integer(f"{base}/{address}/vendor") != _NVIDIA:
            continue
        class_code = tree.integer(f"{base}/{address}/class")
        if class_code is not None and class_code >> 8 in _DISPLAY_CLASSES:
            gpus.append(address)
    return gpus


def _environment_of_pid1(tree: Tree) -> dict[str, str]:
    raw = tree.raw("/proc/1/environ") or b""
    pairs = (item.partition("=") for item in raw.decode("utf-8", "replace").split("\0"))
    return {name: value for name, found, value in pairs if found}


def _cpuinfo(tree: Tree) -> dict[str, str]:
    """The first processor's fields in /proc/cpuinfo (all share what is read here) and those behind the last one."""
    fields: dict[str, str] = {}
    for line in (tree.text("/proc/cpuinfo") or "").splitlines():
        name, found, value = line.partition(":")
        if found:
            fields.setdefault(name.strip(), value.strip())
    return fields


def _cpu(tree: Tree, cpuinfo: dict[str, str]) -> dict[str, Any]:
    base = "/sys/devices/system/cpu"
    online = parse_cpu_list(tree.text(f"{base}/online"))
    sockets = set()
    cores = set()
    for cpu in online:
        package = tree.integer(f"{base}/cpu{cpu}/topology/physical_package_id")
        siblings = tree.text(f"{base}/cpu{cpu}/topology/thread_siblings_list")
        sockets.add(package)
        # Core ids repeat between dies: the set of sibling threads is what names a core.
        cores.add(siblings or f"cpu{cpu}")
    model = cpuinfo.get("model name") or cpuinfo.get("cpu")
    if not model and "CPU implementer" in cpuinfo:
        model = f"implementer {cpuinfo['CPU implementer']} part {cpuinfo.get('CPU part', '?')}"
    flags = cpuinfo.get("flags") or cpuinfo.get("Features") or ""
    allowed = _allowed_cpus(tree)
    return {
        "model": model,
        "sockets": len(sockets),
        "cores": len(cores),
        "threads": len(online),
        "allowed": format_cpu_list(allowed),
        "allowed_count": len(allowed),
        "flags": flags.split(),
    }


def _allowed_cpus(tree: Tree) -> list[int]:
    """CPUs that this process may run on: fewer than there are in a container or a cpuset."""
    for line in (tree.text("/proc/self/status") or "").splitlines():
        if line.startswith("Cpus_allowed_list:"):
            return parse_cpu_list(line.partition(":")[2])
    return []


def _meminfo(text: str | None, name: str) -> int | None:
    """Bytes of a line `Name: 123 kB` of /proc/meminfo, or of `Node 0 Name: 123 kB`."""
    for line in (text or "").splitlines():
        before, found, after = line.partition(":")
        words = after.split()
        if found and before.split()[-1:] == [name] and words and words[0].isdigit():
            return int(words[0]) * _KIB
    return None


def _memory_limit(tree: Tree) -> int | None:
    """The memory limit of the control group mounted at /sys/fs/cgroup (a container's), `None` without one."""
    limits = [tree.integer("/sys/fs/cgroup/memory.max"), tree.integer("/sys/fs/cgroup/memory/memory.limit_in_bytes")]
    found = [limit for limit in limits if limit is not None and 0 < limit < _CGROUP_V1_UNLIMITED]
    return min(found) if found else None


def _distribution(tree: Tree) -> tuple[str | None, str | None]:
    """ID and VERSION_ID of os-release(5)."""
    fields: dict[str, str] = {}
    for line in (tree.text("/etc/os-release") or tree.text("/usr/lib/os-release") or "").splitlines():
        name, found, value = line.partition("=")
        if not found or name.startswith("#"):
            continue
        try:
            fields[name.strip()] = "".join(shlex.split(value))
        except ValueError:
            fields[name.strip()] = value.strip()
    return fields.get("ID"), fields.get("VERSION_ID")
