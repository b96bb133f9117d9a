"""Reads small files below a root directory: the machine's own / or a captured tree in a test."""

from __future__ import annotations

import os
import re
from pathlib import Path

_CPU_LIST_PART = re.compile(r"^([0-9]{1,9})(?:-([0-9]{1,9})(?::([0-9]{1,9})/([0-9]{1,9}))?)?$")
# The kernel's own ceiling (CONFIG_NR_CPUS); a corrupt list must not fill the memory.
_CPUS_MAX = 65536


class Tree:
    """Files below *root*; whatever cannot be read is `None` or empty, never an exception."""

    def __init__(self, root: str = "/") -> None:
        """Take the directory that stands for `/`."""
        self.root = root if root.endswith("/") else root + "/"

    @property
    def is_live(self) -> bool:
        """True when this is the running machine and not a captured tree."""
        return self.root == "/"

    @property
    def remedy(self) -> str:
        """What whoever may not read a file that only root may should do, as the end of a sentence."""
        if not self.is_live:
            return "capture the tree as root"
        return "run outside of this container, in which root may not" if os.geteuid() == 0 else "run as root"

    def problem(self) -> str | None:
        """One sentence when the root is no directory, else `None`."""
        if Path(self.root).is_dir():
            return None
        return f"root: expected the directory of a captured tree, found no directory at {self.root}: correct the path"

    def path(self, name: str) -> str:
        """*name* (absolute on the machine) as a path below the root."""
        return self.root + name.lstrip("/")

    def exists(self, name: str) -> bool:
        """True when the file or directory is there."""
        return Path(self.path(name)).exists()

    def raw(self, name: str, limit: int = -1) -> bytes | None:
        """Up to *limit* bytes of a file, `None` when it cannot be read."""
        try:
            with open(self.path(name), "rb", buffering=0) as stream:  # noqa: PTH123 (hundreds of files: no Path objects)
                return stream.read(limit)
        except (OSError, ValueError):
            return None

    def text(self, name: str) -> str | None:
        """A file's text without surrounding white space, `None` when it cannot be read."""
        raw = self.raw(name)
        return None if raw is None else raw.decode("utf-8", "replace").strip()

    def integer(self, name: str) -> int | None:
        """A file's whole number (decimal, or hexadecimal with 0x), `None` when there is none."""
        text = self.text(name)
        if not text:
            return None
        try:
            return int(text, 0) if text.lower().startswith(("0x", "-0x")) else int(text)
        except ValueError:
            return None

    def names(self, name: str) -> list[str]:
        """The sorted names in a directory; empty when it cannot be read."""
        try:
            return sorted(os.listdir(self.path(name)))  # noqa: PTH208 (only names are wanted)
        except OSError:
            return []

    def link(self, name: str) -> str | None:
        """The target of a symbolic link as written, `None` when it is none."""
        try:
            return os.readlink(self.path(name))  # noqa: PTH115 (no Path object needed)
        except OSError:
            return None

    def uptime_seconds(self) -> float | None:
        """Seconds since the kernel booted."""
        words = (self.text("/proc/uptime") or "").split()
        try:
            return float(words[0]) if words else None
        except ValueError:
            return None


def parse_cpu_list(text: str | None) -> list[int]:
    """CPU numbers of a kernel list such as `0-3,8,10-14:1/2`; what is malformed is left out."""
    cpus: dict[int, None] = {}
    for part in (text or "").strip().split(","):
        match = _CPU_LIST_PART.match(part.strip())
        if not match:
            continue
        first = int(match.group(1))
        last = int(match.group(2) or first)
        used = int(match.group(3) or 1)
        group = int(match.group(4) or 1)
        if last >= _CPUS_MAX or group < 1:
            continue
        for cpu in range(first, last + 1):
            if (cpu - first) % group < used:
                cpus[cpu] = None
    return sorted(cpus)


def format_cpu_list(cpus: list[int]) -> str:
    """The kernel's short form of CPU numbers: `0-3,8`."""
    parts: list[str] = []
    ordered = sorted(set(cpus))
    index = 0
    while index < len(ordered):
        end = index
        while end + 1 < len(ordered) and ordered[end + 1] == ordered[end] + 1:
            end += 1
        parts.append(str(ordered[index]) if end == index else f"{ordered[index]}-{ordered[end]}")
        index = end + 1
    return ",".join(parts)
