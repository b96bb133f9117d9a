"""What injected faults do to a request and to its answer. The kinds and their parameters are in faults.py."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web

from .auth import Sessions
from .faults import Fault
from .messages import RedfishError, message, refuse
from .rest import Reply

# Kinds that let the request be handled and then spoil the answer.
_SPOILING = {"garbage", "truncated", "wrong_type", "slow_body"}
_PIECES = 20


def spoils(fault: Fault) -> bool:
    """Whether the fault acts on the answer, so that the request is carried out all the same."""
    return fault.kind in _SPOILING or (fault.kind == "drop" and fault.parameters["when"] != "before")


def drop(request: web.Request) -> web.StreamResponse:
    """Close the connection without an answer."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=500)


async def meet(fault: Fault, request: web.Request, sessions: Sessions) -> Reply | web.StreamResponse | None:
    """Do what comes before the handling: wait, raise a RedfishError, answer in its place, or (None) let it go on."""
    given = fault.parameters
    if fault.kind == "drop":
        return drop(request)
    if fault.kind == "slow":
        await asyncio.sleep(given["seconds"])
    elif fault.kind == "session_expires":
        sessions.lose(request.headers.get("X-Auth-Token", ""))
    elif fault.kind == "etag_conflict":
        raise refuse(412, "PreconditionFailed", request.headers.get("If-Match", "*"), request.path)
    elif fault.kind == "error_in_200":
        return Reply(200, RedfishError(200, message("GeneralError", given["message"])).body())
    else:
        raise _http_error(given)
    return None


def _http_error(parameters: dict[str, Any]) -> RedfishError:
    retry = parameters["retry_after"]
    if parameters["message"]:
        text = message("GeneralError", parameters["message"])
    elif parameters["status"] == 503:
        text = message("ServiceTemporarilyUnavailable", retry if retry is not None else "a few")
    else:
        text = message("GeneralError", "An injected fault.")
    headers = {"Retry-After": str(retry)} if retry is not None else {}
    return RedfishError(parameters["status"], text, headers=headers)


async def spoil(fault: Fault, request: web.Request, response: web.Response) -> web.StreamResponse:
    """Send the answer as the fault leaves it."""
    if fault.kind == "drop":
        return drop(request)
    if fault.kind == "garbage":
        return web.Response(text=fault.parameters["text"], content_type="application/json")
    if fault.kind == "wrong_type":
        response.headers["Content-Type"] = fault.parameters["content_type"]
        return response
    body = response.body if isinstance(response.body, bytes) else b""
    stream = web.StreamResponse(status=response.status, headers=response.headers)
    stream.content_length = len(body)
    await stream.prepare(request)
    if fault.kind == "truncated":
        await stream.write(body[: len(body) // 2])
        if request.transport is not None:
            request.transport.close()  # what was written still goes out
        return stream
    size = max(1, -(-len(body) // _PIECES))
    for start in range(0, len(body), size):
        await stream.write(body[start : start + size])
        await asyncio.sleep(fault.parameters["seconds"] / _PIECES)
    return stream
