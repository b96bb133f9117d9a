"""What the tuner of vLLM's fused-MoE kernel tries: the model's expert shape, the configurations worth a measurement, the file's form.

Plain Python, without vLLM: it runs on the node and in the engine's Python.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

Config = dict[str, int]

# What vLLM meets: decoding at the sizes of its CUDA graphs, and steps that hold prompts (by default of at most 16,384 tokens).
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 96, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
# A block's tiles lie in shared memory; Hopper and Blackwell give a block up to 227 KiB, Ampere 163.
SHARED_MEMORY_BYTES = 227 * 1024
# Half of the multiprocessors of a large GPU: with fewer blocks most of the memory's bandwidth lies idle.
_FEWEST_BLOCKS = 64
_KEYS = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "SPLIT_K", "num_warps", "num_stages")


@dataclass(frozen=True)
class Shape:
    """The experts of one layer as one process of the engine holds them.

    experts, width (columns of the gated MLP in this process: the N of vLLM's file name), hidden, top_k; element_bytes of a weight;
    dtype as torch names it.
    """

    experts: int
    width: int
    hidden: int
    top_k: int
    dtype: str = "bfloat16"
    element_bytes: int = 2

    @property
    def label(self) -> str:
        """The shape as a measurement's scope names it."""
        return f"E={self.experts},N={self.width},K={self.hidden},top{self.top_k}"

    @property
    def expert_bytes(self) -> int:
        """Bytes of one expert's weights."""
        return 3 * self.width * self.hidden * self.element_bytes

    def distinct_experts(self, tokens: int) -> float:
        """How many experts a step of so many tokens is expected to touch where every expert is equally likely."""
        return self.experts * (1.0 - (1.0 - self.top_k / self.experts) ** tokens)

    def as_dict(self) -> dict[str, Any]:
        """As JSON keeps it."""
        return asdict(self)


class NotTunable(Exception):  # noqa: N818 - no error: a reason why there is nothing to tune
    """Why a model has no configuration to tune, in one sentence."""


def shape_of(config: Mapping[str, Any], tensor_parallel_size: int) -> Shape:
    """Return the expert shape that a model's config.json implies. Raises NotTunable with the reason, ValueError for a contradiction."""
    text = config.get("text_config")
    values: Mapping[str, Any] = {**config, **text} if isinstance(text, Mapping) else config
    moe = values.get("moe_config")
    inner: Mapping[str, Any] = moe if isinstance(moe, Mapping) else {}
    experts = _first(inner, ("moe_num_experts", "num_experts")) or _first(
        values, ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    )
    if not experts or (inner and values.get("use_moe") is False):
        raise NotTunable("The model has no experts: there is no fused-MoE configuration to tune.")
    quantised = values.get("quantization_config") or values.get("compression_config")
    if isinstance(quantised, Mapping):
        method = quantised.get("quant_method", "an unnamed method")
        raise NotTunable(
            f"The model's weights are quantised ({method}): vLLM runs 4- and 8-bit weights on Marlin, which has no configuration to tune, "
            "and other formats are not tuned here."
        )
    top_k = _first(inner, ("moe_top_k", "top_k")) or _first(
        values, ("num_experts_per_tok", "moe_top_k", "top_k_experts")
    )
    width = _first(inner, ("ffn_hidden_size",)) or _first(
        values, ("moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size", "ffn_hidden_size")
    )
    hidden = _first(values, ("hidden_size",))
    if not (top_k and width and hidden):
        raise ValueError(
            "config.json names experts, but not all of: experts per token, width of an expert, hidden_size. Tell the tuner the shape."
        )
    if width % tensor_parallel_size:
        raise ValueError(
            f"tensor_parallel_size {tensor_parallel_size} does not divide the experts' width {width}: choose a divisor."
        )
    dtype = str(values.get("dtype") or values.get("torch_dtype") or "bfloat16").replace("torch.", "")
    if dtype not in ("bfloat16", "float16"):
        dtype = "bfloat16"
    return Shape(int(experts), int(width) // tensor_parallel_size, int(hidden), int(top_k), dtype)


def _first(values: Mapping[str, Any], names: Sequence[str]) -> int:
    return next((int(values[name]) for name in names if values.get(name)), 0)


def tokens_per_expert(shape: Shape, tokens: int) -> float:
    """Rows that an expert which is touched at all gets on average."""
    return tokens * shape.top_k / max(1.0, shape.distinct_experts(tokens))


def candidates(shape: Shape, tokens: int, shared_memory_bytes: int = SHARED_MEMORY_BYTES) -> list[Config]:
    """Return the configurations worth a measurement for a step of so many tokens.

    Left out is what cannot win: tiles of many more rows than an expert gets, tiles so small that too few bytes are under way to hide
    the memory's latency, or so large that they do not fit.
    """
    rows = tokens_per_expert(shape, tokens)
    memory_bound = rows <= 32
    stages: tuple[int, ...] = (2, 3, 4)
    block_n: tuple[int, ...]
    block_k: tuple[int, ...]
    if memory_bound:
        block_m = [16] if rows <= 10 else [16, 32] if rows <= 20 else [16, 32, 64]
        block_n, block_k, stages = (32, 64, 128, 256), (64, 128, 256), (2, 3, 4, 5)
        group = 1
    else:
        block_m = [32, 64, 128] if rows <= 128 else [64, 128, 256]
        block_n, block_k = (64, 128, 256), (64, 128)
        group = 8
    found: list[Config] = []
    for m, n, k, warps, stage in itertools.product(block_m, block_n, block_k, (4, 8), stages):
        tile_bytes = (m + n) * k * shape.element_bytes
        if tile_bytes * stage > shared_memory_bytes or n > 2 * shape.width or k > min(shape.width, shape.hidden):
            continue
        if memory_bound:
            under_way = n * k * shape.element_bytes * (stage - 1)
            # The second product has the fewest blocks: hidden / n for every expert that is touched.
            blocks = shape.distinct_experts(tokens) * shape.hidden / n
            if not 16 * 1024 <= under_way <= 144 * 1024 or (blocks < _FEWEST_BLOCKS and n > block_n[0]):
                continue
            if (warps == 8 or stage == 2) and n * k < 128 * 128:
                continue
        else:
            accumulators = m * n // (32 * warps)  # registers of a thread; above 128 they spill
            if not 32 <= accumulators <= 128 or (k == 128 and m * n > 128 * 128) or (stage == 2 and m * n < 128 * 256):
                continue
        found.append(
            {
                "BLOCK_SIZE_M": m,
                "BLOCK_SIZE_N": n,
                "BLOCK_SIZE_K": k,
                "GROUP_SIZE_M": group,
                "SPLIT_K": 1,
                "num_warps": warps,
                "num_stages": stage,
            }
        )
    return found


def neighbours(config: Config, shape: Shape, tokens: int) -> list[Config]:
    """Return variants of a configuration with another order of blocks, where that can matter: several blocks an expert."""
    if tokens_per_expert(shape, tokens) <= config["BLOCK_SIZE_M"]:
        return []
    return [{**config, "GROUP_SIZE_M": group} for group in (1, 4, 16, 64) if group != config.get("GROUP_SIZE_M")]


def key_of(config: Mapping[str, int]) -> tuple[int, ...]:
    """What tells two configurations apart; -1 for what one does not set."""
    return tuple(int(config.get(name, -1)) for name in _KEYS)


def file_text(configs: Mapping[int, Mapping[str, int]], triton_version: str) -> dict[str, Any]:
    """The content of vLLM's file: one configuration for each batch size, beside the Triton version that they were measured with."""
    return {
        "triton_version": triton_version,
        **{
            str(size): {name: configs[size][name] for name in _KEYS if name in configs[size]}
            for size in sorted(configs)
        },
    }
