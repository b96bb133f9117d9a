"""Write one file while it is read, hashed and checked: three threads, a few buffers, nothing left in the page cache. Needs numpy.

hashlib, numpy, pread and pwrite release the interpreter's lock, so that the three really run at once.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import mmap
import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .finite import FiniteCheck
from .source_hashes import SourceHashes
from .tensor_source import check_length

# Multiples of any disk's block, so that they can be written past the page cache.
CHUNK_BYTES = 16 << 20
BUFFERS = 5
# So much work is lost at most by a kill.
CHECKPOINT_BYTES = 512 << 20
_SYNC_BYTES = 64 << 20

# A part of a buffer, from one byte to another, that belongs to a tensor.
_Part = tuple[int, int, FiniteCheck]
# The same for what was read from a file, its descriptor and the offset there.
_Read = tuple[int, int, int, int]


class Pipeline:
    """Buffers and threads, made once for many files."""

    def __init__(self, chunk_bytes: int = CHUNK_BYTES, source_hashes: SourceHashes | None = None) -> None:
        """Take the buffers: BUFFERS times `chunk_bytes` (a multiple of 4096) of memory. `source_hashes` are told what is read."""
        self.chunk_bytes = chunk_bytes
        self.source_hashes = source_hashes
        # Anonymous maps lie on page boundaries, as O_DIRECT wants it.
        self._free: deque[tuple[mmap.mmap, list[Future[Any]]]] = deque(
            (mmap.mmap(-1, chunk_bytes), []) for _ in range(BUFFERS)
        )
        self.hasher = ThreadPoolExecutor(1, thread_name_prefix="hash")
        self.writer = ThreadPoolExecutor(1, thread_name_prefix="write")

    def take(self) -> mmap.mmap:
        """A buffer that nobody needs any more; raises what went wrong with what was in it."""
        buffer, pending = self._free[0]
        for future in pending:
            future.result()
        self._free.popleft()
        return buffer

    def give(self, buffer: mmap.mmap, pending: Sequence[Future[Any]] = ()) -> None:
        """Hand a buffer back, to be taken again when these are done."""
        self._free.append((buffer, list(pending)))

    def drain(self) -> None:
        """Wait until everything is hashed and written; raises what went wrong."""
        for _, pending in self._free:
            for future in pending:
                future.result()

    def close(self) -> None:
        """End the threads. What waits is dropped, what runs is waited for."""
        self.hasher.shutdown(wait=True, cancel_futures=True)
        self.writer.shutdown(wait=True, cancel_futures=True)


class StreamedFile:
    """A file of known size that is written from `start` to its end. `digest` has hashed what lies before `start`."""

    def __init__(
        self,
        pipeline: Pipeline,
        path: Path,
        *,
        size: int,
        start: int,
        digest: Any,
        reached: Callable[[int, str], None],
    ) -> None:
        """Open it and claim its space. `reached(offset, sha256)` is called when so much is on the disk for good.

        :raises OSError: where the disk is full, or does not take it.
        """
        self._pipeline, self._size, self._reached = pipeline, size, reached
        self._digest = digest
        self._descriptor, self._direct = _opened(path)
        self._offset = self._marked = self._synced = start
        self._buffer: mmap.mmap | None = None
        self._used = 0
        self._parts: list[_Part] = []
        self._read: list[_Read] = []
        try:
            _claim(self._descriptor, size)
        except BaseException:
            os.close(self._descriptor)
            raise

    def write(self, data: memoryview, check: FiniteCheck | None = None) -> None:
        """Append bytes that are in memory; they are copied."""
        while data:
            space = self._space()
            part = data[: len(space)]
            space[: len(part)] = part
            self._filled(len(part), check)
            data = data[len(part) :]

    def write_from(self, descriptor: int, offset: int, count: int, check: FiniteCheck, name: str) -> None:
        """Append bytes of a file, which leave the page cache."""
        while count:
            space = self._space()
            wanted = min(count, len(space))
            found = os.preadv(descriptor, [space[:wanted]], offset)
            if not found:
                check_length(name, 0, count)
            os.posix_fadvise(descriptor, offset, found, os.POSIX_FADV_DONTNEED)
            self._read.append((self._used, self._used + found, descriptor, offset))
            self._filled(found, check)
            offset += found
            count -= found

    def finish(self) -> str:
        """Write the rest, wait for the disk, and return the SHA-256 of the whole file."""
        self._send(last=True)
        self._pipeline.drain()
        os.ftruncate(self._descriptor, self._size)
        os.fdatasync(self._descriptor)
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        return str(self._digest.hexdigest())

    def close(self) -> None:
        """Close it, whole or not. The pipeline must have been drained or closed."""
        os.close(self._descriptor)

    def _space(self) -> memoryview:
        if self._buffer is None:
            self._buffer = self._pipeline.take()
        return memoryview(self._buffer)[self._used :]

    def _filled(self, count: int, check: FiniteCheck | None) -> None:
        if check is not None:
            self._parts.append((self._used, self._used + count, check))
        self._used += count
        if self._used == self._pipeline.chunk_bytes:
            self._send()

    def _send(self, last: bool = False) -> None:
        buffer, used, offset = self._buffer, self._used, self._offset
        parts, read = self._parts, self._read
        self._buffer, self._used, self._parts, self._read = None, 0, [], []
        if buffer is None:
            return
        self._offset += used
        pending: list[Future[Any]] = [
            self._pipeline.hasher.submit(self._hash, buffer, used, parts),
            self._pipeline.writer.submit(self._write, buffer, used, offset),
        ]
        if self._pipeline.source_hashes is not None:
            view = memoryview(buffer)
            pending += [
                self._pipeline.source_hashes.saw(descriptor, place, view[begin:end])
                for begin, end, descriptor, place in read
            ]
        if not last and self._offset - self._marked >= CHECKPOINT_BYTES:
            self._marked = self._offset
            digest = self._pipeline.hasher.submit(self._digest.copy)
            pending.append(self._pipeline.writer.submit(self._mark, self._offset, digest))
        self._pipeline.give(buffer, pending)

    def _hash(self, buffer: mmap.mmap, used: int, parts: Sequence[_Part]) -> None:
        view = memoryview(buffer)
        for begin, end, check in parts:
            check.feed(view[begin:end])
        self._digest.update(view[:used])

    def _write(self, buffer: mmap.mmap, used: int, offset: int) -> None:
        # What is written past the page cache is whole blocks; what is too much at the end is cut off.
        view = memoryview(buffer)[: -(-used // 4096) * 4096 if self._direct else used]
        written = 0
        while written < used:
            try:
                written += os.pwrite(self._descriptor, view[written:], offset + written)
            except OSError as error:
                if error.errno != errno.EINVAL or not self._direct:
                    raise
                self._direct = False
                _set_direct(self._descriptor, False)
                view = view[:used]
        if not self._direct and offset + used - self._synced >= _SYNC_BYTES:
            os.fdatasync(self._descriptor)
            os.posix_fadvise(self._descriptor, self._synced, offset + used - self._synced, os.POSIX_FADV_DONTNEED)
            self._synced = offset + used

    def _mark(self, offset: int, digest: Future[Any]) -> None:
        sha256 = digest.result().hexdigest()
        os.fdatasync(self._descriptor)
        self._reached(offset, sha256)


def hashed(path: Path, count: int) -> Any:
    """A SHA-256 object that has seen the first `count` bytes of a file, None where there are not so many."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        view = memoryview(bytearray(CHUNK_BYTES))
        while count:
            found = file.readinto(view[: min(count, len(view))])
            if not found:
                return None
            digest.update(view[:found])
            count -= found
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return digest


def _opened(path: Path) -> tuple[int, bool]:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    try:
        return os.open(path, flags | os.O_DIRECT, 0o644), True
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    return os.open(path, flags, 0o644), False


def _claim(descriptor: int, size: int) -> None:
    """Reserve the space of a file, so that a full disk is said now and not after an hour."""
    if not size:
        return
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        # Some file systems cannot (NFS before 4.2): there it has its size, and a full disk is said when it is full.
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        os.ftruncate(descriptor, size)


def _set_direct(descriptor: int, direct: bool) -> None:
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_DIRECT if direct else flags & ~os.O_DIRECT)
