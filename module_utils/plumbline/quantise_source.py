"""A source of tensors, quantised while it is read: rows in, rows out, so that memory stays bounded. Runs in the engine's Python."""

from __future__ import annotations

import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from .checkpoint_errors import CheckpointError
from .quantise_numbers import ITEM_BYTES, NotFiniteError, Quantised, Quantiser
from .quantise_plan import Plan, becomes
from .safetensors_file import TensorSpec
from .tensor_source import Data, Place, TensorSource, Transform, check_length, place_of

# Of the source, at once.
_READ_BYTES = 32 << 20
# Scales come out of the same pass as the integers and are asked for after them. More than this is computed again.
_KEPT_BYTES = 128 << 20


@dataclass
class _Scales:
    """Scales of the first `rows` rows of a weight, in order."""

    data: bytearray
    rows: int = 0


class QuantisedSource(Transform):
    """The weights of a plan as weight_shape, weight_packed and weight_scale; every other tensor as it is."""

    def __init__(self, inner: TensorSource, plan: Plan, threads: int = 0) -> None:
        """Take over `inner`; `threads` as in Quantiser."""
        super().__init__(inner)
        self._plan = plan
        self._quantiser = Quantiser(plan.scheme, threads)
        self._made = {made.name: spec for spec in plan.quantised for made in becomes(spec, plan.scheme)}
        self._scales: dict[str, _Scales] = {}
        self._kept = 0
        self._lock = threading.Lock()

    def specs(self) -> Sequence[TensorSpec]:
        """What the quantised checkpoint holds."""
        return self._plan.specs(self._inner.specs())

    def place(self, name: str) -> Place | None:
        """Where a tensor that is left as it is lies."""
        return None if name in self._made else place_of(self._inner, name)

    def read(self, name: str, first_row: int, rows: int) -> Data:
        """Rows of a tensor; raises CheckpointError for a weight that is not finite."""
        spec = self._made.get(name)
        if spec is None:
            return self._inner.read(name, first_row, rows)
        if name.endswith("_shape"):
            return struct.pack("<2q", *spec.shape)[first_row * 8 : (first_row + rows) * 8]
        with self._lock:
            if name.endswith("_packed"):
                return self._packed(spec, first_row, rows)
            return self._scale(spec, first_row, rows)

    def close(self) -> None:
        """End the threads and close the inner source."""
        self._quantiser.close()
        super().close()

    def _quantise(self, spec: TensorSpec, first_row: int, rows: int) -> Quantised:
        columns = spec.shape[1]
        data = self._inner.read(spec.name, first_row, rows)
        check_length(spec.name, memoryview(data).nbytes, rows * columns * ITEM_BYTES[spec.dtype])
        try:
            return self._quantiser.rows(data, spec.dtype, rows, columns)
        except NotFiniteError:
            raise CheckpointError(
                f"The tensor {spec.name} holds values that are not finite: the source is damaged; copy it again from where it came."
            ) from None

    def _steps(self, spec: TensorSpec, first_row: int, rows: int) -> Sequence[tuple[int, int]]:
        at_once = max(1, _READ_BYTES // (spec.shape[1] * ITEM_BYTES[spec.dtype]))
        return [(row, min(at_once, first_row + rows - row)) for row in range(first_row, first_row + rows, at_once)]

    def _packed(self, spec: TensorSpec, first_row: int, rows: int) -> bytearray:
        row_bytes = spec.shape[1] * self._plan.scheme.bits // 8
        out = bytearray(rows * row_bytes)
        for row, count in self._steps(spec, first_row, rows):
            made = self._quantise(spec, row, count)
            begin = (row - first_row) * row_bytes
            out[begin : begin + count * row_bytes] = memoryview(made.packed).cast("B")
            self._keep(spec, row, made)
        return out

    def _keep(self, spec: TensorSpec, row: int, made: Quantised) -> None:
        kept = self._scales.setdefault(spec.name, _Scales(bytearray()))
        data = memoryview(made.scale).cast("B")
        if kept.rows == row and self._kept + len(data) <= _KEPT_BYTES:
            kept.data += data
            kept.rows += len(made.scale)
            self._kept += len(data)

    def _scale(self, spec: TensorSpec, first_row: int, rows: int) -> bytes:
        row_bytes = spec.shape[1] // self._plan.scheme.group * ITEM_BYTES[spec.dtype]
        kept = self._scales.get(spec.name)
        if kept is not None and first_row + rows == spec.shape[0]:
            # The last of it is asked for.
            self._kept -= len(kept.data)
            del self._scales[spec.name]
        if kept is not None and kept.rows >= first_row + rows:
            return bytes(memoryview(kept.data)[first_row * row_bytes : (first_row + rows) * row_bytes])
        return b"".join(
            self._quantise(spec, row, count).scale.tobytes() for row, count in self._steps(spec, first_row, rows)
        )
