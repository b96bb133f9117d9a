"""The two things that `redfish_firmware` does with a logged-in client: bring firmware in, and verify it after the restart."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .firmware_images import FirmwareError, Image, check_file, parse_images
from .firmware_install import Installer, Result
from .firmware_judgement import Facts, staged_measurements, verified_measurements
from .firmware_plan import Plan, Step, make_plan
from .firmware_staged import Staged, find_staged
from .redfish_client import Json, RedfishClient
from .redfish_connection import RedfishError
from .redfish_inventory import firmware_components
from .redfish_task import TaskView, all_tasks
from .redfish_update import Sending, UpdateService, choose_apply_time, choose_method, read_update_service, targets_of


@dataclass
class Request:
    """What was asked for; see the options of the module `redfish_firmware`."""

    floors: Mapping[str, str] = field(default_factory=dict)
    pins: Mapping[str, str] = field(default_factory=dict)
    images: Sequence[Mapping[str, Any]] = ()
    allow_downgrade: bool = False
    allow_immediate: bool = False
    transfer: str = "auto"
    update_timeout_seconds: float = 1800.0
    system_id: str = ""
    check_mode: bool = False
    next_command: str = ""
    poll_seconds: float = 3.0
    settle_seconds: float = 120.0
    sleep: Callable[[float], Any] = time.sleep


@dataclass
class _Machine:
    """What was read of a machine, and what follows for it."""

    system: Json
    components: list[Json]
    tasks: list[TaskView]
    plan: Plan
    staged: list[Staged]


def _texts(table: Mapping[str, Any], name: str) -> list[str]:
    return [
        f"{name}[{key}] should be a quoted text (YAML reads 1.10 as 1.1), found {value}"
        for key, value in table.items()
        if not isinstance(value, str)
    ]


def _read(client: RedfishClient, request: Request) -> _Machine:
    problems = _texts(request.floors, "firmware_floors") + _texts(request.pins, "firmware_pins")
    if problems:
        raise FirmwareError(problems)
    images: list[Image] = parse_images(request.images)
    system = client.system(request.system_id)
    components = firmware_components(client, system)
    made = make_plan(components, request.floors, request.pins, images, allow_downgrade=request.allow_downgrade)
    tasks = all_tasks(client) if images else []
    return _Machine(system, components, tasks, made, [find_staged(step, tasks, system) for step in made.steps])


def stage_firmware(client: RedfishClient, request: Request) -> Json:
    """Bring every component to its floor or pin, as far as images are at hand; in check mode everything but the sending.

    Where one component cannot get there, nothing is sent: the measurements say why, and the gate stops the host.

    Raises:
        FirmwareError: the inventory's wishes cannot be; nothing was sent.
        RedfishError: the BMC could not be asked, refused an image, or did not finish.
    """
    machine = _read(client, request)
    plan = machine.plan
    results: list[Result] = []
    if plan.complete and plan.steps:
        results = _take(client, request, machine)
    changed = any(result.sent for result in results)
    waits = any(result.state == "staged" for result in results)
    foreign = _foreign(machine)
    return {
        "changed": changed,
        "restart_required": "power_cycle" if waits else "none",
        "updates": [result.to_json() for result in results],
        "components": machine.components,
        "measurements": staged_measurements(
            Facts(machine.components, request.floors, request.pins), plan, results, request.check_mode
        ),
        "diff": _diff(machine, results),
        "warnings": foreign + [warning for result in results for warning in result.warnings],
    }


def _take(client: RedfishClient, request: Request, machine: _Machine) -> list[Result]:
    """Check all that can be checked before the first byte is sent; then take the steps in their order."""
    needed = [step for step, staged in zip(machine.plan.steps, machine.staged) if staged.state == "none"]
    service, sendings = _prepare(client, request, needed) if needed else (None, {})
    if request.check_mode:
        return [
            Result(
                step,
                "staged" if staged.state == "waiting" or step.kind != "bmc" else "active",
                staged.state == "none",
                staged.where,
            )
            for step, staged in zip(machine.plan.steps, machine.staged)
        ]
    installer = Installer(
        client,
        service,
        request.update_timeout_seconds,
        system_id=request.system_id,
        poll_seconds=request.poll_seconds,
        settle_seconds=request.settle_seconds,
        sleep=request.sleep,
    )
    results: list[Result] = []
    for step, staged in zip(machine.plan.steps, machine.staged):
        try:
            results.append(installer.take(step, staged, sendings.get(id(step))))
        except RedfishError as error:
            done = "; ".join(result.sentence for result in results if result.sent)
            raise RedfishError(
                f"{error}{f'. Done before that: {done}' if done else ''}", error.status, error.transient
            ) from None
    return results


def _prepare(
    client: RedfishClient, request: Request, steps: Sequence[Step]
) -> tuple[UpdateService, dict[int, Sending]]:
    problems: list[str] = []
    for step in steps:
        if step.image.file:
            try:
                step.file = check_file(step.image)
            except FirmwareError as error:
                problems += error.problems
    if problems:
        raise FirmwareError(problems)
    service = read_update_service(client)
    sendings = {}
    for step in steps:
        method = choose_method(client, service, step, request.transfer)
        when = choose_apply_time(client, service, step, method, request.allow_immediate)
        sendings[id(step)] = Sending(step, method, when, targets_of(service, step))
    return service, sendings


def _foreign(machine: _Machine) -> list[str]:
    """Warn of firmware that lies ready and that nobody asked for here: the restart would make it active."""
    ours = {wish.id for step in machine.plan.steps for wish in step.wishes}
    return [
        f"{item['id']} {item['staged_version']} lies ready in the machine and becomes active with its next restart, though"
        " this inventory does not ask for it"
        for item in machine.components
        if item.get("staged_version") and item["id"] not in ours and item["staged_version"] != item["version"]
    ]


def _diff(machine: _Machine, results: Sequence[Result]) -> Json:
    """Installed, lying ready and wanted, before and after."""
    before, after = [], []
    for step, staged, result in zip(machine.plan.steps, machine.staged, results):
        for wish in step.wishes:
            ready = (
                step.image.version if staged.state == "waiting" else str(wish.component.get("staged_version") or "none")
            )
            before.append(f"{wish.id}: installed {wish.installed}, staged {ready}, wanted {wish.wanted}")
            is_active = result.state == "active"
            installed = step.image.version if is_active else wish.installed
            now_ready = "none" if is_active else step.image.version
            after.append(f"{wish.id}: installed {installed}, staged {now_ready}, wanted {wish.wanted}")
    end = "\n" if before else ""
    return {"before": "\n".join(before) + end, "after": "\n".join(after) + end}


def verify_firmware(client: RedfishClient, request: Request) -> Json:
    """Read versions back; say of each that is not as wanted whether it still waits, failed, or was taken back.

    Raises:
        FirmwareError: the inventory's wishes cannot be.
        RedfishError: the BMC could not be asked.
    """
    machine = _read(client, request)
    return {
        "changed": False,
        "components": machine.components,
        "measurements": verified_measurements(
            Facts(machine.components, request.floors, request.pins),
            machine.plan,
            machine.staged,
            machine.tasks,
            request.next_command,
        ),
        "warnings": _foreign(machine),
    }
