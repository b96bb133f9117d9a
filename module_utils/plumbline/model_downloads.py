"""A checkpoint from a mirror or the hub to a directory of the node: all files whole and right, or no directory that looks finished."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .download_file import Item, fetch, git_sha1, partial_of, size_of
from .download_sources import Source, items
from .download_web import DownloadError, Web
from .engine_fitness import free_bytes
from .manifest import sha256_of_file

_MARGIN_BYTES = 64 << 20


@dataclass
class Download:
    """What was brought in. `files` by name: `sha256`, `size_bytes`."""

    changed: bool = False
    downloaded_bytes: int = 0
    resumed_bytes: int = 0
    files: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        """Of all files."""
        return sum(int(entry["size_bytes"]) for entry in self.files.values())


def download(source: Source, destination: Path, web: Web, check: bool = False) -> Download:
    """Bring a source to `destination`: a directory, or for a single file its path. With `check` nothing is written.

    It grows beside the destination and gets its name by one rename; files that are there and right are kept, and a file that was
    begun goes on where it stopped. Raises DownloadError.
    """
    wanted = items(source, web)
    growing = destination.parent if source.single else growing_of(destination)
    at_hand = destination if destination.exists() else growing
    result = Download()
    missing = []
    for item in wanted:
        sha256 = _kept(item, destination if source.single else at_hand / item.name)
        if sha256:
            path = destination if source.single else at_hand / item.name
            result.files[item.name] = {"sha256": sha256, "size_bytes": path.stat().st_size}
        else:
            missing.append(item)
    result.changed = bool(missing) or not destination.exists()
    if check or not result.changed:
        return result
    places = {item.name: destination if source.single else growing / item.name for item in wanted}
    try:
        if not source.single and destination.exists():
            # It is not what it should be; it shall not look finished while that changes.
            destination.rename(growing)
        growing.mkdir(mode=0o755, parents=True, exist_ok=True)
        _claim(web, missing, places, growing)
        for item in missing:
            got = fetch(web, item, places[item.name])
            places[item.name].chmod(0o644)
            result.files[item.name] = {"sha256": got.sha256, "size_bytes": got.size_bytes}
            result.downloaded_bytes += got.downloaded_bytes
            result.resumed_bytes += got.resumed_bytes
        if not source.single:
            growing.rename(destination)
    except OSError as error:
        raise DownloadError(
            f"{destination.parent}: the download could not be written ({error.strerror or error}): free disk there or look at its "
            "file system, then run again; files that are whole are kept."
        ) from None
    return result


def growing_of(destination: Path) -> Path:
    """Where a directory grows before it is whole."""
    return destination.with_name(f".{destination.name}.partial")


def _kept(item: Item, path: Path) -> str:
    """SHA-256 of a file that is there and right, empty otherwise."""
    if not path.is_file() or path.is_symlink():
        return ""
    if item.size_bytes and path.stat().st_size != item.size_bytes:
        return ""
    sha256 = sha256_of_file(path)
    right = sha256 == item.sha256 if item.sha256 else git_sha1(path) == item.git_sha1
    return sha256 if right else ""


def _claim(web: Web, missing: list[Item], places: dict[str, Path], directory: Path) -> None:
    """Refuse, before the first byte, what does not fit."""
    wanted = 0
    for item in missing:
        size = size_of(web, item)
        partial = partial_of(places[item.name])
        wanted += max(0, size - (partial.stat().st_size if partial.exists() else 0))
    free = free_bytes(str(directory))
    if wanted + _MARGIN_BYTES > free:
        raise DownloadError(
            f"The download needs {(wanted + _MARGIN_BYTES) / 1e9:.2f} GB at {directory}, {free / 1e9:.2f} GB are free: "
            "free some, or set model_root to a larger file system."
        )
