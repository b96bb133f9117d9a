"""The host's pip configuration, carried into the node: the node reaches the package registries just as the host does.

Discovered at run time and written into the container and ``lab/.state`` only: an index address may hold a password.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlparse

from lab.shell import run

# Options that say where packages come from, and how patiently they are fetched.
CARRIED = (
    "index-url",
    "extra-index-url",
    "find-links",
    "no-index",
    "trusted-host",
    "proxy",
    "timeout",
    "default-timeout",
    "retries",
    "disable-pip-version-check",
)
# Options that name a file of the host, copied into the node.
FILES = {"cert": "/etc/plumbline-lab/pip-ca.pem", "constraint": "/etc/plumbline-lab/pip-constraints.txt"}
_SYSTEM = ("/", "/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/proc", "/run", "/sbin", "/sys", "/usr", "/var")


@dataclass(frozen=True)
class PipConfiguration:
    """What the node's ``/etc/pip.conf`` says, and what must be visible inside the node for it to hold."""

    options: dict[str, str] = field(default_factory=dict)
    find_links: tuple[str, ...] = ()
    mounts: tuple[str, ...] = ()
    files: dict[str, bytes] = field(default_factory=dict)

    def text(self) -> str:
        """The node's ``pip.conf``."""
        lines = ["# Written by the lab from the pip configuration of the machine it runs on.", "[global]"]
        for option, value in sorted(self.options.items()):
            words = value.split()
            # A word alone stays on its line: pip 23.0 (Debian 12) takes the line break into a boolean's value and refuses it.
            lines.append(
                f"{option} = {words[0]}"
                if len(words) == 1
                else f"{option} =" + "".join(f"\n    {word}" for word in words)
            )
        return "\n".join(lines) + "\n"


def parse(listing: str) -> dict[str, str]:
    """Effective options from ``pip config list``: the environment wins over files, ``install`` over ``global``."""
    ranked: dict[str, tuple[int, str]] = {}
    ranks = {"global": 0, "install": 1, ":env:": 2}
    for line in listing.splitlines():
        name, separator, literal = line.partition("=")
        section, dot, option = name.strip().partition(".")
        rank = ranks.get(section)
        if not separator or not dot or rank is None:
            continue
        try:
            value = str(ast.literal_eval(literal.strip()))
        except (ValueError, SyntaxError):
            continue
        if rank >= ranked.get(option, (-1, ""))[0]:
            ranked[option] = (rank, value)
    return {option: value for option, (_, value) in ranked.items()}


def local_path(location: str, base: Path) -> Path | None:
    """The directory or file behind a find-links entry or index address; None where it is not local."""
    address = urlparse(location)
    if address.scheme == "file":
        return Path(unquote(address.path))
    if address.scheme:
        return None
    path = Path(location).expanduser()
    return path if path.is_absolute() else (base / path).resolve()


def mounts_for(find_links: Iterable[str], indexes: Iterable[str], base: Path) -> tuple[str, ...]:
    """Local directories that the node must see at the same path, without those inside another one."""
    wanted: set[Path] = set()
    for location in find_links:
        path = local_path(location, base)
        if path is not None and path.exists():
            wanted.add(path if path.is_dir() else path.parent)
    for location in indexes:
        path = local_path(location, base)
        if path is not None and path.is_dir():
            # The pages of a local index ("simple/") usually link to files beside it.
            wanted.add(path.parent if path.name == "simple" else path)
    kept = [path for path in sorted(wanted) if str(path) not in _SYSTEM]
    return tuple(str(path) for path in kept if not any(other in path.parents for other in kept))


def build(options: dict[str, str], base: Path) -> PipConfiguration:
    """The node's configuration from the host's effective options."""
    carried = {name: options[name] for name in CARRIED if options.get(name)}
    if "default-timeout" in carried:
        carried.setdefault("timeout", carried.pop("default-timeout"))
        carried.pop("default-timeout", None)
    links = []
    for location in options.get("find-links", "").split():
        path = local_path(location, base)
        if path is None:
            links.append(location)
        elif path.exists():
            links.append(str(path))
    carried.pop("find-links", None)
    if links:
        carried["find-links"] = " ".join(links)
    files: dict[str, bytes] = {}
    for option, inside in FILES.items():
        # Several constraint files become one.
        paths = [local_path(word, base) for word in options.get(option, "").split()]
        content = b"\n".join(path.read_bytes() for path in paths if path is not None and path.is_file())
        if content:
            files[inside] = content
            carried[option] = inside
    indexes = [*options.get("index-url", "").split(), *options.get("extra-index-url", "").split()]
    return PipConfiguration(carried, tuple(links), mounts_for(links, indexes, base), files)


def discover(base: Path) -> PipConfiguration:
    """Ask the pip that runs this program's Python."""
    listing = run([sys.executable, "-m", "pip", "config", "list"], what="reading pip's configuration").stdout
    return build(parse(listing), base)
