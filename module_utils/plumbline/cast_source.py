"""A source in another floating-point type: float32 rounded to bfloat16 or float16, some rows at a time. Needs numpy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .checkpoint_errors import CheckpointError
from .finite import require_finite
from .safetensors_file import TensorSpec
from .tensor_source import Data, TensorSource, Transform

# What vLLM and the configuration call it: what safetensors calls it.
DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


class CastSource(Transform):
    """The float32 tensors of a source in `dtype` (a key of DTYPES); others stay as they are."""

    def __init__(self, inner: TensorSource, dtype: str) -> None:
        """Take over `inner`."""
        super().__init__(inner)
        self._dtype = DTYPES[dtype]
        self._inner_dtypes = {spec.name: spec.dtype for spec in inner.specs()}

    def specs(self) -> Sequence[TensorSpec]:
        """As the inner source, in the other type."""
        return [
            TensorSpec(spec.name, self._dtype, spec.shape) if spec.dtype == "F32" else spec
            for spec in self._inner.specs()
        ]

    def read(self, name: str, first_row: int, rows: int) -> Data:
        """Rows in the other type; raises CheckpointError for values that are not finite or that it cannot hold."""
        data = self._inner.read(name, first_row, rows)
        if self._inner_dtypes[name] != "F32" or self._dtype == "F32":
            return data
        import numpy as np  # noqa: PLC0415

        # Rounding could turn a NaN into a number.
        require_finite(data, "F32", name)
        return encode(np.frombuffer(data, dtype="<f4"), self._dtype, name)


def encode(values: Any, dtype: str, name: str = "") -> bytes:
    """Finite float32 values as safetensors stores them in F32, F16 or BF16; rounded to nearest even."""
    import numpy as np  # noqa: PLC0415

    if dtype == "F32":
        return bytes(values.astype("<f4", copy=False).tobytes())
    if dtype == "F16":
        with np.errstate(over="ignore"):
            half = values.astype("<f2")
        if not np.isfinite(half).all():
            raise CheckpointError(
                f"A weight{' of ' + name if name else ''} is beyond 65504, the largest that float16 holds: "
                "set model_dtype to bfloat16 or float32."
            )
        return bytes(half.tobytes())
    bits = np.ascontiguousarray(values, dtype="<f4").view("<u4")
    # All values are finite here, so the carry cannot turn a NaN into an infinity.
    return bytes(((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype("<u2").tobytes())
