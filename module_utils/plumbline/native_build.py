"""Builds a small C program on the node with its own gcc, once per source, compiler and processor."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

_BUILD_TIMEOUT_SECONDS = 120
# GCC on some architectures knows only the second; -O3 alone is the last resort.
_TARGETS = ("-march=native", "-mcpu=native", "")


class BuildError(Exception):
    """The program could not be built; the text says what was expected, found and what to do."""


def build(
    name: str, source: str, flags: list[str], *, cache: str, processor: str, compiler: str = "gcc"
) -> tuple[Path, str]:
    """The path of the built program and a text that says how it was built.

    `processor` names what `-march=native` depends on: another CPU under the same disk gets another program.
    """
    found = shutil.which(compiler)
    if found is None:
        raise BuildError(
            f"expected a C compiler ({compiler}) on the node to build the measurement with, found none: install gcc, and "
            "libgomp where it is a package of its own"
        )
    version = _version(found)
    key = hashlib.sha256("\0".join((source, version, *flags, processor)).encode()).hexdigest()[:16]
    directory = _directory(cache)
    for target in _TARGETS:
        program = directory / f"{name}-{key}{target.replace('=', '-')}"
        if program.is_file() and os.access(program, os.X_OK):
            return program, f"{version}, -O3 {target}".strip()
    errors = []
    for target in _TARGETS:
        program = directory / f"{name}-{key}{target.replace('=', '-')}"
        try:
            problem = _compile(found, source, [*flags, *([target] if target else [])], program)
        except OSError as error:
            raise BuildError(
                f"expected to build the measurement in {cache}, found: {error.strerror}: make room there, or set cache_directory"
            ) from error
        if problem is None:
            return program, f"{version}, -O3 {target}".strip()
        errors.append(problem)
    raise BuildError(
        f"expected {compiler} to build the measurement, found: {errors[-1]}: install gcc with OpenMP (libgomp)"
    )


def _version(compiler: str) -> str:
    try:
        done = subprocess.run(
            [compiler, "--version"],
            capture_output=True,
            text=True,
            errors="replace",
            env=_english(),
            timeout=_BUILD_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise BuildError(f"expected {compiler} to tell its version, found: {error}: reinstall it") from error
    return (done.stdout.splitlines() or [""])[0].strip()


def _english() -> dict[str, str]:
    """The environment of a compiler whose complaints are looked through for the word error."""
    return {**os.environ, "LC_ALL": "C"}


def usable(cache: str) -> bool:
    """Whether a program can be built and run in this directory: it can be made and written to, and is not mounted noexec."""
    try:
        there = next(place for place in (Path(cache), *Path(cache).parents) if place.exists())
        if os.statvfs(there).f_flag & (os.ST_RDONLY | os.ST_NOEXEC):
            return False  # before anything is made there
        return os.access(_directory(cache), os.W_OK | os.X_OK)
    except (BuildError, OSError, StopIteration):
        return False


def _directory(cache: str) -> Path:
    """The cache, made when missing. What anybody may write to is refused: the programs in it run as this user."""
    directory = Path(cache)
    try:
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        state = directory.stat()
    except OSError as error:
        raise BuildError(
            f"expected a directory to build in at {cache}, found: {error.strerror}: set cache_directory"
        ) from error
    if state.st_uid not in (os.geteuid(), 0) or (state.st_mode & (stat.S_IWGRP | stat.S_IWOTH)):
        raise BuildError(
            f"expected only this user to be able to write to {cache}, found others: set cache_directory or its mode"
        )
    return directory


def _compile(compiler: str, source: str, flags: list[str], program: Path) -> str | None:
    """Build beside the program and move it into place, so that a half-written one is never run; the problem, if any."""
    with tempfile.TemporaryDirectory(dir=program.parent, prefix=".build-") as work:
        text, built = Path(work) / "source.c", Path(work) / "program"
        text.write_text(source, encoding="utf-8")
        command = [compiler, "-O3", "-std=gnu11", *flags, str(text), "-o", str(built)]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                errors="replace",
                env=_english(),
                timeout=_BUILD_TIMEOUT_SECONDS,
                check=False,
            )
        except (OSError, subprocess.SubprocessError) as error:
            return str(error)
        if done.returncode:
            lines = (
                [line for line in done.stderr.splitlines() if "error" in line]
                or done.stderr.splitlines()
                or ["no message"]
            )
            return lines[0].strip()
        if not built.is_file():
            return "it ended well and left no program"
        built.chmod(0o755)
        built.replace(program)
    return None
