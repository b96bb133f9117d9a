"""The GPU copy probe over a torch that only pretends, and what is made of its answers on the captured 8-GPU machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import (
    gpu_bandwidth,
    gpu_copy_probe,
    gpu_measure,
    probe,
    probe_support,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.gates import judge
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.link_load import LinkFacts
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.nvlink import NvLinks
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.pci_topology import pci_facts
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.tree import Tree
from hypothesis import example, given
from hypothesis import strategies as st

from tests.tools.lspci_tree import machine

from .fake_torch import GIB, FakeTorch

RULES = yaml.safe_load((Path(__file__).parents[2] / "group_vars/all/gates.yml").read_text())["gates_rules"]
MIB = 1 << 20
GPU, GPU_PORT = "0000:19:00.0", "0000:17:01.0"
OPTIONS = {"chunk_bytes": [4 * MIB, GIB], "seconds_per_point": 0.05, "repeats": 5}
MODULE_OPTIONS: dict[str, Any] = {**OPTIONS, "python": "/engine/bin/python", "method": "auto", "timeout_seconds": 60}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    capture = Path(__file__).parents[1] / "fixtures/pci/gpud_hgx_8xH100_spr_lspci-vvv.txt.gz"
    root = machine(capture).write(tmp_path_factory.mktemp("gpus") / "hgx")
    (root / "proc/driver/nvidia").mkdir(parents=True)
    return root


@pytest.fixture
def root(written: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The captured machine as it was found, whatever the test before did to its GPU."""
    (written / "proc/driver/nvidia/version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04\n")
    put(written, "32.0")
    monkeypatch.setattr(probe_support, "SYSFS", written / "sys/bus/pci/devices")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return written


def put(root: Path, speed: str, width: int = 16) -> None:
    for address in (GPU, GPU_PORT):
        folder = root / "sys/bus/pci/devices" / address
        (folder / "current_link_speed").write_text(f"{speed} GT/s PCIe\n")
        (folder / "current_link_width").write_text(f"{width}\n")


def fake(**options: Any) -> FakeTorch:
    torch = FakeTorch(**options)
    torch.cuda.buses = [0x19, 0x3B]
    return torch


def measured(root: Path, torch: FakeTorch, monkeypatch: pytest.MonkeyPatch, **options: Any) -> dict[str, Any]:
    """The module's result, the probe running in this process over a fake torch."""
    affinity = os.sched_getaffinity(0)

    def run(name: str, python: str, wanted: dict[str, Any], timeout: int) -> tuple[str, str]:
        assert (name, python) == ("gpu_copy_probe", "/engine/bin/python")
        answer = gpu_copy_probe.probe(wanted, torch)
        answer["elapsed_seconds"] = 1.0
        return json.dumps(answer), ""

    monkeypatch.setattr(gpu_measure, "run_probe", run)
    monkeypatch.setattr(gpu_copy_probe, "memory_limit", lambda _index: 2.4e12)
    try:
        return gpu_measure.measure({**MODULE_OPTIONS, **options}, lambda _name: None, Tree(str(root)))
    finally:
        os.sched_setaffinity(0, affinity)


def by_name(result: dict[str, Any], name: str, chunk: str = "") -> dict[str, Any]:
    (one,) = [
        each
        for each in result["measurements"]
        if each["name"] == name and chunk in each["scope"] and GPU in each["scope"]
    ]
    return one


# --- the probe ---


def test_every_kind_and_size_is_measured_by_the_clock_of_the_gpu(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = measured(root, fake(), monkeypatch)
    h2d = by_name(result, "gpu_h2d_bandwidth", "4 MiB")
    assert h2d["value"] == pytest.approx(55e9, rel=1e-6)
    assert len(h2d["samples"]) == 5
    d2d = by_name(result, "gpu_d2d_bandwidth", "1 GiB")
    assert (d2d["value"], d2d["limit"]) == (pytest.approx(1000e9, rel=1e-6), 1.2e12)
    assert judge(d2d, RULES).status == "OK"
    # The fake copies the two directions one after the other: 55 GB/s both ways together.
    assert by_name(result, "gpu_bidirectional_bandwidth", "1 GiB")["limit"] == 2 * h2d["limit"]


def test_small_copies_within_the_gpu_are_replayed_from_a_graph(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = fake()
    result = measured(root, torch, monkeypatch)
    assert torch.replayed > 0
    small = by_name(result, "gpu_d2d_bandwidth", "4 MiB")
    assert small["conditions"]["submission"] == "graph"
    assert by_name(result, "gpu_d2d_bandwidth", "1 GiB")["conditions"]["submission"] == "plain"
    assert by_name(result, "gpu_h2d_bandwidth", "4 MiB")["conditions"]["submission"] == "plain"
    # The gap between two copies counts as much as the copy: there is a figure and no limit.
    assert judge(small, RULES).status == "SKIPPED"


def test_where_no_graph_can_be_captured_plain_copies_are_timed_and_said(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = fake()
    torch.why_no_graph = "CUDA error: operation not permitted when stream is capturing"
    small = by_name(measured(root, torch, monkeypatch), "gpu_d2d_bandwidth", "4 MiB")
    assert small["conditions"]["submission"] == "plain"
    assert "not permitted" in small["conditions"]["why_plain"]
    assert small["value"] == pytest.approx(1000e9, rel=1e-6)


def test_two_gpus_are_measured_in_both_directions_with_pinned_memory_of_their_own(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = fake(gpus=2)
    result = measured(root, torch, monkeypatch)
    scopes = [each["scope"] for each in result["measurements"] if each["name"] == "gpu_p2p_bandwidth"]
    assert scopes == [
        "gpu 0000:19:00.0 to 0000:3b:00.0, 4 MiB chunks",
        "gpu 0000:19:00.0 to 0000:3b:00.0, 1 GiB chunks",
        "gpu 0000:3b:00.0 to 0000:19:00.0, 4 MiB chunks",
        "gpu 0000:3b:00.0 to 0000:19:00.0, 1 GiB chunks",
    ]
    # After each of 2 GPUs x 2 sizes x 5 kinds.
    assert torch.host_emptied == 20


def test_a_copy_that_moved_nothing_is_no_figure(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = fake()
    torch.lose_copies = True
    h2d = by_name(measured(root, torch, monkeypatch), "gpu_h2d_bandwidth", "1 GiB")
    assert "did not arrive" in h2d["error"]
    assert judge(h2d, RULES).status == "UNKNOWN"


def test_little_free_memory_means_smaller_chunks_and_that_is_said(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = measured(root, fake(free_bytes=700 * MIB), monkeypatch)
    h2d = by_name(result, "gpu_h2d_bandwidth", "1 GiB")
    assert h2d["conditions"]["chunk_bytes"] == 512 * MIB
    assert f"host_to_device on {GPU}: 512 MiB chunks instead of 1024 MiB, no more memory is free" in result["notes"]
    assert "another program works on GPU" in h2d["cause"]


def test_a_full_gpu_is_an_error_that_says_so(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    h2d = by_name(measured(root, fake(free_bytes=100 * MIB), monkeypatch), "gpu_h2d_bandwidth", "4 MiB")
    assert h2d["error"] == "only 100 MiB of the GPU's memory are free: end the program that uses it"


def test_an_allocation_that_fails_is_tried_smaller(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = fake()
    torch.allocated_limit = 512 * MIB
    result = measured(root, torch, monkeypatch)
    assert by_name(result, "gpu_h2d_bandwidth", "1 GiB")["conditions"]["chunk_bytes"] == 512 * MIB
    torch.allocated_limit = 1
    h2d = by_name(measured(root, torch, monkeypatch), "gpu_h2d_bandwidth", "1 GiB")
    assert "out of memory" in h2d["error"]


def test_a_slice_of_a_gpu_is_not_judged_by_what_the_whole_can(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = measured(root, fake(mig=True), monkeypatch)
    for name in ("gpu_bidirectional_bandwidth", "gpu_d2d_bandwidth"):
        check = judge(by_name(result, name, "1 GiB"), RULES)
        assert (check.status, "MIG" in check.reason) == ("SKIPPED", True)
    assert judge(by_name(result, "gpu_h2d_bandwidth", "1 GiB"), RULES).status == "OK"


def test_the_memory_limit_is_clock_and_width() -> None:
    def attribute(out: Any, which: int, _device: Any) -> int:
        out._obj.value = {36: 3_201_000, 37: 6144}[which]
        return 0

    driver = SimpleNamespace(cuDeviceGet=lambda _out, _index: 0, cuDeviceGetAttribute=attribute)
    assert gpu_copy_probe.memory_limit(0, driver) == pytest.approx(4.9167e12, rel=1e-4)
    broken = SimpleNamespace(cuDeviceGet=lambda _out, _index: 100, cuDeviceGetAttribute=attribute)
    assert gpu_copy_probe.memory_limit(0, broken) is None
    assert gpu_copy_probe.memory_limit(0, SimpleNamespace()) is None


def test_a_torch_that_knows_no_addresses_still_measures(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = fake()
    known = torch.cuda.get_device_properties
    monkeypatch.setattr(
        torch.cuda,
        "get_device_properties",
        lambda index: SimpleNamespace(**{k: v for k, v in vars(known(index)).items() if not k.startswith("pci_")}),
    )
    result = measured(root, torch, monkeypatch)
    scopes = {each["scope"].split(",")[0] for each in result["measurements"]}
    assert scopes == {"gpu 0 (address unknown)"}
    h2d = next(each for each in result["measurements"] if each["name"] == "gpu_h2d_bandwidth")
    assert judge(h2d, RULES).status == "UNKNOWN"


# --- links and limits ---


def test_an_idle_gpu_that_wakes_under_load_passes(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(root, "2.5")
    torch = fake()

    def wake() -> None:
        torch.on_copy = lambda: None
        put(root, "32.0")

    torch.on_copy = wake
    result = measured(root, torch, monkeypatch)
    speed = by_name(result, "pcie_link_speed_under_load")
    assert judge(speed, RULES).status == "OK"
    assert speed["conditions"]["during"] == "host_to_device, device_to_host, bidirectional"
    h2d = by_name(result, "gpu_h2d_bandwidth", "1 GiB")
    assert (h2d["link_class"], judge(h2d, RULES).status) == ("32 GT/s x16", "OK")


def test_a_link_that_trained_down_cannot_hide_behind_its_lower_limit(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(root, "16.0")
    torch = fake()
    result = measured(root, torch, monkeypatch)
    speed = judge(by_name(result, "pcie_link_speed_under_load"), RULES)
    assert speed.status == "CRITICAL"
    h2d = by_name(result, "gpu_h2d_bandwidth", "1 GiB")
    assert h2d["limit"] == pytest.approx(63.015e9, rel=1e-4)
    assert h2d["conditions"]["link_under_load"]["bytes_per_second"] == pytest.approx(31.508e9, rel=1e-4)
    slow = {**h2d, "value": 25.5e9, "samples": [25.5e9] * 5}
    check = judge(slow, RULES)
    assert check.status == "CRITICAL"
    assert check.cause == speed.cause
    assert f"GPU {GPU} runs 16.0 GT/s x16" in check.cause


def test_one_disturbed_repeat_does_not_fail_a_gpu_and_four_do(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    h2d = by_name(measured(root, fake(), monkeypatch), "gpu_h2d_bandwidth", "1 GiB")
    good, bad = 55e9, 30e9
    assert judge({**h2d, "samples": [bad, good, good, good, good]}, RULES).status == "OK"
    assert judge({**h2d, "samples": [bad, bad, bad, bad, good]}, RULES).status == "CRITICAL"


def point(kind: str, **changes: Any) -> dict[str, Any]:
    base = {"kind": kind, "index": 0, "gpu": GPU, "peer": "", "peer_index": 0, "chunk_bytes": GIB, "rounds": 1}
    return {**base, "samples": [200e9] * 5, "link": {}, **changes}


def report(root: Path, points: list[dict[str, Any]], gpu: dict[str, Any] | None = None, nvlinks: NvLinks | None = None):
    gpus = {0: {"index": 0, "address": GPU, "name": "GPU", **(gpu or {})}}
    return gpu_bandwidth.Report(
        {"gpus": gpus, "points": points, "notes": []}, LinkFacts(pci_facts(str(root))), nvlinks
    ).measurements()


STATUS = (
    "GPU 0: A (UUID: GPU-1)\n\t Link 0: 25 GB/s\n\t Link 1: 25 GB/s\n"
    "GPU 1: B (UUID: GPU-2)\n\t Link 0: 25 GB/s\n\t Link 1: <inactive>\n"
)
TOPOLOGY = (
    "\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\x1b[0m\nGPU0\t X \tNV12\tPIX\t0-15\t0\nGPU1\tNV12\t X \tSYS\t0-15\t0\n"
    "NIC0\tPIX\tSYS\t X\n\nLegend:\n  X    = Self\n"
)
QUERY = "0, 00000000:19:00.0\n1, 00000000:3B:00.0\n"


def test_two_gpus_are_held_against_their_nvlinks(root: Path) -> None:
    peers = point("peer_to_peer", peer="0000:3b:00.0", peer_index=1, direct=True)
    (found,) = report(root, [peers], nvlinks=NvLinks(STATUS, TOPOLOGY, QUERY))
    assert found["limit"] == 12 * 25e9
    assert found["limit_source"] == "12 NVLinks x 25 GB/s (nvidia-smi)"
    assert found["cause"].startswith("1 NVLinks of these two GPUs are inactive")
    assert judge(found, RULES).status == "WARN"
    assert judge({**found, "samples": [150e9] * 5}, RULES).status == "CRITICAL"


def test_without_nvlink_two_gpus_are_held_against_pcie(root: Path) -> None:
    peers = point("peer_to_peer", peer="0000:3b:00.0", peer_index=1, direct=False, samples=[20e9] * 5)
    (found,) = report(root, [peers])
    assert found["limit"] == pytest.approx(63.015e9, rel=1e-4)
    assert "through host memory" in found["cause"]
    assert judge(found, RULES).status == "CRITICAL"


def test_nvlinks_of_machines_without_any_say_nothing() -> None:
    nothing = NvLinks("", "garbage", "No devices were found")
    assert nothing.pair("a", "b") is None
    assert nothing.gpu("a") is None
    real = (Path(__file__).parents[1] / "fixtures/nvidia/gpud_nvlink_status_a100.txt").read_text()
    links = NvLinks(real, TOPOLOGY, QUERY)
    assert links.gpu(GPU) == (300e9, "12 NVLinks x 25 GB/s (nvidia-smi)")


@pytest.mark.parametrize(
    ("gpu", "word"),
    [
        ({"memory_total_bytes": 100 * GIB, "memory_free_bytes": 20 * GIB}, "another program"),
        ({"cpus_near": False}, "crossed the sockets"),
        ({}, "IOMMU"),
    ],
)
def test_a_slow_copy_over_a_good_link_names_what_is_known(root: Path, gpu: dict[str, Any], word: str) -> None:
    found = report(root, [point("host_to_device", samples=[10e9] * 5)], gpu)[-1]
    assert word in judge(found, RULES).cause


# --- what is there to measure ---


def never(*_: Any) -> Any:
    raise AssertionError("nothing may be started")


@pytest.fixture
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_measure, "run_probe", never)
    monkeypatch.setattr(gpu_measure, "run_group", never)


@pytest.mark.usefixtures("nothing_starts")
def test_a_machine_without_a_gpu_is_skipped_and_nothing_is_started(tmp_path: Path) -> None:
    (check,) = gpu_measure.measure(MODULE_OPTIONS, lambda _name: "/usr/bin/x", Tree(str(tmp_path)))["measurements"]
    assert check["skipped"] == "no NVIDIA GPU on this machine"
    assert judge(check, RULES).status == "SKIPPED"


@pytest.mark.usefixtures("nothing_starts")
def test_a_gpu_without_its_driver_is_an_error(root: Path) -> None:
    (root / "proc/driver/nvidia/version").unlink()
    (check,) = gpu_measure.measure(MODULE_OPTIONS, lambda _name: None, Tree(str(root)))["measurements"]
    assert check["error"].startswith("8 NVIDIA GPUs are on PCI, and the NVIDIA driver is not loaded")
    assert judge(check, RULES).status == "UNKNOWN"


@pytest.mark.usefixtures("nothing_starts")
@pytest.mark.parametrize("visible", ["", "-1"])
def test_gpus_that_are_all_hidden_are_skipped(root: Path, monkeypatch: pytest.MonkeyPatch, visible: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    (check,) = gpu_measure.measure(MODULE_OPTIONS, lambda _name: None, Tree(str(root)))["measurements"]
    assert check["skipped"] == f"every GPU is hidden from this run by CUDA_VISIBLE_DEVICES='{visible}'"


@pytest.mark.usefixtures("nothing_starts")
@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"python": None}, "found neither"),
        ({"python": None, "method": "torch"}, "found neither"),
        ({"method": "nvbandwidth"}, "expected the program nvbandwidth"),
    ],
)
def test_without_a_program_that_measures_it_is_an_error(root: Path, options: dict[str, Any], word: str) -> None:
    (check,) = gpu_measure.measure({**MODULE_OPTIONS, **options}, lambda _name: None, Tree(str(root)))["measurements"]
    assert word in check["error"]


def test_gpus_that_cuda_does_not_show_are_told(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = measured(root, fake(), monkeypatch)
    missing = [each for each in result["measurements"] if "expected CUDA to show" in each.get("error", "")]
    assert len(missing) == 7
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    result = measured(root, fake(), monkeypatch)
    hidden = [each["skipped"] for each in result["measurements"] if "skipped" in each]
    assert len(hidden) == 7
    assert hidden[0] == "GPU 0000:3b:00.0 is hidden from this run by CUDA_VISIBLE_DEVICES=0"


def test_a_gpu_set_aside_for_a_virtual_machine_is_skipped() -> None:
    (check,) = gpu_bandwidth.hidden_gpus([GPU], {GPU: "vfio-pci"}, [], None)
    assert "set aside for virtual machines" in check["skipped"]


# --- answers ---


@pytest.mark.parametrize(
    ("text", "stderr", "word"),
    [
        ("", "Segmentation fault", "Segmentation fault"),
        ("", "", "nothing"),
        ('{"error": "torch sees no CUDA device"}', "", "no CUDA device"),
        ('{"points": [{"kind": "sideways"', "", "expected"),
        ('{"points": [{"kind": "sideways", "index": 0, "samples": []}], "gpus": [], "notes": []}', "", "expected"),
        ('{"points": [], "gpus": [3], "notes": []}', "", "expected"),
        ('{"points": [], "gpus": [{"index": 0}], "notes": []}', "", "expected"),
        (
            '{"points": [{"kind": "bidirectional", "index": 1, "samples": [], "chunk_bytes": 1}], "gpus": [], "notes": []}',
            "",
            "expected",
        ),
        ("[]", "", "expected"),
    ],
)
def test_a_bad_answer_of_the_copy_probe_is_one_sentence(text: str, stderr: str, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        gpu_bandwidth.read_answer(text, stderr)


@given(
    st.text()
    | st.recursive(
        st.none() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(["points", "gpus", "notes", "kind", "index", "samples", "chunk_bytes"]), inner
            )
        ),
    ).map(json.dumps)
)
@example('{"points":{},"gpus":[],"notes":{}}')
def test_no_answer_raises_anything_but_a_sentence(text: str) -> None:
    try:
        answer = gpu_bandwidth.read_answer(text)
    except ValueError:
        return
    assert answer["points"] == []


def test_an_answer_without_any_copy_is_an_error(root: Path) -> None:
    (check,) = gpu_bandwidth.Report(
        {"gpus": {}, "points": [], "notes": ["a note"]}, LinkFacts(pci_facts(str(root)))
    ).measurements()
    assert check["error"] == "the probe measured nothing: a note"


# --- processes ---


def test_a_python_without_torch_or_not_there_is_said(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('planted')")
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    answer, stderr = probe.run_probe("gpu_copy_probe", str(wrapper), OPTIONS, 60)
    with pytest.raises(ValueError, match="cannot import torch"):
        gpu_bandwidth.read_answer(answer, stderr)
    answer, stderr = probe.run_probe("gpu_copy_probe", str(tmp_path / "none"), OPTIONS, 60)
    with pytest.raises(ValueError, match="cannot start"):
        gpu_bandwidth.read_answer(answer, stderr)


def test_the_shipped_probe_runs_as_a_program(tmp_path: Path) -> None:
    """Beside its support file and under another Python, as on the node: a torch that sees no GPU says so."""
    (tmp_path / "torch.py").write_text(
        "__version__ = '2.99'\nclass cuda:\n    is_available = staticmethod(lambda: False)\n"
    )
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\nCUDA_VISIBLE_DEVICES=7 PYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    answer, stderr = probe.run_probe("gpu_copy_probe", str(wrapper), OPTIONS, 60)
    with pytest.raises(ValueError, match=r"torch 2\.99 sees no CUDA device \(CUDA_VISIBLE_DEVICES is '7'\)"):
        gpu_bandwidth.read_answer(answer, stderr)


def alive(pid: int) -> bool:
    try:
        return not Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0].startswith("Z")
    except OSError:
        return False


def wait_gone(pid: int) -> bool:
    for _ in range(200):
        if not alive(pid):
            return True
        time.sleep(0.05)
    return False


def test_a_hung_probe_is_ended_with_all_its_processes(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    command = ["sh", "-c", f"sleep 600 & echo $! > {pids}; echo $$ >> {pids}; wait"]
    done = probe.run_group(command, 1)
    assert done.problem == "sh was still running after 1 s and was ended"
    assert all(wait_gone(int(pid)) for pid in pids.read_text().split())


def test_what_a_program_left_running_ends_with_it(tmp_path: Path) -> None:
    done = probe.run_group(["sh", "-c", "sleep 600 >/dev/null 2>&1 & echo $!"], 60)
    assert done.status == 0
    assert wait_gone(int(done.stdout))


def test_a_probe_ends_with_the_module_that_started_it(tmp_path: Path) -> None:
    source = Path(probe_support.__file__).parent
    child = (
        f"import sys, time; sys.path.insert(0, {str(source)!r}); import probe_support; probe_support.end_with_parent(); "
        "print('ready', flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import subprocess, sys; c = subprocess.Popen([sys.executable, '-c', {child!r}], stdout=subprocess.PIPE); "
            "c.stdout.readline(); print(c.pid, flush=True); c.wait()",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert wait_gone(pid)


def test_a_probe_that_crashes_says_how(tmp_path: Path) -> None:
    wrapper = tmp_path / "python"
    wrapper.write_text("#!/bin/sh\nkill -SEGV $$\n")
    wrapper.chmod(0o755)
    answer, stderr = probe.run_probe("gpu_copy_probe", str(wrapper), OPTIONS, 60)
    with pytest.raises(ValueError, match="ended by SIGSEGV"):
        gpu_bandwidth.read_answer(answer, stderr)
