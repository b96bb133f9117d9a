"""Firmware as measurements for the gate: versions beside floors and pins, and what became of updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .firmware_floors import Component, Measurement, floor_measurements, pin_measurements
from .firmware_install import Result
from .firmware_plan import Plan
from .firmware_staged import Staged, last_failure
from .redfish_task import TaskView

_ALLOW_DOWNGRADE = "set firmware_allow_downgrade to true if going back is meant, or raise the pin"


@dataclass(frozen=True)
class Facts:
    """What is held against each other: the components that a machine has, and the floors and pins of its inventory."""

    components: Sequence[Component]
    floors: Mapping[str, str]
    pins: Mapping[str, str]

    def measurements(self) -> list[Measurement]:
        """Every floor and pin beside what is installed."""
        return floor_measurements(self.components, self.floors) + pin_measurements(self.components, self.pins)


def staged_measurements(
    facts: Facts,
    plan: Plan,
    results: Sequence[Result],
    check_mode: bool,
) -> list[Measurement]:
    """Floors and pins before the restart: what is being updated is judged after it."""
    done = {wish.id: result for result in results for wish in result.step.wishes}
    planned = {wish.id: step for step in plan.steps for wish in step.wishes}
    measurements = facts.measurements()
    for measurement in measurements:
        identity = measurement["scope"]
        # Its other floor or pin may be met while this one is not; what is as wanted is said as it is.
        if not measurement.get("cause"):
            continue
        if identity in done:
            _supersede(measurement, done[identity], check_mode)
        elif identity in plan.blocked:
            _block(measurement, plan, identity)
        elif identity in planned:
            version = planned[identity].image.version
            _skip(
                measurement,
                f"the update to {version} was not begun, since another component cannot be brought to what is asked for",
            )
    return measurements


def _skip(measurement: Measurement, reason: str) -> None:
    for key in ("value", "expected", "cause", "next_command"):
        measurement.pop(key, None)
    measurement["skipped"] = reason


def _supersede(measurement: Measurement, result: Result, check_mode: bool) -> None:
    version = result.step.image.version
    if check_mode:
        verb = (
            "waits for"
            if not result.sent
            else "would be installed, active"
            if result.state == "active"
            else "would be staged for"
        )
        _skip(measurement, f"{version} {verb} {'at once' if result.state == 'active' else 'the restart'}")
    elif result.state == "active":
        for key in ("cause", "next_command"):
            measurement.pop(key, None)
        measurement["value"] = measurement["expected"] if measurement["name"] == "firmware_pin" else version
    else:
        _skip(measurement, f"{version} is staged and becomes active with the restart; verify judges it")


def _block(measurement: Measurement, plan: Plan, identity: str) -> None:
    reason = plan.blocked[identity]
    if "no image" in reason:
        return
    measurement["cause"] = reason
    measurement["next_command"] = (
        _ALLOW_DOWNGRADE if "firmware_allow_downgrade" in reason else "update it with the vendor's tool"
    )


def verified_measurements(
    facts: Facts,
    plan: Plan,
    staged: Sequence[Staged],
    tasks: Sequence[TaskView],
    next_command: str,
) -> list[Measurement]:
    """Floors and pins after the restart, and `firmware_pending_updates`: how many of the wanted updates still wait."""
    measurements = facts.measurements()
    causes: dict[str, str] = {}
    waiting: list[str] = []
    for step, found in zip(plan.steps, staged):
        version = step.image.version
        failure = last_failure(step, tasks)
        if found.state != "none":
            waiting.append(f"{step.name} {version} ({found.where})")
            cause = f"the update to {version} is still staged, the restart did not make it active: {found.where}"
        elif failure:
            cause = f"the update to {version} failed; the BMC says: {failure}"
        else:
            cause = f"the image {version} is at hand but was not installed, or the machine went back to the old version: see the BMC's log"
        causes.update({wish.id: cause for wish in step.wishes})
    for measurement in measurements:
        identity = measurement["scope"]
        if not measurement.get("cause"):
            continue
        if identity in causes:
            measurement["cause"] = f"{measurement['cause']}; {causes[identity]}"
            measurement["next_command"] = next_command
        elif identity in plan.blocked:
            _block(measurement, plan, identity)
    if any(wish.image is not None for wish in plan.wishes):
        measurements.append(_pending(waiting))
    return measurements


def _pending(waiting: Sequence[str]) -> Measurement:
    measurement: dict[str, Any] = {
        "name": "firmware_pending_updates",
        "scope": "firmware",
        "value": len(waiting),
        "unit": "updates",
        "expected": 0,
    }
    if waiting:
        measurement["cause"] = f"still staged: {', '.join(waiting)}"
    return measurement
