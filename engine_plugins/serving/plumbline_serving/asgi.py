"""ASGI's types, and whole answers in OpenAI's form."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

_TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    408: "RequestTimeoutError",
    413: "RequestTooLargeError",
    415: "UnsupportedMediaTypeError",
    503: "ServiceUnavailableError",
}


async def answer_json(
    send: Send, status: int, document: dict[str, Any], headers: tuple[tuple[bytes, bytes], ...] = ()
) -> None:
    """Send a whole answer."""
    body = json.dumps(document).encode()
    length = (b"content-length", str(len(body)).encode())
    head = [(b"content-type", b"application/json"), length, *headers]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})


async def answer_error(send: Send, status: int, message: str, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
    """Send an error as OpenAI's API writes it."""
    error = {"message": message, "type": _TYPES.get(status, "Error"), "param": None, "code": status}
    await answer_json(send, status, {"error": error}, headers)


def header(scope: Scope, name: bytes) -> bytes:
    """Return the last value of a header, or nothing. *name* in lower case."""
    found = b""
    for key, value in scope["headers"]:
        if key == name:
            found = value
    return found


def relative_path(scope: Scope) -> str:
    """Return the path below `--root-path`, as vLLM's own check of the key sees it."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))
