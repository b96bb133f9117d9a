"""The configuration of a Yuan2.0 model: `config.json` as it is published, and the sizes that follow from it.

Nothing of vLLM is imported here: transformers must know the configuration before vLLM looks at it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from transformers import PretrainedConfig

ARCHITECTURE = "YuanForCausalLM"
MODEL_TYPE = "yuan"

# The local filter's own norm has this epsilon whatever rms_norm_eps says, as the published code has it.
FILTER_NORM_EPS = 1e-6


class YuanConfig(PretrainedConfig):
    """`config.json` of Yuan2.0 dense and M32; every key of the file is kept, missing ones get the family's value."""

    model_type = MODEL_TYPE

    def __init__(
        self,
        vocab_size: int = 135040,
        hidden_size: int = 2048,
        intermediate_size: int = 8192,
        num_hidden_layers: int = 24,
        num_attention_heads: int = 32,
        max_position_embeddings: int = 8192,
        rms_norm_eps: float = 1e-6,
        tie_word_embeddings: bool = True,
        **kwargs: Any,
    ) -> None:
        """Keep what config.json says, and add the names under which vLLM asks for the same figures."""
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.intermediate_size = intermediate_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        # Plain multi-head attention: every head has its own keys and values.
        self.num_key_value_heads = num_attention_heads
        self.max_position_embeddings = max_position_embeddings
        self.rms_norm_eps = rms_norm_eps
        kwargs.pop("num_key_value_heads", None)
        kwargs.pop("head_dim", None)
        super().__init__(tie_word_embeddings=tie_word_embeddings, **kwargs)
        projection = getattr(self, "attention_projection_size", None) or hidden_size
        self.head_dim = projection // num_attention_heads if num_attention_heads else 0


@dataclass(frozen=True)
class YuanSizes:
    """What a configuration implies. `experts` is empty for a dense model, else the number of experts of every layer."""

    hidden: int
    layers: int
    heads: int
    head: int
    rotary: int
    rotary_base: float
    max_position: int
    experts: tuple[int, ...]
    top_k: int
    renormalize: bool
    width: int
    vocab: int
    norm_eps: float
    filter_bias: bool
    tied: bool

    @property
    def projection(self) -> int:
        """Width of all queries (as of all keys, of all values)."""
        return self.heads * self.head

    @classmethod
    def of(cls, config: Any) -> YuanSizes:
        """Read and check a configuration.

        Raises ValueError, one sentence, for what this plugin does not compute.
        """
        values: Mapping[str, Any] = config if isinstance(config, Mapping) else config.to_dict()

        def get(key: str, default: Any = None) -> Any:
            value = values.get(key)
            return default if value is None else value

        for key in ("use_shareqk", "use_yarn"):
            if get(key):
                raise ValueError(
                    f"config.json sets {key}, which the Yuan plugin does not compute: serve another model."
                )
        if get("hidden_act", "silu") != "silu":
            raise ValueError(
                f"config.json has hidden_act {values['hidden_act']!r}; Yuan's MLP is computed with silu only."
            )
        if (scaling := get("rope_scaling")) and scaling.get("rope_type", scaling.get("type", "default")) != "default":
            raise ValueError("config.json sets rope_scaling, which the Yuan plugin does not compute: remove it.")
        hidden, heads, layers = int(get("hidden_size")), int(get("num_attention_heads")), int(get("num_hidden_layers"))
        projection = int(get("attention_projection_size", hidden))
        if heads < 1 or projection % heads or hidden % 2:
            raise ValueError(
                f"config.json has {heads} attention heads over a projection of {projection} and hidden_size {hidden}: "
                "the heads must divide the projection, and hidden_size must be even."
            )
        head = projection // heads
        # The published code rotates hidden_size / heads elements: half of M32's wider heads, all of a dense model's.
        percent = get("rotary_percent")
        rotary = int(head * float(percent)) if percent is not None else hidden // heads
        if rotary % 2 or not 0 < rotary <= head:
            raise ValueError(
                f"config.json asks for {rotary} rotating elements in heads of {head}: an even number up to {head} is needed."
            )
        experts, top_k, renormalize, width = _moe(get, layers)
        return cls(
            hidden=hidden,
            layers=layers,
            heads=heads,
            head=head,
            rotary=rotary,
            rotary_base=float(get("rotary_base", get("rope_theta", 10000.0))),
            max_position=int(get("max_position_embeddings", 8192)),
            experts=experts,
            top_k=top_k,
            renormalize=renormalize,
            width=width,
            vocab=int(get("vocab_size")),
            norm_eps=float(get("rms_norm_eps", 1e-6)),
            filter_bias=bool(get("use_lfa_bias", True)),
            tied=bool(get("tie_word_embeddings", True)),
        )

    def check_parallel(self, tensor_parallel: int) -> None:
        """Raise ValueError where the model cannot be split over `tensor_parallel` processes."""
        for what, size in (
            ("attention heads", self.heads),
            ("channels of the local filter (hidden_size / 2)", self.hidden // 2),
            ("columns of the MLP", self.width),
        ):
            if size % tensor_parallel:
                raise ValueError(
                    f"tensor_parallel_size {tensor_parallel} does not divide the model's {size} {what}: choose a divisor."
                )


def _moe(get: Any, layers: int) -> tuple[tuple[int, ...], int, bool, int]:
    """Experts per layer, experts per token, whether their shares are made to sum to 1, and the width of one MLP."""
    if not get("use_moe", False):
        return (), 0, True, int(get("intermediate_size"))
    moe = get("moe_config", {})
    router = moe.get("router_type") or get("router_type", "attn_router")
    if router != "attn_router":
        raise ValueError(
            f"config.json has router_type {router!r}; the Yuan plugin computes the attention router (attn_router) only."
        )
    if not moe.get("gated_linear_unit", True):
        raise ValueError("config.json has gated_linear_unit false; the Yuan plugin computes gated experts only.")
    missing = [key for key in ("moe_num_experts", "moe_top_k", "ffn_hidden_size") if not moe.get(key)]
    blocks = moe.get("per_layer_experts_blocks")
    if blocks:
        missing = [key for key in missing if key != "moe_num_experts"]
    if missing:
        raise ValueError(f"config.json sets use_moe, but moe_config lacks {', '.join(missing)}.")
    experts = tuple(int(n) for n in blocks) if blocks else (int(moe["moe_num_experts"]),) * layers
    if len(experts) != layers:
        raise ValueError(
            f"per_layer_experts_blocks has {len(experts)} entries for {layers} layers: one each is needed."
        )
    top_k = int(moe["moe_top_k"])
    if top_k > min(experts):
        raise ValueError(f"moe_top_k is {top_k}, but a layer has only {min(experts)} experts.")
    return experts, top_k, bool(moe.get("norm_topk_prob", True)), int(moe["ffn_hidden_size"])
