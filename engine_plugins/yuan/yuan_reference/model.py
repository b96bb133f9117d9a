"""The mathematics of Yuan2.0 (dense and M32) in plain PyTorch, in two independent paths.

`YuanReference.logits` computes a whole sequence at once, with the local filter as a convolution over the padded sequence.
`YuanReference.decode` computes one token at a time, with the local filter as a recurrence over what it remembers, and a key and
value cache. The two share the weights and the parts that look at one token only; `decode` over a sequence gives `logits` of it.

Everything is computed in `dtype` (float32 or float64); what the model family asks to be done in float32 whatever the weights'
type (norms, router, softmax, rotary angles) is therefore done in `dtype` too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

# The local filter's own norm has this epsilon whatever the configuration's rms_norm_eps is (IEIT-Yuan/Yuan2.0-M32, yuan_moe_hf_model.py).
FILTER_NORM_EPS = 1e-6


@dataclass(frozen=True)
class Dimensions:
    """The sizes that a configuration implies. `rotary` is the number of leading elements of a head that rotate."""

    hidden: int
    layers: int
    heads: int
    head: int
    rotary: int
    rotary_base: float
    experts: int  # 0: dense
    top_k: int
    width: int  # of the MLP, or of one expert
    vocab: int
    norm_eps: float

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Dimensions:
        """Read a configuration (the keys of the real config.json). Raises ValueError for what this reference does not know."""
        for key in ("use_shareqk", "use_yarn"):
            if config.get(key):
                raise ValueError(f"The reference does not compute {key}: it must be absent or false.")
        if config.get("hidden_act", "silu") != "silu":
            raise ValueError(f"The reference knows hidden_act silu, the configuration has {config['hidden_act']!r}.")
        hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
        head = int(config.get("attention_projection_size") or hidden) // heads
        # The published code rotates hidden_size / heads elements, which is half of M32's wider heads and all of a dense model's.
        rotary = int(head * float(config["rotary_percent"])) if "rotary_percent" in config else hidden // heads
        moe = config.get("moe_config") or {}
        if config.get("use_moe"):
            if not moe.get("gated_linear_unit", True) or not moe.get("norm_topk_prob", True):
                raise ValueError(
                    "The reference computes gated experts with probabilities that sum to 1; moe_config asks otherwise."
                )
            if moe.get("router_type", "attn_router") != "attn_router":
                raise ValueError(f"The reference computes the attention router, moe_config has {moe['router_type']!r}.")
        return cls(
            hidden=hidden,
            layers=int(config["num_hidden_layers"]),
            heads=heads,
            head=head,
            rotary=rotary,
            rotary_base=float(config.get("rotary_base", 10000.0)),
            experts=int(moe["moe_num_experts"]) if config.get("use_moe") else 0,
            top_k=int(moe["moe_top_k"]) if config.get("use_moe") else 0,
            width=int(moe["ffn_hidden_size"] if config.get("use_moe") else config["intermediate_size"]),
            vocab=int(config["vocab_size"]),
            norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        )


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Divide `x` by the root of its mean square along the last axis, and scale it by `weight`."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def local_filter(x: Tensor, weight: Mapping[str, Tensor]) -> Tensor:
    """The localized filtering of a whole sequence x [S, H], as two convolutions over time, residual and norm.

    `weight` holds conv1.weight [H/2, H, 2, 1], conv1.bias, conv2.weight [H, H/2, 2, 1], conv2.bias, output_layernorm.weight.
    One row of zeros before the sequence; the second convolution's is a true zero as well, not the first one's answer to zeros.
    """
    steps = x.shape[0]
    image = x.t().reshape(1, x.shape[1], steps, 1)
    first = functional.conv2d(image, weight["conv1.weight"], weight["conv1.bias"], padding=(1, 0))[:, :, :steps]
    second = functional.conv2d(first, weight["conv2.weight"], weight["conv2.bias"], padding=(1, 0))[:, :, :steps]
    y = second.reshape(x.shape[1], steps).t()
    return rms_norm(y + x, weight["output_layernorm.weight"], FILTER_NORM_EPS)


def local_filter_step(
    x: Tensor, x_before: Tensor, y1_before: Tensor, weight: Mapping[str, Tensor]
) -> tuple[Tensor, Tensor]:
    """One step of the localized filtering: x [H], what was x and y1 one token earlier (zeros at the start). Returns (u, y1)."""
    a, b = weight["conv1.weight"], weight["conv2.weight"]
    y1 = a[:, :, 0, 0] @ x_before + a[:, :, 1, 0] @ x + weight["conv1.bias"]
    y2 = b[:, :, 0, 0] @ y1_before + b[:, :, 1, 0] @ y1 + weight["conv2.bias"]
    return rms_norm(y2 + x, weight["output_layernorm.weight"], FILTER_NORM_EPS), y1


def split_query_key(stacked: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """Split [..., 2P], the outputs of q_proj followed by those of k_proj, to queries and keys [..., heads, head].

    The stack is viewed as heads of 2 x head: each head's query lies before its key. So q_proj holds the queries and keys of the
    first half of the heads, and k_proj those of the second half.
    """
    both = stacked.reshape(*stacked.shape[:-1], heads, 2, -1)
    return both[..., 0, :], both[..., 1, :]


def rotate(x: Tensor, positions: Tensor, rotary: int, base: float) -> Tensor:
    """Rotary embedding of x [S, heads, head] at `positions` [S]: pairs (i, i + rotary/2) of the first `rotary` elements."""
    half = rotary // 2
    frequency = base ** (-torch.arange(half, dtype=x.dtype) * 2 / rotary)
    angle = (positions.to(x.dtype)[:, None] * frequency)[:, None, :]
    low, high, rest = x[..., :half], x[..., half:rotary], x[..., rotary:]
    cos, sin = angle.cos(), angle.sin()
    return torch.cat((low * cos - high * sin, high * cos + low * sin, rest), dim=-1)


def router_logits(z: Tensor, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The attention router's logits [S, experts] of z [S, H]: attention among the experts of one token, without a scale."""
    q, k, v = z @ query.t(), z @ key.t(), z @ value.t()
    scores = torch.softmax(q[:, :, None] * k[:, None, :], dim=-1)
    return (scores @ v[:, :, None])[:, :, 0]


def choose_experts(logits: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """Return (weights, experts), both [S, top_k]: the most probable experts and their probabilities, made to sum to 1."""
    probability, expert = torch.softmax(logits, dim=-1).topk(top_k, dim=-1)
    return probability / probability.sum(-1, keepdim=True), expert


def expert_mlp(z: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
    """One expert: the first half of w1's outputs goes through silu, the second is the linear branch."""
    gate, linear = (z @ w1.t()).chunk(2, dim=-1)
    return (functional.silu(gate) * linear) @ w2.t()


def dense_mlp(z: Tensor, gate_proj: Tensor, up_proj: Tensor, down_proj: Tensor) -> Tensor:
    """The dense models' MLP. silu is on up_proj; gate_proj is the linear branch (the other way round than in Llama)."""
    return ((z @ gate_proj.t()) * functional.silu(z @ up_proj.t())) @ down_proj.t()


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of q [S, heads, head] to k, v [T, heads, head], T >= S; the last query sees every key. Returns [S, heads x head]."""
    steps, total = q.shape[0], k.shape[0]
    scores = torch.einsum("shd,thd->hst", q, k) / math.sqrt(q.shape[-1])
    visible = torch.ones(steps, total, dtype=torch.bool).tril(total - steps)
    scores = scores.masked_fill(~visible, -math.inf)
    return torch.einsum("hst,thd->shd", torch.softmax(scores, dim=-1), v).reshape(steps, -1)


@dataclass
class LayerState:
    """What one layer keeps of a sequence: keys and values [t, heads, head], and the local filter's last x [H] and y1 [H/2]."""

    keys: Tensor
    values: Tensor
    x: Tensor
    y1: Tensor


@dataclass
class DecodeState:
    """What `decode` carries from token to token. `position` is the number of tokens seen."""

    layers: list[LayerState] = field(default_factory=list)
    position: int = 0


class YuanReference:
    """A Yuan2.0 model over given tensors (the names of the HF layout).

    Raises ValueError if a tensor is missing, has another shape than the configuration says, or is left over.
    """

    def __init__(
        self, config: Mapping[str, Any], tensors: Mapping[str, Tensor], dtype: torch.dtype = torch.float32
    ) -> None:
        """Take the weights over, in `dtype` (float32 or float64)."""
        self.config = dict(config)
        self.dimensions = Dimensions.of(config)
        self.dtype = dtype
        shapes = tensor_shapes(config)
        given = dict(tensors)
        if "lm_head.weight" not in given and config.get("tie_word_embeddings"):
            given["lm_head.weight"] = given["model.embed_tokens.weight"]
        if missing := sorted(shapes.keys() - given.keys()):
            raise ValueError(f"{len(missing)} tensor(s) are missing, the first is {missing[0]}.")
        if left := sorted(given.keys() - shapes.keys()):
            raise ValueError(f"{len(left)} tensor(s) have no place in this model, the first is {left[0]}.")
        for name, shape in shapes.items():
            if tuple(given[name].shape) != shape:
                raise ValueError(f"{name} has the shape {tuple(given[name].shape)}, the configuration says {shape}.")
        self.weights = {name: given[name].to(dtype) for name in shapes}

    def _layer(self, index: int, part: str = "") -> dict[str, Tensor]:
        prefix = f"model.layers.{index}.{part}"
        return {name.removeprefix(prefix): tensor for name, tensor in self.weights.items() if name.startswith(prefix)}

    def _mlp(self, index: int, z: Tensor) -> Tensor:
        weight = self._layer(index, "mlp.")
        if not self.dimensions.experts:
            return dense_mlp(z, weight["gate_proj.weight"], weight["up_proj.weight"], weight["down_proj.weight"])
        logits = router_logits(z, *(weight[f"gate.{name}.weight"] for name in ("query", "key", "value")))
        share, chosen = choose_experts(logits, self.dimensions.top_k)
        out = torch.zeros_like(z)
        for expert in range(self.dimensions.experts):
            token, place = torch.where(chosen == expert)
            if len(token):
                y = expert_mlp(z[token], weight[f"experts.{expert}.w1.weight"], weight[f"experts.{expert}.w2.weight"])
                out[token] += share[token, place, None] * y
        return out

    def _attention(
        self, index: int, u: Tensor, x: Tensor, past: LayerState | None, position: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Attention of the filtered u and unfiltered x [S, H], after `past`. Returns (output [S, H], all keys, all values)."""
        size = self.dimensions
        weight = self._layer(index, "self_attn.")
        stacked = torch.cat((u @ weight["q_proj.weight"].t(), u @ weight["k_proj.weight"].t()), dim=-1)
        q, k = split_query_key(stacked, size.heads)
        v = (x @ weight["v_proj.weight"].t()).reshape(-1, size.heads, size.head)
        positions = torch.arange(position, position + len(x))
        q = rotate(q, positions, size.rotary, size.rotary_base)
        k = rotate(k, positions, size.rotary, size.rotary_base)
        if past is not None:
            k, v = torch.cat((past.keys, k)), torch.cat((past.values, v))
        return causal_attention(q, k, v) @ weight["o_proj.weight"].t(), k, v

    def _head(self, h: Tensor) -> Tensor:
        return (
            rms_norm(h, self.weights["model.norm.weight"], self.dimensions.norm_eps)
            @ self.weights["lm_head.weight"].t()
        )

    @torch.no_grad()
    def hidden_states(self, token_ids: Sequence[int] | Tensor) -> list[Tensor]:
        """The residual stream [S, H] before the first layer and after each one: where two implementations part is seen here."""
        h = self.weights["model.embed_tokens.weight"][torch.as_tensor(token_ids)]
        states = [h]
        for index in range(self.dimensions.layers):
            weight = self._layer(index)
            x = rms_norm(h, weight["input_layernorm.weight"], self.dimensions.norm_eps)
            u = local_filter(x, self._layer(index, "self_attn.lf_gate."))
            h = h + self._attention(index, u, x, None, 0)[0]
            z = rms_norm(h, weight["post_attention_layernorm.weight"], self.dimensions.norm_eps)
            h = h + self._mlp(index, z)
            states.append(h)
        return states

    @torch.no_grad()
    def logits(self, token_ids: Sequence[int] | Tensor) -> Tensor:
        """The logits [S, vocabulary] after each token of a sequence."""
        return self._head(self.hidden_states(token_ids)[-1])

    def start(self) -> DecodeState:
        """The state before the first token: nothing in the cache, zeros in the local filter."""
        size = self.dimensions
        empty = torch.zeros(0, size.heads, size.head, dtype=self.dtype)
        zero, zero_half = torch.zeros(size.hidden, dtype=self.dtype), torch.zeros(size.hidden // 2, dtype=self.dtype)
        return DecodeState([LayerState(empty, empty, zero, zero_half) for _ in range(size.layers)])

    @torch.no_grad()
    def decode(self, state: DecodeState, token_id: int) -> Tensor:
        """The logits [vocabulary] after one more token. Changes `state`."""
        h = self.weights["model.embed_tokens.weight"][token_id]
        for index, past in enumerate(state.layers):
            weight = self._layer(index)
            x = rms_norm(h, weight["input_layernorm.weight"], self.dimensions.norm_eps)
            u, y1 = local_filter_step(x, past.x, past.y1, self._layer(index, "self_attn.lf_gate."))
            out, keys, values = self._attention(index, u[None], x[None], past, state.position)
            state.layers[index] = LayerState(keys, values, x, y1)
            h = h + out[0]
            z = rms_norm(h, weight["post_attention_layernorm.weight"], self.dimensions.norm_eps)
            h = h + self._mlp(index, z[None])[0]
        state.position += 1
        return self._head(h)

    def greedy(self, token_ids: Sequence[int], count: int) -> list[int]:
        """The `count` most likely tokens after a prompt of at least one token, one after the other."""
        state = self.start()
        for token in token_ids:
            logits = self.decode(state, int(token))
        answer: list[int] = []
        for _ in range(count):
            answer.append(int(logits.argmax()))
            logits = self.decode(state, answer[-1])
        return answer


def tensor_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of a model in the HF layout, in the order in which the published files have them."""
    size = Dimensions.of(config)
    hidden, projection, width = size.hidden, size.heads * size.head, size.width
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (size.vocab, hidden)}
    for index in range(size.layers):
        layer: dict[str, tuple[int, ...]] = {
            "self_attn.v_proj.weight": (projection, hidden),
            "self_attn.o_proj.weight": (hidden, projection),
            "self_attn.lf_gate.conv1.weight": (hidden // 2, hidden, 2, 1),
            "self_attn.lf_gate.conv1.bias": (hidden // 2,),
            "self_attn.lf_gate.conv2.weight": (hidden, hidden // 2, 2, 1),
            "self_attn.lf_gate.conv2.bias": (hidden,),
            "self_attn.lf_gate.output_layernorm.weight": (hidden,),
            "self_attn.q_proj.weight": (projection, hidden),
            "self_attn.k_proj.weight": (projection, hidden),
        }
        if size.experts:
            layer |= {f"mlp.gate.{name}.weight": (size.experts, hidden) for name in ("query", "key", "value")}
            for expert in range(size.experts):
                layer[f"mlp.experts.{expert}.w1.weight"] = (2 * width, hidden)
                layer[f"mlp.experts.{expert}.w2.weight"] = (hidden, width)
        else:
            layer |= {
                "mlp.up_proj.weight": (width, hidden),
                "mlp.gate_proj.weight": (width, hidden),
                "mlp.down_proj.weight": (hidden, width),
            }
        layer |= {"input_layernorm.weight": (hidden,), "post_attention_layernorm.weight": (hidden,)}
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in layer.items()}
    return shapes | {"model.norm.weight": (hidden,), "lm_head.weight": (size.vocab, hidden)}
