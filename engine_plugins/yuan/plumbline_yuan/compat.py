"""Where vLLM 0.26 and the newest release differ, and where both are asked for something that is not their public interface."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm.config import CompilationConfig
from vllm.utils.torch_utils import direct_register_custom_op

try:  # 0.32 and newer
    from vllm.model_executor.layers.fused_moe import FusedMoEFactory as fused_moe  # noqa: N813 - a function
except ImportError:  # 0.26: a function of the same arguments under the name of the former class
    from vllm.model_executor.layers.fused_moe import FusedMoE as fused_moe  # noqa: N813

try:  # newer: an op that reads the step's metadata is a break in graphs that are captured without torch.compile
    from vllm.compilation.breakable_cudagraph import eager_break_during_capture
except ImportError:

    def eager_break_during_capture(function: Any) -> Any:
        """0.26 has no such graphs: nothing to mark."""
        return function


__all__ = ["fused_moe", "register_stateful_op"]


def register_stateful_op(
    name: str, function: Callable[..., None], fake: Callable[..., None], mutates: list[str]
) -> None:
    """Register `function` as torch.ops.vllm.<name>, and keep it out of compiled pieces and their CUDA graphs.

    It reads which sequence a token belongs to, which a graph captured for a mixed batch would freeze. vLLM splits the graph at the
    ops that this list names (as at its own attention and state-space ops), and adds it to what the user's configuration lists.
    """
    direct_register_custom_op(
        op_name=name, op_func=eager_break_during_capture(function), mutates_args=mutates, fake_impl=fake
    )
    split_at(name)


def split_at(name: str) -> None:
    """Name an op of the vllm library among those at which vLLM splits a graph. Doing it twice does nothing."""
    if (op := f"vllm::{name}") not in CompilationConfig._attention_ops:
        CompilationConfig._attention_ops.append(op)
