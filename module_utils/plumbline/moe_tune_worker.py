"""The tuner's part that runs in the engine's Python: load vLLM, search, and say what was found."""

# ruff: noqa: PLC0415 - the engine's packages are loaded when it is known that they are there and of use

from __future__ import annotations

import json
import os
import time
from typing import Any

from .moe_tune_plan import Shape
from .worker_result import say

# bfloat16 sums of thousands of products in another order differ by less; a wrong kernel by more.
_TOLERANCE = 1e-2
_REFERENCE_TOLERANCE = 2e-2


def main(text: str) -> int:
    """Tune the shape that the job names; every way to end is a result."""
    job = json.loads(text)
    started = time.monotonic()
    try:
        result = _tune(job, Shape(**job["shape"]), started)
    except ImportError as error:
        result = {"skipped": f"The engine's Python lacks what the tuner measures with ({error})."}
    except Exception as error:
        result = {"error": f"The tuner failed in the engine's Python: {type(error).__name__}: {error}"}
    say({**result, "seconds": round(time.monotonic() - started, 1)})
    return 0


def _tune(job: dict[str, Any], shape: Shape, started: float) -> dict[str, Any]:
    import torch

    # Before anything is loaded that takes long: counting devices does not initialise CUDA.
    if torch.version.cuda is None or torch.cuda.device_count() < 1:
        return {
            "skipped": "The engine sees no NVIDIA GPU: fused-MoE configurations are measured on the GPU that will serve."
        }
    import triton
    import vllm
    from vllm.model_executor.layers.fused_moe.fused_moe import get_config_file_name

    from .moe_tune_gpu import GpuBench
    from .moe_tune_search import search

    file_name = get_config_file_name(shape.experts, shape.width, None)
    bench = GpuBench(shape, workers=max(1, min(int(job["workers"] or 0) or _cpus() - 1, 32)))
    try:
        total = torch.cuda.mem_get_info()[1]
        reference = bench.reference_difference()
        if not reference <= _REFERENCE_TOLERANCE:
            return {
                "error": f"vLLM's own fused MoE is {reference:.1e} away from plain products on this GPU, so it is not right and not tuned."
            }
        found = search(
            bench,
            shape,
            job["batch_sizes"],
            deadline=started + float(job["time_budget_seconds"]),
            shared_memory_bytes=bench.shared_memory_bytes,
            tolerance=_TOLERANCE,
        )
    finally:
        bench.close()
    return {
        "file_name": file_name,
        "found": [entry.as_dict() for entry in found],
        "conditions": {
            "gpu": torch.cuda.get_device_name(0),
            "gpu_memory_bytes": total,
            "vllm": vllm.__version__,
            "triton": triton.__version__,
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "stock_difference_from_float32": reference,
        },
    }


def _cpus() -> int:
    return len(os.sched_getaffinity(0))
