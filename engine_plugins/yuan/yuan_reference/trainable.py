"""The reference's mathematics as a module that can be trained: batches, and gradients; the parameters have the names on disk."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from yuan_reference.model import FILTER_NORM_EPS, Dimensions, rms_norm, split_query_key, tensor_shapes


class TrainableYuan(nn.Module):
    """A Yuan2.0 model of a configuration with tied embeddings, for batches of whole sequences [B, S].

    Raises ValueError for a configuration without experts or with an own head: what is trained here is a small M32.
    """

    def __init__(self, config: Mapping[str, Any], seed: int = 0) -> None:
        """Draw the first weights, by the seed."""
        super().__init__()
        self.size = Dimensions.of(config)
        if not self.size.experts or not config.get("tie_word_embeddings"):
            raise ValueError("Only a model with experts and tied embeddings is trained here.")
        generator = torch.Generator().manual_seed(seed)
        self.weights = nn.ParameterDict()
        for name, shape in tensor_shapes(config).items():
            if name != "lm_head.weight":
                self.weights[_key(name)] = nn.Parameter(self._first(name, shape, generator))

    def _first(self, name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        if "norm" in name:
            return torch.ones(shape)
        if name.endswith(".bias"):
            return torch.zeros(shape)
        deviation = 0.02 if "embed_tokens" in name else 0.5 * (shape[1] * (2 if len(shape) == 4 else 1)) ** -0.5
        if name.endswith(("o_proj.weight", "w2.weight")):  # what is added to the residual stream, twice in each layer
            deviation /= math.sqrt(2 * self.size.layers)
        return torch.randn(shape, generator=generator) * deviation

    def tensors(self) -> dict[str, Tensor]:
        """The weights under their names on disk, the head being the embedding."""
        named = {key.replace("/", "."): parameter.detach() for key, parameter in self.weights.items()}
        return named | {"lm_head.weight": named["model.embed_tokens.weight"]}

    def _get(self, index: int, name: str) -> Tensor:
        return self.weights[_key(f"model.layers.{index}.{name}")]

    def _filter(self, index: int, x: Tensor) -> Tensor:
        """The local filter of x [B, S, H]: each convolution as two products, of the row before and of the row."""

        def convolve(rows: Tensor, name: str) -> Tensor:
            weight, bias = (
                self._get(index, f"self_attn.lf_gate.{name}.weight"),
                self._get(index, f"self_attn.lf_gate.{name}.bias"),
            )
            before = functional.pad(rows[:, :-1], (0, 0, 1, 0))
            return before @ weight[:, :, 0, 0].t() + rows @ weight[:, :, 1, 0].t() + bias

        y = convolve(convolve(x, "conv1"), "conv2")
        return rms_norm((y + x).float(), self._get(index, "self_attn.lf_gate.output_layernorm.weight"), FILTER_NORM_EPS)

    def _attention(self, index: int, x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        size = self.size
        u = self._filter(index, x)
        projection = torch.cat(
            (self._get(index, "self_attn.q_proj.weight"), self._get(index, "self_attn.k_proj.weight"))
        )
        q, k = split_query_key(u @ projection.t(), size.heads)  # [B, S, heads, head]
        v = (x @ self._get(index, "self_attn.v_proj.weight").t()).unflatten(-1, (size.heads, size.head))
        q, k, v = (part.transpose(1, 2) for part in (_rotate(q, turn), _rotate(k, turn), v))
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return attended.transpose(1, 2).flatten(-2) @ self._get(index, "self_attn.o_proj.weight").t()

    def _experts(self, index: int, z: Tensor) -> tuple[Tensor, Tensor]:
        """The experts' answer for z [T, H], and how unequal their load is (1: all the same)."""
        size = self.size
        with torch.autocast("cpu", enabled=False):  # the router computes in float32
            q, k, v = (z @ self._get(index, f"mlp.gate.{name}.weight").t() for name in ("query", "key", "value"))
            scores = torch.softmax(q[:, :, None] * k[:, None, :], dim=-1)
            probability = torch.softmax((scores * v[:, None, :]).sum(-1), dim=-1)
        share, chosen = probability.topk(size.top_k, dim=-1)
        share = share / share.sum(-1, keepdim=True)
        out = torch.zeros_like(z)
        used = []
        for expert in range(size.experts):
            token, place = torch.where(chosen == expert)
            used.append(len(token))
            w1, w2 = (self._get(index, f"mlp.experts.{expert}.{part}.weight") for part in ("w1", "w2"))
            gate, linear = (z[token] @ w1.t()).chunk(2, dim=-1)
            answer = (functional.silu(gate) * linear) @ w2.t()
            out = out.index_add(0, token, answer.float() * share[token, place, None])
        load = torch.tensor(used, dtype=torch.float32) / chosen.numel()
        return out, size.experts * (load * probability.mean(0)).sum()

    def forward(self, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return (logits [B, S, V], the layers' mean imbalance) of token_ids [B, S]."""
        size = self.size
        embedding = self.weights[_key("model.embed_tokens.weight")]
        h = functional.embedding(token_ids, embedding)
        angle = torch.arange(token_ids.shape[1])[:, None] * size.rotary_base ** (
            -torch.arange(size.rotary // 2, dtype=torch.float32) * 2 / size.rotary
        )
        turn = (angle.cos()[:, None], angle.sin()[:, None])  # [S, 1, rotary/2]
        imbalance = torch.zeros(())
        for index in range(size.layers):
            x = rms_norm(h, self._get(index, "input_layernorm.weight"), size.norm_eps)
            h = h + self._attention(index, x, turn).float()
            z = rms_norm(h, self._get(index, "post_attention_layernorm.weight"), size.norm_eps)
            answer, uneven = self._experts(index, z.flatten(0, 1))
            h = h + answer.view_as(h)
            imbalance = imbalance + uneven / size.layers
        h = rms_norm(h, self.weights[_key("model.norm.weight")], size.norm_eps)
        return (h @ embedding.t()).float(), imbalance


def _key(name: str) -> str:
    """A parameter's key in a ParameterDict, which must not have dots."""
    return name.replace(".", "/")


def _rotate(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary embedding of x [B, S, heads, head] by the cosines and sines [S, 1, rotary/2] of its positions."""
    cos, sin = turn
    half = cos.shape[-1]
    low, high, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat(((low * cos - high * sin).to(x.dtype), (high * cos + low * sin).to(x.dtype), rest), dim=-1)
