"""The tiny Yuan with which the stage `engine` tests an engine before it becomes the active one (entry point plumbline.engine_smoke)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from yuan_reference import configs
from yuan_reference.checkpoints import RandomTensors, write_hf_safetensors

_DTYPES = {"float32": torch.float32, "float": torch.float32, "float16": torch.float16, "half": torch.float16}


def write(directory: str, options: Mapping[str, Any]) -> None:
    """Write a model of M32's form that can be split as `options` (dtype, tensor_parallel_size, pipeline_parallel_size) say."""
    ways = int(options.get("tensor_parallel_size") or 1)
    small = configs.get("m32")
    config = configs.get(
        "m32",
        num_hidden_layers=max(2, int(options.get("pipeline_parallel_size") or 1)),
        num_attention_heads=small["num_attention_heads"] * ways,
        attention_projection_size=small["attention_projection_size"] * ways,
        moe_config={**small["moe_config"], "ffn_hidden_size": small["moe_config"]["ffn_hidden_size"] * ways},
    )
    dtype = _DTYPES.get(str(options.get("dtype")), torch.bfloat16)
    write_hf_safetensors(Path(directory), config, RandomTensors(config, seed=7, dtype=dtype), shards=1)
