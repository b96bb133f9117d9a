"""A torch that copies bytes and keeps a clock of its own: enough of it for the GPU copy probe."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

GIB = 1 << 30


class _Compared:
    def __init__(self, equal: bool) -> None:
        self.equal = equal

    def all(self) -> bool:
        return self.equal


class FakeTensor:
    """Bytes that lie in host memory (`gpu` None) or on a GPU; a huge one keeps only its first byte, which stands for all."""

    def __init__(
        self, torch: FakeTorch, size: int, gpu: int | None, data: bytearray | None = None, start: int = 0
    ) -> None:
        self.torch, self.size, self.gpu, self.start = torch, size, gpu, start
        self.data = data if data is not None else bytearray(max(1, -(-size // torch.grain)))

    def fill_(self, value: int) -> None:
        self.data[:] = bytes([value]) * len(self.data)

    def split(self, size: int) -> list[FakeTensor]:
        return [FakeTensor(self.torch, size, self.gpu, self.data, start) for start in range(0, self.size, size)]

    def __getitem__(self, part: slice) -> FakeTensor:
        return FakeTensor(self.torch, part.stop, self.gpu, self.data, self.start)

    def __eq__(self, value: object) -> Any:
        return _Compared(self.data[self.start // self.torch.grain] == value)

    __hash__ = None  # type: ignore[assignment]

    def copy_(self, source: FakeTensor, non_blocking: bool = False) -> None:
        assert non_blocking
        self.torch.copy(self, source)


class FakeTorch:
    """`rates`: bytes per second by (from, to), each "host" or the index of a GPU. A copy takes its time on the fake clock."""

    __version__ = "2.99.0+fake"

    class OutOfMemoryError(RuntimeError):
        pass

    def __init__(self, gpus: int = 1, *, free_bytes: int = 100 * GIB, grain: int = 1 << 20, mig: bool = False) -> None:
        self.grain, self.free, self.mig = grain, free_bytes, mig
        self.now, self.captured, self.replayed = 0.0, [], 0
        self.allocated_limit: int | None = None
        self.lose_copies = False
        self.why_no_graph = ""
        self.uint8 = "uint8"
        self.version = SimpleNamespace(cuda="13.0")
        self._capturing: list[Any] | None = None
        self.host_emptied = 0
        self._C = SimpleNamespace(_host_emptyCache=self._empty_host)
        self.cuda = _Cuda(self, gpus)
        self.on_copy = lambda: None

    def _empty_host(self) -> None:
        self.host_emptied += 1

    def device(self, kind: str, index: int) -> SimpleNamespace:
        return SimpleNamespace(type=kind, index=index)

    def empty(self, size: int, dtype: str, device: Any = None, pin_memory: bool = False) -> FakeTensor:
        assert dtype == "uint8"
        assert (device is None) == pin_memory
        if self.allocated_limit is not None and size > self.allocated_limit:
            raise self.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size} bytes")
        return FakeTensor(self, size, None if device is None else device.index)

    def copy(self, target: FakeTensor, source: FakeTensor) -> None:
        if self._capturing is not None:
            if self.why_no_graph:
                raise RuntimeError(self.why_no_graph)
            self._capturing.append((target, source))
            return
        self.on_copy()
        if not self.lose_copies:
            count = max(1, source.size // self.grain)
            there, here = target.start // self.grain, source.start // self.grain
            target.data[there : there + count] = source.data[here : here + count]
        over_pcie = target.gpu is None or source.gpu is None
        self.now += source.size / (55e9 if over_pcie else 1000e9)


class _Cuda:
    def __init__(self, torch: FakeTorch, gpus: int) -> None:
        self.torch, self.gpus = torch, gpus
        torch_ = torch

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing
                self.at = 0.0

            def record(self, _stream: Any) -> None:
                self.at = torch_.now

            def synchronize(self) -> None:
                pass

            def elapsed_time(self, other: Event) -> float:
                return (other.at - self.at) * 1e3

        class CUDAGraph:
            def __init__(self) -> None:
                self.nodes: list[Any] = []

            def replay(self) -> None:
                torch_.replayed += 1
                for target, source in self.nodes:
                    torch_.copy(target, source)

        self.Event, self.CUDAGraph = Event, CUDAGraph

    def device_count(self) -> int:
        return self.gpus

    def is_available(self) -> bool:
        return self.gpus > 0

    def Stream(self, device: Any) -> SimpleNamespace:  # noqa: N802 - torch's name
        return SimpleNamespace(device=device, wait_event=lambda _event: None, wait_stream=lambda _stream: None)

    @contextlib.contextmanager
    def stream(self, _stream: Any) -> Iterator[None]:
        yield

    @contextlib.contextmanager
    def graph(self, graph: Any, stream: Any) -> Iterator[None]:
        self.torch._capturing = graph.nodes
        try:
            yield
        finally:
            self.torch._capturing = None

    def synchronize(self, _device: Any) -> None:
        pass

    def empty_cache(self) -> None:
        pass

    def mem_get_info(self, _index: int) -> tuple[int, int]:
        return self.torch.free, 140 * GIB

    def can_device_access_peer(self, _gpu: int, _peer: int) -> bool:
        return True

    def get_device_properties(self, index: int) -> SimpleNamespace:
        name = "NVIDIA Fake MIG 1g.18gb" if self.torch.mig else "NVIDIA Fake"
        # Buses 0x18, 0x2a, ... of the captured machine are asked for by the tests that need them.
        bus = getattr(self, "buses", [0x81, 0x82])[index]
        return SimpleNamespace(
            name=name, total_memory=140 * GIB, pci_bus_id=bus, pci_domain_id=0, pci_device_id=0, uuid="GPU-1"
        )
