"""The controller's virtual environment: made from a lock file in which every file is pinned by its hash."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab.shell import read, run, run_long, say, write_atomically

MINIMUM = (3, 11)


def stamp_of(lock: Path, python: str) -> str:
    """What a finished environment was made from."""
    return hashlib.sha256(lock.read_bytes() + python.encode()).hexdigest() + "\n"


@contextmanager
def alone(root: Path) -> Iterator[None]:
    """One installation at a time: two in one environment leave packages without their metadata, which pip cannot read again."""
    (root / ".cache").mkdir(exist_ok=True)
    with (root / ".cache" / "venv.lock").open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another command of this checkout to finish .venv")
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def ensure(root: Path, lock_name: str) -> None:
    """Make or renew ``.venv`` unless it was made from this very lock file and this Python."""
    if not finished(root, lock_name):
        with alone(root):
            make(root, lock_name)


def finished(root: Path, lock_name: str) -> bool:
    """Whether ``.venv`` is whole, and made from this very lock file and this Python."""
    venv, lock = root / ".venv", root / lock_name
    whole = (venv / "bin" / "python").exists() and not (venv / ".unfinished").exists()
    return whole and read(venv / f".{lock_name}.sha256") == stamp_of(lock, sys.version)


def make(root: Path, lock_name: str) -> None:
    """Do what ``ensure`` says, with nobody else at it."""
    venv, lock = root / ".venv", root / lock_name
    stamp, unfinished = venv / f".{lock_name}.sha256", venv / ".unfinished"
    python = venv / "bin" / "python"
    if finished(root, lock_name):
        return  # somebody else did it while we waited
    if unfinished.exists():
        # Killed in the middle: what is half installed stays half installed.
        shutil.rmtree(venv)
    if python.exists():
        version = run([python, "-c", "import sys; print(sys.version)"], what="asking .venv", check=False).stdout.strip()
        if version != sys.version:
            # Made by another Python, or left behind by one that is gone.
            shutil.rmtree(venv)
    if not python.exists():
        shutil.rmtree(venv, ignore_errors=True)
        venv.mkdir()
        unfinished.touch()
        run([sys.executable, "-m", "venv", venv], what="making .venv")
    unfinished.touch()
    say(f"installing the controller's Python packages into .venv ({lock_name}, by hash)")
    log = root / ".cache" / "pip.log"
    # Compiling all of Ansible's collections takes longer than installing them; what is used is compiled when first used.
    install: list[str | Path] = [python, "-m", "pip", "install", "--no-compile", "--require-hashes", "-r", lock]
    run_long(install, what="installing Python packages", log=log)
    write_atomically(stamp, stamp_of(lock, sys.version), 0o644)
    unfinished.unlink()
