"""Measure configurations of vLLM's fused-MoE kernel on this GPU. Runs in the engine's Python, with its torch, Triton and vLLM.

What is timed is vLLM's own `fused_experts`: both products, the activation, the sorting of tokens by expert and the sum, captured in a
CUDA graph as decoding runs it, over routings and weights that change from call to call, so that no call finds its weights in the cache.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import triton
import vllm.model_executor.layers.fused_moe as vllm_moe_package
import vllm.model_executor.layers.fused_moe.fused_moe as vllm_moe
from triton.backends.compiler import GPUTarget
from vllm.platforms import current_platform

from .moe_tune_plan import Config, Shape, key_of

_ROUTINGS = 8
_DUELS = 15
_CACHES = 4  # weights of so many times the L2 cache are read before a weight comes again


class GpuBench:
    """See `Bench` in moe_tune_search."""

    def __init__(self, shape: Shape, *, workers: int, seed: int = 0) -> None:
        """Start the compilers (before CUDA is touched: they are forks of this process), then lay out weights and inputs."""
        self.shape = shape
        self._dtype = getattr(torch, shape.dtype)
        self._pool = Compilers(shape, workers) if workers > 1 else None
        torch.manual_seed(seed)
        self._device = torch.device("cuda", 0)
        properties = torch.cuda.get_device_properties(self._device)
        self.shared_memory_bytes = int(getattr(properties, "shared_memory_per_block_optin", 0) or 99 * 1024)
        one = shape.distinct_experts(1) * shape.expert_bytes
        copies = max(1, min(_ROUTINGS, -(-_CACHES * int(properties.L2_cache_size) // int(one * _ROUTINGS)) + 1))
        free, _ = torch.cuda.mem_get_info()
        copies = max(1, min(copies, int(free * 0.6) // (shape.experts * shape.expert_bytes)))
        self._weights = [self._random_weights() for _ in range(copies)]
        self._graphs: dict[tuple[int, tuple[int, ...], int], Any] = {}
        self._memory = torch.cuda.graph_pool_handle()
        self._inputs: dict[int, torch.Tensor] = {}
        self._routings: dict[tuple[int, int], list[tuple[torch.Tensor, torch.Tensor]]] = {}

    def close(self) -> None:
        """End the compilers."""
        if self._pool is not None:
            self._pool.close()

    def _random_weights(self) -> tuple[torch.Tensor, torch.Tensor]:
        shape = self.shape
        first = torch.empty(shape.experts, 2 * shape.width, shape.hidden, device=self._device, dtype=self._dtype)
        second = torch.empty(shape.experts, shape.hidden, shape.width, device=self._device, dtype=self._dtype)
        return first.normal_(0, shape.hidden**-0.5), second.normal_(0, shape.width**-0.5)

    def _input(self, tokens: int) -> torch.Tensor:
        if tokens not in self._inputs:
            self._inputs[tokens] = torch.randn(tokens, self.shape.hidden, device=self._device, dtype=self._dtype)
        return self._inputs[tokens]

    def _routing(self, tokens: int, part: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Weights and ids of the experts, as a router hands them on; `part` tells the search's from the duel's."""
        if (tokens, part) not in self._routings:
            many = []
            for _ in range(_ROUTINGS):
                scores = torch.rand(tokens, self.shape.experts, device=self._device)
                weights, ids = torch.topk(scores, self.shape.top_k, dim=-1)
                many.append((weights / weights.sum(-1, keepdim=True), ids.to(torch.int32)))
            self._routings[tokens, part] = many
        return self._routings[tokens, part]

    def _call(self, tokens: int, part: int, turn: int) -> torch.Tensor:
        first, second = self._weights[turn % len(self._weights)]
        weights, ids = self._routing(tokens, part)[turn % _ROUTINGS]
        return vllm_moe.fused_experts(self._input(tokens), first, second, weights, ids)

    def prepare(self, wanted: Sequence[tuple[int, Config]], deadline: float) -> None:
        """Compile in parallel; without compilers the first call of each configuration compiles it."""
        if self._pool is not None:
            self._pool.compile(wanted, deadline)

    def stock(self, tokens: int) -> Config:
        """Return what vLLM takes where no override is in force: a file that it ships, or its rule of thumb."""
        first, second = self._weights[0]
        config = vllm_moe.try_get_optimal_moe_config(first.size(), second.size(), self.shape.top_k, None, tokens)
        return {name: int(value) for name, value in config.items()}

    def _turns(self, tokens: int) -> int:
        return _ROUTINGS if tokens <= 1024 else 2

    def _graph(self, tokens: int, config: Config, part: int) -> Any:
        key = (tokens, key_of(config), part)
        if key not in self._graphs:
            turns = self._turns(tokens)
            with overriding(config):
                self._call(tokens, part, 0)
                torch.cuda.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool=self._memory):
                    for turn in range(turns):
                        self._call(tokens, part, turn)
            graph.replay()
            torch.cuda.synchronize()
            self._graphs[key] = graph
        return self._graphs[key]

    def _replay(self, tokens: int, graph: Any) -> float:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1000 / self._turns(tokens)

    def seconds(self, tokens: int, config: Config, repeats: int) -> float | None:
        """Return the best of `repeats` replays, over the calls of one replay."""
        try:
            graph = self._graph(tokens, config, 0)
        except Exception as error:
            if _unusable(error):
                return None
            raise
        return min(self._replay(tokens, graph) for _ in range(repeats))

    def duel(self, tokens: int, one: Config, other: Config) -> tuple[list[float], list[float]]:
        """Replay the two in turn, on other routings than the search."""
        graphs = self._graph(tokens, one, 1), self._graph(tokens, other, 1)
        ours, theirs = [], []
        for _ in range(_DUELS):
            ours.append(self._replay(tokens, graphs[0]))
            theirs.append(self._replay(tokens, graphs[1]))
        return ours, theirs

    def difference(self, tokens: int, one: Config, other: Config) -> float:
        """Return the relative difference of the two results for one input, over all its elements."""
        answers = []
        for config in (one, other):
            with overriding(config):
                answers.append(self._call(tokens, 0, 0).float())
        return float((answers[0] - answers[1]).norm() / answers[1].norm())

    def reference_difference(self, tokens: int = 16) -> float:
        """Return how far vLLM's stock answer is from the same experts in float32 by plain products: the yardstick must be right itself."""
        first, second = self._weights[0]
        weights, ids = self._routing(tokens, 0)[0]
        given = self._input(tokens)
        answer = vllm_moe.fused_experts(given, first, second, weights, ids).float()
        wanted = torch.zeros_like(answer)
        for token in range(tokens):
            for share, expert in zip(weights[token].tolist(), ids[token].tolist()):
                gate, up = (first[expert].float() @ given[token].float()).chunk(2)
                wanted[token] += share * (second[expert].float() @ (torch.nn.functional.silu(gate) * up))
        return float((answer - wanted).norm() / wanted.norm())

    def forget(self, tokens: int) -> None:
        """Free graphs, inputs and routings of a batch size."""
        for key in [key for key in self._graphs if key[0] == tokens]:
            del self._graphs[key]
        self._inputs.pop(tokens, None)
        for part in (0, 1):
            self._routings.pop((tokens, part), None)


@contextlib.contextmanager
def overriding(config: Config) -> Iterator[None]:
    """Have vLLM take this configuration. vLLM's own `override_config` stays in force where what it encloses fails."""
    package = vllm_moe_package
    before = package.get_config()
    try:
        with package.override_config(dict(config)):
            yield
    finally:
        package._config = before


def _unusable(error: Exception) -> bool:
    """Whether this GPU or Triton refuses the configuration, which is an answer; anything else is a failure."""
    name, said = type(error).__name__, str(error)
    return (
        name in ("OutOfResources", "CompilationError", "PTXASError")
        or "out of resource" in said
        or "PassManager" in said
    )


class Compilers:
    """Processes that compile the kernel into Triton's cache on disk without touching the GPU."""

    def __init__(self, shape: Shape, workers: int) -> None:
        """Fork them: they have vLLM loaded already, and must not inherit a CUDA context."""
        if torch.cuda.is_initialized():
            raise RuntimeError("The compilers must be started before CUDA.")
        capability = current_platform.get_device_capability()
        target = capability.major * 10 + capability.minor
        context = multiprocessing.get_context("fork")
        self._pool = context.Pool(workers, initializer=_compiler_start, initargs=(shape, target))
        self._seen: set[tuple[Any, ...]] = set()
        self._shape = shape

    def compile(self, wanted: Sequence[tuple[int, Config]], deadline: float) -> None:
        """Compile what has not been compiled; what is not ready at the deadline is left to itself."""
        jobs = []
        for tokens, config in wanted:
            rows = tokens * self._shape.top_k
            # What Triton makes another kernel of: the arguments that are or are not multiples of 16, and vLLM's path for few rows.
            mark = (key_of(config), rows % 16 == 0, rows * 4 <= self._shape.experts)
            if mark not in self._seen:
                self._seen.add(mark)
                jobs.append((tokens, config))
        result = self._pool.map_async(_compile, jobs, chunksize=1)
        result.wait(max(0.0, deadline - time.monotonic()))

    def close(self) -> None:
        """End the processes."""
        self._pool.terminate()
        self._pool.join()


_shape: Shape | None = None


def _compiler_start(shape: Shape, target: int) -> None:
    global _shape  # noqa: PLW0603 - one a process
    _shape = shape
    os.nice(1)
    pretend_gpu(target)


def pretend_gpu(target: int) -> None:
    """Have Triton compile for a GPU of this compute capability (90 for 9.0) in a process that has none."""
    driver = _NoDriver(GPUTarget("cuda", target, 32))
    triton.runtime.driver.set_active(driver)


class _NoDriver:
    """As much of a driver as compiling asks for."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def get_current_target(self) -> Any:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> Any:
        return torch.device("meta")


def _compile(job: tuple[int, Config]) -> str:
    tokens, config = job
    assert _shape is not None  # noqa: S101
    try:
        compile_kernels(_shape, tokens, config)
    except Exception as error:
        # The measurement meets the same refusal and judges it.
        return f"{type(error).__name__}: {error}"[:300]
    return ""


def compile_kernels(shape: Shape, tokens: int, config: Config) -> None:
    """Compile the kernel for both products of one configuration, by vLLM's own launcher on tensors that hold nothing."""
    dtype = getattr(torch, shape.dtype)
    meta: dict[str, Any] = {"device": "meta"}
    rows = tokens * shape.top_k
    few = rows * 4 <= shape.experts
    block = config["BLOCK_SIZE_M"]
    sorted_rows = rows + shape.experts * (block - 1)
    if rows < shape.experts:
        sorted_rows = min(rows * block, sorted_rows)
    ordered = None if few else torch.empty(sorted_rows, dtype=torch.int32, **meta)
    owners = torch.empty(rows if few else -(-sorted_rows // block), dtype=torch.int32, **meta)
    padded = torch.empty(1, dtype=torch.int32, **meta)
    shares = torch.empty(tokens, shape.top_k, dtype=torch.float32, **meta)
    given = torch.empty(tokens, shape.hidden, dtype=dtype, **meta)
    between = torch.empty(tokens, shape.top_k, 2 * shape.width, dtype=dtype, **meta)
    active = torch.empty(rows, shape.width, dtype=dtype, **meta)
    out = torch.empty(tokens, shape.top_k, shape.hidden, dtype=dtype, **meta)
    first = torch.empty(shape.experts, 2 * shape.width, shape.hidden, dtype=dtype, **meta)
    second = torch.empty(shape.experts, shape.hidden, shape.width, dtype=dtype, **meta)
    kind = vllm_moe.tl.bfloat16 if shape.dtype == "bfloat16" else vllm_moe.tl.float16
    real = vllm_moe.fused_moe_kernel
    vllm_moe.fused_moe_kernel = _CompileOnly(real)
    try:
        for a, b, c, weighted, top_k in ((given, first, between, False, shape.top_k), (active, second, out, True, 1)):
            vllm_moe.invoke_fused_moe_triton_kernel(
                a,
                b,
                c,
                None,
                None,
                shares,
                ordered,
                owners,
                padded,
                weighted,
                top_k,
                dict(config),
                compute_type=kind,
                use_fp8_w8a8=False,
                use_int8_w8a8=False,
                use_int8_w8a16=False,
                use_int4_w4a16=False,
                per_channel_quant=False,
                block_shape=None,
            )
    finally:
        vllm_moe.fused_moe_kernel = real


class _CompileOnly:
    """The kernel, compiled where it would be launched."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel

    def __getitem__(self, grid: Any) -> Any:
        return lambda *arguments, **options: self._kernel.warmup(*arguments, grid=(1,), **options)
