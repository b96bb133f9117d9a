"""From logical settings (`turbo: enabled`) to the attributes of one machine, by the vendors' data and the live registry."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from .bios_registry import Condition, Dependency, Registry, SettingError, Value, listed, nearest, quoted
from .bios_settings import BiosState
from .bios_vendor_data import requirements

VendorMaps = Sequence[Mapping[str, Any]]
# Supermicro: `CPUC6Report_3D22`, `EnhancedHaltState_C1E__3D23`.
_BOARD_SUFFIX = re.compile(r"_+[0-9A-F]{4}$")


@dataclass
class Resolved:
    """What logical settings come to on one machine.

    `settings` are attributes with wanted values, `sources` the attributes of each logical setting, `unsupported` the reason
    for each one that this machine does not offer.
    """

    vendor: str = ""
    settings: dict[str, Value] = field(default_factory=dict)
    sources: dict[str, list[str]] = field(default_factory=dict)
    unsupported: dict[str, str] = field(default_factory=dict)


def names(maps: VendorMaps) -> list[str]:
    """All logical settings that any vendor's data knows."""
    return sorted({name for vendor in maps for name in vendor["logical"]})


def values(maps: VendorMaps, name: str) -> list[str]:
    """All values that any vendor's data knows for a logical setting."""
    found = {str(value) for vendor in maps for value in vendor["logical"].get(name, {})}
    # Vendors without such an attribute have nothing to set, which is what "auto" asks for.
    return sorted(found | ({"auto"} if name == "pcie_link_speed" else set()))


def vendor_maps(maps: VendorMaps, manufacturer: str) -> list[Mapping[str, Any]]:
    """The data of the machine's vendor; of all vendors where it is not known which one it is."""
    lower = manufacturer.strip().lower()
    found = [vendor for vendor in maps if any(lower.startswith(word) for word in vendor["manufacturers"])]
    return found or list(maps)


def check(maps: VendorMaps, logical: Mapping[str, Any]) -> list[str]:
    """One sentence for each logical setting that no vendor knows, or whose value none knows; empty where all are sound."""
    if logical and not maps:
        return [
            "logical settings were asked for without the vendors' mappings: run the task by its full name"
            " plumbline.plumbline.redfish_bios, whose action reads them, or give vendor_mappings"
        ]
    problems = []
    known = names(maps)
    for name, value in logical.items():
        if name not in known:
            close = nearest(str(name), known)
            hint = f'did you mean "{close[0]}"?' if close else f"expected one of {listed(known, 20)}"
            problems.append(f"there is no logical BIOS setting {quoted(name)}: {hint}")
        elif isinstance(value, bool):
            problems.append(
                f"the logical setting {name} got the boolean {str(value).lower()}, since YAML reads on, off, yes and no as"
                f" booleans: write one of {listed(values(maps, name))}"
            )
        elif str(value) not in values(maps, name):
            close = nearest(str(value), values(maps, name))
            hint = f'; did you mean "{close[0]}"?' if close else ""
            problems.append(
                f"the logical setting {name} has no value {quoted(value)}: expected one of {listed(values(maps, name))}{hint}"
            )
    return problems


def resolve(state: BiosState, all_maps: VendorMaps, logical: Mapping[str, Any], manufacturer: str) -> Resolved:
    """Choose the attributes for logical settings that `check` has found sound."""
    maps = vendor_maps(all_maps, manufacturer)
    result = Resolved(vendor=maps[0]["vendor"] if len(maps) == 1 else "")
    for name, value in logical.items():
        reasons: list[str] = []
        for vendor in maps:
            chosen = _choose(state, vendor["logical"].get(name, {}).get(str(value), ()), reasons)
            if chosen:
                result.settings.update(chosen)
                result.sources[name] = sorted(chosen)
                break
        else:
            if name == "pcie_link_speed" and value == "auto":
                result.sources[name] = []
                continue
            who = result.vendor or "any known vendor's"
            result.unsupported[name] = (
                "; ".join(dict.fromkeys(reasons)) or f"no attribute of {who} BIOS is known for it"
            )
    return result


def _choose(state: BiosState, candidates: Sequence[Mapping[str, Any]], reasons: list[str]) -> dict[str, Value]:
    for candidate in candidates:
        chosen: dict[str, Value] = {}
        for position, (pattern, wanted) in enumerate(candidate.items()):
            found = matching(pattern, state)
            if not found and position == 0:
                reasons.append(f"it has no attribute {pattern}")
                break
            fitting = {name: fit for name in found if (fit := _fitting(state, name, wanted)) is not None}
            if position == 0 and len(fitting) < len(found):
                misfits = [name for name in found if name not in fitting]
                reasons.append(f"{misfits[0]} does not take {listed(wanted)}")
                break
            chosen.update(fitting)
        else:
            return chosen
    return {}


def matching(pattern: str, state: BiosState) -> list[str]:
    """The machine's attributes that a name of the vendors' data stands for."""
    if pattern in state.applied:
        return [pattern]
    if "*" in pattern:
        return sorted(name for name in state.applied if fnmatchcase(name, pattern))
    return [name for name in state.applied if _BOARD_SUFFIX.sub("", name) == pattern][:1]


def _fitting(state: BiosState, name: str, wanted: Sequence[Value]) -> Value | None:
    """The first of the wanted values that the registry allows; without a description, one of the kind that is there now."""
    attribute = state.registry.attributes.get(name) if state.registry else None
    for value in wanted:
        if attribute is None:
            if type(value) is type(state.applied[name]):
                return value
            continue
        try:
            attribute.accept(value)
        except SettingError:
            continue
        return value
    return None


def add_requirements(registry: Registry, state: BiosState, all_maps: VendorMaps, manufacturer: str) -> None:
    """Give the registry the vendor's known locks for attributes that it describes without any of its own."""
    maps = vendor_maps(all_maps, manufacturer)
    if len(maps) != 1:
        return
    with_locks = {d.target for d in registry.dependencies if d.prop in ("ReadOnly", "GrayOut", "Hidden")}
    for pattern, needs in requirements(maps[0]).items():
        for name in matching(pattern, state):
            for trigger, value in needs.items():
                known = trigger in state.applied and trigger in registry.attributes
                if name in with_locks or name not in registry.attributes or not known:
                    continue
                condition = Condition(trigger, "CurrentValue", "NEQ", value)
                registry.dependencies.append(Dependency((condition,), name, "ReadOnly", True))
