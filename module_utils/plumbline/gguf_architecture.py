"""From GGUF's names and metadata to Hugging Face's: config.json and which tensor becomes which. One entry per architecture."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import Any

from .checkpoint_errors import CheckpointError
from .gguf_file import GgufHeader, GgufTensor

_LAYER = re.compile(r"^blk\.(\d+)\.(.+)$")


@dataclass(frozen=True)
class Mapped:
    """A tensor of the checkpoint: its source, its name, and the number of heads whose rows llama.cpp has interleaved (0: none)."""

    source: GgufTensor
    name: str
    interleaved_heads: int = 0


@dataclass(frozen=True)
class _Architecture:
    config: dict[str, Any]
    layer_names: dict[str, str]
    # llama.cpp reorders the rows of these for its rotary embedding; True: key/value heads, False: query heads.
    interleaved: dict[str, bool]


_LLAMA_LAYER = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}
_QKV_BIAS = {
    "attn_q.bias": "self_attn.q_proj.bias",
    "attn_k.bias": "self_attn.k_proj.bias",
    "attn_v.bias": "self_attn.v_proj.bias",
}
_ARCHITECTURES = {
    "llama": _Architecture(
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
        },
        _LLAMA_LAYER,
        {"attn_q.weight": False, "attn_k.weight": True},
    ),
    "qwen2": _Architecture(
        {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu"},
        {**_LLAMA_LAYER, **_QKV_BIAS},
        {},
    ),
}
_TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


def config(header: GgufHeader, dtype: str) -> dict[str, Any]:
    """config.json for the checkpoint in this dtype; raises CheckpointError for what it could not describe truly."""
    name, architecture = _architecture(header)
    heads = _number(header, f"{name}.attention.head_count")
    hidden = _number(header, f"{name}.embedding_length")
    rope_type = header.metadata.get(f"{name}.rope.scaling.type", "none")
    if rope_type != "none" or "rope_freqs.weight" in header.tensors:
        raise CheckpointError(
            f"The GGUF file scales its rotary embedding ({rope_type if rope_type != 'none' else 'rope_freqs'}), "
            "which this conversion does not carry over: give the model as a directory of safetensors instead."
        )
    if header.metadata.get(f"{name}.expert_count", 0):
        raise CheckpointError(
            "The GGUF file is a mixture of experts, which this conversion does not do: give the model as a directory of safetensors."
        )
    key_value_heads = header.metadata.get(f"{name}.attention.head_count_kv", heads)
    head_dim = header.metadata.get(f"{name}.attention.key_length", hidden // heads)
    theta = _decimal(header.metadata.get(f"{name}.rope.freq_base", 10000.0))
    return {
        **architecture.config,
        "hidden_size": hidden,
        "intermediate_size": _number(header, f"{name}.feed_forward_length"),
        "num_hidden_layers": _number(header, f"{name}.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": key_value_heads,
        "head_dim": head_dim,
        "max_position_embeddings": _number(header, f"{name}.context_length"),
        "rms_norm_eps": _decimal(_required(header, f"{name}.attention.layer_norm_rms_epsilon")),
        # Both spellings: before and since transformers 5.
        "rope_theta": theta,
        "rope_parameters": {"rope_theta": theta, "rope_type": "default"},
        "vocab_size": _embedding(header).shape[0],
        # llama.cpp writes no output matrix where it is the embedding.
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "torch_dtype": dtype,
        "use_cache": True,
        **{key: value for key, value in special_tokens(header).items() if value is not None},
    }


def special_tokens(header: GgufHeader) -> dict[str, int | None]:
    """Ids of the special tokens, None where the file names none."""
    return {
        f"{ours}_token_id": header.metadata.get(f"tokenizer.ggml.{theirs}_token_id")
        for ours, theirs in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"))
    }


def tensors(header: GgufHeader) -> list[Mapped]:
    """Every tensor of the file with its new name; raises CheckpointError when one is unknown, missing or of a wrong shape."""
    name, architecture = _architecture(header)
    heads = _number(header, f"{name}.attention.head_count")
    key_value_heads = header.metadata.get(f"{name}.attention.head_count_kv", heads)
    layers = _number(header, f"{name}.block_count")
    mapped = []
    for tensor in header.tensors.values():
        match = _LAYER.match(tensor.name)
        if match and match[2] in architecture.layer_names and int(match[1]) < layers:
            which = architecture.interleaved.get(match[2])
            interleaved = 0 if which is None else key_value_heads if which else heads
            mapped.append(Mapped(tensor, f"model.layers.{match[1]}.{architecture.layer_names[match[2]]}", interleaved))
        elif tensor.name in _TOP_NAMES:
            mapped.append(Mapped(tensor, _TOP_NAMES[tensor.name]))
        else:
            raise CheckpointError(
                f"The GGUF file holds the tensor {tensor.name}, which a {name} model with {layers} layers has not: "
                "give the model as a directory of safetensors instead."
            )
    _complete(header, architecture, layers)
    _shapes(header, heads, key_value_heads, header.metadata.get(f"{name}.attention.key_length"))
    return mapped


def _complete(header: GgufHeader, architecture: _Architecture, layers: int) -> None:
    wanted = ["token_embd.weight", "output_norm.weight"]
    wanted += [f"blk.{layer}.{part}" for layer in range(layers) for part in architecture.layer_names]
    missing = [name for name in wanted if name not in header.tensors]
    if missing:
        raise CheckpointError(
            f"The GGUF file lacks {len(missing)} tensors, the first is {missing[0]}: it is incomplete; copy it again from where it came."
        )


def _shapes(header: GgufHeader, heads: int, key_value_heads: int, key_length: int | None) -> None:
    hidden = _embedding(header).shape[-1]
    head = key_length or hidden // heads
    name = header.metadata["general.architecture"]
    inner = _number(header, f"{name}.feed_forward_length")
    if hidden != _number(header, f"{name}.embedding_length"):
        raise CheckpointError(
            f"The embedding of the GGUF file is {hidden} wide, its metadata say {_number(header, f'{name}.embedding_length')}: "
            "the file is damaged."
        )
    expected = {
        "attn_q.weight": (heads * head, hidden),
        "attn_k.weight": (key_value_heads * head, hidden),
        "attn_v.weight": (key_value_heads * head, hidden),
        "attn_output.weight": (hidden, heads * head),
        "ffn_gate.weight": (inner, hidden),
        "ffn_up.weight": (inner, hidden),
        "ffn_down.weight": (hidden, inner),
        "attn_norm.weight": (hidden,),
        "ffn_norm.weight": (hidden,),
    }
    for tensor in header.tensors.values():
        match = _LAYER.match(tensor.name)
        wanted = expected.get(match[2]) if match else None
        if wanted and tensor.shape != wanted:
            raise CheckpointError(
                f"The tensor {tensor.name} has the shape {list(tensor.shape)}, {list(wanted)} was expected from the metadata: "
                "the file is damaged."
            )


def _architecture(header: GgufHeader) -> tuple[str, _Architecture]:
    name = header.metadata.get("general.architecture")
    if str(name).startswith("yuan2"):
        raise CheckpointError(
            f"The GGUF file is a Yuan2.0 ({name}) as only a fork of llama.cpp wrote it, whose order of rows no text describes: expected "
            "the published weights; take the bf16 checkpoint (pytorch_model*.bin or safetensors), or Megatron's partitions."
        )
    if name not in _ARCHITECTURES:
        raise CheckpointError(
            f"The GGUF file has the architecture {name!r}, this conversion knows {' and '.join(_ARCHITECTURES)}: "
            "give the model as a directory of safetensors instead."
        )
    return str(name), _ARCHITECTURES[name]


def _embedding(header: GgufHeader) -> GgufTensor:
    if "token_embd.weight" not in header.tensors:
        raise CheckpointError(
            "The GGUF file lacks the tensor token_embd.weight: it is incomplete; copy it again from where it came."
        )
    return header.tensors["token_embd.weight"]


def _required(header: GgufHeader, key: str) -> Any:
    if key not in header.metadata:
        raise CheckpointError(
            f"The GGUF file does not say {key}: it is damaged or made by an old tool; take another copy."
        )
    return header.metadata[key]


def _number(header: GgufHeader, key: str) -> int:
    value = _required(header, key)
    if not isinstance(value, int) or value < 1:
        raise CheckpointError(
            f"The GGUF file says {key} is {value!r}, a positive whole number was expected: the file is damaged."
        )
    return value


def _decimal(value: float) -> float:
    """The shortest decimal that is this number in float32, as which GGUF stores it: 1e-05, not 9.999999747378752e-06."""
    for digits in range(1, 10):
        short = float(f"{value:.{digits}g}")
        if struct.pack("<f", short) == struct.pack("<f", value):
            return short
    return float(value)
