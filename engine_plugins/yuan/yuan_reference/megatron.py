"""Megatron partitions of Yuan2.0: being written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor


def write_megatron(
    directory: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor], *, tp: int = 1, pp: int = 1
) -> None:
    """Refuse: the layout is the next thing to be written here."""
    raise ValueError("The megatron layout is not written yet.")
