"""UpdateService: firmware inventory, and the three ways to update (SimpleUpdate, multipart push, the older push).

A component of the profile says what activates it (`Activation`): `reset` waits for the host's next reset, `bmc`
restarts the BMC, `none` is active at once. The profile's `update` says how the vendor's service behaves.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import aiohttp

from .firmware import ImageError
from .messages import RedfishError, message, refuse
from .rest import Call, Reply, Resource, collection, link, success
from .update_policy import read_policy
from .update_work import Order, UpdateWork

if TYPE_CHECKING:
    from .service import Finder, Service

Json = dict[str, Any]
_ACTION = "UpdateService.SimpleUpdate"
_PARAMETERS = {"Targets", "ForceUpdate", "@Redfish.OperationApplyTime", "@Redfish.MaintenanceWindow", "Oem"}
_SIMPLE = _PARAMETERS | {"ImageURI", "TransferProtocol", "Username", "Password"}
_FETCH_SECONDS = 300
_CHUNK_BYTES = 64 * 1024


class UpdateResources:
    """The handlers of the UpdateService."""

    def __init__(self, service: Service) -> None:
        """Serve the components of the profile."""
        self.service = service
        self.paths = service.paths
        self.policy = read_policy(service.profile.get("update", {}))
        self.components: dict[str, Json] = {one["Id"]: one for one in service.profile.get("firmware", [])}
        self.work = UpdateWork(service, self.components, self.policy)
        self.push_options: Json = {"targets": [], "busy": False, "apply_time": None}

    def resources(self) -> dict[str, Resource]:
        """Return the resources by URI."""
        paths, policy = self.paths, self.policy
        raw = frozenset({"POST"})
        table = {
            paths.update: Resource(get=self.update_service, patch=self.patch_service),
            paths.firmware: Resource(get=self.inventory),
        }
        if "simple" in policy.methods:
            table[f"{paths.update}/Actions/{_ACTION}"] = Resource(post=self.simple_update)
        if "multipart" in policy.methods:
            table[policy.multipart_uri] = Resource(post=self.multipart, raw=raw)
        if "push" in policy.methods:
            table[policy.push_uri] = Resource(post=self.push, raw=raw)
        for identity in self.components:
            table[f"{paths.firmware}/{identity}"] = Resource(get=partial(self.component, identity))
        return table

    def finders(self) -> dict[str, Finder]:
        """Return the changing collections."""
        return {self.paths.firmware: self.find_staged_entry}

    def update_service(self) -> Json:
        """Return the UpdateService."""
        policy = self.policy
        times: Json = {}
        if policy.apply_times is not None:
            times["@Redfish.OperationApplyTimeSupport"] = {
                "@odata.type": "#Settings.v1_3_5.OperationApplyTimeSupport",
                "SupportedValues": list(policy.apply_times),
            }
        body: Json = {
            "@odata.id": self.paths.update,
            "@odata.type": "#UpdateService.v1_14_1.UpdateService",
            "Id": "UpdateService",
            "Name": "Update Service",
            "ServiceEnabled": True,
            "Status": {"State": "Enabled", "Health": "OK"},
            "FirmwareInventory": link(self.paths.firmware),
            "VerifyRemoteServerCertificate": False,
            "Actions": {},
        }
        if policy.max_image_bytes is not None:
            body["MaxImageSizeBytes"] = policy.max_image_bytes
        if "multipart" in policy.methods:
            body["MultipartHttpPushUri"] = policy.multipart_uri
            body.update({f"MultipartHttpPushUri{key}": value for key, value in times.items()})
        if "push" in policy.methods:
            body.update(HttpPushUri=policy.push_uri, HttpPushUriTargets=list(self.push_options["targets"]))
            body["HttpPushUriTargetsBusy"] = self.push_options["busy"]
            if policy.apply_times is not None:
                body["HttpPushUriOptions"] = {
                    "HttpPushUriApplyTime": {
                        "ApplyTime": self.push_options["apply_time"],
                        "ApplyTime@Redfish.AllowableValues": list(policy.apply_times),
                    }
                }
        elif policy.foreign_push_uri:
            body["HttpPushUri"] = policy.foreign_push_uri
        if "simple" in policy.methods:
            body["Actions"][f"#{_ACTION}"] = {
                "target": f"{self.paths.update}/Actions/{_ACTION}",
                "TransferProtocol@Redfish.AllowableValues": ["HTTP", "HTTPS"],
                **times,
            }
        return body

    def inventory(self) -> Json:
        """Return the firmware inventory."""
        names = [*self.components, *self._staged_entries()]
        members = [f"{self.paths.firmware}/{identity}" for identity in names]
        return collection(self.paths.firmware, "SoftwareInventory", "Firmware inventory", members)

    def related(self, identity: str) -> str:
        """Return the URI of the resource that a component belongs to."""
        part = self.components[identity]
        if part.get("Activation") == "bmc":
            return self.paths.manager
        return self.paths.bios if part.get("Name") == "BIOS" or identity == "BIOS" else self.paths.system

    def component(self, identity: str) -> Json:
        """Return a SoftwareInventory."""
        part = self.components[identity]
        return {
            "@odata.id": f"{self.paths.firmware}/{identity}",
            "@odata.type": "#SoftwareInventory.v1_10_1.SoftwareInventory",
            "Id": identity,
            "Name": part.get("Name", identity),
            "Version": self.service.firmware_version(identity),
            "SoftwareId": part.get("SoftwareId", identity),
            "Manufacturer": self.service.profile.get("vendor", ""),
            "Updateable": bool(part.get("Updateable", False)),
            "RelatedItem": [link(self.related(identity))],
            "Status": {"State": "Enabled", "Health": "OK"},
        }

    def _staged_entries(self) -> dict[str, str]:
        if self.policy.staged_as != "entry":
            return {}
        return {self.policy.staged_entry.format(id=identity): identity for identity in self.work.staged}

    def find_staged_entry(self, identity: str) -> Resource | None:
        """Return the entry of an image that waits for a reset."""
        owner = self._staged_entries().get(identity)
        if owner is None:
            return None
        version = self.work.staged[owner]["version"]
        body = {
            **self.component(owner),
            "@odata.id": f"{self.paths.firmware}/{identity}",
            "Id": identity,
            "Version": version,
            "Updateable": False,
            "Status": {"State": "StandbySpare", "Health": "OK"},
        }
        return Resource(get=lambda: body)

    # ------------------------------------------------------------------ requests

    def _targets(self, value: Any) -> list[str]:
        """Return the ids of the components that a request names."""
        if value is not None and (not isinstance(value, list) or not all(isinstance(one, str) for one in value)):
            raise refuse(400, "ActionParameterValueTypeError", value, "Targets", _ACTION)
        if not value:
            if self.policy.targets == "required":
                raise refuse(400, "ActionParameterMissing", _ACTION, "Targets")
            return []
        identities = []
        for uri in value:
            bare = uri.rstrip("/")
            found = [
                identity
                for identity in self.components
                if bare in (f"{self.paths.firmware}/{identity}", self.related(identity))
                and (self.policy.targets_are != "resource" or bare == self.related(identity))
            ]
            if not found:
                raise refuse(400, "ResourceMissingAtURI", uri)
            identities += found
        return identities

    def _apply_time(self, value: Any) -> str:
        if value is None:
            return "OnReset"
        if self.policy.apply_times is None:
            raise refuse(400, "ActionParameterUnknown", _ACTION, "@Redfish.OperationApplyTime")
        if value not in self.policy.apply_times:
            times = ", ".join(self.policy.apply_times)
            raise refuse(400, "ActionParameterNotSupported", "@Redfish.OperationApplyTime", _ACTION, value, times)
        return str(value)

    def _check_free(self) -> None:
        """Refuse an update while another one is under way."""
        fault = self.service.faults.take("update_busy")
        if fault is None and not self.work.running:
            return
        how = self.policy.busy if fault is None else fault.parameters
        retry = how.get("retry_after")
        headers = {"Retry-After": str(retry)} if retry is not None else {}
        text = message("ResourceInUse", "The UpdateService", "another update is in progress")
        raise RedfishError(int(how["status"]), text, headers=headers)

    def _order(self, body: Json, what: str) -> Order:
        targets = self._targets(body.get("Targets"))
        when = self._apply_time(body.get("@Redfish.OperationApplyTime"))
        force = body.get("ForceUpdate", False)
        if not isinstance(force, bool):
            raise refuse(400, "ActionParameterValueTypeError", force, "ForceUpdate", _ACTION)
        return Order(targets, when, force, what)

    def patch_service(self, call: Call) -> Reply:
        """Set what the older push needs to know beforehand."""
        if "push" not in self.policy.methods:
            raise refuse(405, "OperationNotAllowed", "PATCH", self.paths.update)
        for name in call.body:
            if name not in ("HttpPushUriTargets", "HttpPushUriTargetsBusy", "HttpPushUriOptions"):
                raise refuse(400, "PropertyNotWritable", name, "it is informational", related=f"/{name}")
        changes = dict(self.push_options)
        if "HttpPushUriTargets" in call.body:
            self._targets(call.body["HttpPushUriTargets"])
            changes["targets"] = call.body["HttpPushUriTargets"]
        if "HttpPushUriTargetsBusy" in call.body:
            changes["busy"] = bool(call.body["HttpPushUriTargetsBusy"])
        options = call.body.get("HttpPushUriOptions")
        if options is not None:
            try:
                changes["apply_time"] = self._apply_time(options["HttpPushUriApplyTime"]["ApplyTime"])
            except (KeyError, TypeError):
                raise refuse(400, "PropertyMissing", "HttpPushUriOptions/HttpPushUriApplyTime/ApplyTime") from None
        self.push_options = changes
        return success()

    def simple_update(self, call: Call) -> Reply:
        """Fetch an image by HTTP(S) and install it."""
        body = call.body
        for name in sorted(set(body) - _SIMPLE):
            raise refuse(400, "ActionParameterUnknown", _ACTION, name)
        uri = body.get("ImageURI")
        if uri is None:
            raise refuse(400, "ActionParameterMissing", _ACTION, "ImageURI")
        if not isinstance(uri, str):
            raise refuse(400, "ActionParameterValueTypeError", uri, "ImageURI", _ACTION)
        protocol = body.get("TransferProtocol")
        if protocol not in (None, "HTTP", "HTTPS"):
            raise refuse(400, "ActionParameterNotSupported", "TransferProtocol", _ACTION, protocol, "HTTP, HTTPS")
        if "://" not in uri:
            uri = f"{(protocol or 'HTTP').lower()}://{uri}"
        if uri.split("://", 1)[0].lower() not in ("http", "https"):
            raise refuse(400, "ActionParameterNotSupported", "ImageURI", _ACTION, uri, "http:// and https:// URIs")
        order = self._order(body, f"{self.paths.update}/Actions/{_ACTION}")
        order.payload = {name: value for name, value in body.items() if name not in ("Username", "Password")}
        self._check_free()

        async def fetch() -> bytes:
            timeout = aiohttp.ClientTimeout(total=_FETCH_SECONDS)
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                # VerifyRemoteServerCertificate is false, and says so: a BMC has no CA of the site.
                session.get(uri, ssl=False) as response,
            ):
                if response.status != 200:
                    raise ImageError(f"The image server answered {response.status} for {uri}; correct the URI.")
                return await response.read()

        return self.work.begin(fetch, order)

    async def multipart(self, call: Call) -> Reply:
        """Take an image from a multipart body: UpdateParameters (JSON), then UpdateFile."""
        if not call.request.content_type.startswith("multipart/"):
            raise refuse(415, "UnrecognizedRequestBody", "expected multipart/form-data")
        self._check_free()
        parameters: Any = None
        data: bytes | None = None
        try:
            reader = await call.request.multipart()
            while (part := await reader.next()) is not None:
                if isinstance(part, aiohttp.MultipartReader):
                    continue
                if part.name == "UpdateParameters":
                    parameters = json.loads(bytes(await part.read()))
                elif part.name == "UpdateFile":
                    data = await self._receive(call, part.read_chunk)
        except (ValueError, AssertionError):
            raise refuse(400, "UnrecognizedRequestBody", "the multipart body is damaged") from None
        for name, value in (("UpdateParameters", parameters), ("UpdateFile", data)):
            if value is None:
                raise refuse(400, "PropertyMissing", name)
        if not isinstance(parameters, dict):
            raise refuse(400, "UnrecognizedRequestBody", "UpdateParameters is not a JSON object")
        for name in sorted(set(parameters) - _PARAMETERS):
            raise refuse(400, "PropertyUnknown", name)
        return self._received(data or b"", self._order(parameters, self.policy.multipart_uri))

    async def push(self, call: Call) -> Reply:
        """Take a bare image; what it is for and when it applies was set in the UpdateService before."""
        if call.request.content_type.startswith("multipart/"):
            raise refuse(415, "UnrecognizedRequestBody", "expected application/octet-stream")
        self._check_free()
        data = await self._receive(call, call.request.content.read)
        options, self.push_options = self.push_options, {**self.push_options, "targets": [], "busy": False}
        order = self._order({"Targets": options["targets"] or None}, self.policy.push_uri)
        order.when = options["apply_time"] or "OnReset"
        return self._received(data, order)

    async def _receive(self, call: Call, read: Any) -> bytes:
        """Read an image, unless a fault breaks the connection in the middle of it."""
        fault = self.service.faults.take("upload_broken")
        chunks: list[bytes] = []
        size = 0
        while chunk := await read(_CHUNK_BYTES):
            chunks.append(bytes(chunk))
            size += len(chunk)
            if fault is not None and size >= fault.parameters["after_bytes"] and call.request.transport is not None:
                call.request.transport.abort()
                raise refuse(400, "UnrecognizedRequestBody", "the connection was closed")
            if self.policy.max_image_bytes is not None and size > self.policy.max_image_bytes:
                raise refuse(413, "UnrecognizedRequestBody", "the image is too large")
        return b"".join(chunks)

    def _received(self, data: bytes, order: Order) -> Reply:
        self._check_free()  # another client may have been faster, while this one's image came in

        async def ready() -> bytes:
            return data

        return self.work.begin(ready, order)

    # ------------------------------------------------------------------ events of the machine

    def activate_staged(self) -> None:
        """Do what POST does with staged images."""
        self.work.activate_staged()

    def bmc_goes_down(self) -> None:
        """Do what a restart of the BMC does to updates."""
        self.work.bmc_goes_down()

    async def stop(self) -> None:
        """End updates that are under way."""
        await self.work.stop()
