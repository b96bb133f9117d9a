"""Running other programs: as root where it must be, with one clear sentence when they fail."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

# A user's PATH on Debian lacks these, and runc and iptables live there.
SBIN = ("/usr/sbin", "/sbin", "/usr/local/sbin")

_WANTS_PASSWORD = re.compile(r"^sudo: a (?:password|terminal) is required", re.MULTILINE)


class LabError(Exception):
    """What a person reads when the lab cannot go on: one sentence with the remedy."""


def say(text: str) -> None:
    """Tell the person at the terminal what just became true; standard output is for what a command was asked for."""
    print(f"lab: {text}", file=sys.stderr, flush=True)


def which(program: str) -> str | None:
    """Path of a program, looking in the sbin directories too."""
    return shutil.which(program, path=os.pathsep.join([os.environ.get("PATH", ""), *SBIN]))


def sudo() -> list[str]:
    """Prefix that makes a command run as root: empty for root itself."""
    if os.geteuid() == 0:
        return []
    if shutil.which("sudo") is None:
        raise LabError(
            "the lab needs root for its container: run make as root, or install sudo and allow it for this user"
        )
    return ["sudo"]


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a child: this one's, with the sbin directories on PATH and plain English messages.

    What a user has set for Ansible (a vault password of another site, say) is not for the lab's own calls.
    """
    path = os.pathsep.join(dict.fromkeys([*os.environ.get("PATH", "/usr/bin:/bin").split(os.pathsep), *SBIN]))
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    return {**inherited, "PATH": path, "LC_ALL": "C.UTF-8", **(extra or {})}


def last_line(text: str) -> str:
    """The last line that says something, which is where programs put their reason."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no output"


def run(
    command: Sequence[str | Path],
    *,
    what: str,
    stdin: str | bytes | None = None,
    env: Mapping[str, str] | None = None,
    check: bool = True,
    timeout_seconds: float = 600,
) -> subprocess.CompletedProcess[str]:
    """Run a command quietly; ``what`` names the purpose in the error message."""
    argv = [str(word) for word in command]
    data = stdin.encode() if isinstance(stdin, str) else stdin
    try:
        done = subprocess.run(
            argv,
            input=data,
            stdin=subprocess.DEVNULL if data is None else None,
            env=environment(env),
            capture_output=True,
            timeout=timeout_seconds,
            check=False,
        )
    except FileNotFoundError:
        raise LabError(f"{what} failed: the program {argv[0]} is not installed") from None
    except subprocess.TimeoutExpired:
        raise LabError(
            f"{what} failed: {shlex.join(argv[:4])} ... gave no answer within {timeout_seconds:.0f} s"
        ) from None
    result = subprocess.CompletedProcess(
        argv, done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    )
    if result.returncode != 0 and _WANTS_PASSWORD.search(result.stderr):
        raise LabError(
            f"{what} needs root, and sudo wants a password but has no terminal: run make in a terminal, or as root"
        )
    if check and result.returncode != 0:
        raise LabError(f"{what} failed: {last_line(result.stderr or result.stdout)} (exit status {result.returncode})")
    return result


def run_long(
    command: Sequence[str | Path],
    *,
    what: str,
    log: Path,
    env: Mapping[str, str] | None = None,
    beat_seconds: float = 10,
) -> None:
    """Run a command that takes long: its output goes to ``log``, and the terminal hears of it every ten seconds."""
    argv = [str(word) for word in command]
    log.parent.mkdir(parents=True, exist_ok=True)
    start = next_beat = time.monotonic()
    with log.open("wb") as stream:
        try:
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT, env=environment(env)
            )
        except FileNotFoundError:
            raise LabError(f"{what} failed: the program {argv[0]} is not installed") from None
        try:
            while process.poll() is None:
                next_beat += beat_seconds
                try:
                    process.wait(timeout=max(0.1, next_beat - time.monotonic()))
                except subprocess.TimeoutExpired:
                    say(f"{what}: {time.monotonic() - start:.0f} s so far")
        except BaseException:
            process.terminate()
            process.wait()
            raise
    if process.returncode != 0:
        tail = last_line(log.read_text(errors="replace"))
        raise LabError(f"{what} failed: {tail} (exit status {process.returncode}; everything it said: {log})")


def command_lines() -> Iterator[tuple[int, list[str]]]:
    """Number and command line of every process, by which one is found again: a process file outlives its process."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        yield int(entry.name), words


def read(path: Path) -> str:
    """Content of a small file of the lab; empty where it is missing or damaged, so that it is simply made again."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""


def write_atomically(path: Path, content: str | bytes, mode: int) -> None:
    """Replace a file in one step, so that a reader or a crash never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "wb") as stream:
        os.fchmod(stream.fileno(), mode)
        stream.write(content.encode() if isinstance(content, str) else content)
    partial.replace(path)


def fail(error: str) -> int:
    """Print the one sentence and return the exit status."""
    print(f"lab: {error}", file=sys.stderr, flush=True)
    return 1
