"""Whether a machine can run an engine: each reason why not, with its remedy."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.engine_fitness import (
    free_bytes,
    machine_facts,
    problems,
)

GOOD: dict[str, Any] = {
    "architecture": "x86_64",
    "python_executable": "/usr/bin/python3",
    "python_implementation": "CPython",
    "python_version": "3.11.2",
    "python_tag": "cp311",
    "python_error": "",
    "glibc_version": "2.36",
    "cpu_flags": ["avx2", "fma"],
    "nvidia_driver_version": "580.65.06",
    "nvidia_devices": ["nvidia0"],
    "compute_capabilities": ["7.5", "9.0"],
    "free_bytes": 10 << 30,
}
NEEDS: dict[str, Any] = {
    "architectures": ["x86_64"],
    "python_tags": ["cp311", "cp312"],
    "glibc": "2.28",
    "cpu_flags": ["avx2"],
    "nvidia_driver": "580",
    "compute_capability": "7.5",
    "disk_bytes": 5 << 30,
}


def test_a_machine_that_fits() -> None:
    assert problems(GOOD, NEEDS, "cpu 0.32.0", "/opt") == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"architecture": "aarch64"}, ["x86_64", "aarch64", "tools/lock-engine"]),
        ({"python_error": "no such file"}, ["/usr/bin/python3", "no such file", "engine_python_executable"]),
        ({"python_implementation": "PyPy"}, ["CPython", "PyPy"]),
        ({"python_tag": "cp310", "python_version": "3.10.4"}, ["cp311 or cp312", "3.10.4", "tools/lock-engine"]),
        ({"glibc_version": "2.17"}, ["2.28", "2.17", "upgrade"]),
        ({"glibc_version": ""}, ["another one", "glibc"]),
        ({"cpu_flags": ["sse4_2"]}, ["avx2", "host-passthrough"]),
        ({"nvidia_driver_version": ""}, ["none is loaded", "engine_kind"]),
        ({"nvidia_driver_version": "535.183.01"}, ["580", "535.183.01", "gpu_driver"]),
        ({"compute_capabilities": ["7.0", "9.0"]}, ["7.5", "one of 7.0", "CUDA_VISIBLE_DEVICES"]),
        ({"free_bytes": 1 << 30}, ["5.0 GiB", "1.0 GiB", "/opt", "engine_root"]),
    ],
)
def test_each_reason_is_one_sentence_with_its_remedy(change: dict[str, Any], words: list[str]) -> None:
    found = problems({**GOOD, **change}, NEEDS, "cpu 0.32.0", "/opt")
    assert len(found) == 1
    assert found[0].endswith(".")
    for word in words:
        assert word in found[0]


def test_what_is_not_asked_for_is_no_problem() -> None:
    assert problems({**GOOD, "nvidia_driver_version": "", "glibc_version": ""}, {}, "x", "/opt") == []


def test_facts_of_this_machine(tmp_path: Path) -> None:
    facts = machine_facts(sys.executable, str(tmp_path / "not" / "there"))
    assert facts["python_tag"] == f"cp{sys.version_info[0]}{sys.version_info[1]}"
    assert facts["python_error"] == ""
    assert facts["free_bytes"] > 0
    assert "." in facts["glibc_version"]
    assert facts["cpu_flags"]


def test_a_captured_machine(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("processor : 0\nflags\t\t: fpu avx2\nprocessor : 1\nflags : fpu\n")
    (tmp_path / "sys/module/nvidia").mkdir(parents=True)
    (tmp_path / "sys/module/nvidia/version").write_text("550.54.15\n")
    facts = machine_facts(sys.executable, "/", str(tmp_path))
    assert facts["cpu_flags"] == ["avx2", "fpu"]
    assert facts["nvidia_driver_version"] == "550.54.15"
    assert facts["nvidia_devices"] == []
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / "dev" / name).touch()
    assert machine_facts(sys.executable, "/", str(tmp_path))["nvidia_devices"] == ["nvidia0", "nvidia1"]


def test_an_engine_that_brings_its_python_asks_for_none() -> None:
    facts = machine_facts("", "/")
    assert (
        problems(
            {**GOOD, **{key: facts[key] for key in facts if key.startswith("python_")}},
            {**NEEDS, "python_tags": []},
            "x",
            "/",
        )
        == []
    )


@pytest.mark.parametrize(
    ("executable", "error"),
    [("/nonexistent", "no such file"), ("/bin/false", "exit status 1"), ("/bin/true", "did not say")],
)
def test_pythons_that_are_none(executable: str, error: str) -> None:
    assert error in machine_facts(executable, "/")["python_error"]


def test_free_disk_of_a_place_to_be() -> None:
    assert free_bytes("/nonexistent/place/to/be") == free_bytes("/")
