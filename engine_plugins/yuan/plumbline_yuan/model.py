"""YuanForCausalLM for vLLM: Yuan2.0 dense (2B, 51B, 102B) and M32 (experts behind an attention router)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from vllm.compilation.decorators import support_torch_compile
from vllm.config import CacheConfig, VllmConfig
from vllm.distributed import get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size
from vllm.model_executor.layers.activation import SiluAndMul
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.linear import ColumnParallelLinear, MergedColumnParallelLinear, RowParallelLinear
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.mamba.mamba_utils import MambaStateCopyFuncCalculator
from vllm.model_executor.layers.quantization import QuantizationConfig
from vllm.model_executor.layers.rotary_embedding import get_rope
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from vllm.model_executor.models.interfaces import HasInnerState, IsHybrid, SupportsQuant

from plumbline_yuan import loading
from plumbline_yuan.config import YuanSizes
from plumbline_yuan.dequantise import dequantise
from plumbline_yuan.local_filter import LocalFilter, state_dtypes, state_shapes
from plumbline_yuan.moe import Experts
from plumbline_yuan.products import product
from plumbline_yuan.settings import dequantises, full_attention, merges_values, quantization_of


class Mlp(nn.Module):
    """The dense models' MLP: silu is on up_proj, gate_proj is the linear branch."""

    def __init__(self, sizes: YuanSizes, quant_config: QuantizationConfig | None, prefix: str) -> None:
        """Make the two projections; up_proj comes first, as SiluAndMul wants it."""
        super().__init__()
        self.up_gate_proj = MergedColumnParallelLinear(
            sizes.hidden, [sizes.width] * 2, bias=False, quant_config=quant_config, prefix=f"{prefix}.up_gate_proj"
        )
        self.down_proj = RowParallelLinear(
            sizes.width, sizes.hidden, bias=False, quant_config=quant_config, prefix=f"{prefix}.down_proj"
        )
        self.act = SiluAndMul()

    def forward(self, z: Tensor) -> Tensor:
        """Apply the MLP to z [T, H]."""
        both, _ = self.up_gate_proj(z)
        out, _ = self.down_proj(self.act(both))
        return out


class FilteredAttention(nn.Module):
    """Attention whose queries and keys see the filtered input, its values the input itself."""

    def __init__(
        self,
        sizes: YuanSizes,
        vllm_config: VllmConfig,
        quant_config: QuantizationConfig | None,
        prefix: str,
    ) -> None:
        """Make the projections, the filter and vLLM's attention."""
        super().__init__()
        parallel = get_tensor_model_parallel_world_size()
        self.heads = sizes.heads // parallel
        self.size = self.heads * sizes.head
        self.taps = sizes.hidden // parallel
        # The filter's first convolution and the values multiply the same input: one product.
        self.merged_values = merges_values(vllm_config)
        outputs = [sizes.hidden // 2] * 2 + ([sizes.projection] if self.merged_values else [])
        self.in_proj = MergedColumnParallelLinear(sizes.hidden, outputs, bias=False, prefix=f"{prefix}.in_proj")
        if not self.merged_values:
            self.v_proj = ColumnParallelLinear(
                sizes.hidden, sizes.projection, bias=False, quant_config=quant_config, prefix=f"{prefix}.v_proj"
            )
        weights_config = None if ".self_attn.o_proj" in full_attention(vllm_config) else quant_config
        self.local_filter = LocalFilter(sizes, vllm_config, f"{prefix}.local_filter")
        self.qk_proj = MergedColumnParallelLinear(
            sizes.hidden, [sizes.projection] * 2, bias=False, quant_config=weights_config, prefix=f"{prefix}.qk_proj"
        )
        self.o_proj = RowParallelLinear(
            sizes.projection, sizes.hidden, bias=False, quant_config=weights_config, prefix=f"{prefix}.o_proj"
        )
        self.rotary = get_rope(
            sizes.head,
            max_position=max(sizes.max_position, vllm_config.model_config.max_model_len),
            rope_parameters={
                "rope_type": "default",
                "rope_theta": sizes.rotary_base,
                "partial_rotary_factor": sizes.rotary / sizes.head,
            },
        )
        cache_config: CacheConfig = vllm_config.cache_config
        self.attn = Attention(
            self.heads,
            sizes.head,
            sizes.head**-0.5,
            num_kv_heads=self.heads,
            cache_config=cache_config,
            quant_config=quant_config,
            prefix=f"{prefix}.attn",
        )

    def forward(self, positions: Tensor, x: Tensor) -> Tensor:
        """Attend over x [T, H]."""
        products = product(self.in_proj, x)
        value = products[:, self.taps :] if self.merged_values else self.v_proj(x)[0]
        u = self.local_filter(products, x, positions)
        both = product(self.qk_proj, u)
        query, key = self.rotary(positions, both[:, : self.size], both[:, self.size :])
        return product(self.o_proj, self.attn(query, key, value))


class Layer(nn.Module):
    """One block."""

    def __init__(
        self,
        sizes: YuanSizes,
        index: int,
        vllm_config: VllmConfig,
        quant_config: QuantizationConfig | None,
        prefix: str,
    ) -> None:
        """Make the block's parts."""
        super().__init__()
        self.input_layernorm = RMSNorm(sizes.hidden, eps=sizes.norm_eps)
        self.self_attn = FilteredAttention(sizes, vllm_config, quant_config, f"{prefix}.self_attn")
        self.post_attention_layernorm = RMSNorm(sizes.hidden, eps=sizes.norm_eps)
        self.mlp: nn.Module
        if sizes.experts:
            self.mlp = Experts(sizes, index, quant_config, f"{prefix}.mlp")
        else:
            self.mlp = Mlp(sizes, quant_config, f"{prefix}.mlp")

    def forward(self, positions: Tensor, hidden: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        """Apply the block; the residual stream is hidden + residual."""
        if residual is None:
            residual = hidden
            x = self.input_layernorm(hidden)
        else:
            x, residual = self.input_layernorm(hidden, residual)
        z, residual = self.post_attention_layernorm(self.self_attn(positions, x), residual)
        return self.mlp(z), residual


@support_torch_compile(dynamic_arg_dims={"input_ids": 0, "positions": -1, "inputs_embeds": 0})
class YuanModel(nn.Module):
    """Embedding, blocks and the last norm."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        """Make the blocks."""
        super().__init__()
        sizes = YuanSizes.of(vllm_config.model_config.hf_config)
        quant_config = None if dequantises(vllm_config) else vllm_config.quant_config
        self.embed_tokens = VocabParallelEmbedding(sizes.vocab, sizes.hidden, prefix=f"{prefix}.embed_tokens")
        self.layers = nn.ModuleList(
            Layer(sizes, index, vllm_config, quant_config, f"{prefix}.layers.{index}") for index in range(sizes.layers)
        )
        self.norm = RMSNorm(sizes.hidden, eps=sizes.norm_eps)

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        """The embedding of token ids."""
        return self.embed_tokens(input_ids)

    def forward(
        self,
        input_ids: Tensor | None,
        positions: Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        """The last hidden states [T, H]."""
        hidden = inputs_embeds if inputs_embeds is not None else self.embed_input_ids(input_ids)
        residual = None
        for layer in self.layers:
            hidden, residual = layer(positions, hidden, residual)
        hidden, _ = self.norm(hidden, residual)
        return hidden


class YuanForCausalLM(nn.Module, HasInnerState, IsHybrid, SupportsQuant):
    """The model that vLLM serves."""

    packed_modules_mapping = {  # noqa: RUF012 - vLLM reads it from the class
        "qk_proj": ["q_proj", "k_proj"],
        "up_gate_proj": ["up_proj", "gate_proj"],
    }

    @classmethod
    def get_mamba_state_shape_from_config(cls, vllm_config: VllmConfig) -> tuple[tuple[int], tuple[int]]:
        """The filter's state of a sequence in one layer and process."""
        sizes = YuanSizes.of(vllm_config.model_config.hf_config)
        return state_shapes(sizes, vllm_config.parallel_config.tensor_parallel_size)

    @classmethod
    def get_mamba_state_dtype_from_config(cls, vllm_config: VllmConfig) -> tuple[torch.dtype, ...]:
        """The types of that state."""
        return state_dtypes(vllm_config)

    @classmethod
    def get_mamba_state_copy_func(cls) -> tuple[Any, Any]:
        """How vLLM copies both states between blocks (prefix caching): whole, like a recurrent state."""
        (copy,) = MambaStateCopyFuncCalculator.linear_attention_state_copy_func()
        return copy, copy

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        """Make the model."""
        super().__init__()
        self.config = vllm_config.model_config.hf_config
        self.vllm_config = vllm_config
        self.sizes = YuanSizes.of(self.config)
        self.dequantises = dequantises(vllm_config)
        lead = f"{prefix}." if prefix else ""
        self.model = YuanModel(vllm_config=vllm_config, prefix=f"{lead}model")
        self.lm_head = ParallelLMHead(self.sizes.vocab, self.sizes.hidden, prefix=f"{lead}lm_head")
        if self.sizes.tied:
            self.lm_head = self.lm_head.tie_weights(self.model.embed_tokens)
            rows = self.model.embed_tokens.weight.shape[0]
            self.model.embed_tokens.weight.plumbline_first_row = get_tensor_model_parallel_rank() * rows
        self.logits_processor = LogitsProcessor(self.sizes.vocab)

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        """The embedding of token ids."""
        return self.model.embed_input_ids(input_ids)

    def forward(
        self,
        input_ids: Tensor | None,
        positions: Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: Tensor | None = None,
        **_: Any,
    ) -> Tensor:
        """The last hidden states [T, H]."""
        return self.model(input_ids, positions, intermediate_tensors, inputs_embeds)

    def compute_logits(self, hidden_states: Tensor) -> Tensor | None:
        """The logits of hidden states."""
        return self.logits_processor(self.lm_head, hidden_states)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Fill every parameter from a checkpoint in the HF layout, or raise ValueError with what does not fit."""
        merged = merges_values(self.vllm_config)
        if merged and self.vllm_config.quant_config is not None:
            only = "" if self.dequantises else full_attention(self.vllm_config)
            dtype = self.vllm_config.model_config.dtype
            weights = dequantise(weights, quantization_of(self.vllm_config), dtype, only)
        return loading.load(self, self.sizes, weights, merged)
