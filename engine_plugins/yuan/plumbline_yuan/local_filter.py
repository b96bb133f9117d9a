"""The localized filtering as a layer with a state per sequence, which vLLM allots, moves and caches like that of a state-space layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from vllm.config import VllmConfig
from vllm.distributed import (
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
    tensor_model_parallel_all_reduce,
)
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.linear import RowParallelLinear
from vllm.model_executor.layers.mamba.abstract import MambaBase
from vllm.model_executor.layers.mamba.mamba_utils import MambaStateDtypeCalculator
from vllm.model_executor.utils import set_weight_attrs
from vllm.v1.attention.backend import AttentionBackend, CommonAttentionMetadata
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum
from vllm.v1.attention.backends.short_conv_attn import (
    ShortConvAttentionBackend,
    ShortConvAttentionMetadata,
    ShortConvAttentionMetadataBuilder,
)

from plumbline_yuan import kernels
from plumbline_yuan.compat import register_stateful_op
from plumbline_yuan.config import FILTER_NORM_EPS, YuanSizes
from plumbline_yuan.products import multiply

OP = "plumbline_yuan_filter"


class FilterMetadataBuilder(ShortConvAttentionMetadataBuilder):
    """vLLM's metadata for short convolutions, with one-token prompts among the decodes where every request has one token.

    vLLM replays the CUDA graph of a decode batch by the batch's shape alone. It leaves a first token of a prompt among the prefills,
    so the graph would be replayed with the slots of an older step. Here a token knows by its position that nothing precedes it.
    """

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, *args: Any, **kwargs: Any
    ) -> ShortConvAttentionMetadata:
        """Build the metadata of one step."""
        if common_attn_metadata.max_query_len <= 1 and common_attn_metadata.is_prefilling is not None:
            common_attn_metadata = common_attn_metadata.replace(
                is_prefilling=torch.zeros_like(common_attn_metadata.is_prefilling)
            )
        return super().build(common_prefix_len, common_attn_metadata, *args, **kwargs)


class FilterBackend(ShortConvAttentionBackend):
    """The backend that vLLM asks for the metadata builder."""

    @staticmethod
    def get_name() -> str:
        """Return the name under which vLLM groups layers."""
        return "PLUMBLINE_YUAN_FILTER"

    @staticmethod
    def get_builder_cls() -> type[FilterMetadataBuilder]:
        """Return the class that makes a step's metadata."""
        return FilterMetadataBuilder


def rows_of(metadata: ShortConvAttentionMetadata, device: torch.device) -> kernels.Rows:
    """The kernels' view of a step's metadata; made once a step, as all layers share the metadata."""
    rows: kernels.Rows | None = getattr(metadata, "plumbline_rows", None)
    if rows is not None:
        return rows
    rows = kernels.Rows.nothing(device)
    if metadata.num_decodes:
        rows.decodes = metadata.num_decode_tokens
        rows.slots_d = metadata.state_indices_tensor_d[:, 0]
    if metadata.num_prefills:
        ends = metadata.query_start_loc_p
        rows.prefill_tokens = metadata.num_prefill_tokens
        rows.slots_p = metadata.state_indices_tensor_p
        rows.ends_p = ends[1:]
        rows.first_p = torch.full((metadata.num_prefill_tokens,), -1, dtype=torch.int32, device=device)
        rows.first_p[ends[:-1].long()] = torch.arange(metadata.num_prefills, dtype=torch.int32, device=device)
    metadata.plumbline_rows = rows
    return rows


def state_shapes(sizes: YuanSizes, tensor_parallel: int) -> tuple[tuple[int], tuple[int]]:
    """A sequence's state in one layer and process: the older taps' answers to its last token."""
    return (sizes.hidden // 2 // tensor_parallel,), (sizes.hidden,)


def state_dtypes(vllm_config: VllmConfig) -> tuple[torch.dtype, torch.dtype]:
    """The model's type, unless mamba_cache_dtype says otherwise."""
    (dtype,) = MambaStateDtypeCalculator.short_conv_state_dtype(
        vllm_config.model_config.dtype, vllm_config.cache_config.mamba_cache_dtype
    )
    return dtype, dtype


class LocalFilter(nn.Module, MambaBase):
    """u = RMSNorm(y2 + x) of u's two convolutions over time; see kernels.py for how a convolution is computed.

    The first convolution's products come in from outside (`taps`, [T, H / tp]: older, then newer), where they share a matrix product
    with the values' projection. With tensor parallelism its channels are split, so the second one's products are partial sums.
    """

    def __init__(self, sizes: YuanSizes, vllm_config: VllmConfig, prefix: str) -> None:
        """Make the parameters and register the layer under `prefix`."""
        super().__init__()
        self.vllm_config = vllm_config
        self.sizes = sizes
        self.prefix = prefix
        self.parallel = get_tensor_model_parallel_world_size()
        self.width = sizes.hidden // 2 // self.parallel
        self.conv2 = RowParallelLinear(
            sizes.hidden // 2,
            2 * sizes.hidden,
            bias=False,
            input_is_parallel=True,
            reduce_results=False,
            prefix=f"{prefix}.conv2",
        )
        if sizes.filter_bias:
            self.conv1_bias = nn.Parameter(torch.empty(self.width), requires_grad=False)
            set_weight_attrs(self.conv1_bias, {"weight_loader": self._load_part})
            self.conv2_bias = nn.Parameter(torch.empty(sizes.hidden), requires_grad=False)
        else:
            self.conv1_bias = self.conv2_bias = None
        self.norm_weight = nn.Parameter(torch.ones(sizes.hidden), requires_grad=False)
        # vLLM binds the cache here once it is allotted.
        self.kv_cache: tuple[Tensor, ...] = (torch.tensor([]), torch.tensor([]))
        layers = vllm_config.compilation_config.static_forward_context
        if prefix in layers:
            raise ValueError(f"Two layers are called {prefix}.")
        layers[prefix] = self

    def _load_part(self, parameter: nn.Parameter, tensor: Tensor) -> None:
        parameter.data.copy_(tensor.narrow(0, get_tensor_model_parallel_rank() * self.width, self.width))

    def forward(self, taps: Tensor, x: Tensor, positions: Tensor) -> Tensor:
        """Filter x [T, H]; returns u [T, H]."""
        out = torch.empty_like(x)
        torch.ops.vllm.plumbline_yuan_filter(taps, x, positions, out, self.prefix)
        if self.parallel == 1:
            return out
        total = tensor_model_parallel_all_reduce(out)
        if self.conv2_bias is not None:
            total = total + self.conv2_bias
        return kernels.norm_torch(total, x, self.norm_weight, FILTER_NORM_EPS)

    def run(self, taps: Tensor, x: Tensor, positions: Tensor, out: Tensor) -> None:
        """What the op does: read and write the state of the step's sequences."""
        metadata = get_forward_context().attn_metadata
        if isinstance(metadata, dict):
            metadata = metadata.get(self.prefix)
        first: Tensor | None = None
        second: Tensor | None = None
        if metadata is None:  # vLLM's profiling run
            rows = kernels.Rows.nothing(x.device)
        else:
            rows = rows_of(metadata, x.device)
            first, second = self.kv_cache[0], self.kv_cache[1]
        y1 = kernels.shift_add(taps, self.width, self.conv1_bias, first, rows, positions)
        products = multiply(y1, self.conv2.weight) if y1.is_cuda else self.conv2(y1)[0]
        if self.parallel == 1:
            kernels.shift_add_norm(
                products, self.conv2_bias, second, rows, positions, x, self.norm_weight, FILTER_NORM_EPS, out
            )
        else:
            out.copy_(kernels.shift_add(products, self.sizes.hidden, None, second, rows, positions))

    def get_state_shape(self) -> tuple[tuple[int], tuple[int]]:
        """See state_shapes."""
        return state_shapes(self.sizes, self.parallel)

    def get_state_dtype(self) -> tuple[torch.dtype, ...]:
        """See state_dtypes."""
        return state_dtypes(self.vllm_config)

    @property
    def mamba_type(self) -> MambaAttentionBackendEnum:
        """The kind of state-space layer as which vLLM treats this one."""
        return MambaAttentionBackendEnum.SHORT_CONV

    def get_attn_backend(self) -> type[AttentionBackend]:
        """Return the backend above, in place of the kind's own."""
        return FilterBackend


def _filter(taps: Tensor, x: Tensor, positions: Tensor, out: Tensor, layer_name: str) -> None:
    layer: LocalFilter = get_forward_context().no_compile_layers[layer_name]
    layer.run(taps, x, positions, out)


def _filter_fake(taps: Tensor, x: Tensor, positions: Tensor, out: Tensor, layer_name: str) -> None:
    return


register_stateful_op(OP, _filter, _filter_fake, mutates=["out"])
