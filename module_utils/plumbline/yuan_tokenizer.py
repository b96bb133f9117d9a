"""tokenizer.json for a SentencePiece model, giving the ids that SentencePiece gives; checked against it before it is used.

Runs in the engine's Python, which has tokenizers and sentencepiece. The publishers load the model with LlamaTokenizer (legacy): text
between special tokens is given to SentencePiece piece by piece, so that each gets its own leading space.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .checkpoint_errors import CheckpointError
from .sentencepiece_model import (
    BPE,
    BYTE,
    CONTROL,
    NORMAL,
    UNIGRAM,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    Piece,
    SentencePieceModel,
)

_SPACE = "▁"
_RANDOM_TEXTS = 600
_NEVER = -1e5
_TIE = 1e-5
_TEXTS = (
    "Hello world", " leading", "trailing ", "two  spaces", "   ", "", "a\nb\n\nc", "tab\there", "2023年12月31日，源2.0发布。",
    "请问目前最先进的机器学习算法有哪些？", "Приве́т, мир", "😀👩‍👩‍👧 emoji", "ＦＵＬＬ ｗｉｄｔｈ ﬁ ①", "e\u0301 é",
    "def f(x):\n    return x**2  # 0x1F", "\u00a0nbsp\u3000ideographic\u200bzero", "\x00\x01\x7f", "<s></s><unk>",
    "http://a.b/c?d=e&f=%20", "1234567890" * 5, "a" * 100, "instruction<sep>answer<eod>", "a<n>b <n> c<n>", " <sep> x",
    "<sep><sep>", "<eod>", "<pad>x<mask>y<predict>", "<FIM_PREFIX>a<FIM_SUFFIX>b", "<repo_name>x<file_sep>y",
    "<jupyter_start>1<jupyter_output>", "▁literal▁", "ñandú ÅÄÖ", "اَلْعَرَبِيَّةُ", "한국어", "日本語テキスト",
)  # fmt: skip


def tokenizer_json(model: SentencePieceModel, special: Mapping[str, int], path: Path) -> str:
    """tokenizer.json as text. Raises CheckpointError where it would not give the ids of SentencePiece, with the text that shows it."""
    tokenizer = _build(model, special)
    _compare(tokenizer, model, special, path)
    return str(tokenizer.to_str())


def reference_ids(processor: Any, special: Mapping[str, int], text: str) -> list[int]:
    """What the publishers' tokenizer gives: special tokens are cut out, the rest goes to SentencePiece."""
    pattern = "|".join(re.escape(name) for name in sorted(special, key=len, reverse=True))
    found: list[int] = []
    for part in re.split(f"({pattern})", text):
        if part in special:
            found.append(special[part])
        elif part:
            found += processor.encode(part)
    return found


def equal(model: SentencePieceModel, found: Sequence[int], wanted: Sequence[int]) -> bool:
    """Whether two lists of ids are the same.

    Of a unigram model also where both are as likely: SentencePiece's choice is then one of rounding (it adds in 32 bits, tokenizers in 64).
    """
    if list(found) == list(wanted):
        return True
    if model.kind != UNIGRAM:
        return False
    texts = [
        "".join(model.pieces[number].text for number in ids if number < len(model.pieces)) for ids in (found, wanted)
    ]
    scores = [
        sum(model.pieces[number].score for number in ids if number < len(model.pieces)) for ids in (found, wanted)
    ]
    return texts[0] == texts[1] and abs(scores[0] - scores[1]) < _TIE * (1 + abs(scores[1]))


def _build(model: SentencePieceModel, special: Mapping[str, int]) -> Any:
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers  # noqa: PLC0415

    if model.space_as_suffix or not model.escapes_spaces or model.kind not in (BPE, UNIGRAM):
        raise CheckpointError(
            f"tokenizer.model is of a kind of SentencePiece ({model.kind}) that is not converted: expected BPE or unigram with "
            "escaped, leading spaces, as Yuan2.0 has it; take the tokenizer.model that was published with this checkpoint."
        )
    ids = model.ids()
    byte_fallback = any(piece.kind == BYTE for piece in model.pieces)
    unknown = next(number for number, piece in enumerate(model.pieces) if piece.kind == UNKNOWN)
    # Pieces that SentencePiece finds before it begins to merge; those among the special tokens are found before it is asked. They
    # become a word of their own, and a word that is a piece is not merged (ignore_merges).
    atoms = [piece.text for piece in model.pieces if piece.kind == USER_DEFINED and piece.text not in special]
    if model.kind == BPE:
        tokenizer = Tokenizer(
            models.BPE(
                ids,
                _merges(model.pieces, ids),
                unk_token=model.pieces[unknown].text,
                fuse_unk=True,
                byte_fallback=byte_fallback,
                ignore_merges=bool(atoms),
            )
        )
    else:
        # Names of control pieces are not found in a text; a score this low keeps them out.
        vocabulary = [
            (piece.text, _NEVER if piece.kind in (CONTROL, UNUSED) else piece.score) for piece in model.pieces
        ]
        tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=unknown, byte_fallback=byte_fallback))
    steps: list[Any] = [normalizers.Precompiled(model.character_map)] if model.character_map else []
    if model.single_spaces:
        steps += [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Replace(Regex("^ | $"), "")]
    steps += [normalizers.Prepend(_SPACE)] if model.dummy_prefix else []
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", _SPACE)])
    if atoms:
        pattern = "|".join(re.escape(atom) for atom in sorted(atoms, key=len, reverse=True))
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
    ends: list[Any] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    ends += [decoders.Strip(" ", 1, 0)] if model.dummy_prefix else []
    tokenizer.decoder = decoders.Sequence(ends)
    for name in sorted(special, key=lambda name: special[name]):
        tokenizer.add_special_tokens([AddedToken(name, normalized=False, special=True)])
        if tokenizer.token_to_id(name) != special[name]:
            raise CheckpointError(
                f"The special token {name} got the id {tokenizer.token_to_id(name)}, {special[name]} was expected: report this."
            )
    return tokenizer


def _merges(pieces: Sequence[Piece], ids: Mapping[str, int]) -> list[tuple[str, str]]:
    """Pairs in the order in which SentencePiece merges them: by the score of what they become."""
    normal = {piece.text: piece.score for piece in pieces if piece.kind == NORMAL}
    found = []
    for text, score in normal.items():
        for cut in range(1, len(text)):
            left, right = text[:cut], text[cut:]
            if left in normal and right in normal:
                found.append((-score, ids[left], ids[right], left, right))
    found.sort()
    return [(left, right) for _, _, _, left, right in found]


def _compare(tokenizer: Any, model: SentencePieceModel, special: Mapping[str, int], path: Path) -> None:
    from sentencepiece import SentencePieceProcessor  # noqa: PLC0415

    processor = SentencePieceProcessor(model_file=str(path))
    for text in (*_TEXTS, *_random_texts(model, special)):
        wanted = reference_ids(processor, special, text)
        found = tokenizer.encode(text, add_special_tokens=False).ids
        if not equal(model, found, wanted):
            raise CheckpointError(
                f"tokenizer.json would cut {text[:60]!r} into the ids {found[:12]}, SentencePiece cuts it into {wanted[:12]}: "
                "expected the same; this tokenizer.model cannot be converted, report it."
            )


def _random_texts(model: SentencePieceModel, special: Mapping[str, int]) -> list[str]:
    """Pieces and characters in random order, the same ones each time."""
    chance = random.Random(20)  # noqa: S311 - no secret
    pieces = [piece.text.replace(_SPACE, " ") for piece in model.pieces if piece.kind in (NORMAL, USER_DEFINED)]
    names = sorted(special)
    texts = []
    for _ in range(_RANDOM_TEXTS):
        parts = []
        for _ in range(chance.randint(1, 12)):
            kind = chance.random()
            if kind < 0.75:
                parts.append(chance.choice(pieces))
            elif kind < 0.8:
                parts.append(chance.choice(names))
            elif kind < 0.9:
                parts.append(chance.choice(" \n\t.,<>/aZ0"))
            else:
                parts.append(
                    chr(
                        chance.choice(
                            (
                                chance.randint(32, 0x24F),
                                chance.randint(0x4E00, 0x9FFF),
                                chance.randint(0x1F300, 0x1F6FF),
                            )
                        )
                    )
                )
        texts.append("".join(parts))
    return texts
