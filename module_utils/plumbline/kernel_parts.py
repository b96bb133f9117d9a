"""A part of a kernel wish that is no live setting: files and commands of its own, how it reads back, how it is undone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .kernel_files import FileWish
from .kernel_wish import KernelError, Wish
from .tree import Tree

# Runs a command; returns its exit status (127 where it does not exist), stdout and stderr.
Runner = Callable[[list[str]], "tuple[int, str, str]"]


@dataclass(frozen=True)
class Command:
    """A command and what takes it back; without *undo* it needs none."""

    do: list[str]
    undo: list[str] = field(default_factory=list)


@dataclass
class Part:
    """What one part of the wish comes to on this machine, before a byte is written."""

    name: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    files: list[FileWish] = field(default_factory=list)
    # Run behind the files; empty when nothing differs. After a rollback of the files, `undo` runs in reverse.
    commands: list[Command] = field(default_factory=list)
    measurements: list[dict[str, Any]] = field(default_factory=list)
    # What the next run must know; kept in the record under the part's name when it is not empty.
    record: dict[str, Any] = field(default_factory=dict)
    # Reads back what files and commands did; returns one sentence when it is not so.
    check: Callable[[], str] | None = None


@dataclass(frozen=True)
class Context:
    """What every part looks at."""

    tree: Tree
    wish: Wish
    container: str
    # The record of earlier runs, by the name of the part.
    records: dict[str, Any]
    run: Runner | None
    boot_id: str

    def known(self, part: str) -> dict[str, Any]:
        """What an earlier run recorded for a part."""
        found = self.records.get(part)
        return found if isinstance(found, dict) else {}

    def wanted(self, part: str) -> dict[str, str]:
        """The keys of a part that are wished, without the part's name."""
        prefix = f"{part}."
        return {name[len(prefix) :]: value for name, value in self.wish.parts.items() if name.startswith(prefix)}


def row(name: str, state: str, values: tuple[str, str], reason: str, kept_in: str = "") -> dict[str, Any]:
    """One row of the report; *values* are wanted and before."""
    return {
        "name": name,
        "state": state,
        "wanted": values[0],
        "before": values[1],
        "reason": reason,
        "restart_required": False,
        "persisted_in": kept_in,
    }


def measured(scope: str, expected: str, **found: str) -> dict[str, Any]:
    """A measurement `kernel_setting`; *found* holds `value`, `skipped` or `error`, and `cause`, `next_command`."""
    return {
        "name": "kernel_setting",
        "scope": scope,
        "expected": expected,
        "unit": "",
        "statistic": "read once",
        **found,
    }


def run_commands(part: Part, run: Runner | None, done: list[Command]) -> None:
    """Run a part's commands; appends each to *done* before it runs. Raises KernelError on the first that fails."""
    if run is None:
        return
    for command in part.commands:
        done.append(command)
        status, out, err = run(command.do)
        if status != 0:
            last = ((err.strip() or out.strip()).splitlines() or ["no message"])[-1]
            raise KernelError(
                f"{part.name}: {' '.join(command.do)} ended with status {status} ({last}): run it by hand to see why"
            )


def undo_commands(done: list[Command], run: Runner | None) -> list[str]:
    """Take commands back, last one first; returns what could not be taken back."""
    faults = []
    for command in reversed(done):
        if command.undo and run:
            status, _, err = run(command.undo)
            if status != 0:
                faults.append(f"{' '.join(command.undo)} ended with status {status} ({err.strip()[-200:]})")
    return faults
