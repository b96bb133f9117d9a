"""Facts of a node from captured trees: containers, restarts, control groups, processors, NUMA nodes, GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.node import node_facts
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.tree import (
    Tree,
    format_cpu_list,
    parse_cpu_list,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

BOOT = "f6a41adc-4d73-4bc4-bf57-ddd6538d91dd"
STAT = "1 (sys (te) md) S 0 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 {start} 51961856 4703 18446744073709551615 1 1 0"


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def server(root: Path) -> Path:
    """Two sockets of two cores with two threads each, one NUMA node a socket."""
    files = {
        "proc/sys/kernel/hostname": "gpu-07\n",
        "proc/sys/kernel/ostype": "Linux\n",
        "proc/sys/kernel/osrelease": "6.1.0-27-amd64\n",
        "proc/sys/kernel/random/boot_id": BOOT + "\n",
        "proc/1/stat": STAT.format(start=2) + "\n",
        "proc/1/comm": "systemd\n",
        "proc/cmdline": "BOOT_IMAGE=/vmlinuz ro quiet\n",
        "proc/cpuinfo": "processor\t: 0\nmodel name\t: AMD EPYC 9654\nflags\t\t: fpu avx512f\n",
        "proc/meminfo": "MemTotal:       1000 kB\nMemAvailable:    900 kB\n",
        "proc/mounts": "sysfs /sys sysfs rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n",
        "proc/self/status": "Name:\tx\nCpus_allowed_list:\t0-3,6\n",
        "etc/os-release": 'NAME="Debian GNU/Linux"\nID=debian\nVERSION_ID="12"\n',
        "sys/devices/system/cpu/online": "0-7\n",
    }
    for cpu in range(8):
        base = f"sys/devices/system/cpu/cpu{cpu}/topology"
        files[f"{base}/physical_package_id"] = f"{cpu // 2 % 2}\n"
        files[f"{base}/thread_siblings_list"] = f"{cpu % 4},{cpu % 4 + 4}\n"
    for node, cpus in ((0, "0-1,4-5"), (1, "2-3,6-7")):
        base = f"sys/devices/system/node/node{node}"
        files[f"{base}/cpulist"] = cpus + "\n"
        files[f"{base}/meminfo"] = f"Node {node} MemTotal:       500 kB\nNode {node} MemFree:        400 kB\n"
        files[f"{base}/distance"] = "10 32\n" if node == 0 else "32 10\n"
    return write(root, files)


def test_a_two_socket_server(tmp_path):
    facts = node_facts(str(server(tmp_path)))
    assert (facts["hostname"], facts["system"], facts["kernel_release"]) == ("gpu-07", "Linux", "6.1.0-27-amd64")
    assert (facts["distribution"], facts["distribution_version"]) == ("debian", "12")
    assert (facts["container"], facts["virtualization"], facts["cgroup_version"]) == (False, "none", 2)
    assert facts["cpu"] == {
        "model": "AMD EPYC 9654",
        "sockets": 2,
        "cores": 4,
        "threads": 8,
        "allowed": "0-3,6",
        "allowed_count": 5,
        "flags": ["fpu", "avx512f"],
    }
    assert facts["numa_nodes"][1] == {
        "node": 1,
        "cpus": "2-3,6-7",
        "cpu_count": 4,
        "memory_total_bytes": 500 * 1024,
        "memory_free_bytes": 400 * 1024,
        "distances": [32, 10],
    }
    assert facts["memory_total_bytes"] == 1000 * 1024
    assert facts["boot_identity"] == f"{BOOT}:2"


def test_a_restart_of_a_container_changes_the_identity_though_the_boot_id_stays(tmp_path):
    server(tmp_path)
    before = node_facts(str(tmp_path))["boot_identity"]
    write(tmp_path, {"proc/1/stat": STAT.format(start=233691)})
    after = node_facts(str(tmp_path))["boot_identity"]
    assert before != after
    assert before.partition(":")[0] == after.partition(":")[0]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"run/systemd/container": "systemd-nspawn\n"}, "systemd-nspawn"),
        ({"proc/1/environ": "PATH=/bin\0container=podman\0TERM=x\0"}, "podman"),
        ({"proc/1/environ": "container=oci\0", "run/.containerenv": ""}, "podman"),
        ({"run/.containerenv": ""}, "podman"),
        ({".dockerenv": ""}, "docker"),
        ({"proc/1/cgroup": "0::/kubepods/besteffort/pod1\n"}, "container-other"),
        ({"proc/1/environ": "container=oci\0"}, "container-other"),
        ({"proc/1/environ": "PATH=/bin\0"}, None),
    ],
)
def test_containers(files, expected, tmp_path):
    facts = node_facts(str(write(server(tmp_path), files)))
    assert (facts["container"], facts["container_type"]) == (expected is not None, expected)
    assert facts["virtualization"] == (expected or "none")


@pytest.mark.parametrize(
    ("vendor", "flags", "expected"),
    [
        ("QEMU", "fpu hypervisor", "qemu"),
        ("Microsoft Corporation", "fpu hypervisor", "microsoft"),
        ("Microsoft Corporation", "fpu", None),
        ("Google", "fpu", None),
        ("Dell Inc.", "fpu hypervisor", "vm-other"),
        ("Dell Inc.", "fpu", None),
    ],
)
def test_hypervisors(vendor, flags, expected, tmp_path):
    write(server(tmp_path), {"proc/cpuinfo": f"flags : {flags}\n", "sys/class/dmi/id/sys_vendor": vendor + "\n"})
    assert node_facts(str(tmp_path))["hypervisor"] == expected


@pytest.mark.parametrize(
    ("mounts", "expected"),
    [
        ("tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n", 1),
        (
            "tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n"
            "cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n",
            "hybrid",
        ),
        (
            "tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup /sys/fs/cgroup/cpu cgroup rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n",
            2,
        ),
        ("proc /proc proc rw 0 0\n", None),
    ],
)
def test_control_groups(mounts, expected, tmp_path):
    assert node_facts(str(write(server(tmp_path), {"proc/mounts": mounts})))["cgroup_version"] == expected


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"sys/fs/cgroup/memory.max": "8589934592\n"}, 8 << 30),
        ({"sys/fs/cgroup/memory.max": "max\n"}, None),
        ({"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, None),
        ({"sys/fs/cgroup/memory/memory.limit_in_bytes": "1073741824\n"}, 1 << 30),
    ],
)
def test_memory_limits(files, expected, tmp_path):
    assert node_facts(str(write(server(tmp_path), files)))["memory_limit_bytes"] == expected


def test_gpus_are_nvidia_controllers_and_not_their_switches(tmp_path):
    base = "sys/bus/pci/devices"
    devices = {
        "0000:19:00.0": ("10de", "0x030200"),
        "0000:83:00.0": ("10de", "0x068000"),
        "0000:03:00.0": ("102b", "0x030000"),
    }
    for address, (vendor, code) in devices.items():
        write(tmp_path, {f"{base}/{address}/vendor": f"0x{vendor}\n", f"{base}/{address}/class": code + "\n"})
    assert node_facts(str(tmp_path))["gpus"] == ["0000:19:00.0"]


def test_arm_has_features_and_no_model_name(tmp_path):
    text = "processor : 0\nFeatures : fp asimd sve\nCPU implementer : 0x41\nCPU part : 0xd4f\n"
    cpu = node_facts(str(write(server(tmp_path), {"proc/cpuinfo": text})))["cpu"]
    assert (cpu["model"], cpu["flags"]) == ("implementer 0x41 part 0xd4f", ["fp", "asimd", "sve"])


def test_without_numa_there_is_one_node_with_every_processor(tmp_path):
    root = write(tmp_path, {"sys/devices/system/cpu/online": "0-3\n", "proc/meminfo": "MemTotal: 100 kB\n"})
    (node,) = node_facts(str(root))["numa_nodes"]
    assert (node["node"], node["cpus"], node["memory_total_bytes"]) == (0, "0-3", 102400)


def test_an_empty_tree_is_all_unknown(tmp_path):
    facts = node_facts(str(tmp_path))
    assert facts["boot_identity"] is None
    assert facts["memory_total_bytes"] is None
    assert facts["cgroup_version"] is None
    assert facts["gpus"] == []


def test_a_root_that_is_not_there_is_said_to_be_missing(tmp_path):
    assert Tree(str(tmp_path)).problem() is None
    assert "found no directory at" in (Tree(str(tmp_path / "nowhere")).problem() or "")


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("0-3,8", [0, 1, 2, 3, 8]),
        ("", []),
        (None, []),
        ("0-7:1/4", [0, 4]),
        ("x,2", [2]),
        ("0-99999999999", []),
        ("5-3", []),
        ("3:0/0", []),
    ],
)
def test_cpu_lists(text, cpus):
    assert parse_cpu_list(text) == cpus


@given(st.lists(st.integers(0, 2000)))
def test_cpu_lists_survive_a_round_trip(cpus):
    assert parse_cpu_list(format_cpu_list(cpus)) == sorted(set(cpus))


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(
        ["proc/1/stat", "proc/cpuinfo", "proc/mounts", "proc/meminfo", "etc/os-release", "proc/1/environ"]
    ),
    noise=st.binary(max_size=300),
)
def test_noise_in_a_file_never_raises(name, noise, tmp_path):
    server(tmp_path)
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_bytes(noise)
    node_facts(str(tmp_path))
