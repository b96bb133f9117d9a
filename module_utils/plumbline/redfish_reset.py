"""Power of a machine through its BMC: choose the reset type that the BMC offers, send it, and wait until it took effect."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .redfish_client import Json, RedfishClient
from .redfish_connection import RedfishError
from .redfish_document import items, mapping, text, texts

ON, OFF = "On", "Off"
# BootProgress.LastState once the firmware has handed over.
_PAST_POST = {"OSBootStarted", "OSRunning", "SetupEntered"}
# The last state that some BMCs report; on others it is the last part of POST, so it counts only when it stays.
_MAYBE_PAST_POST = {"SystemHardwareInitializationComplete", "OEM"}
_STAYS_SECONDS = 60.0
_POLL_SECONDS = 2.0


@dataclass
class PowerRequest:
    """What was asked for; see the options of the module `redfish_power`."""

    state: str = ""
    reset_type: str = ""
    wait_timeout_seconds: float = 900.0
    graceful_timeout_seconds: float = 180.0
    wait_post: bool = True
    system_id: str = ""
    check_mode: bool = False
    poll_seconds: float = _POLL_SECONDS
    stays_seconds: float = _STAYS_SECONDS


@dataclass
class Machine:
    """The system with what its reset action takes."""

    system: Json
    target: str
    allowed: list[str]

    @property
    def power(self) -> str:
        """PowerState as the BMC says it."""
        return str(self.system.get("PowerState") or "")

    @property
    def boot(self) -> str:
        """BootProgress.LastState; empty where the BMC has none."""
        return text(mapping(self.system, "BootProgress"), "LastState")


def read_machine(client: RedfishClient, system_id: str = "") -> Machine:
    """Read the system and the reset types that it allows.

    Raises:
        RedfishError: the BMC offers no reset action.
    """
    system = client.system(system_id)
    action = mapping(system, "Actions", "#ComputerSystem.Reset")
    target = text(action, "target")
    if not target:
        raise RedfishError(
            f"The BMC at {client.options.base_url} offers no ComputerSystem.Reset for system {system.get('Id')}:"
            " give the account a role that may restart the machine"
        )
    allowed = texts(action, "ResetType@Redfish.AllowableValues")
    if not allowed:
        info = client.get_optional(text(action, "@Redfish.ActionInfo"))
        for parameter in items(info, "Parameters"):
            if parameter.get("Name") == "ResetType":
                allowed = texts(parameter, "AllowableValues")
    return Machine(system, target, allowed)


def choose(machine: Machine, *wanted: str) -> str:
    """The first of the wanted reset types that the BMC allows; the first one where it does not say what it allows."""
    for candidate in wanted:
        if not machine.allowed or candidate in machine.allowed:
            return candidate
    return ""


# Reset types that may be sent twice, with the power state in which there is nothing left to do.
_LEADS_TO = {"On": ON, "ForceOn": ON, "ForceOff": OFF, "GracefulShutdown": OFF}


class Resetter:
    """Sends resets and waits; remembers what it sent."""

    def __init__(
        self, client: RedfishClient, request: PowerRequest, sleep: Callable[[float], Any] = time.sleep
    ) -> None:
        """Keep the login and the request; `sleep` can be replaced in tests."""
        self.client = client
        self.request = request
        self.sleep = sleep
        self.sent: list[str] = []

    def run(self) -> Json:
        """Bring the machine into the wanted state.

        Raises:
            RedfishError: the BMC does not offer it, or the machine did not get there in time.
        """
        machine = read_machine(self.client, self.request.system_id)
        before = machine.power
        changed = self._needs_change(machine)
        started = time.monotonic()
        if changed and not self.request.check_mode:
            self._act(machine)
            machine = read_machine(self.client, self.request.system_id)
        return {
            "changed": changed,
            "power_state_before": before,
            "power_state": machine.power,
            "boot_state": machine.boot,
            "sent": self.sent,
            "elapsed_seconds": round(time.monotonic() - started, 1),
        }

    def _needs_change(self, machine: Machine) -> bool:
        if self.request.reset_type:
            if machine.allowed and self.request.reset_type not in machine.allowed:
                raise RedfishError(
                    f'The BMC at {self.client.options.base_url} does not offer the reset type "{self.request.reset_type}":'
                    f" expected one of {', '.join(machine.allowed)}"
                )
            return True
        if self.request.state == "powered_on":
            return machine.power != ON
        if self.request.state == "powered_off":
            return machine.power != OFF
        return True

    def _act(self, machine: Machine) -> None:
        if self.request.reset_type:
            self._send(machine, self.request.reset_type)
            turns_off = self.request.reset_type in ("ForceOff", "GracefulShutdown")
            self._await_power(OFF if turns_off else ON, self.request.wait_timeout_seconds)
            if not turns_off:
                self._await_post()
        elif self.request.state == "powered_off":
            self._turn_off(machine)
        elif self.request.state == "powered_on":
            self._turn_on(machine)
        else:
            self._power_cycle(machine)

    def _power_cycle(self, machine: Machine) -> None:
        """Off and on again: the operating system is asked first, so that file systems are clean."""
        two_steps = choose(machine, "GracefulShutdown", "ForceOff") and choose(machine, "On", "ForceOn")
        if two_steps:
            try:
                self._turn_off(machine)
                self._turn_on(machine)
            except RedfishError as error:
                if not self.sent:
                    raise
                raise RedfishError(
                    f"{error}; the machine was sent {' and '.join(self.sent)} and may be off: once its BMC answers, turn it on through it",
                    error.status,
                    error.transient,
                ) from None
            return
        single = choose(machine, "PowerCycle", "GracefulRestart", "ForceRestart", "FullPowerCycle")
        if not single:
            raise self._not_offered("a power cycle", machine)
        self._send(machine, single)
        self._await_power(ON, self.request.wait_timeout_seconds)
        self._await_post()

    def _turn_off(self, machine: Machine) -> None:
        if machine.power == OFF:
            return
        graceful, forced = choose(machine, "GracefulShutdown"), choose(machine, "ForceOff")
        if not graceful and not forced:
            raise self._not_offered("turning the machine off", machine)
        if graceful:
            self._send(machine, graceful)
            if self._reached(OFF, self.request.graceful_timeout_seconds):
                return
        if not forced:
            raise self._too_late(OFF, self.request.graceful_timeout_seconds, machine.power)
        self._send(machine, forced)
        self._await_power(OFF, self.request.wait_timeout_seconds)

    def _turn_on(self, machine: Machine) -> None:
        word = choose(machine, "On", "ForceOn")
        if not word:
            raise self._not_offered("turning the machine on", machine)
        self._send(machine, word)
        self._await_power(ON, self.request.wait_timeout_seconds)
        self._await_post()

    def _send(self, machine: Machine, reset_type: str) -> None:
        """Send a reset; one that meets another in progress, or a BMC that is away, is tried again until the deadline.

        What a second request would do once more is not sent again to a BMC that gave no answer: it may have heard the first.
        """
        deadline = time.monotonic() + self.request.wait_timeout_seconds
        while True:
            try:
                self.client.post(machine.target, {"ResetType": reset_type})
            except RedfishError as error:
                unheard = error.transient and reset_type in _LEADS_TO
                if not (unheard or error.status in (409, 503)) or time.monotonic() > deadline:
                    raise
                self.sleep(self.request.poll_seconds)
                now = self._peek() if unheard else None
                if now is None or now.power != _LEADS_TO[reset_type]:
                    continue
            self.sent.append(reset_type)
            return

    def _peek(self) -> Machine | None:
        """The machine as it is now; None while the BMC cannot say (some restart along with the host)."""
        try:
            return read_machine(self.client, self.request.system_id)
        except RedfishError as error:
            if error.transient:
                return None
            raise

    def _reached(self, power: str, timeout_seconds: float) -> bool:
        deadline = time.monotonic() + timeout_seconds
        while True:
            machine = self._peek()
            if machine is not None and machine.power == power:
                return True
            if time.monotonic() > deadline:
                return False
            self.sleep(self.request.poll_seconds)

    def _await_power(self, power: str, timeout_seconds: float) -> None:
        if not self._reached(power, timeout_seconds):
            machine = self._peek()
            raise self._too_late(power, timeout_seconds, machine.power if machine else "no answer")

    def _await_post(self) -> None:
        """Wait until POST is over, where the BMC says how far it is."""
        if not self.request.wait_post:
            return
        deadline = time.monotonic() + self.request.wait_timeout_seconds
        maybe_since: float | None = None
        while True:
            machine = self._peek()
            boot = machine.boot if machine else ""
            if machine is not None and (not boot or boot in _PAST_POST):
                return
            if boot not in _MAYBE_PAST_POST:
                maybe_since = None
            elif maybe_since is None:
                maybe_since = time.monotonic()
            elif time.monotonic() - maybe_since > self.request.stays_seconds:
                return
            if time.monotonic() > deadline:
                raise RedfishError(
                    f"The machine behind {self.client.options.base_url} was expected to pass POST within"
                    f" {self.request.wait_timeout_seconds:g} s, but it stands at {boot or 'an unknown point'}:"
                    " look at its console through the BMC, or raise wait_timeout_seconds"
                )
            self.sleep(self.request.poll_seconds)

    def _too_late(self, power: str, seconds: float, found: str) -> RedfishError:
        return RedfishError(
            f"The machine behind {self.client.options.base_url} was expected to be {power} within {seconds:g} s after"
            f" {' and '.join(self.sent) or 'the request'}, but its power state is {found}: look at its console through the BMC"
        )

    def _not_offered(self, what: str, machine: Machine) -> RedfishError:
        return RedfishError(
            f"The BMC at {self.client.options.base_url} offers no reset type for {what}: it allows"
            f" {', '.join(machine.allowed) or 'nothing'}"
        )
