"""The attention router and the experts, which run on vLLM's fused MoE whatever their weights' format."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from vllm.model_executor.layers.quantization import QuantizationConfig
from vllm.model_executor.utils import set_weight_attrs

from plumbline_yuan import kernels
from plumbline_yuan.compat import fused_moe
from plumbline_yuan.config import YuanSizes


class Router(nn.Module):
    """Queries, keys and values of the experts: [T, 3 experts], in float32. What they choose is computed in `choose`."""

    def __init__(self, hidden: int, experts: int) -> None:
        """Make the weight: query, key and value one below the other."""
        super().__init__()
        self.experts = experts
        self.weight = nn.Parameter(torch.empty(3 * experts, hidden), requires_grad=False)
        set_weight_attrs(self.weight, {"weight_loader": self._load})

    def _load(self, parameter: nn.Parameter, tensor: Tensor, which: int) -> None:
        parameter.data[which * self.experts : (which + 1) * self.experts].copy_(tensor)

    def forward(self, z: Tensor) -> tuple[Tensor, None]:
        """Project z [T, H]. Products of the weights' type, summed and kept in float32."""
        if z.is_cuda and z.dtype in (torch.bfloat16, torch.float16):
            return torch.mm(z, self.weight.t(), out_dtype=torch.float32), None
        return nn.functional.linear(z.float(), self.weight.float()), None


class Experts(nn.Module):
    """The experts of one layer behind the attention router."""

    def __init__(self, sizes: YuanSizes, layer: int, quant_config: QuantizationConfig | None, prefix: str) -> None:
        """Make the router and vLLM's fused MoE."""
        super().__init__()
        self.count = sizes.experts[layer]
        self.gate = Router(sizes.hidden, self.count)
        self.experts = fused_moe(
            num_experts=self.count,
            top_k=sizes.top_k,
            hidden_size=sizes.hidden,
            intermediate_size=sizes.width,
            renormalize=sizes.renormalize,
            custom_routing_function=self.choose,
            gate=self.gate,
            router_logits_dtype=torch.float32,
            quant_config=quant_config,
            prefix=f"{prefix}.experts",
        )

    def choose(
        self, hidden_states: Tensor, gating_output: Tensor, topk: int, renormalize: bool, **_: Any
    ) -> tuple[Tensor, Tensor]:
        """Weights and ids of the experts of each token, as vLLM's MoE calls for them."""
        return kernels.route(gating_output, self.count, topk, renormalize)

    def forward(self, z: Tensor) -> Tensor:
        """Apply the experts to z [T, H]; fused MoE applies the router itself."""
        return self.experts(hidden_states=z, router_logits=z)
