"""Firmware versions beside their floors, as measurements for the gate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from .bios_registry import listed, nearest
from .firmware_versions import compare_versions

Component = Mapping[str, Any]
Measurement = dict[str, Any]


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
            result.append(_missing(components, str(wanted)))
        result += [_judgeable(item, str(floor)) for item in found]
    return result


def _missing(components: Sequence[Component], wanted: str) -> Measurement:
    ids = sorted(str(item["id"]) for item in components)
    close = nearest(wanted, ids)
    hint = f' (did you mean "{close[0]}"?)' if close else ""
    return {
        "name": "firmware_version",
        "scope": wanted,
        "error": f'the firmware inventory has no component "{wanted}"{hint}; it lists {listed(ids, 20) or "nothing"}',
        "next_command": "correct the key in firmware_floors",
    }


def _judgeable(item: Component, floor: str) -> Measurement:
    scope, version = str(item["id"]), str(item["version"])
    measurement: Measurement = {"name": "firmware_version", "scope": scope}
    if compare_versions(version, floor) is None:
        found = f'"{version}"' if version else "no version"
        measurement["error"] = (
            f'the order of {found} and the floor "{floor}" is not known: write the floor in the form that the component reports'
        )
        return measurement
    measurement.update(value=version, expected=floor)
    if compare_versions(version, floor) == -1:
        measurement["cause"] = f"{item['name']} runs {version}, older than the floor {floor} of this inventory"
        measurement["next_command"] = "update it with the vendor's tool (Plumbline does not update firmware yet)"
    return measurement
