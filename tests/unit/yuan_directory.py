"""A small Yuan2.0 in the Hugging Face layout for tests without PyTorch: random weights, a tokenizer, and code that must never run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.safetensors_file import (
    TensorSpec,
    header_bytes,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.yuan_architecture import (
    expected_shapes,
    size_of,
)

TOKENS = {"<unk>": 0, "<s>": 1, "</s>": 2, "<eod>": 3, "<n>": 4, "<sep>": 5, "<pad>": 6, "<mask>": 7}
CONFIG: dict[str, Any] = {
    "architectures": ["YuanForCausalLM"],
    "auto_map": {"AutoModelForCausalLM": "yuan_hf_model.YuanForCausalLM"},
    "model_type": "yuan",
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "attention_projection_size": 32,
    "intermediate_size": 8,
    "vocab_size": 32,
    "use_moe": True,
    "moe_config": {"moe_num_experts": 4, "moe_top_k": 2, "ffn_hidden_size": 8, "gated_linear_unit": True},
    "eos_token_id": 3,
    "sep_token": 5,
    "sep_token_id": 3,
    "torch_dtype": "float32",
    "tie_word_embeddings": True,
}


def values(seed: int = 0) -> dict[str, Any]:
    """Random tensors of the architecture."""
    chance = np.random.default_rng(seed)
    shapes = expected_shapes(size_of(CONFIG))
    return {name: chance.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def write_shards(directory: Path, tensors: dict[str, Any], count: int = 2) -> None:
    """Safetensors shards with their index."""
    names = list(tensors)
    weight_map = {}
    for number in range(count):
        part = names[number * len(names) // count : (number + 1) * len(names) // count]
        file = f"model-{number + 1:05d}-of-{count:05d}.safetensors"
        specs = [TensorSpec(name, "F32", tensors[name].shape) for name in part]
        (directory / file).write_bytes(header_bytes(specs) + b"".join(tensors[name].tobytes() for name in part))
        weight_map.update(dict.fromkeys(part, file))
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def write(directory: Path, marker: Path) -> Path:
    """The whole directory; its Python files would leave `marker` behind."""
    directory.mkdir(parents=True)
    write_shards(directory, values())
    (directory / "config.json").write_text(json.dumps(CONFIG))
    tokenizer = {
        "added_tokens": [{"id": number, "content": token} for token, number in TOKENS.items()],
        "model": {"type": "BPE", "vocab": dict(TOKENS), "merges": []},
    }
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    for name in ("configuration_yuan.py", "yuan_hf_model.py", "sitecustomize.py", "numpy.py"):
        (directory / name).write_text(f"open({str(marker)!r}, 'w').close()\n")
    return directory
