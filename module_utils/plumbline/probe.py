"""Run one of this package's probe programs, or a measuring tool, so that nothing of it is left when it ends or hangs."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# The names only reach the probe if AnsiballZ ships them; it follows import statements.
from . import all_reduce_probe, gpu_copy_probe, probe_support  # noqa: F401

_PATIENCE_AFTER_KILL_SECONDS = 10
_BESIDE = ("probe_support", "gpu_copy_probe")
"""What the probes import: it is laid beside them."""


@dataclass
class Finished:
    """How a program ended: its status and output, or the `problem` that kept it from ending by itself."""

    status: int | None
    stdout: str
    stderr: str
    problem: str = ""


def run_group(command: list[str], timeout_seconds: float, environment: dict[str, str] | None = None) -> Finished:
    """Run a program as a process group of its own, and end the whole group after `timeout_seconds`; never raises for what it does.

    A process that waits inside a driver cannot be ended, not even by SIGKILL: then this gives up waiting and says so.
    """
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        return Finished(None, "", "", f"cannot start {command[0]}: {error.strerror}")
    name = Path(command[0]).name
    try:
        stdout, stderr = child.communicate(timeout=timeout_seconds)
    except subprocess.TimeoutExpired:
        end_group(child.pid)
        problem = f"{name} was still running after {timeout_seconds:g} s and was ended"
        try:
            stdout, stderr = child.communicate(timeout=_PATIENCE_AFTER_KILL_SECONDS)
        except subprocess.TimeoutExpired:
            for pipe in (child.stdout, child.stderr):
                if pipe:
                    pipe.close()
            hung = "and cannot be ended: it hangs in the driver of a device, see dmesg; only a restart of the machine helps"
            return Finished(None, "", "", f"{name} was still running after {timeout_seconds:g} s {hung}")
        return Finished(None, stdout, stderr, problem)
    finally:
        # What a program started and did not wait for ends with it.
        end_group(child.pid)
    return Finished(child.returncode, stdout, stderr)


def end_group(leader: int) -> None:
    """End every process of a group, if there is any left."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def source_of(name: str) -> str:
    """Return the source of a module of this package, also where the package lies in a zip file, as AnsiballZ ships it."""
    spec = importlib.util.find_spec(f"{__package__}.{name}")
    loader: Any = spec.loader if spec else None
    source = loader.get_source(spec.name) if spec and hasattr(loader, "get_source") else None
    if not isinstance(source, str):
        raise FileNotFoundError(f"the probe {name} was not shipped with the module")
    return source


def run_probe(name: str, python: str, options: dict[str, Any], timeout_seconds: int) -> tuple[str, str]:
    """Run the probe with its options as JSON and return what it wrote to stdout and stderr; never raises for a probe that fails.

    A Python that is not there or a run past `timeout_seconds` comes back as an `error` answer, like one of the probe's own.
    """
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    with tempfile.TemporaryDirectory(prefix="plumbline-probe-") as folder:
        for file in dict.fromkeys((name, *_BESIDE)):
            (Path(folder) / f"{file}.py").write_text(source_of(file))
        program = Path(folder) / f"{name}.py"
        found = run_group([python, str(program), json.dumps(options)], timeout_seconds, environment)
    if found.problem.startswith("cannot start"):
        return json.dumps({"error": f"{found.problem}; give the Python of an engine with torch"}), ""
    if found.problem:
        return json.dumps({"error": f"the probe {found.problem}"}), ""
    if found.status and found.status < 0 and not found.stdout:
        name_of = {int(number): number.name for number in signal.Signals}
        found.stderr += f"\nthe probe was ended by {name_of.get(-found.status, f'signal {-found.status}')}"
    return found.stdout, found.stderr
