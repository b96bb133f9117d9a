"""What fits: the options of `vllm serve` for a model on a machine, with the arithmetic. Pure, standard library only.

The terms that serving_plan_gpu.py and serving_plan_cpu.py share, which decide for their device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .checkpoint import Tensor
from .serving_plan_cache import Cache, Setting, make_cache
from .serving_plan_memory import Step
from .serving_plan_options import Options, PlanError
from .serving_plan_shape import Shape
from .serving_plan_weights import Loading, Weights, weigh

__all__ = ["Gpu", "Line", "Machine", "Model", "Node", "Plan", "PlanError", "Wish"]

# Where nothing says how long a request is: prompt and answer together, in tokens.
TYPICAL_REQUEST = 2048
# A context that was not asked for is shortened to what fits, but not below this.
SHORTEST_CONTEXT = 1024
# vLLM assumes this where config.json names no length (config/model.py, _get_and_verify_max_len).
UNNAMED_LENGTH = 2048
# Matrices that the Yuan plugin serves in full on a GPU, of dense models and of those with experts (its settings.py, full_attention).
_YUAN_IN_FULL = (r"\.self_attn\.v_proj\.", r"\.self_attn\.[qkvo]_proj\.")
_FOUR_BITS = 4


@dataclass(frozen=True)
class Gpu:
    """One GPU. `memory_bytes`: what CUDA can have of it, the total less what the driver keeps."""

    name: str
    memory_bytes: int


@dataclass(frozen=True)
class Node:
    """A NUMA node with its memory and the physical cores that the engine may use."""

    number: int
    memory_bytes: int
    cores: int


@dataclass(frozen=True)
class Machine:
    """What the engine runs on. `memory_bytes`: main memory, or the lower limit of a container or of the unit."""

    on_cpu: bool
    memory_bytes: int
    gpus: tuple[Gpu, ...] = ()
    nodes: tuple[Node, ...] = ()
    amx: bool = False
    avx512_bf16: bool = False


@dataclass(frozen=True)
class Model:
    """The checkpoint: its shape and its tensors, and the type that it is loaded in."""

    shape: Shape
    tensors: Sequence[Tensor]
    dtype: str
    element_bytes: int
    quantization: str = ""
    kv_cache_dtype: str = "auto"

    def weights(self, machine: Machine, tensor_parallel: int, pipeline_parallel: int = 1) -> Weights:
        """Its weights in one process."""
        return weigh(
            self.tensors,
            self.shape,
            Loading(
                self.element_bytes,
                tensor_parallel,
                pipeline_parallel,
                unpack_bits=self.yuan_bits,
                unpack_only="" if machine.on_cpu else _YUAN_IN_FULL[bool(self.shape.experts)],
                online_fp8=self.quantization == "fp8" and not self.shape.quantization,
            ),
        )

    @property
    def unpacks_experts(self) -> bool:
        """Whether the Yuan plugin turns experts back to full ones in large steps on a GPU."""
        return self.yuan_bits == _FOUR_BITS and bool(self.shape.experts)

    @property
    def yuan_bits(self) -> int:
        """Bits of a quantised Yuan's weights, which its plugin turns back to full ones: all on a CPU, attention's on a GPU; else 0."""
        found = self.shape.config.get("quantization_config")
        if self.shape.model_type != "yuan" or not isinstance(found, Mapping):
            return 0
        groups = found.get("config_groups")
        if isinstance(groups, Mapping):
            for group in groups.values():
                weights = group.get("weights") if isinstance(group, Mapping) else None
                if isinstance(weights, Mapping) and weights.get("num_bits"):
                    return int(weights["num_bits"])
        return int(found.get("bits") or 4)


@dataclass(frozen=True)
class Wish:
    """What the inventory wants. 0 leaves a figure to the plan. `instances`: engines that the memory must hold at once."""

    options: Options
    max_model_len: int = 0
    kv_cache_gib: int = 0
    request_tokens: int = 0
    instances: int = 1


@dataclass(frozen=True)
class Line:
    """One line of the arithmetic: what, how it comes about, and its bytes (of one process; `None` where it is no size)."""

    what: str
    how: str
    bytes: int | None = None


@dataclass
class Plan:
    """What to start the engine with, and why. `refusal`: one sentence where it cannot be; the arithmetic is there even then."""

    options: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    refusal: str = ""
    bytes_total: int = 0
    memory_bytes: int = 0
    fits_beside: bool = False
    beside: str = ""
    kv_cache_tokens: int = 0
    kv_cache_bytes: int = 0
    kv_cache_blocks: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return it for a module's answer."""
        return {
            "options": self.options,
            "environment": self.environment,
            "arithmetic": [{"what": line.what, "how": line.how, "bytes": line.bytes} for line in self.lines],
            "notes": self.notes,
            "refusal": self.refusal,
            "bytes_total": self.bytes_total,
            "memory_bytes": self.memory_bytes,
            "fits_beside": self.fits_beside,
            "beside": self.beside,
            "kv_cache_tokens": self.kv_cache_tokens,
            "kv_cache_bytes": self.kv_cache_bytes,
            "kv_cache_blocks": self.kv_cache_blocks,
        }


def cache_of(model: Model, machine: Machine, wish: Wish, step: Step) -> Cache | None:
    """The cache with the options as they are; `None` where the model keeps none or is not understood."""
    options = wish.options
    chunked_off = machine.on_cpu and model.shape.uses_mla and not machine.amx
    return make_cache(
        model.shape,
        Setting(
            element_bytes=model.element_bytes,
            kv_cache_dtype=model.kv_cache_dtype,
            tensor_parallel=step.tensor_parallel,
            on_cpu=machine.on_cpu,
            block_size=options.count("block_size"),
            maximum_batched_tokens=step.tokens,
            prefix_caching=not chunked_off and options.flag("enable_prefix_caching", True),
            # Chunked local attention turns the hybrid manager off (config/vllm.py), or whoever asks for it.
            one_kind=options.flag("disable_hybrid_kv_cache_manager")
            or any(layer.kind == "chunked" for layer in model.shape.layers),
            wide_state=machine.on_cpu and machine.avx512_bf16 and model.shape.model_type != "yuan",
            amx=machine.amx,
            # Two steps overlap on GPUs (config/vllm.py, max_concurrent_batches).
            batches_in_flight=1 if machine.on_cpu or not options.flag("async_scheduling", True) else 2,
        ),
    )


def cache_lines(plan: Plan, cache: Cache | None, available: int, length: int, shape: Shape) -> None:
    """Tell what so many bytes of cache hold, in requests of `length` tokens."""
    if cache is None:
        reason = f"{shape.unknown or 'what its layers keep'} is not understood"
        plan.notes.append(f"The context is not checked against the cache of this model: {reason}.")
        return
    plan.kv_cache_tokens = cache.tokens(available, length)
    plan.kv_cache_blocks = available // cache.bytes_per_block
    plan.lines += [
        Line(
            "blocks",
            f"{available // cache.bytes_per_block} of {cache.block_size} tokens, each {cache.bytes_per_block} bytes",
        ),
        Line(
            "layers",
            "; ".join(f"{count} of {page.kind}, {page.block_size} tokens a block" for page, count in cache.groups),
        ),
        Line("cache in tokens", f"{plan.kv_cache_tokens} in requests of {length}"),
        Line("one request", f"{length} tokens: {cache.blocks_per_request(length)} blocks", cache.request_bytes(length)),
    ]


def wanted_length(model: Model, wish: Wish) -> int:
    """The context in tokens that is wanted: the inventory's, else the model's."""
    return wish.max_model_len or model.shape.max_length or UNNAMED_LENGTH


def requests_at_once(wish: Wish, tokens: int, length: int, most: int) -> int:
    """How many requests of the usual length the cache holds, from 1 to `most`; whole eights, in which vLLM captures graphs."""
    usual = min(wish.request_tokens or TYPICAL_REQUEST, length)
    count = max(1, min(most, tokens // max(usual, 1)))
    return count // 8 * 8 if count >= 8 else count


def shares(model: Model, parallel: int) -> str:
    """Why a model cannot be split over so many processes; empty where it can."""
    shape = model.shape
    if shape.heads and shape.heads % parallel:
        return f"its {shape.heads} attention heads"
    if shape.model_type == "yuan" and (shape.hidden // 2) % parallel:
        return f"the {shape.hidden // 2} channels of its local filter"
    if shape.kv_heads and not shape.uses_mla and shape.kv_heads % parallel and parallel % shape.kv_heads:
        return f"its {shape.kv_heads} key-value heads"
    width = shape.expert_width if shape.experts else shape.intermediate
    return f"the {width} columns of its MLP" if width % parallel else ""
