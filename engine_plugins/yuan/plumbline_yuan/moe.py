"""The attention router and the experts, which run on vLLM's fused MoE whatever their weights' format."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from vllm.model_executor.layers.fused_moe import routed_experts
from vllm.model_executor.layers.quantization import QuantizationConfig
from vllm.model_executor.utils import set_weight_attrs

from plumbline_yuan import kernels
from plumbline_yuan.compat import fused_moe
from plumbline_yuan.config import YuanSizes
from plumbline_yuan.settings import few_tokens


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
        if z.is_cuda and 0 < z.shape[0] <= few_tokens() and self.weight.is_contiguous():
            return kernels.few_products(z, self.weight), None
        if z.is_cuda and z.dtype in (torch.bfloat16, torch.float16):
            return torch.mm(z, self.weight.t(), out_dtype=torch.float32), None
        return nn.functional.linear(z.float(), self.weight.float()), None


class RoutedExperts(routed_experts.RoutedExperts):
    """vLLM's experts, with kernels of our own for steps of a few tokens on a CUDA device. Quantisation looks for a class of this name."""

    def forward_modular(self, x: Tensor, topk_weights: Tensor, topk_ids: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Apply the chosen experts to x [T, H]."""
        if x.is_cuda and 0 < x.shape[0] <= few_tokens() and self._is_plain(x):
            return kernels.few_experts(x, self.w13_weight, self.w2_weight, topk_weights, topk_ids)
        return super().forward_modular(x, topk_weights, topk_ids, *args, **kwargs)

    def _is_plain(self, x: Tensor) -> bool:
        """Whether the weights lie as they were loaded, all in this process, and x is of their type."""
        backend = getattr(self.quant_method, "unquantized_backend", None)
        return (
            getattr(backend, "name", "") == "TRITON"
            and self.expert_map is None
            and not self.apply_router_weight_on_input
            and self.w13_weight.dtype == x.dtype
            and self.w13_weight.is_contiguous()
            and self.w2_weight.is_contiguous()
            and self.w13_weight.shape[2] == x.shape[1]
        )


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
            routed_experts_cls=RoutedExperts,
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
