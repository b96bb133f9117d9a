"""The simulated BMC as a process: started in the background, found again, stopped."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import ssl
import sys
import time
from pathlib import Path

from lab.node import require_free_port
from lab.settings import VARIABLES, Lab
from lab.shell import LabError, command_lines, last_line, read, run, say, sudo, write_atomically

PROFILE = "ieit-nf8260g7"
START_SECONDS = 20.0
STOP_SECONDS = 10.0


class Bmc:
    """The process that answers Redfish for the node."""

    port_variable = VARIABLES["bmc_port"]

    def __init__(self, lab: Lab) -> None:
        """Nothing is started yet."""
        self.lab = lab
        self.configuration = lab.state / "bmc.json"
        self.log = lab.state / "bmc.log"
        self.pid_file = lab.state / "bmc.pid"
        self.stamp = lab.state / "bmc.started-with"

    def settings(self) -> dict[str, object]:
        """The configuration file's content (docs/lab.md describes it)."""
        state = self.lab.state
        return {
            "listen": "127.0.0.1",
            "port": self.lab.bmc_port,
            "cert_file": str(state / "bmc.pem"),
            "key_file": str(state / "bmc.key"),
            "username": "admin",
            "password_file": str(state / "bmc-password"),
            "state_file": str(state / "bmc-state.json"),
            "profile": PROFILE,
            "power_command": [str(self.lab.root / "lab" / "power")],
            "node": self.lab.container,
        }

    def pids(self) -> list[int]:
        """Processes that run this lab's BMC: found by their command line, since a process file outlives its process."""
        wanted = ["-m", "lab.bmc", "--config", str(self.configuration)]
        return sorted(pid for pid, words in command_lines() if words[1:5] == wanted)

    def answers(self) -> bool:
        """True where the service root is served under a certificate of the lab's authority."""
        try:
            context = ssl.create_default_context(cafile=str(self.lab.state / "ca.pem"))
            with (
                socket.create_connection(("127.0.0.1", self.lab.bmc_port), timeout=3) as plain,
                context.wrap_socket(plain, server_hostname="127.0.0.1") as secure,
            ):
                secure.sendall(b"GET /redfish/v1/ HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
                return b" 200 " in secure.recv(64)
        except (OSError, ssl.SSLError):
            return False

    def up(self, *, renewed: bool) -> None:
        """Bring the BMC up; ``renewed``: its certificate is new, so a running one must read it."""
        content = json.dumps(self.settings(), indent=2) + "\n"
        if read(self.configuration) != content:
            write_atomically(self.configuration, content, 0o600)
        wanted = content + read(self.lab.state / "bmc-password") + _source_stamp(self.lab.root / "lab" / "bmc")
        unchanged = read(self.stamp) == _digest(wanted)
        running = self.pids()
        if running and unchanged and not renewed and self.answers():
            write_atomically(self.pid_file, f"{running[0]}\n", 0o644)
            return
        if running:
            self.down()
        require_free_port(self.lab.bmc_port, self.port_variable)
        self.set_aside_damaged_state()
        # As root, like the node's container, because a reset of the system must restart that container. The shell opens the
        # log and setsid leaves the terminal, so that neither sudo nor make holds the process or is held by it.
        run(
            [
                *sudo(),
                *("env", "PYTHONDONTWRITEBYTECODE=1", "sh", "-c"),
                'cd "$1" && log=$2 && shift 2 && exec setsid --fork "$@" </dev/null >>"$log" 2>&1',
                *("sh", self.lab.root, self.log),
                *(sys.executable, "-m", "lab.bmc", "--config", self.configuration),
            ],
            what="starting the BMC",
        )
        deadline = time.monotonic() + START_SECONDS
        seen = False
        while not self.answers():
            alive = bool(self.pids())
            seen = seen or alive
            late = time.monotonic() > deadline
            if late or (seen and not alive):
                said = last_line(read(self.log))
                self.down()
                problem = f"does not answer after {START_SECONDS:.0f} s" if late else "ended at once"
                raise LabError(
                    f"the BMC on 127.0.0.1:{self.lab.bmc_port} {problem}; its last words: {said} (log: {self.log})"
                )
            time.sleep(0.1)
        write_atomically(self.pid_file, f"{self.pids()[0]}\n", 0o644)
        write_atomically(self.stamp, _digest(wanted), 0o600)
        say(f"BMC is up: https://127.0.0.1:{self.lab.bmc_port}/redfish/v1/")

    def set_aside_damaged_state(self) -> None:
        """A BMC forgets its settings rather than refuse to start: what it remembered cannot be read any more."""
        path = self.lab.state / "bmc-state.json"
        if not path.exists():
            return
        try:
            # Written by the BMC, which is root.
            sound = isinstance(json.loads(run([*sudo(), "cat", path], what="reading the BMC's memory").stdout), dict)
        except ValueError:
            sound = False
        if not sound:
            path.replace(path.with_name("bmc-state.damaged"))
            say(
                "the BMC's memory was damaged (kept as lab/.state/bmc-state.damaged): it starts with the factory's settings"
            )

    def down(self) -> None:
        """Stop the BMC, politely and then not."""
        for number, patience in ((signal.SIGTERM, STOP_SECONDS), (signal.SIGKILL, STOP_SECONDS)):
            deadline = time.monotonic() + patience
            for pid in self.pids():
                _kill(pid, number)
            while self.pids() and time.monotonic() < deadline:
                time.sleep(0.1)
        left = self.pids()
        if left:
            raise LabError(f"the BMC (process {left[0]}) does not end: stop it by hand with kill -9 {left[0]}")
        self.pid_file.unlink(missing_ok=True)


def _kill(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
    except PermissionError:
        run([*sudo(), "kill", f"-{number.value}", str(pid)], what="stopping the BMC", check=False)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _source_stamp(package: Path) -> str:
    """Size and time of the simulator's files: an edited simulator is restarted by the next ``make lab``."""
    return repr(
        sorted(
            (str(p), p.stat().st_size, p.stat().st_mtime_ns) for p in package.rglob("*") if p.suffix in {".py", ".json"}
        )
    )
