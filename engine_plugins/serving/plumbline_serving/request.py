"""One request of the API: its body as vLLM asks for it, its answer as vLLM gives it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from time import monotonic

from plumbline_serving import paths
from plumbline_serving.asgi import Application, Message, Receive, Scope, Send, answer_error
from plumbline_serving.counts import Counts
from plumbline_serving.generate import TextOnly, completion_request
from plumbline_serving.prompts import Hygiene, Refusal, encode, parse
from plumbline_serving.readiness import Readiness
from plumbline_serving.settings import Settings
from plumbline_serving.stalls import Stalls

_CLOSE = (b"connection", b"close")
_GONE: Message = {"type": "http.disconnect"}
_DISCARD_SECONDS = 5.0


@dataclass(frozen=True)
class Service:
    """What the requests of one process share."""

    settings: Settings
    hygiene: Hygiene
    counts: Counts
    readiness: Readiness
    stalls: Stalls


class Request:
    """A request on its way through."""

    def __init__(self, service: Service, scope: Scope, receive: Receive, send: Send, path: str) -> None:
        """Take the request as ASGI has it; *path* is the one below `--root-path`."""
        self.receiving_since = 0.0
        self.sending_since = 0.0
        self._service = service
        self._scope = scope
        self._receive = receive
        self._send = send
        self._out: Send = send
        self._path = path
        self._bytes = 0
        self._complete = False
        self._counted = False
        self._refused = False
        self._began_answer = False
        self._stalled = ""
        self._task = asyncio.current_task()

    async def run(self, app: Application) -> None:
        """Have it answered."""
        # Refused here, it costs least. Whether it may begin to run is told once its body is there, and then by a fresh look.
        refusal = self._not_now(self._service.readiness.draining_lately(monotonic())) or self._not_at_all()
        if refusal is not None:
            await self._refuse(refusal)
            return
        # The headers are a copy, for the body may become shorter; vLLM's objects look at them when they need them.
        scope = {**self._scope, "headers": list(self._scope["headers"])}
        if self._path == paths.GENERATE:
            target = self._scope.get("root_path", "") + paths.COMPLETIONS
            scope |= {"path": target, "raw_path": target.encode()}
            self._out = TextOnly(self._send).send
        self._scope = scope
        self._service.stalls.watch(self)
        try:
            await app(scope, self.receive, self.send)
        except asyncio.CancelledError:
            if not self._stalled:
                raise
            await self._give_up()
        finally:
            self._service.stalls.forget(self)
            if self._counted:
                self._counted = False
                self._service.counts.end()

    async def receive(self) -> Message:
        """Return the next piece of the request, as vLLM asks for it."""
        if self._refused:
            return _GONE
        if self._complete:
            return await self._receive()
        try:
            return await (self._prompt() if self._path in paths.PROMPTS else self._piece())
        except Refusal as refusal:
            await self._refuse(refusal)
            return _GONE

    async def send(self, message: Message) -> None:
        """Pass on a piece of the answer; what vLLM says after a refusal goes nowhere."""
        if self._refused:
            return
        self._began_answer = True
        self.sending_since = monotonic()
        try:
            await self._out(message)
        finally:
            self.sending_since = 0.0

    def stall(self, receiving: bool) -> None:
        """End it: its client has stopped."""
        self._stalled = "receiving" if receiving else "sending"
        if self._task is not None:
            self._task.cancel()

    async def _piece(self) -> Message:
        """Return the next piece of the body. Raises Refusal where it makes the body too long, or completes it at the wrong time."""
        # The limit is for the whole body: a client that sends a byte now and then does not begin anew.
        self.receiving_since = self.receiving_since or monotonic()
        message = await self._receive()
        if message["type"] != "http.request":
            self.receiving_since = 0.0
            return message
        self._bytes += len(message.get("body", b""))
        self._check_size(self._bytes)
        if not message.get("more_body", False):
            self.receiving_since = 0.0
            self._complete = True
            refusal = self._not_now(self._service.readiness.draining())
            if refusal is not None:
                raise refusal
            self._service.counts.begin()
            self._counted = True
        return message

    async def _prompt(self) -> Message:
        """Return the whole body, cleaned."""
        message = await self._piece()
        if message["type"] != "http.request":
            return message
        body = message.get("body", b"")
        if not self._complete:
            pieces = [body]
            while not self._complete:
                message = await self._piece()
                if message["type"] != "http.request":
                    return message
                pieces.append(message.get("body", b""))
            body = b"".join(pieces)
        clean = self._generate(body) if self._path == paths.GENERATE else self._service.hygiene.body(body)
        if clean is not body:
            length = str(len(clean)).encode()
            headers = self._scope["headers"]
            headers[:] = [(name, length if name == b"content-length" else value) for name, value in headers]
        return {"type": "http.request", "body": clean, "more_body": False}

    def _generate(self, body: bytes) -> bytes:
        asked = completion_request(parse(body), self._service.settings.model)
        self._service.hygiene.document(asked)
        return encode(asked)

    def _not_now(self, draining: bool) -> Refusal | None:
        """Return why this is not the time for the request."""
        service = self._service
        if draining:
            return Refusal(503, "This endpoint is about to stop and takes no new requests: try again, or elsewhere.")
        most = service.settings.maximum_concurrent_requests
        if most and self._path not in paths.LIGHT and service.counts.running() >= most:
            return Refusal(503, f"This endpoint has as many requests as it takes ({most}): try again later.")
        return None

    def _not_at_all(self) -> Refusal | None:
        """Return why the request cannot be taken, as far as its head tells."""
        for name, value in self._scope["headers"]:
            if name == b"content-length" and value.isdigit():
                try:
                    self._check_size(int(value))
                except Refusal as refusal:
                    return refusal
            elif name == b"content-encoding" and value != b"identity" and self._path in paths.PROMPTS:
                return Refusal(
                    415, "Expected a body that is not compressed, found a Content-Encoding: send it as it is."
                )
        return None

    def _check_size(self, found: int) -> None:
        most = self._service.settings.maximum_body_bytes
        if most and found > most:
            raise Refusal(413, f"Expected a body of at most {most} bytes, found more: shorten it.")

    async def _refuse(self, refusal: Refusal) -> None:
        if self._refused or self._began_answer:
            return
        self._refused = True
        headers: tuple[tuple[bytes, bytes], ...] = ()
        if refusal.status == 503:
            self._service.counts.refuse()
            headers = ((b"retry-after", str(self._service.settings.retry_after_seconds).encode()),)
            if self._service.readiness.draining():
                headers = (*headers, _CLOSE)
                await self._discard()
        await answer_error(self._send, refusal.status, refusal.message, headers)

    async def _discard(self) -> None:
        """Take what is left of the body: a connection that is closed with bytes unread is reset, and the client may lose the answer."""

        async def rest() -> None:
            while not self._complete:
                message = await self._receive()
                self._complete = message["type"] != "http.request" or not message.get("more_body", False)

        if not self._complete:
            try:
                await asyncio.wait_for(rest(), _DISCARD_SECONDS)
            except asyncio.TimeoutError:
                return

    async def _give_up(self) -> None:
        if self._stalled == "receiving" and not self._began_answer:
            message = "Expected the whole body in time, found it unfinished: send it again."
            self._refused = True
            await answer_error(self._send, 408, message, (_CLOSE,))
            return
        # A connection that nobody reads from is never flushed, so closing it would never end. ASGI has no word for ending it at once;
        # uvicorn's way to it is taken where it is there, else the connection stays until the client's machine gives it up.
        transport = getattr(getattr(self._send, "__self__", None), "transport", None)
        if transport is not None:
            transport.abort()
