"""The lock of an engine: which packages in which versions, and the name of the environment made from it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

_PIN = re.compile(
    r"^(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[A-Za-z0-9.+!_-]+)\s*(?:;(?P<marker>[^\\]*))?(?P<more>\\?)\s*$"
)
_HASH = re.compile(r"^\s+--hash=sha256:[0-9a-f]{64}\s*\\?\s*$")
_ID_HASH_DIGITS = 8


class LockError(Exception):
    """A lock file that cannot be trusted; the message is one sentence for the user."""


def normalised(name: str) -> str:
    """The one spelling of a package's name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def parse_lock(text: str, where: str) -> dict[str, str]:
    """Return the pinned version of each package of a lock file written by `tools/lock-engine`.

    Raises LockError on anything but `name==version` lines with SHA-256 hashes: an option such as --index-url or a pin without a hash
    would let something in that nobody checked.
    """
    pins: dict[str, str] = {}
    open_pin = ""
    hashes = 0
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if _HASH.match(line) and open_pin:
            hashes += 1
            continue
        if open_pin and not hashes:
            break
        match = _PIN.match(line)
        if match is None:
            raise LockError(
                f"{where}, line {number}: expected 'name==version' with --hash=sha256 lines, found '{line.strip()[:80]}'; "
                "make the lock with tools/lock-engine"
            )
        open_pin, hashes = normalised(match["name"]), 0
        if open_pin in pins:
            raise LockError(f"{where}, line {number}: {open_pin} is pinned twice; make the lock with tools/lock-engine")
        pins[open_pin] = match["version"]
    if open_pin and not hashes:
        raise LockError(f"{where}: {open_pin} is pinned without a hash; make the lock with tools/lock-engine")
    if not pins:
        raise LockError(f"{where}: expected pinned packages, found none; make the lock with tools/lock-engine")
    return pins


def engine_id(kind: str, version: str, python_tag: str, lock_sha256: str, more: Sequence[str] = ()) -> str:
    """The name of an environment: equal names mean equal content. `more` are digests of what it holds beside the lock's packages."""
    digest = sha256_of_text("\n".join([lock_sha256, *sorted(more)])) if more else lock_sha256
    return f"{kind}-{version}-{python_tag}-{digest[:_ID_HASH_DIGITS]}"


def sha256_of_text(text: str) -> str:
    """SHA-256 of a text in UTF-8, as hex digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def installed_versions(site_packages: Path) -> dict[str, str]:
    """Name and version of every distribution in a site-packages directory, from the names of its dist-info directories."""
    found: dict[str, str] = {}
    for entry in site_packages.glob("*.dist-info"):
        name, _, version = entry.name[: -len(".dist-info")].partition("-")
        # A directory without METADATA is what a killed installer leaves behind.
        if (entry / "METADATA").is_file():
            found[normalised(name)] = version
    return found


def differences(pins: dict[str, str], installed: dict[str, str], also: dict[str, str]) -> list[str]:
    """What an environment has other than its lock says, one phrase each; `also` are distributions that belong there beside the lock."""
    wanted = {**pins, **{normalised(name): version for name, version in also.items()}}
    phrases = []
    for name, version in sorted(wanted.items()):
        have = installed.get(name)
        if have is None:
            phrases.append(f"{name} {version} is missing")
        elif _comparable(have) != _comparable(version):
            phrases.append(f"{name} is {have} instead of {version}")
    phrases += [f"{name} {installed[name]} is not in the lock" for name in sorted(set(installed) - set(wanted))]
    return phrases


def _comparable(version: str) -> str:
    # dist-info directories write '-' of a version as '_'; 1.0 and 1.0.0 do not meet here, since both come from the same wheel name.
    return version.replace("_", "-").lower()
