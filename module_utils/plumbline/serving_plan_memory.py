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
# the model's type (2) and in float32 (4), probabilities (4), noise (4), a mask (1). Without Triton they are sorted with their places, which
# takes another 4 + 8.
SAMPLER_BYTES = 15
SORTING_BYTES = 12
# The Yuan plugin turns experts of four bits back to full ones in steps of so many tokens (its moe.py, settings.py): there is room
# for one layer's, and Marlin's own workspace is for steps below.
YUAN_MANY_TOKENS = 4096
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
    """What one step of the engine computes: tokens at once, requests at once, as set. `sorts`: the sampler has no Triton (CPU)."""

    tokens: int
    requests: int
    element_bytes: int
    tensor_parallel: int
    sorts: bool = False
    unpacks_experts: bool = False


@dataclass(frozen=True)
class Activations:
    """Bytes in one process: what a step takes and gives back, what the sampler does, and the experts' workspace, which stays."""

    body: int
    sampler: int
    workspace: int = 0

    @property
    def peak(self) -> int:
        """What a profile run finds."""
        return self.workspace + max(self.body, self.sampler)


def activations(shape: Shape, step: Step) -> Activations:
    """What a step needs beside weights and cache."""
    parallel, size = step.tensor_parallel, step.element_bytes
    row = 4 * shape.hidden  # the residual stream, its norm, and what goes into and comes out of a layer's half
    attention = shape.attention_columns // parallel
    sampler = (
        min(step.requests, step.tokens) * shape.vocabulary * (SAMPLER_BYTES + (SORTING_BYTES if step.sorts else 0))
    )
    dense = 3 * shape.intermediate // parallel
    if not shape.experts:
        return Activations(step.tokens * (row + max(attention, dense)) * size, sampler)
    # fused_moe/experts/triton_moe.py, workspace_shapes: tokens x chosen x max(width, hidden), and as much of max(2 width, hidden). The
    # manager of workspaces keeps them.
    width = shape.expert_width // parallel
    chosen = shape.experts_per_token * (max(width, shape.hidden) + max(2 * width, shape.hidden)) + shape.hidden
    other = max(attention, 0 if shape.expert_width == shape.intermediate else dense)
    if step.unpacks_experts and step.tokens >= YUAN_MANY_TOKENS:
        room = shape.experts * 3 * width * shape.hidden * size
        body = step.tokens * (row + max(other, chosen)) * size
        return Activations(body, sampler, room + (YUAN_MANY_TOKENS - 1) * chosen * size)
    return Activations(step.tokens * (row + other) * size, sampler, step.tokens * chosen * size)


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
