"""Are all values of a tensor finite? Told from its raw bytes: no conversion, no copy of the tensor. Needs numpy."""

from __future__ import annotations

from typing import Any

from .checkpoint_errors import CheckpointError
from .safetensors_file import DTYPE_BYTES

# Bits that are looked at, and the smallest value of these bits that is no finite number: all ones in the exponent, but for the
# 8-bit types of the OCP specification that keep one pattern for NaN. Types that are not here hold whole numbers.
_PATTERNS = {
    "F64": (0x7FFF_FFFF_FFFF_FFFF, 0x7FF0_0000_0000_0000),
    "F32": (0x7FFF_FFFF, 0x7F80_0000),
    "F16": (0x7FFF, 0x7C00),
    "BF16": (0x7FFF, 0x7F80),
    "F8_E5M2": (0x7F, 0x7C),
    "F8_E4M3": (0x7F, 0x7F),
    "F8_E8M0": (0xFF, 0xFF),
}
# Stays in the processor's second-level cache.
_BLOCK_BYTES = 256 << 10


def all_finite(data: Any, dtype: str) -> bool:
    """Whether these bytes, whole elements of a safetensors dtype, hold no NaN and no infinity."""
    if dtype not in _PATTERNS or not len(data):
        return True
    import numpy as np  # noqa: PLC0415

    mask, least = _PATTERNS[dtype]
    size = DTYPE_BYTES[dtype]
    values: Any = np.frombuffer(data, dtype=f"<u{size}")
    block = _BLOCK_BYTES // size
    looked_at: Any = np.empty(min(block, values.size), dtype=values.dtype)
    bits = values.dtype.type(mask)
    for first in range(0, values.size, block):
        part = values[first : first + block]
        seen = looked_at[: part.size]
        np.bitwise_and(part, bits, out=seen)
        if int(seen.max()) >= least:
            return False
    return True


def require_finite(data: Any, dtype: str, name: str) -> None:
    """Raise CheckpointError, naming the tensor, where `all_finite` says no."""
    if not all_finite(data, dtype):
        raise CheckpointError(
            f"The tensor {name} holds values that are not finite: the source is damaged; copy it again from where it came."
        )


class FiniteCheck:
    """The same for a tensor that comes in pieces, which may be cut within an element."""

    def __init__(self, name: str, dtype: str, lead: bytes = b"") -> None:
        """Begin a tensor; `lead` are the first bytes of an element whose rest comes next."""
        self._name, self._dtype, self._carry = name, dtype, lead

    def feed(self, piece: memoryview) -> None:
        """Look at the next bytes; raises CheckpointError as `require_finite` does."""
        size = DTYPE_BYTES[self._dtype]
        first = -len(self._carry) % size if self._carry else 0
        if self._carry:
            self._carry += bytes(piece[:first])
            if len(self._carry) < size:
                return
            require_finite(self._carry, self._dtype, self._name)
        last = len(piece) - (len(piece) - first) % size
        require_finite(piece[first:last], self._dtype, self._name)
        self._carry = bytes(piece[last:])
