"""Which drives a file lies on: from its file system through partitions, RAID and device mapper down to NVMe drives on PCI."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from .tree import Tree

_PCI = re.compile(r"/([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])(?=/)")
_CONTROLLER = re.compile(r"^nvme\d+$")
_OCTAL = re.compile(r"\\([0-7]{3})")
# A stack of mappings deeper than this is a loop in a corrupt capture.
_DEPTH_MAX = 16


@dataclass
class Backing:
    """What lies below a file: names of the block devices at the bottom, and the PCI addresses where these are NVMe drives."""

    names: list[str] = field(default_factory=list)
    addresses: list[str] = field(default_factory=list)
    reason: str = ""

    def text(self) -> str:
        """The drives for a person, or why there are none."""
        return ", ".join(self.names) if self.names else self.reason


def backing(path: str, tree: Tree, device: int | None = None) -> Backing:
    """The drives below a file. `device` stands for its `st_dev` where the tree is not this machine's.

    `addresses` is filled only where every drive at the bottom is an NVMe drive on PCI; otherwise `reason` says what else there is.
    """
    try:
        number = device if device is not None else Path(path).stat().st_dev
    except OSError as error:
        return Backing(reason=f"{path} cannot be looked at: {error.strerror}")
    if os.major(number):
        starts = [f"{os.major(number)}:{os.minor(number)}"]
    else:
        kind, source = _mount(path, tree)
        starts = _members(kind, source, tree)
        if not starts:
            return Backing(
                reason=f"{path} lies on {kind or 'an unknown file system'} ({source or '?'}), not on a drive of this machine"
            )
    found = Backing()
    others: list[str] = []
    for start in starts:
        folder = os.path.realpath(tree.path(f"/sys/dev/block/{start}"))
        if not Path(folder).is_dir():
            return Backing(reason=f"the block device {start} below {path} is not in /sys/dev/block")
        _walk(folder, found, others, 0)
    if others:
        found.addresses = []
        found.reason = (
            f"{path} lies on {', '.join(others)}: no NVMe drive, so there is no PCIe link of a drive to look at"
        )
    return found


def _walk(folder: str, found: Backing, others: list[str], depth: int) -> None:
    """Go down from a block device's folder in sysfs to the drives."""
    if (Path(folder) / "partition").exists():
        folder = str(Path(folder).parent)
    name = Path(folder).name
    below = sorted(Path(folder, "slaves").iterdir()) if Path(folder, "slaves").is_dir() else []
    if below and depth < _DEPTH_MAX:
        for slave in below:
            _walk(os.path.realpath(slave), found, others, depth + 1)
        return
    if name in found.names:
        return
    found.names.append(name)
    addresses = _addresses(folder) if name.startswith("nvme") else []
    if addresses:
        found.addresses += [address for address in addresses if address not in found.addresses]
    else:
        others.append(_kind(name, folder))


def _addresses(folder: str) -> list[str]:
    """The PCI addresses of the controllers of a namespace: one, or with multipath one for each way; none over a network."""
    controllers = [folder + "/"]
    if "/nvme-subsystem/" in folder:
        parent = Path(folder).parent
        controllers = [
            os.path.realpath(entry) + "/" for entry in sorted(parent.iterdir()) if _CONTROLLER.match(entry.name)
        ]
    found = [_PCI.findall(controller) for controller in controllers]
    return [addresses[-1] for addresses in found if addresses]


def _kind(name: str, folder: str) -> str:
    for start, what in (
        ("vd", "virtio disk"),
        ("loop", "loop device"),
        ("nvme", "NVMe over a network"),
        ("nbd", "network disk"),
    ):
        if name.startswith(start):
            return f"{what} {name}"
    return f"{'virtio disk' if '/virtio' in folder else 'disk'} {name}"


def _mount(path: str, tree: Tree) -> tuple[str, str]:
    """File system and source of the mount that holds a path."""
    best, kind, source = -1, "", ""
    real = os.path.realpath(path)
    for line in (tree.text("/proc/self/mountinfo") or "").splitlines():
        head, _, tail = line.partition(" - ")
        words, rest = head.split(), tail.split()
        if len(words) < 5 or len(rest) < 2:
            continue
        point = _OCTAL.sub(lambda match: chr(int(match.group(1), 8)), words[4])
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= best:
            best, kind, source = len(point), rest[0], rest[1]
    return kind, source


def _members(kind: str, source: str, tree: Tree) -> list[str]:
    """Device numbers (`259:3`) of a file system that has no device number of its own: btrfs names its devices."""
    if kind != "btrfs" or not source.startswith("/dev/"):
        return []
    name = os.path.realpath(tree.path(source)).rsplit("/", 1)[-1]
    for uuid in tree.names("/sys/fs/btrfs"):
        devices = tree.names(f"/sys/fs/btrfs/{uuid}/devices")
        if name in devices:
            numbers = [tree.text(f"/sys/class/block/{device}/dev") for device in devices]
            return [number for number in numbers if number]
    return []
