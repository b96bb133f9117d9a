"""Topology and measurements over the captured 8-GPU machine and the idle GPU, healthy and with injected faults."""

from __future__ import annotations

from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path

import pytest
import yaml
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.gates import judge
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.pci_measurements import (
    _without_links,
    pcie_measurements,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.pci_topology import pci_facts, readable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.faults import pci_machines
from tests.tools.lspci_tree import Machine, machine

FIXTURES = Path(__file__).parents[1] / "fixtures/pci"
HGX = FIXTURES / "gpud_hgx_8xH100_spr_lspci-vvv.txt.gz"
IDLE = FIXTURES / "rtx6000ada_idle_gen1_x16_lspci-vvv_excerpt.txt"
DAY = 86400.0
PORT = pci_machines.PORT.replace("80:01.0", "40:01.1").replace(
    "primary=80, secondary=81, subordinate=81", "primary=40, secondary=41, subordinate=41"
)
RULES = yaml.safe_load((Path(__file__).parents[2] / "group_vars/all/gates.yml").read_text())["gates_rules"]


class Written:
    """The captured machine on disk, written once; faults change the files of single functions for a while."""

    def __init__(self, root: Path) -> None:
        self.machine = machine(HGX)
        self.root = self.machine.write(root)

    def facts(self) -> dict:
        return pci_facts(str(self.root))

    @contextmanager
    def changed(self, *addresses: str):
        """Yield the functions to change; `write` what was changed, and put all back in the end."""
        functions = [self.machine[address] for address in addresses]
        saved = [(function, bytes(function.config), deepcopy(function.aer)) for function in functions]
        try:
            yield functions
        finally:
            for function, config, aer in saved:
                function.config[:], function.aer = config, aer
            self.write(*addresses)

    def write(self, *addresses: str) -> None:
        for address in addresses:
            self.machine.write_files(self.machine[address], self.root / "sys/bus/pci/devices" / address)


@pytest.fixture(scope="module")
def hgx(tmp_path_factory) -> Written:
    return Written(tmp_path_factory.mktemp("hgx"))


def look(captured: Machine, tmp_path: Path, **options) -> dict:
    return pci_facts(str(captured.write(tmp_path / "machine", **options)))


def statuses(facts: dict, uptime: float = DAY) -> dict[str, list]:
    found: dict[str, list] = {}
    for check in (judge(measurement, RULES) for measurement in pcie_measurements(facts, uptime)):
        found.setdefault(check.status, []).append(check)
    return found


def alarms(facts: dict) -> list:
    found = statuses(facts)
    return [check for status in ("CRITICAL", "UNKNOWN", "WARN") for check in found.get(status, [])]


def idle() -> Machine:
    return Machine(PORT + "\n" + IDLE.read_text())


def test_the_whole_machine_is_seen(hgx):
    facts = hgx.facts()
    assert len(facts["functions"]) == 517
    assert [device["kind"] for device in facts["devices"]].count("gpu") == 8
    assert [device["kind"] for device in facts["devices"]].count("nvme") == 8
    assert len(statuses(facts)["OK"]) > 70


def test_a_device_that_sleeps_has_not_fallen_off_the_bus(hgx):
    with hgx.changed("0000:19:00.0"):
        directory = hgx.root / "sys/bus/pci/devices/0000:19:00.0"
        (directory / "config").write_bytes(b"\xff" * 4096)
        assert "UNKNOWN" in statuses(hgx.facts())
        (directory / "power_state").write_text("D3cold\n")
        assert "UNKNOWN" not in statuses(hgx.facts())
        (directory / "power_state").unlink()


def test_the_way_of_a_gpu_leads_through_its_switch(hgx):
    facts = hgx.facts()
    (gpu,) = [device for device in facts["devices"] if device["address"] == "0000:19:00.0"]
    assert gpu["root_port"] == "0000:15:01.0"
    assert gpu["hops"] == ["0000:19:00.0", "0000:16:00.0"]
    assert gpu["shared_with"] == ["0000:18:00.0", "0000:1a:00.0", "0000:1b:00.0", "0000:1b:00.1"]
    assert gpu["numa_node"] == 0
    assert gpu["slot"] == "28"
    assert gpu["limit_bytes_per_second"] == round(32e9 / 8 * 16 * 128 / 130)
    function = next(f for f in facts["functions"] if f["address"] == "0000:19:00.0")
    assert function["path"] == ["0000:17:01.0", "0000:16:00.0", "0000:15:01.0"]
    assert (function["max_payload_bytes"], function["max_read_request_bytes"]) == (256, 4096)
    assert function["link"]["aspm_enabled"] == []
    root_port = next(f for f in facts["functions"] if f["address"] == "0000:15:01.0")
    assert "request_redirect" in root_port["acs"]["supported"]
    assert root_port["acs"]["enabled"] == []


def test_a_gen4_drive_in_a_gen5_bay_is_at_its_limit(hgx):
    facts = hgx.facts()
    (bay,) = [link for link in facts["links"] if link["device"] == "0000:18:00.0"]
    assert (bay["device_max_speed_gts"], bay["port_max_speed_gts"], bay["max_speed_gts"]) == (16.0, 32.0, 16.0)


def test_plain_directories_give_the_same_tree_as_links(hgx, tmp_path):
    plain = look(machine(HGX), tmp_path, symlinks=False)
    assert plain["devices"] == hgx.facts()["devices"]


def test_without_root_links_are_known_and_the_rest_is_said_to_be_missing(tmp_path):
    facts = look(machine(HGX), tmp_path, config_bytes=64)
    (gpu,) = [function for function in facts["functions"] if function["address"] == "0000:19:00.0"]
    assert (gpu["link"]["source"], gpu["link"]["speed_gts"], gpu["link"]["width"]) == ("sysfs", 32.0, 16)
    assert gpu["link"]["target_speed_gts"] is None
    assert gpu["acs"] is None
    assert facts["notes"][0].endswith("to read them, capture the tree as root")
    assert alarms(facts) == []


def test_the_idle_gpu_is_left_to_a_measurement_under_load(tmp_path):
    found = statuses(look(idle(), tmp_path))
    assert not {"CRITICAL", "UNKNOWN", "WARN"} & set(found)
    (skipped,) = found["SKIPPED"][:1]
    assert skipped.name == "pcie_link_speed"
    assert "judged under load" in skipped.reason


@pytest.mark.parametrize(("vendor", "status"), [(0x10DE, "SKIPPED"), (0x1000, "CRITICAL")])
def test_a_bridge_on_the_card_of_an_idle_gpu_saves_power_with_it(vendor, status, tmp_path):
    captured = machine(HGX)
    chain = ("0000:15:01.0", "0000:16:00.0", "0000:17:01.0", "0000:19:00.0")
    captured.functions = {address: captured[address] for address in chain}
    for address in chain[:2]:
        captured[address].set_link(speed="2.5")
    captured["0000:16:00.0"].put("<H", 0, vendor)
    found = statuses(look(captured, tmp_path))
    assert "0000:16:00.0" in [check.scope for check in found[status]]


def test_a_gpu_without_a_visible_port_is_held_against_its_own_limit(tmp_path):
    captured = Machine(IDLE.read_text())
    captured["0000:41:00.0"].set_link(width=8)
    (check,) = alarms(look(captured, tmp_path))
    assert check.name == "pcie_link_width"
    assert "not visible" in check.cause


def test_a_virtual_function_is_neither_a_device_nor_a_link(tmp_path):
    captured = machine(HGX)
    root = captured.write(tmp_path / "m")
    parent = root / "sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:02.0"
    directory = parent / "0000:1a:00.2"
    directory.mkdir()
    config = bytearray(captured["0000:1a:00.0"].config)
    config[:4] = b"\xff\xff\xff\xff"
    (directory / "config").write_bytes(bytes(config))
    for name, text in (("vendor", "0x15b3"), ("device", "0x101e"), ("class", "0x020000"), ("numa_node", "0")):
        (directory / name).write_text(text + "\n")
    (directory / "physfn").symlink_to("../0000:1a:00.0")
    (root / "sys/bus/pci/devices/0000:1a:00.2").symlink_to(directory)
    facts = pci_facts(str(root))
    (virtual,) = [function for function in facts["functions"] if function["address"] == "0000:1a:00.2"]
    assert (virtual["physical_function"], virtual["link"], virtual["vendor_id"]) == ("0000:1a:00.0", None, 0x15B3)
    assert virtual["responsive"]
    assert facts["notes"] == []
    assert "0000:1a:00.2" not in [device["address"] for device in facts["devices"]]
    assert alarms(facts) == []


def test_of_two_link_capabilities_the_one_that_agrees_with_the_port_counts(hgx):
    with hgx.changed("0000:19:00.0") as (gpu,):
        # A second capability that claims Gen1 x1, put in front of the right one.
        gpu.config[0xC0:0x100] = gpu.config[0x60:0xA0]
        gpu.config[0x34] = 0xC0
        gpu.config[0xC1] = 0x60
        gpu.put("<H", 0xC0 + 0x12, 1 | 1 << 4)
        hgx.write("0000:19:00.0")
        facts = hgx.facts()
        (function,) = [f for f in facts["functions"] if f["address"] == "0000:19:00.0"]
        assert (function["link"]["offset"], [other["width"] for other in function["other_links"]]) == (0x60, [1])
        assert alarms(facts) == []


def test_no_pci_at_all_is_skipped_with_the_reason(tmp_path):
    facts = pci_facts(str(tmp_path))
    assert facts["available"] is False
    assert {measurement["skipped"] for measurement in pcie_measurements(facts)} == {facts["reason"]}


def test_unsupported_requests_of_the_enumeration_are_no_fault(hgx):
    with hgx.changed("0000:19:00.0") as (gpu,):
        gpu.aer["nonfatal"]["UnsupReq"] = 5
        hgx.write(gpu.address)
        assert alarms(hgx.facts()) == []


def test_counters_that_hold_no_numbers_count_nothing(hgx):
    path = hgx.root / "sys/bus/pci/devices/0000:19:00.0/aer_dev_correctable"
    before = path.read_text()
    path.write_text("RxErr \u00b2\nBadTLP " + "9" * 5000 + "\nTOTAL_ERR_COR x\n")
    assert alarms(hgx.facts()) == []
    path.write_text(before)


def test_what_is_returned_is_hexadecimal_and_as_much_as_was_asked_for(hgx):
    facts = hgx.facts()
    devices = readable(facts, "devices")
    assert readable(facts, "none") == []
    assert len(readable(facts, "all")) == 517
    assert {"0000:19:00.0", "0000:17:01.0", "0000:16:00.0", "0000:15:01.0"} <= {
        function["address"] for function in devices
    }
    assert next(f for f in devices if f["address"] == "0000:19:00.0")["class_code"] == "0x030200"


def test_the_root_ports_of_a_vmd_domain_are_root_ports_without_root_too(tmp_path):
    drive = """10000:01:00.0 Non-Volatile memory controller: Micron Technology Inc Device 51a2 (prog-if 02 [NVM Express])
	Capabilities: [60] Express (v2) Endpoint, MSI 00
		DevCap:	MaxPayload 256 bytes, PhantFunc 0
		LnkCap:	Port #0, Speed 16GT/s, Width x4, ASPM not supported
		LnkSta:	Speed 16GT/s (ok), Width x4 (ok)
"""
    port = PORT.replace("40:01.1", "10000:00:02.0").replace(
        "secondary=41, subordinate=41", "secondary=01, subordinate=01"
    )
    # What VMD looks like to the system: an endpoint of the processor, of a class of its own.
    vmd = """0000:50:00.5 SATA controller: Intel Corporation Volume Management Device NVMe RAID Controller
	Capabilities: [40] Express (v2) Root Complex Integrated Endpoint, MSI 00
		DevCap:	MaxPayload 128 bytes, PhantFunc 0
"""
    captured = Machine(drive + "\n" + port.replace("2.5GT/s (downgraded), Width x16", "16GT/s, Width x4") + "\n" + vmd)
    root = captured.write(tmp_path / "m", config_bytes=64)
    below = root / "sys/devices/pci0000:50/0000:50:00.5/pci10000:00/10000:00:02.0"
    below.parent.mkdir(parents=True)
    bus = root / "sys/bus/pci/devices"
    (root / "sys/devices/pci10000:00/10000:00:02.0").rename(below)
    for address, where in (("10000:00:02.0", below), ("10000:01:00.0", below / "10000:01:00.0")):
        (bus / address).unlink()
        (bus / address).symlink_to(where)
    facts = pci_facts(str(root))
    (device,) = facts["devices"]
    assert (device["root_port"], device["hops"]) == ("10000:00:02.0", ["10000:01:00.0"])
    assert alarms(facts) == []


def test_an_empty_hot_plug_slot_is_no_fault(hgx):
    with hgx.changed("0000:17:00.0") as (port,):
        drive = hgx.root / "sys/bus/pci/devices/0000:18:00.0"
        drive.rename(hgx.root / "drive")
        port.set_slot(occupied=False, active=False)
        hgx.write("0000:17:00.0")
        facts = hgx.facts()
        (hgx.root / "drive").rename(drive)
    assert alarms(facts) == []


@pytest.fixture(scope="module")
def branch() -> Machine:
    """One root port with its switch, GPU, NICs and drive."""
    whole = machine(HGX)
    whole.functions = {
        a: f
        for a, f in whole.functions.items()
        if a.split(":")[1] in ("16", "17", "18", "19", "1a") or a == "0000:15:01.0"
    }
    return whole


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_corrupted_machines_never_raise(data, branch, tmp_path_factory):
    functions = list(branch.functions.values())
    saved = [bytes(function.config) for function in functions]
    try:
        for function in data.draw(st.lists(st.sampled_from(functions), max_size=4)):
            for offset, value in data.draw(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 255)), max_size=20)):
                function.config[offset] = value
        options = {
            "config_bytes": data.draw(st.sampled_from([0, 17, 64, 256, 4096])),
            "symlinks": data.draw(st.booleans()),
        }
        facts = look(branch, tmp_path_factory.mktemp("branch"), **options)
        for measurement in pcie_measurements(facts, DAY):
            assert {"value", "skipped", "error"} & set(measurement)
    finally:
        for function, config in zip(functions, saved):
            function.config[:] = config


@pytest.mark.parametrize("number", [1, 3])
def test_devices_without_a_link_are_told_for_any_number(number: int) -> None:
    text = _without_links([{"address": f"00:0{index}.0"} for index in range(number)])
    assert text == f"no GPU, NIC or NVMe drive here has a PCIe link (virtual or integrated devices: {number})"
