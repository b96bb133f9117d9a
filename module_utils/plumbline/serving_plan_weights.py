"""Bytes that a checkpoint's weights take in one process of the engine, tensor by tensor from the safetensors headers. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .checkpoint import CheckpointError, Tensor, read_tensors
from .serving_plan_shape import Shape

# Weights that vLLM multiplies with (and so may quantise while it loads), as the families name them.
_LINEAR = re.compile(
    r"(proj|fc\d?|dense|gate_up|w[123]|query_key_value|c_attn|c_fc|qkv|up|down|gate|router|experts?)(\.|_|$)"
)
_KEY_VALUE = re.compile(r"\.(k_proj|v_proj)\.")
# Small tensors that every process keeps in full: norms, scalars of quantisation, routers, MLA's first projections (ReplicatedLinear).
_EVERYWHERE = re.compile(
    r"norm|\.(mlp\.gate|router|gate)\.weight$|(q_a_proj|kv_a_proj_with_mqa|e_score_correction_bias)|\.bias$"
)
_EMBEDDING = re.compile(r"(embed_tokens|word_embeddings|wte|embeddings)\.weight$")
_OUTPUT = re.compile(r"(lm_head|output_layer|embed_out)\.weight$")
# What is in the file and never loaded: positions that are computed, layers that predict further tokens (only with speculation).
_NOT_LOADED = re.compile(r"rotary_emb\.inv_freq$|\.masked_bias$|^mtp\.|\.attn\.bias$")
_LAYER = re.compile(r"(?:layers|h|blocks)\.\d+\.")
# The language model's own layers: those beyond its depth predict further tokens (DeepSeek's and GLM's MTP).
_OWN_LAYER = re.compile(r"^(?:language_model\.)?model\.(?:language_model\.)?layers\.(\d+)\.")
# One packed 32-bit word of a quantised matrix holds so many weights, by its number of bits.
_PACKED = re.compile(r"\.(weight_packed|qweight)$")
_QUANTISED_PARTS = re.compile(r"\.(weight_scale|weight_shape|weight_zero_point|weight_g_idx|scales|qzeros|g_idx)$")
_VOCABULARY_MULTIPLE = 64  # vocab_parallel_embedding.py, DEFAULT_VOCAB_PADDING_SIZE


@dataclass(frozen=True)
class Loading:
    """How the weights are loaded. `unpack_bits`: packed words are turned back to the model's type, of names with `unpack_only`."""

    element_bytes: int
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    unpack_bits: int = 0
    unpack_only: str = ""
    online_fp8: bool = False


@dataclass(frozen=True)
class Weights:
    """Bytes in one process, and what they are made of."""

    per_rank: int
    whole: int
    tensors: int
    largest: int
    stored: int


def checkpoint_tensors(folder: Path) -> list[Tensor]:
    """All tensors of the safetensors files in `folder`. Raises CheckpointError."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"no *.safetensors file in {folder}; run the model stage first")
    try:
        return [tensor for file in files for tensor in read_tensors(file)]
    except OSError as error:
        raise CheckpointError(
            f"the checkpoint in {folder} cannot be read ({error}); run the model stage again"
        ) from error


def weigh(tensors: Iterable[Tensor], shape: Shape, loading: Loading) -> Weights:
    """The weights as they lie in memory once loaded."""
    known = list(tensors)
    names = {tensor.name for tensor in known}
    tied = bool(shape.config.get("tie_word_embeddings", shape.model_type == "yuan")) and any(
        map(_EMBEDDING.search, names)
    )
    per_rank, whole, largest, stored, count = 0.0, 0, 0, 0, 0
    for tensor in known:
        stored += tensor.loaded_bytes(loading.element_bytes)
        if not _is_loaded(tensor, shape, tied):
            continue
        size = _loaded_bytes(tensor, shape, loading)
        count += 1
        whole += size
        share = size * _share(tensor.name, shape, loading.tensor_parallel)
        largest = max(largest, int(share))
        layered = _LAYER.search(tensor.name) is not None
        per_rank += share / loading.pipeline_parallel if layered else share
    return Weights(int(per_rank), whole, count, largest, stored)


def _is_loaded(tensor: Tensor, shape: Shape, tied: bool) -> bool:
    if _NOT_LOADED.search(tensor.name) or (tied and _OUTPUT.search(tensor.name)):
        return False
    layer = _OWN_LAYER.search(tensor.name)
    return not (layer and shape.depth and int(layer.group(1)) >= shape.depth)


def _loaded_bytes(tensor: Tensor, shape: Shape, loading: Loading) -> int:
    if loading.unpack_bits and re.search(loading.unpack_only, tensor.name):
        if _PACKED.search(tensor.name):
            return tensor.elements * 32 // loading.unpack_bits * loading.element_bytes
        if _QUANTISED_PARTS.search(tensor.name):
            return 0
    size = tensor.loaded_bytes(loading.element_bytes)
    if (_EMBEDDING.search(tensor.name) or _OUTPUT.search(tensor.name)) and shape.vocabulary and shape.hidden:
        # Rows are rounded up, so that every process has as many.
        rows = -(-shape.vocabulary // _VOCABULARY_MULTIPLE) * _VOCABULARY_MULTIPLE
        if tensor.elements == shape.vocabulary * shape.hidden:
            size = size // shape.vocabulary * rows
    elif loading.online_fp8 and size > tensor.elements and tensor.name.endswith(".weight") and _is_linear(tensor.name):
        size = tensor.elements
    return size


def _is_linear(name: str) -> bool:
    return _LINEAR.search(name) is not None and "norm" not in name


def _share(name: str, shape: Shape, parallel: int) -> float:
    """The part of a tensor that one process holds."""
    if parallel == 1 or _EVERYWHERE.search(name):
        return 1.0
    if _KEY_VALUE.search(name) and shape.kv_heads and not shape.uses_mla:
        # Fewer heads than processes: each keeps a copy of one (QKVParallelLinear, num_kv_head_replicas).
        return 1.0 / min(parallel, shape.kv_heads)
    return 1.0 / parallel
