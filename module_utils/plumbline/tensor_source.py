"""Where tensors come from, whatever the format: named, typed, read by rows. What transforms a source is a source itself.

Runs in the engine's Python; this module needs the standard library only.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, Union

from .checkpoint_errors import CheckpointError
from .safetensors_file import DTYPE_BYTES, TensorSpec

# How much of a tensor is in memory at once, unless one row is larger.
PIECE_BYTES = 16 << 20

# What `read` gives back: the bytes of rows in C order, little endian, in the dtype of the source.
Data = Union[bytes, bytearray, memoryview]


class TensorSource(Protocol):
    """Tensors that can be read a few rows at a time. Every method raises CheckpointError with one sentence for a damaged source."""

    def specs(self) -> Sequence[TensorSpec]:
        """Name, safetensors dtype and shape of every tensor, in the order in which they lie."""

    def read(self, name: str, first_row: int, rows: int) -> Data:
        """Bytes of the rows [first_row, first_row + rows) along axis 0; see `rows_of` for what a row is."""

    def close(self) -> None:
        """Give back what is open. Nothing may be read afterwards."""


@dataclass(frozen=True)
class Place:
    """A tensor that lies in a file as it would be written: C order, little endian, `size_bytes` of its spec from `offset` on."""

    descriptor: int
    offset: int


def place_of(source: TensorSource, name: str) -> Place | None:
    """Where a tensor of the source lies as it is, so that the writer reads it without another copy; None where it has to be put together.

    A source says so by a method `place(name)`; it may have none, or return None.
    """
    place = getattr(source, "place", None)
    found = place(name) if place is not None else None
    return found if isinstance(found, Place) else None


def files_of(source: TensorSource) -> dict[str, int]:
    """Open descriptors by name of the files that make up a source, empty where it cannot say: what its SHA-256 is taken of."""
    files = getattr(source, "files", None)
    return dict(files()) if files is not None else {}


def rows_of(spec: TensorSpec) -> tuple[int, int]:
    """Rows of a tensor along axis 0, and the bytes of one: a scalar is one row, an element of a vector is one."""
    if not spec.shape:
        return 1, DTYPE_BYTES[spec.dtype]
    return spec.shape[0], math.prod(spec.shape[1:]) * DTYPE_BYTES[spec.dtype]


def row_ranges(spec: TensorSpec, piece_bytes: int = PIECE_BYTES) -> Iterator[tuple[int, int]]:
    """First row and number of rows of each piece of a tensor, in order; nothing for a tensor without elements."""
    count, row_bytes = rows_of(spec)
    if not row_bytes:
        return
    at_once = max(1, piece_bytes // row_bytes)
    for first in range(0, count, at_once):
        yield first, min(at_once, count - first)


def pieces(source: TensorSource, spec: TensorSpec, piece_bytes: int = PIECE_BYTES) -> Iterator[Data]:
    """The bytes of a tensor, some rows at a time, each piece checked for its length."""
    _, row_bytes = rows_of(spec)
    for first, rows in row_ranges(spec, piece_bytes):
        data = source.read(spec.name, first, rows)
        check_length(spec.name, memoryview(data).nbytes, rows * row_bytes)
        yield data


def check_length(name: str, found: int, expected: int) -> None:
    """Raise CheckpointError where a piece of a tensor is not as long as its shape says."""
    if found != expected:
        raise CheckpointError(
            f"The tensor {name} gave {found} bytes, {expected} were expected from its shape: the source is damaged or was "
            "cut while it was read; copy it again from where it came."
        )


def read_exactly(descriptor: int, count: int, offset: int, name: str) -> bytes:
    """Bytes of a file at an offset; raises CheckpointError (naming the tensor) where the file ends before."""
    data = os.pread(descriptor, count, offset)
    if len(data) != count:
        # One call gives at most 2 GiB.
        parts = [data]
        found = len(data)
        while data and found < count:
            data = os.pread(descriptor, count - found, offset + found)
            parts.append(data)
            found += len(data)
        check_length(name, found, count)
        data = b"".join(parts)
    return data


def by_name(source: TensorSource) -> dict[str, TensorSpec]:
    """The specs of a source by name; raises CheckpointError where a name comes twice."""
    found: dict[str, TensorSpec] = {}
    for spec in source.specs():
        if spec.name in found:
            raise CheckpointError(
                f"The source holds the tensor {spec.name} twice: expected one; copy it again from where it came."
            )
        found[spec.name] = spec
    return found


class Transform:
    """A source made of another one, tensor for tensor as it is; a subclass changes what it wants to.

    It does not say where a tensor lies (`place`): a subclass that overrides `read` would otherwise be passed by. One that leaves the
    bytes of a tensor alone may forward it.
    """

    def __init__(self, inner: TensorSource) -> None:
        """Take over `inner`: closing this closes it."""
        self._inner = inner

    def specs(self) -> Sequence[TensorSpec]:
        """Specs of the inner source."""
        return self._inner.specs()

    def read(self, name: str, first_row: int, rows: int) -> Data:
        """Rows of the inner source."""
        return self._inner.read(name, first_row, rows)

    def files(self) -> dict[str, int]:
        """Files of the inner source."""
        return files_of(self._inner)

    def close(self) -> None:
        """Close the inner source."""
        self._inner.close()
