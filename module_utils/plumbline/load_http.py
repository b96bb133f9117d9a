"""HTTP/1.1 for a load client: connections that are open before they are needed, requests whose bytes are made before they are due.

aiohttp parses the answers (its C parser, llhttp); what arrives is read where it arrives, without a task or a future for each piece,
since at thousands of tokens a second the client's own work would be in the figures.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Callable

from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import HttpProcessingError, HttpResponseParser

from .load_events import StreamError, TokenStream, message_of
from .load_target import Target

_MOST_ERROR_BYTES = 1 << 16
_RESEND_WITHIN_SECONDS = 0.1
"""A server may close an idle connection just as a request goes out on it. What is lost later than this was lost by the server."""


@dataclass
class Flight:
    """One request. Times are in seconds of the monotonic clock; `due` is when it should have gone out, `sent` when it did."""

    due: float
    wire: bytes = field(repr=False)
    finished: Callable[[Flight], None] = field(repr=False)
    sent: float = 0.0
    ended: float = 0.0
    status: int = 0
    stream: TokenStream = field(default_factory=TokenStream, repr=False)
    body: bytes = field(default=b"", repr=False)
    error: str = ""
    detail: str = ""
    connection: Connection | None = field(default=None, repr=False)
    heard: bool = False
    tries: int = 0
    number: int = 0
    launched: float = 0.0

    def end(self, now: float, error: str = "", detail: str = "") -> None:
        """Note how it ended, once."""
        if self.ended:
            return
        self.ended, self.error, self.detail = now, error, detail
        self.connection = None
        self.finished(self)


class Connection(BaseProtocol):
    """One connection to the endpoint; carries one request at a time."""

    __slots__ = ("_pool", "flight", "idled", "keeps", "parser", "payload")

    def __init__(self, pool: Pool) -> None:
        """Belong to a pool."""
        super().__init__(pool.loop)
        self._pool = pool
        self.flight: Flight | None = None
        self.parser: Any = None
        self.payload: Any = None
        self.keeps = True
        self.idled = False

    def send(self, flight: Flight) -> None:
        """Send a request."""
        self.flight = flight
        flight.connection = self
        self.payload = None
        self.parser = HttpResponseParser(self, self._loop, 1 << 18, read_until_eof=True, auto_decompress=False)
        self.transport.write(flight.wire)  # type: ignore[union-attr]
        # Asked afterwards: what the system call took is the client's own lateness as well.
        flight.sent = time.monotonic()

    def data_received(self, data: bytes) -> None:
        """Read what has arrived."""
        now = time.monotonic()
        flight = self.flight
        if flight is None:
            self.close()  # nothing was asked
            return
        flight.heard = True
        try:
            messages, _, _ = self.parser.feed_data(data)
            if messages:
                message, self.payload = messages[0]
                flight.status = message.code
                self.keeps = not message.should_close
            payload = self.payload
            if payload is None:
                return
            body = payload.read_nowait()
            if body:
                if flight.status == 200:
                    flight.stream.feed(body, now)
                elif len(flight.body) < _MOST_ERROR_BYTES:
                    flight.body += body
            if payload.is_eof():
                self._whole(flight, now)
        except StreamError as error:
            self._fail(flight, now, error.kind, str(error))
        except HttpProcessingError as error:
            self._fail(flight, now, "malformed", f"no HTTP answer: {error.message}")

    def _whole(self, flight: Flight, now: float) -> None:
        self.flight = None
        if self.keeps:
            self._pool.free(self)
        else:
            self.close()
        if flight.status != 200:
            flight.end(now, f"http_{flight.status}", message_of(flight.body))
            return
        try:
            flight.stream.finish()
        except StreamError as error:
            flight.end(now, error.kind, str(error))
        else:
            flight.end(now)

    def _fail(self, flight: Flight, now: float, kind: str, detail: str) -> None:
        self.flight = None
        self.close()
        flight.end(now, kind, detail)

    def pause_reading(self) -> None:
        """Never pause: all that arrives is taken at once, however aiohttp counts it."""

    def resume_reading(self, *_: object, **__: object) -> None:
        """Nothing was paused."""

    def connection_lost(self, exc: BaseException | None) -> None:
        """Tell the request that its connection is gone."""
        super().connection_lost(exc)
        self._pool.lost(self)
        flight, self.flight = self.flight, None
        if flight is None or flight.ended:
            return
        now = time.monotonic()
        if self.idled and not flight.heard and flight.tries < 2 and now - flight.sent < _RESEND_WITHIN_SECONDS:
            self._pool.send(flight)
            return
        if self.parser is not None and self.payload is not None:
            try:
                self.parser.feed_eof()
            except Exception as error:  # aiohttp names many kinds for one thing: cut off
                flight.end(now, "incomplete", f"the connection ended in the middle of the answer ({error})")
                return
            if flight.status == 200 and self.payload.is_eof():
                self._whole_at_end(flight, now)
                return
        if flight.heard:
            flight.end(now, "incomplete", "the connection ended in the middle of the answer")
        else:
            flight.end(now, "connection", str(exc) if exc else "the server closed the connection without an answer")

    def _whole_at_end(self, flight: Flight, now: float) -> None:
        try:
            flight.stream.finish()
        except StreamError as error:
            flight.end(now, error.kind, str(error))
        else:
            flight.end(now)

    def close(self) -> None:
        """Close the connection at once."""
        self._pool.lost(self)
        if self.transport is not None:
            self.transport.abort()  # type: ignore[attr-defined]


class Pool:
    """The connections to one endpoint."""

    def __init__(self, target: Target, loop: asyncio.AbstractEventLoop) -> None:
        """Take where to connect.

        :raises ValueError: when the target is no endpoint.
        """
        self.loop = loop
        self._host, self._port, self._tls, _ = target.place()
        self._idle: deque[Connection] = deque()
        self._open: set[Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._opening = 0
        self.opened = 0

    def send(self, flight: Flight) -> None:
        """Send a request on an idle connection, or on a new one when there is none."""
        flight.tries += 1
        while self._idle:
            connection = self._idle.pop()
            if connection.transport is not None and not connection.transport.is_closing():
                connection.send(flight)
                return
        self._do(self._send_on_new(flight))

    def warm(self, count: int) -> None:
        """See to it that so many connections are idle, or about to be."""
        for _ in range(count - len(self._idle) - self._opening):
            self._opening += 1
            self._do(self._open_idle())

    async def ready(self) -> None:
        """Wait until no connection is being opened."""
        while self._opening:
            await asyncio.gather(*self._tasks)

    def free(self, connection: Connection) -> None:
        """Take back a connection that has carried a whole answer."""
        connection.idled = True
        self._idle.append(connection)

    def lost(self, connection: Connection) -> None:
        """Forget a connection."""
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def close(self) -> None:
        """Close every connection."""
        for connection in list(self._open):
            connection.close()

    def _do(self, work: Any) -> None:
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self) -> Connection:
        _, connection = await self.loop.create_connection(
            lambda: Connection(self), self._host, self._port, ssl=self._tls
        )
        sock = connection.transport.get_extra_info("socket")  # type: ignore[union-attr]
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._open.add(connection)
        self.opened += 1
        return connection

    async def _open_idle(self) -> None:
        try:
            self._spare(await self._connect())
        except OSError:
            pass  # the request that needs it will say why
        finally:
            self._opening -= 1

    async def _send_on_new(self, flight: Flight) -> None:
        try:
            connection = await self._connect()
        except OSError as error:
            flight.end(time.monotonic(), "connection", str(error))
            return
        if flight.ended:  # its time was over meanwhile
            self._spare(connection)
            return
        connection.send(flight)

    def _spare(self, connection: Connection) -> None:
        connection.idled = True
        self._idle.appendleft(connection)
