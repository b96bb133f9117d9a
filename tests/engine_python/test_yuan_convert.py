"""From every published layout of Yuan2.0 to one directory that is served: the same tensors, the same files, and none of its code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import checkpoint_convert
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.yuan_megatron import MegatronYuanSource
from safetensors.torch import load_file
from transformers import AutoTokenizer

from tests.engine_python.yuan_support import LAYOUTS, Made


@pytest.fixture(scope="module", params=["dense", "m32"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(request.param, tmp_path_factory.mktemp("yuan"))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_result_from_every_layout(made: Made, tmp_path: Path, layout: str) -> None:
    source = made.write(tmp_path / "source", layout)
    target = tmp_path / "target"
    target.mkdir()
    checkpoint_convert.convert(source, target, "bfloat16", "key", form="safetensors", shard_bytes=1 << 18)
    found = {name: tensor for path in target.glob("*.safetensors") for name, tensor in load_file(path).items()}
    assert found.keys() == made.tensors.keys()
    for name, tensor in made.tensors.items():
        assert torch.equal(found[name], tensor), name
    index = json.loads((target / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == set(found)
    config = json.loads((target / "config.json").read_text())
    assert config["model_type"] == "yuan"
    assert config["torch_dtype"] == "bfloat16"
    assert config["sep_token_id"] == config["sep_token"] != config["eos_token_id"]
    assert "auto_map" not in config
    assert not list(target.glob("*.py"))
    tokenizer = AutoTokenizer.from_pretrained(target)
    assert tokenizer.eos_token_id == config["eos_token_id"]
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "x"}], add_generation_prompt=True, tokenize=False
    )
    assert prompt == "x<sep>"
    assert json.loads((target / "generation_config.json").read_text())["eos_token_id"] == config["eos_token_id"]


def test_what_was_made_can_be_a_source_again(made: Made, tmp_path: Path) -> None:
    source = made.write(tmp_path / "source", "views")
    first, second = tmp_path / "first", tmp_path / "second"
    for origin, target in ((source, first), (first, second)):
        target.mkdir()
        checkpoint_convert.convert(origin, target, "bfloat16", "key", form="safetensors")
    names = {path.name for path in first.iterdir()}
    assert {path.name for path in second.iterdir()} == names
    for name in names:
        assert (first / name).read_bytes() == (second / name).read_bytes(), name


@pytest.mark.parametrize("reads", [1, 10, 18])
def test_a_killed_conversion_of_partitions_goes_on(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: int
) -> None:
    source = made.write(tmp_path / "source", "megatron 2x2")
    whole, target = tmp_path / "whole", tmp_path / "target"
    for directory in (whole, target):
        directory.mkdir()
    hashes = checkpoint_convert.convert(source, whole, "bfloat16", "key", form="safetensors", shard_bytes=1 << 19)
    read, count = MegatronYuanSource.read, iter(range(1000))

    def killed(self: MegatronYuanSource, name: str, first_row: int, rows: int) -> object:
        if next(count) >= reads:
            raise KeyboardInterrupt
        return read(self, name, first_row, rows)

    with monkeypatch.context() as patched:
        patched.setattr(MegatronYuanSource, "read", killed)
        with pytest.raises(KeyboardInterrupt):
            checkpoint_convert.convert(source, target, "bfloat16", "key", form="safetensors", shard_bytes=1 << 19)
    assert (
        checkpoint_convert.convert(source, target, "bfloat16", "key", form="safetensors", shard_bytes=1 << 19) == hashes
    )
    assert {path.name: path.read_bytes() for path in target.iterdir()} == {
        path.name: path.read_bytes() for path in whole.iterdir()
    }
