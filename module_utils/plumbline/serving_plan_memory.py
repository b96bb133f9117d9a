"""What the engine needs beside weights and cache: activations, the sampler, CUDA graphs, the processes. Pure, standard library only.

These are upper estimates of what vLLM measures itself in its profile run (v1/worker/gpu_model_runner.py, profile_run: one step of
max_num_batched_tokens, then the sampler on max_num_seqs rows, never both at once). tests/unit/test_serving_plan_h200.py holds them against
what four models left for the cache on an H200.
"""

from __future__ import annotations

from dataclasses import dataclass

from .serving_plan_shape import Shape

MIB = 1 << 20
GIB = 1 << 30

# Bytes that the sampler takes for each row and each token of the vocabulary (v1/sample/sampler.py and ops/topk_topp_sampler.py): logits in
# the model's type (2) and in float32 (4), sorted with their places (4 + 8), their probabilities (4), the mask (1), the noise (4).
SAMPLER_BYTES = 27
# The CUDA context, the libraries' kernels and workspaces, what is not torch's: 0.5 to 0.6 GB on an H200 with driver 580.
CONTEXT_BYTES = 640 * MIB
# With several GPUs: NCCL's buffers and the custom all-reduce's.
COLLECTIVE_BYTES = 1024 * MIB
# v1/worker/gpu_model_runner.py, profile_cudagraph_memory: at least 1 MiB a graph; a layer's kernels add to it.
GRAPH_BYTES = MIB
GRAPH_LAYER_BYTES = 48 * 1024
# The API server, the engine's process and one worker with their libraries, without weights and cache; each further worker.
PROCESS_BYTES = 2 * GIB
WORKER_BYTES = 768 * MIB


@dataclass(frozen=True)
class Step:
    """What one step of the engine computes: tokens at once, requests at once, as set."""

    tokens: int
    requests: int
    element_bytes: int
    tensor_parallel: int
    quantised: bool = False


def activation_parts(shape: Shape, step: Step) -> tuple[int, int]:
    """Bytes in one process at the peak of a step, and at the peak of the sampler."""
    parallel = step.tensor_parallel
    row = 4 * shape.hidden  # the residual stream, its norm, and what goes into and comes out of a layer's half
    attention = shape.attention_columns // parallel
    if shape.experts:
        # fused_moe/experts/triton_moe.py, workspace_shapes: tokens x chosen x max(width, hidden), and as much of max(2 width, hidden).
        width = shape.expert_width // parallel
        experts = shape.experts_per_token * (max(width, shape.hidden) + max(2 * width, shape.hidden)) + shape.hidden
        inner = max(
            attention, experts, 0 if shape.expert_width == shape.intermediate else 3 * shape.intermediate // parallel
        )
    else:
        inner = max(attention, 3 * shape.intermediate // parallel)
    body = step.tokens * (row + inner) * step.element_bytes
    return body, min(step.requests, step.tokens) * shape.vocabulary * SAMPLER_BYTES


def graph_count(step: Step, largest: int = 512) -> int:
    """CUDA graphs that vLLM captures (config/vllm.py, _set_cudagraph_sizes): one of each size for whole decodes, one in pieces."""
    top = min(2 * step.requests, largest, step.tokens)
    sizes = (
        {size for size in (1, 2, 4) if size <= top} | set(range(8, min(top + 1, 256), 8)) | set(range(256, top + 1, 16))
    )
    if step.requests <= top:
        sizes.add(step.requests)
    return 2 * len(sizes)


def graph_bytes(shape: Shape, step: Step) -> int:
    """Memory of the CUDA graphs in one process."""
    return graph_count(step) * (GRAPH_BYTES + shape.depth * GRAPH_LAYER_BYTES)


def gib(value: float) -> str:
    """Bytes as people read them."""
    if value >= GIB:
        return f"{value / GIB:.2f} GiB"
    return f"{value / MIB:.2f} MiB"
