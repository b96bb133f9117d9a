"""Fill an engine from its hash lock, with uv or pip, and say what to do where that fails."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .engine_conda import conda_python
from .engine_lock import normalised, parse_lock
from .engine_sources import (
    Sources,
    from_pip_config,
    pip_arguments,
    pip_environment,
    uv_arguments,
    uv_environment,
    with_inventory,
)
from .engine_wish import EngineError, Run, Wish, discard, last_line

_BOOTSTRAP_TIMEOUT_SECONDS = 300
# How uv and pip say that torch is in none of the places they were told of.
_TORCH_MISSING = re.compile(r"there is no version of torch\b|No matching distribution found for torch==")
_OTHER_HASH = re.compile(r"Hash mismatch|DO NOT MATCH THE HASHES")
_FROM_LOCK = ["--quiet", "--require-hashes", "--no-deps", "--only-binary", ":all:"]


class UvMissingError(EngineError):
    """No place that was asked has uv."""


@dataclass(frozen=True)
class Filled:
    """How an engine was filled: the manager, why it is not the wished one, and what was in it before the lock."""

    manager: str
    reason: str = ""
    found_there: tuple[str, ...] = ()


def fill(wish: Wish, run: Run) -> Filled:
    """Make the engine's environment and install the lock into it. Raises EngineError with the reason and the remedy."""
    if wish.wheelhouse:
        _check_wheelhouse(wish)
    # conda brings a Python of its own; the one of the node need not be there.
    base = wish.python_executable
    if wish.manager == "conda":
        conda_python(wish, run)
        base = str(wish.python)
    reason = ""
    if wish.manager != "pip":
        try:
            uv, sources = _uv(wish, base, run)
        except UvMissingError as error:
            if wish.manager == "uv":
                raise
            reason = str(error)
        else:
            found_there = _with_uv(wish, uv, sources, run)
            return Filled("conda with uv" if wish.manager == "conda" else "uv", found_there=found_there)
    found_there = _with_pip(wish, base, run)
    return Filled("conda with pip" if wish.manager == "conda" else "pip", reason, found_there)


def missing_wheels(pins: dict[str, str], names: Iterable[str]) -> list[str]:
    """The files that a directory with these names lacks, as patterns such as torch-2.13.0+cpu-*.whl."""
    there = set()
    for name in names:
        parts = name[: -len(".whl")].split("-") if name.endswith(".whl") else []
        if len(parts) >= 5:
            there.add((normalised(parts[0]), parts[1].lower()))
    return [
        f"{name.replace('-', '_')}-{version}-*.whl"
        for name, version in sorted(pins.items())
        # A + of a local version may be written as _ in file names of old tools.
        if not {(name, version.lower()), (name, version.lower().replace("+", "_"))} & there
    ]


def _check_wheelhouse(wish: Wish) -> None:
    place = Path(wish.wheelhouse)
    if not place.is_dir():
        raise EngineError(
            f"The engine {wish.id} is to come from {place} alone (engine_wheelhouse), which is no directory on the node: "
            "mount or copy it there, docs/engine.md says how to make one."
        )
    pins = parse_lock(wish.lock_text, wish.lock_name)
    if missing := missing_wheels(pins, [path.name for path in place.iterdir()]):
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise EngineError(
            f"The engine {wish.id} is to come from {place} alone (engine_wheelhouse), which lacks {', '.join(missing[:3])}{more}: "
            "add what is missing, docs/engine.md says how to make one."
        )


def _home(wish: Wish, name: str, base: str, run: Run) -> Path:
    """A venv of Plumbline's own with pip, to install from; made anew where its Python is gone."""
    home = wish.root / name
    python = home / "bin/python"
    if python.exists() and run([str(python), "-I", "-c", "import pip"], {}, 60).returncode == 0:
        return home
    discard(home)
    done = run([base, "-I", "-m", "venv", str(home)], {}, _BOOTSTRAP_TIMEOUT_SECONDS)
    if done.returncode != 0:
        discard(home)
        raise EngineError(
            f"A venv could not be made with {base} ({last_line(done)}): "
            "install the distribution's venv package (Debian: python3-venv) or add it to engine_packages."
        )
    return home


def _sources(wish: Wish, python: Path, run: Run) -> Sources:
    listing = run([str(python), "-m", "pip", "config", "list"], pip_environment(""), 60)
    if listing.returncode != 0:
        raise EngineError(
            f"The node's pip configuration cannot be read ({last_line(listing)}): repair it (pip config debug), then run again."
        )
    return with_inventory(from_pip_config(listing.stdout), wish.find_links, wish.index_url, wish.wheelhouse)


def _uv(wish: Wish, base: str, run: Run) -> tuple[str, Sources]:
    """The path of a uv installed by hash, and the package sources of this node."""
    version = next(iter(parse_lock(wish.uv_requirement, "the lock of uv").values()))
    home = _home(wish, f".uv/{version}", base, run)
    python, uv = home / "bin/python", home / "bin/uv"
    if not (uv.exists() and run([str(uv), "--version"], {}, 30).returncode == 0):
        requirement = home / "uv.txt"
        requirement.write_text(wish.uv_requirement, encoding="utf-8")
        done = run(
            [
                *[str(python), "-m", "pip", "install", *_FROM_LOCK],
                *pip_arguments(wish.find_links, wish.index_url, wish.wheelhouse),
                *["-r", str(requirement)],
            ],
            pip_environment(wish.wheelhouse),
            _BOOTSTRAP_TIMEOUT_SECONDS,
        )
        if done.returncode != 0:
            discard(home)
            kind = EngineError if _OTHER_HASH.search(done.stderr) else UvMissingError
            raise kind(
                f"uv {version} could not be installed with pip ({last_line(done)}): give the node a package index "
                "(its pip configuration or engine_index_url) or a directory of wheels (engine_wheelhouse)."
            )
    return str(uv), _sources(wish, python, run)


def _with_uv(wish: Wish, uv: str, sources: Sources, run: Run) -> tuple[str, ...]:
    environment = uv_environment(sources, str(wish.root / ".cache"))
    if wish.manager != "conda":
        made = run([uv, "venv", "--no-config", "--python", wish.python_executable, str(wish.path)], environment, 120)
        if made.returncode != 0:
            raise EngineError(
                f"The venv of the engine {wish.id} could not be made ({last_line(made)}): see the message of uv."
            )
    found_there = _distributions(wish)
    base = [uv, "pip", "install", "--no-config", *_FROM_LOCK, "--python", str(wish.python), "-r", str(_lock_file(wish))]
    done = run(base + uv_arguments(sources), environment, wish.timeout_seconds)
    if done.returncode != 0 and _asks_for_torch(wish, done, sources):
        # Only now: an index that is out of reach would fail the whole installation though torch lies in a directory.
        done = run(base + uv_arguments(sources, wish.torch_index_url), environment, wish.timeout_seconds)
    if done.returncode != 0:
        raise EngineError(_reason(wish, done, sources))
    return found_there


def _with_pip(wish: Wish, base: str, run: Run) -> tuple[str, ...]:
    python = _home(wish, ".pip", base, run) / "bin/python"
    sources = _sources(wish, python, run)
    if wish.manager != "conda":
        # Without a pip of its own: what is in an engine is what its lock says.
        made = run([base, "-I", "-m", "venv", "--without-pip", str(wish.path)], {}, _BOOTSTRAP_TIMEOUT_SECONDS)
        if made.returncode != 0:
            raise EngineError(
                f"The venv of the engine {wish.id} could not be made ({last_line(made)}): see the message of venv."
            )
    found_there = _distributions(wish)
    told = [str(python), "-m", "pip", "--python", str(wish.python), "install", "--no-compile", *_FROM_LOCK]
    told += [*pip_arguments(wish.find_links, wish.index_url, wish.wheelhouse), "-r", str(_lock_file(wish))]
    environment = {**pip_environment(wish.wheelhouse), "PIP_CACHE_DIR": str(wish.root / ".cache/pip")}
    done = run(told, environment, wish.timeout_seconds)
    if done.returncode != 0 and _asks_for_torch(wish, done, sources):
        done = run([*told, "--extra-index-url", wish.torch_index_url], environment, wish.timeout_seconds)
    if done.returncode != 0:
        raise EngineError(_reason(wish, done, sources))
    return found_there


def _asks_for_torch(wish: Wish, done: subprocess.CompletedProcess[str], sources: Sources) -> bool:
    return bool(_TORCH_MISSING.search(done.stderr) and wish.torch_index_url and not sources.no_index)


def _lock_file(wish: Wish) -> Path:
    lock = wish.path / "engine.lock"
    lock.write_text(wish.lock_text, encoding="utf-8")
    return lock


def _distributions(wish: Wish) -> tuple[str, ...]:
    """What an environment holds when it was just made; conda's Python comes with pip and its like."""
    found = (entry.name.partition("-")[0] for entry in wish.site_packages.glob("*.dist-info"))
    return tuple(sorted(normalised(name) for name in found))


def _reason(wish: Wish, done: subprocess.CompletedProcess[str], sources: Sources) -> str:
    told = " ".join(done.stderr.split())
    start = f"The engine {wish.id} could not be installed"
    if _OTHER_HASH.search(told):
        remedy = (
            "the file offered is not the one that was locked: remove it from the package source, "
            "or make the lock anew with tools/lock-engine"
        )
    elif _TORCH_MISSING.search(told):
        where = ", ".join(sources.find_links) or "no directory"
        remedy = (
            f"its torch is not on PyPI and was not found in {where} nor at {wish.torch_index_url or 'an index'}: "
            "set engine_find_links or engine_wheelhouse to a place that holds it, or engine_torch_index_url to a mirror"
        )
    elif "No space left" in told or "os error 28" in told:
        remedy = f"the file system of {wish.root} is full: free some, or set engine_root to a larger one"
    elif "error sending request" in told or "dns error" in told or "NewConnectionError" in told:
        remedy = "a package index is out of reach: set engine_index_url or engine_wheelhouse, or the node's pip configuration and proxy"
    else:
        remedy = "nothing was switched; see the message and run again"
    return f"{start} ({told[-400:] or f'exit status {done.returncode}'}): {remedy}."
