"""Whatever a machine's files and tools say, a survey module ends with a result: no traceback, and what is missing is said."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.gates import STATUSES, judge_all
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.nvidia_smi import parse_smi
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.nvlink import parse_status
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.nvlink_health import (
    link_measurements,
    parse_errors,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.faults import gpu_machines, memory_machines, pci_machines
from tests.faults.bench import RULES, run_module
from tests.tools import lspci_tree
from tests.tools import smbios_tables as made

QUIET = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
BRANCH = (
    "0000:15:01.0",
    "0000:16:00.0",
    "0000:17:00.0",
    "0000:17:01.0",
    "0000:17:02.0",
    "0000:18:00.0",
    "0000:19:00.0",
    "0000:1a:00.0",
)
# What a corrupt or a hostile file may hold: digits of other scripts, numbers without end, text, bytes, nothing.
CONTENT = st.one_of(
    st.binary(max_size=60),
    st.text(max_size=40).map(lambda text: text.encode("utf-8", "replace")),
    st.sampled_from([b"", b"\xff" * 64, b"-1", b"0x", b"9" * 5000, "²³".encode(), "٣ GT/s".encode(), b"NaN", b"1e999"]),
    st.sampled_from(["RxErr ²\n".encode(), b"TOTAL_ERR_COR " + b"8" * 4999, b"TOTAL_ERR_FATAL -3\nDLP 1\n"]),
)  # fmt: skip
FUNCTION_FILES = ("config", "vendor", "device", "class", "numa_node", "current_link_speed", "current_link_width", "max_link_speed",
                  "max_link_width", "aer_dev_correctable", "aer_dev_nonfatal", "aer_dev_fatal", "power_state")  # fmt: skip
EDAC_FILES = ("ce_count", "ue_count", "ce_noinfo_count", "seconds_since_reset", "mc_name", "dimm0/dimm_ce_count", "dimm0/dimm_label",
              "csrow0/ue_count", "csrow0/ch0_ce_count", "csrow0/ch0_dimm_label")  # fmt: skip


def sound(result: dict[str, Any]) -> dict[str, Any]:
    """A result that people can use: no failure, and every measurement is judged."""
    assert not result.get("failed"), result
    assert result["measurements"]
    for measurement in result["measurements"]:
        assert {"value", "skipped", "error"} & set(measurement)
    assert {check.status for check in judge_all(result["measurements"], RULES)} <= set(STATUSES)
    return result


@pytest.fixture(scope="module")
def branch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    captured = lspci_tree.machine(pci_machines.HGX)
    captured.functions = {address: captured[address] for address in BRANCH}
    return captured.write(tmp_path_factory.mktemp("branch") / "m")


@QUIET
@given(
    changes=st.lists(
        st.tuples(st.sampled_from(BRANCH), st.sampled_from(FUNCTION_FILES), CONTENT), min_size=1, max_size=8
    )
)
def test_pci_functions_whose_files_hold_anything(changes, branch, tmp_path_factory):
    root = tmp_path_factory.mktemp("pci") / "m"
    shutil.copytree(branch, root, symlinks=True)
    for address, name, content in changes:
        (root / "sys/bus/pci/devices" / address / name).write_bytes(content)
    (root / "proc").mkdir()
    (root / "proc/uptime").write_bytes(changes[0][2])
    result = sound(run_module("pcie_info", {"root": str(root), "expected_devices": {"gpu": 1}}))
    # A space that shows less than it holds is told.
    cut = [address for address, name, content in changes if name == "config" and len(content) < 64]
    silent = [
        function for function in result["functions"] if function["readable_bytes"] < 64 and function["responsive"]
    ]
    assert not (cut and silent) or result["notes"]


@QUIET
@given(data=st.data())
def test_pci_trees_that_miss_parts_or_lead_in_circles(data, branch, tmp_path_factory):
    root = tmp_path_factory.mktemp("pci") / "m"
    shutil.copytree(branch, root, symlinks=True)
    bus = root / "sys/bus/pci/devices"
    for address in data.draw(st.lists(st.sampled_from(BRANCH), max_size=4, unique=True)):
        entry = bus / address
        target = entry.readlink()
        entry.unlink()
        shape = data.draw(st.sampled_from(["gone", "file", "itself", "other", "directory"]))
        if shape == "file":
            entry.write_text("x")
        elif shape == "itself":
            entry.symlink_to(address)
        elif shape == "other":
            entry.symlink_to(target.parent / "0000:19:00.0" / "0000:15:01.0" / address)
        elif shape == "directory":
            # A plain copy in place of the link, or nothing where the way to it is gone by now.
            if (bus / target).is_dir():
                shutil.copytree(bus / target, entry, symlinks=True)
            else:
                entry.mkdir()
    for name in data.draw(
        st.lists(st.sampled_from(["0000:zz:00.0", "junk", "0000:19:00.9", "10000:00:00.0"]), max_size=3, unique=True)
    ):
        (bus / name).mkdir()
    sound(run_module("pcie_info", {"root": str(root)}))


@QUIET
@given(
    name=st.sampled_from([memory_machines.ICX, memory_machines.DELL, memory_machines.HPE]),
    flips=st.lists(st.tuples(st.integers(0, 20_000), st.integers(0, 255)), max_size=60),
    size=st.integers(0, 14_000),
    entry=st.one_of(st.none(), st.binary(max_size=40)),
    edac=st.lists(st.tuples(st.sampled_from(EDAC_FILES), CONTENT), max_size=6),
    channels=st.integers(0, 12),
)  # fmt: skip
def test_tables_and_counters_that_hold_anything(name, flips, size, entry, edac, channels, tmp_path_factory):  # noqa: PLR0917
    root = tmp_path_factory.mktemp("dimm")
    structures, version = made.capture(memory_machines.FIXTURES / f"smbios/{name}.txt")
    made.write(root, structures, version)
    path = root / "sys/firmware/dmi/tables/DMI"
    whole = path.read_bytes()
    table = bytearray(whole)
    for offset, value in flips:
        table[offset % len(table)] = value
    path.write_bytes(bytes(table[:size]))
    if entry is not None:
        (path.parent / "smbios_entry_point").write_bytes(entry)
    for file, content in edac:
        target = root / "sys/devices/system/edac/mc/mc0" / file
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    (root / "proc").mkdir()
    for file, content in zip(
        ("meminfo", "cpuinfo"), [b"MemTotal: " + bytes([49, 50]) + b" kB", *[content for _, content in edac]]
    ):
        (root / "proc" / file).write_bytes(content)
    result = sound(run_module("dimm_info", {"root": str(root), "channels_per_socket": channels}))
    assert result["available"] or result["reason"]
    if size < len(whole) - 8 and not flips:
        assert result["incomplete"] or result["reason"]
        # What is cut off is not laid at the door of a DIMM.
        checks = judge_all(result["measurements"], RULES)
        assert not [check for check in checks if check.name == "dimm_population" and check.status == "CRITICAL"]


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=300))
def test_any_text_of_the_nvlinks_is_survived(text):
    assert isinstance(parse_status(text), list)
    assert isinstance(parse_errors("GPU 0: x (UUID: y)\n" + text), list)


@settings(max_examples=150, deadline=None)
@given(
    start=st.integers(0, len(gpu_machines.STATUS)), length=st.integers(0, 300), put=st.text(max_size=30), switched=st.booleans(),
    uptime=st.one_of(st.none(), st.floats(0, 1e9)),
)  # fmt: skip
def test_damaged_answers_of_the_nvlinks_are_measured_or_skipped(start, length, put, switched, uptime):
    text = gpu_machines.STATUS[:start] + put + gpu_machines.STATUS[start + length :]
    errors = re.sub(r"[0-9.]+ GB/s", "CRC Errors: 1", text)
    smi = parse_smi(gpu_machines.H200)
    found = link_measurements(smi, {"status": text, "errors": errors}, ["0000:05:00.0"] if switched else [], uptime)
    assert found
    for check in judge_all(found, RULES):
        assert check.status in STATUSES
