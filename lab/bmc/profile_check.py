"""What a profile may say: checked when it is loaded, so that a misspelt quirk does not pass for a firmware's behaviour."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterable, Mapping
from typing import Any

Json = dict[str, Any]
LOG = logging.getLogger("lab.bmc.profile")

_FLAG = (True, False)
# Quirk to its values; a type where they are not a list of choices.
QUIRKS: dict[str, tuple[Any, ...] | type] = {
    "shape": ("flat", "nested"),
    "patch_body": ("wrapped", "bare", "either"),
    "settings_shows": ("pending", "all"),
    "settings_reply": ("200", "204", "202_task", "202_bare"),
    "settings_message": dict,
    "settings_annotation": (True, False, "without_object"),
    "settings_annotation_apply_time": _FLAG,
    "supported_apply_times": _FLAG,
    "bios_names_registry": _FLAG,
    "bios_shows_pending": _FLAG,
    "apply": ("reset", "job"),
    "job_limit": int,
    "drop_equal_pending": _FLAG,
    "clear_by_delete": _FLAG,
    "patch_on_bios": _FLAG,
    "empty_until_post": _FLAG,
    "max_attributes": int,
    "reset_bios_strict": _FLAG,
    "etag": dict,
    "trailing_slash": _FLAG,
    "expand": _FLAG,
    "chassis": ("classic", "modern", "both"),
}
_ETAG = {
    "style": ("strong", "weak", "unquoted", "none"),
    "match": ("lenient", "exact", "unquoted"),
    "required": _FLAG,
}
_OBJECTS = ("system", "bios", "quirks", "ids", "segments", "uris", "timing", "memory", "root_oem", "log", "update")
# Lists of objects, with the members that each object must have.
_LISTS: dict[str, tuple[str, ...]] = {
    "firmware": ("Id", "Version"),
    "processors": ("Id",),
    "pcie_devices": ("Id",),
    "ethernet": ("Id",),
    "other_systems": ("Id",),
    "power_supplies": (),
    "sensors": (),
}
_TEXTS = ("_source", "vendor", "product", "extends", "bios_firmware", "manager_firmware", "manager_model")
_OTHER = ("reset_types",)
_SECTIONS = {
    "ids": ("system", "chassis", "manager"),
    "segments": ("Systems", "Bios", "Settings", "Chassis", "Managers"),
    "uris": ("bios", "settings"),
    "timing": ("post", "off", "os_boot", "status_interval", "update", "job", "bmc_restart"),
}


def _spelling(where: str, given: Iterable[str], known: Iterable[str]) -> Iterable[str]:
    """Refuse a key that is nearly a known one; report any other, since a part of the simulator may read it."""
    names = list(known)
    for name in given:
        if name in names:
            continue
        close = difflib.get_close_matches(name, names, 1, 0.75)
        if close:
            yield f"{where}{name} is not known, did you mean {close[0]}?"
        else:
            LOG.warning("%s%s is not known to the profile's check; known are %s", where, name, ", ".join(names))


def _values(where: str, given: Mapping[str, Any], allowed: Mapping[str, Any]) -> Iterable[str]:
    for name, value in given.items():
        expected = allowed.get(name)
        if expected is None:
            continue
        if isinstance(expected, type):
            if not isinstance(value, expected) or isinstance(value, bool):
                yield f"{where}{name} must be {'an object' if expected is dict else 'an integer'}, found {value!r}"
        elif not any(value is one or (value == one and type(value) is type(one)) for one in expected):
            yield f"{where}{name} must be one of {', '.join(map(str, expected))}, found {value!r}"


def problems(data: Json) -> list[str]:
    """Return what is wrong with a profile's data, each as the beginning of a sentence; empty where nothing is."""
    return list(_shape(data)) or [*_quirks(data.get("quirks", {})), *_sections(data)]


def _shape(data: Json) -> Iterable[str]:
    """Whether every part is of the kind that the simulator takes it for."""
    for names, kind, text in ((_OBJECTS, dict, "an object"), (_TEXTS, str, "a string")):
        for name in names:
            if name in data and not isinstance(data[name], kind):
                yield f"{name} must be {text}, found {data[name]!r}"
    yield from _spelling("", data, (*_OBJECTS, *_LISTS, *_TEXTS, *_OTHER))
    yield from (f"the object {name} is missing" for name in ("system", "bios") if name not in data)
    types = data.get("reset_types", [])
    if not isinstance(types, list) or not all(isinstance(one, str) for one in types):
        yield "reset_types must be a list of strings"
    for name, members in _LISTS.items():
        items = data.get(name, [])
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            yield f"{name} must be a list of objects"
            continue
        for index, item in enumerate(items):
            yield from (f"{name}[{index}] lacks {one}" for one in members if not isinstance(item.get(one), str))


def _quirks(quirks: Json) -> Iterable[str]:
    yield from _spelling("quirks.", quirks, QUIRKS)
    yield from _values("quirks.", quirks, QUIRKS)
    etag = quirks.get("etag", {})
    if isinstance(etag, dict):
        yield from (f"quirks.etag.{name} is not one of {', '.join(_ETAG)}" for name in sorted(set(etag) - set(_ETAG)))
        yield from _values("quirks.etag.", etag, _ETAG)


def _sections(data: Json) -> Iterable[str]:
    for section, keys in _SECTIONS.items():
        for name, value in data.get(section, {}).items():
            if name not in keys:
                yield f"{section}.{name} is not one of {', '.join(keys)}"
            elif section == "timing":
                if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
                    yield f"timing.{name} must be seconds, 0 or more, found {value!r}"
            elif not isinstance(value, str) or not value:
                yield f"{section}.{name} must be a string, found {value!r}"
