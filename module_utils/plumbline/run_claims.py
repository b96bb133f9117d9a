"""Which run works on which host: two runs that stage, restart or load the same machine undo each other.

One JSON file beside the evidence, changed under a lock. A claim counts for as long as its process lives, so a run that
was killed leaves nothing to clean up. Runs of other controllers, or with another folder for the evidence, are not seen.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from .evidence import DIRECTORY_MODE, FILE_MODE

FILE_NAME = "runs.json"
_START_TIME_FIELD = 22 - 3  # of /proc/PID/stat, counted behind the name in parentheses (proc_pid_stat(5))

Claim = dict[str, Any]
"""`pid`, `started` (clock ticks since boot, empty where unknown), `user`, `since` (UTC, ISO 8601), `playbook` and `hosts`."""


def claim(artifacts_dir: str, hosts: Iterable[str], playbook: str, pid: int | None = None) -> None:
    """Add hosts to what this process works on, but for those that another living run has.

    Raises OSError where the folder or the file cannot be written.
    """
    pid = os.getpid() if pid is None else pid
    with _claims(artifacts_dir) as claims:
        taken = {host for entry in claims if entry["pid"] != pid for host in entry["hosts"]}
        mine = next((entry for entry in claims if entry["pid"] == pid), None)
        if mine is None:
            mine = {
                "pid": pid,
                "started": _start_time(pid),
                "user": os.environ.get("SUDO_USER") or os.environ.get("USER") or str(os.getuid()),
                "since": datetime.now(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z"),
                "playbook": playbook,
                "hosts": [],
            }
            claims.append(mine)
        mine["hosts"] = sorted({*mine["hosts"], *hosts} - taken)


def release(artifacts_dir: str, pid: int | None = None) -> None:
    """Forget what this process works on. Raises OSError where the file cannot be written."""
    pid = os.getpid() if pid is None else pid
    with _claims(artifacts_dir) as claims:
        claims[:] = [entry for entry in claims if entry["pid"] != pid]


def holder(artifacts_dir: str, host: str, pid: int) -> Claim | None:
    """Return the claim of another living run than `pid` on a host, or None."""
    for entry in _read(_file(artifacts_dir)):
        if host in entry["hosts"]:
            return None if entry["pid"] == pid else entry
    return None


def _file(artifacts_dir: str) -> Path:
    return Path(artifacts_dir).expanduser().absolute() / FILE_NAME


@contextlib.contextmanager
def _claims(artifacts_dir: str) -> Iterator[list[Claim]]:
    """Yield the living claims and keep what the block makes of them, while nobody else does the same."""
    path = _file(artifacts_dir)
    path.parent.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    handle = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        claims = _read(path)
        yield claims
        if not claims:
            path.unlink(missing_ok=True)
            return
        draft = path.with_name(f".{FILE_NAME}.{os.getpid()}")
        draft.write_text(json.dumps(claims, indent=1) + "\n")
        draft.chmod(FILE_MODE)
        draft.replace(path)
    finally:
        os.close(handle)


def _read(path: Path) -> list[Claim]:
    """Return the claims of living processes; a damaged file claims nothing."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return []
    return [entry for entry in found if _is_claim(entry) and _lives(entry)] if isinstance(found, list) else []


def _is_claim(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("pid"), int)
        and entry["pid"] > 0
        and isinstance(entry.get("hosts"), list)
    )


def _lives(entry: Claim) -> bool:
    """Return whether the very process of a claim runs; its number may have gone to another one since."""
    try:
        os.kill(entry["pid"], 0)
    except ProcessLookupError:
        return False
    except OSError:  # somebody else's process
        pass
    return bool(_start_time(entry["pid"]) == entry.get("started"))


def _start_time(pid: int) -> str:
    """Return when a process began, in the kernel's clock ticks; empty where there is no /proc."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[_START_TIME_FIELD]
    except (OSError, IndexError):
        return ""
