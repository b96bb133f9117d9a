"""The answers of the probes (GPU copies, all-reduce, fio) become measurements; anything else becomes an error that says what was found."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import (
    collective_bandwidth,
    gpu_bandwidth,
    probe,
    storage_bandwidth,
)
from hypothesis import given
from hypothesis import strategies as st

LINK = {
    "samples": 20,
    "lowest_gigatransfers_per_second": 2.5,
    "highest_gigatransfers_per_second": 16.0,
    "lowest_width": 16,
    "highest_width": 16,
}


def copy_answer(**changes: object) -> str:
    point = {
        "kind": "host_to_device",
        "gpu": "0000:81:00.0",
        "peer": "",
        "chunk_bytes": 4 << 20,
        "rounds": 7,
        "samples": [24e9, 25e9],
        "link": LINK,
        **changes,
    }
    return json.dumps(
        {
            "points": [point],
            "gpus": [],
            "notes": [],
            "torch_version": "2",
            "cuda_version": "13.0",
            "elapsed_seconds": 1.0,
        }
    )


def test_a_copy_is_held_against_the_link_it_ran_on() -> None:
    found, _ = gpu_bandwidth.measurements("a warning\n" + copy_answer())
    (measurement,) = found
    assert measurement["name"] == "gpu_h2d_bandwidth"
    assert measurement["scope"] == "gpu 0000:81:00.0, 4 MiB chunks"
    assert measurement["value"] == 25e9
    # 16 GT/s x 16 lanes x 128/130 / 8: the fastest link seen, not the idle one.
    assert measurement["limit"] == pytest.approx(31.508e9, rel=1e-4)
    assert "link under load" in measurement["limit_source"]


def test_both_directions_at_once_have_twice_the_limit() -> None:
    one, _ = gpu_bandwidth.measurements(copy_answer())
    both, _ = gpu_bandwidth.measurements(copy_answer(kind="bidirectional"))
    assert both[0]["limit"] == 2 * one[0]["limit"]


def test_without_a_link_there_is_no_limit() -> None:
    found, _ = gpu_bandwidth.measurements(copy_answer(link={"samples": 0}))
    assert found[0]["limit"] is None
    assert found[0]["limit_source"] == ""


def test_a_copy_within_a_gpu_has_no_pcie_limit() -> None:
    found, _ = gpu_bandwidth.measurements(copy_answer(kind="device_to_device"))
    assert found[0]["limit"] is None


@pytest.mark.parametrize(
    ("text", "stderr", "word"),
    [
        ("", "Segmentation fault", "Segmentation fault"),
        ("", "", "nothing"),
        ('{"error": "torch sees no CUDA device"}', "", "no CUDA device"),
        ('{"points": [{"kind": "sideways"', "", "expected"),
        (copy_answer(kind="sideways"), "", "expected"),
        (copy_answer(samples=[]), "", "measured nothing"),
        ("[]", "", "expected"),
    ],
)
def test_a_bad_answer_of_the_copy_probe_is_an_error(text: str, stderr: str, word: str) -> None:
    (measurement,), _ = gpu_bandwidth.measurements(text, stderr)
    assert word in measurement["error"]
    assert "value" not in measurement


def test_all_reduce_counts_as_nccl_tests_do() -> None:
    answer = {
        "backend": "nccl",
        "ranks": 8,
        "points": [{"message_bytes": 1 << 30, "rounds": 3, "samples": [0.01, 0.02]}],
    }
    algorithm, bus = collective_bandwidth.measurements(json.dumps(answer))
    assert algorithm["value"] == pytest.approx((1 << 30) / 0.01)
    assert bus["value"] == pytest.approx((1 << 30) / 0.01 * 1.75)


def test_a_wrong_sum_is_an_error_not_a_figure() -> None:
    answer = {"backend": "nccl", "ranks": 2, "points": [{"message_bytes": 4, "wrong": "gave 3"}]}
    (measurement,) = collective_bandwidth.measurements(json.dumps(answer))
    assert measurement["error"] == "gave 3"


def test_one_gpu_is_skipped_with_the_reason() -> None:
    (measurement,) = collective_bandwidth.measurements('{"skipped": "one GPU: there is nothing to reduce over"}')
    assert "one GPU" in measurement["skipped"]


@given(st.text() | st.binary().map(lambda raw: raw.decode("latin-1")))
def test_no_output_of_a_tool_raises(text: str) -> None:
    assert gpu_bandwidth.measurements(text)[0]
    assert collective_bandwidth.measurements(text)
    assert storage_bandwidth.measurement(text, "", "/models", {})["error"]


def fio_answer(error: int = 0, bandwidth: int = 2_000_000_000) -> str:
    read = {"bw_bytes": bandwidth, "io_bytes": 10_000_000_000, "runtime": 5000}
    return "fio: a note\n" + json.dumps({"fio version": "fio-3.33", "jobs": [{"error": error, "read": read}]})


def test_fio_answer() -> None:
    measurement = storage_bandwidth.measurement(fio_answer(), "", "/models", {"jobs": 4})
    assert measurement["value"] == 2e9
    assert measurement["conditions"]["jobs"] == 4


def test_fio_error_is_named() -> None:
    assert "Input/output error" in storage_bandwidth.measurement(fio_answer(error=5), "", "/models", {})["error"]
    assert "read nothing" in storage_bandwidth.measurement(fio_answer(bandwidth=0), "", "/models", {})["error"]


def test_only_real_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\0" * (2 << 20))
    (tmp_path / "small.json").write_text("{}")
    (tmp_path / "link.safetensors").symlink_to("/dev/zero")
    assert [path.name for path, _ in storage_bandwidth.files_to_read(tmp_path)] == ["model.safetensors"]
    assert storage_bandwidth.files_to_read(tmp_path / "missing") == []


def test_a_python_without_torch_or_not_there_is_said(tmp_path: Path) -> None:
    blocked = tmp_path / "torch.py"
    blocked.write_text("raise ImportError('planted')")
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    options = {"chunk_bytes": [1], "seconds_per_point": 0.1, "repeats": 1}
    answer, stderr = probe.run_probe("gpu_copy_probe", str(wrapper), options, 60)
    assert "cannot import torch" in gpu_bandwidth.measurements(answer, stderr)[0][0]["error"]
    answer, stderr = probe.run_probe("gpu_copy_probe", str(tmp_path / "none"), options, 60)
    assert "cannot start" in gpu_bandwidth.measurements(answer, stderr)[0][0]["error"]
