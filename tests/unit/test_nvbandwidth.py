"""nvbandwidth's JSON becomes the same measurements as torch's copies, and whatever else it prints becomes one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import (
    gpu_measure,
    nvbandwidth,
    probe_support,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.gates import judge
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.tree import Tree
from hypothesis import given
from hypothesis import strategies as st

from tests.tools.lspci_tree import machine

FIXTURES = Path(__file__).parents[1] / "fixtures"
SAMPLE = FIXTURES / "bench/nvbandwidth_v0.8_format.json"
RULES = yaml.safe_load((Path(__file__).parents[2] / "group_vars/all/gates.yml").read_text())["gates_rules"]
GIB = 1 << 30


def changed(change: Any) -> str:
    answer = json.loads(SAMPLE.read_text())
    change(answer["nvbandwidth"])
    return json.dumps(answer)


def test_figures_are_read_in_bytes_per_second_and_directions_are_added() -> None:
    found = nvbandwidth.parse(SAMPLE.read_text())
    assert found["addresses"] == ["0000:19:00.0", "0000:3b:00.0"]
    figures = found["figures"]
    assert figures["host_to_device", 0, None] == pytest.approx(55.3e9)
    # A bidirectional test of a copy engine times one direction only.
    assert figures["bidirectional", 0, None] == pytest.approx(100e9)
    assert figures["device_to_device", 1, None] == pytest.approx(1319.25e9)
    assert {key: value for key, value in figures.items() if key[0] == "peer_to_peer"} == {
        ("peer_to_peer", 0, 1): pytest.approx(394.5e9),
        ("peer_to_peer", 1, 0): pytest.approx(395e9),
    }


def test_a_test_that_was_waived_is_left_out_and_one_that_failed_is_told() -> None:
    def change(root: dict[str, Any]) -> None:
        root["testcases"][0] = {"name": "host_to_device_memcpy_ce", "status": "Waived"}
        root["testcases"][1] = {"name": "device_to_host_memcpy_ce", "status": "Error", "error": "CUDA_ERROR_ECC\nmore"}

    found = nvbandwidth.parse("a warning\n" + changed(change))
    assert ("host_to_device", 0, None) not in found["figures"]
    assert found["problems"] == ["device_to_host_memcpy_ce: CUDA_ERROR_ECC"]


def test_an_error_of_the_whole_run_is_told() -> None:
    with pytest.raises(ValueError, match="nvbandwidth failed: CUDA_ERROR_NO_DEVICE"):
        nvbandwidth.parse('{"nvbandwidth": {"error": "CUDA_ERROR_NO_DEVICE"}}')


@given(
    st.text()
    | st.recursive(
        st.none() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["nvbandwidth", "testcases", "name", "status", "bandwidth_matrix", "error", "GPU Device list"]
                ),
                inner,
            )
        ),
        max_leaves=12,
    ).map(lambda value: json.dumps({"nvbandwidth": value}))
)
def test_no_output_raises_anything_but_a_sentence(text: str) -> None:
    try:
        found = nvbandwidth.parse(text)
    except ValueError as error:
        message = str(error)
        assert message.startswith(("expected", "nvbandwidth failed"))
    else:
        assert found["figures"] == {}


@pytest.mark.parametrize("cell", ["N/A", "", "nan", "inf", "-3", "1e999", None, [], "0.00"])
def test_a_cell_that_is_no_figure_is_none(cell: Any) -> None:
    def change(root: dict[str, Any]) -> None:
        root["testcases"][0]["bandwidth_matrix"] = [[cell, "55.2"]]

    figures = nvbandwidth.parse(changed(change))["figures"]
    assert ("host_to_device", 0, None) not in figures
    assert figures["host_to_device", 1, None] == pytest.approx(55.2e9)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Measure with a program that prints what the test says, on the captured 8-GPU machine."""
    root = machine(FIXTURES / "pci/gpud_hgx_8xH100_spr_lspci-vvv.txt.gz").write(tmp_path / "hgx")
    (root / "dev").mkdir()
    (root / "dev/nvidiactl").write_text("")
    monkeypatch.setattr(probe_support, "SYSFS", root / "sys/bus/pci/devices")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")

    def measure(text: str, status: int = 0, **options: Any) -> dict[str, Any]:
        (tmp_path / "answer").write_text(text)
        program = tmp_path / "nvbandwidth"
        calls = tmp_path / "calls"
        calls.write_text("")
        program.write_text(
            f'#!/bin/sh\necho "$CUDA_DEVICE_ORDER $@" >> {calls}\ncat {tmp_path / "answer"}\nexit {status}\n'
        )
        program.chmod(0o755)
        wanted = {
            "python": None,
            "method": "auto",
            "chunk_bytes": [4 << 20, GIB],
            "seconds_per_point": 0.5,
            "repeats": 5,
            "timeout_seconds": 60,
            **options,
        }
        found = {"nvbandwidth": str(program)}
        result = gpu_measure.measure(wanted, found.get, Tree(str(root)))
        result["calls"] = calls.read_text().splitlines()
        return result

    return measure


def test_the_measurements_are_those_of_torch(run) -> None:
    result = run(SAMPLE.read_text())
    assert (result["method"], result["nvbandwidth_version"]) == ("nvbandwidth", "v0.8")
    assert len(result["calls"]) == 10
    assert result["calls"][-1].startswith("PCI_BUS_ID -j -i 1 -b 1024 -t host_to_device_memcpy_ce")
    h2d = next(each for each in result["measurements"] if each["name"] == "gpu_h2d_bandwidth")
    assert h2d["scope"] == "gpu 0000:19:00.0, 4 MiB chunks"
    assert len(h2d["samples"]) == 5
    assert h2d["conditions"]["submission"] == "nvbandwidth"
    assert h2d["link_class"] == "32 GT/s x16"
    assert judge(h2d, RULES).status == "OK"
    speeds = [each for each in result["measurements"] if each["name"] == "pcie_link_speed_under_load"]
    assert [(each["scope"], judge(each, RULES).status) for each in speeds] == [
        ("gpu 0000:19:00.0", "OK"),
        ("gpu 0000:3b:00.0", "OK"),
    ]
    # Six GPUs of the machine were hidden from it.
    assert len([each for each in result["measurements"] if "skipped" in each]) == 6


def test_an_older_one_that_lists_no_devices_is_told_apart_where_it_can_be(run, monkeypatch) -> None:
    text = changed(lambda root: root.pop("GPU Device list"))
    scopes = {each["scope"].split(",")[0] for each in run(text)["measurements"] if each["name"] == "gpu_h2d_bandwidth"}
    assert scopes == {"gpu 0 (address unknown)", "gpu 1 (address unknown)"}
    # Nothing hidden: it counts in the order of PCI addresses.
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    scopes = {each["scope"].split(",")[0] for each in run(text)["measurements"] if "value" in each}
    assert {"gpu 0000:19:00.0", "gpu 0000:3b:00.0"} <= scopes


def test_output_that_is_none_of_its_is_an_error(run) -> None:
    (check,) = run("error while loading shared libraries: libcuda.so.1", status=127)["measurements"]
    assert check["error"] == (
        "expected the JSON answer of nvbandwidth -j, found something else (exit status 127; "
        "its last line: error while loading shared libraries: libcuda.so.1)"
    )


def test_a_figure_for_no_gpu_is_an_error(run) -> None:
    (check,) = [each for each in run('{"nvbandwidth": {"testcases": []}}')["measurements"] if "error" in each]
    assert "measured nothing" in check["error"]
