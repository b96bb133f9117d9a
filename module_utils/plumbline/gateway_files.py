"""The gateway's configuration as a directory of its own, checked by HAProxy before it takes the place of the one that runs.

A directory holds the configuration, the maps and the certificate, is named by the digest of all of it, and is never changed:
`current` links to the one that is in force, and switching is one rename.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Callable

MARK = "@CONFIGURATION@"
NAME = "haproxy.cfg"
CURRENT = "current"
_ALERT = re.compile(r"^\[ALERT\]\s+(?:\S+\s+)?\(\d+\) : (?P<said>.+)$", re.MULTILINE)
_NOISE = re.compile(r"^(?:config : )?(?:Error\(s\) found|Fatal errors found|parsing \[.*\] : 'no .*)")

# Runs a command: exit status, standard output, standard error.
Run = Callable[[list[str]], "tuple[int, str, str]"]


class GatewayFilesError(Exception):
    """What cannot be put in place, as one sentence."""


def digest(configuration: str, files: Mapping[str, str]) -> str:
    """Return what a configuration (with its mark) and its files are known by."""
    summed = hashlib.sha256()
    for name, content in sorted({**files, NAME: configuration}.items()):
        summed.update(f"{len(name)}:{name}:{len(content)}:".encode() + content.encode())
    return summed.hexdigest()[:32]


def cause(said: str) -> str:
    """Return the first thing that HAProxy complains of in the output of `haproxy -c`, without paths of temporary directories."""
    for match in _ALERT.finditer(said):
        text = match.group("said").strip()
        if not _NOISE.match(text):
            return re.sub(r"/\S*/(?=[\w.]+(?::\d+)?\])", "", text).rstrip(".")[:400]
    return (said.strip().splitlines() or ["it gave no reason"])[-1][:400]


def write(directory: Path, configuration: str, files: Mapping[str, str]) -> None:
    """Write configuration and files into a directory, readable by its owner alone."""
    named = {**files, NAME: configuration.replace(MARK, digest(configuration, files))}
    for name, content in named.items():
        descriptor = os.open(directory / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())


def check(haproxy: str, directory: Path, run: Run) -> None:
    """Let HAProxy check the configuration in a directory.

    :raises GatewayFilesError: with what it says, when it refuses.
    """
    status, out, err = run([haproxy, "-c", "-f", str(directory / NAME)])
    if status != 0:
        raise GatewayFilesError(
            f"expected a configuration that {haproxy} accepts, found that it refuses it: {cause(err + out)}; correct the "
            "gateway_ variables; nothing was changed"
        )


def put(root: Path, configuration: str, files: Mapping[str, str], haproxy: str, run: Run) -> Path:
    """Make the directory of a configuration, checked; the one that is there already is taken as it is.

    :raises GatewayFilesError: when HAProxy refuses it or it cannot be written.
    """
    wanted = root / digest(configuration, files)
    if wanted.is_dir():
        return wanted
    try:
        root.mkdir(mode=0o755, parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=".new-", dir=root))
    except OSError as error:
        raise GatewayFilesError(
            f"the gateway's configuration cannot be written below {root}: {error.strerror}"
        ) from None
    try:
        write(made, configuration, files)
        check(haproxy, made, run)
        made.rename(wanted)
    except OSError as error:
        raise GatewayFilesError(
            f"the gateway's configuration cannot be written below {root}: {error.strerror}"
        ) from None
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return wanted


def try_out(configuration: str, files: Mapping[str, str], haproxy: str, run: Run) -> None:
    """Let HAProxy check a configuration and leave nothing behind, for check mode.

    :raises GatewayFilesError: when HAProxy refuses it.
    """
    with tempfile.TemporaryDirectory(prefix="plumbline-gateway-") as made:
        write(Path(made), configuration, files)
        check(haproxy, Path(made), run)


def current(root: Path) -> Path | None:
    """Return the directory that is in force, or None."""
    link = root / CURRENT
    return root / os.readlink(link) if link.is_symlink() and link.is_dir() else None  # noqa: PTH115  relative, as it was made


def switch(root: Path, directory: Path | None) -> None:
    """Put a directory in force; None for none."""
    link, fresh = root / CURRENT, root / f".{CURRENT}"
    if directory is None:
        link.unlink() if link.is_symlink() else None
        return
    fresh.unlink() if fresh.is_symlink() else None
    fresh.symlink_to(directory.name)
    fresh.replace(link)


def tidy(root: Path, *kept: Path | None) -> None:
    """Remove the directories that are neither in force nor named."""
    names = {path.name for path in kept if path is not None}
    for entry in root.iterdir():
        ours = re.fullmatch(r"[0-9a-f]{32}|\.new-\S+", entry.name) and entry.is_dir() and not entry.is_symlink()
        if ours and entry.name not in names:
            shutil.rmtree(entry, ignore_errors=True)


def text_of(directory: Path | None) -> str:
    """Return the configuration in a directory without its digest, for a difference; empty where there is none."""
    if directory is None or not (directory / NAME).is_file():
        return ""
    text = (directory / NAME).read_text(encoding="utf-8", errors="replace")
    return text.replace(directory.name, MARK)


def changed_files(directory: Path | None, files: Mapping[str, str]) -> list[str]:
    """Return the names of the files beside the configuration that differ from what is in force; never what is in them."""

    def differs(name: str, content: str) -> bool:
        path = directory / name if directory is not None else None
        return path is None or not path.is_file() or path.read_text(encoding="utf-8", errors="replace") != content

    return sorted(name for name, content in files.items() if differs(name, content))
