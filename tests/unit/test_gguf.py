"""GGUF files, read and converted: what is right comes through exactly, what is broken is refused with its reason."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import gguf_architecture, gguf_tokenizer
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.cast_source import encode
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.checkpoint_convert import convert, prepared
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.checkpoint_errors import CheckpointError
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.checkpoint_writer import JOURNAL
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.gguf_file import read_header
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.manifest import sha256_of_file
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.safetensors_file import read_tensors

from tests.unit import gguf_support as support


def loaded(directory: Path) -> dict[str, np.ndarray]:
    """Every float32 tensor of a converted checkpoint, read independently of the code under test."""
    values = {}
    for path in directory.glob("*.safetensors"):
        data = path.read_bytes()
        length = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8 : 8 + length])
        for name, entry in header.items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                values[name] = np.frombuffer(data[8 + length + begin : 8 + length + end], "<f4").reshape(entry["shape"])
    return values


def interleave(weight: np.ndarray, heads: int) -> np.ndarray:
    """What llama.cpp's converter does to the rows of query and key: the second half of each head's rows goes between the first."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, weight.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(weight.shape))


def test_header_of_a_whole_file(tmp_path: Path) -> None:
    header = read_header(support.write(tmp_path / "m.gguf"))
    assert header.metadata["llama.block_count"] == support.LAYERS
    assert header.metadata["tokenizer.ggml.merges"] == support.MERGES
    assert header.tensors["token_embd.weight"].shape == (len(support.TOKENS), support.HIDDEN)
    assert set(header.tensors) == set(support.tensors())


def test_every_weight_comes_through(tmp_path: Path) -> None:
    theirs = support.tensors()
    stored = dict(theirs)
    for layer in range(support.LAYERS):
        stored[f"blk.{layer}.attn_q.weight"] = interleave(theirs[f"blk.{layer}.attn_q.weight"], support.HEADS)
        stored[f"blk.{layer}.attn_k.weight"] = interleave(theirs[f"blk.{layer}.attn_k.weight"], support.KV_HEADS)
    source = support.write(tmp_path / "m.gguf", arrays=stored)
    target = tmp_path / "out"
    target.mkdir()
    hashes = convert(source, target, "float32", "key", shard_bytes=20_000)
    assert len(hashes) > 2
    assert all(sha256_of_file(target / name) == digest for name, digest in hashes.items())
    found = loaded(target)
    assert len(found) == len(theirs)
    names = {mapped.source.name: mapped.name for mapped in gguf_architecture.tensors(read_header(source))}
    for name, array in theirs.items():
        np.testing.assert_array_equal(found[names[name]], array)
    index = json.loads((target / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == set(found)
    assert {spec.name for shard in hashes for spec in read_tensors(target / shard)} == set(found)
    # The trap: a tied model keeps its embedding, and nothing pretends to be an output matrix.
    assert "model.embed_tokens.weight" in found
    assert "lm_head.weight" not in found
    config = json.loads((target / "config.json").read_text())
    assert config["tie_word_embeddings"] is True
    assert config["rms_norm_eps"] == 1e-05
    assert config["vocab_size"] == len(support.TOKENS)


def test_an_output_matrix_of_its_own_is_kept(tmp_path: Path) -> None:
    arrays = support.tensors()
    arrays["output.weight"] = np.ones((len(support.TOKENS), support.HIDDEN), np.float16)
    target = tmp_path / "out"
    target.mkdir()
    convert(support.write(tmp_path / "m.gguf", arrays=arrays), target, "float32", "key")
    assert (loaded(target)["lm_head.weight"] == 1).all()
    assert json.loads((target / "config.json").read_text())["tie_word_embeddings"] is False


def test_a_small_piece_size_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = support.write(tmp_path / "m.gguf")
    digests = []
    for number, values in enumerate((1, 1 << 24)):
        monkeypatch.setattr(
            "ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.checkpoint_writer.PIECE_BYTES",
            values,
        )
        target = tmp_path / str(number)
        target.mkdir()
        digests.append(convert(source, target, "bfloat16", "key"))
    assert digests[0] == digests[1]


def test_an_interrupted_conversion_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = support.write(tmp_path / "m.gguf")
    whole, half = tmp_path / "whole", tmp_path / "half"
    whole.mkdir()
    half.mkdir()
    expected = convert(source, whole, "float32", "key", shard_bytes=20_000)
    module = "ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.checkpoint_writer"
    writer = __import__(module, fromlist=["_write"])._write
    written: list[str] = []

    def killed_at_the_third(path: Path, *rest: object) -> str:
        if len(written) == 2:
            (path.with_name(path.name + ".partial")).write_bytes(b"half a shard")
            raise KeyboardInterrupt
        written.append(path.name)
        return str(writer(path, *rest))

    monkeypatch.setattr(f"{module}._write", killed_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        convert(source, half, "float32", "key", shard_bytes=20_000)
    assert (half / JOURNAL).exists()
    again: list[str] = []

    def recording(path: Path, *rest: object) -> str:
        again.append(path.name)
        return str(writer(path, *rest))

    monkeypatch.setattr(f"{module}._write", recording)
    assert convert(source, half, "float32", "key", shard_bytes=20_000) == expected
    assert not set(again) & set(written)
    assert {name: sha256_of_file(half / name) for name in expected} == expected
    assert not (half / JOURNAL).exists()


def test_shards_of_another_source_are_not_taken_over(tmp_path: Path) -> None:
    source = support.write(tmp_path / "m.gguf")
    target = tmp_path / "out"
    target.mkdir()
    name = prepared(source, "gguf", "float32").shards[0].name
    (target / JOURNAL).write_text(json.dumps({"source_key": "another", "shards": {name: "0" * 64}}))
    (target / name).write_bytes(b"")
    assert convert(source, target, "float32", "key")[name] == sha256_of_file(target / name)


@pytest.mark.parametrize("keep", [3, 20, 700, -1000])
def test_a_truncated_file(tmp_path: Path, keep: int) -> None:
    path = support.write(tmp_path / "m.gguf")
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match="truncated"):
        read_header(path)


def test_a_damaged_count_is_refused_without_asking_for_memory(tmp_path: Path) -> None:
    path = support.write(tmp_path / "m.gguf")
    data = bytearray(path.read_bytes())
    data[8:16] = struct.pack("<Q", 1 << 60)
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="truncated"):
        read_header(path)


def test_something_else(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(CheckpointError, match="no GGUF file"):
        read_header(path)


def test_an_unknown_quantisation(tmp_path: Path) -> None:
    path = support.write(tmp_path / "m.gguf")
    data = path.read_bytes()
    name = b"output_norm.weight"
    place = data.index(name) + len(name) + 4 + 8
    path.write_bytes(data[:place] + struct.pack("<I", 999) + data[place + 4 :])
    with pytest.raises(CheckpointError, match="type 999"):
        read_header(path)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"general.architecture": "mamba"}, "architecture 'mamba'"),
        ({"llama.block_count": 3}, "lacks 9 tensors, the first is blk.2.attn_norm.weight"),
        ({"llama.block_count": 1}, "blk.1.attn_norm.weight, which a llama model with 1 layers has not"),
        ({"llama.feed_forward_length": 48}, "has the shape"),
        ({"llama.embedding_length": 64}, "wide"),
        ({"llama.rope.scaling.type": "yarn"}, "rotary embedding"),
        ({"llama.expert_count": 8}, "mixture of experts"),
        ({"llama.attention.head_count": 0}, "positive whole number"),
        ({"llama.context_length": None}, "does not say llama.context_length"),
        ({"tokenizer.ggml.model": "llama"}, "has the tokenizer 'llama'"),
        ({"tokenizer.ggml.pre": "dbrx"}, "the cut 'dbrx'"),
        ({"tokenizer.ggml.tokens": None}, "holds no tokenizer"),
        ({"tokenizer.ggml.eos_token_id": None}, "end-of-sequence"),
        ({"tokenizer.ggml.eos_token_id": 9999}, "token 9999"),
        ({"tokenizer.ggml.merges": ["q z"]}, "merges 'q z'"),
        ({"tokenizer.ggml.token_type": [1]}, "the file is damaged"),
    ],
)
def test_what_cannot_be_converted_is_refused(tmp_path: Path, change: dict[str, object], sentence: str) -> None:
    values = {key: value for key, value in {**support.metadata(), **change}.items() if value is not None}
    source = support.write(tmp_path / "m.gguf", values)
    target = tmp_path / "out"
    target.mkdir()
    with pytest.raises(CheckpointError, match=sentence):
        convert(source, target, "float32", "key")
    assert not any(target.iterdir())


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_weights_that_are_not_finite(tmp_path: Path, bad: float) -> None:
    arrays = support.tensors()
    arrays["blk.1.ffn_up.weight"][3, 4] = bad
    target = tmp_path / "out"
    target.mkdir()
    with pytest.raises(
        CheckpointError, match=r"model\.layers\.1\.mlp\.up_proj\.weight holds values that are not finite"
    ):
        convert(support.write(tmp_path / "m.gguf", arrays=arrays), target, "float32", "key")


def test_bfloat16_rounds_to_nearest_even() -> None:
    values = np.array([1.0, 1.00390625, 1.01171875, -2.5, 3.3895314e38, 1e-40], np.float32)
    # 1 + 2^-8 lies half way between 1 and 1 + 2^-7 and goes to the even one; 1 + 3 x 2^-8 likewise goes up.
    found = np.frombuffer(encode(values, "BF16"), "<u2")
    assert [hex(number) for number in found] == ["0x3f80", "0x3f80", "0x3f82", "0xc020", "0x7f7f", "0x1"]


def test_float16_refuses_what_it_cannot_hold() -> None:
    assert np.frombuffer(encode(np.array([65504.0], np.float32), "F16"), "<f2")[0] == 65504
    with pytest.raises(CheckpointError, match="bfloat16 or float32"):
        encode(np.array([70000.0], np.float32), "F16")


def test_tokenizer_of_the_file(tmp_path: Path) -> None:
    header = read_header(support.write(tmp_path / "m.gguf"))
    files = gguf_tokenizer.tokenizer_files(header, len(support.TOKENS))
    model = files["tokenizer.json"]["model"]
    assert model["vocab"]["the"] == len(support.TOKENS) - 1
    assert [token["content"] for token in files["tokenizer.json"]["added_tokens"]] == ["<|end|>", "<|start|>"]
    settings = files["tokenizer_config.json"]
    assert (settings["bos_token"], settings["eos_token"]) == ("<|start|>", "<|end|>")
    assert settings["chat_template"] == "{{ messages }}"
    assert files["tokenizer.json"]["post_processor"] is None


def test_a_beginning_token_is_added_where_the_file_says_so(tmp_path: Path) -> None:
    header = read_header(
        support.write(tmp_path / "m.gguf", {**support.metadata(), "tokenizer.ggml.add_bos_token": True})
    )
    post = gguf_tokenizer.tokenizer_files(header, len(support.TOKENS))["tokenizer.json"]["post_processor"]
    assert post["single"][0] == {"SpecialToken": {"id": "<|start|>", "type_id": 0}}
    assert post["special_tokens"]["<|start|>"]["ids"] == [1]
