"""What of a model's config.json decides its memory: its layers, and what each keeps for a sequence. Pure, standard library only.

Where a rule comes from is told by vLLM's file (0.32; the names are the same in 0.26 and 0.33): what is read here is what vLLM reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .serving_plan_state import STATE_MODELS, state_parts

# transformers_utils/model_arch_config_convertor.py, is_deepseek_mla: the model types whose attention keeps one latent vector for a token.
MLA_MODELS = frozenset({
    "axk1", "deepseek_v2", "deepseek_v3", "deepseek_v32", "deepseek_mtp", "glm_moe_dsa", "glm4_moe_lite", "glm5_next", "glm5_next_text",
    "kimi_k2", "kimi_linear", "longcat_flash", "pangu_ultra_moe", "bailing_hybrid", "dots3_note", "hy_v4",
})  # fmt: skip
# Those among them that keep keys of an index beside it (v1/attention/backends/mla/indexer.py): a byte an element, four for each group.
INDEXED_MODELS = frozenset({"deepseek_v32", "glm_moe_dsa"})
_INDEX_GROUP = 128
# Names in config.json for the longest context, of which the smallest counts (same file, derive_max_model_len_and_key).
_LENGTHS = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length", "max_target_positions",
    "max_sequence_length", "max_seq_length", "seq_len",
)  # fmt: skip
# Scalings of rope whose factor is in max_position_embeddings already (config/model.py, _get_and_verify_max_len).
_SCALED_ALREADY = ("default", "su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling", "mrope")
# Layers by the words of layer_types, layers_block_type and their like.
_WORDS = {
    "full_attention": "full",
    "attention": "full",
    "full": "full",
    "global": "full",
    "sliding_attention": "sliding",
    "sliding_window_attention": "sliding",
    "swa": "sliding",
    "local": "sliding",
    "chunked_attention": "chunked",
    "linear_attention": "state",
    "mamba": "state",
    "mamba2": "state",
    "conv": "state",
    "recurrent": "state",
    "hybrid": "both",
    "mlp": "none",
    "moe": "none",
    "dense": "none",
}


@dataclass(frozen=True)
class Layer:
    """What a layer keeps. `kind`: full, sliding, chunked, mla, index, state or none; a layer with attention and a state is two of these."""

    kind: str
    kv_heads: int = 0
    head_size: int = 0
    head_size_v: int = 0
    window: int = 0


@dataclass(frozen=True)
class Shape:
    """A model as far as memory goes. `unknown` says in a few words what is not understood; empty when everything is."""

    architecture: str
    model_type: str
    hidden: int
    vocabulary: int
    heads: int
    layers: tuple[Layer, ...]
    depth: int
    intermediate: int
    experts: int
    experts_per_token: int
    expert_width: int
    max_length: int | None
    attention_columns: int
    quantization: str
    config: Mapping[str, Any]
    unknown: str = ""

    @property
    def uses_mla(self) -> bool:
        """Whether attention keeps one latent vector for a token."""
        return any(layer.kind == "mla" for layer in self.layers)

    @property
    def kv_heads(self) -> int:
        """Key-value heads of the widest layer."""
        return max((layer.kv_heads for layer in self.layers), default=0)


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of config.json that describes the language model."""
    for name in ("text_config", "llm_config", "language_config"):
        inner = config.get(name)
        if isinstance(inner, Mapping) and inner.get("hidden_size"):
            return {**{key: config[key] for key in ("architectures", "dtype", "torch_dtype") if key in config}, **inner}
    return config


def number(config: Mapping[str, Any], *names: str, default: int = 0) -> int:
    """The first of *names* that config has as a positive number; of a list its largest."""
    for name in names:
        value = config.get(name)
        if isinstance(value, list) and value and all(isinstance(item, int) for item in value):
            value = max(value)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0:
            return int(value)
    return default


def read_shape(whole: Mapping[str, Any]) -> Shape:
    """Describe a model by its config.json (a mapping); what is missing or strange ends in `unknown`, never in an exception."""
    config = text_config(whole)
    model_type = str(config.get("model_type") or whole.get("model_type") or "")
    architecture = ", ".join(whole.get("architectures") or []) or model_type or "unknown"
    if not model_type and architecture == "YuanForCausalLM":
        model_type = "yuan"
    heads = number(config, "num_attention_heads", "n_head", "n_heads")
    hidden = number(config, "hidden_size", "d_model", "n_embd")
    moe = config.get("moe_config") if isinstance(config.get("moe_config"), Mapping) else config.get("ffn_config")
    inner = {**config, **moe} if isinstance(moe, Mapping) else config
    experts = number(inner, "num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts")
    intermediate = number(config, "intermediate_size", "ffn_hidden_size", "n_inner", default=4 * hidden)
    layers, unknown = _layers(config, model_type, heads, hidden)
    quantization = (
        config.get("quantization_config") or whole.get("quantization_config") or whole.get("compression_config")
    )
    return Shape(
        architecture=architecture,
        model_type=model_type,
        hidden=hidden,
        vocabulary=number(config, "vocab_size", "padded_vocab_size"),
        heads=heads,
        layers=layers,
        depth=number(config, "num_hidden_layers", "n_layer", "n_layers", "num_layers"),
        intermediate=intermediate,
        experts=experts,
        experts_per_token=number(
            inner, "num_experts_per_tok", "num_experts_per_token", "moe_top_k", "top_k_experts", "moe_topk"
        ),
        expert_width=number(
            inner, "moe_intermediate_size", "expert_hidden_size", "ffn_hidden_size", default=intermediate
        ),
        max_length=_max_length(config),
        attention_columns=_attention_columns(config, layers, heads),
        quantization=_quantization(quantization),
        config=config,
        unknown=unknown or ("" if (hidden and heads) or layers else "the numbers of its layers, heads and columns"),
    )


def _quantization(found: Any) -> str:
    if not isinstance(found, Mapping):
        return ""
    return str(found.get("quant_method") or found.get("quant_algo") or "unknown").lower().replace("_", "-")


def _max_length(config: Mapping[str, Any]) -> int | None:
    """The context that the model is made for, scaled as its rope is (config/model.py, _get_and_verify_max_len)."""
    lengths = [int(value) for name in _LENGTHS if isinstance(value := config.get(name), (int, float)) and value > 0]
    if isinstance(config.get("model_max_length"), int):
        lengths = [config["model_max_length"]]
    if not lengths:
        return None
    length = min(lengths)
    rope = config.get("rope_parameters") or config.get("rope_scaling")
    if isinstance(rope, Mapping) and "gemma3" not in str(config.get("model_type")):
        kind, factor = str(rope.get("rope_type") or rope.get("type") or "default"), rope.get("factor")
        original = config.get("original_max_position_embeddings")
        if kind == "longrope" and isinstance(original, int):
            return original
        if kind not in _SCALED_ALREADY and isinstance(factor, (int, float)):
            length = int(length * float(factor))
    return length


def _attention_columns(config: Mapping[str, Any], layers: tuple[Layer, ...], heads: int) -> int:
    """Columns of queries, keys, values and the attention's answer of one token, for its activations."""
    if any(layer.kind == "mla" for layer in layers):
        # Prompts are computed with whole keys and values (model_executor/layers/attention/mla_attention.py).
        key = number(config, "qk_nope_head_dim") + number(config, "qk_rope_head_dim")
        return heads * (2 * key + 2 * number(config, "v_head_dim", default=key))
    return max(
        (
            2 * heads * layer.head_size + layer.kv_heads * (layer.head_size + layer.head_size_v)
            for layer in layers
            if layer.kv_heads
        ),
        default=0,
    )


def _kinds(config: Mapping[str, Any], model_type: str, count: int) -> list[str]:  # noqa: PLR0911 - a line a family reads best
    """The kind of each layer, by whichever list or rule the model has."""
    for name in ("layer_types", "layers_block_type", "layer_block_types", "block_types", "attention_layer_types"):
        listed = config.get(name)
        if isinstance(listed, list) and len(listed) >= count > 0:
            return [_WORDS.get(str(word), str(word)) for word in listed[:count]]
    pattern = config.get("hybrid_override_pattern")
    if isinstance(pattern, str) and pattern:  # Nemotron-H: M a state, * attention, - an MLP, E experts
        return [{"M": "state", "*": "full"}.get(letter, "none") for letter in pattern]
    if model_type in ("mamba", "mamba2", "falcon_mamba"):
        return ["state"] * count
    if model_type in ("falcon_h1", "yuan"):
        return ["both"] * count
    if model_type == "jamba":
        period, offset = number(config, "attn_layer_period", default=8), int(config.get("attn_layer_offset") or 0)
        return ["full" if index % period == offset else "state" for index in range(count)]
    if model_type in ("lfm2", "lfm2_moe") and isinstance(config.get("full_attn_idxs"), list):
        return ["full" if index in config["full_attn_idxs"] else "state" for index in range(count)]
    linear = config.get("linear_attn_config")
    if model_type == "kimi_linear" and isinstance(linear, Mapping) and isinstance(linear.get("kda_layers"), list):
        return ["state" if index + 1 in linear["kda_layers"] else "full" for index in range(count)]
    if model_type == "bamba" and isinstance(config.get("attn_layer_indices"), list):
        return ["full" if index in config["attn_layer_indices"] else "state" for index in range(count)]
    if model_type in ("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"):
        interval = number(config, "full_attention_interval", default=4)
        return ["full" if (index + 1) % interval == 0 else "state" for index in range(count)]
    return _by_window(config, model_type, count)


def _by_window(config: Mapping[str, Any], model_type: str, count: int) -> list[str]:
    """Attention layers of models that name a window but list no layers."""
    if number(config, "attention_chunk_size") and model_type in ("llama4", "llama4_text"):
        # Every fourth layer has no position embedding and sees everything (models/llama4.py).
        listed = config.get("no_rope_layers")
        ropes = (
            listed if isinstance(listed, list) and len(listed) >= count else [(index + 1) % 4 for index in range(count)]
        )
        return ["chunked" if ropes[index] else "full" for index in range(count)]
    if not number(config, "sliding_window") or config.get("use_sliding_window") is False:
        return ["full"] * count
    period = number(config, "sliding_window_pattern", "_sliding_window_pattern")
    if model_type in ("gemma2", "gpt_oss"):
        period = 2
    elif model_type in ("gemma3", "gemma3_text") and not period:
        period = 6
    elif model_type in ("cohere2",) and not period:
        period = 4
    if period:
        return ["full" if (index + 1) % period == 0 else "sliding" for index in range(count)]
    first = number(config, "max_window_layers")
    if model_type.startswith(("qwen2", "qwen3")) and first:
        return ["sliding" if index >= first else "full" for index in range(count)]
    return ["sliding"] * count


def _layers(config: Mapping[str, Any], model_type: str, heads: int, hidden: int) -> tuple[tuple[Layer, ...], str]:  # noqa: PLR0911
    """What each layer keeps, and what is not understood."""
    count = number(config, "num_hidden_layers", "n_layer", "n_layers", "num_layers")
    if model_type == "longcat_flash":  # two attentions a layer
        count = 2 * number(config, "num_layers", default=count)
    if not count:
        return (), "the number of its layers"
    if config.get("is_encoder_decoder"):
        return (), "the cache of its encoder"
    if "compress_ratios" in config:
        return (), "the compressed cache of its attention"
    if isinstance(config.get("block_configs"), list):
        return _nas_layers(config, heads, hidden)
    kinds = _kinds(config, model_type, count)
    if strange := sorted({kind for kind in kinds if kind not in _WORDS.values()}):
        return (), f"its layers of the kind {', '.join(strange)}"
    if any(kind in ("state", "both") for kind in kinds) and (
        model_type not in STATE_MODELS or not state_parts(model_type, config, 1)
    ):
        return (), f"the state that layers of {model_type or 'this model'} keep"
    if any(kind in ("full", "sliding", "chunked", "both") for kind in kinds) and not heads:
        return (), "the number of its attention heads"
    # Layers at the end that use the keys and values of earlier ones (Gemma 3n and 4).
    shared = number(config, "num_kv_shared_layers")
    found: list[Layer] = []
    for index, kind in enumerate(kinds):
        if kind == "none" or (shared and index >= count - shared):
            continue
        if kind in ("state", "both"):
            found.append(Layer("state"))
        if kind != "state":
            found += _attention(config, model_type, "full" if kind == "both" else kind, heads, hidden)
    return tuple(found), ""


def _attention(config: Mapping[str, Any], model_type: str, kind: str, heads: int, hidden: int) -> list[Layer]:
    """What one attention layer keeps (get_head_size, get_total_num_kv_heads of the file named above)."""
    rank = number(config, "kv_lora_rank")
    if model_type in MLA_MODELS and rank:
        found = [Layer("mla", kv_heads=1, head_size=rank + number(config, "qk_rope_head_dim"))]
        if model_type in INDEXED_MODELS:
            size = number(config, "index_head_dim", default=128)
            found.append(Layer("index", kv_heads=1, head_size=size + 4 * size // _INDEX_GROUP))
        return found
    size = number(config, "head_dim", "hidden_size_per_head", "attention_head_dim")
    if model_type == "yuan":
        size = number(config, "attention_projection_size", default=hidden) // heads
    size = size or hidden // max(heads, 1)
    attention = config.get("attn_config")
    inner = {**config, **attention} if isinstance(attention, Mapping) else config
    kv_heads = number(
        inner, "n_head_kv", "num_kv_heads", "num_key_value_heads", "kv_n_heads", "multi_query_group_num", "num_attention_groups",
        default=heads,
    )  # fmt: skip
    if model_type == "yuan":
        kv_heads = heads
    if config.get("multi_query") is True and not config.get("new_decoder_architecture"):
        kv_heads = 1
    value = number(config, "v_head_dim", default=size) if rank or "v_head_dim" in config else size
    if kind == "sliding":
        # MiMo-V2: other heads in the layers with a window. Gemma 4: larger ones in those without.
        kv_heads = number(config, "swa_num_key_value_heads", default=kv_heads)
        size, value = number(config, "swa_head_dim", default=size), number(config, "swa_v_head_dim", default=value)
    elif model_type.startswith("gemma4") and number(config, "global_head_dim"):
        size = value = number(config, "global_head_dim")
        kv_heads = number(config, "num_global_key_value_heads", default=kv_heads)
    window = (
        number(config, "attention_chunk_size")
        if kind == "chunked"
        else number(config, "sliding_window", "sliding_window_size")
    )
    return [Layer(kind, kv_heads, size, value, window if kind in ("sliding", "chunked") else 0)]


def _nas_layers(config: Mapping[str, Any], heads: int, hidden: int) -> tuple[tuple[Layer, ...], str]:
    """Nemotron-NAS: layers that differ in the number of heads that share keys, some without attention."""
    size = number(config, "head_dim", default=hidden // max(heads, 1))
    found = []
    for block in config["block_configs"]:
        attention = block.get("attention") if isinstance(block, Mapping) else None
        if not isinstance(attention, Mapping) or not (attention.get("no_op") or attention.get("n_heads_in_group")):
            return (), "its block_configs"
        if not attention.get("no_op"):
            found.append(Layer("full", heads // int(attention["n_heads_in_group"]), size, size))
    return tuple(found), ""
