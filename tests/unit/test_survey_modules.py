"""The survey's modules as Ansible runs them: results, check mode, bad input in one sentence, and their documentation."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args

from tests.module_documentation import attributes
from tests.tools import smbios_tables
from tests.tools.lspci_tree import Machine

FIXTURES = Path(__file__).parents[1] / "fixtures"
MODULES = ("node_info", "pcie_info", "dimm_info", "memory_bandwidth")


def load(name: str) -> Any:
    return importlib.import_module(f"ansible_collections.plumbline.plumbline.plugins.modules.{name}")


def run(name: str, capsys, **arguments: Any) -> dict[str, Any]:
    with patch_module_args(arguments), pytest.raises(SystemExit):
        load(name).main()
    return json.loads(capsys.readouterr().out)


def test_pcie_info_of_a_captured_gpu(tmp_path, capsys):
    root = Machine((FIXTURES / "pci/rtx6000ada_idle_gen1_x16_lspci-vvv_excerpt.txt").read_text()).write(tmp_path)
    result = run("pcie_info", capsys, root=str(root))
    assert result["changed"] is False
    assert [device["kind"] for device in result["devices"]] == ["gpu"]
    assert result["functions"][0]["vendor_id"] == "0x10de"
    assert {measurement["name"] for measurement in result["measurements"]} >= {"pcie_link_width", "pcie_link_speed"}
    assert run("pcie_info", capsys, root=str(root), functions="none")["functions"] == []


def test_dimm_info_of_a_captured_table(tmp_path, capsys):
    structures, version = smbios_tables.capture(FIXTURES / "smbios/csit_sm_spr_dmidecode_memory.txt")
    result = run("dimm_info", capsys, root=str(smbios_tables.write(tmp_path, structures, version)))
    assert result["changed"] is False
    assert result["bandwidth_bytes_per_second"] == 614.4e9
    assert len(result["dimms"]) == 16


def test_node_info_of_this_machine(capsys):
    result = run("node_info", capsys)
    assert result["changed"] is False
    assert result["system"] == "Linux"
    assert result["cpu"]["threads"] >= result["cpu"]["cores"] >= 1


@pytest.mark.parametrize("name", ["node_info", "pcie_info", "dimm_info"])
def test_a_root_that_is_not_there_is_one_sentence(name, tmp_path, capsys):
    result = run(name, capsys, root=str(tmp_path / "nowhere"))
    assert result["failed"]
    assert result["msg"].startswith("root: expected the directory of a captured tree, found no directory at ")


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("dimm_info", {"channels_per_socket": -1}, "channels_per_socket: expected 0 to 32, found -1"),
        ("memory_bandwidth", {"repetitions": 0}, "repetitions: expected 1 to 900, found 0"),
        ("memory_bandwidth", {"seconds_per_node": 0}, "seconds_per_node: expected more than 0 and up to 3600, found 0"),
        (
            "memory_bandwidth",
            {"seconds_per_node": "inf"},
            "seconds_per_node: expected more than 0 and up to 3600, found inf",
        ),
        ("pcie_info", {"functions": "some"}, "value of functions must be one of"),
    ],
)
def test_bad_options_are_one_sentence(name, arguments, expected, capsys):
    result = run(name, capsys, **arguments)
    assert result["failed"]
    assert expected in result["msg"]


def test_check_mode_measures_nothing_and_says_so(tmp_path, capsys):
    result = run("memory_bandwidth", capsys, _ansible_check_mode=True, cache_directory=str(tmp_path / "cache"))
    assert result["changed"] is False
    assert [set(measurement) for measurement in result["measurements"]] == [{"name", "scope", "skipped"}]
    assert not (tmp_path / "cache").exists()


def test_without_a_compiler_the_measurement_is_an_error_and_not_a_figure(tmp_path, capsys):
    result = run("memory_bandwidth", capsys, compiler="no-such-compiler", cache_directory=str(tmp_path))
    (measurement,) = result["measurements"]
    assert "install gcc" in measurement["error"]
    assert "value" not in measurement


@pytest.mark.parametrize("name", MODULES)
def test_the_documentation_covers_what_the_module_takes_and_gives(name, capsys):
    module = load(name)
    documentation = yaml.safe_load(module.DOCUMENTATION)
    assert documentation["module"] == name
    assert set(attributes(documentation)) == {"check_mode", "diff_mode"}
    assert yaml.safe_load(module.EXAMPLES)
    returned = yaml.safe_load(module.RETURN)
    arguments = {"compiler": "no-such-compiler"} if name == "memory_bandwidth" else {}
    result = run(name, capsys, **arguments)
    undocumented = set(result) - set(returned) - {"changed", "invocation", "failed"}
    assert undocumented == set()
