"""The power of one system: DMTF's reset types, POST, and the command that really powers the node."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from .clock import now
from .messages import refuse
from .state import State

Json = dict[str, Any]
LOG = logging.getLogger("lab.bmc.power")

ON_WORDS = {"on", "running", "up"}
OFF_WORDS = {"off", "stopped", "exited", "down", "created"}
_TURN_ON = {"On", "ForceOn"}
_TURN_OFF = {"ForceOff", "GracefulShutdown"}
_WARM = {"ForceRestart", "GracefulRestart"}
_COLD = {"PowerCycle", "FullPowerCycle"}
_GRACEFUL = {"GracefulShutdown", "GracefulRestart"}
# What frees a machine that hangs.
_FORCED = {"ForceOff", "ForceRestart"} | _COLD
# What POST passes through, and how far into it (a fraction of its duration).
_POST_STATES = (
    ("PrimaryProcessorInitializationStarted", 0.0),
    ("MemoryInitializationStarted", 0.2),
    ("PCIResourceConfigStarted", 0.6),
    ("SystemHardwareInitializationComplete", 0.9),
)


class PowerError(Exception):
    """The power command failed; the text says how."""


class Driver(Protocol):
    """What powers the node."""

    async def run(self, verb: str) -> None:
        """Do `on`, `off` (at once) or `graceful-off` (let the operating system shut down), or raise PowerError."""

    async def status(self) -> tuple[bool, str] | None:
        """Return whether the node is on and its start identity (may be empty); None when there is no node to ask."""


class NullDriver:
    """No node: the power state is only remembered."""

    def __init__(self) -> None:
        """Start with no call."""
        self.calls: list[str] = []

    async def run(self, verb: str) -> None:
        """Record the verb."""
        self.calls.append(verb)

    async def status(self) -> tuple[bool, str] | None:
        """Say that there is no node to ask."""
        return None


class CommandDriver:
    """Runs `command VERB`; the verbs are `on`, `off`, `graceful-off` and `status`, exit status 0 is success.

    `status` prints `on` or `off`, then optionally an identity of the present start (any word that changes when the node
    restarts by itself).
    """

    def __init__(self, command: list[str], timeout_seconds: float = 120.0) -> None:
        """Run `command`, each time for at most `timeout_seconds`."""
        self._command = command
        self._timeout = timeout_seconds

    async def _call(self, verb: str) -> str:
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                verb,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            raise PowerError(f"the power command {self._command[0]} cannot be started: {error}") from error
        try:
            out, err = await asyncio.wait_for(process.communicate(), self._timeout)
        except asyncio.TimeoutError as error:
            raise PowerError(f"the power command did not finish {verb} within {self._timeout:g} s") from error
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode != 0:
            detail = err.decode(errors="replace").strip().splitlines()
            raise PowerError(
                f"the power command exited with {process.returncode} on {verb}: {detail[-1] if detail else 'no output'}"
            )
        return out.decode(errors="replace")

    async def run(self, verb: str) -> None:
        """Run the command with the verb."""
        await self._call(verb)

    async def status(self) -> tuple[bool, str] | None:
        """Ask the command."""
        words = (await self._call("status")).split()
        first = words[0].lower() if words else ""
        if first not in ON_WORDS | OFF_WORDS:
            raise PowerError(f"the power command printed {first!r} on status; expected on or off")
        return first in ON_WORDS, words[1] if len(words) > 1 else ""


@dataclass
class Timing:
    """How long things take, in seconds."""

    post: float = 3.0
    off: float = 0.5
    os_boot: float = 0.2
    # Status is asked from the node at most this often.
    status_interval: float = 1.0
    update: float = 1.0  # writing a firmware image
    job: float = 0.5  # a configuration job, in POST
    bmc_restart: float = 5.0


@dataclass
class Hooks:
    """What else happens at a reset. `during_post` applies settings; `slow_down` may lengthen the next POST.

    `hang` says where the machine hangs: "POST", a PowerState, or nowhere (empty).
    """

    during_post: Callable[[], Awaitable[None]]
    slow_down: Callable[[], float] = field(default=lambda: 0.0)
    swallow: Callable[[], bool] = field(default=lambda: False)
    hang: Callable[[], str] = field(default=lambda: "")
    log: Callable[[str, str], None] = field(default=lambda severity, text: None)


class Power:
    """The state machine. `PowerState` is On, Off, PoweringOn or PoweringOff; `boot` is BootProgress.LastState."""

    def __init__(self, driver: Driver, timing: Timing, hooks: Hooks, state: State, allowed: list[str]) -> None:
        """Take the state over; `allowed` are the ResetTypes that the machine offers."""
        self.driver = driver
        self.timing = timing
        self.hooks = hooks
        self.allowed = allowed
        self._state = state
        self._data: Json = state.section(
            "power",
            {"state": "On", "boot": "OSRunning", "boot_at": now(), "resume": None, "resets": 0, "identity": ""},
        )
        self._work: asyncio.Task[None] | None = None
        self._asked_at = 0.0
        self.last_error = ""
        self.hung = False
        self._hangs_in_post = False

    @property
    def state(self) -> str:
        """PowerState."""
        return str(self._data["state"])

    @property
    def boot_progress(self) -> Json:
        """The BootProgress object."""
        return {"LastState": self._data["boot"], "LastStateTime": self._data["boot_at"]}

    @property
    def resets(self) -> int:
        """How many POSTs were run since the state was made."""
        return int(self._data["resets"])

    @property
    def busy(self) -> bool:
        """Whether a transition is under way."""
        return self._work is not None and not self._work.done()

    def _set(self, *, state: str | None = None, boot: str | None = None) -> None:
        if state is not None:
            self._data["state"] = state
        if boot is not None:
            self._data["boot"], self._data["boot_at"] = boot, now()
        self._state.save()

    def request(self, reset_type: Any) -> None:
        """Accept a ResetType and start the transition, or raise a RedfishError."""
        action = "ComputerSystem.Reset"
        if not isinstance(reset_type, str):
            raise refuse(400, "ActionParameterValueTypeError", reset_type, "ResetType", action)
        if reset_type not in self.allowed:
            raise refuse(400, "ActionParameterNotSupported", "ResetType", action, reset_type, ", ".join(self.allowed))
        freed = self._work if self.hung and reset_type in _FORCED else None
        if self.busy and freed is None:
            raise refuse(409, "ResourceInUse", "The system", "a reset is in progress")
        turned_on = self.state == "On" or freed is not None
        if reset_type in _WARM | _COLD | {"Nmi"} and not turned_on:
            raise refuse(409, "ResourceInStandby")
        if (reset_type in _TURN_ON and turned_on) or (reset_type in _TURN_OFF and not turned_on):
            return
        if self.hooks.swallow():
            self.hooks.log("OK", f"Reset {reset_type} accepted")
            return
        if reset_type == "PushPowerButton":
            reset_type = "GracefulShutdown" if turned_on else "On"
        self.hooks.log("OK", f"Reset {reset_type} requested")
        if reset_type not in _TURN_OFF | {"Nmi"}:
            self._data["resume"] = (
                "on"  # before the answer: what was accepted is done, whatever happens to this process
            )
            self._state.save()
        self._start(self._transition(reset_type, freed), reset_type)

    def _start(self, work: Any, name: str) -> None:
        async def guarded() -> None:
            try:
                await work
            except PowerError as error:
                self.last_error = str(error)
                LOG.error("%s failed: %s", name, error)
                self.hooks.log("Critical", f"{name} failed: {error}")
                await self.refresh(force=True)
            finally:
                self._data["resume"] = None
                self._state.save()

        self._work = asyncio.get_running_loop().create_task(guarded())

    async def _hang(self) -> None:
        """Stay where the machine is until a forced reset, or the end of the simulator, cancels this."""
        self.hung = True
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.hung = False

    async def _transition(self, reset_type: str, freed: asyncio.Task[None] | None = None) -> None:
        if freed is not None:
            freed.cancel()
            await asyncio.gather(freed, return_exceptions=True)
        if reset_type == "Nmi":
            return
        where = self.hooks.hang()
        self._hangs_in_post = where == "POST"
        if where and not self._hangs_in_post:
            self._set(state=where)
            await self._hang()
        verb = "graceful-off" if reset_type in _GRACEFUL else "off"
        if reset_type in _TURN_OFF:
            await self._go_off(verb)
            return
        # A simulator that ends in the middle of a restart must not leave the node off: it goes on when it comes back.
        self._data["resume"] = "on"
        if reset_type in _WARM:
            self._set(boot="None")  # the machine keeps its power: PowerState stays On, the host is gone
            await self.driver.run(verb)
        elif reset_type in _COLD:
            await self._go_off(verb)
            await asyncio.sleep(self.timing.off)
        await self._go_on()

    async def _go_off(self, verb: str) -> None:
        self._set(state="PoweringOff")
        await self.driver.run(verb)
        self._set(state="Off", boot="None")

    async def _go_on(self) -> None:
        if self.state != "On":
            self._set(state="PoweringOn")
        await self._post()
        await self.driver.run("on")
        self._set(state="On", boot="OSBootStarted")
        await asyncio.sleep(self.timing.os_boot)
        await self._remember_identity()
        self._set(boot="OSRunning")

    async def _post(self) -> None:
        duration = self.timing.post + self.hooks.slow_down()
        passed = 0.0
        for name, start in _POST_STATES:
            await asyncio.sleep(max(0.0, start * duration - passed))
            passed = start * duration
            self._set(state="On" if self.state == "PoweringOn" else None, boot=name)
            if self._hangs_in_post and name.startswith("Memory"):
                await self._hang()
        await self.hooks.during_post()
        self._data["resets"] += 1
        await asyncio.sleep(max(0.0, duration - passed))

    async def _remember_identity(self) -> None:
        try:
            seen = await self.driver.status()
        except PowerError:
            return
        if seen is not None:
            self._data["identity"] = seen[1]

    async def refresh(self, *, force: bool = False) -> None:
        """Ask the node for its real state, so that PowerState stays true when somebody else stops or restarts it.

        A node that restarted by itself has passed POST too, so its pending settings are applied.
        """
        clock = asyncio.get_running_loop().time()
        if not force and (self.busy or clock - self._asked_at < self.timing.status_interval):
            return
        self._asked_at = clock
        try:
            seen = await self.driver.status()
        except PowerError as error:
            LOG.warning("%s", error)
            self.last_error = str(error)
            return
        if seen is None and force:  # no node to ask: what the state says is all there is
            seen = self.state != "Off", ""
        if seen is None or (self.busy and not force):
            return
        is_on, identity = seen
        was_on = self.state == "On"
        restarted = is_on and identity != self._data["identity"] and bool(self._data["identity"])
        if is_on and (restarted or not was_on) and not force:
            await self.hooks.during_post()
            self._data["resets"] += 1
            self.hooks.log("OK", "The host restarted by itself")
        if is_on:
            self._data["identity"] = identity
        boot = "OSRunning" if is_on else "None"
        if is_on != was_on or restarted or (force and self._data["boot"] != boot):
            self._set(state="On" if is_on else "Off", boot=boot)

    async def start(self) -> None:
        """Take up where the state file left off."""
        if self._data["resume"] == "on":
            LOG.info("finishing a restart that was interrupted")
            self._set(state="PoweringOn")
            self._start(self._go_on(), "On")
        else:
            if self.state not in ("On", "Off"):
                self._set(state="Off", boot="None")
            if not self._data["identity"]:
                await self._remember_identity()
            await self.refresh(force=True)

    async def settled(self) -> None:
        """Wait until no transition is under way."""
        while self._work is not None and not self._work.done():
            await asyncio.wait({self._work})

    async def stop(self) -> None:
        """End a transition that is under way; `start` of the next process finishes it."""
        work = self._work
        if work is not None and not work.done():
            resume = self._data["resume"]
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            self._data["resume"] = resume
            self._state.save()
