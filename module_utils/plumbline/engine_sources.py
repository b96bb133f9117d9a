"""Where packages come from: the node's pip configuration and the inventory, as options of uv (which reads no pip.conf)."""

from __future__ import annotations

import ast
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

_LINE = re.compile(r"^(?P<section>[^.]+|:env:)\.(?P<key>[A-Za-z0-9_-]+)=(?P<value>.*)$")
# What pip gives precedence comes last.
_SECTIONS = ("global", "install", ":env:")


@dataclass
class Sources:
    """Package sources in pip's terms; a value of the inventory wins over the node's pip configuration."""

    find_links: list[str] = field(default_factory=list)
    index_url: str = ""
    extra_index_urls: list[str] = field(default_factory=list)
    trusted_hosts: list[str] = field(default_factory=list)
    ca_file: str = ""
    proxy: str = ""
    no_index: bool = False


def from_pip_config(listing: str) -> Sources:
    """Read what `pip config list` prints; other settings of pip (constraints, timeouts) do not concern a locked install."""
    settings: dict[str, dict[str, str]] = {section: {} for section in _SECTIONS}
    for line in listing.splitlines():
        match = _LINE.match(line.strip())
        if match is None or match["section"] not in settings:
            continue
        try:
            value = ast.literal_eval(match["value"])
        except (ValueError, SyntaxError):
            continue
        settings[match["section"]][match["key"].lower().replace("_", "-")] = str(value)
    merged: dict[str, str] = {}
    for section in _SECTIONS:
        merged.update(settings[section])
    return Sources(
        find_links=merged.get("find-links", "").split(),
        index_url=merged.get("index-url", ""),
        extra_index_urls=merged.get("extra-index-url", "").split(),
        trusted_hosts=merged.get("trusted-host", "").split(),
        ca_file=merged.get("cert", ""),
        proxy=merged.get("proxy", ""),
        no_index=merged.get("no-index", "").lower() in ("1", "true", "yes", "on"),
    )


def with_inventory(node: Sources, find_links: list[str], index_url: str, wheelhouse: str) -> Sources:
    """Put the inventory's wishes over the node's configuration. A wheelhouse means: nothing but it."""
    if wheelhouse:
        return Sources(find_links=[wheelhouse], no_index=True)
    return Sources(
        find_links=find_links + [link for link in node.find_links if link not in find_links],
        index_url=index_url or node.index_url,
        extra_index_urls=node.extra_index_urls,
        trusted_hosts=node.trusted_hosts,
        ca_file=node.ca_file,
        proxy=node.proxy,
        no_index=node.no_index,
    )


def local_path(place: str) -> str:
    """The path of a local directory or file:// URL, empty for anything remote."""
    parts = urlsplit(place)
    if parts.scheme == "file":
        return unquote(parts.path)
    return "" if parts.scheme in ("http", "https") else place


def exists(place: str) -> bool:
    """Whether a source is remote or there; pip overlooks a missing directory, uv refuses it."""
    path = local_path(place)
    return not path or Path(path).exists()


def uv_arguments(sources: Sources, extra_index_url: str = "") -> list[str]:
    """Options of `uv pip install` for these sources, with one more index where given."""
    arguments = ["--no-index"] if sources.no_index else []
    for link in sources.find_links:
        if exists(link):
            arguments += ["--find-links", link]
    if sources.no_index:
        return arguments
    if sources.index_url:
        arguments += ["--index-url", sources.index_url]
    for url in [*sources.extra_index_urls, *([extra_index_url] if extra_index_url else [])]:
        if exists(url):
            arguments += ["--extra-index-url", url]
    for host in sources.trusted_hosts:
        arguments += ["--allow-insecure-host", host]
    # pip's way with several indexes. Safe, because every file is pinned by its hash.
    return [*arguments, "--index-strategy", "unsafe-best-match"]


def uv_environment(sources: Sources, cache_dir: str) -> dict[str, str]:
    """Environment variables for uv with these sources."""
    environment = {"UV_CACHE_DIR": cache_dir, "UV_NO_PROGRESS": "1", "UV_PYTHON_DOWNLOADS": "never", "NO_COLOR": "1"}
    if sources.ca_file:
        environment["SSL_CERT_FILE"] = sources.ca_file
    else:
        # A company's own certificate authority lives in the system's store.
        environment["UV_SYSTEM_CERTS"] = "1"
    if sources.proxy:
        environment.update({"HTTPS_PROXY": sources.proxy, "HTTP_PROXY": sources.proxy, "ALL_PROXY": sources.proxy})
    return environment


def pip_arguments(find_links: list[str], index_url: str, wheelhouse: str) -> list[str]:
    """The inventory's wishes as options of pip, which reads the node's own configuration itself."""
    if wheelhouse:
        # Find-links of the environment would be asked beside those given here.
        return ["--isolated", "--no-index", "--find-links", wheelhouse]
    arguments = []
    for link in find_links:
        arguments += ["--find-links", link]
    return [*arguments, "--index-url", index_url] if index_url else arguments


def pip_environment(wheelhouse: str) -> dict[str, str]:
    """Environment variables for pip; with a wheelhouse the node's own configuration does not count."""
    quiet = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "PIP_ROOT_USER_ACTION": "ignore"}
    return {**quiet, "PIP_CONFIG_FILE": os.devnull} if wheelhouse else quiet
