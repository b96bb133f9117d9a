"""The gateway's running process, through HAProxy's runtime socket.

This file is both a library and, copied to `/opt/plumbline/bin/plumbline-gateway`, the program by which people and the unit
take nodes out of service and bring them back. Standard library only, Python 3.9, no import from its neighbours (it must stand
alone on the node).

`drain` and `ready` act on a node and keep that over reloads and restarts: HAProxy's own state file is written for it, without
the lines that would be wrong there (HAProxy takes an address and a port from it even where the configuration has changed:
haproxy/haproxy#1412, #3296).

Exit codes: 0 done; 1 refused or failed, with one sentence.
"""

from __future__ import annotations

import argparse
import csv
import io
import ipaddress
import os
import re
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path

BACKEND = "nodes"
SOCKET = Path("/run/plumbline-gateway/admin.sock")
STATE = Path("/var/lib/plumbline-gateway/servers.state")
CONFIGURATION = Path("/etc/plumbline/gateway/current/haproxy.cfg")
UPGRADE = "-upgrade"
# srv_admin_state, bits of HAProxy's `show servers state` (management.txt): maintenance and drain, set by somebody.
_MAINTENANCE, _DRAIN = 0x01, 0x08
_SERVER = re.compile(r"^\s*server\s+(\S+)\s+(\S+):(\d+)\s*$", re.MULTILINE)
_DESCRIPTION = re.compile(r"^description: plumbline (\S+)$", re.MULTILINE | re.IGNORECASE)
_PID = re.compile(r"^Pid: (\d+)$", re.MULTILINE)


class GatewayError(Exception):
    """What cannot be done, as one sentence."""


@dataclass(frozen=True)
class Server:
    """One server of the backend: a port of a node."""

    name: str
    status: str
    """As HAProxy says it: `UP`, `DOWN 1/2`, `DRAIN`, `MAINT`, `no check`."""
    sessions: int
    queued: int
    check: str
    """What the last health check found, for a sentence."""

    @property
    def node(self) -> str:
        """Name of the node that it is a port of."""
        return self.name[: -len(UPGRADE)] if self.name.endswith(UPGRADE) else self.name

    @property
    def ready(self) -> bool:
        """Tell whether it is given requests."""
        return self.status.startswith("UP")

    @property
    def drained(self) -> bool:
        """Tell whether somebody has taken it out of service."""
        return self.status.startswith(("DRAIN", "MAINT"))


def ask(path: Path, command: str, timeout_seconds: float = 5.0) -> str:
    """Return what the process answers to one command.

    :raises GatewayError: when it does not answer.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel:
            channel.settimeout(timeout_seconds)
            channel.connect(str(path))
            channel.sendall(command.encode() + b"\n")
            parts = []
            while part := channel.recv(65536):
                parts.append(part)
    except OSError as error:
        raise GatewayError(
            f"the gateway does not answer on {path} ({error.strerror or error}): look at systemctl status plumbline-gateway"
        ) from None
    return b"".join(parts).decode("utf-8", "replace")


def running_configuration(info: str) -> str:
    """Return the digest of the configuration that the process was started with, from `show info`; empty when it is not ours."""
    match = _DESCRIPTION.search(info)
    return match.group(1) if match else ""


def worker_pid(info: str) -> int:
    """Return the process that answers, from `show info`; 0 when it does not say."""
    match = _PID.search(info)
    return int(match.group(1)) if match else 0


def parse_servers(statistics: str, backend: str = BACKEND) -> list[Server]:
    """Return the servers of a backend in the CSV of `show stat`."""
    found = []
    for row in csv.DictReader(io.StringIO(statistics.lstrip("# "))):
        if row.get("pxname") != backend or row.get("svname") in ("BACKEND", "FRONTEND", None):
            continue
        check = " ".join(filter(None, [row.get("check_status"), row.get("check_code"), row.get("last_chk")]))
        found.append(
            Server(
                str(row["svname"]),
                row.get("status") or "",
                int(row.get("scur") or 0),
                int(row.get("qcur") or 0),
                check,
            )
        )
    return found


def configured_servers(configuration: str) -> dict[str, tuple[str, str]]:
    """Return name -> (address, port) of the servers in a configuration that Plumbline wrote."""
    return {name: (address.strip("[]"), port) for name, address, port in _SERVER.findall(configuration)}


def _same_place(configured: tuple[str, str], address: str, port: str) -> bool:
    """Tell whether a server is configured where the state says that it was.

    A name is looked up anew by HAProxy (init-addr), so it fits any address.
    """
    try:
        ipaddress.ip_address(configured[0])
    except ValueError:
        return configured[1] == port
    return configured == (address, port)


def state_to_keep(state: str, configured: dict[str, tuple[str, str]], *, fresh: bool) -> str:
    """Return the lines of `show servers state` that a new process may believe.

    Those of servers that are still configured with the same address and port. For a process that starts afresh (and not beside
    its predecessor) only what people have set, since what the health checks found is old.
    """
    kept: list[str] = []
    columns: list[str] = []
    for line in state.splitlines():
        words = line.split()
        if line.startswith("# "):
            columns = words[1:]
        elif columns and len(words) >= len(columns):
            row = dict(zip(columns, words))
            place = configured.get(row.get("srv_name", ""))
            if place is None or not _same_place(place, row.get("srv_addr", ""), row.get("srv_port", "")):
                continue
            if fresh and not int(row.get("srv_admin_state", "0")) & (_MAINTENANCE | _DRAIN):
                continue
        elif words and not words[0].isdigit():
            continue
        if words:
            kept.append(line)
    return "\n".join(kept) + "\n" if kept else ""


def _write(path: Path, content: str) -> None:
    temporary = path.with_name(path.name + ".new")
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write(content)
        temporary.replace(path)
    except OSError as error:
        raise GatewayError(f"the servers' state cannot be written to {path} ({error.strerror or error})") from None


def _configured(path: Path) -> dict[str, tuple[str, str]]:
    try:
        return configured_servers(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise GatewayError(
            f"the gateway's configuration {path} cannot be read ({error.strerror}): run playbooks/gateway.yml"
        ) from None


def save_state(path: Path, state: Path, configuration: Path) -> None:
    """Write down the servers' state for the process that comes next.

    :raises GatewayError: when the process does not answer or the file cannot be written.
    """
    _write(state, state_to_keep(ask(path, f"show servers state {BACKEND}"), _configured(configuration), fresh=False))


def prepare(state: Path, configuration: Path) -> None:
    """Leave of the state that was written down what a fresh process may believe.

    :raises GatewayError: when the file cannot be written.
    """
    try:
        found = state.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        found = ""
    # HAProxy wants at least the version of the format.
    _write(state, state_to_keep(found, _configured(configuration), fresh=True) or "1\n")


def set_node(path: Path, node: str, wanted: str) -> list[Server]:
    """Take a node out of service (`drain`: running answers go on) or bring it back (`ready`); its servers as they were.

    :raises GatewayError: when there is no such node or HAProxy refuses.
    """
    servers = parse_servers(ask(path, "show stat"))
    ours = [server for server in servers if server.node == node]
    if not ours:
        known = ", ".join(sorted({server.node for server in servers})) or "none"
        raise GatewayError(f"expected a node of this gateway ({known}), found '{node}'")
    for server in ours:
        answer = ask(path, f"set server {BACKEND}/{server.name} state {wanted}").strip()
        if answer:
            raise GatewayError(f"HAProxy refuses to set {server.name} to {wanted}: {answer}")
    return ours


def wait_until_idle(path: Path, node: str, timeout_seconds: float, pause_seconds: float = 0.2) -> None:
    """Wait until a node computes nothing for this gateway any more.

    :raises GatewayError: when it still does after the time.
    """
    deadline = time.monotonic() + timeout_seconds
    while True:
        running = sum(server.sessions for server in parse_servers(ask(path, "show stat")) if server.node == node)
        if not running:
            return
        if time.monotonic() > deadline:
            raise GatewayError(
                f"{node} still answers {running} requests after {timeout_seconds:g} s; it is given no new ones"
            )
        time.sleep(pause_seconds)


def _table(servers: list[Server]) -> str:
    lines = [f"{'server':24} {'state':10} {'running':>7} {'queued':>6}  last check"]
    lines += [f"{s.name:24} {s.status:10} {s.sessions:7} {s.queued:6}  {s.check}" for s in servers]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(prog="plumbline-gateway", description="The nodes behind this machine's gateway.")
    parser.add_argument("--socket", type=Path, default=SOCKET, help=argparse.SUPPRESS)
    parser.add_argument("--state", type=Path, default=STATE, help=argparse.SUPPRESS)
    parser.add_argument("--configuration", type=Path, default=CONFIGURATION, help=argparse.SUPPRESS)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("status", help="which nodes are ready, and what they do")
    drain = commands.add_parser("drain", help="give a node no new requests; running answers go on")
    drain.add_argument("node")
    drain.add_argument("--wait", type=float, default=0.0, metavar="SECONDS", help="until it answers nothing any more")
    ready = commands.add_parser("ready", help="give it requests again, once its health check passes")
    ready.add_argument("node")
    commands.add_parser("save-state", help="write the nodes' state down, before a reload")
    commands.add_parser("prepare", help="keep of that what a fresh start may believe")
    options = parser.parse_args(arguments)
    try:
        if options.command == "status":
            print(_table(parse_servers(ask(options.socket, "show stat"))))
        elif options.command == "save-state":
            save_state(options.socket, options.state, options.configuration)
        elif options.command == "prepare":
            prepare(options.state, options.configuration)
        else:
            set_node(options.socket, options.node, options.command)
            save_state(options.socket, options.state, options.configuration)
            if options.command == "drain" and options.wait:
                wait_until_idle(options.socket, options.node, options.wait)
    except GatewayError as error:
        print(f"plumbline-gateway: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
