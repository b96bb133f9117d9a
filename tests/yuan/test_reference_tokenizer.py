"""The small tokenizer has what is peculiar in the published one, and transformers reads it as Yuan2.0's is read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from yuan_reference import configs, corpus, tokenizer

TEXT = "Return the sum of two 12345 numbers — ü 你好\n    indented"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    tokenizer.make_small(path, configs.VOCAB_SIZE)
    return path


def test_special_tokens_lie_where_the_configurations_say(directory: Path) -> None:
    processor = tokenizer.load(directory)
    assert len(processor) == tokenizer.SMALL_PIECES
    assert [processor.id_to_piece(index) for index in range(3)] == ["<unk>", "<s>", "</s>"]
    ids = tokenizer.ids_of(directory)
    assert (ids["<eod>"], ids["<n>"], ids["<sep>"], ids["<pad>"]) == (301, 302, 303, 304)
    assert (ids["<eod>"], ids["<sep>"]) == (configs.EOD_ID, configs.SEP_ID)
    assert all(processor.id_to_piece(ids[name]) == name for name in (*tokenizer.IN_MODEL, *tokenizer.CODE_IN_MODEL))
    assert [ids[name] for name in tokenizer.ADDED_AT_RUN_TIME] == list(range(500, 507))
    for name in ("dense", "m32"):
        config = configs.get(name)
        assert config["vocab_size"] == tokenizer.padded_vocabulary(tokenizer.SMALL_PIECES)
        assert {**config, **tokenizer.with_tokenizer(config, tokenizer.SMALL_PIECES)} == config


def test_text_survives_and_special_tokens_are_one_id(directory: Path) -> None:
    processor = tokenizer.load(directory)
    assert processor.decode(processor.encode(TEXT)) == TEXT
    ids = tokenizer.ids_of(directory)
    assert processor.encode("a<sep>b<n>c<eod>")[1::2] == [ids["<sep>"], ids["<n>"], ids["<eod>"]]
    assert len(processor.encode("123")) == 4  # the mark of a space, then digits one by one
    assert 0 not in processor.encode("你好")  # by bytes, never unknown


def test_it_is_the_same_every_time(directory: Path, tmp_path: Path) -> None:
    tokenizer.make_small(tmp_path, configs.VOCAB_SIZE)
    for path in directory.iterdir():
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()


def test_transformers_reads_it_as_the_publishers_do(directory: Path) -> None:
    transformers = pytest.importorskip("transformers")
    read = transformers.LlamaTokenizer.from_pretrained(
        directory, add_bos_token=False, add_eos_token=False, eos_token="<eod>", legacy=True
    )
    read.add_tokens(["<sep>", "<pad>", *tokenizer.ADDED_AT_RUN_TIME], special_tokens=True)
    ids = tokenizer.ids_of(directory)
    assert read.eos_token_id == ids["<eod>"]
    assert {name: read.convert_tokens_to_ids(name) for name in ids} == ids
    assert read("a<sep>")["input_ids"][-1] == ids["<sep>"]


def test_what_the_shipped_configuration_says_is_wrong(directory: Path) -> None:
    config = json.loads((directory / "tokenizer_config.json").read_text())
    assert (config["add_bos_token"], config["add_eos_token"], config["eos_token"]) == (True, True, "</s>")
    small = configs.get("m32")
    assert small["sep_token_id"] == configs.EOD_ID != small["sep_token"]


def test_too_little_room_or_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="The tokenizer has 507 ids, vocab_size is 384"):
        tokenizer.make_small(tmp_path, 384)
    with pytest.raises(ValueError, match="The texts do not give 5000 pieces"):
        tokenizer.train(["one two three"], tmp_path, 5000)
    assert list(tmp_path.iterdir()) == []


def test_corpus_is_split_by_file_and_the_same_every_time() -> None:
    training, held_out = corpus.read(packages=())
    assert (training, held_out) == corpus.read(packages=())
    assert len(training) > 500
    assert len(held_out) > 5
    assert not set(training) & set(held_out)
    assert min(map(len, training)) >= 200
    with pytest.raises(ValueError, match="no_such_package, which is not installed"):
        corpus.read(packages=("no_such_package",))
