"""Firmware versions beside their floors, as measurements for the gate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from .bios_registry import listed, nearest
from .firmware_versions import compare_versions

Component = Mapping[str, Any]
Measurement = dict[str, Any]

ADD_IMAGE = "name an image for it in firmware_images (docs/firmware.md), or update it with the vendor's tool"


def find_components(components: Sequence[Component], wanted: str) -> list[Component]:
    """The components that a floor's key means: by id, by name, or by a pattern with `*`; capitals do not count.

    Several may be meant (one name for eight GPUs); each is judged.
    """
    key = wanted.lower()
    for field in ("id", "name"):
        found = [item for item in components if str(item[field]).lower() == key]
        if found:
            return found
    if "*" not in key:
        return []
    return [item for item in components if any(fnmatchcase(str(item[field]).lower(), key) for field in ("id", "name"))]


def floor_measurements(components: Sequence[Component], floors: Mapping[str, Any]) -> list[Measurement]:
    """One `firmware_version` for every component that has a floor.

    A component that is not there, and a version whose order is not known, become an error, which the gate calls UNKNOWN: neither
    is good enough.
    """
    result: list[Measurement] = []
    for wanted, floor in floors.items():
        found = find_components(components, str(wanted))
        if not found:
            result.append(_missing(components, "firmware_floors", str(wanted)))
        result += [_judgeable(item, str(floor)) for item in found]
    return result


def no_component(components: Sequence[Component], wanted: str) -> str:
    """Say that the inventory lacks a component, and what it has."""
    ids = sorted(str(item["id"]) for item in components)
    close = nearest(wanted, ids)
    hint = f' (did you mean "{close[0]}"?)' if close else ""
    return f'the firmware inventory has no component "{wanted}"{hint}; it lists {listed(ids, 20) or "nothing"}'


def pin_measurements(components: Sequence[Component], pins: Mapping[str, Any]) -> list[Measurement]:
    """One `firmware_pin` for every component whose version is pinned; errors as with floors."""
    result: list[Measurement] = []
    for wanted, pin in pins.items():
        found = find_components(components, str(wanted))
        if not found:
            result.append(_missing(components, "firmware_pins", str(wanted)))
        result += [_pinned(item, str(pin)) for item in found]
    return result


def _missing(components: Sequence[Component], variable: str, wanted: str) -> Measurement:
    return {
        "name": "firmware_version" if variable == "firmware_floors" else "firmware_pin",
        "scope": wanted,
        "error": no_component(components, wanted),
        "next_command": f"correct the key in {variable}",
    }


def _pinned(item: Component, pin: str) -> Measurement:
    version = str(item["version"])
    measurement: Measurement = {"name": "firmware_pin", "scope": str(item["id"])}
    order = compare_versions(version, pin)
    if order is None:
        measurement["error"] = _no_order(version, "pin", pin)
        return measurement
    # One text for both where they are the same version, so that a comparison of texts agrees.
    measurement.update(value=pin if order == 0 else version, expected=pin)
    if order:
        age = "older" if order < 0 else "newer"
        measurement["cause"] = f"{item['name']} runs {version}, {age} than the pin {pin} of this inventory"
        measurement["next_command"] = ADD_IMAGE
    return measurement


def _no_order(version: str, what: str, wanted: str) -> str:
    found = f'"{version}"' if version else "no version"
    return f'the order of {found} and the {what} "{wanted}" is not known: write the {what} in the form that the component reports'


def _judgeable(item: Component, floor: str) -> Measurement:
    scope, version = str(item["id"]), str(item["version"])
    measurement: Measurement = {"name": "firmware_version", "scope": scope}
    if compare_versions(version, floor) is None:
        measurement["error"] = _no_order(version, "floor", floor)
        return measurement
    measurement.update(value=version, expected=floor)
    if compare_versions(version, floor) == -1:
        measurement["cause"] = f"{item['name']} runs {version}, older than the floor {floor} of this inventory"
        measurement["next_command"] = ADD_IMAGE
    return measurement
