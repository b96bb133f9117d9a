"""The UpdateService of a BMC: which ways of update it offers, and an image sent the best of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from .firmware_plan import Step
from .redfish_client import Answer, Json, RedfishClient, link
from .redfish_connection import RedfishError
from .redfish_document import mapping, text
from .redfish_upload import UploadBody, multipart

METHODS = ("auto", "multipart", "push", "simple")
# Supermicro wants to be told what an image is for, by the resource itself and not by its entry in the inventory.
_TARGET_IS_RESOURCE = ("supermicro",)
_WINDOW_SECONDS = 24 * 3600


@dataclass
class UpdateService:
    """What the service offers."""

    uri: str
    document: Json
    vendor: str = ""
    action: Json = field(default_factory=dict)

    @property
    def multipart_uri(self) -> str:
        """Where a multipart push goes; empty where there is none."""
        return text(self.document, "MultipartHttpPushUri")

    @property
    def push_uri(self) -> str:
        """Where the older push of the bare image goes.

        iLO's (`/cgi-bin/...`) is a form of HPE's own with the session's key in it, so it does not count.
        """
        uri = text(self.document, "HttpPushUri")
        return "" if "/cgi-bin/" in uri else uri

    @property
    def simple_uri(self) -> str:
        """The target of SimpleUpdate; empty where there is none."""
        return text(self.action, "target")

    def offers(self) -> list[str]:
        """The methods, best first."""
        found = {"multipart": self.multipart_uri, "push": self.push_uri, "simple": self.simple_uri}
        return [name for name, uri in found.items() if uri]

    def apply_times(self, method: str) -> list[str] | None:
        """The apply times that a method takes; None where the service does not say."""
        if method == "push":
            options = mapping(self.document, "HttpPushUriOptions", "HttpPushUriApplyTime")
            return _list(options, "ApplyTime@Redfish.AllowableValues")
        key = "@Redfish.OperationApplyTimeSupport"
        places = [self.action]
        if method == "multipart":
            own = {key: mapping(self.document, f"MultipartHttpPushUri{key}")}
            places = [own, self.document, self.action]
        for place in places:
            values = _list(mapping(place, key), "SupportedValues")
            if values:
                return values
        return None


def _list(document: Json, name: str) -> list[str] | None:
    """The texts of an array; None where it is missing or empty."""
    found = document.get(name)
    return [str(item) for item in found] or None if isinstance(found, list) else None


def read_update_service(client: RedfishClient) -> UpdateService:
    """Read the service.

    Raises:
        RedfishError: there is none, or it is switched off.
    """
    uri = link(client.root, "UpdateService")
    document = client.get_optional(uri)
    if not document:
        raise RedfishError(
            f"The BMC at {client.options.base_url} has no UpdateService: update its firmware with the vendor's tool, and"
            " take firmware_images out for it"
        )
    if document.get("ServiceEnabled") is False:
        raise RedfishError(
            f"The UpdateService of the BMC at {client.options.base_url} is switched off: enable it there"
        )
    action = mapping(document, "Actions", "#UpdateService.SimpleUpdate")
    return UpdateService(uri, document, text(client.root, "Vendor").lower(), action)


def choose_method(client: RedfishClient, service: UpdateService, step: Step, wanted: str = "auto") -> str:
    """How an image goes to the BMC: a file by multipart push, else by the older push; a URI by SimpleUpdate.

    Raises:
        RedfishError: the service offers no way for this image.
    """
    offers = service.offers()
    fit = ["simple"] if step.image.uri else ["multipart", "push"]
    for method in fit if wanted == "auto" else [wanted]:
        if method in fit and method in offers:
            _check_protocol(client, service, step)
            _check_size(client, service, step)
            return method
    kind = "fetched by the BMC (uri)" if step.image.uri else "uploaded (file)"
    other = "file" if step.image.uri else "uri, on a web server that the BMC reaches,"
    raise RedfishError(
        f"The image for {step.name} is to be {kind}, by {' or '.join(fit if wanted == 'auto' else [wanted])}, but the BMC at"
        f" {client.options.base_url} offers {', '.join(offers) or 'nothing'}: give {other} in firmware_images"
        f"{'' if wanted == 'auto' else ', or set firmware_transfer to auto'}"
    )


def _check_protocol(client: RedfishClient, service: UpdateService, step: Step) -> None:
    if not step.image.uri:
        return
    allowed = _list(service.action, "TransferProtocol@Redfish.AllowableValues")
    protocol = step.image.uri.split(":", 1)[0].upper()
    if allowed and protocol not in allowed:
        raise RedfishError(
            f"The BMC at {client.options.base_url} does not fetch images by {protocol}, only by {', '.join(allowed)}:"
            f" serve {step.image.uri} that way"
        )


def _check_size(client: RedfishClient, service: UpdateService, step: Step) -> None:
    limit = service.document.get("MaxImageSizeBytes")
    size = step.size_bytes
    if isinstance(limit, int) and limit > 0 and size > limit:
        raise RedfishError(
            f"The image {step.image.file} has {size} bytes, but the BMC at {client.options.base_url} takes {limit} at most:"
            " is it the right one?"
        )


def choose_apply_time(client: RedfishClient, service: UpdateService, step: Step, method: str, immediate: bool) -> str:
    """When an image becomes active: the BMC's own at once, everything else at the restart that this run makes anyway.

    Empty where the service is not told, and its vendor's default holds (for a BIOS: the next restart).

    Raises:
        RedfishError: the service would restart the host by itself, and that is not allowed.
    """
    supported = service.apply_times(method)
    if step.kind == "bmc":
        return "Immediate" if supported and "Immediate" in supported else ""
    if supported is None:
        return ""
    for value in ("OnReset", "InMaintenanceWindowOnReset"):
        if value in supported:
            return value
    if "Immediate" in supported and not immediate:
        raise RedfishError(
            f"The BMC at {client.options.base_url} installs {step.name} only at once (apply times: {', '.join(supported)}),"
            " which may restart the host: take the machine out of service and set firmware_immediate_allowed to true"
        )
    return "Immediate" if "Immediate" in supported else ""


def targets_of(service: UpdateService, step: Step) -> list[str]:
    """The URIs that the image is for: those of the inventory; else those that the service asks to be told."""
    if step.image.targets:
        return list(step.image.targets)
    own = [str(wish.component.get("source") or "") for wish in step.wishes if wish.component.get("source") != "system"]
    related = [str(uri) for wish in step.wishes for uri in wish.component.get("related") or []]
    allowed = _list(service.action, "Targets@Redfish.AllowableValues")
    if allowed:
        return [uri for uri in dict.fromkeys(own + related) if uri in allowed]
    if any(name in service.vendor for name in _TARGET_IS_RESOURCE):
        return list(dict.fromkeys(related)) or own
    return []


@dataclass
class Sending:
    """How a step is sent; all of it is known before the first byte goes out."""

    step: Step
    method: str
    apply_time: str
    targets: Sequence[str]

    def parameters(self) -> Json:
        """The update's parameters, as multipart push and SimpleUpdate take them alike."""
        result: Json = {}
        if self.apply_time:
            result["@Redfish.OperationApplyTime"] = self.apply_time
        if self.apply_time == "InMaintenanceWindowOnReset":
            start = datetime.now(timezone.utc).isoformat(timespec="seconds")
            result["@Redfish.MaintenanceWindow"] = {
                "MaintenanceWindowStartTime": start,
                "MaintenanceWindowDurationInSeconds": _WINDOW_SECONDS,
            }
        # Without it a service refuses to go back to an older version. Asked for only where the inventory allows that.
        if self.step.downgrade:
            result["ForceUpdate"] = True
        return result


def send(client: RedfishClient, service: UpdateService, sending: Sending, timeout_seconds: float) -> Answer:
    """Send one image, once.

    Raises:
        RedfishError: the BMC refused it, or the connection broke (`transient`).
    """
    step = sending.step
    if sending.method == "simple":
        body: Json = {"ImageURI": step.image.uri, **sending.parameters()}
        if _list(service.action, "TransferProtocol@Redfish.AllowableValues"):
            body["TransferProtocol"] = step.image.uri.split(":", 1)[0].upper()
        if sending.targets:
            body["Targets"] = list(sending.targets)
        return client.post(service.simple_uri, body)
    deadline = time.monotonic() + timeout_seconds
    if sending.method == "multipart":
        parameters = {"Targets": list(sending.targets), **sending.parameters()}
        upload, content_type = multipart(step.image.file, step.size_bytes, parameters, deadline)
        return _stream(client, service.multipart_uri, upload, content_type, timeout_seconds)
    return _push(client, service, sending, deadline, timeout_seconds)


def _push(client: RedfishClient, service: UpdateService, sending: Sending, deadline: float, seconds: float) -> Answer:
    """The older form: what it is for and when it applies are properties of the service, set before the bare image follows."""
    document, etag = client.get_with_etag(service.uri)
    changes: Json = {}
    if "HttpPushUriTargets" in document and (sending.targets or document["HttpPushUriTargets"]):
        changes["HttpPushUriTargets"] = list(sending.targets)
    if sending.apply_time:
        changes["HttpPushUriOptions"] = {"HttpPushUriApplyTime": {"ApplyTime": sending.apply_time}}
    if document.get("HttpPushUriTargetsBusy") is True:
        raise RedfishError(
            f"The BMC at {client.options.base_url} says that another client is about to push an image"
            " (HttpPushUriTargetsBusy): wait until it is done, or set that to false in the BMC",
            409,
        )
    if changes:
        client.patch(service.uri, changes, etag)
    body = UploadBody(sending.step.image.file, sending.step.size_bytes, deadline=deadline)
    return _stream(client, service.push_uri, body, "application/octet-stream", seconds)


def _stream(client: RedfishClient, uri: str, body: UploadBody, content_type: str, timeout_seconds: float) -> Answer:
    with body:
        try:
            return client.upload(uri, body, content_type, timeout_seconds)
        except RedfishError as error:
            if error.status or not error.transient:
                raise
            sent = "all" if body.complete else f"{body.sent_bytes} of {len(body)}"
            raise BrokenUploadError(
                f"The upload of {body.file} to the BMC at {client.options.base_url} broke off after {sent} bytes ({error})",
                complete=body.complete,
            ) from None


class BrokenUploadError(RedfishError):
    """The connection broke; `complete` says whether the BMC may have got all of the image."""

    def __init__(self, message: str, *, complete: bool) -> None:
        """Keep how far it came."""
        super().__init__(message, transient=True)
        self.complete = complete


def is_busy(error: RedfishError) -> bool:
    """Whether the BMC refused only since it is at another update; some say that with 400."""
    words = str(error).lower()
    return error.status in (503, 409) or (
        error.status == 400 and any(word in words for word in ("in progress", "busy", "another update", "in use"))
    )


def retry_pause_seconds(client: RedfishClient) -> float:
    """How long to wait before a busy BMC is asked again."""
    asked: Any = client.retry_after_seconds
    return min(10.0 if asked is None else max(float(asked), 0.2), 60.0)
