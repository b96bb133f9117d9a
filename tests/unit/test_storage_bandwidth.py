"""Which drives a model lies on, their links while fio reads, and the time to load the checkpoint."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import storage_bandwidth as storage
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.block_devices import Backing, backing
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.gates import judge
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.link_load import LinkFacts
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.pci_topology import pci_facts
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.probe_support import LinkSampler
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.tree import Tree

from tests.tools.lspci_tree import machine

RULES = yaml.safe_load((Path(__file__).parents[2] / "group_vars/all/gates.yml").read_text())["gates_rules"]
ONE, ONE_PORT, TWO = "0000:18:00.0", "0000:17:00.0", "0000:3a:00.0"


class Disks:
    """Block devices in a tree: real folders below /sys/devices, numbers in /sys/dev/block."""

    def __init__(self, root: Path) -> None:
        self.root, self.numbers = root, iter(range(1, 99))
        (root / "sys/dev/block").mkdir(parents=True, exist_ok=True)
        (root / "sys/class/block").mkdir(parents=True, exist_ok=True)

    def add(self, folder: str, slaves: list[Path] | None = None, partition: bool = False) -> tuple[int, Path]:
        place = self.root / "sys/devices" / folder
        place.mkdir(parents=True)
        minor = next(self.numbers)
        (self.root / f"sys/dev/block/259:{minor}").symlink_to(place)
        (self.root / f"sys/class/block/{place.name}").symlink_to(place)
        (place / "dev").write_text(f"259:{minor}\n")
        if partition:
            (place / "partition").write_text("1\n")
        for slave in slaves or []:
            (place / "slaves").mkdir(exist_ok=True)
            (place / "slaves" / slave.name).symlink_to(slave)
        return os.makedev(259, minor), place

    def nvme(self, address: str, number: int) -> tuple[int, Path]:
        found = list((self.root / "sys/devices").glob(f"**/{address}"))
        folder = found[0].relative_to(self.root / "sys/devices") if found else Path(f"pci0000:00/{address}")
        return self.add(f"{folder}/nvme/nvme{number}/nvme{number}n1")


@pytest.fixture(scope="module")
def hgx(tmp_path_factory: pytest.TempPathFactory) -> Path:
    capture = Path(__file__).parents[1] / "fixtures/pci/gpud_hgx_8xH100_spr_lspci-vvv.txt.gz"
    return machine(capture).write(tmp_path_factory.mktemp("storage") / "hgx")


def looked(root: Path, device: int) -> Backing:
    return backing("/models/a", Tree(str(root)), device)


def test_a_partition_of_a_drive(tmp_path: Path) -> None:
    disks = Disks(tmp_path)
    _, drive = disks.nvme(ONE, 0)
    part, _ = disks.add(str(drive.relative_to(tmp_path / "sys/devices") / "nvme0n1p2"), partition=True)
    found = looked(tmp_path, part)
    assert (found.names, found.addresses, found.reason) == (["nvme0n1"], [ONE], "")


def test_a_raid_and_a_mapping_over_partitions_name_every_drive(tmp_path: Path) -> None:
    disks = Disks(tmp_path)
    parts = []
    for number, address in enumerate((ONE, TWO)):
        _, drive = disks.nvme(address, number)
        parts.append(
            disks.add(str(drive.relative_to(tmp_path / "sys/devices") / f"nvme{number}n1p1"), partition=True)[1]
        )
    _, raid = disks.add("virtual/block/md0", parts)
    mapping, _ = disks.add("virtual/block/dm-0", [raid])
    found = looked(tmp_path, mapping)
    assert (found.names, found.addresses) == (["nvme0n1", "nvme1n1"], [ONE, TWO])


def test_native_multipath_leads_to_the_controllers(tmp_path: Path) -> None:
    disks = Disks(tmp_path)
    device, drive = disks.add("virtual/nvme-subsystem/nvme-subsys0/nvme0n1")
    controller = tmp_path / f"sys/devices/pci0000:17/{ONE}/nvme/nvme0"
    controller.mkdir(parents=True)
    (drive.parent / "nvme0").symlink_to(controller)
    assert looked(tmp_path, device).addresses == [ONE]


@pytest.mark.parametrize(
    ("folder", "word"),
    [
        ("pci0000:00/0000:00:02.0/virtio1/block/vda", "virtio disk vda"),
        ("pci0000:00/0000:00:17.0/ata1/host0/target0:0:0/0:0:0:0/block/sda", "disk sda"),
        ("virtual/block/loop0", "loop device loop0"),
        ("virtual/nvme-fabrics/ctl/nvme0/nvme0n1", "NVMe over a network nvme0n1"),
    ],
)
def test_what_is_no_nvme_drive_on_pci_is_skipped_with_the_reason(tmp_path: Path, folder: str, word: str) -> None:
    device, _ = Disks(tmp_path).add(folder)
    found = looked(tmp_path, device)
    assert found.addresses == []
    assert f"/models/a lies on {word}: no NVMe drive" in found.reason
    checks = storage.link_measurements(found, LinkFacts({"functions": [], "links": [], "devices": []}), {}, "/models")
    assert [judge(check, RULES).status for check in checks] == ["SKIPPED", "SKIPPED"]


def test_one_drive_that_is_none_takes_the_limit_away(tmp_path: Path) -> None:
    disks = Disks(tmp_path)
    members = [disks.nvme(ONE, 0)[1], disks.add("pci0000:00/ata1/block/sda")[1]]
    raid, _ = disks.add("virtual/block/md0", members)
    assert looked(tmp_path, raid).addresses == []


def test_network_and_memory_file_systems(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text(
        "22 1 0:20 / / rw - overlay overlay rw\n"
        "36 22 0:50 / /models rw,relatime shared:1 - nfs4 storage:/models rw\n"
        "37 22 0:51 / /my\\040models rw - tmpfs tmpfs rw\nbroken\n"
    )
    assert "/models/a lies on nfs4 (storage:/models), not on a drive" in looked(tmp_path, 50).reason
    tree = Tree(str(tmp_path))
    assert "lies on tmpfs" in backing("/my models/a", tree, 51).reason
    assert "lies on overlay" in backing("/elsewhere", tree, 20).reason
    assert "an unknown file system" in backing("/models", Tree(str(tmp_path / "none")), 50).reason


def test_btrfs_names_all_its_devices(tmp_path: Path) -> None:
    disks = Disks(tmp_path)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "dev").mkdir()
    (tmp_path / "proc/self/mountinfo").write_text("36 1 0:50 / /models rw - btrfs /dev/nvme0n1 rw\n")
    (tmp_path / "dev/nvme0n1").write_text("")
    for number, address in enumerate((ONE, TWO)):
        disks.nvme(address, number)
        (tmp_path / f"sys/fs/btrfs/0-1/devices/nvme{number}n1").mkdir(parents=True)
    assert looked(tmp_path, 50).addresses == [ONE, TWO]


def test_a_path_that_is_gone_or_a_device_that_is_unknown(tmp_path: Path) -> None:
    assert "cannot be looked at: No such file" in backing(str(tmp_path / "none"), Tree(str(tmp_path))).reason
    assert "259:7 below /models/a is not in /sys/dev/block" in looked(tmp_path, os.makedev(259, 7)).reason


def test_a_loop_of_mappings_ends(tmp_path: Path) -> None:
    device, first = Disks(tmp_path).add("virtual/block/dm-0")
    (first / "slaves").mkdir()
    (first / "slaves/dm-0").symlink_to(first)
    assert "disk dm-0" in looked(tmp_path, device).reason


def test_this_machine_knows_what_its_files_lie_on(tmp_path: Path) -> None:
    found = backing(str(tmp_path), Tree())
    assert found.text()


def reading(value: float = 6e9) -> dict:
    return {
        "name": storage.NAME,
        "scope": "/models",
        "value": value,
        "unit": "B/s",
        "limit": None,
        "limit_source": "",
        "conditions": {},
    }


def seen(root: Path, links: LinkFacts, *addresses: str) -> dict:
    sampler = LinkSampler([step for each in addresses for step in links.path(each)], sysfs=root / "sys/bus/pci/devices")
    sampler.sample()
    return sampler.summary()


def test_the_limit_is_what_the_links_of_the_drives_carry_together(hgx: Path) -> None:
    links, below = LinkFacts(pci_facts(str(hgx))), Backing(["nvme0n1", "nvme1n1"], [ONE, TWO])
    found = reading()
    storage.with_limit(found, below, links, seen(hgx, links, ONE, TWO))
    assert found["limit"] == pytest.approx(2 * 7.877e9, rel=1e-3)
    assert (found["link_class"], found["conditions"]["backing"]) == ("2 x 16 GT/s x4", "nvme0n1, nvme1n1")
    assert judge(found, RULES).status == "OK"
    assert judge({**found, "value": 1e9}, RULES).status == "WARN"
    checks = storage.link_measurements(below, links, seen(hgx, links, ONE, TWO), "/models")
    assert [(check["scope"], judge(check, RULES).status) for check in checks] == [
        (f"nvme {ONE}", "OK"),
        (f"nvme {ONE}", "OK"),
        (f"nvme {TWO}", "OK"),
        (f"nvme {TWO}", "OK"),
    ]


def test_a_drive_on_half_its_lanes_fails_and_explains_the_slow_reading(hgx: Path) -> None:
    links, below = LinkFacts(pci_facts(str(hgx))), Backing(["nvme0n1"], [ONE])
    state = seen(hgx, links, ONE)
    for end in (ONE, ONE_PORT):
        state[end]["highest_width"] = 2
    speed, width = storage.link_measurements(below, links, state, "/models")
    assert (judge(speed, RULES).status, judge(width, RULES).status) == ("OK", "CRITICAL")
    found = reading(0.9e9)
    storage.with_limit(found, below, links, state)
    check = judge(found, RULES)
    assert check.status == "WARN"
    assert f"NVMe drive {ONE}" in check.cause
    assert "runs x2" in check.cause


def test_the_time_to_load_a_checkpoint_is_its_bytes_over_the_rate() -> None:
    check = judge(storage.load_measurement(200 << 30, 2e9, "/models"), RULES)
    assert (check.status, check.value) == ("OK", pytest.approx(107.4, rel=1e-3))
    assert judge(storage.load_measurement(1500 << 30, 2e9, "/models"), RULES).status == "WARN"
    assert judge(storage.load_measurement(1500 << 30, 0.2e9, "/models"), RULES).status == "CRITICAL"


def test_fio_reads_only_and_each_job_its_own_part() -> None:
    call = storage.command("fio", (Path("/models/a:b"), 10 << 30), 5, 4, 8)
    assert "--readonly" in call
    assert "--filename=/models/a\\:b" in call
    assert f"--size={(10 << 30) // 4}" in call


def test_direct_io_that_the_file_system_does_not_know_is_said() -> None:
    found = storage.measurement('{"jobs": [{"error": 22, "read": {}}]}', "", "/models", {})
    assert found["error"] == "fio failed: Invalid argument (the file system may not know direct I/O)"
