"""Times copies to, from, within and between GPUs. Runs as a program under a Python that has torch, and imports nothing of Plumbline.

    python gpu_copy_probe.py '{"chunk_bytes": [4194304, 1073741824], "seconds_per_point": 0.5, "repeats": 5}'

Prints one JSON object: `gpus` (address, name, NUMA node, link while idle) and `points`, each with `kind`, `gpu`, `peer`, `chunk_bytes`,
`samples` (bytes per second, one per repeat) and `link` (the lowest and highest PCIe speed and width that were seen *while* the copy ran).

How bytes are counted: a copy of n bytes counts n, whichever way it goes; both directions at once count the sum of the
two; a copy within one GPU counts n, although the memory moves 2n (read and write). The clock is CUDA's own events
around the copies of one repeat.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SYSFS = Path("/sys/bus/pci/devices")


def pci_address(properties: Any) -> str:
    """Return the PCI address of a CUDA device as the kernel spells it, or an empty text where torch does not tell."""
    bus = getattr(properties, "pci_bus_id", None)
    if bus is None:
        return ""
    return f"{getattr(properties, 'pci_domain_id', 0):04x}:{bus:02x}:{getattr(properties, 'pci_device_id', 0):02x}.0"


def read_text(path: Path) -> str:
    """Return a sysfs file's text, or an empty text where it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def cpu_list(text: str) -> set[int]:
    """Parse the kernel's list format (`0-3,8`)."""
    cpus: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return cpus


class LinkSampler:
    """Reads a device's negotiated link again and again while a copy runs: an idle GPU shows a slow link to save power."""

    def __init__(self, address: str, period_seconds: float = 0.02) -> None:
        """Sample the device at `address` every `period_seconds`."""
        self.folder = SYSFS / address
        self.period_seconds = period_seconds
        self.seen: list[tuple[str, str]] = []
        self._stop = threading.Event()

    def _sample(self) -> None:
        while not self._stop.is_set():
            link = (read_text(self.folder / "current_link_speed"), read_text(self.folder / "current_link_width"))
            if all(link):
                self.seen.append(link)
            self._stop.wait(self.period_seconds)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Sample for as long as the block runs."""
        thread = threading.Thread(target=self._sample, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    def summary(self) -> dict[str, Any]:
        """Return how many samples there were, and the slowest and fastest link among them (GT/s, lanes)."""
        speeds = [float(speed.split()[0]) for speed, _ in self.seen if speed[0].isdigit()]
        widths = [int(width) for _, width in self.seen if width.isdigit()]
        if not speeds or not widths:
            return {"samples": 0}
        return {
            "samples": len(speeds),
            "lowest_gigatransfers_per_second": min(speeds),
            "highest_gigatransfers_per_second": max(speeds),
            "lowest_width": min(widths),
            "highest_width": max(widths),
        }


def pin_to_gpu(address: str) -> list[int]:
    """Bind this process to the CPUs next to the GPU, as far as it may use them; return the CPUs it is then bound to."""
    allowed = os.sched_getaffinity(0)
    local = cpu_list(read_text(SYSFS / address / "local_cpulist")) & allowed if address else set()
    if local:
        os.sched_setaffinity(0, local)
    return sorted(os.sched_getaffinity(0))


POOL_BYTES = 256 << 20
"""Small chunks are taken in turn from a pool of this size, as streamed expert weights are: one again and again would be cached."""


class Copies:
    """The copies of one point: chunks on one stream (two streams for both directions at once)."""

    def __init__(self, torch: Any, gpu: int, peer: int, chunk_bytes: int) -> None:
        """Prepare copies of `chunk_bytes` on `gpu` (and `peer`, where two GPUs take part)."""
        self.torch = torch
        self.gpu = gpu
        self.peer = peer
        self.chunk_bytes = chunk_bytes
        self.device = torch.device("cuda", gpu)
        self.streams = [torch.cuda.Stream(self.device), torch.cuda.Stream(self.device)]

    def chunks(self, gpu: int | None) -> list[Any]:
        """Return the chunks of one pool, in pinned host memory (`gpu` is None; written once, so the pages exist) or on a GPU."""
        count = max(1, POOL_BYTES // self.chunk_bytes)
        if gpu is None:
            pool = self.torch.zeros(count * self.chunk_bytes, dtype=self.torch.uint8, pin_memory=True)
        else:
            pool = self.torch.zeros(
                count * self.chunk_bytes, dtype=self.torch.uint8, device=self.torch.device("cuda", gpu)
            )
        return list(pool.split(self.chunk_bytes))

    def plan(self, kind: str) -> tuple[list[tuple[Any, Any, Any]], int]:
        """Return (target, source, stream) of each copy of one round, and the bytes that one round counts."""
        first, second = self.streams
        ends: dict[str, list[tuple[int | None, int | None, Any]]] = {
            "host_to_device": [(self.gpu, None, first)],
            "device_to_host": [(None, self.gpu, first)],
            "bidirectional": [(self.gpu, None, first), (None, self.gpu, second)],
            "device_to_device": [(self.gpu, self.gpu, first)],
            "peer_to_peer": [(self.peer, self.gpu, first)],
        }
        lanes = [list(zip(self.chunks(target), self.chunks(source))) for target, source, _ in ends[kind]]
        streams = [stream for _, _, stream in ends[kind]]
        # The directions take turns in the order of submission, so that neither queue runs ahead of the other.
        copies = [(*pair, stream) for pairs in zip(*lanes) for pair, stream in zip(pairs, streams)]
        return copies, self.chunk_bytes * len(copies)

    def timed(self, plan: list[tuple[Any, Any, Any]], rounds: int) -> float:
        """Run `rounds` rounds and return the seconds from the first copy's start to the last one's end on the GPU's clock."""
        cuda = self.torch.cuda
        begin = cuda.Event(enable_timing=True)
        ends = [cuda.Event(enable_timing=True) for _ in self.streams]
        cuda.synchronize(self.device)
        begin.record(self.streams[0])
        self.streams[1].wait_event(begin)
        for _ in range(rounds):
            for target, source, stream in plan:
                with cuda.stream(stream):
                    target.copy_(source, non_blocking=True)
        for event, stream in zip(ends, self.streams):
            event.record(stream)
        for event in ends:
            event.synchronize()
        return float(max(begin.elapsed_time(event) for event in ends)) / 1e3


def measure(copies: Copies, kind: str, address: str, seconds: float, repeats: int) -> dict[str, Any]:
    """Measure one point: a warm-up that also wakes the link and finds the number of rounds, then the repeats under a link sampler."""
    plan, round_bytes = copies.plan(kind)
    rounds = 1
    while True:
        elapsed = copies.timed(plan, rounds)
        if elapsed >= 0.05 or rounds >= 1 << 16:
            break
        rounds = min(1 << 16, max(rounds * 2, int(rounds * 0.06 / max(elapsed, 1e-6))))
    rounds = max(1, int(rounds * seconds / repeats / max(elapsed, 1e-6)))
    sampler = LinkSampler(address)
    with sampler.running():
        samples = [round_bytes * rounds / copies.timed(plan, rounds) for _ in range(repeats)]
    return {
        "kind": kind,
        "gpu": address,
        "peer": "",
        "chunk_bytes": copies.chunk_bytes,
        "rounds": rounds,
        "samples": samples,
        "link": sampler.summary(),
    }


def probe(options: dict[str, Any], torch: Any) -> dict[str, Any]:
    """Measure every GPU that CUDA shows, one after the other, and every ordered pair of them."""
    seconds, repeats = float(options["seconds_per_point"]), int(options["repeats"])
    gpus: list[dict[str, Any]] = []
    points: list[dict[str, Any]] = []
    notes: list[str] = []
    addresses = [pci_address(torch.cuda.get_device_properties(index)) for index in range(torch.cuda.device_count())]
    everywhere = os.sched_getaffinity(0)
    for index, address in enumerate(addresses):
        os.sched_setaffinity(0, everywhere)
        properties = torch.cuda.get_device_properties(index)
        gpus.append(
            {
                "index": index,
                "address": address,
                "name": properties.name,
                "memory_total_bytes": properties.total_memory,
                "numa_node": read_text(SYSFS / address / "numa_node"),
                "cpus": pin_to_gpu(address),
            }
        )
        pairs: list[tuple[str, int]] = [
            (kind, index) for kind in ("host_to_device", "device_to_host", "bidirectional", "device_to_device")
        ]
        pairs += [("peer_to_peer", peer) for peer in range(len(addresses)) if peer != index]
        for chunk_bytes in options["chunk_bytes"]:
            for kind, peer in pairs:
                try:
                    point = measure(Copies(torch, index, peer, int(chunk_bytes)), kind, address, seconds, repeats)
                except (torch.OutOfMemoryError, RuntimeError) as error:
                    notes.append(f"{kind} of {chunk_bytes} bytes on {address}: {str(error).splitlines()[0]}")
                    continue
                if kind == "peer_to_peer":
                    point["peer"] = addresses[peer]
                    point["direct"] = bool(torch.cuda.can_device_access_peer(index, peer))
                points.append(point)
                torch.cuda.empty_cache()
    return {
        "torch_version": torch.__version__,
        "cuda_version": torch.version.cuda,
        "gpus": gpus,
        "points": points,
        "notes": notes,
    }


def main(argument: str, show: Callable[[str], None] = print) -> int:
    """Run the probe with the options of a JSON text; a missing torch or GPU is said in the answer, not raised."""
    options = json.loads(argument)
    started = time.monotonic()
    try:
        import torch  # noqa: PLC0415 -- this program tells apart a Python without torch from one without a GPU
    except ImportError as error:
        show(json.dumps({"error": f"this Python cannot import torch: {error}"}))
        return 0
    if not torch.cuda.is_available():
        show(json.dumps({"error": "torch sees no CUDA device"}))
        return 0
    answer = probe(options, torch)
    answer["elapsed_seconds"] = time.monotonic() - started
    show(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
