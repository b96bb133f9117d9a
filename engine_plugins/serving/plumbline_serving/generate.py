"""`POST /generate` for old clients: {"prompt", "max_tokens"} in, {"text"} out. It is asked of vLLM as a plain completion."""

from __future__ import annotations

import json
from typing import Any

from plumbline_serving.asgi import Message, Send
from plumbline_serving.prompts import Refusal

_FIELDS = ("prompt", "max_tokens")


def completion_request(document: dict[str, Any], model: str) -> dict[str, Any]:
    """Return the completion to ask for. Raises Refusal(400)."""
    unknown = sorted(set(document) - set(_FIELDS))
    if unknown:
        raise Refusal(
            400,
            f"Expected prompt and max_tokens, found {', '.join(unknown)[:100]} as well: leave it out, or use /v1/completions.",
        )
    prompt, tokens = document.get("prompt"), document.get("max_tokens", 16)
    if not isinstance(prompt, str):
        raise Refusal(400, "Expected prompt to be a text, found none: send one.")
    if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1:
        raise Refusal(400, "Expected max_tokens to be a whole number, 1 or more, found another value: correct it.")
    asked: dict[str, Any] = {"prompt": prompt, "max_tokens": tokens, "stream": False}
    if model:
        asked["model"] = model
    return asked


class TextOnly:
    """Turns the answer to a completion into {"text"}. A refusal of vLLM passes as it is."""

    def __init__(self, send: Send) -> None:
        """Take where to send."""
        self._send = send
        self._start: Message = {}
        self._body: list[bytes] = []

    async def send(self, message: Message) -> None:
        """Take a message of vLLM's answer."""
        if message["type"] == "http.response.start":
            self._start = message
            return
        if message["type"] != "http.response.body":
            return
        self._body.append(message.get("body", b""))
        if message.get("more_body", False):
            return
        body = b"".join(self._body)
        status = self._start["status"]
        if status == 200:
            body = json.dumps({"text": json.loads(body)["choices"][0]["text"]}, ensure_ascii=False).encode()
        kept = [(name, value) for name, value in self._start.get("headers", []) if name.lower() != b"content-length"]
        kept.append((b"content-length", str(len(body)).encode()))
        await self._send({"type": "http.response.start", "status": status, "headers": kept})
        await self._send({"type": "http.response.body", "body": body})
