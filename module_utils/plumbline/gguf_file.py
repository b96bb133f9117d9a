"""Read the header of a GGUF file: metadata and where each tensor lies. Standard library only; trusts no length that the file states.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3, little endian).
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from .checkpoint_errors import CheckpointError

# Type of a tensor: name, weights in a block, bytes of a block.
TENSOR_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
}

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_MAX_DIMENSIONS = 4


@dataclass(frozen=True)
class GgufTensor:
    """One tensor. `shape` is in the order of numpy (rows first); `offset` and `size_bytes` say where it lies in the file."""

    name: str
    type: int
    shape: tuple[int, ...]
    offset: int
    size_bytes: int

    @property
    def type_name(self) -> str:
        """Name of the quantisation, for example Q4_1."""
        return TENSOR_TYPES[self.type][0]


@dataclass(frozen=True)
class GgufHeader:
    """Metadata and tensors of a GGUF file of `size_bytes`."""

    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]
    size_bytes: int


def read_header(path: Path) -> GgufHeader:
    """Read the header; raises CheckpointError for what is no GGUF file, is truncated, or holds what nobody here can read."""
    size = path.stat().st_size
    with path.open("rb") as file:
        try:
            return _Reader(file, path.name, size).header()
        except _TooShortError:
            raise CheckpointError(
                f"{path.name} is truncated: its {size} bytes end inside the header; copy it again from where it came."
            ) from None


class _TooShortError(Exception):
    pass


class _Reader:
    def __init__(self, file: BinaryIO, name: str, size: int) -> None:
        self._file, self._name, self._size = file, name, size

    def header(self) -> GgufHeader:
        if self._bytes(4) != b"GGUF":
            raise CheckpointError(
                f"{self._name} is no GGUF file: it does not begin with 'GGUF'; name another file or its model_format."
            )
        version = self._one("<I")
        if version not in (2, 3):
            raise CheckpointError(
                f"{self._name} has GGUF version {version}, 2 or 3 was expected: convert it with llama.cpp's gguf-new-metadata."
            )
        tensor_count, pair_count = self._one("<Q"), self._one("<Q")
        metadata = {}
        for _ in range(self._believable(pair_count, 12)):
            key = self._string()
            metadata[key] = self._value(self._one("<I"))
        infos = [self._tensor_info() for _ in range(self._believable(tensor_count, 24))]
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment <= 0:
            raise CheckpointError(
                f"{self._name} states the alignment {alignment!r}, a positive number was expected: the file is damaged."
            )
        start = -(-self._file.tell() // alignment) * alignment
        tensors: dict[str, GgufTensor] = {}
        for name, kind, shape, offset in infos:
            tensor = self._placed(name, kind, shape, start + offset)
            if name in tensors:
                raise CheckpointError(f"{self._name} holds the tensor {name} twice: the file is damaged.")
            tensors[name] = tensor
        return GgufHeader(metadata, tensors, self._size)

    def _placed(self, name: str, kind: int, shape: tuple[int, ...], offset: int) -> GgufTensor:
        if kind not in TENSOR_TYPES:
            raise CheckpointError(
                f"{self._name}: the tensor {name} has the type {kind}, which is not known: expected one of "
                f"{', '.join(known for known, _, _ in TENSOR_TYPES.values())}; take another quantisation of the model."
            )
        type_name, block, block_bytes = TENSOR_TYPES[kind]
        if not shape or min(shape) < 1 or shape[-1] % block:
            raise CheckpointError(
                f"{self._name}: the tensor {name} of type {type_name} has the shape {list(shape)}: the file is damaged."
            )
        size = math.prod(shape) // block * block_bytes
        if offset + size > self._size:
            raise CheckpointError(
                f"{self._name} is truncated: the tensor {name} ends at byte {offset + size}, the file has {self._size}; "
                "copy it again from where it came."
            )
        return GgufTensor(name, kind, shape, offset, size)

    def _tensor_info(self) -> tuple[str, int, tuple[int, ...], int]:
        name = self._string()
        dimensions = self._one("<I")
        if dimensions > _MAX_DIMENSIONS:
            raise CheckpointError(
                f"{self._name}: the tensor {name} has {dimensions} dimensions, at most 4 were expected: the file is damaged."
            )
        # GGUF writes the fastest dimension first.
        shape = tuple(reversed([int(self._one("<Q")) for _ in range(dimensions)]))
        return name, int(self._one("<I")), shape, int(self._one("<Q"))

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            item, count = self._one("<I"), self._one("<Q")
            if item in _SCALARS:
                code = _SCALARS[item][1]
                self._believable(count, struct.calcsize(code))
                return list(struct.unpack(f"<{count}{code}", self._bytes(count * struct.calcsize("<" + code))))
            return [self._value(item) for _ in range(self._believable(count, 8))]
        if kind not in _SCALARS:
            raise CheckpointError(
                f"{self._name}: a metadata value has the type {kind}, which is not known: the file is damaged."
            )
        return self._one(_SCALARS[kind])

    def _string(self) -> str:
        return self._bytes(self._believable(self._one("<Q"), 1)).decode("utf-8", errors="replace")

    def _believable(self, count: int, smallest: int) -> int:
        # A damaged count must not make this process ask for all memory.
        if count * smallest > self._size - self._file.tell():
            raise _TooShortError
        return count

    def _one(self, form: str) -> Any:
        return struct.unpack(form, self._bytes(struct.calcsize(form)))[0]

    def _bytes(self, count: int) -> bytes:
        data = self._file.read(count)
        if len(data) != count:
            raise _TooShortError
        return data
