"""What NVLink can carry between two GPUs, as `nvidia-smi` tells it: the speed of each link, and how many a pair has."""

from __future__ import annotations

import re
from typing import Any

_GPU = re.compile(r"^GPU (\d+):")
_LINK = re.compile(r"^\s+Link (\d+): ([0-9.]+) GB/s")
_DOWN = re.compile(r"^\s+Link (\d+): .*in-?active", re.IGNORECASE)
_BONDED = re.compile(r"^NV(\d+)$")
_QUERY = re.compile(r"^(\d+), *([0-9A-Fa-f]+):([0-9A-Fa-f]{2}):([0-9A-Fa-f]{2})\.([0-7])$")
COMMANDS = {
    "status": ["nvidia-smi", "nvlink", "-s"],
    "topology": ["nvidia-smi", "topo", "-m"],
    "query": ["nvidia-smi", "--query-gpu=index,pci.bus_id", "--format=csv,noheader"],
}
"""What must be asked, by the name of the parser's argument."""


def parse_status(text: str) -> dict[int, dict[str, Any]]:
    """By the index of a GPU: `speeds` of its active links (bytes per second, one direction) and how many are `inactive`."""
    gpus: dict[int, dict[str, Any]] = {}
    current: dict[str, Any] | None = None
    for line in text.splitlines():
        if gpu := _GPU.match(line):
            current = gpus.setdefault(int(gpu.group(1)), {"speeds": [], "inactive": 0})
        elif current is None:
            continue
        elif link := _LINK.match(line):
            current["speeds"].append(_number(link.group(2)) * 1e9)
        elif _DOWN.match(line):
            current["inactive"] += 1
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
        self.status, self.pairs, self.indexes = parse_status(status), parse_topology(topology), parse_query(query)

    def _speeds(self, address: str) -> list[float]:
        return list(self.status.get(self.indexes.get(address, -1), {}).get("speeds", []))

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
        return int(self.status.get(self.indexes.get(address, -1), {}).get("inactive", 0))


def _index(name: str) -> int | None:
    digits = name[3:]
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 5 else None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
