"""Which build a machine gets: by its GPUs, its driver and, in a container, by what it was given."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.engine_choice import choose

BUILDS: dict[str, dict[str, Any]] = {
    "cuda13": {"version": "0.33.0", "nvidia_driver": "580", "compute_capability": "7.5"},
    "cuda12": {"version": "0.19.1", "nvidia_driver": "525", "compute_capability": "7.0"},
    "cpu": {"version": "0.32.0", "cpu_flags": ["avx2"]},
}


def _facts(driver: str = "580.65.06", devices: int = 1, capabilities: tuple[str, ...] = ("9.0",)) -> dict[str, Any]:
    return {
        "nvidia_driver_version": driver,
        "nvidia_devices": [f"nvidia{number}" for number in range(devices)],
        "compute_capabilities": list(capabilities),
    }


@pytest.mark.parametrize(
    ("kind", "machine", "chosen", "fallback", "words"),
    [
        ("auto", {"facts": _facts(), "gpu_count": 1}, "cuda13", False, "the newest"),
        ("cuda", {"facts": _facts(), "gpu_count": 1}, "cuda13", False, "the newest"),
        (
            "auto",
            {"facts": _facts("535.183.01"), "gpu_count": 1},
            "cuda12",
            True,
            "cuda13 0.33.0 needs the NVIDIA driver 580 or newer, 535.183.01 is",
        ),
        (
            "auto",
            {"facts": _facts(capabilities=("7.0",)), "gpu_count": 1},
            "cuda12",
            True,
            "compute capability 7.5 or newer",
        ),
        ("auto", {"facts": _facts("", 0), "gpu_count": 0}, "cpu", False, "no NVIDIA GPU"),
        # A container sees its host's bus and driver, whether or not it was given a GPU.
        ("auto", {"facts": _facts(devices=0), "gpu_count": 8, "container": True}, "cpu", False, "given none of the 8"),
        ("auto", {"facts": _facts(devices=1), "gpu_count": 8, "container": True}, "cuda13", False, "the newest"),
        ("cuda12", {"facts": _facts(), "gpu_count": 1}, "cuda12", False, "engine_kind says cuda12"),
        ("cpu", {"facts": _facts(), "gpu_count": 1}, "cpu", False, "engine_kind says cpu"),
    ],
)
def test_the_build(kind: str, machine: dict[str, Any], chosen: str, fallback: bool, words: str) -> None:
    choice = choose(kind, BUILDS, **{"container": False, **machine})
    assert (choice.kind, choice.fallback, choice.problems) == (chosen, fallback, ())
    assert words in choice.reason


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (_facts("470.82.01"), ["580", "525", "470.82.01 is loaded", "gpu_driver"]),
        (_facts(capabilities=("6.1",)), ["7.5", "7.0", "engine_kind: cpu"]),
        (_facts(""), ["none is loaded", "gpu_driver and restart"]),
    ],
)
def test_neither_is_refused_with_the_remedy(facts: dict[str, Any], words: list[str]) -> None:
    choice = choose("cuda", BUILDS, facts, gpu_count=1, container=False)
    told = " ".join(choice.problems)
    assert choice.kind == "cuda13"
    for word in words:
        assert word in told
    assert told.count("none is loaded") <= 1
