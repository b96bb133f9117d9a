"""The engine that shall be there, and what its making runs: programs with a time limit, failures as one sentence."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable

from .engine_lock import engine_id, sha256_of_text
from .engine_plugins import PluginWheel

MARKER = ".plumbline-engine.json"
Run = Callable[..., "subprocess.CompletedProcess[str]"]


class EngineError(Exception):
    """The engine could not be made or checked; the message is one sentence for the user."""


@dataclass(frozen=True)
class CondaWish:
    """How conda makes the Python of an engine: from an explicit lock, or by version from channels."""

    executable: str = ""
    python_version: str = ""
    channels: list[str] = field(default_factory=list)
    lock_text: str = ""

    @property
    def digest(self) -> str:
        """What an engine made this way is told apart by."""
        return sha256_of_text("\n".join(["conda", self.python_version, *self.channels, self.lock_text]))


@dataclass(frozen=True)
class Wish:
    """The engine that shall be there. `root` holds all engines; `also` are distributions that vLLM looks for beside the lock's.

    `manager` is uv, pip, conda or auto (uv, and pip where uv cannot be had). `smoke` is the job of the forward pass (engine_smoke), None
    for none.
    """

    root: Path
    kind: str
    version: str
    python_executable: str
    python_tag: str
    lock_text: str
    lock_sha256: str
    lock_name: str
    uv_requirement: str
    device: str
    manager: str = "auto"
    conda: CondaWish = CondaWish()
    plugins: list[PluginWheel] = field(default_factory=list)
    smoke: dict[str, Any] | None = None
    also: Mapping[str, str] = field(default_factory=dict)
    find_links: list[str] = field(default_factory=list)
    index_url: str = ""
    torch_index_url: str = ""
    wheelhouse: str = ""
    timeout_seconds: int = 1800

    @property
    def id(self) -> str:
        """The engine's name, equal only for equal content."""
        more = [plugin.sha256 for plugin in self.plugins]
        if self.manager == "conda":
            more.append(self.conda.digest)
        return engine_id(self.kind, self.version, self.python_tag, self.lock_sha256, more)

    @property
    def path(self) -> Path:
        """Where the engine lies. A venv cannot be moved, so it is built where it will be; its marker says when it is complete."""
        return self.root / self.id

    @property
    def python(self) -> Path:
        """The engine's own Python."""
        return self.path / "bin/python"

    @property
    def site_packages(self) -> Path:
        """Where the engine's packages lie."""
        digits = self.python_tag[len("cp") :]
        return self.path / "lib" / f"python{digits[0]}.{digits[1:]}" / "site-packages"

    @property
    def beside(self) -> dict[str, str]:
        """Distributions that belong into the engine beside the lock's."""
        return {**self.also, **{plugin.name: plugin.version for plugin in self.plugins}}


def run_command(arguments: list[str], environment: Mapping[str, str], timeout: int) -> subprocess.CompletedProcess[str]:
    """Run a program with a time limit and no standard input; its whole process group ends with it."""
    try:
        process = subprocess.Popen(
            arguments,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        return subprocess.CompletedProcess(arguments, 127, "", f"{arguments[0]}: {error.strerror}")
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.communicate()
        return subprocess.CompletedProcess(arguments, 124, "", f"it ran longer than {timeout} s and was ended")
    return subprocess.CompletedProcess(arguments, process.returncode, out, err)


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    """The last thing that a program said, for a sentence about its failure."""
    lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    return lines[-1][:300] if lines else f"exit status {done.returncode}"


def discard(path: Path) -> None:
    """Remove whatever lies at a path."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        # The marker goes first: killed here, what is left counts as interrupted.
        with contextlib.suppress(FileNotFoundError):
            (path / MARKER).unlink()
        shutil.rmtree(path)
