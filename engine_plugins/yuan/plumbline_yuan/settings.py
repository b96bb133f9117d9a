"""What vLLM is asked to do with the model: what this plugin does not do is refused before anything is loaded."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any

from vllm.config import VllmConfig
from vllm.model_executor.models.config import VerifyAndUpdateConfig
from vllm.platforms import current_platform

from plumbline_yuan.config import YuanSizes
from plumbline_yuan.dequantise import layout

# "1": turn quantised weights back to full ones while loading; "0": never; "auto" (the default): on a CPU, which has no kernels for
# experts of four bits.
DEQUANTISE = "PLUMBLINE_YUAN_DEQUANTISE"

# Steps of up to this many tokens take the plugin's own kernels for the router and for unquantised experts; 0: never.
FEW_TOKENS = "PLUMBLINE_YUAN_FEW_TOKENS"

# Steps of at least this many tokens turn experts of four bits back to full ones, layer by layer, and multiply those; 0: never.
MANY_TOKENS = "PLUMBLINE_YUAN_MANY_TOKENS"


@lru_cache
def _count(name: str, default: int) -> int:
    wish = os.environ.get(name, str(default))
    if not wish.isdecimal():
        raise ValueError(f"{name} is {wish!r}: it must be a number, 0 or more.")
    return int(wish)


def few_tokens() -> int:
    """See FEW_TOKENS."""
    return _count(FEW_TOKENS, 4)


def many_tokens() -> int:
    """See MANY_TOKENS."""
    return _count(MANY_TOKENS, 4096)


def dequantises(vllm_config: VllmConfig) -> bool:
    """Whether quantised weights are turned back to full ones while they are loaded."""
    if vllm_config.quant_config is None:
        return False
    wish = os.environ.get(DEQUANTISE, "auto")
    if wish not in ("0", "1", "auto"):
        raise ValueError(f"{DEQUANTISE} is {wish!r}: it must be 0, 1 or auto.")
    return wish == "1" or (wish == "auto" and current_platform.is_cpu())


def merges_values(vllm_config: VllmConfig) -> bool:
    """Whether v_proj is a part of the matrix that multiplies the same input, the filter's first convolution, in the model's type.

    Also where the others stay quantised: a kernel of its own for so small a matrix costs more time than reading it in full. Only for
    formats that can be turned back while loading.
    """
    if vllm_config.quant_config is None or dequantises(vllm_config):
        return True
    try:
        layout(quantization_of(vllm_config))
    except ValueError:
        return False
    return True


def full_attention(vllm_config: VllmConfig) -> tuple[str, ...]:
    """The ends of the names of attention's quantised matrices that are turned back to the model's type while they are loaded.

    In a model of experts they are a small part of the memory, and kernels for four bits take longer with them than reading them in full.
    """
    if not merges_values(vllm_config) or vllm_config.quant_config is None or dequantises(vllm_config):
        return ()
    names = (
        ("q_proj", "k_proj", "v_proj", "o_proj")
        if YuanSizes.of(vllm_config.model_config.hf_config).experts
        else ("v_proj",)
    )
    return tuple(f".self_attn.{name}" for name in names)


def quantization_of(vllm_config: VllmConfig) -> dict[str, Any]:
    """What config.json says of the checkpoint's quantisation."""
    return vllm_config.model_config.hf_config.to_dict().get("quantization_config") or {}


class YuanServing(VerifyAndUpdateConfig):
    """vLLM calls this with the whole configuration before it starts an engine."""

    @staticmethod
    def verify_and_update_config(vllm_config: VllmConfig) -> None:
        """Raise ValueError, one sentence, for what is not served; name the filter's op where the user lists splitting ops."""
        sizes = YuanSizes.of(vllm_config.model_config.hf_config)
        for count in (few_tokens, many_tokens):
            count()
        parallel = vllm_config.parallel_config
        if parallel.pipeline_parallel_size > 1:
            raise ValueError(
                f"pipeline_parallel_size is {parallel.pipeline_parallel_size}; the Yuan plugin serves with 1: "
                "use tensor_parallel_size."
            )
        for option in ("decode_context_parallel_size", "prefill_context_parallel_size"):
            if getattr(parallel, option, 1) > 1:
                raise ValueError(f"{option} is {getattr(parallel, option)}; the Yuan plugin serves with 1.")
        if getattr(parallel, "enable_dbo", False):
            raise ValueError("enable_dbo is set; the Yuan plugin keeps one step's batch whole: leave it out.")
        if getattr(parallel, "enable_eplb", False):
            raise ValueError("enable_eplb is set; the Yuan plugin keeps experts where they are: leave it out.")
        if vllm_config.speculative_config is not None:
            raise ValueError(
                "speculative_config is set; the Yuan plugin cannot take back a token from the local filter: leave it out."
            )
        sizes.check_parallel(parallel.tensor_parallel_size)
        ops = vllm_config.compilation_config.splitting_ops
        if ops and "vllm::plumbline_yuan_filter" not in ops:
            ops.append("vllm::plumbline_yuan_filter")
