"""Products of activations with unquantised matrices: vLLM's, but for steps of a few tokens on a CUDA device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from vllm.model_executor.layers.linear import RowParallelLinear, UnquantizedLinearMethod
from vllm.utils.torch_utils import direct_register_custom_op

from plumbline_yuan import kernels
from plumbline_yuan.settings import few_tokens


def multiply(x: Tensor, weight: Tensor) -> Tensor:
    """x [T, K] times weight [N, K], transposed."""
    if x.is_cuda and 0 < x.shape[0] <= few_tokens() and weight.is_contiguous() and x.stride(1) == 1:
        return kernels.few_products(x, weight, x.dtype)
    return torch.nn.functional.linear(x, weight)


def _fake(x: Tensor, weight: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[0])


# An op, so that the choice by the number of tokens is made when the step runs (or its graph is captured) and not when it is compiled.
direct_register_custom_op(op_name="plumbline_yuan_product", op_func=multiply, mutates_args=[], fake_impl=_fake)


def product(layer: Any, x: Tensor) -> Tensor:
    """What `layer`, one of vLLM's linear layers without bias, makes of x [T, K]."""
    plain = type(layer.quant_method) is UnquantizedLinearMethod and layer.weight.dtype == x.dtype and layer.bias is None
    if not x.is_cuda or not plain or (isinstance(layer, RowParallelLinear) and layer.tp_size > 1):
        return layer(x)[0]
    answer: Tensor = torch.ops.vllm.plumbline_yuan_product(x, layer.weight)
    return answer
