"""A GGUF file as a source: dequantised to float32, with Hugging Face's names and order of rows. Needs numpy and gguf for the values."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from math import prod
from pathlib import Path
from typing import Any

from . import gguf_architecture
from .gguf_file import TENSOR_TYPES, GgufTensor, read_header
from .safetensors_file import TensorSpec
from .safetensors_source import opened
from .tensor_source import Data, read_exactly

# An array of numpy, which is at hand where values are read, and nowhere else.
Array = Any


class GgufSource:
    """The tensors of a GGUF file in float32."""

    def __init__(self, path: Path) -> None:
        """Read the header; raises CheckpointError for a file or an architecture that cannot be converted truly."""
        self.header = read_header(path)
        self._mapped = {mapped.name: mapped for mapped in gguf_architecture.tensors(self.header)}
        self._name = path.name
        self._open = ExitStack()
        self._descriptor = opened(path, self._open)

    def specs(self) -> Sequence[TensorSpec]:
        """Every tensor, in float32."""
        return [TensorSpec(name, "F32", mapped.source.shape) for name, mapped in self._mapped.items()]

    def files(self) -> dict[str, int]:
        """Open descriptor of the file by name."""
        return {self._name: self._descriptor}

    def read(self, name: str, first_row: int, rows: int) -> Data:
        """Rows of a tensor in the order of Hugging Face."""
        import numpy as np  # noqa: PLC0415

        mapped = self._mapped[name]
        shape = mapped.source.shape
        if len(shape) < 2:
            # One row of the file.
            values = self._rows(mapped.source, 0, 1).reshape(-1)[first_row : first_row + rows]
        elif mapped.interleaved_heads:
            # llama.cpp puts the two halves of each head's rotary dimensions side by side; Hugging Face keeps them apart.
            head = shape[0] // mapped.interleaved_heads
            first, last = first_row // head, -(-(first_row + rows) // head)
            whole = self._rows(mapped.source, first * head, (last - first) * head)
            turned = whole.reshape(-1, head // 2, 2, shape[-1]).swapaxes(1, 2).reshape(-1, shape[-1])
            values = turned[first_row - first * head :][:rows]
        else:
            # Rows along axis 0 of a tensor with more axes are many rows of the file.
            inner = prod(shape[1:-1])
            values = self._rows(mapped.source, first_row * inner, rows * inner)
        return memoryview(np.ascontiguousarray(values, dtype="<f4").reshape(-1).view(np.uint8))

    def close(self) -> None:
        """Close the file."""
        self._open.close()

    def _rows(self, tensor: GgufTensor, first: int, count: int) -> Array:
        """Rows along the last axis, as they lie in the file."""
        import numpy as np  # noqa: PLC0415

        _, block, block_bytes = TENSOR_TYPES[tensor.type]
        row_bytes = tensor.shape[-1] // block * block_bytes if tensor.shape else block_bytes
        offset = tensor.offset + first * row_bytes
        raw = read_exactly(self._descriptor, count * row_bytes, offset, tensor.name)
        os.posix_fadvise(self._descriptor, offset, len(raw), os.POSIX_FADV_DONTNEED)
        return _values(np.frombuffer(raw, dtype=np.uint8).reshape(count, row_bytes), tensor)


def _values(data: Array, tensor: GgufTensor) -> Array:
    """Rows of raw bytes as float32."""
    import numpy as np  # noqa: PLC0415

    if tensor.type_name in ("F32", "F16"):
        return data.view("<f4" if tensor.type_name == "F32" else "<f2").astype(np.float32)
    from gguf import GGMLQuantizationType  # noqa: PLC0415
    from gguf.quants import dequantize  # noqa: PLC0415

    return dequantize(data, GGMLQuantizationType(tensor.type))
