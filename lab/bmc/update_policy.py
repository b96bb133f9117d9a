"""How a vendor's UpdateService behaves, as data of the profile (key `update`; docs/bmc-simulator.md describes each member)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from typing import Any

from .profile import ProfileError

Json = dict[str, Any]
METHODS = ("multipart", "push", "simple")


@dataclass(frozen=True)
class Policy:
    """The members of `update`, with what holds where a profile says nothing."""

    methods: tuple[str, ...] = METHODS
    multipart_uri: str = "/redfish/v1/UpdateService/upload"
    push_uri: str = "/redfish/v1/UpdateService/push"
    # A push address that is published and takes no Redfish client (iLO's form with a session key).
    foreign_push_uri: str = ""
    # None: not published, and a request that names one is refused.
    apply_times: tuple[str, ...] | None = ("Immediate", "OnReset")
    targets: str = "optional"  # optional, required
    targets_are: str = "inventory"  # inventory, resource
    # How a staged image shows: pending (its task waits), completed (its task is done and asks for a restart), scheduled
    # (Dell's job), entry (an entry of its own in the inventory; the task is done).
    staged_as: str = "pending"
    staged_entry: str = "{id}-Pending"
    bmc_restart: str = "self"  # self, asked (by a message; the client resets the manager)
    tasks_after_bmc_restart: str = "kept"  # kept, gone
    downgrade: str = "forced"  # refused, forced (with ForceUpdate), allowed
    busy: Json = field(default_factory=lambda: {"status": 503, "retry_after": 1})
    max_image_bytes: int | None = None


def read_policy(data: Json) -> Policy:
    """Return the policy that a profile describes."""
    known = {one.name for one in fields(Policy)}
    given = {key: value for key, value in data.items() if not key.startswith("_")}
    unknown = sorted(set(given) - known)
    if unknown:
        raise ProfileError(
            f"The key update of the profile has the unknown member {unknown[0]}; known: {', '.join(sorted(known))}."
        )
    for name in ("methods", "apply_times"):
        if isinstance(given.get(name), list):
            given[name] = tuple(given[name])
    policy = Policy(**given)
    choices = {
        "targets": ("optional", "required"),
        "targets_are": ("inventory", "resource"),
        "staged_as": ("pending", "completed", "scheduled", "entry"),
        "bmc_restart": ("self", "asked"),
        "tasks_after_bmc_restart": ("kept", "gone"),
        "downgrade": ("refused", "forced", "allowed"),
    }
    for name, values in choices.items():
        if getattr(policy, name) not in values:
            raise ProfileError(
                f"update.{name} of the profile must be one of {', '.join(values)}, not {getattr(policy, name)!r}."
            )
    return policy


def is_older(version: str, installed: str) -> bool:
    """Whether a version is older: by its numbers, without a date in brackets."""
    first, second = (
        [int(number) for number in re.findall(r"\d+", text.split("(")[0])] for text in (version, installed)
    )
    return first < second
