"""A node's endpoint as a process of its own: streaming, bounded concurrency, a queue, readiness and drain.

What the gateway is tried and measured with.

    python tests/mock_node.py --port 8000 --key KEY --slots 8 --prefill 0.05 --token 0.01

It computes nothing: a request waits for one of the slots (first come, first served, as vLLM's scheduler does), then for the
prefill, then for each token. `POST /control` changes what it does while it runs: {"ready": false}, {"draining": true},
{"token": 0.1}. Run by file, so that it starts fast.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from typing import Any

from aiohttp import web


class Node:
    """The state of one node."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.key: str = options.key
        self.name: str = options.name
        self.prefill: float = options.prefill
        self.token: float = options.token
        self.ready = True
        self.draining = False
        self.slots = asyncio.Semaphore(options.slots)
        self.running = 0
        self.served = 0
        self.cancelled = 0
        self.most = 0

    async def status(self, _request: web.Request) -> web.Response:
        up = self.ready and not self.draining
        body = {"ready": up, "draining": self.draining, "running": self.running, "refused": 0}
        return web.json_response(body, status=200 if up else 503)

    async def control(self, request: web.Request) -> web.Response:
        for name, value in (await request.json()).items():
            setattr(self, name, value)
        known = ("served", "running", "cancelled", "most", "name")
        return web.json_response({name: getattr(self, name) for name in known} | {"pid": os.getpid()})

    def refusal(self, request: web.Request) -> web.Response | None:
        if self.draining or not self.ready:
            headers = {"Retry-After": "1", "Connection": "close"}
            return web.json_response({"error": {"message": "draining"}}, status=503, headers=headers)
        if request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.json_response({"error": {"message": "Unauthorized"}}, status=401)
        return None

    async def models(self, request: web.Request) -> web.Response:
        return self.refusal(request) or web.json_response({"data": [{"id": "mock"}]})

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body: dict[str, Any] = await request.json()
        if (refused := self.refusal(request)) is not None:
            return refused
        try:
            return await self.answer(request, body)
        except (asyncio.CancelledError, ConnectionError):
            self.cancelled += 1
            raise

    async def answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        tokens = int(body.get("max_tokens", 5))
        async with self.slots:
            self.running += 1
            self.most = max(self.most, self.running)
            try:
                await asyncio.sleep(self.prefill)
                if not body.get("stream"):
                    await asyncio.sleep(self.token * tokens)
                    self.served += 1
                    text = "The capital of France is Paris."
                    top = [{"token": "x", "logprob": value} for value in (-0.1, -2.7)]
                    choice = {
                        "index": 0,
                        "message": {"role": "assistant", "content": text},
                        "logprobs": {"content": [{"token": "x", "logprob": -0.1, "top_logprobs": top}]},
                        "finish_reason": "stop",
                    }
                    usage = {"prompt_tokens": 8, "completion_tokens": tokens}
                    answer = {"model": "mock", "node": self.name, "choices": [choice], "usage": usage}
                    return web.json_response(answer, headers={"X-Node": self.name})
                headers = {"Content-Type": "text/event-stream", "X-Node": self.name}
                stream = web.StreamResponse(headers=headers)
                await stream.prepare(request)
                padding = "x" * int(body.get("padding", 0))
                for index in range(tokens):
                    if index:
                        await asyncio.sleep(self.token)
                    event = {"model": "mock", "choices": [{"index": 0, "delta": {"content": f"w{index} {padding}"}}]}
                    await stream.write(f"data: {json.dumps(event)}\n\n".encode())
                usage = {"prompt_tokens": 8, "completion_tokens": tokens}
                await stream.write(f"data: {json.dumps({'choices': [], 'usage': usage})}\n\ndata: [DONE]\n\n".encode())
                self.served += 1
                return stream
            finally:
                self.running -= 1


def application(options: argparse.Namespace) -> web.Application:
    node = Node(options)
    app = web.Application(client_max_size=64 * 2**20)
    app.router.add_get("/plumbline/status", node.status)
    app.router.add_get("/v1/models", node.models)
    app.router.add_get("/secret", node.status)
    app.router.add_post("/v1/chat/completions", node.complete)
    app.router.add_post("/v1/completions", node.complete)
    app.router.add_post("/control", node.control)
    return app


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--key", required=True)
    parser.add_argument("--name", default="node")
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--prefill", type=float, default=0.01, metavar="SECONDS")
    parser.add_argument("--token", type=float, default=0.005, metavar="SECONDS")
    options = parser.parse_args()

    async def made() -> web.Application:
        return application(options)

    # A client that goes away ends its answer, as in vLLM.
    web.run_app(
        made(),
        host="127.0.0.1",
        port=options.port,
        print=None,
        access_log=None,
        handler_cancellation=True,
        shutdown_timeout=5,
    )


if __name__ == "__main__":
    main()
