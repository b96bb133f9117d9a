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

from tests.tools.lspci_tree import Machine, machine

FIXTURES = Path(__file__).parents[1] / "fixtures/pci"
HGX = FIXTURES / "gpud_hgx_8xH100_spr_lspci-vvv.txt.gz"
IDLE = FIXTURES / "rtx6000ada_idle_gen1_x16_lspci-vvv_excerpt.txt"
DAY = 86400.0
ENDS = ("Ethernet controller", "Non-Volatile memory controller")
# The excerpt shows the GPU alone: the port it sits in, of the generation that its slot must be.
PORT = """40:01.1 PCI bridge: Intel Corporation Device 347a (prog-if 00 [Normal decode])
	NUMA node: 0
	Bus: primary=40, secondary=41, subordinate=41, sec-latency=0
	Capabilities: [58] Express (v2) Root Port (Slot+), MSI 00
		DevCap:	MaxPayload 512 bytes, PhantFunc 0
		DevCtl:	CorrErr- NonFatalErr- FatalErr- UnsupReq-
			MaxPayload 256 bytes, MaxReadReq 512 bytes
		LnkCap:	Port #0, Speed 16GT/s, Width x16, ASPM L1, Exit Latency L1 <64us
			ClockPM- Surprise- LLActRep+ BwNot+ ASPMOptComp+
		LnkCtl:	ASPM Disabled; RCB 64 bytes, Disabled- CommClk+
		LnkSta:	Speed 2.5GT/s (downgraded), Width x16
			TrErr- Train- SlotClk+ DLActive+ BWMgmt+ ABWMgmt+
		SltCap:	AttnBtn- PwrCtrl- MRL- AttnInd- PwrInd- HotPlug- Surprise-
			Slot #2, PowerLimit 75.000W; Interlock- NoCompl-
		LnkCap2: Supported Link Speeds: 2.5-16GT/s, Crosslink- Retimer+ 2Retimers+ DRS-
		LnkCtl2: Target Link Speed: 16GT/s, EnterCompliance- SpeedDis-
	Kernel driver in use: pcieport
"""
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


def test_the_healthy_machine_raises_no_alarm(hgx):
    facts = hgx.facts()
    assert len(facts["functions"]) == 517
    assert [device["kind"] for device in facts["devices"]].count("gpu") == 8
    assert [device["kind"] for device in facts["devices"]].count("nvme") == 8
    assert alarms(facts) == []
    assert len(statuses(facts)["OK"]) > 70


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
    assert "run as root" in facts["notes"][0]
    assert alarms(facts) == []


def test_the_idle_gpu_is_left_to_a_measurement_under_load(tmp_path):
    found = statuses(look(idle(), tmp_path))
    assert not {"CRITICAL", "UNKNOWN", "WARN"} & set(found)
    (skipped,) = found["SKIPPED"][:1]
    assert skipped.name == "pcie_link_speed"
    assert "judged under load" in skipped.reason


def test_the_idle_gpu_behind_a_slowed_port_fails_and_names_the_port(tmp_path):
    captured = idle()
    captured["0000:41:00.0"].set_link(speed="8")
    captured["0000:40:01.1"].set_link(speed="8", target="8")
    (check,) = alarms(look(captured, tmp_path))
    assert check.status == "CRITICAL"
    expected = "GPU 0000:41:00.0 runs 8.0 GT/s x16; it and its slot can do 16.0: the port 0000:40:01.1 has target speed 8.0 GT/s"
    assert check.cause.startswith(expected)
    assert "riser" in check.cause


def test_even_an_idle_gpu_at_the_lowest_speed_fails_when_its_port_is_capped(tmp_path):
    captured = idle()
    captured["0000:40:01.1"].set_link(target="2.5")
    (check,) = alarms(look(captured, tmp_path))
    assert check.status == "CRITICAL"


def test_a_gpu_at_a_middle_speed_is_a_warning(tmp_path):
    captured = idle()
    for address in captured.functions:
        captured[address].set_link(speed="8")
    (check,) = alarms(look(captured, tmp_path))
    assert (check.status, check.name) == ("WARN", "pcie_link_speed_unloaded")


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


def test_a_device_that_fell_off_the_bus_is_unknown_and_says_so(hgx):
    with hgx.changed("0000:19:00.0"):
        directory = hgx.root / "sys/bus/pci/devices/0000:19:00.0"
        # What the kernel remembers stays in its files.
        (directory / "config").write_bytes(b"\xff" * 4096)
        found = statuses(hgx.facts())["UNKNOWN"]
        assert {check.scope for check in found} == {"0000:19:00.0"}
        assert "fell off the bus" in found[0].cause
        (directory / "power_state").write_text("D3cold\n")
        assert "UNKNOWN" not in statuses(hgx.facts())
        (directory / "power_state").unlink()


def test_a_virtual_function_is_neither_a_device_nor_a_link(tmp_path):
    captured = machine(HGX)
    root = captured.write(tmp_path / "m")
    parent = root / "sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:02.0"
    directory = parent / "0000:1a:00.2"
    directory.mkdir()
    config = bytearray(captured["0000:1a:00.0"].config)
    config[:4] = b"\xff\xff\xff\xff"
    config[2:4] = b"\x1e\x10"
    (directory / "config").write_bytes(bytes(config))
    for name, text in (("vendor", "0x15b3"), ("device", "0x101e"), ("class", "0x020000"), ("numa_node", "0")):
        (directory / name).write_text(text + "\n")
    (directory / "physfn").symlink_to("../0000:1a:00.0")
    (root / "sys/bus/pci/devices/0000:1a:00.2").symlink_to(directory)
    facts = pci_facts(str(root))
    (virtual,) = [function for function in facts["functions"] if function["address"] == "0000:1a:00.2"]
    assert (virtual["physical_function"], virtual["link"], virtual["vendor_id"]) == ("0000:1a:00.0", None, 0x15B3)
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


def test_error_counters_of_either_end_are_caught(hgx):
    with hgx.changed("0000:17:01.0", "0000:dc:00.0") as (port, nic):
        port.aer["fatal"]["SDES"] = 3
        nic.aer["correctable"]["BadTLP"] = 100_000
        hgx.write(port.address, nic.address)
        found = {check.name: check for check in alarms(hgx.facts())}
    assert set(found) == {"pcie_uncorrectable_errors", "pcie_correctable_errors"}
    assert (found["pcie_uncorrectable_errors"].value, found["pcie_uncorrectable_errors"].scope) == (3, "0000:19:00.0")
    assert "SDES" in found["pcie_uncorrectable_errors"].cause


def test_unsupported_requests_of_the_enumeration_are_no_fault(hgx):
    with hgx.changed("0000:19:00.0") as (gpu,):
        gpu.aer["nonfatal"]["UnsupReq"] = 5
        hgx.write(gpu.address)
        assert alarms(hgx.facts()) == []


def test_what_is_returned_is_hexadecimal_and_as_much_as_was_asked_for(hgx):
    facts = hgx.facts()
    devices = readable(facts, "devices")
    assert readable(facts, "none") == []
    assert len(readable(facts, "all")) == 517
    assert {"0000:19:00.0", "0000:17:01.0", "0000:16:00.0", "0000:15:01.0"} <= {
        function["address"] for function in devices
    }
    assert next(f for f in devices if f["address"] == "0000:19:00.0")["class_code"] == "0x030200"


def _hops_that_matter() -> list[str]:
    captured = machine(HGX)
    return [
        "0000:16:00.0", "0000:38:00.0", "0000:49:00.0", "0000:5a:00.0", "0000:98:00.0", "0000:b8:00.0", "0000:c8:00.0", "0000:d8:00.0",
        *[a for a, f in captured.functions.items() if f.class_name in ENDS and a.endswith(".0") and a != "0000:01:00.0"],
    ]  # fmt: skip


@pytest.mark.parametrize("address", _hops_that_matter())
@pytest.mark.parametrize("fault", ["narrow", "slow", "capped"])
def test_a_fault_at_any_hop_is_caught_there_and_nowhere_else(address, fault, hgx):
    with hgx.changed(address, hgx.machine[address].parent.address) as (device, port):
        for end in (device, port):
            end.set_link(**({"width": 2} if fault == "narrow" else {"speed": "8"}))
        if fault == "capped":
            port.set_link(target="8")
        hgx.write(device.address, port.address)
        found = alarms(hgx.facts())
    # The functions of one device share a link: it is judged once, at the first.
    assert [check.scope for check in found] == [address]
    assert found[0].status == "CRITICAL"
    assert found[0].name == ("pcie_link_width" if fault == "narrow" else "pcie_link_speed")
    assert ("target speed" in found[0].cause) == (fault == "capped")
    assert found[0].next_command


def _gpus() -> list[str]:
    return [address for address, function in machine(HGX).functions.items() if function.class_name == "3D controller"]


@pytest.mark.parametrize("address", _gpus())
@pytest.mark.parametrize(
    ("fault", "status"), [("narrow", "CRITICAL"), ("capped", "CRITICAL"), ("slow", "WARN"), ("down", "CRITICAL")]
)
def test_a_fault_at_a_gpu_is_caught(address, fault, status, hgx):
    changes = {"narrow": {"width": 8}, "capped": {"speed": "16"}, "slow": {"speed": "16"}, "down": {"width": 0}}[fault]
    with hgx.changed(address, hgx.machine[address].parent.address) as (device, port):
        device.set_link(**changes)
        port.set_link(**changes)
        if fault == "capped":
            port.set_link(target="16")
        hgx.write(device.address, port.address)
        (check,) = alarms(hgx.facts())
    assert (check.scope, check.status) == (address, status)


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
