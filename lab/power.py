"""Power control of the node: what the simulated BMC calls, and a person may."""

from __future__ import annotations

from typing import Any

from lab.podman import Podman
from lab.settings import Lab
from lab.shell import LabError

GRACE_SECONDS = 30
# Action -> the podman call and how long the node may take to shut down before it is cut off.
ACTIONS: dict[str, tuple[str, ...]] = {
    "on": ("start",),
    "off": ("stop", "--time", "0"),
    "cycle": ("restart", "--time", "0"),
    "graceful-off": ("stop", "--time", str(GRACE_SECONDS)),
    "graceful-cycle": ("restart", "--time", str(GRACE_SECONDS)),
}


def state(found: dict[str, Any]) -> str:
    """``on`` or ``off``."""
    return "on" if found["State"]["Status"] in {"running", "stopping", "paused"} else "off"


def described(found: dict[str, Any]) -> str:
    """``off``, or ``on`` and an identity of this start, by which the BMC notices a node that restarted by itself."""
    return f"on {found['State']['StartedAt'].replace(' ', '_')}" if state(found) == "on" else "off"


def power(lab: Lab, podman: Podman, action: str) -> str:
    """Do it and return the power state afterwards. Like a real chassis, on when on and off when off change nothing."""
    found = podman.inspect(lab.container)
    if found is None:
        raise LabError(f"there is no node {lab.container}: run make lab")
    if action == "status":
        return described(found)
    wanted = ACTIONS[action]
    before = state(found)
    if before == "on" and action == "on":
        return described(found)
    if before == "off":
        if action in {"off", "graceful-off"}:
            return described(found)
        wanted = ACTIONS["on"]
    podman(*wanted, lab.container, what=f"power {action}")
    after = podman.inspect(lab.container)
    return described(after) if after is not None else "off"
