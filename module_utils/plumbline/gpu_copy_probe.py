"""Times copies to, from, within and between GPUs. Runs as a program under a Python that has torch, beside `probe_support.py`.

    python gpu_copy_probe.py '{"chunk_bytes": [4194304, 1073741824], "seconds_per_point": 0.5, "repeats": 5,
                               "paths": {"0000:81:00.0": ["0000:81:00.0", "0000:80:01.0"]}}'

`paths`: for each GPU the PCI functions on its way to the root port, whose links are sampled *while* copies over PCIe run. Prints
one JSON object: `gpus` (address, name, NUMA node, memory), `notes`, and `points`, each with `kind`, `gpu`, `peer`, `chunk_bytes`,
`samples` (bytes per second, one per repeat), `submission` (`plain` or `graph`) and `link` (by address, the slowest and fastest state seen).

How bytes are counted: a copy of n bytes counts n, whichever way it goes; both directions at once count the sum of the
two; a copy within one GPU counts n, although the memory moves 2n (read and write). The clock is CUDA's own events
around the copies of one repeat. Sources hold a pattern that the targets must show in the end: a copy that moved nothing is no figure.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

if "." in __name__:  # not __package__: Python 3.9 sets that of a module in a zip file only after running it
    from . import probe_support as support
else:
    import probe_support as support  # type: ignore[import-not-found,unused-ignore,no-redef]

POOL_BYTES = 256 << 20
"""Small chunks are taken in turn from a pool of this size, as streamed expert weights are: one again and again would be cached."""
GRAPH_BELOW_BYTES = 64 << 20
"""Copies within and between GPUs that are smaller end before Python has submitted the next one: they are replayed from a CUDA graph."""
OVER_PCIE = ("host_to_device", "device_to_host", "bidirectional")
_ON_GPU_ONLY = ("device_to_device", "peer_to_peer")
_POOLS_ON_GPU = {"bidirectional": 2, "device_to_device": 2}
_CHUNK_MIN = 64 << 10
# What stays free of a GPU's memory: a program that runs there may want it.
_SHARE_OF_FREE = 0.9
_PATTERN = 0x5A
_CHECKED_BYTES = 64 << 10
# cuda.h, CUdevice_attribute.
_MEMORY_CLOCK_RATE_KHZ, _MEMORY_BUS_WIDTH_BITS = 36, 37


class WrongCopyError(Exception):
    """A target does not hold what was copied to it."""


def pci_address(properties: Any) -> str:
    """Return the PCI address of a CUDA device as the kernel spells it, or an empty text where torch does not tell."""
    bus = getattr(properties, "pci_bus_id", None)
    if bus is None:
        return ""
    return f"{getattr(properties, 'pci_domain_id', 0):04x}:{bus:02x}:{getattr(properties, 'pci_device_id', 0):02x}.0"


def memory_limit(index: int, driver: Any = None) -> float | None:
    """Bytes per second that a GPU's memory can move: clock x 2 (double data rate) x bus width / 8, as the driver tells them."""
    try:
        cuda = driver or ctypes.CDLL("libcuda.so.1")
        device, clock, width = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        failed = (
            cuda.cuDeviceGet(ctypes.byref(device), index)
            or cuda.cuDeviceGetAttribute(ctypes.byref(clock), _MEMORY_CLOCK_RATE_KHZ, device)
            or cuda.cuDeviceGetAttribute(ctypes.byref(width), _MEMORY_BUS_WIDTH_BITS, device)
        )
    except (OSError, AttributeError):
        return None
    found = clock.value * 1e3 * 2 * width.value / 8
    return found if not failed and found > 0 else None


def pin_to_gpu(address: str) -> tuple[list[int], bool]:
    """Bind this process to the CPUs next to the GPU, as far as it may use them; return its CPUs, and whether they are next to it."""
    near = support.cpu_list(support.read_text(support.SYSFS / address / "local_cpulist")) if address else set()
    local = near & os.sched_getaffinity(0)
    if local:
        os.sched_setaffinity(0, local)
    return sorted(os.sched_getaffinity(0)), bool(local) or not near


class Copies:
    """The copies of one point: chunks on one stream (two streams for both directions at once)."""

    def __init__(self, torch: Any, kind: str, gpu: int, peer: int, chunk_bytes: int) -> None:
        """Prepare copies of `chunk_bytes` on `gpu` (and `peer`, where two GPUs take part)."""
        self.torch, self.kind, self.gpu, self.peer, self.chunk_bytes = torch, kind, gpu, peer, chunk_bytes
        self.device = torch.device("cuda", gpu)
        self.streams = [torch.cuda.Stream(self.device), torch.cuda.Stream(self.device)]
        self.graph: Any = None
        self.plan = self._plan()
        self.round_bytes = chunk_bytes * len(self.plan)

    def _chunks(self, gpu: int | None, fill: int) -> list[Any]:
        """Return the chunks of one pool, in pinned host memory (`gpu` is None; written once, so the pages exist) or on a GPU."""
        size = max(1, POOL_BYTES // self.chunk_bytes) * self.chunk_bytes
        where = {"pin_memory": True} if gpu is None else {"device": self.torch.device("cuda", gpu)}
        pool = self.torch.empty(size, dtype=self.torch.uint8, **where)
        pool.fill_(fill)
        return list(pool.split(self.chunk_bytes))

    def _plan(self) -> list[tuple[Any, Any, Any]]:
        """Return (target, source, stream) of each copy of one round."""
        first, second = self.streams
        ends: dict[str, list[tuple[int | None, int | None, Any]]] = {
            "host_to_device": [(self.gpu, None, first)],
            "device_to_host": [(None, self.gpu, first)],
            "bidirectional": [(self.gpu, None, first), (None, self.gpu, second)],
            "device_to_device": [(self.gpu, self.gpu, first)],
            "peer_to_peer": [(self.peer, self.gpu, first)],
        }
        wanted = ends[self.kind]
        lanes = [list(zip(self._chunks(target, 0), self._chunks(source, _PATTERN))) for target, source, _ in wanted]
        # The directions take turns in the order of submission, so that neither queue runs ahead of the other.
        return [(*pair, stream) for pairs in zip(*lanes) for pair, (_, _, stream) in zip(pairs, wanted)]

    def _round(self) -> None:
        for target, source, stream in self.plan:
            with self.torch.cuda.stream(stream):
                target.copy_(source, non_blocking=True)

    @contextlib.contextmanager
    def _peer_in_capture(self) -> Iterator[None]:
        """Have the peer's current stream take part in the capture: torch orders a copy between two GPUs on both of them."""
        if self.kind != "peer_to_peer":
            yield
            return
        cuda, first = self.torch.cuda, self.streams[0]
        other = cuda.Stream(self.torch.device("cuda", self.peer))
        other.wait_stream(first)
        with cuda.stream(other), cuda.stream(first):
            yield
        first.wait_stream(other)

    def capture(self) -> str:
        """Record one round as a CUDA graph, for copies that are too small to be submitted one by one; return why not, if so."""
        if self.kind not in _ON_GPU_ONLY or self.chunk_bytes >= GRAPH_BELOW_BYTES:
            return ""
        try:
            graph = self.torch.cuda.CUDAGraph()
            with self.torch.cuda.graph(graph, stream=self.streams[0]), self._peer_in_capture():
                self._round()
            self.graph = graph
            self.timed(1)
        except (RuntimeError, AttributeError, TypeError) as error:
            self.graph = None
            return str(error).splitlines()[0] if str(error) else type(error).__name__
        return ""

    def timed(self, rounds: int) -> float:
        """Run `rounds` rounds and return the seconds from the first copy's start to the last one's end on the GPU's clock."""
        cuda = self.torch.cuda
        begin = cuda.Event(enable_timing=True)
        ends = [cuda.Event(enable_timing=True) for _ in self.streams]
        cuda.synchronize(self.device)
        begin.record(self.streams[0])
        self.streams[1].wait_event(begin)
        for _ in range(rounds):
            if self.graph is None:
                self._round()
            else:
                with cuda.stream(self.streams[0]):
                    self.graph.replay()
        for event, stream in zip(ends, self.streams):
            event.record(stream)
        for event in ends:
            event.synchronize()
        return float(max(begin.elapsed_time(event) for event in ends)) / 1e3

    def check(self) -> None:
        """Raise where the first or last target does not hold the pattern."""
        for target, _, _ in (self.plan[0], self.plan[-1]):
            if not bool((target[: min(_CHECKED_BYTES, self.chunk_bytes)] == _PATTERN).all()):
                raise WrongCopyError(f"a copy of {self.chunk_bytes} bytes did not arrive: the target holds other data")


def measure(copies: Copies, paths: list[str], seconds: float, repeats: int) -> dict[str, Any]:
    """Measure one point: a warm-up that also wakes the link and finds the number of rounds, then the repeats under a link sampler."""
    rounds = 1
    copies.timed(rounds)
    why_plain = copies.capture()
    while True:
        elapsed = copies.timed(rounds)
        if elapsed >= 0.05 or rounds >= 1 << 16:
            break
        rounds = min(1 << 16, max(rounds * 2, int(rounds * 0.06 / max(elapsed, 1e-6))))
    rounds = max(1, int(rounds * seconds / repeats / max(elapsed, 1e-6)))
    sampler = support.LinkSampler(paths if copies.kind in OVER_PCIE else [])
    with sampler.running():
        samples = [copies.round_bytes * rounds / copies.timed(rounds) for _ in range(repeats)]
    copies.check()
    return {
        "kind": copies.kind,
        "chunk_bytes": copies.chunk_bytes,
        "rounds": rounds,
        "samples": samples,
        "submission": "graph" if copies.graph is not None else "plain",
        "why_plain": why_plain,
        "link": sampler.summary(),
    }


def fitting_chunk(kind: str, chunk_bytes: int, free_bytes: int) -> int:
    """Halve a chunk until its pools fit into what is free on the GPU; 0 where not even small chunks fit."""
    pools = _POOLS_ON_GPU.get(kind, 1)
    while chunk_bytes >= _CHUNK_MIN and pools * max(chunk_bytes, POOL_BYTES) > free_bytes * _SHARE_OF_FREE:
        if chunk_bytes <= POOL_BYTES:
            return 0
        chunk_bytes //= 2
    return chunk_bytes


class Probe:
    """Measures every GPU that CUDA shows, one after the other, and every ordered pair of them."""

    def __init__(self, options: dict[str, Any], torch: Any) -> None:
        """Take the options of the program, and torch."""
        self.options, self.torch = options, torch
        self.points: list[dict[str, Any]] = []
        self.notes: list[str] = []
        count = torch.cuda.device_count()
        self.properties = [torch.cuda.get_device_properties(index) for index in range(count)]
        self.addresses = [pci_address(properties) for properties in self.properties]

    def run(self) -> dict[str, Any]:
        """Return the answer of the program, but for the time that it took."""
        everywhere = os.sched_getaffinity(0)
        gpus = []
        for index in range(len(self.addresses)):
            os.sched_setaffinity(0, everywhere)
            gpus.append(self._gpu(index))
            for chunk_bytes in dict.fromkeys(self.options["chunk_bytes"]):
                for kind in (*OVER_PCIE, "device_to_device"):
                    self._point(kind, index, index, int(chunk_bytes))
                for peer in range(len(self.addresses)):
                    if peer != index:
                        self._point("peer_to_peer", index, peer, int(chunk_bytes))
        os.sched_setaffinity(0, everywhere)
        versions = {"torch_version": self.torch.__version__, "cuda_version": self.torch.version.cuda}
        return {**versions, "gpus": gpus, "points": self.points, "notes": self.notes}

    def _gpu(self, index: int) -> dict[str, Any]:
        address, properties = self.addresses[index], self.properties[index]
        cpus, near = pin_to_gpu(address)
        return {
            "index": index,
            "address": address,
            "name": properties.name,
            "uuid": str(getattr(properties, "uuid", "")),
            "mig": " MIG " in f"{properties.name} ",
            "memory_total_bytes": properties.total_memory,
            "memory_free_bytes": int(self.torch.cuda.mem_get_info(index)[0]),
            "memory_bandwidth_limit": memory_limit(index),
            "numa_node": support.read_text(support.SYSFS / address / "numa_node") if address else "",
            "cpus": cpus,
            "cpus_near": near,
        }

    def _point(self, kind: str, gpu: int, peer: int, wanted: int) -> None:
        """Measure one point, with smaller chunks where the memory has no room for these; a failure becomes a point with `error`."""
        cuda, address = self.torch.cuda, self.addresses[gpu]
        point: dict[str, Any] = {"kind": kind, "chunk_bytes": wanted, "samples": []}
        free = min(int(cuda.mem_get_info(index)[0]) for index in {gpu, peer})
        chunk = fitting_chunk(kind, wanted, free)
        if not chunk:
            point["error"] = f"only {free >> 20} MiB of the GPU's memory are free: end the program that uses it"
        while chunk:
            try:
                copies = Copies(self.torch, kind, gpu, peer, chunk)
                point = measure(
                    copies,
                    self.options.get("paths", {}).get(address, [address]),
                    float(self.options["seconds_per_point"]),
                    int(self.options["repeats"]),
                )
                break
            except WrongCopyError as error:
                point["error"] = str(error)
                break
            except RuntimeError as error:  # torch.OutOfMemoryError is one
                point["error"] = (str(error).splitlines() or [type(error).__name__])[0][:300]
                if "memory" not in str(error) or chunk // 2 < POOL_BYTES:
                    break
                chunk //= 2
            finally:
                copies = None  # type: ignore[assignment]
                self._release()
        if point["samples"]:
            point.pop("error", None)
            if chunk != wanted:
                self.notes.append(
                    f"{kind} on {address}: {chunk >> 20} MiB chunks instead of {wanted >> 20} MiB, no more memory is free"
                )
        point.update(index=gpu, gpu=address, peer=self.addresses[peer] if peer != gpu else "", peer_index=peer)
        point["asked_chunk_bytes"] = wanted
        if peer != gpu:
            point["direct"] = bool(cuda.can_device_access_peer(gpu, peer))
        self.points.append(point)

    def _release(self) -> None:
        """Give memory back, pinned memory too: the next GPU's must lie beside that GPU."""
        self.torch.cuda.empty_cache()
        empty_host = getattr(getattr(self.torch, "_C", None), "_host_emptyCache", None)
        if empty_host:
            empty_host()


def probe(options: dict[str, Any], torch: Any) -> dict[str, Any]:
    """Measure every GPU that CUDA shows and every ordered pair of them; the program's answer as a dictionary."""
    return Probe(options, torch).run()


def main(argument: str, show: Callable[[str], None] = print) -> int:
    """Run the probe with the options of a JSON text; a missing torch or GPU is said in the answer, not raised."""
    support.end_with_parent()
    options = json.loads(argument)
    started = time.monotonic()
    try:
        import torch  # noqa: PLC0415 -- this program tells apart a Python without torch from one without a GPU
    except ImportError as error:
        show(json.dumps({"error": f"this Python cannot import torch: {error}"}))
        return 0
    if not torch.cuda.is_available():
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        hint = f" (CUDA_VISIBLE_DEVICES is '{visible}')" if visible is not None else ""
        build = f"torch {torch.__version__}"
        show(
            json.dumps(
                {"error": f"{build} sees no CUDA device{hint}: nvidia-smi must list one, and torch be built for CUDA"}
            )
        )
        return 0
    answer = probe(options, torch)
    answer["elapsed_seconds"] = time.monotonic() - started
    show(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
