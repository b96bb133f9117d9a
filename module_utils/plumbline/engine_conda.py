"""The Python of an engine from conda (micromamba, mamba or conda), for sites that take it from there."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from .engine_wish import EngineError, Run, Wish, last_line

_NAMES = ("micromamba", "mamba", "conda")
_PLACES = ("/opt/conda", "/opt/miniforge3", "/opt/mambaforge", "/opt/miniconda3", "/usr/local", "/root/miniforge3")
_TIMEOUT_SECONDS = 1200


def find_conda(executable: str) -> str:
    """The path of the program that makes environments: the one that is named, else the first that is found. Empty: none."""
    if executable:
        return executable if Path(executable).is_file() else shutil.which(executable) or ""
    for name in _NAMES:
        found = shutil.which(name) or next(
            (f"{place}/bin/{name}" for place in _PLACES if Path(place, "bin", name).is_file()), ""
        )
        if found:
            return found
    return ""


def conda_python(wish: Wish, run: Run) -> None:
    """Make the engine's environment with its Python and nothing of vLLM. Raises EngineError with the reason and the remedy."""
    conda = wish.conda
    program = find_conda(conda.executable)
    if not program:
        where = conda.executable or f"{', '.join(_NAMES)} on the path or below {', '.join(_PLACES)}"
        raise EngineError(
            f"The engine {wish.id} is to be made with conda, which was not found ({where}): install micromamba, name its path in "
            "engine_conda_executable, or set engine_environment_manager: uv."
        )
    told = [program, "create", "--yes", "--quiet", "--prefix", str(wish.path)]
    if conda.lock_text:
        wish.root.mkdir(parents=True, exist_ok=True)
        lock = wish.root / "locks" / f"conda-{conda.digest[:8]}.txt"
        lock.parent.mkdir(exist_ok=True)
        lock.write_text(conda.lock_text, encoding="utf-8")
        told += ["--file", str(lock)]
    else:
        told.append("--override-channels")
        for channel in conda.channels:
            told += ["--channel", channel]
        if conda.channels and all(channel.startswith(("/", "file:")) for channel in conda.channels):
            told.append("--offline")
        told.append(f"python={conda.python_version}")
    environment = {
        "CONDA_PKGS_DIRS": str(wish.root / ".cache/conda"),
        "MAMBA_ROOT_PREFIX": str(wish.root / ".conda"),
        # Of the node's own configuration the channels, proxies and certificates count, not what it adds to every environment.
        "CONDA_CREATE_DEFAULT_PACKAGES": "",
        "CONDA_REGISTER_ENVS": "false",
    }
    done = run(told, environment, min(wish.timeout_seconds, _TIMEOUT_SECONDS))
    if done.returncode != 0:
        raise EngineError(
            f"The Python of the engine {wish.id} could not be made with {program} ({_words(done)}): {_remedy(wish, done)}."
        )
    found = run([str(wish.python), "-I", "-c", "import sys; print('cp%d%d' % sys.version_info[:2])"], {}, 60)
    if found.stdout.strip() != wish.python_tag:
        raise EngineError(
            f"The engine {wish.id} needs a Python {wish.python_tag}, {program} made {found.stdout.strip() or 'none that runs'}: "
            "correct engine_conda_python_version or the lock in engine_conda_lock_file."
        )


def _remedy(wish: Wish, done: subprocess.CompletedProcess[str]) -> str:
    told = f"{done.stderr} {done.stdout}"
    if "No space left" in told:
        return f"the file system of {wish.root} is full: free some, or set engine_root to a larger one"
    if wish.conda.lock_text:
        return "look whether every address of engine_conda_lock_file can be reached from the node"
    channels = ", ".join(wish.conda.channels) or "no channel"
    return f"look whether {channels} (engine_conda_channels) can be reached from the node and has that Python"


def _words(done: subprocess.CompletedProcess[str]) -> str:
    # conda and mamba say some of it on standard output.
    lines = [line.strip() for line in f"{done.stdout}\n{done.stderr}".splitlines() if "rror" in line]
    return (lines[-1][-300:] if lines else last_line(done)).strip()
