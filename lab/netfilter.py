"""The packet filter chains that podman's netavark leaves behind when the last container is gone."""

from __future__ import annotations

import shlex

from lab.shell import run, sudo, which

PREFIX = "NETAVARK"


def undo(listing: str) -> list[list[str]]:
    """Arguments of iptables that remove netavark's rules and chains from one table, as ``iptables -S`` lists it.

    None where a chain of a single network is left: then something still uses them.
    """
    rules: list[list[str]] = []
    chains: list[str] = []
    for line in listing.splitlines():
        words = shlex.split(line)
        if words[0] == "-N" and words[1].startswith(PREFIX):
            chains.append(words[1])
        elif words[0] == "-A" and not words[1].startswith(PREFIX) and words[-1].startswith(PREFIX):
            rules.append(["-D", *words[1:]])
    if any(chain not in SHARED for chain in chains):
        return []
    return [*rules, *(["-F", chain] for chain in chains), *(["-X", chain] for chain in chains)]


# What every network shares; a chain of one network carries its hash.
SHARED = {
    "NETAVARK_FORWARD",
    "NETAVARK_INPUT",
    "NETAVARK_ISOLATION_1",
    "NETAVARK_ISOLATION_2",
    "NETAVARK_ISOLATION_3",
} | {f"NETAVARK-{name}" for name in ("HOSTPORT-DNAT", "HOSTPORT-MASQ", "HOSTPORT-SETMARK")}


def forget() -> None:
    """Remove them; netavark makes them anew when it needs them. Where iptables is not used there is nothing to remove."""
    if not which("iptables"):
        return
    for table in ("filter", "nat"):
        listing = run([*sudo(), "iptables", "-t", table, "-S"], what="reading the packet filter", check=False).stdout
        for words in undo(listing):
            run([*sudo(), "iptables", "-w", "-t", table, *words], what="tidying the packet filter", check=False)
