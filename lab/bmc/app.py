"""The network side: TLS, HTTP semantics, faults of requests, and the loopback control endpoint."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import ssl
from email.utils import format_datetime
from typing import Any

from aiohttp import web

from .clock import OFFSET, present
from .faults import KINDS, Fault
from .messages import RedfishError, refuse
from .request_faults import drop, meet, spoil, spoils
from .rest import Call, Reply, Resource, call, check_query, json_body, raw_etag, read
from .service import Service

LOG = logging.getLogger("lab.bmc.http")
_SCHEMAS = "http://redfish.dmtf.org/schemas/v1"
_MAX_BODY = 512 * 1024 * 1024  # a firmware image; other bodies are far smaller


class BmcServer:
    """A service on a port. `start` and `stop` run in the event loop that serves it."""

    def __init__(self, service: Service, context: ssl.SSLContext | None) -> None:
        """Serve `service`; without `context` there is no TLS."""
        self.service = service
        self._context = context
        self._runner: web.AppRunner | None = None
        self._site: web.TCPSite | None = None
        self._background: set[asyncio.Task[None]] = set()
        self.port = service.config.port
        self.down = False
        service.restart_bmc = self.reboot_bmc

    async def start(self) -> None:
        """Listen."""
        app = web.Application(client_max_size=_MAX_BODY)
        app.router.add_route("*", "/{path:.*}", self.handle)
        OFFSET.set(self.service.faults.clock_offset)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=2.0)
        await self._runner.setup()
        await self._listen()
        await self.service.start()

    async def _listen(self) -> None:
        if self._runner is None:
            raise RuntimeError("the server was not started")
        site = web.TCPSite(
            self._runner, self.service.config.listen, self.port, ssl_context=self._context, reuse_address=True
        )
        await site.start()
        self._site = site
        if self.port == 0:
            self.port = int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """End cleanly."""
        for task in list(self._background):
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self.service.stop()
        if self._runner is not None:
            await self._runner.cleanup()

    def reboot_bmc(self, seconds: float) -> None:
        """Stop listening for a while, and forget sessions. The host goes on as it was."""

        async def away() -> None:
            self.down = True
            self.service.sessions.lose_all()
            if self._site is not None:
                await self._site.stop()
            await asyncio.sleep(seconds)
            self.down = False
            await self._listen()

        task = asyncio.get_running_loop().create_task(away())
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    # ------------------------------------------------------------------ requests

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer a request; whatever goes wrong becomes a Redfish error body."""
        if self.down:
            return drop(request)
        OFFSET.set(self.service.faults.clock_offset)
        after: list[Fault] = []
        try:
            if request.path.startswith("/lab/"):
                return self._render(request, await self._control(request), None)
            for fault in self.service.faults.for_request(request.method, request.path):
                if spoils(fault):
                    after.append(fault)
                    continue
                answer = await meet(fault, request, self.service.sessions)
                if answer is not None:
                    return self._render(request, answer, None) if isinstance(answer, Reply) else answer
            response = await self._answer(request)
        except RedfishError as error:
            response = self._error(request, error)
        except asyncio.CancelledError:
            raise
        except Exception:  # a bug of the simulator must look like one, and reach the log
            LOG.exception("%s %s", request.method, request.path)
            response = self._error(request, refuse(500, "InternalError"))
        return await spoil(after[0], request, response) if after else response

    async def _answer(self, request: web.Request) -> web.Response:
        method = "GET" if request.method == "HEAD" else request.method
        if request.headers.get("OData-Version", "4.0") != "4.0":
            raise refuse(412, "HeaderInvalid", f"OData-Version: {request.headers['OData-Version']}")
        resource = self.service.find(request.path)
        needs_login = resource is None or method not in resource.open_to
        account = self.service.sessions.authenticate(request.headers) if needs_login else None
        if resource is None:
            raise refuse(404, "ResourceMissingAtURI", request.path)
        handler = getattr(resource, method.lower(), None) if method in resource.methods() else None
        if handler is None:
            error = refuse(405, "OperationNotAllowed", method, request.path)
            error.headers["Allow"] = ", ".join(resource.methods())
            raise error
        if account is not None and method != "GET":
            wanted = resource.own_privilege.get(method, resource.privilege)
            if not account.may(wanted):
                raise refuse(403, "InsufficientPrivilege")
        may_expand = bool(self.service.profile.quirks.get("expand", False))
        expanding = check_query(request, may_expand=may_expand, options=resource.options)
        if method == "GET":
            paged = resource.paged if resource.options & set(request.query) else None
            body = paged(dict(request.query)) if paged is not None else await read(handler)
            if isinstance(body, Reply):
                return self._render(request, body, None)
            if expanding:
                body = await self._expanded(body, expanding)
            return self._render(request, Reply(200, body, content_type=resource.content_type), resource)
        body = {} if method in resource.raw or method == "DELETE" else await json_body(request)
        if method == "POST" and "/actions/" in request.path.lower():
            body.pop("Action", None)  # clients of old (HPE's ilorest) name the action in the body as well
        if method == "PATCH" and body and all(name.startswith("@odata.") for name in body):
            raise refuse(400, "NoOperation")
        if method in ("PATCH", "PUT") or (method == "DELETE" and "If-Match" in request.headers):
            await self._check_etag(request, resource)
        reply = await call(handler, Call(request, body, account))
        return self._render(request, reply, None)

    async def _expanded(self, body: Any, mode: str) -> Any:
        """Replace references, one level deep, by what they lead to. `.` leaves those under Links alone."""
        if isinstance(body, list):
            return [await self._expanded(one, mode) for one in body]
        if not isinstance(body, dict):
            return body
        if set(body) == {"@odata.id"}:
            resource = self.service.find(body["@odata.id"])
            found = await read(resource.get) if resource is not None and resource.get is not None else None
            return found if isinstance(found, dict) else body
        return {
            key: value if key == "Links" and mode == "." else await self._expanded(value, mode)
            for key, value in body.items()
        }

    async def _check_etag(self, request: web.Request, resource: Resource) -> None:
        opaques = [raw_etag(await read(getter)) for getter in (resource.get, resource.etag_of) if getter is not None]
        self.service.etags.check(request.headers.get("If-Match"), opaques, request.path)

    def _render(self, request: web.Request, reply: Reply, resource: Resource | None) -> web.Response:
        headers = {"OData-Version": "4.0", "Cache-Control": "no-cache", "Date": format_datetime(present(), usegmt=True)}
        headers.update(reply.headers)
        body = reply.body
        if resource is not None and isinstance(body, dict):
            headers["Allow"] = ", ".join(resource.methods())
            schema = str(body.get("@odata.type", "")).lstrip("#").rsplit(".", 1)[0]
            if schema:
                headers["Link"] = f"<{_SCHEMAS}/{schema}.json>; rel=describedby"
            etag = self.service.etags.show(raw_etag(body))
            if etag is not None and "@odata.id" in body:
                headers["ETag"] = etag
                body = {**body, "@odata.etag": etag}
                if request.headers.get("If-None-Match") in (etag, "*"):
                    return web.Response(status=304, headers=headers)
        if body is None:
            return web.Response(status=reply.status, headers=headers)
        if isinstance(body, str):
            return web.Response(status=reply.status, text=body, headers=headers, content_type=reply.content_type)
        text = json.dumps(self.service.paths.outgoing(body))
        return web.Response(status=reply.status, text=text, headers=headers, content_type=reply.content_type)

    def _error(self, request: web.Request, error: RedfishError) -> web.Response:
        headers = dict(error.headers)
        if error.status == 401:
            headers["WWW-Authenticate"] = 'Basic realm="Redfish"'
        return self._render(request, Reply(error.status, error.body(), headers), None)

    # ------------------------------------------------------------------ control

    async def _control(self, request: web.Request) -> Reply:
        if not _is_loopback(request.remote):
            raise refuse(403, "ResourceAtUriUnauthorized", request.path)
        if not self.service.sessions.authenticate(request.headers).may("ConfigureManager"):
            raise refuse(403, "InsufficientPrivilege")
        path = request.path.rstrip("/")
        if path == "/lab/state" and request.method == "GET":
            return Reply(200, self.truth())
        if path == "/lab/faults":
            if request.method == "GET":
                kinds = {
                    kind: {"acts_on": what, "parameters": {name: one[1] for name, one in spec.items()}, "does": text}
                    for kind, (what, spec, text) in KINDS.items()
                }
                return Reply(200, {"faults": [one.to_json() for one in self.service.faults.all()], "kinds": kinds})
            if request.method == "POST":
                fault = self.inject(await json_body(request))
                return Reply(201, fault, {"Location": f"/lab/faults/{fault['id']}"})
            if request.method == "DELETE":
                self.service.faults.clear()
                return Reply(204)
            raise refuse(405, "OperationNotAllowed", request.method, path)
        identity = path.removeprefix("/lab/faults/")
        fault_now = self.service.faults.get(identity)
        if fault_now is not None and request.method == "GET":
            return Reply(200, fault_now.to_json())
        if request.method == "DELETE" and self.service.faults.remove(identity):
            return Reply(204)
        raise refuse(404, "ResourceMissingAtURI", request.path)

    def inject(self, body: dict[str, Any]) -> dict[str, Any]:
        """Put a fault in force and return it as JSON; one that is an event has happened when this returns."""
        fault = self.service.faults.add(body)
        self.service.act_at_once(fault)
        if fault.kind == "bmc_reboot":
            self.reboot_bmc(float(fault.parameters["seconds"]))
        return fault.to_json()

    def truth(self) -> dict[str, Any]:
        """Return what is really so, whatever a profile or a fault shows to clients."""
        service = self.service
        return {
            "profile": service.profile.name,
            "power": service.power.state,
            "boot": service.power.boot_progress["LastState"],
            "busy": service.power.busy,
            "resets": service.power.resets,
            "active": service.bios.active,
            "pending": service.bios.pending,
            "reset_to_defaults_pending": service.bios.reset_to_defaults_pending,
            "firmware": dict(service.firmware),
            "sessions": len(service.sessions.all()),
            "last_power_error": service.power.last_error,
        }


def _is_loopback(address: str | None) -> bool:
    try:
        return address is not None and ipaddress.ip_address(address.split("%")[0]).is_loopback
    except ValueError:
        return False
