"""What a node's package manager says of packages, and the names and commands in which apt and dnf differ."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

APT, DNF = "apt", "dnf"

# Runs a command; returns its exit status (127 where it does not exist), stdout and stderr.
Runner = Callable[[list[str]], "tuple[int, str, str]"]

_MADISON = re.compile(r"^ *(\S+) *\| *(\S+) *\|")
_RPM_FORMAT = "%{NAME}\\t%{EPOCHNUM}:%{VERSION}-%{RELEASE}\\n"
_LOCKED = re.compile(r"^(.+)-(?:\d+:)?[^-]+-[^-]+$")


def installed(run: Runner | None, manager: str, names: list[str]) -> dict[str, dict[str, Any]]:
    """Package -> `version` and `held`, for those that are installed."""
    if run is None or not names:
        return {}
    if manager == DNF:
        return _installed_rpm(run, names)
    _, out, _ = run(["dpkg-query", "-W", "-f", "${Package}\t${Version}\t${db:Status-Abbrev}\n", *names])
    found: dict[str, dict[str, Any]] = {}
    for line in out.splitlines():
        fields = line.split("\t")
        if len(fields) == 3 and fields[2][1:2] == "i":
            found[fields[0]] = {"version": fields[1], "held": fields[2].startswith("h")}
    return found


def available(run: Runner | None, manager: str, names: list[str]) -> dict[str, list[str]]:
    """Package -> versions that the package manager could install, newest first (dnf: as it lists them)."""
    if run is None or not names:
        return {}
    if manager == DNF:
        return _available_rpm(run, names)
    _, out, _ = run(["apt-cache", "madison", *names])
    found: dict[str, list[str]] = {}
    for line in out.splitlines():
        match = _MADISON.match(line)
        if match and match.group(2) not in found.setdefault(match.group(1), []):
            found[match.group(1)].append(match.group(2))
    return found


def headers_package(manager: str, kernel: str) -> str:
    """The package with the headers of a kernel."""
    return f"kernel-devel-{kernel}" if manager == DNF else f"linux-headers-{kernel}"


def chosen(manager: str, name: str, version: str) -> str:
    """A package in one version, as the package manager wants it written."""
    # dnf takes name-version-release, and an epoch only before the version.
    return f"{name}-{version}" if manager == DNF else f"{name}={version}"


def initramfs(manager: str, kernel: str) -> str:
    """Path of a kernel's initramfs."""
    return f"/boot/initramfs-{kernel}.img" if manager == DNF else f"/boot/initrd.img-{kernel}"


def initramfs_command(manager: str, kernel: str) -> list[str]:
    """What makes a kernel's initramfs anew."""
    return ["dracut", "--force", "--kver", kernel] if manager == DNF else ["update-initramfs", "-u", "-k", kernel]


def hold_command(manager: str, names: list[str]) -> list[str]:
    """What keeps packages at their version."""
    return ["dnf", "-q", "versionlock", "add", *names] if manager == DNF else ["apt-mark", "hold", *names]


def _installed_rpm(run: Runner, names: list[str]) -> dict[str, dict[str, Any]]:
    _, out, _ = run(["rpm", "-q", "--qf", _RPM_FORMAT, *names])
    _, locks, _ = run(["dnf", "-q", "-C", "versionlock", "list"])
    locked = {match.group(1) for line in locks.splitlines() if (match := _LOCKED.match(line.strip()))}
    found: dict[str, dict[str, Any]] = {}
    for line in out.splitlines():
        name, tab, version = line.partition("\t")
        if tab:
            found[name] = {"version": version, "held": name in locked}
            # A kernel's headers are asked for by name and version.
            with_version = f"{name}-{version.partition(':')[2]}"
            found.update({asked: found[name] for asked in names if asked.startswith(with_version)})
    return found


def _available_rpm(run: Runner, names: list[str]) -> dict[str, list[str]]:
    query = "%{name}\t%{epoch}:%{version}-%{release}\t%{arch}"
    _, out, _ = run(["dnf", "-q", "repoquery", "--available", "--latest-limit", "20", "--qf", query, *names])
    found: dict[str, list[str]] = {}
    for line in out.splitlines():
        fields = line.strip().split("\t")
        if len(fields) != 3:
            continue
        name, version, machine = fields
        full = f"{name}-{version.partition(':')[2]}.{machine}"
        for asked in names:
            if asked in (name, full) and version not in found.setdefault(asked, []):
                # repoquery lists from the oldest on.
                found[asked].insert(0, version)
    return found
