"""The plan for GPUs: how many share the model, and what is left of their memory for the cache. Pure, standard library only."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from .serving_plan import (
    SHORTEST_CONTEXT,
    TYPICAL_REQUEST,
    Line,
    Machine,
    Model,
    Plan,
    Wish,
    cache_lines,
    cache_of,
    requests_at_once,
    shares,
    wanted_length,
)
from .serving_plan_cache import Cache
from .serving_plan_memory import (
    COLLECTIVE_BYTES,
    CONTEXT_BYTES,
    GIB,
    Activations,
    Step,
    activations,
    gib,
    graph_bytes,
    graph_count,
)
from .serving_plan_options import check_block_size

# vLLM's own share of the memory (config/cache.py), at which the recorded H200 figures were taken.
_UTILISATION = 0.92
# What is left outside of it at least, for what a profile run does not see: fragments, libraries that load later.
_OUTSIDE_BYTES = 3 * GIB // 2
_OUTSIDE_FRACTION = 0.02
# engine/arg_utils.py, get_batch_defaults, for the API server: larger steps and more requests from 70 GiB on, but not on an A100.
_LARGE_GPU = 70 * GIB
_LARGEST_GPU = 160 * GIB
# Usual requests that the cache should hold at once, before the GPUs are said to be few enough.
_ROOM = 16
# A step is not made smaller than this to make room for the cache.
_SMALLEST_STEP = 2048


@dataclass(frozen=True)
class Place:
    """The model on the machine, and the share of each GPU's memory that the engine may have."""

    model: Model
    machine: Machine
    wish: Wish
    share: float

    @property
    def memory(self) -> int:
        """Bytes of the smallest GPU."""
        return min(gpu.memory_bytes for gpu in self.machine.gpus)

    @property
    def budget(self) -> int:
        """Bytes of one GPU that the engine may have."""
        return int(self.share * self.memory)

    @property
    def pipeline(self) -> int:
        """Stages that share the layers."""
        return self.wish.options.count("pipeline_parallel_size") or 1

    @property
    def replicas(self) -> int:
        """Engines that serve side by side."""
        return self.wish.options.count("data_parallel_size") or 1

    @property
    def wanted(self) -> int:
        """The context that is wanted, in tokens."""
        return wanted_length(self.model, self.wish)

    @property
    def least(self) -> int:
        """The context that must be had."""
        return min(self.wanted, self.wish.max_model_len or SHORTEST_CONTEXT)


@dataclass(frozen=True)
class Fit:
    """One way to run the model, and what it leaves for the cache of one process."""

    place: Place
    step: Step
    weights: int
    activations: Activations
    graphs: int
    cache: Cache | None
    length: int = 0

    @property
    def parallel(self) -> int:
        """GPUs that share each layer."""
        return self.step.tensor_parallel

    @property
    def context(self) -> int:
        """Bytes of CUDA and the libraries."""
        return CONTEXT_BYTES + (COLLECTIVE_BYTES if self.parallel * self.place.pipeline > 1 else 0)

    @property
    def beside_cache(self) -> int:
        """Bytes beside the cache."""
        return self.weights + self.activations.peak + self.graphs + self.context

    @property
    def available(self) -> int:
        """Bytes for the cache; below zero where there is not even room for the rest."""
        return self.place.budget - self.beside_cache

    @property
    def pool(self) -> int:
        """Bytes for the cache of all layers, of which each stage holds its part."""
        return max(self.available, 0) * self.place.pipeline

    @property
    def has_room(self) -> bool:
        """Whether enough usual requests run at once that more GPUs need not be asked."""
        usual = min(self.place.wish.request_tokens or TYPICAL_REQUEST, self.place.wanted)
        return self.cache is None or self.cache.tokens(self.pool, max(self.length, 1)) >= _ROOM * usual

    def holds(self, length: int) -> bool:
        """Whether a request of that length fits; whoever sets the cache's bytes has reckoned."""
        if self.available <= 0:
            return False
        return self.cache is None or self.length >= length or "kv_cache_memory_bytes" in self.place.wish.options.values


def utilisation(memory_bytes: int, instances: int) -> float:
    """gpu_memory_utilization for GPUs of this size; of several instances each gets its part."""
    inside = 1 - (_OUTSIDE_BYTES + _OUTSIDE_FRACTION * memory_bytes) / memory_bytes
    return max(0.01, math.floor(100 * min(_UTILISATION, inside) / instances) / 100)


def batch_defaults(name: str, memory_bytes: int) -> tuple[int, int]:
    """vLLM's own tokens a step and requests at once on such a GPU."""
    if memory_bytes >= _LARGEST_GPU:
        return 16384, 1024
    if memory_bytes >= _LARGE_GPU and "a100" not in name.lower():
        return 8192, 1024
    return 2048, 256


def plan_gpu(model: Model, machine: Machine, wish: Wish) -> Plan:
    """Plan for a machine with at least one GPU. Raises PlanError for options that cannot be."""
    options = wish.options
    check_block_size(options.count("block_size"), False, model.shape.uses_mla)
    memory = min(gpu.memory_bytes for gpu in machine.gpus)
    place = Place(model, machine, wish, options.size("gpu_memory_utilization") or utilisation(memory, wish.instances))
    plan = Plan(memory_bytes=memory, notes=list(options.notes))
    fits = [_fit(place, count) for count in _choices(place)]
    if not fits:
        plan.refusal = _no_choice(place)
        return plan
    holding = [each for each in fits if each.holds(place.wanted)]
    fit = next((each for each in holding if each.has_room), None) or next(iter(holding), None)
    if fit is None:
        fit = max(fits, key=lambda each: (each.length, each.available))
    _tell(plan, fit)
    if fit.holds(place.least):
        _decide(plan, fit)
    else:
        plan.refusal = _refusal(fit)
    return plan


def _choices(place: Place) -> list[int]:
    """Tensor parallel sizes to look at, the smallest first."""
    most = len(place.machine.gpus) // (place.pipeline * place.replicas)
    chosen = place.wish.options.count("tensor_parallel_size")
    return [
        count
        for count in ([chosen] if chosen else range(1, most + 1))
        if count <= most and not shares(place.model, count)
    ]


def _fit(place: Place, parallel: int) -> Fit:
    """What is left of one GPU with so many of them. The cache decides how many requests run at once, which cost memory."""
    options, model = place.wish.options, place.model
    tokens, most = batch_defaults(place.machine.gpus[0].name, place.memory)
    tokens = options.count("max_num_batched_tokens") or tokens
    requests = options.count("max_num_seqs") or most
    weights = model.weights(place.machine, parallel, place.pipeline).per_rank
    weights = max(0, weights - int(options.size("cpu_offload_gb") * GIB))
    while True:
        step = Step(tokens, requests, model.element_bytes, parallel, unpacks_experts=model.unpacks_experts)
        needed = activations(model.shape, step)
        graphs = 0 if options.flag("enforce_eager") else graph_bytes(model.shape, step)
        fit = Fit(place, step, weights, needed, graphs, cache_of(model, place.machine, place.wish, step))
        if (cache := fit.cache) is None:
            return fit
        fit = replace(fit, length=cache.longest(fit.pool, place.wanted))
        if fit.length and not options.count("max_num_seqs"):
            fewer = requests_at_once(place.wish, cache.tokens(fit.pool, fit.length), fit.length, requests)
            if fewer < requests:
                requests = fewer
                continue
        if (
            fit.length < place.wanted
            and not options.count("max_num_batched_tokens")
            and tokens > _SMALLEST_STEP
            and needed.peak > needed.sampler
        ):
            # Smaller steps leave more for the cache; long prompts take more of them.
            tokens //= 2
            continue
        return fit


def _tell(plan: Plan, fit: Fit) -> None:
    """The arithmetic of one GPU."""
    place, step = fit.place, fit.step
    model, shape = place.model, place.model.shape
    whole = model.weights(place.machine, 1)
    kind = f" and {shape.quantization}" if shape.quantization else ""
    split = f", split over {fit.parallel * place.pipeline} GPUs" if fit.parallel * place.pipeline > 1 else ""
    plan.lines += [
        Line("memory", f"{place.machine.gpus[0].name}, the total less what the driver keeps", place.memory),
        Line("budget", f"{place.share:.2f} of it (gpu_memory_utilization)", place.budget),
        Line("weights", f"{whole.tensors} tensors of {gib(whole.whole)} as {model.dtype}{kind}{split}", fit.weights),
        Line(
            "activations",
            f"the larger of a step of {step.tokens} tokens ({gib(fit.activations.body)}) and the sampler on {step.requests} requests x "
            f"{shape.vocabulary} tokens of the vocabulary ({gib(fit.activations.sampler)})"
            + (f", and the experts' workspace ({gib(fit.activations.workspace)})" if fit.activations.workspace else ""),
            fit.activations.peak,
        ),
        Line("CUDA graphs", f"{graph_count(step)} graphs" if fit.graphs else "none (enforce_eager)", fit.graphs),
        Line("context", f"CUDA and libraries{', NCCL' if fit.context > CONTEXT_BYTES else ''}", fit.context),
        Line("key-value cache", "what is left of the budget", max(fit.available, 0)),
    ]
    cache_lines(plan, fit.cache, fit.pool, max(fit.length, 1), shape)
    plan.kv_cache_bytes = max(fit.available, 0)
    plan.bytes_total = place.budget * fit.parallel * place.pipeline * place.replicas
    plan.fits_beside = 2 * place.budget <= place.memory
    plan.beside = (
        f"two engines at gpu_memory_utilization {place.share:.2f} take {gib(2 * place.budget)} of the "
        f"{gib(place.memory)} of each GPU"
    )


def _decide(plan: Plan, fit: Fit) -> None:
    """Set the options; the inventory's own come last."""
    place, options = fit.place, fit.place.wish.options
    plan.options = {
        "tensor_parallel_size": fit.parallel,
        "gpu_memory_utilization": place.share,
        "max_num_batched_tokens": max(fit.step.tokens, fit.step.requests),
        "max_num_seqs": fit.step.requests,
    }
    if fit.cache or place.wish.max_model_len:
        plan.options["max_model_len"] = fit.length if fit.cache and fit.length else place.wanted
    if fit.cache and fit.length < place.wanted:
        plan.notes.append(
            f"The context is {fit.length} tokens, for the {place.wanted} of the model need "
            f"{gib(fit.cache.request_bytes(place.wanted))} of cache: more GPUs (tensor_parallel_size), quantised weights "
            "(model_quantise) or model_kv_cache_dtype fp8 would make room."
        )
    idle = len(place.machine.gpus) - fit.parallel * place.pipeline * place.replicas
    if idle > 0:
        plan.notes.append(
            f"{idle} of {len(place.machine.gpus)} GPUs stay idle, for the model fits without them: serving_options.tensor_parallel_size "
            "makes an answer faster, data_parallel_size makes more of them."
        )
    plan.options.update(options.values)


def _no_choice(place: Place) -> str:
    """The sentence for sizes that the node or the model cannot be split into."""
    options, gpus = place.wish.options, len(place.machine.gpus)
    chosen = options.count("tensor_parallel_size") or 1
    needed = chosen * place.pipeline * place.replicas
    found = f"needs {needed} GPUs" if needed > gpus else f"does not divide {shares(place.model, chosen)}"
    return (
        f"Expected tensor_parallel_size x pipeline_parallel_size x data_parallel_size to fit the {gpus} GPUs of the node and the model, "
        f"found {chosen} x {place.pipeline} x {place.replicas}, which {found}: correct serving_options."
    )


def _refusal(fit: Fit) -> str:
    """The sentence why it does not fit."""
    place, model = fit.place, fit.place.model
    request = fit.cache.request_bytes(place.least) if fit.cache else 0
    remedies = []
    if place.wish.max_model_len and fit.length >= SHORTEST_CONTEXT:
        remedies.append(f"lower serving_max_model_len to {fit.length}")
    if not model.shape.quantization and model.element_bytes > 1:
        remedies.append("quantise the model (model_quantise: rtn-w4a16)")
    if place.wish.options.count("tensor_parallel_size") and fit.parallel < len(place.machine.gpus):
        remedies.append(f"raise tensor_parallel_size (the node has {len(place.machine.gpus)} GPUs)")
    remedies.append("serve a smaller model")
    return (
        f"Expected {gib(place.budget)} of each of {fit.parallel} GPU(s) ({place.share:.2f} of {gib(place.memory)}) to hold the weights "
        f"({gib(fit.weights)}), a step's activations ({gib(fit.activations.peak)}), CUDA graphs ({gib(fit.graphs)}), the context "
        f"({gib(fit.context)}) and the cache of one request of {place.least} tokens ({gib(request)}), found that they need "
        f"{gib(fit.beside_cache + request)}: {', or '.join(remedies)}."
    )
