"""Where the node's Debian packages come from: the mirror that this machine itself uses, else deb.debian.org."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from lab.shell import run

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
DEFAULT_MIRROR = "http://deb.debian.org/debian"
DEFAULT_SECURITY = "http://deb.debian.org/debian-security"
RELEASE = "bookworm"
# Options of this machine's apt that decide whether a mirror can be reached and believed at all.
CARRIED_OPTIONS = re.compile(
    r"(?:Acquire::(?:http|https)::(?:Proxy|Verify-Peer|CaInfo)|Acquire::Check-Valid-Until|Acquire::Check-Date)"
)


def os_id(text: str) -> str:
    """``ID`` of an os-release file."""
    found = re.search(r'^ID="?([a-z0-9._-]+)"?$', text, re.MULTILINE)
    return found.group(1) if found else ""


def entries(texts: Iterable[str]) -> list[tuple[str, str]]:
    """(address, suite) of every enabled ``deb`` source that offers component main, one-line and deb822 form alike."""
    found = []
    for text in texts:
        for line in text.splitlines():
            match = re.match(r"\s*deb\s+(?:\[[^\]]*\]\s+)?(\S+)\s+(\S+)\s+(.*)", line)
            if match and "main" in match[3].split():
                found.append((match[1].rstrip("/"), match[2]))
        for block in re.split(r"\n\s*\n", text):
            fields: dict[str, str] = {}
            key = ""
            for line in block.splitlines():
                if line.startswith("#"):
                    continue
                if line[:1].isspace() and key:
                    fields[key] += f" {line.strip()}"
                elif ":" in line:
                    key, _, value = line.partition(":")
                    key = key.strip().lower()
                    fields[key] = value.strip()
            if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").lower() == "no":
                continue
            if "main" in fields.get("components", "").split():
                found += [
                    (uri.rstrip("/"), suite)
                    for uri in fields["uris"].split()
                    for suite in fields.get("suites", "").split()
                ]
    return found


def mirrors(host_id: str, sources: list[tuple[str, str]]) -> tuple[str, str]:
    """Addresses of the archive and of the security archive for the node, from a Debian host's own sources."""
    archive, security = DEFAULT_MIRROR, DEFAULT_SECURITY
    if host_id == "debian":
        reachable = [
            (uri, suite) for uri, suite in sources if uri.startswith(("http://", "https://")) and "debian" in uri
        ]
        security = next((uri for uri, suite in reachable if suite.endswith(("-security", "/updates"))), security)
        archive = next((uri for uri, suite in reachable if re.fullmatch(r"[a-z]+", suite)), archive)
    return archive, security


def render(archive: str, security: str) -> str:
    """The node's apt source, which mmdebstrap also leaves inside the image."""
    return (
        f"Types: deb\nURIs: {archive}\nSuites: {RELEASE} {RELEASE}-updates\nComponents: main\nSigned-By: {KEYRING}\n\n"
        f"Types: deb\nURIs: {security}\nSuites: {RELEASE}-security\nComponents: main\nSigned-By: {KEYRING}\n"
    )


def node_sources(environ: Mapping[str, str] = os.environ, etc: Path = Path("/etc")) -> str:
    """The node's apt source; ``LAB_DEBIAN_MIRROR`` and ``LAB_DEBIAN_SECURITY_MIRROR`` win over what is found."""
    files = [etc / "apt" / "sources.list", *sorted((etc / "apt" / "sources.list.d").glob("*"))]
    texts = [
        path.read_text(errors="replace") for path in files if path.is_file() and path.suffix in {".list", ".sources"}
    ]
    release = etc / "os-release"
    archive, security = mirrors(os_id(release.read_text() if release.exists() else ""), entries(texts))
    return render(environ.get("LAB_DEBIAN_MIRROR") or archive, environ.get("LAB_DEBIAN_SECURITY_MIRROR") or security)


def carried(dump: str) -> tuple[str, ...]:
    """The lines of ``apt-config dump`` that the node needs too."""
    options = []
    for line in dump.splitlines():
        name, _, value = line.partition(" ")
        if CARRIED_OPTIONS.fullmatch(name) and value not in ('"";', ""):
            options.append(line.rstrip(";"))
    return tuple(sorted(options))


def host_options() -> tuple[str, ...]:
    """This machine's apt options that the node needs too, such as a proxy."""
    return carried(run(["apt-config", "dump"], what="reading apt's configuration", check=False).stdout)
