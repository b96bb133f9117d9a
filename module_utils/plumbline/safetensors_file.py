"""The container that vLLM loads: headers of safetensors files, written and checked. Standard library only.

Format: 8 bytes length of the header (little endian), the header in JSON, the tensors without gaps.
https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
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


def read_tensors(path: Path) -> list[TensorSpec]:
    """The tensors of a file; raises CheckpointError where header, offsets and the size of the file do not fit together."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else _MAX_HEADER_BYTES + 1
        if length > min(_MAX_HEADER_BYTES, size - 8):
            raise CheckpointError(
                f"{path.name} is no safetensors file or is truncated ({size} bytes): copy it again from where it came."
            )
        try:
            header = json.loads(file.read(length))
        except ValueError:
            raise CheckpointError(f"{path.name} has a damaged header: copy it again from where it came.") from None
    if not isinstance(header, dict):
        raise CheckpointError(f"{path.name} has a damaged header: copy it again from where it came.")
    spans = []
    tensors = []
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        try:
            spec = TensorSpec(name, entry["dtype"], tuple(int(number) for number in entry["shape"]))
            begin, end = (int(number) for number in entry["data_offsets"])
            fits = (
                spec.dtype in DTYPE_BYTES
                and all(number >= 0 for number in spec.shape)
                and end - begin == spec.size_bytes
            )
        except (KeyError, TypeError, ValueError):
            fits = False
        if not fits:
            raise CheckpointError(
                f"{path.name}: shape, dtype and length of the tensor {name} do not fit together: the file is damaged."
            )
        spans.append((begin, end))
        tensors.append(spec)
    position = 0
    for begin, end in sorted(spans):
        if begin != position:
            raise CheckpointError(
                f"{path.name}: its tensors overlap or leave a gap at byte {position}: the file is damaged."
            )
        position = end
    if 8 + length + position != size:
        raise CheckpointError(
            f"{path.name} should have {8 + length + position} bytes after its header, it has {size}: "
            "it is truncated or damaged; copy it again from where it came."
        )
    return tensors
