"""The BIOS of one machine over Redfish: read its three kinds of values and its registry, stage changes, read them back."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .bios_registry import Registry, Value, listed
from .bios_settings import BiosState, flatten, is_nested
from .redfish_client import Answer, RedfishClient, link
from .redfish_connection import RedfishError, error_text
from .redfish_document import address, items, mapping, text, texts

Json = dict[str, Any]
# Where firmware keeps pending values that does not say so in @Redfish.Settings.
_SETTINGS_NAMES = ("Settings", "SD", "Pending")
# States of a task or job that keeps the values until the restart, is at work, and has failed.
_WAITING = {"new", "pending", "scheduled", "starting", "interrupted", "completed", "completedok"}
_FAILED = {"exception", "killed", "cancelled", "failed", "completedwitherrors"}
_TASK_PAUSE_SECONDS = 1.0


class NoBiosError(RedfishError):
    """The machine shows no BIOS attributes."""


class QueueBlockedError(RedfishError):
    """The BMC takes no settings now, since a job or something pending stands in the way; nothing was written."""


class TwoRestartsError(RedfishError):
    """The BMC judges locks by what is applied, so that an unlocking setting must become active first; nothing was written."""


@dataclass
class BiosResource:
    """What was read: the documents with their addresses, and the state that they come to."""

    system: Json
    uri: str
    document: Json
    settings_uri: str
    settings_etag: str
    apply_times: list[str]
    nested: bool
    state: BiosState
    registry_uri: str = ""
    warnings: list[str] = field(default_factory=list)

    @property
    def manufacturer(self) -> str:
        """Who made the machine, as it says itself."""
        return str(self.system.get("Manufacturer") or "")

    @property
    def model(self) -> str:
        """Its model, as it says itself."""
        return str(self.system.get("Model") or "")

    @property
    def reset_to_defaults(self) -> bool:
        """Whether a reset of all attributes waits for the next restart."""
        return bool(self.document.get("ResetBiosToDefaultsPending"))

    def messages(self) -> dict[str, str]:
        """What the BMC said of single attributes when it last applied settings; good news left out."""
        found: dict[str, str] = {}
        for entry in items(mapping(self.document, "@Redfish.Settings"), "Messages"):
            if str(entry.get("Severity") or "OK") == "OK":
                continue
            for related in texts(entry, "RelatedProperties"):
                found[related.rsplit("/", 1)[-1]] = text(entry, "Message", "MessageId")
        return found


def read_bios(client: RedfishClient, system_id: str = "") -> BiosResource:
    """Read applied and pending values and the attribute registry.

    Raises:
        NoBiosError: the machine shows no BIOS attributes.
        RedfishError: the BMC cannot be read.
    """
    system = client.system(system_id)
    uri = link(system, "Bios")
    bmc = f"The BMC at {client.options.base_url}"
    if not uri:
        raise NoBiosError(f"{bmc} shows no BIOS resource for system {system.get('Id')}: update the BMC's firmware")
    document = client.get(uri)
    attributes = document.get("Attributes")
    if not isinstance(attributes, dict) or not attributes:
        raise NoBiosError(
            f"{bmc} shows no BIOS attributes at {uri}, as before the first POST after a reset of the BMC:"
            " power the machine on once and let it boot"
        )
    registry, registry_uri, warnings = read_registry(client, document, uri)
    settings_uri, settings, etag = _read_settings(client, uri, document)
    state = BiosState(flatten(attributes), flatten(mapping(settings, "Attributes")), registry)
    return BiosResource(
        system=system,
        uri=uri,
        document=document,
        settings_uri=settings_uri,
        settings_etag=etag,
        apply_times=texts(mapping(document, "@Redfish.Settings"), "SupportedApplyTimes"),
        nested=is_nested(attributes),
        state=state,
        registry_uri=registry_uri,
        warnings=warnings,
    )


def _read_settings(client: RedfishClient, uri: str, document: Json) -> tuple[str, Json, str]:
    named = link(document, "@Redfish.Settings", "SettingsObject")
    usual = [f"{uri.rstrip('/')}/{name}" for name in _SETTINGS_NAMES]
    # Some name an object that they do not serve.
    for candidate in dict.fromkeys([named, *usual] if named else usual):
        try:
            settings, etag = client.get_with_etag(candidate)
        except RedfishError as error:
            if error.status == 404:
                continue
            raise
        return candidate, settings, etag
    # Reading goes on without; whoever wants to write is told.
    return "", {}, ""


def read_registry(client: RedfishClient, bios: Json, bios_uri: str) -> tuple[Registry | None, str, list[str]]:
    """Find and read the attribute registry of a Bios resource: the registry (None without one), its address, warnings."""
    wanted = str(bios.get("AttributeRegistry") or "")
    collection = client.get_optional(link(client.root, "Registries"))
    uris = [uri for uri in map(address, items(collection, "Members")) if uri]
    for uri in _likely(wanted, uris):
        document = client.get_optional(uri)
        if document.get("RegistryEntries"):
            return Registry.from_json(document), uri, []
        for location in _locations(document):
            registry = client.get_optional(location)
            if registry.get("RegistryEntries"):
                return Registry.from_json(registry), location, []
    # Dell keeps it beside the values.
    beside = f"{bios_uri.rstrip('/')}/BiosRegistry"
    document = client.get_optional(beside)
    if document.get("RegistryEntries"):
        return Registry.from_json(document), beside, []
    what = f"the attribute registry {wanted}" if wanted else "an attribute registry for the BIOS"
    return None, "", [f"the BMC does not serve {what}, so that values cannot be checked before they are written"]


def _likely(wanted: str, uris: list[str]) -> list[str]:
    """Registries that can be meant: the one of that name, the same without its version, then any for BIOS attributes."""

    def last(uri: str) -> str:
        return uri.rstrip("/").rsplit("/", 1)[-1].lower()

    def bare(name: str) -> str:
        return re.sub(r"[._]v?\d+[._]\d+([._]\d+)?$", "", name.lower())

    lower = wanted.lower()
    exact = [uri for uri in uris if lower and last(uri) == lower]
    unversioned = [uri for uri in uris if lower and bare(last(uri)) == bare(lower)]
    general = [uri for uri in uris if "bios" in last(uri) and "attribute" in last(uri)]
    return list(dict.fromkeys(exact + unversioned + general))


def _locations(document: Json) -> list[str]:
    entries = items(document, "Location")
    english = [item for item in entries if str(item.get("Language") or "en").lower().startswith("en")]
    found = []
    for item in english or entries:
        uri = item.get("Uri")
        uri = uri.get("extref") if isinstance(uri, dict) else uri
        if isinstance(uri, str) and uri.startswith("/"):
            found.append(uri)
    return found


def stage(
    client: RedfishClient, bios: BiosResource, values: Mapping[str, Value], freed: Mapping[str, str] | None = None
) -> Answer:
    """Write values to the settings object, to take effect at the next restart.

    `freed` names attributes that only this very request unlocks, with what locks them now (`Plan.freed`).

    Raises:
        ConflictError: somebody else changed the settings since they were read; plan again.
        QueueBlockedError: a job stands in the way.
        TwoRestartsError: the BMC does not take freed attributes in the request that frees them.
        RedfishError: the BMC refused them.
    """
    if not bios.settings_uri:
        raise RedfishError(
            f"The BMC at {client.options.base_url} offers no settings object for {bios.uri} (@Redfish.Settings, Settings, SD"
            " or Pending: HTTP 404), so that BIOS settings cannot be staged: update the BMC's firmware"
        )
    annotations: Json = {}
    if "OnReset" in bios.apply_times:
        # Without it some BMCs (iDRAC) keep the values and never make the job that applies them.
        annotations["@Redfish.SettingsApplyTime"] = {
            "@odata.type": "#Settings.v1_1_0.PreferredApplyTime",
            "ApplyTime": "OnReset",
        }
    try:
        answer = client.patch(bios.settings_uri, {"Attributes": dict(values), **annotations}, bios.settings_etag)
    except RedfishError as error:
        # Older IEIT firmware wants the bare attributes; only those that show them nested do.
        if error.status != 400 or not bios.nested:
            raise _refused(client, bios, error, freed or {}) from None
        try:
            answer = client.patch(bios.settings_uri, dict(values), bios.settings_etag)
        except RedfishError as second:
            raise _refused(client, bios, second, freed or {}) from None
    _follow(client, answer)
    return answer


def _refused(client: RedfishClient, bios: BiosResource, error: RedfishError, freed: Mapping[str, str]) -> RedfishError:
    text = str(error)
    # What the BMC said, without our own words and the address (Lenovo's ends in /Bios/Pending).
    match = re.search(r'HTTP \d+ \("(.*)"\)', text, re.DOTALL)
    said = match.group(1) if match else ""
    named = [name for name in freed if re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", said)]
    if error.status in (400, 403, 409) and named:
        return TwoRestartsError(
            f"{text}; it judges {listed(named, 5)} by what is applied now (locked while {freed[named[0]]}) and not by what the"
            " same request makes of it, so that two restarts are needed: ask for the unlocking setting alone, restart, and run"
            " again for the rest; nothing was written",
            error.status,
        )
    if error.status in (400, 409, 503) and re.search(r"\b(jobs?|tasks?|pending|queue|in use)\b", said, re.IGNORECASE):
        return QueueBlockedError(
            f"{text}; another configuration job seems to block the queue of {client.options.base_url}, but the BMC lists none:"
            " let it finish (a restart) or delete it, then run again",
            error.status,
        )
    return error


def _follow(client: RedfishClient, answer: Answer) -> None:
    """Follow a task until it waits for the restart or is done; a failed one is an error."""
    if not answer.task_uri:
        return
    deadline = time.monotonic() + client.options.timeout_seconds
    while time.monotonic() < deadline:
        task = client.get_optional(answer.task_uri)
        state = str(task.get("TaskState") or task.get("JobState") or "").lower()
        if state in _FAILED:
            reason = error_text({"error": {"@Message.ExtendedInfo": task.get("Messages")}}) or task.get("TaskState")
            raise RedfishError(
                f"The BMC at {client.options.base_url} took the BIOS settings but its task {answer.task_uri} failed:"
                f" {reason}; correct the cause and run again"
            )
        if not state or state in _WAITING:
            return
        time.sleep(_TASK_PAUSE_SECONDS)


def confirm_staged(client: RedfishClient, bios: BiosResource, values: Mapping[str, Value]) -> BiosResource:
    """Read back after staging, since some BMCs answer 200 and keep nothing, or a part. That part is taken back.

    Raises:
        RedfishError: a value is neither staged nor applied.
    """
    again = read_bios_values(client, bios)
    known = again.state.registry
    missing = []
    for name, value in values.items():
        effective = again.state.pending.get(name, again.state.applied.get(name))
        same = known.same(name, effective, value) if known else effective == value
        if not same:
            missing.append(f"{name} (wanted {value}, found {effective})")
    if missing:
        raise RedfishError(
            f"The BMC at {client.options.base_url} accepted the BIOS settings but does not show them as staged:"
            f" {listed(missing)}{_take_back(client, bios, again, values)}; another tool or a queued job may hold them: look"
            f" at {bios.settings_uri}"
        )
    return again


def _take_back(client: RedfishClient, before: BiosResource, now: BiosResource, values: Mapping[str, Value]) -> str:
    """Half a request is worse than none: set back what the BMC did keep of it; return what to add to the sentence."""
    was, pending = before.state.pending, now.state.pending
    kept = [name for name in values if name in pending and pending[name] != was.get(name)]
    back = {name: was.get(name, now.state.applied.get(name)) for name in kept}
    back = {name: value for name, value in back.items() if value is not None}
    if not back:
        return ""
    try:
        stage(client, now, back)
    except RedfishError:
        return f" ({listed(list(back))} stays staged: the BMC did not let it be taken back)"
    return f" ({listed(list(back))}, which it did keep, was taken back)"


def read_bios_values(client: RedfishClient, bios: BiosResource) -> BiosResource:
    """Read applied and pending values again, with the registry already at hand."""
    document = client.get(bios.uri)
    settings, etag = client.get_with_etag(bios.settings_uri) if bios.settings_uri else ({}, "")
    state = BiosState(
        flatten(mapping(document, "Attributes")), flatten(mapping(settings, "Attributes")), bios.state.registry
    )
    return BiosResource(
        system=bios.system,
        uri=bios.uri,
        document=document,
        settings_uri=bios.settings_uri,
        settings_etag=etag,
        apply_times=bios.apply_times,
        nested=bios.nested,
        state=state,
        registry_uri=bios.registry_uri,
        warnings=bios.warnings,
    )
