"""Clients that stop: half a body that never ends, an answer that nobody reads. Neither may hold a place for ever."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Protocol

_LOOKS = 4
"""Looks within the shorter limit: a stall ends at most a quarter of it late."""


class Stallable(Protocol):
    """A request that can stall."""

    receiving_since: float
    sending_since: float

    def stall(self, receiving: bool) -> None:
        """End it."""


class Stalls:
    """Ends requests that stalled. One timer for all of them: a piece of an answer costs a look at the clock, not a timer of its own."""

    def __init__(self, receive_seconds: float, send_seconds: float) -> None:
        """Take the limits in seconds, 0 for none."""
        self._receive = receive_seconds
        self._send = send_seconds
        limits = [limit for limit in (receive_seconds, send_seconds) if limit > 0]
        self._interval = min(limits) / _LOOKS if limits else 0.0
        self._watched: set[Stallable] = set()
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, request: Stallable) -> None:
        """Look after a request until `forget`."""
        self._watched.add(request)
        if self._timer is None and self._interval:
            self._timer = asyncio.get_running_loop().call_later(self._interval, self._look)

    def forget(self, request: Stallable) -> None:
        """Look after it no longer."""
        self._watched.discard(request)

    def _look(self) -> None:
        self._timer = None
        now = monotonic()
        for request in tuple(self._watched):
            if self._receive and request.receiving_since and now - request.receiving_since > self._receive:
                request.stall(receiving=True)
            elif self._send and request.sending_since and now - request.sending_since > self._send:
                request.stall(receiving=False)
        if self._watched:
            self._timer = asyncio.get_running_loop().call_later(self._interval, self._look)
