"""One simulated BMC: its parts put together, and the table of its resources."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import paths as paths_module
from .accounts import AccountResources, Accounts
from .auth import Sessions
from .bios import Bios
from .chassis import ChassisResources
from .config import Config, password_of
from .core import CoreResources
from .faults import Fault, Faults
from .host_logger import HostLogger
from .inventory import InventoryResources
from .jobs import ConfigJobs
from .logs import EventLog, LogResources
from .managers import ManagerResources
from .messages import refuse
from .power import CommandDriver, Driver, Hooks, NullDriver, Power, Timing
from .profile import load as load_profile
from .rest import ETags, Resource
from .sensors import Sensors
from .state import State
from .systems import SystemResources
from .tasks import TaskResources, Tasks
from .update import UpdateResources

Json = dict[str, Any]
Finder = Callable[[str], "Resource | None"]
LOG = logging.getLogger("lab.bmc")

DEFAULT_RESETS = ["On", "ForceOff", "GracefulShutdown", "ForceRestart", "GracefulRestart", "PowerCycle"]
DEFAULT_BOOT_TARGETS = ["None", "Pxe", "Hdd", "Cd", "BiosSetup", "UefiHttp"]


class Service:
    """The simulator without its network side."""

    def __init__(self, config: Config, driver: Driver | None = None) -> None:
        """Put the parts together; `driver` overrides the power command of the configuration."""
        self.config = config
        self.profile = load_profile(config.profile, config.profile_overrides)
        self.paths = paths_module.Paths(self.profile)
        self.state = State(self.profile.name, Path(config.state_file) if config.state_file else None)
        quirks = self.profile.quirks
        self.etags = ETags(**quirks.get("etag", {}))
        self.faults = Faults()
        self.accounts = Accounts(config.username, password_of(config), self.state)
        self.sessions = Sessions(self.accounts, config.session_timeout_seconds, config.session_limit)
        self.bios = Bios(self.profile.registry, self.profile.initial, quirks, self.state)
        self.boot: Json = self.state.section(
            "boot",
            {
                "BootSourceOverrideEnabled": "Disabled",
                "BootSourceOverrideMode": "UEFI",
                "BootSourceOverrideTarget": "None",
                "BootSourceOverrideTarget@Redfish.AllowableValues": DEFAULT_BOOT_TARGETS,
            },
        )
        self.firmware: Json = self.state.section(
            "firmware", {item["Id"]: item["Version"] for item in self.profile.get("firmware", [])}
        )
        self.registry_name = str(self.profile.data["bios"].get("registry_name", self.profile.registry.document["Id"]))
        self.node_name = config.node or "node"
        self.system_links: Json = {}
        self.manager_links: Json = {}
        self.restart_bmc: Callable[[float], None] = lambda seconds: None
        timing = Timing(**self.profile.get("timing", {}))
        if config.post_seconds is not None:
            timing.post = config.post_seconds
        if driver is None and config.power_command:
            driver = CommandDriver(config.power_command, config.power_timeout_seconds)
        self.timing = timing
        self.log = EventLog(self)
        self.tasks = Tasks(self)
        hooks = Hooks(
            self.during_post,
            self._slow_down,
            lambda: self.faults.take("reset_ignored") is not None,
            self._hang,
            self.log.add,
        )
        self.power = Power(
            driver or NullDriver(), timing, hooks, self.state, list(self.profile.get("reset_types", DEFAULT_RESETS))
        )
        self.host_logger = HostLogger(self)
        self.table: dict[str, Resource] = {}
        self.finders: list[tuple[str, Finder]] = []
        self.sensors = Sensors(
            self.profile.get("sensors", []), lambda: self.power.state == "On", faults=self.faults.of_sensors
        )
        self.jobs = ConfigJobs(self) if quirks.get("apply") == "job" else None
        self.task_resources = TaskResources(self)
        self.updates = UpdateResources(self)
        parts: list[Any] = [
            CoreResources(self),
            AccountResources(self),
            SystemResources(self),
            InventoryResources(self),
            ChassisResources(self),
            ManagerResources(self),
            LogResources(self),
            self.host_logger,
            self.task_resources,
            self.updates,
        ]
        if self.jobs is not None:
            parts.append(self.jobs)
        for part in parts:
            self.install(part.resources(), getattr(part, "finders", dict)())

    def install(self, resources: dict[str, Resource], finders: dict[str, Finder]) -> None:
        """Add resources by URI, and functions that find the members of a changing collection by their id."""
        for uri, resource in resources.items():
            self.table[paths_module.key(uri)] = resource
        for uri, finder in finders.items():
            self.finders.append((paths_module.key(uri) + "/", finder))

    def find(self, path: str) -> Resource | None:
        """Return the resource at a path."""
        wanted = paths_module.key(path)
        # The Members property of a collection is another name for it (DSP0266).
        resource = self.table.get(wanted) or self.table.get(wanted.removesuffix("/members"))
        if resource is not None:
            return resource
        for prefix, finder in self.finders:
            if wanted.startswith(prefix):
                resource = finder(path.rstrip("/")[len(prefix) :])
                if resource is not None:
                    return resource
        return None

    def firmware_version(self, identity: str) -> str:
        """Return the version of a component, empty when there is none of that name."""
        return str(self.firmware.get(identity, ""))

    def _slow_down(self) -> float:
        fault = self.faults.take("slow_reset")
        return float(fault.parameters["seconds"]) if fault is not None else 0.0

    def _hang(self) -> str:
        stuck = self.faults.take("power_stuck")
        if stuck is not None:
            return str(stuck.parameters["state"])
        return "POST" if self.faults.take("post_hangs") is not None else ""

    def apply_settings(self, only: list[str] | None = None) -> None:
        """Make pending values active, as far as a fault lets them; finish the task that waits for it."""
        ignored, clamped = self.faults.take("setting_ignored"), self.faults.take("value_clamped")
        instead = clamped.parameters["attributes"] if clamped is not None else {}
        if ignored is None:
            changed = self.bios.apply(only=only, instead=instead)
        else:
            names = ignored.parameters["attributes"] or list(self.bios.pending)
            silent = bool(ignored.parameters["silent"])
            changed = self.bios.apply(ignore=names, silently=silent, only=only, instead=instead)
        if changed:
            self.log.add("OK", f"BIOS settings changed: {', '.join(sorted(changed))}")
        task = self.state.data.pop("settings_task", None)
        if task is not None:
            failed = [one for one in self.bios.messages if one["MessageId"].endswith("SettingsFailed")]
            self.tasks.update(task, "Exception" if failed else "Completed", 100, *(failed or self.bios.messages))

    async def during_post(self) -> None:
        """Do what happens in POST: settings and staged firmware become active, a one-time boot override is used up."""
        self.bios.hide(False)
        if self.jobs is None:
            self.apply_settings()
        else:
            if self.bios.reset_to_defaults_pending:
                self.bios.apply(only=[])
            await self.jobs.run(self.timing.job, self.apply_settings)
        self.updates.activate_staged()
        if self.boot["BootSourceOverrideEnabled"] == "Once":
            self.boot.update(BootSourceOverrideEnabled="Disabled", BootSourceOverrideTarget="None")
        self.state.save()

    def restart_bmc_soon(self) -> None:
        """Let the BMC go away for a while, after the answer to the present request is out."""
        loop = asyncio.get_running_loop()
        loop.call_later(0.1, self.updates.bmc_goes_down)
        loop.call_later(0.1, self.restart_bmc, self.timing.bmc_restart)

    def act_at_once(self, fault: Fault) -> None:
        """Carry out a fault that is an event (`bmc_reboot` needs the network side: see app.py)."""
        if fault.kind in ("session_loss", "bmc_reboot"):
            self.sessions.lose_all()
            if fault.kind == "bmc_reboot":
                self.updates.bmc_goes_down()
        elif fault.kind == "attributes_gone":
            self.bios.hide(True)
        elif fault.kind == "stale_pending":
            self.bios.plant(fault.parameters["attributes"])
        elif fault.kind == "log_entry":
            self.log.add_described(fault.parameters)
        elif fault.kind in ("sensor_dead", "sensor_reading", "power_supply_lost"):
            self._refuse_unknown_part(fault)

    def _refuse_unknown_part(self, fault: Fault) -> None:
        sensor, index = fault.parameters.get("sensor"), fault.parameters.get("index")
        supplies = len(self.profile.get("power_supplies", []))
        names = [one["id"] for one in self.sensors.parts]
        if sensor in names or (index is not None and 0 <= index < supplies):
            return
        self.faults.remove(fault.identity)
        if index is not None:
            raise refuse(400, "PropertyValueNotInList", index, "index", f"0 to {supplies - 1}", related="/index")
        raise refuse(400, "PropertyValueNotInList", sensor, "sensor", ", ".join(names), related="/sensor")

    async def start(self) -> None:
        """Take up where the state file left off."""
        await self.power.start()

    async def stop(self) -> None:
        """End what is under way and keep the state."""
        await self.updates.stop()
        await self.power.stop()
        self.state.save()
