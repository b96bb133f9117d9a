"""How an endpoint comes to run as wanted: left alone, started, restarted, or upgraded in place or beside. Decides and touches nothing.

An *upgrade* is another model or engine; other options, or another key, are a restart. Whatever a run that was cut off has left
is seen here like anything else that is found, so that the next run makes it good.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .systemd_service import State, parse_handed_on, reasons_to_start

NONE, START, RESTART, IN_PLACE, BESIDE = "none", "start", "restart", "in place", "beside"


class UpgradeRefusedError(Exception):
    """The upgrade cannot be made as asked for; the message is the sentence for the user."""


@dataclass(frozen=True)
class Found:
    """A unit as found: what systemd says, what was noted when it was last ready, and the text of its file."""

    state: State
    record: dict[str, Any] = field(default_factory=dict)
    text: str = ""

    @property
    def ready(self) -> bool:
        """Tell whether what runs now gave a right completion."""
        return self.state.running and self.record.get("main_pid") == self.state.main_pid

    @property
    def is_there(self) -> bool:
        """Tell whether anything of it is there: a file, a process."""
        return bool(self.text) or self.state.active not in ("", "inactive", "failed")

    @property
    def serves(self) -> str:
        """Return engine and model of what runs; empty where it cannot be told.

        A record of an earlier Plumbline does not say so; the unit's file does, as long as it is the file that was started.
        """
        if self.record.get("serves"):
            return str(self.record["serves"])
        configuration = self.record.get("configuration")
        if not configuration or f"PLUMBLINE_CONFIGURATION={configuration}" not in self.text:
            return ""
        return serves(parse_handed_on(self.text))


def serves(noted: dict[str, str]) -> str:
    """Return what names engine and model, from what a unit's section `X-Plumbline` says."""
    return " ".join(noted.get(name, "") for name in ("engine_id", "model_path", "model_manifest_sha256"))


@dataclass(frozen=True)
class Wanted:
    """What shall run: digests of both units' texts and of the key, engine and model, and how an upgrade is to be made."""

    configuration: str
    key_sha256: str
    serves: str = ""
    beside_configuration: str = ""
    mode: str = "auto"
    fits: bool = True
    arithmetic: str = ""


@dataclass(frozen=True)
class Decision:
    """What to do, and why."""

    how: str
    reasons: list[str]
    because: str = ""
    start_beside: bool = False
    end_beside_first: bool = False
    end_beside: bool = False

    @property
    def is_upgrade(self) -> bool:
        """Tell whether another model or engine takes over."""
        return self.how in (IN_PLACE, BESIDE)


def decide(unit: Found, beside: Found | None, wanted: Wanted) -> Decision:
    """Decide how *unit* comes to run as wanted; *beside* is the unit of an upgrade, None where there is to be none.

    :raises UpgradeRefusedError: where an upgrade beside was asked for, and memory does not hold both.
    """
    reasons = reasons_to_start(unit.state, unit.record, wanted.configuration, wanted.key_sha256)
    left = beside is not None and beside.is_there
    if not reasons:
        return Decision(NONE, [], end_beside=left)
    if not unit.ready or beside is None:
        # Nothing serves here that an upgrade could spare. What still serves beside goes on until this one is ready, if memory holds both.
        how = START if not unit.state.running else RESTART
        return Decision(how, reasons, end_beside=left, end_beside_first=left and not wanted.fits)
    if unit.serves == wanted.serves:
        return Decision(RESTART, reasons, end_beside=left, end_beside_first=left)
    if wanted.mode == "in_place":
        return Decision(IN_PLACE, reasons, "serving_upgrade asks for it", end_beside=left, end_beside_first=left)
    if not wanted.fits:
        if wanted.mode == "beside":
            raise UpgradeRefusedError(
                f"Expected memory for the old and the new one side by side (serving_upgrade: beside), found that they do not fit "
                f"({wanted.arithmetic or 'no figures'}): set serving_upgrade to in_place, or free memory"
            )
        told = f"memory does not hold two ({wanted.arithmetic})" if wanted.arithmetic else "memory does not hold two"
        return Decision(IN_PLACE, reasons, told, end_beside=left, end_beside_first=left)
    start_beside = bool(reasons_to_start(beside.state, beside.record, wanted.beside_configuration, wanted.key_sha256))
    return Decision(BESIDE, reasons, "memory holds both", start_beside=start_beside, end_beside=True)
