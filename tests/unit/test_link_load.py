"""Links under load on the captured 8-GPU machine: every hop can be the one that is slow or narrow, and none hides behind its own limit."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.gates import judge
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.link_load import (
    LinkFacts,
    link_class,
    merge,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.pci_topology import pci_facts
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.probe_support import LinkSampler

from tests.tools.lspci_tree import Machine, machine

RULES = yaml.safe_load((Path(__file__).parents[2] / "group_vars/all/gates.yml").read_text())["gates_rules"]
GPU, GPU_PORT, SWITCH, ROOT_PORT = "0000:19:00.0", "0000:17:01.0", "0000:16:00.0", "0000:15:01.0"
NVME, NVME_PORT = "0000:18:00.0", "0000:17:00.0"


@pytest.fixture(scope="module")
def hgx() -> Machine:
    return machine(Path(__file__).parents[1] / "fixtures/pci/gpud_hgx_8xH100_spr_lspci-vvv.txt.gz")


@pytest.fixture
def root(hgx: Machine, tmp_path: Path) -> Path:
    return hgx.write(tmp_path / "hgx")


def sysfs(root: Path) -> Path:
    return root / "sys/bus/pci/devices"


def put(root: Path, address: str, speed: str, width: int) -> None:
    (sysfs(root) / address / "current_link_speed").write_text(f"{speed} GT/s PCIe\n")
    (sysfs(root) / address / "current_link_width").write_text(f"{width}\n")


def sampled(root: Path, links: LinkFacts, address: str = GPU) -> dict:
    sampler = LinkSampler(links.path(address), sysfs=sysfs(root))
    sampler.sample()
    return sampler.summary()


def found(root: Path, address: str = GPU) -> tuple[dict, dict]:
    links = LinkFacts(pci_facts(str(root)))
    speed, width = links.measurements(f"gpu {address}", address, sampled(root, links, address), "host_to_device")
    return speed, width


def status(measurement: dict) -> str:
    return judge(measurement, RULES).status


def test_the_healthy_machine_passes_and_the_way_is_known(root: Path) -> None:
    links = LinkFacts(pci_facts(str(root)))
    assert links.path(GPU) == [GPU, GPU_PORT, SWITCH, ROOT_PORT]
    speed, width = found(root)
    assert (speed["name"], speed["value"], speed["limit"]) == ("pcie_link_speed_under_load", 32.0, 32.0)
    assert (width["name"], width["value"], width["limit"]) == ("pcie_link_width_under_load", 16, 16)
    assert [status(each) for each in (speed, width)] == ["OK", "OK"]
    assert [hop["device"] for hop in speed["conditions"]["hops"]] == [GPU, SWITCH]
    assert speed["conditions"]["samples"] == 1


def test_every_gpu_and_drive_of_the_healthy_machine_passes(root: Path) -> None:
    facts = pci_facts(str(root))
    links = LinkFacts(facts)
    devices = [device["address"] for device in facts["devices"] if device["kind"] in ("gpu", "nvme")]
    assert len(devices) == 16
    for address in devices:
        checks = links.measurements(address, address, sampled(root, links, address), "copies")
        assert {status(check) for check in checks} == {"OK"}, address


@pytest.mark.parametrize(("ends", "hop"), [((GPU, GPU_PORT), "GPU"), ((SWITCH, ROOT_PORT), "switch")])
@pytest.mark.parametrize("slow", [True, False])
def test_a_hop_that_stays_slow_or_narrow_under_load_fails(
    root: Path, ends: tuple[str, str], hop: str, slow: bool
) -> None:
    for end in ends:
        put(root, end, "16.0" if slow else "32.0", 16 if slow else 8)
    speed, width = found(root)
    check = judge(speed if slow else width, RULES)
    assert check.status == "CRITICAL"
    assert ("16.0 GT/s x16" if slow else "runs x8") in check.cause
    assert check.cause.startswith(f"{hop} {ends[0]}")
    assert ends[1] in check.next_command
    assert status(width if slow else speed) == "OK"


def test_the_cause_names_the_target_speed_of_the_port(hgx: Machine, tmp_path: Path) -> None:
    port = hgx[GPU_PORT]
    saved = bytes(port.config)
    try:
        port.set_link(target="8")
        root = hgx.write(tmp_path / "slow")
    finally:
        port.config[:] = saved
    for end in (GPU, GPU_PORT):
        put(root, end, "8.0", 16)
    speed, _ = found(root)
    assert speed["cause"] == (
        f"GPU {GPU} runs 8.0 GT/s x16; it and its slot can do 32.0: the port {GPU_PORT} has target speed 8.0 GT/s. "
        "Look at BIOS slot speed, then reseat or replace the riser"
    )


def test_one_slow_end_is_enough(root: Path) -> None:
    put(root, GPU_PORT, "16.0", 16)
    assert status(found(root)[0]) == "CRITICAL"


def test_an_idle_moment_between_two_copies_does_not_count(root: Path) -> None:
    links = LinkFacts(pci_facts(str(root)))
    sampler = LinkSampler(links.path(GPU), sysfs=sysfs(root))
    for speed in ("2.5", "32.0", "2.5"):
        for end in (GPU, GPU_PORT):
            put(root, end, speed, 16)
        sampler.sample()
    speed, _ = links.measurements("gpu", GPU, sampler.summary(), "copies")
    assert (status(speed), speed["value"], speed["statistic"]) == ("OK", 32.0, "highest of 3 samples")
    assert speed["conditions"]["hops"][0]["lowest_speed_gts"] == 2.5


def test_a_link_at_its_idle_speed_under_load_is_no_excuse(root: Path) -> None:
    for end in (GPU, GPU_PORT):
        put(root, end, "2.5", 16)
    check = judge(found(root)[0], RULES)
    assert check.status == "CRITICAL"
    assert "save power" not in check.cause


def test_a_link_that_cannot_be_read_is_unknown_and_hides_no_miss(root: Path) -> None:
    for end in (GPU, GPU_PORT):
        (sysfs(root) / end / "current_link_speed").write_text("Unknown\n")
    speed, _ = found(root)
    assert (status(speed), speed["error"]) == ("UNKNOWN", f"GPU {GPU} does not tell the speed of its link")
    for end in (SWITCH, ROOT_PORT):
        put(root, end, "16.0", 16)
    assert status(found(root)[0]) == "CRITICAL"


def test_a_device_that_fell_off_the_bus_adds_no_sample(root: Path) -> None:
    put(root, GPU, "32.0", 63)
    sampler = LinkSampler([GPU], sysfs=sysfs(root))
    sampler.sample()
    assert sampler.summary() == {}


def test_a_device_without_a_link_is_skipped_with_the_reason(root: Path) -> None:
    links = LinkFacts(pci_facts(str(root)))
    for address, word in (("", "not known"), ("0000:ff:1f.0", "not among"), (ROOT_PORT, "no PCIe link")):
        for check in links.measurements("gpu", address, {}, "copies"):
            assert word in check["skipped"]
            assert status(check) == "SKIPPED"


def test_the_limit_is_what_the_narrowest_hop_can_do(root: Path) -> None:
    for end in (GPU, GPU_PORT):
        put(root, end, "8.0", 4)
    limit = LinkFacts(pci_facts(str(root))).limit(GPU)
    assert limit is not None
    assert limit["link_class"] == "32 GT/s x16"
    assert limit["bytes_per_second"] == pytest.approx(63.015e9, rel=1e-4)
    drive = LinkFacts(pci_facts(str(root))).limit(NVME)
    assert drive is not None
    assert drive["link_class"] == "16 GT/s x4"


def test_a_running_sampler_ends_and_always_sees_something(root: Path) -> None:
    sampler = LinkSampler([GPU, "", GPU], sysfs=sysfs(root), period_seconds=60)
    with sampler.running():
        pass
    assert sampler.summary()[GPU]["samples"] == 1


def test_summaries_are_merged() -> None:
    one = {"a": {"samples": 2, "lowest_gts": 2.5, "highest_gts": 8.0, "lowest_width": 16, "highest_width": 16}}
    two = {"a": {"samples": 3, "lowest_gts": 5.0, "highest_gts": 16.0, "lowest_width": 8, "highest_width": 16}}
    assert merge([one, two, {}]) == {
        "a": {"samples": 5, "lowest_gts": 2.5, "highest_gts": 16.0, "lowest_width": 8, "highest_width": 16}
    }
    assert link_class(2.5, 1) == "2.5 GT/s x1"
