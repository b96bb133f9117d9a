"""SSH connections that Ansible keeps open for two minutes: they end with the lab."""

from __future__ import annotations

import hashlib
from pathlib import Path

from lab.settings import Lab
from lab.shell import run

# A Unix socket's path has at most 107 bytes, and ssh appends a random suffix to a name of ten while it makes it.
LONGEST_DIRECTORY = 107 - 1 - 10 - 18


def directory(lab: Lab) -> Path:
    """Where the sockets lie: the state directory, or a short path where the checkout lies too deep for a socket."""
    inside = lab.state / "cp"
    if len(str(inside)) <= LONGEST_DIRECTORY:
        return inside
    tag = hashlib.sha256(str(lab.root).encode()).hexdigest()[:8]
    return Path.home() / ".ansible" / f"lab-{tag}"


def end(lab: Lab) -> None:
    """Ask every master of this lab to exit."""
    place = directory(lab)
    if not place.is_dir():
        return
    for socket in place.iterdir():
        if socket.is_socket():
            run(
                ["ssh", "-F", "none", "-O", "exit", "-o", f"ControlPath={socket}", "lab"],
                what="closing SSH",
                check=False,
            )
            socket.unlink(missing_ok=True)
    if not any(place.iterdir()):
        place.rmdir()
