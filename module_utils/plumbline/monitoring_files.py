"""Files and units of the monitoring on a machine: what is there, what is wanted, and what therefore has to be restarted."""

from __future__ import annotations

import os
import pkgutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .systemd_service import PROPERTIES, State, parse_show

# What a unit was started with, in the environment of its main process.
VARIABLE = "PLUMBLINE_CONFIGURATION"
_SECONDS = 120


class UnitError(Exception):
    """One sentence on what systemd did not do."""


def program_files(package: str, directory: str) -> dict[str, str]:
    """Every module of *package* that is loaded, as files of a package called `plumbline` below *directory*.

    The module runs on the node with everything that the collector imports (Ansible's own packing of modules saw to that), so what has to
    be there to run the collector later is what is loaded now: no list of files that could fall behind.
    """
    found = {f"{directory}/plumbline/__init__.py": '"""Parts of Plumbline that run here by themselves."""\n'}
    for name in sorted(sys.modules):
        is_package = hasattr(sys.modules[name], "__path__")
        if name.startswith(package + ".") and "." not in name[len(package) + 1 :] and not is_package:
            short = name[len(package) + 1 :]
            data = pkgutil.get_data(package, f"{short}.py")
            if data is None:
                raise UnitError(f"the source of {name} cannot be read")
            found[f"{directory}/plumbline/{short}.py"] = data.decode("utf-8")
    return found


def differing(wanted: Mapping[str, str]) -> dict[str, tuple[str | None, str]]:
    """Files whose content is not as wanted: what is there (None for no file) and what is wanted, by path."""
    found = {}
    for path, content in wanted.items():
        try:
            there: str | None = Path(path).read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            there = None
        if there != content:
            found[path] = (there, content)
    return found


def surplus(directory: str, wanted: Mapping[str, str], suffix: str) -> list[str]:
    """Files with *suffix* directly in *directory* that nobody wants there any more."""
    names = sorted(Path(directory).glob(f"*{suffix}")) if Path(directory).is_dir() else []
    return [str(path) for path in names if str(path) not in wanted]


def write(path: str, content: str) -> None:
    """Replace a file in one step, with mode 0644 and directories of mode 0755 above it."""
    folder = Path(path).parent
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=".plumbline-", dir=folder)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write(content)
    Path(temporary).chmod(0o644)
    Path(temporary).replace(path)


def systemctl(*arguments: str) -> str:
    """Run `systemctl`; its output."""
    try:
        done = subprocess.run(
            ["systemctl", *arguments], capture_output=True, text=True, timeout=_SECONDS, check=False, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnitError(
            f"expected systemd to run `systemctl {' '.join(arguments)}`, found that it cannot ({error})"
        ) from None
    if done.returncode:
        said = " ".join(done.stderr.split())[:300]
        raise UnitError(
            f"expected `systemctl {' '.join(arguments)}` to succeed, found status {done.returncode}: {said}; look at "
            f"journalctl -u {arguments[-1]}"
        )
    return done.stdout


def state_of(unit: str) -> State:
    """What systemd says of a unit."""
    return parse_show(systemctl("show", f"--property={','.join(PROPERTIES)}", unit))


def started_with(pid: int) -> str:
    """The configuration that a process was started with; empty where it names none."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return ""
    prefix = f"{VARIABLE}=".encode()
    return next(
        (entry[len(prefix) :].decode(errors="replace") for entry in environment if entry.startswith(prefix)), ""
    )


def reasons(state: State, running_with: str, configuration: str) -> list[str]:
    """Why a unit must be started or restarted; empty where it runs as wanted. Without *configuration* (a timer) running is enough."""
    if state.active != "active":
        return [f"it is {state.active or 'unknown'}"]
    if configuration and running_with != configuration:
        return ["its configuration changed"]
    return []


def plan(units: Sequence[Mapping[str, Any]], changed: Mapping[str, Any]) -> list[dict[str, Any]]:
    """For each unit what it is (`absent` where its file is not there yet) and why it must be started."""
    found = []
    for unit in units:
        state = state_of(unit["name"])
        running = started_with(state.main_pid) if state.main_pid else ""
        why = reasons(state, running, unit.get("configuration") or "")
        if (
            not why
            and any(path.rpartition("/")[2] == unit["name"] for path in changed)
            and not unit.get("configuration")
        ):
            why = ["its file changed"]
        found.append(
            {"name": unit["name"], "enabled": state.enabled, "reasons": why, "needs_reload": state.needs_reload}
        )
    return found
