"""Whether this start of the endpoint is ready, and whether it is being drained."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

from plumbline_serving.asgi import Application, Message, Scope
from plumbline_serving.settings import Settings

_HEALTH_SECONDS = 2.0
_LATELY_SECONDS = 0.05


class Readiness:
    """What the drain file, the ready record and vLLM's own health say."""

    def __init__(self, settings: Settings, invocation: str) -> None:
        """Take the settings, and systemd's name of this start."""
        self._drain_file = settings.drain_file
        self._record = Path(settings.ready_record) if settings.ready_record else None
        self._invocation = invocation
        self._looked = 0.0
        self._was_draining = False

    def draining(self) -> bool:
        """Tell whether no new request is let in."""
        # os.path, for it takes half of Path.exists' time.
        self._was_draining = bool(self._drain_file) and os.path.exists(self._drain_file)  # noqa: PTH110
        return self._was_draining

    def draining_lately(self, now: float) -> bool:
        """Tell what `draining` told not long before *now*, by the monotonic clock."""
        if now - self._looked > _LATELY_SECONDS:
            self._looked = now
            self.draining()
        return self._was_draining

    def answered(self) -> bool:
        """Tell whether a right completion came back from this start."""
        if self._record is None:
            return True
        try:
            found = json.loads(self._record.read_text(encoding="utf-8"))
            if self._invocation:
                return bool(found["invocation"] == self._invocation)
            # Not under systemd: the process that was asked is this one, or the parent of several API servers.
            return found["main_pid"] in (os.getpid(), os.getppid())
        except (OSError, ValueError, TypeError, KeyError):
            return False


async def healthy(app: Application, scope: Scope) -> bool:
    """Ask vLLM's own `GET /health`, which knows whether the engine lives. *scope* is that of the request for the status."""
    status = 0

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]

    path = scope.get("root_path", "") + "/health"
    asked = {**scope, "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b"", "headers": []}
    try:
        await asyncio.wait_for(app(asked, receive, send), _HEALTH_SECONDS)
    except Exception:
        # Whatever it is, it is not well; vLLM has logged it.
        return False
    return status == 200
