"""Write a checkpoint's tensors into safetensors shards: planned beforehand, streamed in pieces, resumed in the middle. Needs numpy."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from .checkpoint_errors import CheckpointError
from .checkpoint_pipeline import Pipeline, StreamedFile, hashed
from .finite import FiniteCheck
from .safetensors_file import DTYPE_BYTES, TensorSpec, header_bytes
from .safetensors_source import SafetensorsSource
from .source_hashes import SourceHashes
from .tensor_source import PIECE_BYTES, TensorSource, check_length, place_of, row_ranges, rows_of

JOURNAL = "journal.json"
INDEX = "model.safetensors.index.json"
DEFAULT_SHARD_BYTES = 2 << 30

# Told after each shard: bytes that are written, bytes in all.
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Shard:
    """One file of the checkpoint and what it holds, in order. `head` is the file's beginning where another tool wrote it."""

    name: str
    tensors: tuple[TensorSpec, ...]
    head: Optional[bytes] = None  # noqa: UP045 - evaluated on the node, whose Python may be 3.9

    @property
    def head_bytes(self) -> bytes:
        """What comes before the tensors."""
        return header_bytes(self.tensors) if self.head is None else self.head

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole file."""
        return len(self.head_bytes) + sum(tensor.size_bytes for tensor in self.tensors)


def plan(tensors: Sequence[TensorSpec], shard_bytes: int = DEFAULT_SHARD_BYTES) -> list[Shard]:
    """Divide tensors among shards of at most `shard_bytes`, but for a tensor that is larger by itself."""
    groups: list[list[TensorSpec]] = [[]]
    filled = 0
    for spec in tensors:
        if groups[-1] and filled + spec.size_bytes > shard_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(spec)
        filled += spec.size_bytes
    # The widest types first: readers view a tensor in place, and cannot where it lies across the boundary of its type.
    return [
        Shard(
            f"model-{number:05d}-of-{len(groups):05d}.safetensors",
            tuple(sorted(group, key=lambda spec: -DTYPE_BYTES[spec.dtype])),
        )
        for number, group in enumerate(groups, start=1)
    ]


def as_they_are(source: SafetensorsSource) -> list[Shard]:
    """The shards of the source itself: same names, same heads, same bytes, so that their hashes are those of the source's files."""
    return [
        Shard(name, tuple(spec for spec, _ in layout.tensors), layout.head) for name, layout in source.layouts.items()
    ]


def index_of(shards: Sequence[Shard]) -> dict[str, Any]:
    """model.safetensors.index.json."""
    total = sum(tensor.size_bytes for shard in shards for tensor in shard.tensors)
    return {
        "metadata": {"total_size": total},
        "weight_map": {tensor.name: shard.name for shard in shards for tensor in shard.tensors},
    }


def write_shards(
    directory: Path,
    shards: Sequence[Shard],
    source_key: str,
    source: TensorSource,
    progress: Progress | None = None,
    *,
    keep_journal: bool = False,
    source_hashes: SourceHashes | None = None,
) -> dict[str, str]:
    """Write all shards into an existing directory and return the SHA-256 of each.

    What an earlier, interrupted run of the same `source_key` has written is kept: whole shards by the journal's word, the beginning of one
    after it has been read and hashed again. With `keep_journal` a later run finds everything done until `forget` is called.
    `source_hashes` are told what is read of the source's files. The caller compares free space with the sizes of the shards beforehand.

    :raises CheckpointError: for values that are not finite, a damaged source, or a directory that another process writes into.
    :raises OSError: where the disk is full or fails.
    """
    with _alone(directory):
        journal = _Journal(directory / JOURNAL, source_key)
        pipeline = Pipeline(source_hashes=source_hashes)
        if source_hashes is not None and any(place_of(source, spec.name) is None for spec in source.specs()):
            source_hashes.read_all()
        total, done = sum(shard.size_bytes for shard in shards), 0
        try:
            for shard in shards:
                path = directory / shard.name
                if not journal.has(shard, path):
                    journal.finish(shard, _write(path, shard, source, pipeline, journal))
                done += shard.size_bytes
                if progress is not None:
                    progress(done, total)
        finally:
            pipeline.close()
        if not keep_journal:
            forget(directory)
        return {shard.name: journal.shards[shard.name] for shard in shards}


def forget(directory: Path) -> None:
    """Remove the journal: what lies there is no longer to be gone on with."""
    (directory / JOURNAL).unlink(missing_ok=True)


def _write(path: Path, shard: Shard, source: TensorSource, pipeline: Pipeline, journal: _Journal) -> str:
    partial = path.with_name(path.name + ".partial")
    start, digest = journal.resumed(shard, partial)
    file = StreamedFile(
        pipeline,
        partial,
        size=shard.size_bytes,
        start=start,
        digest=digest,
        reached=lambda offset, sha256: journal.reach(shard, offset, sha256),
    )
    try:
        _stream(shard, source, file, start)
        sha256 = file.finish()
    except BaseException:
        # Before the descriptor is closed, which a thread may be writing to.
        pipeline.close()
        raise
    finally:
        file.close()
    partial.replace(path)
    return sha256


def _stream(shard: Shard, source: TensorSource, file: StreamedFile, start: int) -> None:
    """Put the bytes of a shard from `start` on into the file."""
    head = shard.head_bytes
    if start < len(head):
        file.write(memoryview(head)[start:])
    begin = len(head)
    for spec in shard.tensors:
        skipped = max(0, start - begin)
        if skipped < spec.size_bytes:
            _stream_tensor(spec, source, file, skipped)
        begin += spec.size_bytes


def _stream_tensor(spec: TensorSpec, source: TensorSource, file: StreamedFile, skipped: int) -> None:
    """Put a tensor but for its first `skipped` bytes into the file."""
    place = place_of(source, spec.name)
    row_bytes = rows_of(spec)[1]
    # An element that was cut is looked at as a whole.
    cut = skipped % DTYPE_BYTES[spec.dtype]
    if place is not None:
        lead = os.pread(place.descriptor, cut, place.offset + skipped - cut)
        check = FiniteCheck(spec.name, spec.dtype, lead)
        file.write_from(place.descriptor, place.offset + skipped, spec.size_bytes - skipped, check, spec.name)
        return
    check = FiniteCheck(spec.name, spec.dtype)
    for first, rows in row_ranges(spec, PIECE_BYTES):
        end = (first + rows) * row_bytes
        if end <= skipped:
            continue
        data = memoryview(source.read(spec.name, first, rows)).cast("B")
        check_length(spec.name, len(data), rows * row_bytes)
        known = max(0, skipped - first * row_bytes)
        if cut and known:
            check = FiniteCheck(spec.name, spec.dtype, bytes(data[known - cut : known]))
        file.write(data[known:], check)


class _Journal:
    """What is on the disk for good: whole shards with their SHA-256, and how far the one that is being written has come."""

    def __init__(self, path: Path, source_key: str) -> None:
        self._path, self._key = path, source_key
        self.shards: dict[str, str] = {}
        self._partial: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            found = json.loads(path.read_text(encoding="utf-8"))
            if found["source_key"] == source_key:
                self.shards = {str(name): str(sha256) for name, sha256 in found["shards"].items()}
                self._partial = dict(found.get("partial") or {})

    def has(self, shard: Shard, path: Path) -> bool:
        """Whether an earlier run has finished this shard."""
        return shard.name in self.shards and path.is_file() and path.stat().st_size == shard.size_bytes

    def resumed(self, shard: Shard, partial: Path) -> tuple[int, Any]:
        """From which byte on a shard has to be written, and the hash of what lies before."""
        known = self._partial
        try:
            if known["shard"] == shard.name and 0 < known["offset"] <= shard.size_bytes == partial.stat().st_size:
                digest = hashed(partial, known["offset"])
                if digest is not None and digest.hexdigest() == known["sha256"]:
                    return known["offset"], digest
        except (OSError, KeyError, TypeError):
            pass
        # Another one's space must not be mistaken for ours.
        partial.unlink(missing_ok=True)
        return 0, hashlib.sha256()

    def reach(self, shard: Shard, offset: int, sha256: str) -> None:
        """So many bytes of a shard are on the disk."""
        self._partial = {"shard": shard.name, "offset": offset, "sha256": sha256}
        self._save()

    def finish(self, shard: Shard, sha256: str) -> None:
        """A shard is on the disk."""
        self.shards[shard.name] = sha256
        self._partial = {}
        self._save()

    def _save(self) -> None:
        content = {"source_key": self._key, "shards": self.shards, "partial": self._partial}
        temporary = self._path.with_name(self._path.name + ".new")
        with temporary.open("wb") as file:
            file.write(json.dumps(content).encode())
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._path)


def require_alone(directory: Path) -> None:
    """Raise CheckpointError while another process writes a checkpoint into a directory."""
    with _alone(directory):
        pass


@contextlib.contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """A run that was killed may have left its worker behind for a moment: two must not write the same files."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise CheckpointError(
                f"Another process is writing a checkpoint into {directory}: wait for it to end, then run again."
            ) from None
        yield
    finally:
        os.close(descriptor)
