"""The plan of a memory measurement, the build of its kernel, what is made of its output, and a small real run."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
from pathlib import Path
from unittest.mock import patch

import pytest
import yaml
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import memory_bandwidth as memory
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import native_build
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.gates import judge
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.memory_bandwidth_c import SOURCE
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.memory_causes import probable_cause
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.memory_plan import (
    Group,
    cpu_quota,
    free_memory,
    node_limits,
    plan,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.native_build import BuildError, build
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.tree import Tree

from .test_node import server, write

GIB = 1 << 30
MIB = 1 << 20
RULES = yaml.safe_load((Path(__file__).parents[2] / "group_vars/all/gates.yml").read_text())["gates_rules"]
needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")


def machine(root: Path, cache_kib: int = 32 * 1024, free_gib: float = 64) -> Tree:
    """The two-socket server of test_node, with an L3 cache a socket and memory that is free."""
    server(root)
    files = {"proc/meminfo": f"MemTotal: 999999999 kB\nMemAvailable: {int(free_gib * MIB)} kB\n"}
    for cpu in range(8):
        base = f"sys/devices/system/cpu/cpu{cpu}/cache"
        shared = "0-1,4-5" if cpu // 2 % 2 == 0 else "2-3,6-7"
        for index, (level, kind, size, share) in enumerate(
            [
                (1, "Data", 32, str(cpu)),
                (1, "Instruction", 32, str(cpu)),
                (2, "Unified", 1024, str(cpu)),
                (3, "Unified", cache_kib, shared),
            ]
        ):
            files[f"{base}/index{index}/level"] = f"{level}\n"
            files[f"{base}/index{index}/type"] = f"{kind}\n"
            files[f"{base}/index{index}/size"] = f"{size}K\n"
            files[f"{base}/index{index}/shared_cpu_list"] = f"{share}\n"
    for node in (0, 1):
        half = int(free_gib / 2 * MIB)
        files[f"sys/devices/system/node/node{node}/meminfo"] = (
            f"Node {node} MemTotal: {half} kB\nNode {node} MemFree: {half} kB\n"
        )
    write(root, files)
    return Tree(str(root))


def test_one_thread_a_core_and_arrays_of_four_times_the_caches(tmp_path):
    work = plan(machine(tmp_path), set(range(8)))
    assert [(group.scope, group.cpus, group.array_bytes) for group in work.groups] == [
        ("numa0", [0, 1], 128 * MIB),
        ("numa1", [2, 3], 128 * MIB),
    ]
    assert (work.whole.cpus, work.whole.array_bytes, work.whole.array_over_cache) == ([0, 1, 2, 3], 256 * MIB, 4.0)
    assert work.packages == {0: 0, 1: 1}
    assert work.whole.notes == []


def test_only_processors_that_may_be_used_count(tmp_path):
    work = plan(machine(tmp_path), {1, 5, 6})
    assert [(group.scope, group.cpus) for group in work.groups] == [("numa0", [1]), ("numa1", [6])]


def test_little_free_memory_bounds_the_arrays_and_is_told(tmp_path):
    work = plan(machine(tmp_path, free_gib=1.2), set(range(8)))
    assert work.whole.array_over_cache < 4
    assert "free memory allows arrays of" in work.whole.notes[0]


def test_a_container_limit_counts_as_free_memory(tmp_path):
    tree = machine(tmp_path)
    write(tmp_path, {"sys/fs/cgroup/memory.max": str(2 * GIB), "sys/fs/cgroup/memory.current": str(GIB)})
    assert free_memory(tree) == GIB


def test_unknown_caches_are_assumed_and_told(tmp_path):
    tree = Tree(str(server(tmp_path)))
    write(tmp_path, {"proc/meminfo": f"MemAvailable: {64 * MIB} kB\n"})
    assert "does not tell the caches" in plan(tree, {0, 1}).whole.notes[-1]


def test_a_node_with_memory_only_is_a_target(tmp_path):
    tree = machine(tmp_path)
    write(
        tmp_path,
        {
            "sys/devices/system/node/node2/cpulist": "\n",
            "sys/devices/system/node/node2/meminfo": "Node 2 MemTotal: 1000 kB\nNode 2 MemFree: 1000 kB\n",
        },
    )
    assert plan(tree, set(range(8))).memory_only == [2]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1.5),
        ({"sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        ({"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"}, 0.5),
    ],
)
def test_quotas(files, expected, tmp_path):
    assert cpu_quota(Tree(str(write(tmp_path, files)))) == expected


DIMM = {
    "available": True,
    "bandwidth_bytes_per_second": 409.6e9,
    "bandwidth_source": "2 sockets x 8 channels x 3200 MT/s x 8 B (SMBIOS)",
    "sockets": [{"bandwidth_bytes_per_second": 204.8e9, "bandwidth_source": "8 channels x 3200 MT/s x 8 B (SMBIOS)"}]
    * 2,
}


def test_limits_by_socket_and_shared_by_its_numa_nodes():
    assert node_limits({0: 0, 1: 1}, DIMM)["numa1"] == (204.8e9, "8 channels x 3200 MT/s x 8 B (SMBIOS)")
    quarters = node_limits({0: 0, 1: 0, 2: 1, 3: 1}, DIMM)
    assert quarters["numa3"] == (102.4e9, "8 channels x 3200 MT/s x 8 B (SMBIOS), shared by 2 NUMA nodes")
    assert quarters["node"][0] == 409.6e9
    assert set(node_limits({0: 0}, DIMM)) == {"node"}
    assert node_limits({0: 0}, {"available": False}) == {}
    assert node_limits({0: 0}, None) == {}


@needs_gcc
def test_a_program_is_built_once_and_anew_for_another_processor(tmp_path):
    source = "int main(void) { return 7; }"
    first, how = build("seven", source, [], cache=str(tmp_path / "cache"), processor="a")
    stamp = first.stat().st_mtime_ns
    again, _ = build("seven", source, [], cache=str(tmp_path / "cache"), processor="a")
    other, _ = build("seven", source, [], cache=str(tmp_path / "cache"), processor="b")
    assert (again, again.stat().st_mtime_ns) == (first, stamp)
    assert other != first
    assert "native" in how
    assert sorted(path.name for path in first.parent.iterdir()) == sorted([first.name, other.name])


@needs_gcc
def test_a_source_that_does_not_build_is_one_sentence_and_leaves_nothing(tmp_path):
    with pytest.raises(BuildError, match="expected gcc to build") as caught:
        build("broken", "int main(void) { return nonsense; }", [], cache=str(tmp_path), processor="")
    assert "nonsense" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_without_a_compiler_the_remedy_is_named(tmp_path):
    with pytest.raises(BuildError, match="install gcc"):
        build("x", "", [], cache=str(tmp_path), processor="", compiler="no-such-compiler")


def compiler(path: Path, script: str) -> str:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (r"""printf 'garbage \377\376'; exit 0""", "it ended well and left no program"),
        (r"""printf 'x.c: error: gar\344bage' >&2; exit 1""", "found: x.c: error: gar\ufffdbage"),
        ("kill -9 $$", "found: no message"),
    ],
)
def test_a_compiler_that_does_not_compile_is_one_sentence(tmp_path: Path, script: str, said: str) -> None:
    with pytest.raises(BuildError, match=said):
        build("x", "", [], cache=str(tmp_path / "cache"), processor="", compiler=compiler(tmp_path / "cc", script))
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_cache_without_room_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_args: object, **_options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(native_build.tempfile, "TemporaryDirectory", full)
    with pytest.raises(BuildError, match="No space left on device: make room there"):
        build("x", "", [], cache=str(tmp_path), processor="", compiler=compiler(tmp_path / "cc", "echo 1"))


def test_the_kernel_is_kept_where_it_can_be_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory.os, "geteuid", lambda: 4711)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(native_build.os, "statvfs", lambda _path: os.statvfs_result([0] * 8 + [os.ST_NOEXEC, 255]))
    assert not native_build.usable(str(tmp_path / "cache"))
    assert not (tmp_path / "cache").exists()
    monkeypatch.setattr(memory, "usable", lambda place: place == "/tmp/plumbline-4711")
    assert memory.default_cache() == "/tmp/plumbline-4711"
    monkeypatch.setattr(memory, "usable", lambda place: True)
    assert memory.default_cache() == str(tmp_path / ".cache/plumbline")


@needs_gcc
def test_a_cache_that_others_may_write_to_is_refused(tmp_path):
    tmp_path.chmod(stat.S_IRWXU | stat.S_IRWXG | stat.S_IRWXO)
    with pytest.raises(BuildError, match="only this user"):
        build("x", "int main(void) { return 0; }", [], cache=str(tmp_path), processor="")


@needs_gcc
def test_a_cache_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BuildError, match="cache_directory"):
        build("x", "int main(void) { return 0; }", [], cache=str(tmp_path / "file/below"), processor="")


@pytest.fixture(scope="module")
def kernel(tmp_path_factory) -> memory.Kernel:
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    program, how = build("membw", SOURCE, ["-fopenmp"], cache=str(tmp_path_factory.mktemp("cache")), processor="")
    return memory.Kernel(program, how, 3, 0.2, Tree())


def group(array_bytes: int = 8 * MIB, cache_bytes: int = 2 * MIB) -> Group:
    return Group("numa0", [0], sorted(os.sched_getaffinity(0))[:2], cache_bytes, True, array_bytes)


def test_the_kernel_really_runs_and_its_answers_are_right(kernel):
    found = memory._run(kernel, group(), "rct")
    assert (found["wrong"], found["unpinned"], found["array_bytes"]) == (0, 0, 8 * MIB)
    assert all(second > 0 for seconds in found["seconds"].values() for second in seconds)
    assert len(found["seconds"]["triad"]) >= 3


def test_measurements_of_a_group_are_judged_by_the_gate(kernel):
    measurements = memory._measure_group(kernel, group(), (1e15, "a limit of a test"))
    assert [measurement["name"] for measurement in measurements] == list(memory.NAMES.values())
    triad = measurements[0]
    assert triad["value"] == max(triad["samples"])
    assert triad["conditions"]["array_over_cache"] == 4.0
    assert triad["conditions"]["bytes_counted"].startswith("read 1, copy 2, triad 3 arrays")
    assert judge(triad, RULES).status == "CRITICAL"
    # Arrays this small, on a machine that does other things, scatter: three in five passes near the best are given here.
    assert len(triad["samples"]) >= RULES["host_memory_bandwidth"]["repeat"]["of"]
    steady = {**triad, "samples": [triad["value"]] * 3 + [triad["value"] / 4] * 2}
    assert judge({**steady, "limit": triad["value"] * 1.2}, RULES).status == "OK"
    assert judge({**steady, "limit": triad["value"] * 1.9}, RULES).status == "CRITICAL"
    assert judge({key: value for key, value in triad.items() if key != "limit"}, RULES).status == "UNKNOWN"


def test_pages_touched_by_other_processors_work(kernel):
    cpus = ",".join(map(str, sorted(os.sched_getaffinity(0))[:1]))
    assert memory._run(kernel, group(), "r", cpus)["wrong"] == 0


def test_arrays_that_fit_the_caches_are_an_error(kernel):
    (measurement,) = memory._measure_group(kernel, group(8 * MIB, 64 * MIB), None)
    assert "free memory and run again" in measurement["error"]


@pytest.mark.parametrize(
    "arguments", [[], ["0", "1", "1", "r", "0"], ["99999999", "1", "1", "r", "x"], ["99999999", "0", "1", "r", "0"]]
)
def test_the_kernel_refuses_bad_arguments(arguments, kernel):
    with os.popen(f"{kernel.program} {' '.join(arguments)}") as output:
        assert "error" in json.loads(output.read())


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("echo nonsense; exit 3", "status 3"),
        ("kill -9 $$", "by signal 9"),
        ("echo '[1]'", "1"),
        ('echo \'{"error": "cannot allocate the arrays: no memory"}\'', "cannot allocate"),
        ('echo \'{"wrong": 5, "threads": 2, "seconds": {}}\'', "computes wrongly"),
        ('echo \'{"wrong": 0, "threads": 1, "seconds": {}}\'', "expected 2 threads"),
    ],
)
def test_a_kernel_that_fails_is_an_error_measurement(script, expected, tmp_path):
    program = tmp_path / "membw"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    two = Group("numa0", [0], [0, 1], MIB, True, 4 * MIB)
    (measurement,) = memory._measure_group(memory.Kernel(program, "", 3, 0.1, Tree()), two, None)
    assert expected in measurement["error"]
    assert judge(measurement, RULES).status == "UNKNOWN"


def test_a_program_that_cannot_be_run_names_the_remedy(tmp_path):
    program = tmp_path / "membw"
    program.write_text("")
    (measurement,) = memory._measure_group(memory.Kernel(program, "", 3, 0.1, Tree()), group(), None)
    assert "noexec" in measurement["error"]


def fake_run(kernel, measured, kernels, touch=""):
    names = {"r": "read", "c": "copy", "t": "triad"}
    return {
        "isa": "AVX2",
        "non_temporal": True,
        "array_bytes": measured.array_bytes,
        "threads": len(measured.cpus),
        "unpinned": 0,
        "wrong": 0,
        "placement": {},
        "seconds": {names[letter]: [0.01, 0.02, 0.02] for letter in kernels},
    }


def test_two_numa_nodes_give_each_its_figure_and_a_matrix(tmp_path):
    tree = machine(tmp_path)
    work = plan(tree, set(range(8)))
    with (
        patch.object(memory, "plan", return_value=work),
        patch.object(memory, "build", return_value=(Path("/membw"), "gcc")),
        patch.object(memory, "_run", side_effect=fake_run),
    ):
        found = memory.measure(
            DIMM, repetitions=3, seconds_per_node=1, matrix=True, cache=str(tmp_path), compiler="gcc"
        )
    by_name: dict[str, list] = {}
    for measurement in found["measurements"]:
        by_name.setdefault(measurement["name"], []).append(measurement)
    assert [m["scope"] for m in by_name["host_memory_bandwidth"]] == ["numa0", "numa1", "node"]
    assert [m["limit"] for m in by_name["host_memory_bandwidth"]] == [204.8e9, 204.8e9, 409.6e9]
    assert by_name["host_memory_bandwidth"][0]["value"] == 3 * 128 * MIB / 0.01
    assert [m["scope"] for m in by_name["numa_memory_bandwidth"]] == [
        "cpus of 0, memory of 0",
        "cpus of 0, memory of 1",
        "cpus of 1, memory of 0",
        "cpus of 1, memory of 1",
    ]
    assert {judge(m, RULES).status for m in found["measurements"]} <= {"OK", "CRITICAL"}


def test_one_numa_node_is_measured_once_and_reported_as_the_node_too(tmp_path):
    tree = machine(tmp_path)
    work = plan(tree, {0, 1})
    with (
        patch.object(memory, "plan", return_value=work),
        patch.object(memory, "build", return_value=(Path("/membw"), "gcc")),
        patch.object(memory, "_run", side_effect=fake_run) as run,
    ):
        found = memory.measure(
            None, repetitions=3, seconds_per_node=1, matrix=True, cache=str(tmp_path), compiler="gcc"
        )
    assert run.call_count == memory._ROUNDS
    assert [m["scope"] for m in found["measurements"]] == ["node"] * 3 + ["numa0"] * 3
    assert "limit" not in found["measurements"][0]


@pytest.mark.parametrize(
    "dimm",
    [
        {"available": True, "sockets": 5},
        {"available": True, "sockets": [5, None]},
        {"available": True, "bandwidth_bytes_per_second": "fast", "sockets": [{}, {"bandwidth_bytes_per_second": []}]},
        {"available": True, "sockets": [{"channel_bytes_largest": "2", "channel_bytes_smallest": 1}, {}]},
    ],
)
def test_facts_of_a_wrong_type_give_no_limit_and_no_cause(dimm: dict) -> None:
    assert node_limits({0: 0, 1: 1}, dimm) == {}
    assert "unequal" not in probable_cause({}, dimm)


def test_a_socket_without_a_source_still_gives_its_limit() -> None:
    dimm = {"available": True, "sockets": [{"bandwidth_bytes_per_second": 204.8e9}]}
    assert node_limits({0: 0, 1: 0}, dimm)["numa1"] == (102.4e9, "DIMMs (SMBIOS), shared by 2 NUMA nodes")
