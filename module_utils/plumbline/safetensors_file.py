"""The container that vLLM loads: headers of safetensors files, written and checked. Standard library only.

Format: 8 bytes length of the header (little endian), the header in JSON, the tensors without gaps.
https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from .checkpoint_errors import CheckpointError

DTYPE_BYTES = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U64": 8,
    "U32": 4,
    "U16": 2,
    "U8": 1,
    "BOOL": 1,
}
_MAX_HEADER_BYTES = 100_000_000
_ALIGNMENT = 8


@dataclass(frozen=True)
class TensorSpec:
    """Name, dtype (as safetensors writes it) and shape of one tensor."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of the data."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]


def header_bytes(tensors: Sequence[TensorSpec]) -> bytes:
    """The beginning of a file that holds these tensors in this order, padded so that the data is aligned."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in tensors:
        end = offset + tensor.size_bytes
        entries[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    return struct.pack("<Q", len(text)) + text


@dataclass(frozen=True)
class Layout:
    """What a file holds: its head as it is (length and JSON), and each tensor with the offset of its data, in the order of the offsets."""

    head: bytes
    tensors: tuple[tuple[TensorSpec, int], ...]


def read_tensors(path: Path) -> list[TensorSpec]:
    """The tensors of a file as its header lists them; raises CheckpointError as `parse_layout` does."""
    with path.open("rb") as file:
        layout = read_layout(path.name, path.stat().st_size, partial(os.pread, file.fileno()))
    return [spec for spec, _ in layout.tensors]


def read_layout(name: str, size: int, read: Callable[[int, int], bytes]) -> Layout:
    """The layout of `size` bytes that `read(count, offset)` gives.

    Raises CheckpointError where header, offsets and size do not fit together. Trusts no length that the file states.
    """
    start = read(8, 0)
    length = struct.unpack("<Q", start)[0] if len(start) == 8 else _MAX_HEADER_BYTES + 1
    if length > min(_MAX_HEADER_BYTES, size - 8):
        raise CheckpointError(
            f"{name} is no safetensors file or is truncated ({size} bytes): copy it again from where it came."
        )
    text = read(length, 8)
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise CheckpointError(f"{name} has a damaged header: copy it again from where it came.")
    spans = []
    for tensor, entry in header.items():
        if tensor == "__metadata__":
            continue
        try:
            spec = TensorSpec(tensor, entry["dtype"], tuple(int(number) for number in entry["shape"]))
            begin, end = (int(number) for number in entry["data_offsets"])
            fits = (
                spec.dtype in DTYPE_BYTES
                and all(number >= 0 for number in spec.shape)
                and end - begin == spec.size_bytes
            )
        except (KeyError, TypeError, ValueError, OverflowError):
            fits = False
        if not fits:
            raise CheckpointError(
                f"{name}: shape, dtype and length of the tensor {tensor} do not fit together: the file is damaged."
            )
        spans.append((begin, end, spec))
    position = 0
    # A tensor without elements begins where the next one does.
    spans.sort(key=lambda span: span[:2])
    for begin, end, _ in spans:
        if begin != position:
            raise CheckpointError(
                f"{name}: its tensors overlap or leave a gap at byte {position}: the file is damaged."
            )
        position = end
    if 8 + length + position != size:
        raise CheckpointError(
            f"{name} should have {8 + length + position} bytes after its header, it has {size}: "
            "it is truncated or damaged; copy it again from where it came."
        )
    return Layout(start + text, tuple((spec, 8 + length + begin) for begin, _, spec in spans))
