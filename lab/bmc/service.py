"""One simulated BMC: its parts put together, and the table of its resources."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import paths as paths_module
from .auth import Sessions
from .bios import Bios
from .config import Config, password_of
from .core import CoreResources
from .faults import Fault, Faults
from .power import CommandDriver, Driver, Hooks, NullDriver, Power, Timing
from .profile import load as load_profile
from .rest import ETags, Resource
from .state import State
from .systems import SystemResources

Json = dict[str, Any]
Finder = Callable[[str], "Resource | None"]
LOG = logging.getLogger("lab.bmc")

DEFAULT_RESETS = ["On", "ForceOff", "GracefulShutdown", "ForceRestart", "GracefulRestart", "PowerCycle"]
DEFAULT_BOOT_TARGETS = ["None", "Pxe", "Hdd", "Cd", "BiosSetup", "UefiHttp"]


class Service:
    """The simulator without its network side."""

    def __init__(self, config: Config, driver: Driver | None = None) -> None:
        self.config = config
        self.profile = load_profile(config.profile, config.profile_overrides)
        self.paths = paths_module.Paths(self.profile)
        self.state = State(self.profile.name, Path(config.state_file) if config.state_file else None)
        quirks = self.profile.quirks
        self.etags = ETags(**quirks.get("etag", {}))
        self.faults = Faults()
        self.sessions = Sessions(
            config.username, password_of(config), config.session_timeout_seconds, config.session_limit
        )
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
        self.node_name = config.node or "node"
        self.system_links: Json = {}
        timing = Timing(**self.profile.get("timing", {}))
        if config.post_seconds is not None:
            timing.post = config.post_seconds
        if driver is None:
            if config.power_command:
                driver = CommandDriver(config.power_command, config.power_timeout_seconds)
            else:
                driver = NullDriver()
        hooks = Hooks(self.during_post, self._slow_down, lambda: self.faults.take("reset_ignored") is not None)
        self.power = Power(driver, timing, hooks, self.state, list(self.profile.get("reset_types", DEFAULT_RESETS)))
        self.table: dict[str, Resource] = {}
        self.finders: list[tuple[str, Finder]] = []
        for part in (CoreResources(self), SystemResources(self)):
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
        resource = self.table.get(wanted)
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

    async def during_post(self) -> None:
        """Do what happens in POST: settings are applied, a one-time boot override is used up."""
        fault = self.faults.take("setting_ignored")
        if fault is None:
            self.bios.apply()
        else:
            names = fault.parameters["attributes"] or list(self.bios.pending)
            self.bios.apply(ignore=names, silently=fault.parameters["silent"])
        if self.boot["BootSourceOverrideEnabled"] == "Once":
            self.boot.update(BootSourceOverrideEnabled="Disabled", BootSourceOverrideTarget="None")
        self.state.save()

    def act_at_once(self, fault: Fault) -> None:
        """Carry out a fault that is an event (`bmc_reboot` needs the network side: see app.py)."""
        if fault.kind in ("session_loss", "bmc_reboot"):
            self.sessions.lose_all()
        elif fault.kind == "stale_pending":
            self.bios.plant(fault.parameters["attributes"])

    async def start(self) -> None:
        """Take up where the state file left off."""
        await self.power.start()

    async def stop(self) -> None:
        """End what is under way and keep the state."""
        await self.power.stop()
        self.state.save()
