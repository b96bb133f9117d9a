"""Calls back at a time of the monotonic clock, to some ten microseconds: asyncio's own timers are rounded up to milliseconds."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import time
from typing import Callable

_NONBLOCK_CLOEXEC = 0o2004000
_ABSOLUTE = 1
_COARSE_SECONDS = 0.0015


class _TimeSpec(ctypes.Structure):
    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )


class Timer:
    """One alarm at a time, by Linux's timerfd; without it, by asyncio's timer and then turns of the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        """Call `ring` whenever the alarm goes off."""
        self._loop, self._ring = loop, ring
        self._at = 0.0
        self._handle: asyncio.Handle | None = None
        self._set, self._file = None, -1
        with contextlib.suppress(OSError, AttributeError):
            library = ctypes.CDLL(None, use_errno=True)
            self._file = library.timerfd_create(time.CLOCK_MONOTONIC, _NONBLOCK_CLOEXEC)
            self._set = library.timerfd_settime
        if self._file >= 0:
            loop.add_reader(self._file, self._rang)

    def at(self, when: float) -> None:
        """Ring at a time of `time.monotonic`, at once when it is over."""
        self._at = when
        if self._file < 0:
            self._cancel()
            self._wait()
            return
        # A value of zero would turn the alarm off.
        nanoseconds = max(1, int(when * 1e9))
        spec = _TimeSpec(0, 0, nanoseconds // 1_000_000_000, nanoseconds % 1_000_000_000)
        self._set(self._file, _ABSOLUTE, ctypes.byref(spec), None)  # type: ignore[misc]

    def close(self) -> None:
        """Never ring again."""
        self._cancel()
        if self._file >= 0:
            self._loop.remove_reader(self._file)
            os.close(self._file)
            self._file = -1

    def _rang(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._file, 8)
            self._ring()

    def _cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()

    def _wait(self) -> None:
        left = self._at - time.monotonic()
        if left <= 0:
            self._ring()
        elif left > _COARSE_SECONDS:
            self._handle = self._loop.call_later(left - _COARSE_SECONDS, self._wait)
        else:
            self._handle = self._loop.call_soon(self._wait)
