"""Directories in Hugging Face's layout as a source: whole ones pass, each kind of damage is refused."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.checkpoint_convert import convert
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.checkpoint_directory import (
    INDEX,
    check,
    digest,
    taken_files,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.checkpoint_errors import CheckpointError
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.safetensors_file import (
    TensorSpec,
    header_bytes,
    read_tensors,
)


def shard(path: Path, *specs: TensorSpec) -> Path:
    path.write_bytes(header_bytes(specs) + bytes(sum(spec.size_bytes for spec in specs)))
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    (directory / "tokenizer.json").write_text("{}")
    shard(directory / "a.safetensors", TensorSpec("x", "F32", (2, 3)), TensorSpec("y", "BF16", (5,)))
    shard(directory / "b.safetensors", TensorSpec("z", "F16", ()))
    weights = {"x": "a.safetensors", "y": "a.safetensors", "z": "b.safetensors"}
    (directory / INDEX).write_text(json.dumps({"weight_map": weights}))
    return directory


def test_a_whole_directory(model: Path) -> None:
    tensors = check(model)
    assert {name: shard_name for name, (shard_name, _) in tensors.items()} == {
        "x": "a.safetensors",
        "y": "a.safetensors",
        "z": "b.safetensors",
    }
    assert tensors["x"][1] == TensorSpec("x", "F32", (2, 3))


def test_code_pickles_and_links_stay_behind(model: Path, tmp_path: Path) -> None:
    (model / "modeling_evil.py").write_text("raise SystemExit")
    (model / "pytorch_model.bin").write_bytes(b"pickle")
    (model / ".cache").mkdir()
    secret = tmp_path / "secret.json"
    secret.write_text("{}")
    (model / "link.json").symlink_to(secret)
    target = tmp_path / "target"
    target.mkdir()
    convert(model, target, "float32", "key", form="safetensors")
    assert sorted(path.name for path in target.iterdir()) == taken_files(model)
    assert taken_files(model) == ["a.safetensors", "b.safetensors", "config.json", INDEX, "tokenizer.json"]


def test_the_digest_sees_every_byte_and_name(model: Path) -> None:
    before = digest(model)
    assert digest(model) == before
    data = bytearray((model / "a.safetensors").read_bytes())
    data[-1] ^= 1
    (model / "a.safetensors").write_bytes(data)
    changed = digest(model)
    assert changed != before
    (model / "tokenizer.json").rename(model / "tokenizer2.json")
    assert digest(model) not in (before, changed)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda m: (m / "a.safetensors").write_bytes((m / "a.safetensors").read_bytes()[:-4]), "truncated"),
        (lambda m: (m / "a.safetensors").write_bytes(b"1234"), "no safetensors file"),
        (lambda m: (m / "a.safetensors").write_bytes(struct.pack("<Q", 4) + b"{{{{"), "damaged header"),
        (lambda m: (m / "b.safetensors").unlink(), "where it is not"),
        (lambda m: shard(m / "c.safetensors", TensorSpec("x", "F32", (1,))), "expected one"),
        (lambda m: (m / "tokenizer.json").unlink(), "no tokenizer"),
        (lambda m: (m / "config.json").unlink(), "lacks config.json"),
        (lambda m: (m / "config.json").write_text("["), "cannot be read"),
        (lambda m: (m / "config.json").write_text("{}"), "names no architectures"),
        (
            lambda m: (m / INDEX).write_text('{"weight_map": {"x": "../../etc/passwd"}}'),
            "does not lie in its directory",
        ),
        (lambda m: (m / INDEX).write_text('{"weight_map": {"x": "/etc/passwd"}}'), "does not lie in its directory"),
        (lambda m: (m / INDEX).write_text('{"weight_map": {"w": "a.safetensors"}}'), "incomplete"),
        (lambda m: (m / INDEX).write_text("{}"), "no weight_map"),
    ],
)
def test_damage_is_refused(model: Path, damage: object, sentence: str) -> None:
    damage(model)  # type: ignore[operator]
    with pytest.raises(CheckpointError, match=sentence):
        check(model)


def test_pickles_of_something_else_are_no_weights(model: Path) -> None:
    for path in model.glob("*.safetensors"):
        path.rename(path.with_suffix(".bin"))
    with pytest.raises(CheckpointError, match=r"no pytorch_model\*\.bin"):
        check(model)


def test_no_weights_at_all(model: Path) -> None:
    for path in model.glob("*.safetensors"):
        path.unlink()
    with pytest.raises(CheckpointError, match=r"no \.safetensors file"):
        check(model)


@pytest.mark.parametrize(
    "entries",
    [
        {"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}},
        {"x": {"dtype": "F77", "shape": [1], "data_offsets": [0, 4]}},
        {"x": {"dtype": "F32", "shape": [-1], "data_offsets": [0, -4]}},
        {"x": {"dtype": "F32", "shape": [1]}},
        {"x": "nothing"},
        {"x": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}},
        {
            "x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
            "y": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
        },
    ],
)
def test_headers_that_contradict_themselves(tmp_path: Path, entries: object) -> None:
    text = json.dumps(entries).encode()
    path = tmp_path / "m.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(4))
    with pytest.raises(CheckpointError, match="damaged"):
        read_tensors(path)
