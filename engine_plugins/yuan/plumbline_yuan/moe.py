"""The attention router and the experts, which run on vLLM's fused MoE whatever their weights' format."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from vllm.model_executor.layers.fused_moe import fused_experts, routed_experts
from vllm.model_executor.layers.quantization import QuantizationConfig
from vllm.model_executor.utils import set_weight_attrs

from plumbline_yuan import kernels
from plumbline_yuan.compat import fused_moe
from plumbline_yuan.config import YuanSizes
from plumbline_yuan.settings import few_tokens, many_tokens


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
            return kernels.few_products(z, self.weight, torch.float32), None
        if z.is_cuda and z.dtype in (torch.bfloat16, torch.float16):
            return torch.mm(z, self.weight.t(), out_dtype=torch.float32), None
        return nn.functional.linear(z.float(), self.weight.float()), None


# Memory for the full weights of one layer's experts, the same for all layers.
ROOM: dict[tuple[Any, ...], Tensor] = {}


def room(shape: tuple[int, ...], x: Tensor) -> Tensor:
    """Memory of that shape, of x's type and place."""
    key = (shape, x.dtype, x.device)
    if key not in ROOM:
        ROOM[key] = torch.empty(shape, dtype=x.dtype, device=x.device)
    return ROOM[key]


class RoutedExperts(routed_experts.RoutedExperts):
    """vLLM's experts, with the plugin's own ways for few and many tokens on a CUDA device. Quantisation looks for a class of this name."""

    def forward_modular(self, x: Tensor, topk_weights: Tensor, topk_ids: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Apply the chosen experts to x [T, H]."""
        if x.is_cuda and 0 < x.shape[0] <= few_tokens() and self._is_whole() and self._is_plain(x):
            return kernels.few_experts(x, self.w13_weight, self.w2_weight, topk_weights, topk_ids)
        if x.is_cuda and 0 < many_tokens() <= x.shape[0] and self._is_whole() and self._is_marlin(x):
            if not ROOM:
                # vLLM's first step, which measures memory, is its largest: let Marlin have its own for steps below.
                most = many_tokens() - 1
                super().forward_modular(x[:most], topk_weights[:most], topk_ids[:most], *args, **kwargs)
            return self._unpacked(x, topk_weights, topk_ids)
        return super().forward_modular(x, topk_weights, topk_ids, *args, **kwargs)

    def _unpacked(self, x: Tensor, topk_weights: Tensor, topk_ids: Tensor) -> Tensor:
        """Turn four bits back and multiply full weights: for many tokens that takes less time than Marlin's slower products."""
        experts, _, words = self.w13_weight_packed.shape
        hidden, width = x.shape[1], words // 4
        w13, w2 = room((experts, 2 * width, hidden), x), room((experts, hidden, width), x)
        kernels.unpack_marlin(self.w13_weight_packed, self.w13_weight_scale, w13)
        kernels.unpack_marlin(self.w2_weight_packed, self.w2_weight_scale, w2)
        return fused_experts(x, w13, w2, topk_weights, topk_ids)

    def _is_whole(self) -> bool:
        return self.expert_map is None and not self.apply_router_weight_on_input

    def _is_plain(self, x: Tensor) -> bool:
        """Whether the weights lie as they were loaded, all in this process, and x is of their type."""
        backend = getattr(self.quant_method, "unquantized_backend", None)
        return (
            getattr(backend, "name", "") == "TRITON"
            and self.w13_weight.dtype == x.dtype
            and self.w13_weight.is_contiguous()
            and self.w2_weight.is_contiguous()
            and self.w13_weight.shape[2] == x.shape[1]
        )

    def _is_marlin(self, x: Tensor) -> bool:
        """Whether the weights are symmetric ones of four bits in Marlin's layout, in groups along the inputs, all in this process."""
        method = self.quant_method
        if getattr(getattr(method, "wna16_backend", None), "name", "") != "MARLIN":
            return False
        group, hidden, words = getattr(method, "group_size", -1), x.shape[1], self.w13_weight_packed.shape[2]
        return (
            getattr(method, "num_bits", 0) == 4
            and getattr(method, "symmetric", False)
            and getattr(method, "actorder", None) is None
            and getattr(method, "marlin_input_dtype", None) is None
            and group in (32, 64, 128)
            and x.dtype == self.w13_weight_scale.dtype
            # One group for all inputs has its scales in another order.
            and group < min(hidden, words // 4)
            # No padding: the layout's sizes are the model's.
            and hidden % 64 == 0
            and words % 256 == 0
            and self.w13_weight_scale.shape[1] * group == hidden
            and self.w2_weight_scale.shape[1] * group == words // 4
            and self.w2_weight_packed.shape[2] == 2 * hidden
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
