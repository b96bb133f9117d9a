"""Which CPUs and memory nodes the endpoint keeps to, and how it is seen when it does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.serving_binding import (
    BindingError,
    Wish,
    bind,
    bound,
    judge_allowed,
    processes,
    used_gpus,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.tree import Tree

GPUS = ("0000:17:00.0", "0000:65:00.0", "0000:ca:00.0", "0000:e3:00.0")


@pytest.fixture
def machine(tmp_path: Path) -> Tree:
    """Two nodes of four cores with two threads each; two GPUs on either."""
    nodes = tmp_path / "sys/devices/system/node"
    for node in (0, 1):
        (nodes / f"node{node}").mkdir(parents=True)
        (nodes / f"node{node}/cpulist").write_text(f"{4 * node}-{4 * node + 3},{4 * node + 8}-{4 * node + 11}\n")
    (nodes / "has_memory").write_text("0-1\n")
    for cpu in range(16):
        topology = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{cpu % 8},{cpu % 8 + 8}\n")
    for index, gpu in enumerate(GPUS):
        device = tmp_path / "sys/bus/pci/devices" / gpu
        device.mkdir(parents=True)
        (device / "numa_node").write_text(f"{index // 2}\n")
    return Tree(str(tmp_path))


def test_one_gpu_means_its_node_without_the_reserved_cpus(machine: Tree) -> None:
    found = bind(machine, Wish(gpus=GPUS, gpu_count=1, housekeeping_cores_per_node=1))
    assert (found.cpus, found.memory_nodes) == ("1-3,9-11", "0")
    assert "0000:17:00.0" in found.reason
    assert "without the CPUs 0,4,8,12" in found.reason


def test_gpus_on_both_nodes_mean_both(machine: Tree) -> None:
    assert bind(machine, Wish(gpus=GPUS)).cpus == ""
    assert bind(machine, Wish(gpus=GPUS, housekeeping_cpus="0,8")).cpus == "1-7,9-15"
    assert bind(machine, Wish(gpus=GPUS, visible_devices="2,3")).memory_nodes == "1"


def test_an_engine_on_the_cpus_keeps_off_the_reserved_ones(machine: Tree) -> None:
    found = bind(machine, Wish(housekeeping_cores_per_node=1))
    assert (found.cpus, found.memory_nodes) == ("1-3,5-7,9-11,13-15", "")
    nothing = bind(machine, Wish())
    assert (nothing.cpus, nothing.memory_nodes) == ("", "")


def test_a_node_by_its_number(machine: Tree) -> None:
    assert bind(machine, Wish(nodes="1")).cpus == "4-7,12-15"
    with pytest.raises(BindingError, match=r"expected some of the NUMA nodes 0-1, found '5'.*serving_numa_nodes"):
        bind(machine, Wish(nodes="5"))


def test_no_cpu_is_left(machine: Tree) -> None:
    with pytest.raises(BindingError, match="reserve fewer"):
        bind(machine, Wish(nodes="0", housekeeping_cpus="0-3,8-11"))


def test_a_firmware_that_does_not_say_where_a_gpu_is(machine: Tree) -> None:
    Path(machine.path(f"/sys/bus/pci/devices/{GPUS[0]}/numa_node")).write_text("-1\n")
    found = bind(machine, Wish(gpus=GPUS, gpu_count=1, housekeeping_cpus="0"))
    assert found.cpus == "1-15"
    assert "does not say" in found.reason


def test_which_gpus_count() -> None:
    assert used_gpus(Wish(gpus=tuple(reversed(GPUS)), gpu_count=2)) == list(GPUS[:2])
    assert used_gpus(Wish(gpus=GPUS, visible_devices="3,1", gpu_count=1)) == [GPUS[3]]
    # Names, and numbers that are not there, cannot be told apart here.
    assert used_gpus(Wish(gpus=GPUS, visible_devices="GPU-8932f937")) == list(GPUS)
    assert used_gpus(Wish(gpus=GPUS, visible_devices="7", gpu_count=1)) == list(GPUS)


def process(root: Path, pid: int, unit: str, cpus: tuple[str, ...]) -> None:
    directory = root / "proc" / str(pid)
    directory.mkdir(parents=True)
    (directory / "cgroup").write_text(f"0::/plumbline.slice/{unit}\n")
    (directory / "cmdline").write_text("VLLM::EngineCore\0")
    for number, allowed in enumerate(cpus):
        thread = directory / "task" / str(pid + number)
        thread.mkdir(parents=True)
        (thread / "status").write_text(f"Name:\tx\nCpus_allowed_list:\t{allowed}\nMems_allowed_list:\t0\n")


def test_every_thread_counts(tmp_path: Path) -> None:
    process(tmp_path, 10, "plumbline-serving.service", ("1-3", "1"))
    process(tmp_path, 20, "plumbline-serving-upgrade.service", ("0-3",))
    process(tmp_path, 30, "session-4.scope", ("0-3",))
    uid = (tmp_path / "proc" / "10").stat().st_uid
    units = ["plumbline-serving.service", "plumbline-serving-upgrade.service"]
    found = processes(tmp_path, units, uid)
    assert (found.pids, found.cpus, found.memory_nodes) == ([10], {1, 2, 3}, {0})
    assert found.strays == ["30 (VLLM::EngineCore)"]
    assert processes(tmp_path, units, uid + 1).strays == []
    process(tmp_path, 40, "plumbline-serving.service", ("1-3", "0-3"))
    assert processes(tmp_path, units, None).cpus == {0, 1, 2, 3}


def test_what_the_gate_sees() -> None:
    assert judge_allowed({1, 2}, "1-3") == "1-3"
    assert judge_allowed({0, 1}, "1-3") == "0-1"
    assert judge_allowed(set(), "1-3") == "none"

    def measured(allowed: set[int], unsettable: str = "", container: str = "") -> dict[str, Any]:
        return bound("serving_cpu_binding", "u.service", allowed, "1-3", (unsettable, container))

    assert measured({1})["value"] == "1-3"
    assert "drop-in" in measured({0})["cause"]
    assert measured({0}, "layout 1")["cause"] == "layout 1"
    assert measured({0}, "layout 1", "podman")["skipped"] == "podman: layout 1"
    assert measured({1}, "layout 1", "podman")["value"] == "1-3"
