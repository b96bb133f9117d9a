"""Sizes of checkpoints from their headers."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.checkpoint import (
    CheckpointError,
    read_checkpoint,
    read_tensors,
)

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}


def write(
    folder: Path,
    tensors: dict[str, tuple[str, list[int]]],
    config: dict[str, Any] | None = None,
    name: str = "model.safetensors",
) -> None:
    header = json.dumps(
        {
            "__metadata__": {"format": "pt"},
            **{
                key: {"dtype": dtype, "shape": shape, "data_offsets": [0, 0]} for key, (dtype, shape) in tensors.items()
            },
        }
    ).encode()
    (folder / name).write_bytes(struct.pack("<Q", len(header)) + header)
    (folder / "config.json").write_text(json.dumps(config if config is not None else CONFIG))


def test_a_tied_model(tmp_path: Path) -> None:
    write(tmp_path, {"model.embed_tokens.weight": ("F32", [100, 10]), "model.norm.weight": ("F32", [10])})
    found = read_checkpoint(tmp_path, "float32")
    assert found.parameters == 1010
    assert found.loaded_bytes == 4040
    assert found.bytes_read_per_token == 4040  # the output layer is the embedding
    assert read_checkpoint(tmp_path, "auto").loaded_bytes == 2020  # bfloat16 by the config
    # 2 x 30 layers x 3 heads x 64 x 4 B
    assert found.kv_bytes_per_token == 46080
    assert found.max_position_embeddings == 8192
    assert found.architecture == "LlamaForCausalLM"
    assert not found.rope_scaled


def test_an_untied_embedding_is_not_read_for_each_token(tmp_path: Path) -> None:
    write(tmp_path, {"model.embed_tokens.weight": ("BF16", [100, 10]), "lm_head.weight": ("BF16", [100, 10])})
    found = read_checkpoint(tmp_path, "bfloat16")
    assert found.loaded_bytes == 4000
    assert found.bytes_read_per_token == 2000


def test_of_a_mixture_of_experts_only_the_active_ones_are_read(tmp_path: Path) -> None:
    config = {**CONFIG, "num_local_experts": 8, "num_experts_per_tok": 2}
    write(
        tmp_path, {"layers.0.mlp.experts.0.w1.weight": ("BF16", [800]), "layers.0.attn.weight": ("BF16", [100])}, config
    )
    found = read_checkpoint(tmp_path, "bfloat16")
    assert found.bytes_read_per_token == 2 * (100 + 200)


def test_quantised_weights_stay_as_they_are(tmp_path: Path) -> None:
    write(tmp_path, {"a.weight_packed": ("I32", [100]), "a.weight_scale": ("BF16", [10])})
    assert read_checkpoint(tmp_path, "float32").loaded_bytes == 440


def test_several_files(tmp_path: Path) -> None:
    write(tmp_path, {"a": ("F16", [10])}, name="model-00001-of-00002.safetensors")
    write(tmp_path, {"b": ("F16", [20])}, name="model-00002-of-00002.safetensors")
    assert read_checkpoint(tmp_path, "float16").parameters == 30


def test_float32_checkpoints_are_served_in_16_bits_by_default(tmp_path: Path) -> None:
    write(tmp_path, {"a": ("F32", [10])}, {**CONFIG, "torch_dtype": "float32"})
    found = read_checkpoint(tmp_path, "auto")
    assert (found.dtype, found.loaded_bytes) == ("float16", 20)


def test_scaled_rope(tmp_path: Path) -> None:
    write(tmp_path, {"a": ("F32", [10])}, {**CONFIG, "rope_scaling": {"rope_type": "yarn", "factor": 4}})
    assert read_checkpoint(tmp_path, "auto").rope_scaled


def test_a_config_that_says_little(tmp_path: Path) -> None:
    write(tmp_path, {"a": ("F32", [10])}, {"model_type": "odd"})
    found = read_checkpoint(tmp_path, "float16")
    assert (found.architecture, found.kv_bytes_per_token, found.max_position_embeddings) == ("odd", None, None)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "whole safetensors"),
        (b"\x00" * 8, "not a safetensors"),
        (b"\xff" * 16, "not a safetensors"),
        (struct.pack("<Q", 4) + b"{]]}", "whole safetensors"),
        (struct.pack("<Q", 2) + b"[]", "whole safetensors"),
        (struct.pack("<Q", 34) + b'{"a":{"dtype":"Q9","shape":[1,2]}}', "unknown type Q9"),
    ],
)
def test_files_that_are_none(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=words):
        read_tensors(path)


def test_folders_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="run the model stage first"):
        read_checkpoint(tmp_path, "auto")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="safetensors file in"):
        read_checkpoint(tmp_path, "auto")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="no readable model config"):
        read_checkpoint(tmp_path, "auto")
    write(tmp_path, {"a": ("F32", [10])})
    with pytest.raises(CheckpointError, match="model_dtype"):
        read_checkpoint(tmp_path, "int8")
