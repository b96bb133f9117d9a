"""Yuan's tokenizer: tokenizer.json gives the ids of SentencePiece; the special tokens and the chat template are right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import yuan_tokenizer, yuan_tokens
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.checkpoint_errors import CheckpointError
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.sentencepiece_model import (
    Piece,
    SentencePieceModel,
    read,
)
from sentencepiece import sentencepiece_model_pb2
from transformers import AutoTokenizer

from tests.engine_python.yuan_support import CODE, LIKE_LLAMA, NEEDED, corpus, train

BEHIND = ["<mask>", "<predict>", "<FIM_SUFFIX>", "<FIM_PREFIX>", "<FIM_MIDDLE>", "<repo_name>", "<file_sep>"]
FORMS: dict[str, dict[str, Any]] = {
    "like llama": LIKE_LLAMA,
    "no bytes": {
        "model_type": "bpe",
        "byte_fallback": False,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
    },
    "nfkc": {
        "model_type": "bpe",
        "byte_fallback": True,
        "normalization_rule_name": "nmt_nfkc",
        "remove_extra_whitespaces": True,
    },
    "unigram": {
        "model_type": "unigram",
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
    },
}


PIECES = (("a", -1.0), ("b", -1.0), ("aa", -1.5))


@pytest.fixture(scope="module", params=list(FORMS))
def model_file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tokenizer")
    return train(directory / "tokenizer.model", (*NEEDED, *CODE), **FORMS[request.param])


@pytest.fixture(scope="module")
def llama_like(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.model"
    return train(path, (*NEEDED, *CODE), **FORMS["like llama"])


def served(model_file: Path, target: Path) -> tuple[Any, dict[str, int]]:
    """The tokenizer as transformers, and so vLLM, loads it."""
    model = read(model_file)
    special = yuan_tokens.special_ids(model, {})
    (target / "tokenizer.json").write_text(yuan_tokenizer.tokenizer_json(model, special, model_file), encoding="utf-8")
    (target / "tokenizer_config.json").write_text(
        json.dumps(yuan_tokens.tokenizer_config({"add_bos_token": True}, {})), encoding="utf-8"
    )
    return AutoTokenizer.from_pretrained(target), special


def test_our_reader_reads_what_the_library_reads(model_file: Path) -> None:
    theirs = sentencepiece_model_pb2.ModelProto()
    theirs.ParseFromString(model_file.read_bytes())
    ours = read(model_file)
    assert [(piece.text, piece.score, piece.kind) for piece in ours.pieces] == [
        (p.piece, p.score, p.type) for p in theirs.pieces
    ]
    assert (ours.kind, ours.character_map) == (
        theirs.trainer_spec.model_type,
        theirs.normalizer_spec.precompiled_charsmap,
    )
    spec = theirs.normalizer_spec
    assert (ours.dummy_prefix, ours.single_spaces) == (spec.add_dummy_prefix, spec.remove_extra_whitespaces)


def test_the_ids_of_sentencepiece(model_file: Path, tmp_path: Path) -> None:
    tokenizer, special = served(model_file, tmp_path)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model_file))
    model, lines = read(model_file), corpus()
    texts = [*lines, "\n".join(lines[:60]), *(f"{a}<sep>{b}<eod>" for a, b in zip(lines[:100], lines[100:]))]
    assert len(texts) > 500
    for text in texts:
        ids = tokenizer.encode(text)
        assert yuan_tokenizer.equal(model, ids, yuan_tokenizer.reference_ids(processor, special, text)), text
        assert tokenizer(text)["input_ids"] == tokenizer.encode(text, add_special_tokens=False)


def test_what_is_equal() -> None:
    bpe, unigram = (SentencePieceModel([Piece(text, score, 1) for text, score in PIECES], kind) for kind in (2, 1))
    assert yuan_tokenizer.equal(bpe, [0, 1], [0, 1])
    assert not yuan_tokenizer.equal(bpe, [0, 2], [2, 0])
    # "aaa" as a + aa and as aa + a.
    assert yuan_tokenizer.equal(unigram, [0, 2], [2, 0])
    assert not yuan_tokenizer.equal(unigram, [0, 0, 0], [2, 0])
    assert not yuan_tokenizer.equal(unigram, [0, 1], [1, 0])


def test_text_comes_back(llama_like: Path, tmp_path: Path) -> None:
    tokenizer, _ = served(llama_like, tmp_path)
    for text in ("Hello world", "请问目前最先进的机器学习算法有哪些？", "a\n  b\tc 😀", "two  spaces"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.decode(tokenizer.encode("question<sep>answer<eod>"), skip_special_tokens=True).split() == [
        "question",
        "answer",
    ]


def test_the_ids_of_the_special_tokens(llama_like: Path, tmp_path: Path) -> None:
    tokenizer, special = served(llama_like, tmp_path)
    pieces = read(llama_like).ids()
    for name in ("<eod>", "<n>", "<sep>", "<pad>", *CODE):
        assert tokenizer.convert_tokens_to_ids(name) == pieces[name]
    assert [special[name] for name in BEHIND] == list(range(len(pieces), len(pieces) + 7))
    assert tokenizer.eos_token == "<eod>"
    assert tokenizer.encode("<sep><eod>") == [pieces["<sep>"], pieces["<eod>"]]


def test_the_chat_template(llama_like: Path, tmp_path: Path) -> None:
    tokenizer, special = served(llama_like, tmp_path)

    def told(*turns: tuple[str, Any], prompt: bool = True) -> str:
        messages = [{"role": role, "content": content} for role, content in turns]
        text: str = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
        return text

    assert told(("user", "one\ntwo")) == "one\ntwo<sep>"
    assert (
        told(("user", "one\ntwo"), ("assistant", "three\nfour"), ("user", "five"))
        == "one<n>two<n>three<n>four<n>five<sep>"
    )
    assert told(("system", "be brief"), ("user", "one")) == "be brief<n>one<sep>"
    assert told(("user", "one"), ("assistant", "two\nlines"), prompt=False) == "one<sep>two\nlines<eod>"
    assert told(("user", [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])) == "a\nb<sep>"
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": "one"}], add_generation_prompt=True, return_dict=False
    )
    assert ids[-1] == special["<sep>"]
    assert special["<s>"] not in ids
    with pytest.raises(Exception, match="knows the roles"):
        told(("tool", "x"))
    with pytest.raises(Exception, match="reads text only"):
        told(("user", [{"type": "image", "image": "x"}]))


@pytest.mark.parametrize("missing", ["<eod>", "<sep>", "<n>", "<pad>"])
def test_a_tokenizer_that_lacks_a_special_token(tmp_path: Path, missing: str) -> None:
    special = tuple(name for name in NEEDED if name != missing)
    path = train(tmp_path / "tokenizer.model", special, **FORMS["like llama"])
    with pytest.raises(CheckpointError, match=f"has no {missing} among its"):
        yuan_tokens.special_ids(read(path), {})


def test_a_config_that_contradicts_the_tokenizer(llama_like: Path) -> None:
    model = read(llama_like)
    ids = model.ids()
    with pytest.raises(CheckpointError, match=f"has 5 as eos_token_id, <eod> is {ids['<eod>']}"):
        yuan_tokens.special_ids(model, {"eos_token_id": 5})
    with pytest.raises(CheckpointError, match=f"has {ids['<eod>']} as sep_token"):
        yuan_tokens.special_ids(model, {"sep_token": ids["<eod>"]})
    with pytest.raises(CheckpointError, match=f"has {len(ids) + 7} tokens, config.json has a vocab_size of {len(ids)}"):
        yuan_tokens.special_ids(model, {"vocab_size": len(ids)})
    special = yuan_tokens.special_ids(
        model, {"eos_token_id": ids["<eod>"], "sep_token_id": ids["<eod>"], "vocab_size": 2048}
    )
    config = yuan_tokens.served_config(
        {
            "sep_token_id": ids["<eod>"],
            "auto_map": {"AutoConfig": "x.Y"},
            "tokenizer_class": "YuanTokenizer",
            "vocab_size": 2048,
            "mask_token_id": 1,
        },
        special,
        "bfloat16",
    )
    assert (config["sep_token_id"], config["eos_token_id"], config["vocab_size"]) == (ids["<sep>"], ids["<eod>"], 2048)
    assert not {"auto_map", "tokenizer_class"} & set(config)


@pytest.mark.parametrize("damage", [b"", b"\x00\x01\x02", b"\x0a\xff\xff\xff\xff\x0f", b"not a tokenizer at all"])
def test_a_file_that_is_no_tokenizer(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(damage)
    with pytest.raises(CheckpointError, match="is no whole tokenizer"):
        read(path)


def test_a_truncated_tokenizer(llama_like: Path, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.model"
    data = llama_like.read_bytes()
    for cut in (1, 100, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:cut])
        with pytest.raises(CheckpointError, match=r"is no whole tokenizer|has no <|unknown pieces"):
            yuan_tokens.special_ids(read(path), {})


def test_without_a_leading_space_it_is_refused(tmp_path: Path) -> None:
    form = {**FORMS["like llama"], "add_dummy_prefix": False}
    path = train(tmp_path / "tokenizer.model", NEEDED, **form)
    model = read(path)
    # Here </s> may be a whole word of a text, and tokenizers would take it for the control piece.
    with pytest.raises(CheckpointError, match=r"would cut '<s></s><unk>' into .*SentencePiece cuts it into"):
        yuan_tokenizer.tokenizer_json(model, yuan_tokens.special_ids(model, {}), path)


def test_ids_that_differ_are_refused(llama_like: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = read(llama_like)
    special = yuan_tokens.special_ids(model, {})
    monkeypatch.setattr(yuan_tokenizer, "_merges", lambda *_arguments: [])
    with pytest.raises(CheckpointError, match="SentencePiece cuts it into"):
        yuan_tokenizer.tokenizer_json(model, special, llama_like)
