"""What NVLink can carry between two GPUs, as `nvidia-smi` tells it: the speed of each link, and how many a pair has."""

from __future__ import annotations

import re
from typing import Any

GPU_LINE = re.compile(r"^GPU ([0-9]{1,4}): (.*?)(?: \(UUID: ([^)]*)\))?\s*$")
"""The head of what `nvidia-smi nvlink` says of a GPU: index, name and UUID."""
_LINK = re.compile(r"^\s*Link ([0-9]{1,3}): (?:([0-9]{1,6}(?:\.[0-9]{1,6})?) GB/s|<?in-?active>?)\s*$", re.IGNORECASE)
_BONDED = re.compile(r"^NV(\d+)$")
_QUERY = re.compile(r"^(\d+), *([0-9A-Fa-f]+):([0-9A-Fa-f]{2}):([0-9A-Fa-f]{2})\.([0-7])$")
COMMANDS = {
    "status": ["nvidia-smi", "nvlink", "-s"],
    "topology": ["nvidia-smi", "topo", "-m"],
    "query": ["nvidia-smi", "--query-gpu=index,pci.bus_id", "--format=csv,noheader"],
}
"""What must be asked, by the name of the parser's argument."""


def parse_status(text: str) -> list[dict[str, Any]]:
    """GPUs of `nvidia-smi nvlink -s`: `index`, `name`, `uuid`, `links` (number: bytes per second one way, `None` when inactive)."""
    gpus: list[dict[str, Any]] = []
    for line in text.splitlines():
        if gpu := GPU_LINE.match(line):
            gpus.append({"index": int(gpu[1]), "name": gpu[2], "uuid": gpu[3] or "", "links": {}})
        elif gpus and (link := _LINK.match(line)):
            gpus[-1]["links"][int(link[1])] = float(link[2]) * 1e9 if link[2] else None
    return gpus


def parse_topology(text: str) -> dict[tuple[int, int], int]:
    """For each ordered pair of GPUs how many NVLinks join them, from the matrix; pairs without NVLink are left out."""
    pairs: dict[tuple[int, int], int] = {}
    header: list[str] = []
    for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines():
        words = line.split()
        if words and words[0].startswith("GPU") and len(words) > 1:
            if words[1].startswith("GPU") or words[1] in ("CPU", "NIC0"):
                header = header or [word for word in words if re.fullmatch(r"GPU\d+", word)]
                continue
            row = _index(words[0])
            for column, cell in zip(header, words[1:]):
                bonded = _BONDED.match(cell)
                if row is not None and bonded:
                    pairs[row, _index(column) or 0] = int(bonded.group(1))
    return pairs


def parse_query(text: str) -> dict[str, int]:
    """Index of each GPU, as nvidia-smi counts, by its PCI address as the kernel spells it."""
    found = {}
    for line in text.splitlines():
        match = _QUERY.match(line.strip())
        if match:
            index, domain, bus, device, function = match.groups()
            found[f"{int(domain, 16):04x}:{bus.lower()}:{device.lower()}.{function}"] = int(index)
    return found


class NvLinks:
    """The NVLinks of a machine, asked by PCI address."""

    def __init__(self, status: str = "", topology: str = "", query: str = "") -> None:
        """Take what the three `COMMANDS` printed; what is missing means that there is nothing to say."""
        self.links = {gpu["index"]: gpu["links"] for gpu in parse_status(status)}
        self.pairs, self.indexes = parse_topology(topology), parse_query(query)

    def _of(self, address: str) -> dict[int, float | None]:
        return dict(self.links.get(self.indexes.get(address, -1), {}))

    def _speeds(self, address: str) -> list[float]:
        return [speed for speed in self._of(address).values() if speed]

    def pair(self, first: str, second: str) -> tuple[float, str] | None:
        """Bytes per second of one direction between two GPUs and how that came about; `None` where no NVLink joins them."""
        ends = (self.indexes.get(first, -1), self.indexes.get(second, -1))
        speeds, count = self._speeds(first), self.pairs.get(ends, 0)
        if not speeds or not count:
            return None
        speed = min(speeds)
        return count * speed, f"{count} NVLinks x {speed / 1e9:g} GB/s (nvidia-smi)"

    def gpu(self, address: str) -> tuple[float, str] | None:
        """Bytes per second of one direction of all active links of a GPU and how that came about; `None` without NVLink."""
        speeds = self._speeds(address)
        return (sum(speeds), f"{len(speeds)} NVLinks x {min(speeds) / 1e9:g} GB/s (nvidia-smi)") if speeds else None

    def every(self) -> tuple[float, str] | None:
        """The least that all links of a GPU carry together, over the GPUs; `None` where one has no NVLink."""
        found = [self.gpu(address) for address in self.indexes]
        known = [one for one in found if one]
        return min(known) if known and len(known) == len(found) else None

    def inactive(self, address: str) -> int:
        """How many links of a GPU are down though they exist."""
        return sum(not speed for speed in self._of(address).values())


def _index(name: str) -> int | None:
    digits = name[3:]
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 5 else None
