"""The ASGI application around vLLM's: readiness, drain, admission, hygiene.

vLLM puts middlewares of `--middleware` outside of its own, so a request passes here before its key is looked at. Bodies are therefore read
only once vLLM asks for them, behind that look: nobody without the key makes the server hold 10 MB, parse them or give a place to them.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from pathlib import Path

from plumbline_serving import paths
from plumbline_serving.asgi import Application, Receive, Scope, Send, answer_error, answer_json, header, relative_path
from plumbline_serving.counts import Counts
from plumbline_serving.prompts import Hygiene
from plumbline_serving.readiness import Readiness, healthy
from plumbline_serving.request import Request, Service
from plumbline_serving.settings import Settings, from_environment
from plumbline_serving.stalls import Stalls

# Close codes of RFC 6455 and its registry.
_TRY_AGAIN_LATER = 1013


class Middleware:
    """`--middleware plumbline_serving.Middleware`. Raises SettingsError where PLUMBLINE_SERVING is wrong."""

    def __init__(self, app: Application, settings: Settings | None = None) -> None:
        """Take what is inside."""
        self.app = app
        settings = from_environment() if settings is None else settings
        invocation = os.environ.get("INVOCATION_ID", "")
        directory = Path(settings.drain_file).parent if settings.drain_file else None
        self._generates = settings.generate_endpoint
        key = os.environ.get("VLLM_API_KEY", "")
        self._key = hashlib.sha256(key.encode()).digest() if key else b""
        self.service = Service(
            settings,
            Hygiene(settings),
            Counts(directory, invocation),
            Readiness(settings, invocation),
            Stalls(settings.receive_timeout_seconds, settings.send_timeout_seconds),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Treat a connection as ASGI has it: requests as the settings say, websockets when not draining, all else untouched."""
        if scope["type"] == "http":
            path = relative_path(scope)
            if path == paths.STATUS:
                await self._status(scope, send)
            elif scope["method"] == "POST":
                await self._post(scope, receive, send, path)
            else:
                await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    async def _status(self, scope: Scope, send: Send) -> None:
        if scope["method"] not in ("GET", "HEAD"):
            await answer_error(send, 405, "Expected GET, found another method: use GET.", ((b"allow", b"GET, HEAD"),))
            return
        readiness, counts = self.service.readiness, self.service.counts
        draining = readiness.draining()
        ready = not draining and readiness.answered() and await healthy(self.app, scope)
        counts.forget_the_dead()
        document = {"ready": ready, "draining": draining, "running": counts.running(), "refused": counts.refused()}
        await answer_json(send, 200 if ready else 503, document, ((b"cache-control", b"no-store"),))

    async def _post(self, scope: Scope, receive: Receive, send: Send, path: str) -> None:
        # vLLM itself asks no key for the others, and some of these compute (/invocations) or stop the engine (/pause).
        vllm_asks = path.startswith(paths.GUARDED) or path == paths.GENERATE
        if self._key and not vllm_asks and path not in paths.OPEN and not self._has_key(scope):
            await answer_json(send, 401, {"error": "Unauthorized"})
            return
        if path in paths.PASSED or (path == paths.GENERATE and not self._generates):
            await self.app(scope, receive, send)
            return
        await Request(self.service, scope, receive, send, path).run(self.app)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        counts = self.service.counts
        if self.service.readiness.draining():
            counts.refuse()
            await receive()
            await send({"type": "websocket.close", "code": _TRY_AGAIN_LATER, "reason": "draining"})
            return
        counts.begin()
        try:
            await self.app(scope, receive, send)
        finally:
            counts.end()

    def _has_key(self, scope: Scope) -> bool:
        scheme, _, key = header(scope, b"authorization").partition(b" ")
        found = hashlib.sha256(key).digest()
        return scheme.lower() == b"bearer" and secrets.compare_digest(found, self._key)
