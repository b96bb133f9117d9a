"""Write a checkpoint's tensors into safetensors shards: planned beforehand, streamed in pieces, resumed shard by shard. Needs numpy."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

from .checkpoint_errors import CheckpointError
from .safetensors_file import TensorSpec, header_bytes

# An array of float32; numpy is at hand where this runs, and nowhere else.
Array = Any

JOURNAL = "journal.json"
DEFAULT_SHARD_BYTES = 2 << 30
_SAFETENSORS_DTYPE = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


@dataclass(frozen=True)
class Shard:
    """One file of the checkpoint and what it holds, in order."""

    name: str
    tensors: tuple[TensorSpec, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole file."""
        return len(header_bytes(self.tensors)) + sum(tensor.size_bytes for tensor in self.tensors)


def plan(
    tensors: Sequence[tuple[str, tuple[int, ...]]], dtype: str, shard_bytes: int = DEFAULT_SHARD_BYTES
) -> list[Shard]:
    """Divide tensors (name and shape) among shards of at most `shard_bytes`, but for a tensor that is larger by itself."""
    groups: list[list[TensorSpec]] = [[]]
    filled = 0
    for name, shape in tensors:
        spec = TensorSpec(name, _SAFETENSORS_DTYPE[dtype], shape)
        if groups[-1] and filled + spec.size_bytes > shard_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(spec)
        filled += spec.size_bytes
    return [
        Shard(f"model-{number:05d}-of-{len(groups):05d}.safetensors", tuple(group))
        for number, group in enumerate(groups, start=1)
    ]


def index_of(shards: Sequence[Shard]) -> dict[str, Any]:
    """model.safetensors.index.json."""
    total = sum(tensor.size_bytes for shard in shards for tensor in shard.tensors)
    return {
        "metadata": {"total_size": total},
        "weight_map": {tensor.name: shard.name for shard in shards for tensor in shard.tensors},
    }


def write_shards(
    directory: Path, shards: Sequence[Shard], source_key: str, pieces: Callable[[str], Iterator[Array]]
) -> dict[str, str]:
    """Write all shards and return the SHA-256 of each. `pieces(name)` yields a tensor's values in order, in float32.

    A shard that an earlier, interrupted run of the same `source_key` has finished is kept: the journal names it and its hash.
    """
    journal_path = directory / JOURNAL
    journal = _read_journal(journal_path, source_key)
    done: dict[str, str] = journal["shards"]
    for shard in shards:
        path = directory / shard.name
        if shard.name in done and path.is_file() and path.stat().st_size == shard.size_bytes:
            continue
        done[shard.name] = _write(path, shard, pieces)
        _replace(journal_path, json.dumps(journal).encode())
    journal_path.unlink(missing_ok=True)
    return {shard.name: done[shard.name] for shard in shards}


def encode(values: Array, dtype: str) -> bytes:
    """Values as safetensors stores them; round to nearest even. Raises CheckpointError for what float16 cannot hold."""
    import numpy as np  # noqa: PLC0415

    if dtype == "F32":
        return bytes(values.astype("<f4", copy=False).tobytes())
    if dtype == "F16":
        with np.errstate(over="ignore"):
            half = values.astype("<f2")
        if not np.isfinite(half).all():
            raise CheckpointError(
                "a weight is beyond 65504, the largest that float16 holds: set model_dtype to bfloat16 or float32"
            )
        return bytes(half.tobytes())
    bits = np.ascontiguousarray(values, dtype="<f4").view("<u4")
    # All values are finite here, so the carry cannot turn a NaN into an infinity.
    return bytes(((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype("<u2").tobytes())


def _write(path: Path, shard: Shard, pieces: Callable[[str], Iterator[Array]]) -> str:
    import numpy as np  # noqa: PLC0415

    digest = hashlib.sha256()
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        # The space is claimed first, so that a full disk is said now and not after an hour.
        os.posix_fallocate(file.fileno(), 0, shard.size_bytes)
        head = header_bytes(shard.tensors)
        file.write(head)
        digest.update(head)
        for tensor in shard.tensors:
            written = 0
            for values in pieces(tensor.name):
                if not np.isfinite(values).all():
                    raise CheckpointError(
                        f"The tensor {tensor.name} holds values that are not finite: the source is damaged; "
                        "copy it again from where it came."
                    )
                data = encode(values, tensor.dtype)
                file.write(data)
                digest.update(data)
                written += len(data)
            if written != tensor.size_bytes:
                raise CheckpointError(
                    f"The tensor {tensor.name} gave {written} bytes, {tensor.size_bytes} were expected: the source is damaged."
                )
            file.flush()
            os.fdatasync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    partial.replace(path)
    return digest.hexdigest()


def _read_journal(path: Path, source_key: str) -> dict[str, Any]:
    try:
        journal = json.loads(path.read_text(encoding="utf-8"))
        if journal["source_key"] == source_key and isinstance(journal["shards"], dict):
            return {"source_key": source_key, "shards": dict(journal["shards"])}
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return {"source_key": source_key, "shards": {}}


def _replace(path: Path, data: bytes) -> None:
    temporary = path.with_name(path.name + ".new")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
