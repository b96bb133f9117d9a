#!/usr/bin/env python3
"""A streaming OpenAI-compatible endpoint for measuring load clients: a fixed pace, planned stalls, and little work of its own.

It runs as a process of its own, one event loop and no library, so that what a figure shows is the client. During a stall it does nothing
at all, as a server in a pause does not: it neither reads nor writes nor accepts. `--log` notes when that was.

    python bench/stream_server.py --port 18000 --first 0.05 --between 0.02 --stall-after 5 --stall 0.5
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import heapq
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "collections"))
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.load_timer import Timer

_END = b"0\r\n\r\n"


@dataclass
class Plan:
    """What the endpoint does. Times in seconds; a stall begins so long after the first streamed request."""

    model: str = "mock"
    first: float = 0.05
    between: float = 0.02
    stall_after: float = 0.0
    stall: float = 0.0
    log: str = ""


@dataclass(order=True)
class _Stream:
    """One answer on its way; ordered by when its next piece is due."""

    due: float
    order: int
    connection: _Connection = field(compare=False)
    left: int = field(compare=False)
    piece: bytes = field(compare=False)
    tail: bytes = field(compare=False)


class Server:
    """All answers on their way, and the one alarm that sends their pieces."""

    def __init__(self, plan: Plan, loop: asyncio.AbstractEventLoop) -> None:
        """Begin idle."""
        self.plan, self.loop = plan, loop
        self._streams: list[_Stream] = []
        self._timer = Timer(loop, self._send)
        self._order = count()
        self._stalled = False
        self.requests = 0

    def begin(self, connection: _Connection, body: dict[str, Any]) -> None:
        """Answer a request, piece by piece."""
        self.requests += 1
        if self.plan.stall and not self._stalled:
            self._stalled = True
            self.loop.call_later(self.plan.stall_after, self._stall)
        tokens = int(body.get("max_completion_tokens") or body.get("max_tokens") or 16)
        chat = "messages" in body
        text = " ".join(str(message["content"]) for message in body["messages"]) if chat else str(body["prompt"])
        usage = {"prompt_tokens": len(text.split()), "completion_tokens": tokens}
        usage["total_tokens"] = sum(usage.values())
        model = str(body.get("model", self.plan.model))
        if not body.get("stream"):
            content = " word" * tokens
            choice = {
                "index": 0,
                "finish_reason": "length",
                **({"message": {"role": "assistant", "content": content}} if chat else {"text": content}),
            }
            connection.reply(
                200,
                {
                    "id": "1",
                    "object": "chat.completion",
                    "created": 1,
                    "model": model,
                    "choices": [choice],
                    "usage": usage,
                },
            )
            return
        tail = b""
        if (body.get("stream_options") or {}).get("include_usage"):
            tail = _event(_shell(model, chat, [], usage))
        head = (
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        if chat:
            role = {"role": "assistant", "content": ""}
            head += _event(_shell(model, chat, [{"index": 0, "delta": role, "logprobs": None, "finish_reason": None}]))
        connection.write(head)
        part = {"delta": {"content": " word"}} if chat else {"text": " word"}
        piece = _event(_shell(model, chat, [{"index": 0, **part, "logprobs": None, "finish_reason": None}]))
        due = time.monotonic() + self.plan.first
        stream = _Stream(due, next(self._order), connection, tokens, piece, tail + b"e\r\ndata: [DONE]\n\n\r\n" + _END)
        heapq.heappush(self._streams, stream)
        if self._streams[0] is stream:
            self._timer.at(due)

    def _stall(self) -> None:
        began = time.time()
        time.sleep(self.plan.stall)
        if self.plan.log:
            told = {"began_wall": began, "ended_wall": time.time()}
            Path(self.plan.log).write_text(json.dumps(told), encoding="utf-8")

    def _send(self) -> None:
        streams = self._streams
        while streams and streams[0].due <= time.monotonic():
            stream = streams[0]
            stream.left -= 1
            if stream.connection.gone:
                heapq.heappop(streams)
            elif stream.left:
                stream.connection.write(stream.piece)
                stream.due += self.plan.between
                heapq.heapreplace(streams, stream)
            else:
                heapq.heappop(streams)
                stream.connection.write(stream.piece + stream.tail)
                stream.connection.answered()
        if streams:
            self._timer.at(streams[0].due)


def _shell(model: str, chat: bool, choices: list[Any], usage: Any = None) -> dict[str, Any]:
    kind = "chat.completion.chunk" if chat else "text_completion"
    shell = {
        "id": "chatcmpl-0123456789abcdef0123456789abcdef",
        "object": kind,
        "created": 1764500000,
        "model": model,
        "choices": choices,
    }
    return {**shell, "usage": usage} if usage else shell


def _event(content: dict[str, Any]) -> bytes:
    text = b"data: " + json.dumps(content, separators=(",", ":")).encode() + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(text), text)


class _Connection(asyncio.Protocol):
    def __init__(self, server: Server) -> None:
        self._server = server
        self._buffer = b""
        self._busy = False
        self.gone = False

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def connection_lost(self, exc: BaseException | None) -> None:
        self.gone = True

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._busy:
            self._next()

    def _next(self) -> None:
        head, separator, rest = self._buffer.partition(b"\r\n\r\n")
        if not separator:
            return
        lines = head.decode("latin-1").split("\r\n")
        fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        length = int(fields.get("content-length", "0"))
        if len(rest) < length:
            return
        self._buffer = rest[length:]
        if lines[0].startswith("POST"):
            self._busy = True
            self._server.begin(self, json.loads(rest[:length]))
        elif "/models" in lines[0]:
            self.reply(
                200,
                {
                    "object": "list",
                    "data": [{"id": self._server.plan.model, "object": "model", "created": 1, "owned_by": "mock"}],
                },
            )
        else:
            self.reply(200, {})

    def reply(self, status: int, content: Any) -> None:
        body = json.dumps(content).encode()
        self.write(
            b"HTTP/1.1 %d OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (status, len(body))
            + body
        )
        self.answered()

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    def answered(self) -> None:
        self._busy = False
        if self._buffer:
            self._next()


async def serve(plan: Plan, port: int) -> None:
    """Serve until the process ends; the port is printed once it listens."""
    loop = asyncio.get_running_loop()
    server = Server(plan, loop)
    listening = await loop.create_server(lambda: _Connection(server), "127.0.0.1", port, backlog=4096)
    print(listening.sockets[0].getsockname()[1], flush=True)
    await listening.serve_forever()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the endpoint."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=0, help="0: any free one, which is printed")
    parser.add_argument("--model", default=Plan.model)
    parser.add_argument("--first", type=float, default=Plan.first, help="seconds to the first token")
    parser.add_argument("--between", type=float, default=Plan.between, help="seconds between tokens")
    parser.add_argument("--stall-after", type=float, default=0.0, help="seconds from the first request to the stall")
    parser.add_argument("--stall", type=float, default=0.0, help="seconds of the stall")
    parser.add_argument("--log", default="", help="file that gets the times of the stall")
    given = parser.parse_args(arguments)
    plan = Plan(given.model, given.first, given.between, given.stall_after, given.stall, given.log)
    with contextlib.suppress(OSError, AttributeError):  # forbidden, or not Linux
        # The pace must be the planned one, whatever else the machine does.
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    try:
        asyncio.run(serve(plan, given.port))
    except KeyboardInterrupt:
        return 0
    except OSError as error:
        print(f"port {given.port} of 127.0.0.1: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
