"""What a Yuan2.0 checkpoint must hold: names, shapes and types that follow from its config.json. Standard library only.

docs/yuan-checkpoints.md has the layout. Yuan3.0 (experts that differ by layer, another router, pictures) is another model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .checkpoint_errors import CheckpointError
from .safetensors_file import TensorSpec

ARCHITECTURE = "YuanForCausalLM"
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
_FLOATS = ("BF16", "F16", "F32")
# A buffer that older files hold: computed, not learned.
COMPUTED = re.compile(r"^model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq$")
_GPTQ = re.compile(r"\.(qweight|qzeros|scales|g_idx)$")
_PACKED = (
    ".weight_packed",
    ".weight_scale",
    ".weight_shape",
    ".weight_zero_point",
    ".weight_g_idx",
    ".weight_global_scale",
)
_ELSEWHERE = "copy the checkpoint again from where it came"


@dataclass(frozen=True)
class YuanSize:
    """Sizes of a Yuan2.0 model. `experts` is 0 for a dense one; `width` is that of the feed-forward part, or of one expert."""

    vocabulary: int
    hidden: int
    layers: int
    heads: int
    projection: int
    width: int
    experts: int
    tied: bool


def is_yuan(config: Mapping[str, Any]) -> bool:
    """Whether config.json describes a model of this family."""
    return config.get("model_type") == "yuan" or ARCHITECTURE in (config.get("architectures") or [])


def size_of(config: Mapping[str, Any]) -> YuanSize:
    """The sizes that config.json states. Raises CheckpointError for another model, and for figures that do not fit together."""
    architectures = config.get("architectures")
    if architectures != [ARCHITECTURE]:
        raise CheckpointError(
            f"config.json names the architecture {architectures!r}: expected ['{ARCHITECTURE}'] for a Yuan2.0 checkpoint; "
            "take the config.json that was published with it."
        )
    for key in ("use_shareqk", "use_yarn"):
        if config.get(key):
            raise CheckpointError(
                f"config.json sets {key}, a variant of Yuan that is not served here: expected it unset; take another checkpoint."
            )
    if (config.get("hidden_act") or "silu") != "silu":
        raise CheckpointError(
            f"config.json has the hidden_act {config['hidden_act']!r}: expected 'silu', as every Yuan2.0 has it."
        )
    hidden, layers = _number(config, "hidden_size"), _number(config, "num_hidden_layers")
    heads, vocabulary = _number(config, "num_attention_heads"), _number(config, "vocab_size")
    projection = _number(config, "attention_projection_size") if config.get("attention_projection_size") else hidden
    if projection % heads or hidden % 2:
        raise CheckpointError(
            f"config.json has {heads} attention heads over a projection of {projection} and a hidden_size of {hidden}: "
            "expected heads that divide the projection and an even hidden_size; take the config.json that was published with it."
        )
    experts, width = 0, 0
    if config.get("use_moe"):
        experts, width = _experts(config)
    else:
        width = _number(config, "intermediate_size")
    return YuanSize(
        vocabulary, hidden, layers, heads, projection, width, experts, bool(config.get("tie_word_embeddings", True))
    )


def expected_shapes(size: YuanSize) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor, in the order of the published files."""
    hidden, half = size.hidden, size.hidden // 2
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (size.vocabulary, hidden)}
    layer: dict[str, tuple[int, ...]] = {
        "self_attn.v_proj.weight": (size.projection, hidden),
        "self_attn.o_proj.weight": (hidden, size.projection),
        "self_attn.lf_gate.conv1.weight": (half, hidden, 2, 1),
        "self_attn.lf_gate.conv1.bias": (half,),
        "self_attn.lf_gate.conv2.weight": (hidden, half, 2, 1),
        "self_attn.lf_gate.conv2.bias": (hidden,),
        "self_attn.lf_gate.output_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (size.projection, hidden),
        "self_attn.k_proj.weight": (size.projection, hidden),
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    if size.experts:
        layer.update({f"mlp.gate.{name}.weight": (size.experts, hidden) for name in ("query", "key", "value")})
        for expert in range(size.experts):
            layer[f"mlp.experts.{expert}.w1.weight"] = (2 * size.width, hidden)
            layer[f"mlp.experts.{expert}.w2.weight"] = (hidden, size.width)
    else:
        layer.update({f"mlp.{name}.weight": (size.width, hidden) for name in ("up_proj", "gate_proj")})
        layer["mlp.down_proj.weight"] = (hidden, size.width)
    for number in range(size.layers):
        shapes.update({f"model.layers.{number}.{name}": shape for name, shape in layer.items()})
    return {**shapes, "model.norm.weight": (hidden,), HEAD: (size.vocabulary, hidden)}


def check(config: Mapping[str, Any], specs: Iterable[TensorSpec]) -> YuanSize:
    """Raise CheckpointError unless these are the tensors that config.json promises, in the Hugging Face layout.

    A matrix that is packed (compressed-tensors) counts as the matrix; lm_head.weight may be absent where the embeddings are tied.
    """
    size = size_of(config)
    expected = expected_shapes(size)
    found = {spec.name: spec for spec in specs if not COMPUTED.match(spec.name)}
    _refuse_gptq(found, config)
    missing = [
        name for name in expected if name not in found and not _packed(name, found) and not (name == HEAD and size.tied)
    ]
    if missing:
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise CheckpointError(
            f"The tensor {missing[0]} is missing{more}: expected the {len(expected)} tensors of a Yuan2.0 with {size.layers} layers"
            + (f" and {size.experts} experts" if size.experts else "")
            + f", found {len(found)}; {_ELSEWHERE}."
        )
    for name, spec in found.items():
        shape = expected.get(name)
        if shape is None:
            if _unpacked(name) in expected:
                continue
            raise CheckpointError(
                f"The tensor {name} is none of a Yuan2.0 with these sizes: expected only those that config.json describes; "
                "take the config.json that was published with this checkpoint."
            )
        if spec.shape != shape:
            raise CheckpointError(
                f"The tensor {name} has the shape {list(spec.shape)}: expected {list(shape)} from config.json; "
                "take the config.json that was published with this checkpoint, or " + _ELSEWHERE + "."
            )
        if spec.dtype not in _FLOATS:
            raise CheckpointError(
                f"The tensor {name} has the type {spec.dtype}: expected one of {', '.join(_FLOATS)}; take the bf16 checkpoint."
            )
    return size


def _experts(config: Mapping[str, Any]) -> tuple[int, int]:
    moe = config.get("moe_config")
    if not isinstance(moe, Mapping):
        raise CheckpointError(
            "config.json sets use_moe and has no moe_config: take the config.json that was published with it."
        )
    router = moe.get("router_type") or config.get("router_type") or "attn_router"
    if router != "attn_router":
        raise CheckpointError(
            f"config.json has the router_type {router!r}: expected 'attn_router', the only one of Yuan2.0; Yuan3.0 is not served here."
        )
    if moe.get("per_layer_experts_blocks"):
        raise CheckpointError(
            "config.json has per_layer_experts_blocks, so it is a Yuan3.0: expected the same experts in every layer; it is not served here."
        )
    if moe.get("gated_linear_unit") is False:
        raise CheckpointError("config.json has gated_linear_unit false: expected true, as Yuan2.0-M32 has it.")
    return _number(moe, "moe_num_experts"), _number(moe, "ffn_hidden_size")


def _number(values: Mapping[str, Any], key: str) -> int:
    value = values.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise CheckpointError(
            f"config.json has {value!r} as {key}: expected a number above 0; take the config.json that was published with the checkpoint."
        )
    return value


def _packed(name: str, found: Mapping[str, TensorSpec]) -> bool:
    return name.endswith(".weight") and f"{name}_packed" in found and f"{name}_scale" in found


def _unpacked(name: str) -> str:
    for suffix in _PACKED:
        if name.endswith(suffix):
            return name[: -len(suffix)] + ".weight"
    return name


def _refuse_gptq(found: Mapping[str, TensorSpec], config: Mapping[str, Any]) -> None:
    name = next((name for name in found if _GPTQ.search(name)), None)
    if name is not None or (config.get("quantization_config") or {}).get("quant_method") == "gptq":
        told = f"holds the tensor {name}" if name else "is marked as such in config.json"
        raise CheckpointError(
            f"The checkpoint is quantised by AutoGPTQ ({told}): expected bf16 or float16 weights. AutoGPTQ packs along the inputs and "
            "wraps the experts in names of its own, which no kernel here reads; take the bf16 checkpoint and quantise that."
        )
