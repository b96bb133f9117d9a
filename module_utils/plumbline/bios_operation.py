"""The two things that `redfish_bios` does with a logged-in client: stage settings, and verify them after the restart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .bios_logical import Resolved, add_requirements, check, resolve
from .bios_measurements import pending_measurement, setting_measurements, unsupported_measurements
from .bios_registry import Registry, Value
from .bios_resource import BiosResource, confirm_staged, read_bios, stage
from .bios_settings import Plan, RefusedSettingsError, accept, plan
from .redfish_client import RedfishClient
from .redfish_connection import ConflictError, RedfishError

Json = dict[str, Any]


@dataclass
class Request:
    """What was asked for; see the options of the module `redfish_bios`."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    logical: Mapping[str, Any] = field(default_factory=dict)
    unsupported: str = "warn"
    unlock: bool = False
    foreign_pending: str = "keep"
    require_registry: bool = True
    system_id: str = ""
    check_mode: bool = False
    next_command: str = ""


def _prepare(client: RedfishClient, request: Request) -> tuple[BiosResource, Resolved, dict[str, Any]]:
    """Read the machine and bring logical and raw settings together; raw ones are the more special and win."""
    problems = check(request.logical)
    if problems:
        raise RefusedSettingsError(problems)
    bios = read_bios(client, request.system_id)
    if bios.state.registry is not None:
        add_requirements(bios.state.registry, bios.state, bios.manufacturer)
    resolved = resolve(bios.state, request.logical, bios.manufacturer)
    if resolved.unsupported and request.unsupported == "fail":
        raise RefusedSettingsError(
            [f"this machine does not offer {name}: {reason}" for name, reason in resolved.unsupported.items()]
        )
    return bios, resolved, {**resolved.settings, **request.settings}


def _about(bios: BiosResource, resolved: Resolved) -> Json:
    registry = bios.state.registry
    return {
        "registry": registry.id if registry else "",
        "bios_version": str(bios.system.get("BiosVersion") or ""),
        "settings_uri": bios.settings_uri,
        "logical": resolved.sources,
        "unsupported": resolved.unsupported,
    }


def stage_settings(client: RedfishClient, request: Request) -> Json:
    """Validate, compare, and stage what differs; in check mode everything but the writing.

    Raises:
        RefusedSettingsError: the request cannot be staged; nothing was written.
        RedfishError: the BMC could not be asked, or did not keep the values.
    """
    for attempt in (1, 2):
        bios, resolved, settings = _prepare(client, request)
        made = plan(
            bios.state,
            settings,
            unlock=request.unlock,
            foreign_pending=request.foreign_pending,
            require_registry=request.require_registry,
        )
        _allow_writing(bios, made)
        if made.write and not request.check_mode:
            try:
                stage(client, bios, made.write)
            except ConflictError:
                # Somebody else wrote in between: look again at what is there now, once.
                if attempt == 2:
                    raise
                continue
            confirm_staged(client, bios, made.write)
        break
    return {
        "changed": bool(made.write),
        **_about(bios, resolved),
        "settings": _settings(bios, made),
        "staged": made.write,
        "cleared": made.cleared,
        "unlocked": made.unlocked,
        "foreign_pending": made.foreign,
        "restart_required": made.restart_required,
        "diff": diff(made, bios.state.registry),
        "warnings": bios.warnings + made.warnings,
    }


def _allow_writing(bios: BiosResource, made: Plan) -> None:
    if made.write and bios.reset_to_defaults:
        raise RedfishError(
            "A reset of all BIOS attributes to their defaults waits for the next restart and would undo what is staged now:"
            " restart the machine first, or clear the reset in the BMC"
        )


def _settings(bios: BiosResource, made: Plan) -> list[Json]:
    """Every wanted attribute in its three states, as they were before this run."""
    return [
        {
            "attribute": name,
            "desired": value,
            "applied": bios.state.applied.get(name),
            "pending": bios.state.pending.get(name),
        }
        for name, value in made.desired.items()
    ]


def diff(made: Plan, registry: Registry | None) -> Json:
    """Before and after as a person reads them: applied, pending and desired of every attribute that changes."""
    known = registry or Registry()

    def line(name: str, applied: Value, pending: Value, desired: Value) -> str:
        staged = "nothing" if pending is None else known.shown(name, pending)
        return f"{name}: applied {known.shown(name, applied)}, pending {staged}, desired {known.shown(name, desired)}\n"

    before, after = "", ""
    for change in sorted(made.changes, key=lambda item: item.attribute):
        name, desired = change.attribute, change.desired
        staged = None if known.same(name, desired, change.applied) else desired
        before += line(name, change.applied, change.pending, desired)
        after += line(name, change.applied, staged, desired)
    return {"before_header": "BIOS", "after_header": "BIOS, from the next restart", "before": before, "after": after}


def verify_settings(client: RedfishClient, request: Request) -> Json:
    """Read the settings back and return measurements; judges and changes nothing.

    Raises:
        RefusedSettingsError: a name or value does not exist on this machine.
        RedfishError: the BMC could not be asked.
    """
    bios, resolved, settings = _prepare(client, request)
    desired = accept(bios.state, settings, request.require_registry)
    measurements = setting_measurements(
        bios.state, desired, messages=bios.messages(), next_command=request.next_command
    )
    measurements += unsupported_measurements(resolved.unsupported)
    waiting = pending_measurement(bios.state, bios.reset_to_defaults)
    if waiting["value"] and request.next_command:
        waiting["next_command"] = request.next_command
    needs_restart = bool(bios.state.pending) or bios.reset_to_defaults
    return {
        "changed": False,
        **_about(bios, resolved),
        "settings": _settings(bios, Plan(desired=desired)),
        "foreign_pending": {n: v for n, v in bios.state.pending.items() if n not in desired},
        "restart_required": "power_cycle" if needs_restart else "none",
        "measurements": [*measurements, waiting],
        "warnings": bios.warnings,
    }
