"""The answers of the probes (all-reduce, fio) become measurements; anything else becomes an error that says what was found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import (
    collective_bandwidth,
    storage_bandwidth,
)
from hypothesis import given
from hypothesis import strategies as st


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
