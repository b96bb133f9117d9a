"""BIOS settings read back after the restart, as measurements for the gate: no opinion, only value, expectation and cause."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .bios_dependencies import locks
from .bios_registry import Registry, Value
from .bios_settings import BiosState

Measurement = dict[str, Any]


def setting_measurements(
    state: BiosState,
    desired: Mapping[str, Value],
    *,
    messages: Mapping[str, str] | None = None,
    next_command: str = "",
) -> list[Measurement]:
    """One `bios_setting` for every wanted attribute: its applied value beside the expected one.

    Args:
        state: the machine after the restart.
        desired: canonical wanted values by attribute (`Plan.desired`).
        messages: what the BMC said of single attributes when it last applied settings.
        next_command: what to run where a setting did not take.
    """
    registry = state.registry or Registry()
    result = []
    for name, wanted in desired.items():
        value = registry.canonical(name, state.applied.get(name))
        measurement: Measurement = {"name": "bios_setting", "scope": name, "value": value, "expected": wanted}
        if value is None:
            del measurement["value"]
            measurement["error"] = f"the BMC no longer shows the attribute {name}"
        elif not registry.same(name, value, wanted):
            measurement["cause"] = _cause(state, desired, name, wanted, (messages or {}).get(name, ""))
            measurement["next_command"] = next_command
        elif registry.same(name, value, wanted):
            # One text for both, so that a comparison of texts agrees with the registry's.
            measurement["value"] = wanted
        result.append(measurement)
    return result


def _cause(state: BiosState, desired: Mapping[str, Value], name: str, wanted: Value, message: str) -> str:
    registry = state.registry or Registry()
    if name in state.pending:
        if registry.same(name, state.pending[name], wanted):
            return "it is staged and waits for a restart"
        return f"something else staged {state.pending[name]} for it"
    if message:
        return f"the BMC says: {message}"
    found = locks(registry, {**state.applied, **desired}, name) or locks(registry, state.applied, name)
    if found:
        return found[0].text()
    lockable = any(d.target == name and d.prop in ("ReadOnly", "GrayOut", "Hidden") for d in registry.dependencies)
    # Some BIOS judge a lock by what was applied when the restart began.
    second = "; where its profile became active with the same restart, it may take a second one" if lockable else ""
    return f"the BIOS dropped the staged value, or it was changed since{second}"


def pending_measurement(state: BiosState, reset_to_defaults: bool = False) -> Measurement:
    """`bios_pending_values`: how many values still wait for a restart; 0 is what is expected after one."""
    waiting = [f"{name} = {value}" for name, value in sorted(state.pending.items())]
    if reset_to_defaults:
        waiting.append("a reset of all attributes to their defaults")
    measurement: Measurement = {
        "name": "bios_pending_values",
        "scope": "bios",
        "value": len(waiting),
        "unit": "values",
        "expected": 0,
    }
    if waiting:
        shown = ", ".join(waiting[:8]) + (f" and {len(waiting) - 8} more" if len(waiting) > 8 else "")
        measurement["cause"] = f"still staged: {shown}"
    return measurement


def unsupported_measurements(unsupported: Mapping[str, str]) -> list[Measurement]:
    """Logical settings that the machine does not offer, as skipped measurements with the reason."""
    return [
        {"name": "bios_setting", "scope": name, "skipped": f"this BIOS does not offer it: {reason}"}
        for name, reason in unsupported.items()
    ]
