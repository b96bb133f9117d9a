"""What a layer with a recurrent state keeps for a sequence, as vLLM's models say it (get_mamba_state_shape_from_config). Pure.

Shapes: vllm/model_executor/layers/mamba/mamba_utils.py, MambaStateShapeCalculator; which figures go in: the model's own file there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# A part of a state: elements in one process, and whether it is the recurrent part, for which models want float32.
Part = tuple[int, bool]

_GATED_DELTA = ("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", "olmo_hybrid")
# model_type: (groups, heads, head size, state size, kernel) as its config names them.
_MAMBA2 = {
    "mamba2": ("n_groups", "num_heads", "head_dim", "state_size", "conv_kernel"),
    "nemotron_h": ("n_groups", "mamba_num_heads", "mamba_head_dim", "ssm_state_size", "conv_kernel"),
    "bamba": ("mamba_n_groups", "mamba_n_heads", "mamba_d_head", "mamba_d_state", "mamba_d_conv"),
    "falcon_h1": ("mamba_n_groups", "mamba_n_heads", "mamba_d_head", "mamba_d_state", "mamba_d_conv"),
    "granitemoehybrid": ("mamba_n_groups", "mamba_n_heads", "mamba_d_head", "mamba_d_state", "mamba_d_conv"),
    "zamba2": ("mamba_ngroups", "n_mamba_heads", "mamba_headdim", "mamba_d_state", "mamba_d_conv"),
}
_MAMBA1 = {
    "mamba": ("intermediate_size", "state_size", "conv_kernel"),
    "falcon_mamba": ("intermediate_size", "state_size", "conv_kernel"),
    "jamba": ("", "mamba_d_state", "mamba_d_conv"),
}
# Their layers keep one block more for a request, a checkpoint of its prompt, where prefixes are cached (layers/mamba/mamba_mixer2.py).
CHECKPOINTED_MODELS = frozenset(_MAMBA2)
STATE_MODELS = frozenset((*_GATED_DELTA, *_MAMBA2, *_MAMBA1, "lfm2", "lfm2_moe", "kimi_linear", "yuan"))


def state_parts(model_type: str, config: Mapping[str, Any], tensor_parallel: int) -> tuple[Part, ...]:
    """The parts of the state of one sequence in one layer and process; empty where the config does not say them."""
    try:
        return _parts(model_type, config, tensor_parallel)
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return ()


def _parts(model_type: str, config: Mapping[str, Any], parallel: int) -> tuple[Part, ...]:
    hidden = int(config["hidden_size"])
    if model_type == "yuan":
        # engine_plugins/yuan/plumbline_yuan/local_filter.py, state_shapes.
        return ((hidden // 2 // parallel, False), (hidden, False))
    if model_type in ("lfm2", "lfm2_moe"):
        width = int(config.get("conv_dim") or hidden)
        return ((width // parallel * (int(config["conv_L_cache"]) - 1), False),)
    if model_type in _GATED_DELTA:
        keys, values = int(config["linear_num_key_heads"]), int(config["linear_num_value_heads"])
        key, value = int(config["linear_key_head_dim"]), int(config["linear_value_head_dim"])
        width = (2 * key * keys + value * values) // parallel
        return ((width * (int(config["linear_conv_kernel_dim"]) - 1), False), (values // parallel * value * key, True))
    if model_type == "kimi_linear":
        inner = config["linear_attn_config"]
        heads, size = int(inner["num_heads"]), int(inner["head_dim"])
        width = 3 * heads * size // parallel
        return (
            (width * (int(inner.get("short_conv_kernel_size", 4)) - 1), False),
            (heads // parallel * size * size, True),
        )
    if model_type in _MAMBA1:
        width_name, state, kernel = _MAMBA1[model_type]
        width = int(config[width_name]) if width_name else int(config.get("mamba_expand", 2)) * hidden
        return ((width // parallel * (int(config[kernel]) - 1), False), (width // parallel * int(config[state]), True))
    groups_name, heads_name, size_name, state, kernel = _MAMBA2[model_type]
    groups, heads, size = int(config[groups_name]), int(config[heads_name]), int(config[size_name])
    # Groups that do not divide are copied along with their heads (extra_groups_for_head_shards).
    groups += 0 if groups % parallel == 0 else parallel - groups
    width = (heads * size + 2 * groups * int(config[state])) // parallel
    return ((width * (int(config[kernel]) - 1), False), (heads // parallel * size * int(config[state]), True))


def recurrent_bytes(model_type: str, config: Mapping[str, Any], element_bytes: int, wide_on_cpu: bool) -> int:
    """Bytes of an element of the recurrent part (model_executor/models/config.py; platforms/cpu.py makes it float32 with AVX-512 bf16)."""
    sizes = {"float32": 4, "float16": 2, "bfloat16": 2}
    if model_type in ("nemotron_h",):
        return sizes.get(str(config.get("mamba_ssm_cache_dtype", "float32")), 4)
    if model_type.startswith("qwen3_5") and config.get("mamba_ssm_dtype"):
        return sizes.get(str(config["mamba_ssm_dtype"]), 4)
    if model_type == "kimi_linear" or wide_on_cpu:
        return 4
    return element_bytes
