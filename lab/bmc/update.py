"""UpdateService: firmware inventory, SimpleUpdate and multipart push, each with a task followed to its end.

A component of the profile says what activates it (`Activation`): `reset` waits for the host's next reset, `bmc`
restarts the BMC, `none` is active at once.
"""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import TYPE_CHECKING, Any

import aiohttp

from .firmware import Image, ImageError, read_image
from .messages import message, refuse
from .rest import Call, Reply, Resource, collection, link

if TYPE_CHECKING:
    from .service import Service

Json = dict[str, Any]
_ACTION = "UpdateService.SimpleUpdate"
_APPLY_TIMES = ["Immediate", "OnReset"]
_SIMPLE = {
    "ImageURI",
    "TransferProtocol",
    "Targets",
    "Username",
    "Password",
    "ForceUpdate",
    "@Redfish.OperationApplyTime",
}
_FETCH_SECONDS = 300


class UpdateResources:
    """The handlers of the UpdateService, and the staged images."""

    def __init__(self, service: Service) -> None:
        """Serve the components of the profile."""
        self.service = service
        self.paths = service.paths
        self.components: dict[str, Json] = {one["Id"]: one for one in service.profile.get("firmware", [])}
        self.staged: Json = service.state.section("staged_firmware", {})
        self._running: set[asyncio.Task[None]] = set()
        self.push_uri = f"{self.paths.update}/upload"

    def resources(self) -> dict[str, Resource]:
        """Return the resources by URI."""
        paths = self.paths
        table = {
            paths.update: Resource(get=self.update_service),
            paths.firmware: Resource(
                get=lambda: collection(
                    paths.firmware,
                    "SoftwareInventory",
                    "Firmware inventory",
                    [f"{paths.firmware}/{identity}" for identity in self.components],
                )
            ),
            f"{paths.update}/Actions/{_ACTION}": Resource(post=self.simple_update),
            self.push_uri: Resource(post=self.push, raw=frozenset({"POST"})),
        }
        for identity in self.components:
            table[f"{paths.firmware}/{identity}"] = Resource(get=partial(self.component, identity))
        return table

    def update_service(self) -> Json:
        """Return the UpdateService."""
        return {
            "@odata.id": self.paths.update,
            "@odata.type": "#UpdateService.v1_14_1.UpdateService",
            "Id": "UpdateService",
            "Name": "Update Service",
            "ServiceEnabled": True,
            "Status": {"State": "Enabled", "Health": "OK"},
            "FirmwareInventory": link(self.paths.firmware),
            "MultipartHttpPushUri": self.push_uri,
            "VerifyRemoteServerCertificate": False,
            "Actions": {
                f"#{_ACTION}": {
                    "target": f"{self.paths.update}/Actions/{_ACTION}",
                    "TransferProtocol@Redfish.AllowableValues": ["HTTP", "HTTPS"],
                    "@Redfish.OperationApplyTimeSupport": {
                        "@odata.type": "#Settings.v1_3_5.OperationApplyTimeSupport",
                        "SupportedValues": _APPLY_TIMES,
                    },
                }
            },
        }

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
            "Status": {"State": "StandbySpare" if identity in self.staged else "Enabled", "Health": "OK"},
        }

    # ------------------------------------------------------------------ requests

    def _targets(self, value: Any) -> list[str]:
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise refuse(400, "ActionParameterValueTypeError", value, "Targets", _ACTION)
        identities = []
        for uri in value:
            identity = uri.rstrip("/").rsplit("/", 1)[-1]
            if uri.rstrip("/") != f"{self.paths.firmware}/{identity}" or identity not in self.components:
                raise refuse(400, "ResourceMissingAtURI", uri)
            identities.append(identity)
        return identities

    @staticmethod
    def _apply_time(value: Any) -> str:
        if value is None:
            return "OnReset"
        if value not in _APPLY_TIMES:
            raise refuse(
                400,
                "ActionParameterNotSupported",
                "@Redfish.OperationApplyTime",
                _ACTION,
                value,
                ", ".join(_APPLY_TIMES),
            )
        return str(value)

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
        targets, when = self._targets(body.get("Targets")), self._apply_time(body.get("@Redfish.OperationApplyTime"))

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

        return self._begin(fetch, targets, when)

    async def push(self, call: Call) -> Reply:
        """Take an image from a multipart body: UpdateParameters (JSON), then UpdateFile."""
        if not call.request.content_type.startswith("multipart/"):
            raise refuse(415, "UnrecognizedRequestBody", "expected multipart/form-data")
        parameters: Any = None
        data: bytes | None = None
        try:
            reader = await call.request.multipart()
            while (part := await reader.next()) is not None:
                if isinstance(part, aiohttp.MultipartReader):
                    continue
                content = bytes(await part.read())
                if part.name == "UpdateParameters":
                    parameters = json.loads(content)
                elif part.name == "UpdateFile":
                    data = content
        except (ValueError, AssertionError):
            raise refuse(400, "UnrecognizedRequestBody", "the multipart body is damaged") from None
        for name, value in (("UpdateParameters", parameters), ("UpdateFile", data)):
            if value is None:
                raise refuse(400, "PropertyMissing", name)
        if not isinstance(parameters, dict):
            raise refuse(400, "UnrecognizedRequestBody", "UpdateParameters is not a JSON object")
        targets = self._targets(parameters.get("Targets"))
        when = self._apply_time(parameters.get("@Redfish.OperationApplyTime"))

        async def ready() -> bytes:
            return data or b""

        return self._begin(ready, targets, when)

    def _begin(self, fetch: Any, targets: list[str], when: str) -> Reply:
        identity = self.service.tasks.create("Firmware update")
        work = asyncio.get_running_loop().create_task(self._install(identity, fetch, targets, when))
        self._running.add(work)
        work.add_done_callback(self._running.discard)
        return self.service.task_resources.accepted(identity)

    # ------------------------------------------------------------------ work

    def _check(self, image: Image, targets: list[str]) -> str:
        part = self.components.get(image.component)
        if part is None:
            raise ImageError(f"The image is for {image.component}, which this machine does not have.")
        if targets and image.component not in targets:
            raise ImageError(f"The image is for {image.component}, not for the target {', '.join(targets)}.")
        if not part.get("Updateable", False):
            raise ImageError(f"{image.component} cannot be updated.")
        model = self.service.profile.data["system"].get("Model", "")
        if image.models and model not in image.models:
            raise ImageError(f"The image fits {', '.join(image.models)}, not {model}.")
        return str(part.get("Activation", "reset"))

    async def _install(self, identity: str, fetch: Any, targets: list[str], when: str) -> None:
        tasks = self.service.tasks
        pause = self.service.timing.update / 3
        try:
            tasks.update(identity, "Running", 5)
            data = await fetch()
            await asyncio.sleep(pause)
            tasks.update(identity, "Running", 40)
            image = read_image(data)
            activation = self._check(image, targets)
            await asyncio.sleep(pause)
            fault = self.service.faults.take("update_fails")
            if fault is not None:
                raise ImageError(str(fault.parameters["message"]))
            tasks.update(identity, "Running", 80)
            await asyncio.sleep(pause)
        except (ImageError, aiohttp.ClientError, OSError, asyncio.TimeoutError) as error:
            text = str(error) or type(error).__name__
            tasks.update(identity, "Exception", 100, message("GeneralError", text))
            self.service.log.add("Warning", f"Firmware update failed: {text}")
            return
        await self._activate(identity, image, activation, when)

    async def _activate(self, identity: str, image: Image, activation: str, when: str) -> None:
        tasks, service = self.service.tasks, self.service
        if activation == "reset":
            older = self.staged.get(image.component)
            if older is not None:
                tasks.update(older["task"], "Cancelled", 100, message("GeneralError", "A newer image replaced it."))
            self.staged[image.component] = {"version": image.version, "task": identity}
            target = f"{self.paths.system}/Actions/ComputerSystem.Reset"
            kind = "ForceRestart" if service.power.state == "On" else "On"
            tasks.update(identity, "Pending", 90, message("ResetRequired", target, kind))
            if when == "Immediate" and not service.power.busy:
                service.power.request(kind)
            return
        service.firmware[image.component] = image.version
        tasks.update(identity, "Completed", 100, message("Success"))
        service.log.add("OK", f"{image.component} updated to {image.version}")
        service.state.save()
        if activation == "bmc":
            service.restart_bmc_soon()

    def activate_staged(self) -> None:
        """Do what POST does with staged images."""
        for component, staged in list(self.staged.items()):
            self.service.firmware[component] = staged["version"]
            self.service.tasks.update(staged["task"], "Completed", 100, message("Success"))
            self.service.log.add("OK", f"{component} updated to {staged['version']}")
            del self.staged[component]

    async def stop(self) -> None:
        """End updates that are under way."""
        for work in list(self._running):
            work.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
