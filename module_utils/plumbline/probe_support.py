"""What the probe programs share: sysfs, the sampler of links, and the promise to end with whoever started them.

The standard library only, and no relative import: the file is laid beside a probe that runs under another Python.
"""

from __future__ import annotations

import contextlib
import ctypes
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SYSFS = Path("/sys/bus/pci/devices")
_PR_SET_PDEATHSIG = 1
_WIDTH_MAX = 32


def end_with_parent() -> None:
    """Have the kernel end this process when the one that started it ends, however that ends (Linux only)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def read_text(path: Path) -> str:
    """Return a sysfs file's text, or an empty text where it cannot be read."""
    try:
        return path.read_text().strip()
    except (OSError, ValueError):
        return ""


def cpu_list(text: str) -> set[int]:
    """Parse the kernel's list format (`0-3,8`)."""
    cpus: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return cpus


class LinkSampler:
    """Reads the negotiated links of PCI functions again and again while a copy runs: an idle GPU shows a slow link to save power.

    Every function on the way to the root port is read, so that the narrowest hop is known; both ends of a link tell the same.
    """

    def __init__(self, addresses: list[str], period_seconds: float = 0.02, sysfs: Path | None = None) -> None:
        """Sample the functions at `addresses` every `period_seconds`."""
        self.sysfs = sysfs or SYSFS
        self.addresses = list(dict.fromkeys(address for address in addresses if address))
        self.period_seconds = period_seconds
        self.seen: dict[str, list[tuple[float, int]]] = {address: [] for address in self.addresses}
        self._stop = threading.Event()

    def sample(self) -> None:
        """Read every link once; one that does not tell its state (`Unknown`, no such file) adds nothing."""
        for address in self.addresses:
            speed = read_text(self.sysfs / address / "current_link_speed").split(" ")[0]
            width = read_text(self.sysfs / address / "current_link_width")
            with contextlib.suppress(ValueError):
                # A device that fell off the bus answers all ones.
                if int(width) <= _WIDTH_MAX:
                    self.seen[address].append((float(speed), int(width)))

    def _run(self) -> None:
        self.sample()
        while not self._stop.wait(self.period_seconds):
            self.sample()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Sample for as long as the block runs."""
        self._stop.clear()
        thread = threading.Thread(target=self._run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    def summary(self) -> dict[str, dict[str, Any]]:
        """Return by address how many samples there were, and the slowest and fastest state among them (GT/s, lanes)."""
        return {
            address: {
                "samples": len(seen),
                "lowest_gts": min(speed for speed, _ in seen),
                "highest_gts": max(speed for speed, _ in seen),
                "lowest_width": min(width for _, width in seen),
                "highest_width": max(width for _, width in seen),
            }
            for address, seen in self.seen.items()
            if seen
        }
