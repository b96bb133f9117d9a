"""An OpenAI-compatible streaming endpoint with planned behaviour and planned faults, on a free port of 127.0.0.1."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Behaviour:
    """What the endpoint does. Times in seconds."""

    api_key: str = "the-right-key-of-the-mock"
    check_key: bool = True
    model: str = "mock"
    answer: str = "The capital of France is Paris."
    tokens: int = 5
    first_token_seconds: float = 0.0
    between_tokens_seconds: float = 0.0
    # Answers one request at a time, as a server that is at its limit.
    one_at_a_time: bool = False
    # From this request on (counted from 0), hold every answer back until this long after that request came.
    stall_at: int = -1
    stall_seconds: float = 0.0
    # Answer every n-th request with this status.
    fail_every: int = 0
    fail_status: int = 503
    # End the stream before its end mark.
    cut_off: bool = False
    no_tokens: bool = False
    broken_json: bool = False
    report_usage: bool = True
    # Log-probabilities of the best candidates of every token.
    top_logprobs: tuple[float, ...] = (-0.1, -2.7, -5.0)
    not_before: int = 0  # the first requests get 503, as while a model loads


@dataclass
class Mock:
    """A running endpoint."""

    behaviour: Behaviour
    base_url: str
    bodies: list[dict[str, Any]] = field(default_factory=list)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, behaviour: Behaviour) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.behaviour = behaviour
        self.bodies: list[dict[str, Any]] = []
        self.turn = threading.Lock()
        self.count = threading.Lock()
        self.stalled_until = 0.0

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: clients that hang up are part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def _reply(self, status: int, payload: Any) -> None:
        body = json.dumps(payload).encode() if not isinstance(payload, bytes) else payload
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _let_in(self) -> bool:
        behaviour = self.server.behaviour
        if not behaviour.check_key or self.headers.get("Authorization") == f"Bearer {behaviour.api_key}":
            return True
        self._reply(401, {"error": "Unauthorized"})
        return False

    def do_GET(self) -> None:
        if self.path == "/health":
            self._reply(200, b"")
        elif self._let_in():
            self._reply(200, {"data": [{"id": self.server.behaviour.model}]})

    def do_POST(self) -> None:
        behaviour = self.server.behaviour
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self._let_in():
            return
        with self.server.count:
            number = len(self.server.bodies)
            self.server.bodies.append(body)
            if number == behaviour.stall_at:
                self.server.stalled_until = time.monotonic() + behaviour.stall_seconds
        if number < behaviour.not_before:
            self._reply(503, {"error": {"message": "loading"}})
            return
        if behaviour.fail_every and number % behaviour.fail_every == behaviour.fail_every - 1:
            self._reply(behaviour.fail_status, {"error": {"message": "planned failure"}})
            return
        time.sleep(max(0.0, self.server.stalled_until - time.monotonic()))
        if behaviour.one_at_a_time:
            with self.server.turn:
                self._complete(body)
        else:
            self._complete(body)

    def _complete(self, body: dict[str, Any]) -> None:
        behaviour = self.server.behaviour
        if behaviour.broken_json:
            self._reply(200, b"<html>not the API</html>")
        elif body.get("stream"):
            self._stream(body)
        elif "messages" in body:
            top = [{"token": "x", "logprob": value} for value in behaviour.top_logprobs]
            content = (
                [{"token": "x", "logprob": top[0]["logprob"], "top_logprobs": top}] * behaviour.tokens if top else []
            )
            choice = {"message": {"content": behaviour.answer}, "logprobs": {"content": content}}
            self._reply(200, {"model": behaviour.model, "choices": [choice], "usage": self._usage(body)})
        else:
            top_by_token = {f"t{index}": value for index, value in enumerate(behaviour.top_logprobs)}
            choice = {"text": behaviour.answer, "logprobs": {"top_logprobs": [top_by_token] * behaviour.tokens}}
            self._reply(200, {"model": behaviour.model, "choices": [choice], "usage": self._usage(body)})

    def _usage(self, body: dict[str, Any]) -> dict[str, int]:
        text = body["messages"][0]["content"] if "messages" in body else body["prompt"]
        # Two tokens a word, so that a client must find out.
        return {"prompt_tokens": 2 * len(text.split()), "completion_tokens": self.server.behaviour.tokens}

    def _stream(self, body: dict[str, Any]) -> None:
        behaviour = self.server.behaviour
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        self._event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        time.sleep(behaviour.first_token_seconds)
        for index in range(0 if behaviour.no_tokens else behaviour.tokens):
            if index:
                time.sleep(behaviour.between_tokens_seconds)
            self._event({"choices": [{"delta": {"content": f"word{index} "}}]})
        if behaviour.cut_off:
            return
        if behaviour.report_usage:
            self._event({"choices": [], "usage": self._usage(body)})
        self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, payload: dict[str, Any]) -> None:
        self.wfile.write(f"data: {json.dumps(payload)}\n\n".encode())
        self.wfile.flush()


@contextmanager
def serve(behaviour: Behaviour) -> Iterator[Mock]:
    """Run the endpoint while the block runs."""
    server = _Server(behaviour)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield Mock(behaviour, f"http://127.0.0.1:{server.server_address[1]}/v1", server.bodies)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


FLAT = tuple([-math.log(49152)] * 5)
"""The log-probabilities of a model with 49,152 tokens whose every logit is equal."""
