"""The two things that `redfish_bios` does with a logged-in client: stage settings, and verify them after the restart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .bios_golden import Golden, Selection, select
from .bios_jobs import BlockedError, Job, blocking, dell_queue, jobs_measurement, make_way, open_jobs, wait_for
from .bios_logical import Resolved, add_requirements, check, resolve
from .bios_measurements import pending_measurement, setting_measurements, unsupported_measurements
from .bios_registry import Registry, Value, listed
from .bios_resource import BiosResource, QueueBlockedError, confirm_staged, read_bios, stage
from .bios_settings import KEEP, BiosState, Plan, RefusedSettingsError, accept, plan
from .redfish_client import RedfishClient
from .redfish_connection import ConflictError, RedfishError

Json = dict[str, Any]
# Looks at the machine before a request is given up: the first, one after another writer, one after a job that stood in the way.
_ROUNDS = 4


def _shipped() -> Sequence[Mapping[str, Any]]:
    # Only here: a module's payload gets the mappings as an option and has neither the files nor, on a node, PyYAML.
    from .bios_vendor_files import load_mappings  # noqa: PLC0415

    return load_mappings()


@dataclass
class Request:
    """What was asked for; see the options of the module `redfish_bios`. `vendors` are the mappings of all known vendors."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    logical: Mapping[str, Any] = field(default_factory=dict)
    golden: Golden | None = None
    golden_other_model: bool = False
    unsupported: str = "warn"
    unlock: bool = False
    foreign_pending: str = "keep"
    require_registry: bool = True
    blocking_job: str = "wait"
    blocking_job_wait_seconds: float = 300.0
    system_id: str = ""
    check_mode: bool = False
    next_command: str = ""
    vendors: Sequence[Mapping[str, Any]] = field(default_factory=_shipped)


@dataclass
class _Prepared:
    """One look at the machine, and what the request comes to on it."""

    bios: BiosResource
    resolved: Resolved
    golden: Selection
    settings: dict[str, Any]


def _prepare(client: RedfishClient, request: Request) -> _Prepared:
    """Read the machine and bring golden, logical and raw settings together; the more special ones win."""
    problems = check(request.vendors, request.logical)
    if problems:
        raise RefusedSettingsError(problems)
    bios = read_bios(client, request.system_id)
    if bios.state.registry is not None:
        add_requirements(bios.state.registry, bios.state, request.vendors, bios.manufacturer)
    resolved = resolve(bios.state, request.vendors, request.logical, bios.manufacturer)
    if resolved.unsupported and request.unsupported == "fail":
        raise RefusedSettingsError(
            [f"this machine does not offer {name}: {reason}" for name, reason in resolved.unsupported.items()]
        )
    golden = Selection()
    if request.golden is not None:
        golden = select(request.golden, bios.state, bios.model, request.golden_other_model)
    return _Prepared(bios, resolved, golden, {**golden.settings, **resolved.settings, **request.settings})


def _about(seen: _Prepared) -> Json:
    registry = seen.bios.state.registry
    return {
        "registry": registry.id if registry else "",
        "bios_version": str(seen.bios.system.get("BiosVersion") or ""),
        "settings_uri": seen.bios.settings_uri,
        "logical": seen.resolved.sources,
        "unsupported": seen.resolved.unsupported,
        "left_out": {name: why for name, why in seen.golden.left_out.items() if name not in seen.settings},
    }


def _plan(seen: _Prepared, request: Request, state: BiosState | None = None) -> Plan:
    return plan(
        state or seen.bios.state,
        seen.settings,
        unlock=request.unlock,
        foreign_pending=request.foreign_pending,
        require_registry=request.require_registry,
    )


def stage_settings(client: RedfishClient, request: Request) -> Json:
    """Validate, compare, and stage what differs; in check mode everything but the writing.

    Raises:
        RefusedSettingsError: the request cannot be staged; nothing was written.
        BlockedError: a job of the BMC stands in the way; nothing was written.
        RedfishError: the BMC could not be asked, or did not keep the values.
    """
    deleted: list[str] = []
    conflicts = 0
    for _round in range(_ROUNDS):
        seen = _prepare(client, request)
        made = _plan(seen, request)
        _allow_writing(seen.bios, made)
        if not made.write and not made.pending_after:
            break
        queue = dell_queue(client, seen.bios.system)
        jobs = open_jobs(client, seen.bios.system) if queue else []
        if not made.write:
            made.write = _without_job(made, seen.bios, blocking(jobs)) if queue else {}
        elif blocking(jobs):
            gone = _make_way(client, request, made, blocking(jobs))
            deleted += gone
            if not request.check_mode or not gone:
                continue
            # The job takes its values along.
            applied = seen.bios.state
            made = _plan(seen, request, BiosState(applied.applied, {}, applied.registry))
        if not made.write or request.check_mode:
            break
        try:
            stage(client, seen.bios, made.write, made.freed)
        except ConflictError:
            # Somebody else wrote in between: look again at what is there now, once.
            conflicts += 1
            if conflicts > 1:
                raise
            continue
        except QueueBlockedError as error:
            deleted += _make_way_afterwards(client, request, made, seen.bios, error)
            continue
        confirm_staged(client, seen.bios, made.write)
        break
    else:
        raise BlockedError(
            f"BIOS settings could not be staged at {client.options.base_url} in {_ROUNDS} attempts, since jobs of the BMC came"
            " in between each time: find out what starts them, then run again"
        )
    return {
        "changed": bool(made.write or deleted),
        **_about(seen),
        "settings": _settings(seen.bios, made),
        "staged": made.write,
        "cleared": made.cleared,
        "unlocked": made.unlocked,
        "foreign_pending": made.foreign,
        "deleted_jobs": deleted,
        "restart_required": made.restart_required,
        "diff": diff(made, seen.bios.state.registry, deleted),
        "warnings": seen.bios.warnings + seen.golden.warnings + made.warnings,
    }


def _without_job(made: Plan, bios: BiosResource, jobs: Sequence[Job]) -> Json:
    """The wanted values that wait without the job that would carry them: staged again, which makes it."""
    if jobs:
        return {}
    registry = bios.state.registry or Registry()
    again = {}
    for name, value in made.desired.items():
        if name in made.pending_after:
            attribute = registry.attributes.get(name)
            again[name] = attribute.wire(value, bios.state.applied.get(name)) if attribute else value
    if again:
        made.warnings.append(
            f"{len(again)} wanted values waited without a job that would apply them ({listed(sorted(again))}): staged again"
        )
    return again


def _make_way(client: RedfishClient, request: Request, made: Plan, jobs: Sequence[Job]) -> list[str]:
    if request.blocking_job == "delete" and made.foreign and request.foreign_pending == KEEP:
        raise BlockedError(
            f"BIOS settings were not staged at {client.options.base_url}: to delete the job {jobs[0].text()} would drop"
            f" {len(made.foreign)} pending values that foreign_pending keeps ({listed(sorted(made.foreign))}): ask for them, or"
            ' set foreign_pending to "clear"'
        )
    seconds = request.blocking_job_wait_seconds
    return make_way(client, jobs, request.blocking_job, seconds, check_mode=request.check_mode)


def _make_way_afterwards(
    client: RedfishClient, request: Request, made: Plan, bios: BiosResource, error: QueueBlockedError
) -> list[str]:
    """The BMC refused for its queue: the job is named; where the policy allows, waited for or deleted."""
    jobs = open_jobs(client, bios.system)
    # A task that waits for a restart blocks nothing by itself; where the BMC refuses, one of these is the reason.
    found = [job for job in jobs if job.kind == "bios"] or [job for job in jobs if job.running] or jobs
    if not found:
        raise error
    return _make_way(client, request, made, found)


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


def diff(made: Plan, registry: Registry | None, deleted_jobs: Sequence[str] = ()) -> Json:
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
    before += "".join(f"job {name}: scheduled\n" for name in deleted_jobs)
    after += "".join(f"job {name}: deleted\n" for name in deleted_jobs)
    return {"before_header": "BIOS", "after_header": "BIOS, from the next restart", "before": before, "after": after}


def verify_settings(client: RedfishClient, request: Request) -> Json:
    """Read the settings back and return measurements; judges and changes nothing.

    Raises:
        RefusedSettingsError: a name or value does not exist on this machine.
        RedfishError: the BMC could not be asked.
    """
    seen = _prepare(client, request)
    jobs = open_jobs(client, seen.bios.system)
    running = [job for job in jobs if job.kind == "bios" and job.running]
    if running and request.blocking_job == "wait":
        # The BMC closes its job a little after the machine has booted.
        wait_for(client, running, request.blocking_job_wait_seconds)
        seen = _prepare(client, request)
        jobs = open_jobs(client, seen.bios.system)
    bios, resolved = seen.bios, seen.resolved
    desired = accept(bios.state, seen.settings, request.require_registry)
    measurements = setting_measurements(
        bios.state, desired, messages=bios.messages(), next_command=request.next_command
    )
    measurements += unsupported_measurements(resolved.unsupported)
    waiting = [jobs_measurement(jobs), pending_measurement(bios.state, bios.reset_to_defaults)]
    for measurement in waiting:
        if measurement["value"] and request.next_command:
            measurement["next_command"] = request.next_command
    needs_restart = bool(bios.state.pending) or bios.reset_to_defaults
    return {
        "changed": False,
        **_about(seen),
        "settings": _settings(bios, Plan(desired=desired)),
        "foreign_pending": {n: v for n, v in bios.state.pending.items() if n not in desired},
        "restart_required": "power_cycle" if needs_restart else "none",
        "measurements": [*measurements, *waiting],
        "warnings": bios.warnings + seen.golden.warnings,
    }
