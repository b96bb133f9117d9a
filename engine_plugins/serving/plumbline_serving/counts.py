"""How many requests run, in all API server processes of one start together.

With `--api-server-count` there are several, and a connection reaches any of them. Each process has a slot in a file that all of them map
into memory; it alone writes there.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from array import array
from pathlib import Path

_SLOTS = 64
_FIELDS = 3
_BYTES = _SLOTS * _FIELDS * 8
_PREFIX = "requests."


class Counts:
    """The counts. They live in a file beside the drain file where systemd says which start this is, else in this process alone."""

    def __init__(self, directory: Path | None, invocation: str) -> None:
        """Take a slot. *invocation* names this start (systemd's INVOCATION_ID)."""
        self._cells: memoryview = memoryview(array("q", bytes(_BYTES)))
        self._slot = 0
        if directory is not None and invocation:
            try:
                self._share(directory, invocation)
            except OSError as error:
                # The endpoint serves all the same; a drain then sees the requests of one process.
                print(f"plumbline_serving: {directory} cannot hold the counts of requests ({error})", flush=True)
        self._cells[self._slot] = os.getpid()

    def _share(self, directory: Path, invocation: str) -> None:
        path = directory / (_PREFIX + invocation)
        # Of an earlier start of this unit, whose processes are gone.
        for old in directory.glob(_PREFIX + "*"):
            if old != path:
                old.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            os.ftruncate(descriptor, _BYTES)
            cells = memoryview(mmap.mmap(descriptor, _BYTES)).cast("q")
            for slot in range(0, _SLOTS * _FIELDS, _FIELDS):
                if cells[slot] == 0 or not _alive(cells[slot]):
                    cells[slot] = os.getpid()
                    cells[slot + 1] = cells[slot + 2] = 0
                    self._cells, self._slot = cells, slot
                    return
            raise OSError(f"{path} has no place for another process")
        finally:
            # Said, for the map has a descriptor of its own, and closing this one would leave the lock with it.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    def begin(self) -> None:
        """Count a request that begins."""
        self._cells[self._slot + 1] += 1

    def end(self) -> None:
        """Count it no longer."""
        self._cells[self._slot + 1] -= 1

    def refuse(self) -> None:
        """Count a request that was answered 503."""
        self._cells[self._slot + 2] += 1

    def running(self) -> int:
        """Return how many run."""
        return sum(self._cells[1::_FIELDS])

    def refused(self) -> int:
        """Return how many were answered 503 since the start."""
        return sum(self._cells[2::_FIELDS])

    def forget_the_dead(self) -> None:
        """Leave out the running requests of processes that ended."""
        for slot in range(0, _SLOTS * _FIELDS, _FIELDS):
            if self._cells[slot] and self._cells[slot + 1] and not _alive(self._cells[slot]):
                self._cells[slot + 1] = 0


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
