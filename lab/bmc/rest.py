"""Resources, requests and replies: what every Redfish resource has in common (ETags, methods, error bodies)."""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aiohttp import web

from .messages import message, refuse

if TYPE_CHECKING:
    from .accounts import Account

Json = dict[str, Any]


@dataclass
class Reply:
    """An answer. A `body` of None is an empty one (204)."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    content_type: str = "application/json"


@dataclass
class Call:
    """A request that has passed authentication and, for a write, the ETag check."""

    request: web.Request
    body: Json
    account: Account | None = None


Getter = Callable[[], "Json | Awaitable[Json]"]
Handler = Callable[[Call], "Reply | Awaitable[Reply]"]


@dataclass
class Resource:
    """A URI. `open_to` are the methods that need no credentials. `raw` methods read the request body themselves."""

    get: Getter | None = None
    post: Handler | None = None
    patch: Handler | None = None
    put: Handler | None = None
    delete: Handler | None = None
    open_to: frozenset[str] = frozenset()
    raw: frozenset[str] = frozenset()
    # Another resource whose ETag a write may name as well (a settings object: the resource that it settles).
    etag_of: Getter | None = None
    content_type: str = "application/json"
    # What answers a GET with query options, and which ones it takes; `get` answers one without.
    paged: Callable[[dict[str, str]], Json] | None = None
    options: frozenset[str] = frozenset()
    # What a write needs (DSP0266 privileges), and what single methods need instead.
    privilege: str = "ConfigureComponents"
    own_privilege: dict[str, str] = field(default_factory=dict)

    def methods(self) -> list[str]:
        """Return the methods for the Allow header."""
        found = [name for name in ("GET", "POST", "PATCH", "PUT", "DELETE") if getattr(self, name.lower()) is not None]
        return ["GET", "HEAD", *found[1:]] if self.get is not None else found


async def read(getter: Getter) -> Any:
    """Call a getter that may be asynchronous."""
    value = getter()
    return await value if inspect.isawaitable(value) else value


async def call(handler: Handler, request: Call) -> Reply:
    """Call a handler that may be asynchronous."""
    value = handler(request)
    return await value if inspect.isawaitable(value) else value


def raw_etag(body: Any) -> str:
    """Return the opaque part of an ETag for a body."""
    text = json.dumps(body, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class ETags:
    """How a profile writes and compares ETags.

    `style`: strong `"x"`, weak `W/"x"`, unquoted `x`, or none. `match`: lenient compares the opaque part, exact the
    whole string, unquoted accepts only the bare opaque part (some firmware refuses the quotes that it sent itself).
    """

    style: str = "strong"
    match: str = "lenient"
    required: bool = False

    def show(self, opaque: str) -> str | None:
        """Return the ETag as sent."""
        shapes = {"strong": f'"{opaque}"', "weak": f'W/"{opaque}"', "unquoted": opaque}
        return shapes.get(self.style)

    def _same(self, given: str, opaque: str) -> bool:
        if self.match == "exact":
            return given == self.show(opaque)
        if self.match == "unquoted":
            return given == opaque
        return given.removeprefix("W/").strip('"') == opaque

    def check(self, header: str | None, opaques: list[str], uri: str) -> None:
        """Raise 412 when no ETag in the header is current, 428 when the profile wants one and there is none."""
        if header is None:
            if self.required:
                raise refuse(428, "HeaderMissing", "If-Match")
            return
        given = [part.strip() for part in header.split(",") if part.strip()]
        if "*" in given:
            return
        if not any(self._same(one, opaque) for one in given for opaque in opaques):
            raise refuse(412, "PreconditionFailed", header, uri)


async def json_body(request: web.Request) -> Json:
    """Return the request's JSON object; an empty body is an empty object."""
    data = await request.read()
    if not data.strip():
        return {}
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        raise refuse(400, "MalformedJSON") from None
    if not isinstance(body, dict):
        raise refuse(400, "UnrecognizedRequestBody", "it is not a JSON object")
    return body


def check_query(request: web.Request, *, may_expand: bool, options: frozenset[str] = frozenset()) -> str:
    """Return the mode of `$expand` (`*`, `.` or nothing) and refuse the OData query options that are not offered, those
    in `options` apart; other unknown parameters are ignored (DSP0266)."""
    mode = ""
    for name, value in request.query.items():
        if name in options:
            continue
        if name == "$expand" and may_expand and re.fullmatch(r"[*.](\(\$levels=\d\))?", value):
            mode = value[0]
        elif name.startswith("$") or name in ("only", "excerpt"):
            raise refuse(501, "QueryNotSupported", name)
    return mode


def success(status: int = 200) -> Reply:
    """Return the usual answer of a change that needs no other body."""
    info = message("Success")
    return Reply(
        status,
        {"error": {"code": info["MessageId"], "message": info["Message"], "@Message.ExtendedInfo": [info]}},
    )


def link(uri: str) -> Json:
    """Return a reference."""
    return {"@odata.id": uri}


def collection(uri: str, kind: str, name: str, members: list[str]) -> Json:
    """Return a resource collection."""
    return {
        "@odata.id": uri,
        "@odata.type": f"#{kind}Collection.{kind}Collection",
        "Name": name,
        "Members": [link(member) for member in members],
        "Members@odata.count": len(members),
    }
