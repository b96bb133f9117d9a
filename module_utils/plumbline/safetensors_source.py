"""Safetensors as a source: a directory of shards, or one file that was cut into numbered pieces. Read with pread, never mapped."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from .checkpoint_errors import CheckpointError
from .safetensors_file import Layout, TensorSpec, read_layout
from .tensor_source import Data, Place, read_exactly, rows_of

# NAME.safetensors00, NAME.safetensors01, ...
PIECE = re.compile(r"^(?P<name>.+\.safetensors)(?P<number>\d+)$")
_ELSEWHERE = "copy it again from where it came"


class SafetensorsSource:
    """The shards of a directory, in the order of their names."""

    def __init__(self, directory: Path, names: Sequence[str]) -> None:
        """Read the headers of these files; raises CheckpointError for a damaged one, or a tensor that lies in two."""
        self.layouts: dict[str, Layout] = {}
        self._places: dict[str, tuple[TensorSpec, int, int]] = {}
        self._shards: dict[str, str] = {}
        self._files: dict[str, int] = {}
        with _closing_on_error() as self._open:
            for name in names:
                descriptor = self._files[name] = opened(directory / name, self._open)
                size = os.fstat(descriptor).st_size
                layout = read_layout(name, size, partial(os.pread, descriptor))
                self.layouts[name] = layout
                for spec, offset in layout.tensors:
                    if spec.name in self._places:
                        raise CheckpointError(
                            f"The tensor {spec.name} lies in {self._shards[spec.name]} and in {name}: expected one; {_ELSEWHERE}."
                        )
                    self._places[spec.name] = (spec, descriptor, offset)
                    self._shards[spec.name] = name

    def specs(self) -> Sequence[TensorSpec]:
        """Every tensor, file by file."""
        return [spec for spec, _, _ in self._places.values()]

    def file_of(self, name: str) -> str:
        """Name of the file that holds a tensor."""
        return self._shards[name]

    def files(self) -> dict[str, int]:
        """Open descriptors of the files by name."""
        return dict(self._files)

    def place(self, name: str) -> Place:
        """Where it lies."""
        _, descriptor, offset = self._places[name]
        return Place(descriptor, offset)

    def read(self, name: str, first_row: int, rows: int) -> Data:
        """Rows of a tensor."""
        spec, descriptor, offset = self._places[name]
        row_bytes = rows_of(spec)[1]
        return read_exactly(descriptor, rows * row_bytes, offset + first_row * row_bytes, name)

    def close(self) -> None:
        """Close the files."""
        self._open.close()


class SplitSource:
    """One safetensors file that was cut into pieces NAME.safetensors00, 01, ...: read as one, nothing is put together on the disk."""

    def __init__(self, directory: Path, names: Sequence[str]) -> None:
        """Open the pieces; raises CheckpointError for a gap, a piece that comes twice, or a whole that is no safetensors file."""
        ordered = ordered_pieces(names)
        self._starts: list[tuple[int, int, int]] = []
        self._files: dict[str, int] = {}
        with _closing_on_error() as self._open:
            end = 0
            for name in ordered:
                descriptor = self._files[name] = opened(directory / name, self._open)
                size = os.fstat(descriptor).st_size
                self._starts.append((end, end + size, descriptor))
                end += size
            whole = f"{ordered[0]} with its {len(ordered) - 1} further pieces"
            self._layout = read_layout(whole, end, self._bytes)
        self._offsets = {spec.name: (spec, offset) for spec, offset in self._layout.tensors}

    def specs(self) -> Sequence[TensorSpec]:
        """Every tensor in the order in which they lie."""
        return [spec for spec, _ in self._layout.tensors]

    def read(self, name: str, first_row: int, rows: int) -> Data:
        """Rows of a tensor, also across a cut."""
        spec, offset = self._offsets[name]
        row_bytes = rows_of(spec)[1]
        return self._bytes(rows * row_bytes, offset + first_row * row_bytes, name)

    def files(self) -> dict[str, int]:
        """Open descriptors of the files by name."""
        return dict(self._files)

    def place(self, name: str) -> Place | None:
        """Where it lies, None for one that is cut."""
        spec, offset = self._offsets[name]
        for begin, end, descriptor in self._starts:
            if begin <= offset and offset + spec.size_bytes <= end:
                return Place(descriptor, offset - begin)
        return None

    def close(self) -> None:
        """Close the pieces."""
        self._open.close()

    def _bytes(self, count: int, offset: int, name: str = "(header)") -> bytes:
        parts = []
        for begin, end, descriptor in self._starts:
            first, last = max(begin, offset), min(end, offset + count)
            if first < last:
                parts.append(read_exactly(descriptor, last - first, first - begin, name))
        return parts[0] if len(parts) == 1 else b"".join(parts)


def ordered_pieces(names: Sequence[str]) -> list[str]:
    """The pieces of one file by their numbers; raises CheckpointError where one is missing, or comes twice, or belongs elsewhere."""
    found: dict[int, str] = {}
    wholes = set()
    for name in names:
        match = PIECE.match(name)
        if match is None:
            raise CheckpointError(
                f"{name} is no piece of a split file: expected names that end in .safetensors00, .safetensors01 and so on."
            )
        wholes.add(match["name"])
        number = int(match["number"])
        if number in found:
            raise CheckpointError(
                f"{found[number]} and {name} are both piece {number}: expected one; remove the one that does not belong."
            )
        found[number] = name
    if len(wholes) > 1:
        raise CheckpointError(
            f"The directory holds pieces of {len(wholes)} files ({', '.join(sorted(wholes))}): expected those of one; "
            "remove those that do not belong."
        )
    first = min(found, default=0)
    if first > 1:
        raise CheckpointError(f"The first piece is {found[first]}: expected one with the number 0 or 1; {_ELSEWHERE}.")
    for number in range(first, first + len(found)):
        if number not in found:
            raise CheckpointError(
                f"Piece {number} of {wholes.pop()} is missing, {found[max(found)]} is there: {_ELSEWHERE}."
            )
    return [found[number] for number in sorted(found)]


def opened(path: Path, stack: ExitStack) -> int:
    """A descriptor of a file for reading, closed with the stack; the kernel is told that it is read in order."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read ({error.strerror}): expected a file of the checkpoint; {_ELSEWHERE}."
        ) from None
    stack.callback(os.close, descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)
    return descriptor


@contextmanager
def _closing_on_error() -> Iterator[ExitStack]:
    stack = ExitStack()
    try:
        yield stack
    except BaseException:
        stack.close()
        raise
