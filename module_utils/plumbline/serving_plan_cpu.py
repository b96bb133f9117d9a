"""The plan for the CPU engine: NUMA nodes, and main memory for weights, processes and cache. Pure, standard library only."""

from __future__ import annotations

from dataclasses import dataclass

from .serving_plan import (
    SHORTEST_CONTEXT,
    TYPICAL_REQUEST,
    Line,
    Machine,
    Model,
    Node,
    Plan,
    Wish,
    cache_lines,
    cache_of,
    requests_at_once,
    shares,
    wanted_length,
)
from .serving_plan_cache import Cache, ceil_div
from .serving_plan_memory import GIB, PROCESS_BYTES, WORKER_BYTES, Step, activations, gib
from .serving_plan_options import check_block_size
from .serving_plan_weights import Weights

# engine/arg_utils.py, get_batch_defaults: of the CPU engine's API server, for each process.
_TOKENS, _REQUESTS = 2048, 128
# Left to the system where the cache's size is computed; what the inventory asks for may take it.
_SYSTEM_BYTES, _SYSTEM_FRACTION = GIB, 0.05
# Weights for each node from which splitting them over the nodes is worth the traffic between them.
_WORTH_SPLITTING = GIB
# Where it is not known what the cache takes.
_UNKNOWN_CACHE_GIB = 4
_SIXTEEN_BITS = 2


@dataclass(frozen=True)
class Fit:
    """The model on the machine: what each of `step.tensor_parallel` processes holds."""

    model: Model
    machine: Machine
    wish: Wish
    step: Step
    weights: Weights
    activations: int
    cache: Cache | None
    wanted: int

    @property
    def parallel(self) -> int:
        """Processes that share the model."""
        return self.step.tensor_parallel

    @property
    def rank(self) -> int:
        """Bytes of one process without its cache."""
        return self.weights.per_rank + self.activations

    @property
    def processes(self) -> int:
        """Bytes of all processes without weights, activations and cache."""
        return PROCESS_BYTES + (self.parallel - 1) * WORKER_BYTES

    @property
    def memory(self) -> int:
        """Bytes that this engine may have of main memory."""
        return self.machine.memory_bytes // self.wish.instances

    @property
    def node(self) -> int:
        """Bytes of the smallest NUMA node that is needed; 0 where there is but one."""
        sizes = sorted((node.memory_bytes for node in usable_nodes(self.machine)), reverse=True)
        return sizes[min(self.parallel, len(sizes)) - 1] // self.wish.instances if len(sizes) > 1 else 0

    @property
    def budget(self) -> int:
        """Bytes for the cache of one process, of what main memory and its node leave."""
        system = max(_SYSTEM_BYTES, int(_SYSTEM_FRACTION * self.memory))
        left = (self.memory - system - self.processes) // self.parallel - self.rank
        if self.node:
            # The processes beside the workers run on the first node at worst.
            left = min(left, int((1 - _SYSTEM_FRACTION) * self.node) - self.rank - PROCESS_BYTES // self.parallel)
        return left

    @property
    def cache_gib(self) -> int:
        """The cache of one process in whole GiB: as asked for, else for one request of full length and as many usual ones as may run."""
        if self.wish.kv_cache_gib:
            return self.wish.kv_cache_gib
        most = max(self.budget // GIB, 1)
        if self.cache is None:
            return min(_UNKNOWN_CACHE_GIB, most)
        usual = min(self.wish.request_tokens or TYPICAL_REQUEST, self.wanted)
        many = self.step.requests * self.cache.blocks_per_request(usual) * self.cache.bytes_per_block
        return min(max(1, ceil_div(max(self.cache.request_bytes(self.wanted), many), GIB)), most)

    @property
    def length(self) -> int:
        """The longest request up to the wanted length that the cache holds."""
        return self.cache.longest(self.cache_gib * GIB, self.wanted) if self.cache else self.wanted

    @property
    def total(self) -> int:
        """Bytes of everything."""
        return self.parallel * (self.rank + self.cache_gib * GIB) + self.processes


def plan_cpu(model: Model, machine: Machine, wish: Wish) -> Plan:
    """Plan for a machine without GPUs. Raises PlanError for options that cannot be."""
    options = wish.options
    reference_mla = model.shape.uses_mla and not machine.amx
    check_block_size(options.count("block_size"), True, reference_mla)
    plan = Plan(memory_bytes=machine.memory_bytes // wish.instances, notes=list(options.notes))
    parallel = _parallel(model, machine, wish)
    if problem := shares(model, parallel):
        plan.refusal = f"Expected tensor_parallel_size to divide {problem}, found {parallel}: correct serving_options.tensor_parallel_size."
        return plan
    wanted = wanted_length(model, wish)
    requests = options.count("max_num_seqs") or _REQUESTS * parallel
    tokens = options.count("max_num_batched_tokens") or max(_TOKENS * parallel, requests)
    if reference_mla:
        # platforms/cpu.py: without chunked prefill a step must hold a whole prompt.
        tokens = max(tokens, wanted)
    step = Step(tokens, requests, model.element_bytes, parallel, sorts=True)
    fit = Fit(
        model, machine, wish, step, model.weights(machine, parallel), activations(model.shape, step).peak,
        cache_of(model, machine, wish, step), wanted,
    )  # fmt: skip
    plan.bytes_total = fit.total
    plan.fits_beside = 2 * fit.total <= machine.memory_bytes
    plan.beside = f"two engines take {gib(2 * fit.total)} of {gib(machine.memory_bytes)}"
    _tell(plan, fit)
    plan.refusal = _refusal(fit)
    if not plan.refusal:
        _decide(plan, fit)
    return plan


def usable_nodes(machine: Machine) -> list[Node]:
    """NUMA nodes that have both memory and cores for the engine."""
    return [node for node in machine.nodes if node.memory_bytes > 0 and node.cores > 0]


def _parallel(model: Model, machine: Machine, wish: Wish) -> int:
    """Processes, one a NUMA node: vLLM binds each to its cores and memory (utils/ompmultiprocessing.py, v1/worker/cpu_worker.py)."""
    chosen = wish.options.count("tensor_parallel_size")
    if chosen:
        return chosen
    whole = model.weights(machine, 1).whole
    for count in range(len(usable_nodes(machine)), 1, -1):
        if not shares(model, count) and whole >= count * _WORTH_SPLITTING:
            return count
    return 1


def _tell(plan: Plan, fit: Fit) -> None:
    """The arithmetic of one process."""
    shape, parallel = fit.model.shape, fit.parallel
    stored = f"{fit.weights.tensors} tensors of {gib(fit.weights.whole)} as {fit.model.dtype}"
    kind = f" and {shape.quantization}" if shape.quantization else ""
    split = f", split over {parallel} NUMA nodes" if parallel > 1 else ""
    each = " in each process" if parallel > 1 else ""
    plan.lines += [
        Line("memory", "main memory, or the limit of the container or the unit", fit.machine.memory_bytes),
        Line("weights", stored + kind + split, fit.weights.per_rank),
        Line(
            "activations",
            f"the larger of a step of {fit.step.tokens} tokens and the sampler on {fit.step.requests} requests x {shape.vocabulary} tokens "
            "of the vocabulary",
            fit.activations,
        ),
        Line("processes", f"API server, engine and {parallel} worker(s)", fit.processes),
        Line(
            "key-value cache",
            f"VLLM_CPU_KVCACHE_SPACE{each}, {'as set' if fit.wish.kv_cache_gib else 'computed'}",
            fit.cache_gib * GIB,
        ),
    ]
    cores = sum(node.cores for node in usable_nodes(fit.machine)[:parallel])
    if cores:
        plan.lines.append(
            Line("threads", f"{max(cores - parallel, 1)}: one a core, less a core of each process for the scheduler")
        )
    plan.kv_cache_bytes = fit.cache_gib * GIB
    cache_lines(plan, fit.cache, plan.kv_cache_bytes, max(fit.length, 1), shape)


def _decide(plan: Plan, fit: Fit) -> None:
    """Set options and environment; the inventory's own options come last."""
    options, cache, length = fit.wish.options, fit.cache, fit.length
    requests = fit.step.requests
    if not options.count("max_num_seqs") and cache:
        requests = requests_at_once(fit.wish, cache.tokens(fit.cache_gib * GIB, length), length, requests)
    plan.options = {"max_num_batched_tokens": max(fit.step.tokens, requests), "max_num_seqs": requests}
    if fit.parallel > 1:
        plan.options["tensor_parallel_size"] = fit.parallel
    if cache or fit.wish.max_model_len:
        plan.options["max_model_len"] = length
    if cache and length < fit.wanted:
        plan.notes.append(
            f"The context is {length} tokens, for the {fit.wanted} of the model need {gib(cache.request_bytes(fit.wanted))} of cache in "
            "each process: raise serving_kv_cache_gib where there is memory."
        )
    plan.environment = {
        "VLLM_CPU_KVCACHE_SPACE": str(fit.cache_gib),
        # One thread a core of those that systemd lets the unit use, a core of each process left to the scheduler.
        "VLLM_CPU_OMP_THREADS_BIND": "auto",
        "VLLM_CPU_NUM_OF_RESERVED_CPU": str(fit.parallel),
    }
    plan.options.update(options.values)


def _refusal(fit: Fit) -> str:
    """The sentence why it does not fit; empty where it does."""
    nodes, parallel, model, cache = len(usable_nodes(fit.machine)), fit.parallel, fit.model, fit.cache
    if fit.machine.nodes and parallel > max(nodes, 1):
        return (
            f"Expected tensor_parallel_size up to the {nodes} NUMA nodes with memory and cores, each of which holds one process, found "
            f"{parallel}: lower it."
        )
    remedy = "serve a smaller model"
    if model.element_bytes > _SIXTEEN_BITS:
        remedy = f"choose a 16-bit model_dtype, or {remedy}"
    if fit.wish.kv_cache_gib:
        remedy = f"lower serving_kv_cache_gib, {remedy}"
    if fit.total > fit.memory:
        return (
            f"Expected {gib(fit.memory)} of memory to hold the weights ({gib(parallel * fit.weights.per_rank)} "
            f"as {model.dtype}), {parallel * fit.cache_gib} GiB of key-value cache "
            f"and {gib(fit.processes + parallel * fit.activations)} for the processes and "
            f"their activations, found that they need {gib(fit.total)}: {remedy}."
        )
    if fit.node and fit.rank + fit.cache_gib * GIB > fit.node:
        return (
            f"Expected each of {parallel} NUMA node(s) with {gib(fit.node)} of memory to hold its process's weights "
            f"({gib(fit.weights.per_rank)}) and {fit.cache_gib} GiB of key-value cache, found that they need "
            f"{gib(fit.rank + fit.cache_gib * GIB)}: raise tensor_parallel_size up to the {nodes} nodes, or {remedy}."
        )
    least = min(fit.wanted, fit.wish.max_model_len or SHORTEST_CONTEXT)
    if cache and fit.length < least:
        needed = ceil_div(cache.request_bytes(least), GIB)
        way = f"set serving_kv_cache_gib to {needed}" if needed * GIB <= fit.budget else "serve a smaller model"
        shorter = f"lower serving_max_model_len to {fit.length}, or " if fit.wish.max_model_len and fit.length else ""
        return (
            f"Expected {fit.cache_gib} GiB of key-value cache to hold one request of {least} tokens, "
            f"found that it needs {gib(cache.request_bytes(least))} ({cache.blocks_per_request(least)} blocks of "
            f"{cache.bytes_per_block} bytes): {shorter}{way}."
        )
    return ""
