"""What the installed PyTorch really writes is read exactly, and transformers reads the same from what is made of it."""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.checkpoint_convert import convert
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.checkpoint_errors import CheckpointError
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.tensor_source import rows_of
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.torch_source import (
    TorchBinSource,
    TorchFile,
    tensors_in,
)
from safetensors.torch import load_file

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.uint16: "U16",
    torch.uint32: "U32",
    torch.bool: "BOOL",
}


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def compare(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    source = TorchBinSource(path.parent, [path.name])
    specs = {spec.name: spec for spec in source.specs()}
    assert set(specs) == set(tensors)
    for name, tensor in tensors.items():
        assert specs[name].dtype == DTYPES[tensor.dtype]
        assert specs[name].shape == tuple(tensor.shape)
        assert bytes(source.read(name, 0, rows_of(specs[name])[0])) == raw(tensor), name
    source.close()


def test_every_type_and_layout(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(7, 5, 3, generator=generator)
    tensors: dict[str, torch.Tensor] = {
        str(dtype): (base * 10).abs().to(dtype) for dtype in DTYPES if dtype is not torch.bool
    }
    tensors |= {
        "bool": base > 0,
        "turned": base.permute(2, 0, 1),
        "slice": base[2:5, 1:3],
        "tied": base,
        "tied too": base,
        "scalar": torch.tensor(3.5),
        "empty": torch.empty(0, 4),
        "parameter": torch.nn.Parameter(torch.randn(3, 3).t()),
        "repeated": torch.randn(1, 3).expand(4, 3),
        "long": torch.arange(100_000),
    }
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    compare(tmp_path / "pytorch_model.bin", tensors)


def test_the_state_of_a_module(tmp_path: Path) -> None:
    """A dict with _metadata, as state_dict() gives it."""
    module = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.LayerNorm(4), torch.nn.Embedding(10, 4))
    torch.save(module.state_dict(), tmp_path / "pytorch_model.bin")
    compare(tmp_path / "pytorch_model.bin", dict(module.state_dict()))


def test_the_checkpoint_of_a_training(tmp_path: Path) -> None:
    """Megatron's model_optim_rng.pt: weights in nested dicts beside arguments and the states of random generators."""
    weight = torch.randn(4, 3)
    content: dict[str, Any] = {
        "args": argparse.Namespace(num_layers=24, params_dtype=torch.bfloat16, lr=1e-4, names=["a", None]),
        "checkpoint_version": 3.0,
        "iteration": 7,
        "model": {"language_model": {"embedding": {"word_embeddings": {"weight": weight}}, "_extra": None}},
        "rng_state": [
            {
                "random_rng_state": random.getstate(),
                "np_rng_state": np.random.get_state(),
                "torch_rng_state": torch.get_rng_state(),
            }
        ],
    }
    torch.save(content, tmp_path / "model_optim_rng.pt")
    file = TorchFile(tmp_path / "model_optim_rng.pt")
    assert file.content["args"].values["num_layers"] == 24
    assert file.content["args"].values["params_dtype"].name == "torch.bfloat16"
    assert file.content["checkpoint_version"] == 3.0
    ((name, tensor),) = tensors_in(file.content)
    assert name == "model.language_model.embedding.word_embeddings.weight"
    assert bytes(file.read(tensor, name, 0, 4)) == raw(weight)
    file.close()


def test_a_module_as_a_whole_is_refused(tmp_path: Path) -> None:
    torch.save(torch.nn.Linear(2, 2), tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"would run torch\.nn\.modules\.linear\.Linear"):
        TorchBinSource(tmp_path, ["pytorch_model.bin"])


def test_the_format_of_old_releases_is_refused_with_what_to_do(tmp_path: Path) -> None:
    old, new = tmp_path / "pytorch_model.bin", tmp_path / "new.bin"
    tensors = {"weight": torch.randn(3)}
    torch.save(tensors, old, _use_new_zipfile_serialization=False)
    with pytest.raises(
        CheckpointError, match=r"save it again with torch\.save\(torch\.load\(FILE, weights_only=True\), NEW"
    ):
        TorchBinSource(tmp_path, [old.name])
    torch.save(torch.load(old, weights_only=True), new)
    compare(new, tensors)


def test_what_is_made_is_what_safetensors_reads(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    tensors = {
        "model.embed_tokens.weight": torch.randn(11, 8).to(torch.bfloat16),
        "model.norm.weight": torch.randn(8),
        "odd": torch.arange(5, dtype=torch.uint8),
        "turned": torch.randn(4, 6).t(),
    }
    (source / "config.json").write_text(json.dumps({"architectures": ["X"], "hidden_size": 8, "vocab_size": 11}))
    (source / "tokenizer.json").write_text("{}")
    torch.save(tensors, source / "pytorch_model.bin")
    (shard,) = convert(source, target, "bfloat16", "key", form="safetensors")
    found = load_file(target / shard)
    assert set(found) == set(tensors)
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)
