"""Makes a package source of a directory of Debian packages: the index that apt reads, beside a link to the directory.

The directory itself is not written to: it may be a mounted medium.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path

INDEX, LINK = "Packages", "files"
_BLOCK = 1 << 20

# Runs a command; returns its exit status, stdout and stderr.
Runner = Callable[[list[str]], "tuple[int, str, str]"]


class DirectoryError(ValueError):
    """The directory cannot be a package source; one sentence says why and what to do."""


def check_directory(path: str) -> list[Path]:
    """The packages of a directory, sorted by name.

    Raises DirectoryError: there is none, or somebody besides root may write to it; what it holds is installed as root and unsigned.
    """
    directory = Path(path)
    if not directory.is_absolute() or not directory.is_dir():
        raise DirectoryError(
            f"gpu_driver_directory: expected a directory of packages on the node, found none at {path or 'an empty path'}: copy the "
            "packages there, or correct the path"
        )
    packages = sorted(directory.glob("*.deb"))
    if not packages:
        raise DirectoryError(
            f"gpu_driver_directory: expected *.deb files in {path}, found none: copy the packages there"
        )
    for place in [directory, *packages]:
        mode = place.stat()
        if mode.st_uid != 0 or mode.st_mode & stat.S_IWOTH:
            raise DirectoryError(
                f"gpu_driver_directory: expected that only root may change what is installed as root, found {place} owned by user "
                f"{mode.st_uid} with mode {stat.S_IMODE(mode.st_mode):04o}: run chown -R root: {path} and chmod -R o-w {path}"
            )
    return packages


def make_index(packages: list[Path], run: Runner) -> str:
    """The index of packages: what each says of itself, its size and its checksum. Raises DirectoryError for what is no package."""
    parts = []
    for package in packages:
        status, out, err = run(["dpkg-deb", "-f", str(package)])
        if status != 0 or not out.startswith("Package:"):
            said = (err.strip().splitlines() or ["no answer"])[-1]
            raise DirectoryError(
                f"gpu_driver_directory: expected a Debian package, found that {package} is none ({said[:200]}): copy it again"
            )
        parts.append(
            f"{out.rstrip()}\nFilename: ./{LINK}/{package.name}\nSize: {package.stat().st_size}\nSHA256: {_sha256(package)}\n"
        )
    return "\n".join(parts)


def is_right(index: Path, content: str, directory: str) -> bool:
    """Whether the index and the link to the packages are there as they should be."""
    link = index / LINK
    try:
        return (index / INDEX).read_text() == content and os.readlink(link) == directory  # noqa: PTH115 (no Path object needed)
    except OSError:
        return False


def write(index: Path, content: str, directory: str) -> None:
    """Write index and link, each at once. Raises OSError."""
    index.mkdir(mode=0o755, parents=True, exist_ok=True)
    draft = index / f".{LINK}.new"
    draft.unlink(missing_ok=True)
    draft.symlink_to(directory)
    draft.replace(index / LINK)
    text = index / f".{INDEX}.new"
    text.write_text(content)
    text.chmod(0o644)
    text.replace(index / INDEX)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
