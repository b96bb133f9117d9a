"""SHA-256 of a source's files, taken from the very bytes that a conversion reads, so that they are read once. Standard library only."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

_CHUNK_BYTES = 4 << 20


class SourceHashes:
    """The hashes of files that are read piece by piece, mostly in order: what a conversion passes by is read here."""

    def __init__(self, files: Mapping[str, int]) -> None:
        """Take the open descriptors of the files by name. They must stay open until `finish` or `close`."""
        self._files = dict(files)
        self._state: dict[int, tuple[Any, int]] = {
            descriptor: (hashlib.sha256(), 0) for descriptor in self._files.values()
        }
        # One thread: the pieces of a file must be hashed in order.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="source-hash")
        self._rest: dict[str, Future[str]] = {}

    def saw(self, descriptor: int, offset: int, data: memoryview) -> Future[None]:
        """Bytes of a file were read. They must not change until the future is done."""
        return self._thread.submit(self._advance, descriptor, offset, data)

    def read_all(self) -> None:
        """Begin to read what is left by itself, for a conversion that tells nothing of what it reads."""
        for name, descriptor in self._files.items():
            if name not in self._rest:
                self._rest[name] = self._thread.submit(self._to_end, descriptor)

    def finish(self) -> dict[str, str]:
        """Read what is left, and return the SHA-256 of each file by name. Raises OSError where a file cannot be read."""
        self.read_all()
        return {name: future.result() for name, future in self._rest.items()}

    def close(self) -> None:
        """End the thread; what waits is dropped."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _advance(self, descriptor: int, offset: int, data: memoryview) -> None:
        if descriptor not in self._state:
            return
        digest, position = self._state[descriptor]
        end = offset + len(data)
        if end <= position:
            return
        if offset > position:
            position = self._read(descriptor, digest, position, offset)
        if offset <= position:
            digest.update(data[position - offset :])
            position = end
        self._state[descriptor] = (digest, position)

    def _to_end(self, descriptor: int) -> str:
        digest, position = self._state[descriptor]
        size = os.fstat(descriptor).st_size
        self._read(descriptor, digest, position, size)
        # What is still told of this file is known.
        self._state[descriptor] = (digest, size)
        return str(digest.hexdigest())

    @staticmethod
    def _read(descriptor: int, digest: Any, begin: int, end: int) -> int:
        """Hash a part of a file; return how far it went."""
        while begin < end:
            data = os.pread(descriptor, min(_CHUNK_BYTES, end - begin), begin)
            if not data:
                break
            digest.update(data)
            os.posix_fadvise(descriptor, begin, len(data), os.POSIX_FADV_DONTNEED)
            begin += len(data)
        return begin
