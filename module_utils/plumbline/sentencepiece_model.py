"""The model file of SentencePiece, read without the library: pieces, their kinds, and how text is normalised. Standard library only.

The file is a protocol buffer: https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .checkpoint_errors import CheckpointError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
UNIGRAM, BPE = 1, 2
_MOST_BYTES = 256 << 20


@dataclass(frozen=True)
class Piece:
    """One piece; its number is its place in the list."""

    text: str
    score: float
    kind: int


@dataclass
class SentencePieceModel:
    """What the file says. `character_map` is SentencePiece's own table of replacements, empty where text is taken as it is."""

    pieces: list[Piece] = field(default_factory=list)
    kind: int = UNIGRAM
    character_map: bytes = b""
    dummy_prefix: bool = True
    single_spaces: bool = True
    escapes_spaces: bool = True
    space_as_suffix: bool = False

    def ids(self) -> dict[str, int]:
        """Number of each piece."""
        return {piece.text: number for number, piece in enumerate(self.pieces)}


def read(path: Path) -> SentencePieceModel:
    """Read the file; raises CheckpointError where it is missing or is no such file."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read ({error.strerror}): expected the tokenizer of SentencePiece."
        ) from None
    model = SentencePieceModel()
    try:
        if len(data) > _MOST_BYTES:
            raise ValueError("it is too large")
        seen = set()
        for number, value in _fields(data):
            seen.add(number)
            if number == 1:
                model.pieces.append(_piece(value))
            elif number == 2:
                _trainer(model, value)
            elif number == 3:
                _normalizer(model, value)
        if not {1, 2, 3} <= seen:
            raise ValueError("a part of it is missing")
        texts = {piece.text for piece in model.pieces}
        if not model.pieces or len(texts) != len(model.pieces):
            raise ValueError(f"it has {len(model.pieces)} pieces, {len(texts)} of them different")
    except (ValueError, IndexError, struct.error, TypeError) as error:
        raise CheckpointError(
            f"{path.name} is no whole tokenizer of SentencePiece ({error}): copy it again from where it came."
        ) from None
    return model


def _piece(data: Any) -> Piece:
    text, score, kind = "", 0.0, NORMAL
    for number, value in _fields(_bytes(data)):
        if number == 1:
            text = _bytes(value).decode("utf-8")
        elif number == 2:
            (score,) = struct.unpack("<f", _bytes(value))
        elif number == 3:
            kind = int(value)
    return Piece(text, score, kind)


def _trainer(model: SentencePieceModel, data: Any) -> None:
    for number, value in _fields(_bytes(data)):
        if number == 3:
            model.kind = int(value)
        elif number == 24:
            model.space_as_suffix = bool(value)


def _normalizer(model: SentencePieceModel, data: Any) -> None:
    for number, value in _fields(_bytes(data)):
        if number == 2:
            model.character_map = _bytes(value)
        elif number == 3:
            model.dummy_prefix = bool(value)
        elif number == 4:
            model.single_spaces = bool(value)
        elif number == 5:
            model.escapes_spaces = bool(value)


def _bytes(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a field has another type")
    return value


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Number and value of each field of a message: int for a varint, bytes otherwise."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        value: Any
        if kind == 0:
            value, at = _varint(data, at)
        elif kind in (1, 2, 5):
            size = {1: 8, 5: 4}.get(kind, 0)
            if kind == 2:
                size, at = _varint(data, at)
            if at + size > len(data):
                raise ValueError("it ends early")
            value, at = data[at : at + size], at + size
        else:
            raise ValueError(f"it has a field of the kind {kind}")
        yield key >> 3, value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("it ends early")
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if not byte & 128:
            return value, at
