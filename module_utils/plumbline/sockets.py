"""Who listens on a TCP port, from /proc alone. Every function takes the root of the tree, so that a captured one is a test fixture."""

from __future__ import annotations

import os
import re
import socket
import struct
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_LISTEN = "0A"  # TCP_LISTEN, include/net/tcp_states.h
_SOCKET_LINK = re.compile(r"^socket:\[(\d+)\]$")
_UNIT = re.compile(r"/([^/]+\.(?:service|scope|socket))(?:/|$)")


@dataclass(frozen=True)
class Listener:
    """A listening TCP socket and, where it can be seen, the process that holds it."""

    address: str
    port: int
    inode: int
    pid: int | None = None
    process: str = ""
    command: str = ""
    unit: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return it for a module's answer."""
        return asdict(self)

    def describe(self) -> str:
        """Return who this is, for a sentence."""
        if self.pid is None:
            return f"a process that cannot be seen (socket inode {self.inode})"
        return f"{self.process} (pid {self.pid}{', unit ' + self.unit if self.unit else ''})"

    def remedy(self) -> str:
        """Return the command that frees the port."""
        if self.pid is None:
            return f"ss -ltnp 'sport = :{self.port}'"
        return f"systemctl stop {self.unit}" if self.unit.endswith(".service") else f"kill {self.pid}"


def bind_problem(host: str) -> str:
    """Return why nobody on this machine can listen on a host, a name or an address; empty when one can."""
    try:
        family, kind, protocol, _name, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.bind(address)
    except (OSError, UnicodeError) as error:
        return str(getattr(error, "strerror", None) or error)
    return ""


def decode_address(text: str) -> str:
    """Return the address of a /proc/net/tcp{,6} field: 32-bit words in the host's byte order, as hexadecimal (here little-endian hosts)."""
    words = [int(text[index : index + 8], 16) for index in range(0, len(text), 8)]
    packed = struct.pack(f"<{len(words)}I", *words)
    return socket.inet_ntop(socket.AF_INET if len(words) == 1 else socket.AF_INET6, packed)


def parse_listeners(text: str) -> list[Listener]:
    """Return the listening sockets of one /proc/net/tcp or tcp6 file; lines that do not parse are left out."""
    found = []
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) < 10 or fields[3] != _LISTEN:
            continue
        address, _, port = fields[1].rpartition(":")
        try:
            found.append(Listener(decode_address(address), int(port, 16), int(fields[9])))
        except (ValueError, OSError, struct.error):
            continue
    return found


def unit_of(cgroup: str) -> str:
    """Return the systemd unit in the text of /proc/PID/cgroup, innermost service, scope or socket; empty when there is none."""
    for line in cgroup.splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        if controllers in ("", "name=systemd"):
            units = _UNIT.findall(path)
            if units:
                return str(units[-1])
    return ""


def listeners(root: Path, ports: Iterable[int]) -> list[Listener]:
    """Return who listens on any of the ports, below `root`, with their processes."""
    wanted = set(ports)
    found: dict[int, Listener] = {}
    for name in ("tcp", "tcp6"):
        try:
            text = (root / "proc/net" / name).read_text(encoding="ascii", errors="replace")
        except OSError:
            continue  # a kernel without IPv6 has no tcp6
        for listener in parse_listeners(text):
            if listener.port in wanted:
                found[listener.inode] = listener
    holders = _holders(root, set(found)) if found else {}
    return [_with_process(root, listener, holders) for listener in found.values()]


def _holders(root: Path, inodes: set[int]) -> dict[int, int]:
    """Return for each socket inode the lowest pid that holds it."""
    holders: dict[int, int] = {}
    for process in sorted(int(entry.name) for entry in (root / "proc").iterdir() if entry.name.isdigit()):
        try:
            links = list((root / "proc" / str(process) / "fd").iterdir())
        except OSError:
            continue  # ended meanwhile, or not ours to look at
        for link in links:
            try:
                match = _SOCKET_LINK.match(os.readlink(link))  # noqa: PTH115  it is a text, not a path
            except OSError:
                continue
            if match and int(match.group(1)) in inodes:
                holders.setdefault(int(match.group(1)), process)
    return holders


def _with_process(root: Path, listener: Listener, holders: dict[int, int]) -> Listener:
    pid = holders.get(listener.inode)
    if pid is None:
        return listener
    folder = root / "proc" / str(pid)

    def text(name: str) -> str:
        try:
            return (folder / name).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    return Listener(
        address=listener.address,
        port=listener.port,
        inode=listener.inode,
        pid=pid,
        process=text("comm").strip(),
        command=text("cmdline").replace("\0", " ").strip()[:300],
        unit=unit_of(text("cgroup")),
    )


def overlaps(listening: str, wanted: str) -> bool:
    """Tell whether a listener on one address keeps a server from another: the same address, or either is a wildcard.

    `::` counts as a wildcard for IPv4 too, as it takes both unless net.ipv6.bindv6only is set.
    """
    wildcards = ("0.0.0.0", "::")  # noqa: S104  compared, not bound
    listening = listening.replace("::ffff:", "") if listening.startswith("::ffff:") else listening
    if wanted == "localhost":
        return listening in (*wildcards, "127.0.0.1", "::1")
    return listening == wanted or listening in wildcards or wanted in wildcards


def conflict(found: Iterable[Listener], address: str, own_unit: str) -> Listener | None:
    """Return the first listener that would keep `own_unit` from `address`; its own processes do not count."""
    return next(
        (listener for listener in found if listener.unit != own_unit and overlaps(listener.address, address)), None
    )
