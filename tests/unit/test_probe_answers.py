"""The answers of the probes (all-reduce, fio) become measurements; anything else becomes an error that says what was found."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import yaml
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import (
    all_reduce_probe,
    collective_bandwidth,
    probe,
    storage_bandwidth,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.gates import judge
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.link_load import LinkFacts
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.nvlink import NvLinks
from hypothesis import given
from hypothesis import strategies as st

RULES = yaml.safe_load((Path(__file__).parents[2] / "group_vars/all/gates.yml").read_text())["gates_rules"]


def test_all_reduce_counts_as_nccl_tests_do() -> None:
    answer = {
        "backend": "nccl",
        "ranks": 8,
        "points": [{"message_bytes": 1 << 30, "rounds": 3, "samples": [0.01, 0.02]}],
    }
    algorithm, bus = collective_bandwidth.measurements(json.dumps(answer))
    assert algorithm["value"] == pytest.approx((1 << 30) / 0.01)
    assert bus["value"] == pytest.approx((1 << 30) / 0.01 * 1.75)


QUERY = "0, 00000000:07:00.0\n1, 00000000:0F:00.0\n"
TWELVE = "".join(f"\t Link {link}: 25 GB/s\n" for link in range(12))
LINKS = f"GPU 0: A (UUID: GPU-1)\n{TWELVE}GPU 1: A (UUID: GPU-2)\n{TWELVE}"
GIB = 1 << 30


def reduced(message_bytes: int, seconds: float, **changes: object) -> str:
    point = {"message_bytes": message_bytes, "rounds": 3, "samples": [seconds]}
    answer = {"backend": "nccl", "ranks": 8, "addresses": ["0000:07:00.0", "0000:0f:00.0"], "points": [point]}
    return json.dumps({**answer, **changes})


def bus(text: str, tree: LinkFacts | None = None, nvlinks: NvLinks | None = None) -> dict:
    return next(each for each in collective_bandwidth.measurements(text, "", tree, nvlinks) if "bus" in each["name"])


def test_an_all_reduce_is_held_against_the_nvlinks_of_one_gpu() -> None:
    """8 A100 with 12 links: 1 GiB in 8.16 ms is 230 GB/s on the bus (superbench_nccl_allreduce.log)."""
    links = NvLinks(LINKS, "", QUERY)
    good = bus(reduced(GIB, 8.1595e-3), None, links)
    assert (good["limit"], good["link_class"]) == (300e9, "NVLink")
    assert good["value"] == pytest.approx(230.29e9, rel=1e-3)
    assert judge(good, RULES).status == "OK"
    assert judge(bus(reduced(GIB, 16e-3), None, links), RULES).status == "CRITICAL"


def test_an_inactive_link_is_the_cause() -> None:
    links = NvLinks(LINKS + "\t Link 12: <inactive>\n", "", QUERY)
    check = judge(bus(reduced(GIB, 16e-3), None, links), RULES)
    assert check.cause.startswith("1 NVLinks are inactive")


def test_small_messages_and_gloo_have_a_figure_and_no_limit() -> None:
    links = NvLinks(LINKS, "", QUERY)
    for found in (
        bus(reduced(1 << 20, 1e-3), None, links),
        bus(reduced(GIB, 1, backend="gloo", addresses=[]), None, links),
    ):
        check = judge(found, RULES)
        assert (check.status, found["limit"]) == ("SKIPPED", None)
        assert "no limit is known" in check.reason


def test_without_nvlink_the_narrowest_pcie_link_is_the_limit() -> None:
    way = {
        "speed_gts": 16.0,
        "width": 16,
        "max_speed_gts": 16.0,
        "max_width": 16,
        "flit": False,
        "limit_bytes_per_second": 31.5e9,
    }
    devices = [{"address": address, "hops": [address]} for address in ("0000:07:00.0", "0000:0f:00.0")]
    tree = LinkFacts(
        {"functions": [], "links": [{**way, "device": each["address"]} for each in devices], "devices": devices}
    )
    found = bus(reduced(GIB, 0.08), tree, NvLinks())
    assert (found["limit"], found["link_class"]) == (31.5e9, "16 GT/s x16")
    assert judge(found, RULES).status == "OK"


@pytest.mark.parametrize(
    ("once", "plan"),
    [(1e-4, (1000, 5)), (0.01, (10, 5)), (0.3, (1, 5)), (4.0, (1, 1)), (0.0, (1000, 5))],
)
def test_slow_reductions_are_repeated_less(once: float, plan: tuple[int, int]) -> None:
    assert all_reduce_probe.plan(once, 0.5, 5) == plan


def test_a_torch_that_does_not_see_the_gpus_is_an_error_and_no_measurement_of_cpus(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(
        "__version__ = '2.99'\nclass cuda:\n    is_available = staticmethod(lambda: False)\n"
    )
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    options = {
        "message_bytes": [4],
        "ranks": 0,
        "repeats": 1,
        "seconds_per_point": 0.1,
        "timeout_seconds": 30,
        "gpus_on_pci": 8,
    }
    answer, stderr = probe.run_probe("all_reduce_probe", str(wrapper), options, 60)
    (found,) = collective_bandwidth.measurements(answer, stderr)
    assert found["error"].startswith("this machine has 8 NVIDIA GPUs on PCI and torch 2.99 sees none of them")


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
