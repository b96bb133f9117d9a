"""A small tokenizer like Yuan2.0's: SentencePiece with byte fallback, the special tokens in the middle of the model.

As in the published one, `<eod>`, `<n>`, `<sep>`, `<pad>` and eight code tokens are pieces of the model, somewhere in its middle;
seven more are added at run time, behind its last piece; and tokenizer_config.json says the wrong thing (add a begin and an end to
every prompt, end with `</s>`), which a server has to know better.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from yuan_reference import corpus
from yuan_reference.companions import write_json

IN_MODEL = ("<eod>", "<n>", "<sep>", "<pad>")
CODE_IN_MODEL = (
    "<jupyter_start>",
    "<jupyter_text>",
    "<jupyter_code>",
    "<jupyter_output>",
    "<empty_output>",
    "<commit_before>",
    "<commit_msg>",
    "<commit_after>",
)
ADDED_AT_RUN_TIME = ("<mask>", "<predict>", "<FIM_SUFFIX>", "<FIM_PREFIX>", "<FIM_MIDDLE>", "<repo_name>", "<file_sep>")
SMALL_PIECES = 500


def padded_vocabulary(pieces: int) -> int:
    """Rows of the embedding for a model of so many pieces: the added tokens too, and a multiple of 128."""
    return -(-(pieces + len(ADDED_AT_RUN_TIME)) // 128) * 128


def first_special(pieces: int) -> int:
    """The id of `<eod>` in a tokenizer of so many pieces; `<n>`, `<sep>`, `<pad>` follow it."""
    return pieces * 6 // 10 + 1


def first_code(pieces: int) -> int:
    """The id of the first code token in a tokenizer of so many pieces."""
    return pieces * 7 // 10


def with_tokenizer(config: Mapping[str, Any], pieces: int) -> dict[str, Any]:
    """The configuration for a tokenizer of so many pieces: size of the vocabulary and the ids, `sep_token_id` wrong as ever."""
    eod = first_special(pieces)
    names = (
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "eod_token",
        "eod_token_id",
        "mask_token_id",
        "sep_token_id",
    )
    return {**config, **dict.fromkeys(names, eod), "sep_token": eod + 2, "vocab_size": padded_vocabulary(pieces)}


def train(texts: Iterable[str], directory: Path, pieces: int = SMALL_PIECES) -> None:
    """Train a tokenizer of exactly `pieces` pieces on `texts`, and write its files to `directory`.

    Raises ValueError if the texts are too few for so many pieces.
    """
    import sentencepiece  # noqa: PLC0415 (only who makes a tokenizer needs it)
    from sentencepiece import sentencepiece_model_pb2  # noqa: PLC0415

    special = [*IN_MODEL, *CODE_IN_MODEL]
    buffer = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(line for text in texts for line in text.splitlines() if line.strip()),
            model_writer=buffer,
            model_type="bpe",
            vocab_size=pieces,
            user_defined_symbols=special,
            byte_fallback=True,
            split_digits=True,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            allow_whitespace_only_pieces=True,
            character_coverage=0.999,
            max_sentence_length=16384,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise ValueError(f"The texts do not give {pieces} pieces: {str(error).splitlines()[-1]}") from None
    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString(buffer.getvalue())
    by_name = {piece.piece: piece for piece in model.pieces}
    order = [piece for piece in model.pieces if piece.piece not in special]
    for position, names in ((first_special(pieces), IN_MODEL), (first_code(pieces), CODE_IN_MODEL)):
        order[position:position] = [by_name[name] for name in names]
    moved = sentencepiece_model_pb2.ModelProto()
    moved.CopyFrom(model)
    del moved.pieces[:]
    moved.pieces.extend(order)
    # The path of the training's output is the only thing in the model that is not of the texts.
    moved.trainer_spec.ClearField("model_prefix")
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "tokenizer.model").write_bytes(moved.SerializeToString(deterministic=True))
    usual = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    write_json(directory / "special_tokens_map.json", usual)
    write_json(
        directory / "tokenizer_config.json",
        {
            "add_bos_token": True,
            "add_eos_token": True,
            **usual,
            "clean_up_tokenization_spaces": False,
            "model_max_length": 8192,
            "sp_model_kwargs": {},
            "tokenizer_class": "YuanTokenizer",
        },
    )


def make_small(directory: Path, vocabulary: int) -> None:
    """Train the tokenizer of the small random models on the standard library's documentation strings.

    Raises ValueError if the embedding has fewer rows than the tokenizer has ids.
    """
    needed = SMALL_PIECES + len(ADDED_AT_RUN_TIME)
    if vocabulary < needed:
        raise ValueError(
            f"The tokenizer has {needed} ids, vocab_size is {vocabulary}: make it larger, or write no tokenizer."
        )
    train(corpus.read(packages=())[0][:400], directory)


def load(directory: Path) -> Any:
    """The SentencePiece processor of a tokenizer's directory."""
    import sentencepiece  # noqa: PLC0415

    return sentencepiece.SentencePieceProcessor(model_file=str(directory / "tokenizer.model"))


def pieces_of(directory: Path) -> int:
    """How many pieces a tokenizer's model has."""
    return len(load(directory))


def ids_of(directory: Path) -> dict[str, int]:
    """Name and id of every special token of a tokenizer: those in its model, and those added at run time behind it."""
    processor = load(directory)
    ids = {name: int(processor.piece_to_id(name)) for name in (*IN_MODEL, *CODE_IN_MODEL)}
    return ids | {name: len(processor) + index for index, name in enumerate(ADDED_AT_RUN_TIME)}
