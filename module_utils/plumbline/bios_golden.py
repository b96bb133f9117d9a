"""All BIOS attributes of a machine as a document, and what of such a document may be put on a machine.

A *golden file* is JSON or YAML with at least `attributes`; `redfish_bios_snapshot` writes one with everything else in it. What
belongs to one machine (serial number, addresses, boot order), what starts an action (restore defaults, erase) and what is secret
is never put on another machine. Nothing here reads files or talks to a BMC.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .bios_dependencies import locks
from .bios_registry import Attribute, Registry, SettingError, Value, listed, nearest
from .bios_settings import BiosState

Json = dict[str, Any]
FORMAT = "plumbline-bios-1"
_KEYS: dict[str, type] = {
    "format": str,
    "host": str,
    "taken_at": str,
    "manufacturer": str,
    "model": str,
    "bios_version": str,
    "registry": str,
    "attributes": Mapping,
    "display_names": Mapping,
    "read_only": list,
    "left_out": Mapping,
}

# By the names that IEIT, Dell, HPE, Lenovo and Supermicro give; the captured trees and docs/bios.md are the sources. A password's
# hash and salt (Dell: SHA256SetupPasswordSalt) are as good as the password to whoever has time.
_SECRET = re.compile(r"(?i:pass(word|wd|phrase)|secret|privatekey|encryptionkey|keyfile)|Chap(?![a-z])|CHAP")
# Says something about passwords and is none.
_NO_SECRET = re.compile(r"password(status|state|lock|policy|expiration|length)|minimumpassword", re.IGNORECASE)
_MACHINE = re.compile(
    r"serial_?(number|no)(?![a-z])|service_?tag|asset_?tag(?!protection)|uuid(?!control)|guid|mac_?addr|wwn|wwpn|iqn|initiator_?name"
    r"|^(server|host|system|product|chassis|node)_?(name|id|sku)|hostname|primaryos$"
    r"|^(admin|service|server)(name|email|phone|otherinfo)$"
    r"|ip(v[46])?_?(address|addr|subnet|gateway|primarydns|secondarydns|duid)|subnet_?mask|default_?gateway|dns_?server|^vlanid$"
    r"|(?<!ipxe)(?<!shell)boot_?order(?!policy)|boot_?seq(?!retry)|^boot(_?option|_?device)_?\d|hdd_?order|hddseq|urlboot|startup_?url$|bootfile"
    r"|^slot\d+(nic|storage)boot|custompostmessage|publickeyhash|(?<!up)date$|^time$|systemtime",
    re.IGNORECASE,
)
# Attributes that are buttons: set, they do something at the next restart and fall back.
_ACTION = re.compile(
    r"restore(manufacturing)?defaults|(erase|save|load)user_?defaults|load_?default|factory_?reset|secure_?erase|sanitize|clear_?(nvram|cmos|tpm)"
    r"|tpm\d?_?operation|tpm_?clear|onetime|powercyclerequest|forcetpm|romselection",
    re.IGNORECASE,
)


class GoldenFileError(SettingError):
    """A golden file that cannot be used; one sentence that names the place."""


@dataclass(frozen=True)
class Golden:
    """A golden file, checked; `origin` is where it came from."""

    attributes: Mapping[str, Value]
    origin: str = "the golden file"
    host: str = ""
    model: str = ""
    registry: str = ""
    bios_version: str = ""
    taken_at: str = ""
    display_names: Mapping[str, str] = field(default_factory=dict)
    read_only: tuple[str, ...] = ()


@dataclass
class Selection:
    """What of a golden file is put on a machine, and why the rest of what differs is not."""

    settings: dict[str, Value] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def is_secret(name: str, attribute: Attribute | None = None) -> bool:
    """Whether an attribute holds a password or what comes of one."""
    if attribute is not None and attribute.type == "Password":
        return True
    return bool(_SECRET.search(name)) and not _NO_SECRET.search(name)


def particular(name: str) -> str:
    """Why an attribute is never taken from one machine to another; empty where it may be."""
    if is_secret(name):
        return "a password or made of one"
    if _MACHINE.search(name):
        return "it belongs to one machine"
    return "it starts an action" if _ACTION.search(name) else ""


def snapshot(state: BiosState, system: Mapping[str, Any], host: str, taken_at: str) -> Json:
    """All applied attributes of a machine but the secret ones, as a document for a file.

    Args:
        state: the machine's BIOS.
        system: its ComputerSystem resource.
        host: the name that the inventory has for it.
        taken_at: when, as ISO 8601 in UTC.
    """
    described = state.registry.attributes if state.registry else {}
    kept = {n: v for n, v in sorted(state.applied.items()) if not is_secret(n, described.get(n))}
    return {
        "format": FORMAT,
        "host": host,
        "taken_at": taken_at,
        "manufacturer": str(system.get("Manufacturer") or ""),
        "model": str(system.get("Model") or ""),
        "bios_version": str(system.get("BiosVersion") or ""),
        "registry": state.registry.id if state.registry else "",
        "attributes": kept,
        "display_names": {
            n: described[n].display for n in kept if n in described and described[n].display not in ("", n)
        },
        "read_only": [n for n in kept if n in described and described[n].read_only],
        "left_out": dict.fromkeys(sorted(set(state.applied) - set(kept)), "a password or made of one"),
    }


def read_golden(data: Any, origin: str) -> Golden:
    """Check a document from a golden file.

    Raises:
        GoldenFileError: it is malformed; the sentence names what was expected.
    """
    if not isinstance(data, Mapping):
        raise GoldenFileError(
            f"{origin} is no golden file: expected a mapping with attributes, found {type(data).__name__}"
        )
    for key, value in data.items():
        if key not in _KEYS:
            close = nearest(str(key), list(_KEYS))
            hint = f'; did you mean "{close[0]}"?' if close else ""
            raise GoldenFileError(
                f'{origin} is no golden file: there is no key "{key}", expected {listed(list(_KEYS))}{hint}'
            )
        if not isinstance(value, _KEYS[key]):
            raise GoldenFileError(f"{origin} is no golden file: {key} must be a {_words(_KEYS[key])}, found {value!r}")
    if data.get("format", FORMAT) != FORMAT:
        raise GoldenFileError(
            f'{origin} has the format "{data["format"]}": expected {FORMAT}; write it again with bios_backup.yml'
        )
    attributes = data.get("attributes")
    if not attributes:
        raise GoldenFileError(f"{origin} is no golden file: expected attributes with at least one, found none")
    for name, value in attributes.items():
        if not isinstance(name, str) or isinstance(value, (Mapping, list)):
            raise GoldenFileError(
                f"{origin} is no golden file: attributes must map names to single values, found {name!r}: {value!r}"
            )
    text = {key: str(data.get(key, "")) for key in ("host", "model", "registry", "bios_version", "taken_at")}
    return Golden(
        attributes=dict(attributes),
        origin=origin,
        display_names=dict(data.get("display_names") or {}),
        read_only=tuple(str(name) for name in data.get("read_only") or ()),
        **text,
    )


def _words(kind: type) -> str:
    return "text (in quotes)" if kind is str else "list" if kind is list else "mapping"


def same_registry(left: str, right: str) -> bool:
    """Whether two registry ids are of one kind of BIOS, whatever its version (`BiosAttributeRegistryU58.v1_2_44`)."""

    def bare(name: str) -> str:
        return re.sub(r"[._]v?\d+[._]\d+([._]\d+)?$", "", name.lower())

    return bare(left) == bare(right)


def select(golden: Golden, state: BiosState, model: str, other_model: bool = False) -> Selection:
    """What of a golden file the engine is asked to set on this machine.

    What is left out is named where it differs from what the machine has. `other_model` allows a file of another model or
    registry; names and values that this machine does not know are then left out instead of refused.

    Raises:
        GoldenFileError: the file is of another model or registry.
    """
    registry = state.registry or Registry()
    _check_origin(golden, registry, model, other_model)
    result = Selection()
    if golden.registry and registry.id and golden.registry != registry.id:
        result.warnings.append(
            f"{golden.origin} was made with the registry {golden.registry}, this machine has {registry.id}: another BIOS version"
        )
    wanted: dict[str, Value] = {}
    for name, value in golden.attributes.items():
        reason = _reason(name, value, state, registry, other_model)
        if reason is None:
            wanted[name] = value
        elif reason and not registry.same(name, value, state.applied.get(name)):
            result.left_out[name] = reason
    # A profile of the golden file locks what it sets itself: that comes with the profile.
    final = {**state.applied, **{name: registry.canonical(name, value) for name, value in wanted.items()}}
    for name in list(wanted):
        if registry.same(name, wanted[name], state.applied.get(name)) and name not in state.pending:
            continue
        found = locks(registry, final, name)
        triggers = {c.attribute for lock in found if lock.dependency for c in lock.dependency.conditions}
        if found and triggers & set(wanted) - {name}:
            result.left_out[name] = f"{found[0].text()}, which the golden file asks for"
            del wanted[name]
    result.settings = wanted
    return result


def _check_origin(golden: Golden, registry: Registry, model: str, other_model: bool) -> None:
    differences = []
    if golden.model and model and golden.model.strip().lower() != model.strip().lower():
        differences.append(f"of the model {golden.model}, this machine is a {model}")
    if golden.registry and registry.id and not same_registry(golden.registry, registry.id):
        differences.append(f"of the registry {golden.registry}, this machine has {registry.id}")
    if differences and not other_model:
        raise GoldenFileError(
            f"{golden.origin} is {' and '.join(differences)}: take a file of the same model, or allow another one"
            " (bios_restore_other_model: true), which leaves out what this machine does not know"
        )


def _reason(name: str, value: Value, state: BiosState, registry: Registry, other_model: bool) -> str | None:
    """Why an attribute is left out; None where it is not, empty where that is not worth a word."""
    attribute = registry.attributes.get(name)
    why: str | None = None
    if particular(name) or is_secret(name, attribute):
        why = particular(name) or "a password or made of one"
    elif value is None:
        why = ""
    elif name not in state.applied:
        why = "this machine does not have it"
    elif attribute is None:
        why = "the registry does not describe it"
    elif attribute.read_only or attribute.hidden or attribute.gray_out:
        why = f"{'read-only' if attribute.read_only else 'hidden' if attribute.hidden else 'inactive'} in the registry"
    elif other_model:
        try:
            attribute.accept(value)
        except SettingError as error:
            why = str(error)
    return why
