"""Files of torch.save as a source: pytorch_model-*.bin, *.pt. The pickle is read, never run; the tensors are read from the zip with pread.

Format: a zip archive whose records are stored as they are: NAME/data.pkl, NAME/data/KEY for each storage, NAME/byteorder.
torch/serialization.py, caffe2/serialize/inline_container.cc. Needs numpy for tensors that do not lie in C order, torch for none.
"""

from __future__ import annotations

import math
import os
import struct
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from . import torch_pickle
from .checkpoint_errors import CheckpointError
from .safetensors_file import DTYPE_BYTES, TensorSpec
from .safetensors_source import opened
from .tensor_source import Data, Place, read_exactly, rows_of
from .torch_pickle import StoredTensor

_LARGEST_PICKLE = 256 << 20
_LOCAL_HEADER = struct.Struct("<4s22xHH")
_GATHER_BYTES = 16 << 20
# Below, a tensor may be a view of any kind.
_SMALL_BYTES = 64 << 20
_MOST_ENTRIES = 1_000_000
_ELSEWHERE = "copy it again from where it came"


class TorchFile:
    """One file of torch.save: `content` is what was saved (nested dicts, lists, StoredTensor, Inert), `place` says where a tensor lies."""

    def __init__(self, path: Path) -> None:
        """Read directory and pickle of the archive; raises CheckpointError for what torch.save does not write, or that would run code."""
        self.name = path.name
        self._open = ExitStack()
        self._cached: tuple[StoredTensor, Any] | None = None
        try:
            self.descriptor = opened(path, self._open)
            self._records = self._read_directory()
            pickles = [name for name in self._records if name == "data.pkl" or name.endswith("/data.pkl")]
            if len(pickles) != 1:
                raise CheckpointError(
                    f"{self.name} holds {len(pickles)} records data.pkl, one was expected: it is no file of torch.save; "
                    "name another model_source."
                )
            self._folder = pickles[0][: -len("data.pkl")]
            offset, size = self._records[pickles[0]]
            if size > _LARGEST_PICKLE:
                raise CheckpointError(
                    f"{self.name} holds a pickle of {size} bytes, at most {_LARGEST_PICKLE} were expected: "
                    "tensors lie beside it, not in it; do not use this file."
                )
            self._check_byte_order()
            self.content = torch_pickle.load(read_exactly(self.descriptor, size, offset, "data.pkl"), self.name)
        except BaseException:
            self._open.close()
            raise

    def place(self, tensor: StoredTensor, name: str) -> Place | None:
        """Where the tensor lies, None where its elements are not in C order. Raises CheckpointError where it leaves its storage."""
        begin, _ = self._storage(tensor, name)
        if not _in_order(tensor):
            return None
        return Place(self.descriptor, begin + tensor.offset * DTYPE_BYTES[tensor.dtype])

    def read(self, tensor: StoredTensor, name: str, first_row: int, rows: int) -> Data:
        """Rows of a tensor in C order. One whose elements are not is put in order once, as a whole."""
        row_bytes = rows_of(TensorSpec(name, tensor.dtype, tensor.shape))[1]
        place = self.place(tensor, name)
        if place is not None:
            return read_exactly(self.descriptor, rows * row_bytes, place.offset + first_row * row_bytes, name)
        # By a name of its own: several threads may read, and must not see each other's tensor.
        cached = self._cached
        if cached is None or cached[0] != tensor:
            self._cached = None
            cached = (tensor, self._in_c_order(tensor, name))
            self._cached = cached
        return memoryview(cached[1])[first_row * row_bytes : (first_row + rows) * row_bytes]

    def close(self) -> None:
        """Close the file."""
        self._cached = None
        self._open.close()

    def _in_c_order(self, tensor: StoredTensor, name: str) -> Any:
        """All bytes of a tensor in C order. It is read along its longest stride, so that each byte of the file is read once."""
        import numpy as np  # noqa: PLC0415

        begin, _ = self._storage(tensor, name)
        size = DTYPE_BYTES[tensor.dtype]
        values: Any = np.empty(tensor.shape, dtype=f"<u{size}")
        # The stride of an axis with one element says nothing.
        steps = [stride if count > 1 else 0 for count, stride in zip(tensor.shape, tensor.stride)]
        order = sorted(range(len(steps)), key=lambda axis: steps[axis], reverse=True)
        shape, strides = [tensor.shape[axis] for axis in order], [steps[axis] for axis in order]
        turned = values.transpose(order)
        inner = 1 + sum((count - 1) * stride for count, stride in zip(shape[1:], strides[1:]))
        if inner * size > max(values.nbytes, _SMALL_BYTES):
            raise self._odd_view(name)
        at_once = max(1, (_GATHER_BYTES // size - inner) // max(1, strides[0]))
        for first in range(0, shape[0], at_once):
            count = min(at_once, shape[0] - first)
            span = (count - 1) * strides[0] + inner
            offset = begin + (tensor.offset + first * strides[0]) * size
            raw = np.frombuffer(read_exactly(self.descriptor, span * size, offset, name), dtype=f"<u{size}")
            turned[first : first + count] = np.lib.stride_tricks.as_strided(
                raw, (count, *shape[1:]), [stride * size for stride in strides], writeable=False
            )
        return values.reshape(-1).view(np.uint8)

    def _storage(self, tensor: StoredTensor, name: str) -> tuple[int, int]:
        storage = tensor.storage
        record = self._records.get(f"{self._folder}data/{storage.key}")
        if record is None:
            raise CheckpointError(
                f"{self.name}: the tensor {name} lies in the record {storage.key[:80]!r}, which is not there; {_ELSEWHERE}."
            )
        size = DTYPE_BYTES[tensor.dtype]
        stated = storage.elements * (DTYPE_BYTES[storage.dtype] if storage.dtype else 1)
        if stated != record[1]:
            raise CheckpointError(
                f"{self.name}: the storage of the tensor {name} should have {stated} bytes, its record has {record[1]}: "
                f"the file is damaged; {_ELSEWHERE}."
            )
        last = tensor.offset + 1 + sum((count - 1) * stride for count, stride in zip(tensor.shape, tensor.stride))
        if 0 not in tensor.shape and last * size > record[1]:
            raise CheckpointError(
                f"{self.name}: the tensor {name} with the shape {list(tensor.shape)} ends at byte {last * size} of its storage, "
                f"which has {record[1]}: the file is damaged; do not use it."
            )
        if math.prod(tensor.shape) * size > max(record[1], _SMALL_BYTES):
            raise self._odd_view(name)
        return record

    def _odd_view(self, name: str) -> CheckpointError:
        return CheckpointError(
            f"{self.name}: the tensor {name} is a view that repeats or scatters what is stored, which weights of a model are not: "
            "do not use this file."
        )

    def _read_directory(self) -> dict[str, tuple[int, int]]:
        """Offset and size of each record."""
        size = os.fstat(self.descriptor).st_size
        if os.pread(self.descriptor, 2, 0) == b"\x80\x02":
            raise CheckpointError(
                f"{self.name} is in the format of torch.save before PyTorch 1.6, which cannot be read in pieces: where PyTorch is, "
                "save it again with torch.save(torch.load(FILE, weights_only=True), NEW_FILE)."
            )
        try:
            with os.fdopen(os.dup(self.descriptor), "rb") as file, zipfile.ZipFile(file) as archive:
                entries = archive.infolist()
        except (zipfile.BadZipFile, ValueError, OSError, struct.error, OverflowError, NotImplementedError) as error:
            raise CheckpointError(
                f"{self.name} is no whole file of torch.save ({error}; {size} bytes): it is truncated or something else; {_ELSEWHERE}."
            ) from None
        records: dict[str, tuple[int, int]] = {}
        for entry in entries:
            if entry.compress_type != zipfile.ZIP_STORED or entry.compress_size != entry.file_size:
                raise CheckpointError(
                    f"{self.name}: the record {entry.filename[:80]} is compressed, torch.save stores records as they are: do not use it."
                )
            if entry.filename in records:
                raise CheckpointError(f"{self.name} holds the record {entry.filename[:80]} twice: do not use it.")
            # A directory that lies may point before the file.
            within = 0 <= entry.header_offset < size
            head = os.pread(self.descriptor, _LOCAL_HEADER.size, entry.header_offset) if within else b""
            signature, name_bytes, extra_bytes = (
                _LOCAL_HEADER.unpack(head) if len(head) == _LOCAL_HEADER.size else (b"", 0, 0)
            )
            begin = entry.header_offset + _LOCAL_HEADER.size + name_bytes + extra_bytes
            if signature != b"PK\x03\x04" or begin + entry.file_size > size:
                raise CheckpointError(
                    f"{self.name}: the record {entry.filename[:80]} does not lie in the file: it is damaged; {_ELSEWHERE}."
                )
            records[entry.filename] = (begin, entry.file_size)
        return records

    def _check_byte_order(self) -> None:
        offset, size = self._records.get(f"{self._folder}byteorder", (0, 0))
        order = os.pread(self.descriptor, min(size, 16), offset) if size else b"little"
        if order.strip() != b"little":
            raise CheckpointError(
                f"{self.name} was saved with the byte order {order.decode(errors='replace')!r}, little was expected: "
                "save it again on a machine of this kind."
            )


class TorchBinSource:
    """The tensors of pytorch_model*.bin: each file holds a dict of tensors by name."""

    def __init__(self, directory: Path, names: Sequence[str]) -> None:
        """Open these files; raises CheckpointError for a damaged or dangerous one, or a tensor that lies in two."""
        self._files: list[TorchFile] = []
        self._tensors: dict[str, tuple[TorchFile, StoredTensor, TensorSpec]] = {}
        try:
            for name in names:
                file = TorchFile(directory / name)
                self._files.append(file)
                for tensor_name, tensor in _in_file_order(file):
                    if tensor_name in self._tensors:
                        raise CheckpointError(
                            f"The tensor {tensor_name} lies in {self._tensors[tensor_name][0].name} and in {name}: expected one; "
                            f"{_ELSEWHERE}."
                        )
                    spec = TensorSpec(tensor_name, tensor.dtype, tensor.shape)
                    self._tensors[tensor_name] = (file, tensor, spec)
        except BaseException:
            self.close()
            raise

    def specs(self) -> Sequence[TensorSpec]:
        """Every tensor in the order in which they lie."""
        return [spec for _, _, spec in self._tensors.values()]

    def files(self) -> dict[str, int]:
        """Open descriptors of the files by name."""
        return {file.name: file.descriptor for file in self._files}

    def file_of(self, name: str) -> str:
        """Name of the file that holds a tensor."""
        return self._tensors[name][0].name

    def place(self, name: str) -> Place | None:
        """Where it lies, None for one that is not in C order."""
        file, tensor, _ = self._tensors[name]
        return file.place(tensor, name)

    def read(self, name: str, first_row: int, rows: int) -> Data:
        """Rows of a tensor in C order."""
        file, tensor, _ = self._tensors[name]
        return file.read(tensor, name, first_row, rows)

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            file.close()


def tensors_in(content: Any) -> Iterator[tuple[str, StoredTensor]]:
    """Every tensor of nested dicts, its keys joined by dots. What is no tensor and no dict is passed by.

    Raises CheckpointError for dicts without end: in a pickle a dict may hold itself.
    """
    waiting: list[tuple[str, Any]] = [("", content)]
    for _ in range(_MOST_ENTRIES):
        if not waiting:
            return
        name, value = waiting.pop()
        if isinstance(value, StoredTensor):
            yield name, value
        elif isinstance(value, Mapping):
            if len(waiting) + len(value) > _MOST_ENTRIES:
                break
            inner = [(f"{name}.{key}" if name else str(key), item) for key, item in value.items()]
            waiting.extend(reversed(inner))
    raise CheckpointError(
        "The checkpoint holds dicts within dicts without end: expected tensors by name; do not use it."
    )


def _in_file_order(file: TorchFile) -> list[tuple[str, StoredTensor]]:
    if not isinstance(file.content, dict) or not all(
        isinstance(key, str) and isinstance(value, StoredTensor) for key, value in file.content.items()
    ):
        raise CheckpointError(
            f"{file.name} holds something beside tensors by name: expected the weights of a model; "
            "a training checkpoint is none, give model_format its true name."
        )
    places = [(file._storage(tensor, name)[0], tensor.offset, name, tensor) for name, tensor in file.content.items()]
    return [(name, tensor) for _, _, name, tensor in sorted(places, key=lambda place: place[:3])]


def _in_order(tensor: StoredTensor) -> bool:
    expected = 1
    for count, stride in zip(reversed(tensor.shape), reversed(tensor.stride)):
        if count != 1 and stride != expected:
            return 0 in tensor.shape
        expected *= count
    return True
