"""Yuan2.0 (dense and M32) as a transformers model of plain Linear layers, for llmcompressor to calibrate on, in the quantiser's Python.

It serves nothing: no cache, whole sequences of equal length. Written from the mathematics (docs/yuan.md), apart from the plugin that serves
and the reference that judges; tests/engine_python/test_quantise_yuan.py holds it against the latter. Module names are those of the tensors.
"""

# ruff: noqa: D102, D107 - forward and __init__ of torch's modules, which the classes' own docstrings tell of

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

FILTER_NORM_EPS = 1e-6


class YuanConfig(PretrainedConfig):
    """config.json as it is."""

    model_type = "yuan"


class Norm(nn.Module):
    """Root mean square norm, in float32 whatever the weights' type."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return (scaled * self.weight.float()).to(x.dtype)


class LocalFilter(nn.Module):
    """Two causal convolutions over time of two taps, residual, norm. What lies before the sequence is zero, for the second one too."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(hidden, hidden // 2, (2, 1), padding=(1, 0))
        self.conv2 = nn.Conv2d(hidden // 2, hidden, (2, 1), padding=(1, 0))
        self.output_layernorm = Norm(hidden, FILTER_NORM_EPS)

    def forward(self, x: Tensor) -> Tensor:
        steps = x.shape[1]
        first = self.conv1(x.transpose(1, 2)[..., None])[:, :, :steps]
        second = self.conv2(first)[:, :, :steps, 0].transpose(1, 2)
        return self.output_layernorm(second + x)


class Attention(nn.Module):
    """Queries and keys of the filtered input, values of the input itself. q_proj and k_proj hold both, of half of the heads each."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        hidden, self.heads = config["hidden_size"], config["num_attention_heads"]
        projection = config.get("attention_projection_size") or hidden
        self.head = projection // self.heads
        percent = config.get("rotary_percent")
        self.rotary = int(self.head * percent) if percent is not None else hidden // self.heads
        self.base = float(config.get("rotary_base") or 1e4)
        for name in ("q_proj", "k_proj", "v_proj"):
            setattr(self, name, nn.Linear(hidden, projection, bias=False))
        self.o_proj = nn.Linear(projection, hidden, bias=False)
        self.lf_gate = LocalFilter(hidden)

    def forward(self, x: Tensor) -> Tensor:
        batch, steps, _ = x.shape
        u = self.lf_gate(x)
        both = torch.cat((self.q_proj(u), self.k_proj(u)), -1).view(batch, steps, self.heads, 2, self.head)
        q, k = (self._rotated(both[..., part, :]).transpose(1, 2) for part in (0, 1))
        v = self.v_proj(x).view(batch, steps, self.heads, self.head).transpose(1, 2)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, steps, -1))

    def _rotated(self, x: Tensor) -> Tensor:
        half = self.rotary // 2
        exponent = torch.arange(half, device=x.device, dtype=torch.float32) * 2 / self.rotary
        angle = torch.arange(x.shape[1], device=x.device, dtype=torch.float32)[:, None] * self.base**-exponent
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]
        low, high = x[..., :half].float(), x[..., half : self.rotary].float()
        turned = torch.cat((low * cos - high * sin, high * cos + low * sin), -1).to(x.dtype)
        return torch.cat((turned, x[..., self.rotary :]), -1)


class DenseMlp(nn.Module):
    """silu is on up_proj; gate_proj is the linear branch."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        hidden, width = config["hidden_size"], config["intermediate_size"]
        self.gate_proj = nn.Linear(hidden, width, bias=False)
        self.up_proj = nn.Linear(hidden, width, bias=False)
        self.down_proj = nn.Linear(width, hidden, bias=False)

    def forward(self, z: Tensor) -> Tensor:
        return self.down_proj(self.gate_proj(z) * functional.silu(self.up_proj(z)))


class Expert(nn.Module):
    """The first half of w1's outputs goes through silu, the second is the linear branch."""

    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(hidden, 2 * width, bias=False)
        self.w2 = nn.Linear(width, hidden, bias=False)

    def forward(self, z: Tensor) -> Tensor:
        gate, linear = self.w1(z).chunk(2, -1)
        return self.w2(functional.silu(gate) * linear)


class Router(nn.Module):
    """Attention among the experts of one token, without a scale, in float32."""

    def __init__(self, hidden: int, experts: int) -> None:
        super().__init__()
        for name in ("query", "key", "value"):
            setattr(self, name, nn.Linear(hidden, experts, bias=False))

    def forward(self, z: Tensor) -> Tensor:
        q, k, v = (layer(z).float() for layer in (self.query, self.key, self.value))
        return (torch.softmax(q[..., :, None] * k[..., None, :], -1) @ v[..., None])[..., 0]


class MoeMlp(nn.Module):
    """Every expert computes every token, so that each has seen enough to be calibrated; only the chosen ones count in the sum."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        moe = config["moe_config"]
        hidden, experts = config["hidden_size"], moe["moe_num_experts"]
        self.top_k = moe["moe_top_k"]
        self.gate = Router(hidden, experts)
        self.experts = nn.ModuleList(Expert(hidden, moe["ffn_hidden_size"]) for _ in range(experts))

    def forward(self, z: Tensor) -> Tensor:
        logits = self.gate(z)
        best, chosen = logits.topk(self.top_k, -1)
        share = torch.zeros_like(logits).scatter(-1, chosen, torch.softmax(best, -1)).to(z.dtype)
        out = torch.zeros_like(z)
        for number, expert in enumerate(self.experts):
            out = out + share[..., number, None] * expert(z)
        return out


class YuanLayer(nn.Module):
    """One block."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        hidden, eps = config["hidden_size"], config.get("rms_norm_eps", 1e-6)
        self.input_layernorm = Norm(hidden, eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = Norm(hidden, eps)
        self.mlp = MoeMlp(config) if config.get("use_moe") else DenseMlp(config)

    def forward(self, h: Tensor) -> Tensor:
        h = h + self.self_attn(self.input_layernorm(h))
        return h + self.mlp(self.post_attention_layernorm(h))


class YuanBody(nn.Module):
    """Embedding, blocks, norm."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config["vocab_size"], config["hidden_size"])
        self.layers = nn.ModuleList(YuanLayer(config) for _ in range(config["num_hidden_layers"]))
        self.norm = Norm(config["hidden_size"], config.get("rms_norm_eps", 1e-6))

    def forward(self, input_ids: Tensor) -> Tensor:
        h = self.embed_tokens(input_ids)
        for layer in self.layers:
            h = layer(h)
        return self.norm(h)


class YuanForCausalLM(PreTrainedModel):
    """The whole model, as llmcompressor wants one."""

    config_class = YuanConfig
    base_model_prefix = "model"
    _no_split_modules = ("YuanLayer",)

    def __init__(self, config: YuanConfig) -> None:
        super().__init__(config)
        values = config.to_dict()
        self.model = YuanBody(values)
        self.lm_head = nn.Linear(values["hidden_size"], values["vocab_size"], bias=False)

    def get_output_embeddings(self) -> None:
        """None: llmcompressor would tie the two matrices when it saves and leave one out, but both are in the file that is served."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **_more: Any) -> CausalLMOutput:
        """Logits of whole sequences; `attention_mask` is all ones."""
        return CausalLMOutput(logits=self.lm_head(self.model(input_ids)))


def load(directory: Path) -> YuanForCausalLM:
    """The model of a converted checkpoint, in the type of its weights. Raises RuntimeError where tensors are missing or left over."""
    from safetensors.torch import load_file  # noqa: PLC0415

    values = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    # Both matrices are in the file. They must not be one for llmcompressor, which would quantise neither and save one.
    config = YuanConfig(**{**values, "tie_word_embeddings": False})
    # llmcompressor reads the configuration from where the model came.
    config.name_or_path = str(directory)
    AutoConfig.register("yuan", YuanConfig, exist_ok=True)
    state: dict[str, Tensor] = {}
    for path in sorted(directory.glob("*.safetensors")):
        state |= load_file(path)
    state.setdefault("lm_head.weight", state["model.embed_tokens.weight"])
    with torch.device("meta"):
        model = YuanForCausalLM(config)
    model.load_state_dict(state, assign=True)
    model.name_or_path = str(directory)
    model.eval()
    return model


def mappings(config: Mapping[str, Any]) -> list[Any]:
    """What AWQ may smooth: pairs where what scales the output of one undoes itself in the next.

    Not input_layernorm: its output also passes the local filter's residual. The linear branch carries the scale, since silu does not
    let one through: dense, gate_proj; of an expert, the second half of w1 (AWQModifier divides the last rows of a taller matrix).
    """
    from llmcompressor.modifiers.transform.awq import AWQMapping  # noqa: PLC0415

    found = [
        AWQMapping("re:.*lf_gate.output_layernorm$", ["re:.*self_attn.q_proj$", "re:.*self_attn.k_proj$"]),
        AWQMapping("re:.*self_attn.v_proj$", ["re:.*self_attn.o_proj$"]),
    ]
    if config.get("use_moe"):
        router = [f"re:.*mlp.gate.{name}$" for name in ("query", "key", "value")]
        found.append(AWQMapping("re:.*post_attention_layernorm$", [*router, r"re:.*mlp.experts.\d+.w1$"]))
        found.append(AWQMapping(r"re:.*w1$", [r"re:.*w2$"]))
    else:
        found.append(AWQMapping("re:.*post_attention_layernorm$", ["re:.*mlp.gate_proj$", "re:.*mlp.up_proj$"]))
        found.append(AWQMapping("re:.*mlp.gate_proj$", ["re:.*mlp.down_proj$"]))
    return found
