"""One file from the web to the disk: streamed, hashed on the way, continued where it stopped, in place only when it is whole."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Optional

from .download_web import DownloadError, Signer, Web, shown

_PIECE_BYTES = 4 << 20
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d*/(\d+|\*)")


@dataclass(frozen=True)
class Item:
    """A file that shall be there: its path below the target, where it comes from, and what it must be.

    `sha256`, or `git_sha1` (the id that git gives a file's content) where no SHA-256 is known. `size_bytes` 0: not known yet.
    """

    name: str
    url: str = field(repr=False)
    sha256: str = ""
    git_sha1: str = ""
    size_bytes: int = 0
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    sign: Optional[Signer] = field(default=None, repr=False)  # noqa: UP045 - the node's Python may be 3.9


@dataclass
class Got:
    """What a file turned out to be. `resumed_bytes` were here from an earlier run."""

    sha256: str
    size_bytes: int
    downloaded_bytes: int = 0
    resumed_bytes: int = 0


def partial_of(target: Path) -> Path:
    """Where a file grows before it is whole."""
    return target.with_name(f".{target.name}.partial")


def size_of(web: Web, item: Item) -> int:
    """Size in bytes as the server states it, 0 where it does not. Raises DownloadError where the file is not to be had."""
    if item.size_bytes:
        return item.size_bytes

    def once() -> int:
        try:
            with web.open("HEAD", item.url, item.headers, item.sign) as answer:
                return _length(answer.headers.get("Content-Length"))
        except DownloadError as error:
            # A URL signed for GET answers 403 to HEAD, some servers know no HEAD: the file itself will tell.
            if "answered 403" in str(error) or "answered 405" in str(error) or "answered 501" in str(error):
                return 0
            raise

    size: int = web.retried(once)
    return size


def fetch(web: Web, item: Item, target: Path) -> Got:
    """Bring one file in. Raises DownloadError; what arrived so far stays in the partial file for the next run, unless it is wrong."""
    partial = partial_of(target)
    partial.parent.mkdir(parents=True, exist_ok=True)
    before = partial.stat().st_size if partial.exists() else 0
    state = _State()
    found, size = web.retried(lambda: _stream(web, item, partial, state))
    if not found and before:
        # What an earlier run left was of another file: once more from the beginning.
        before = 0
        partial.unlink()
        found, size = web.retried(lambda: _stream(web, item, partial, state))
    if not found:
        kind, digest = ("SHA-256", state.sha256) if item.sha256 else ("git id", git_sha1(partial))
        partial.unlink()
        raise DownloadError(
            f"{shown(item.url)}: expected the {kind} {item.sha256 or item.git_sha1}, found {digest} in {size} bytes; "
            "the file on the mirror is another one or damaged: nothing of it was kept."
        )
    partial.replace(target)
    return Got(found, size, state.bytes, before)


class _State:
    """Bytes that came over the network over all attempts, and the hashes of what lies in the partial file."""

    def __init__(self) -> None:
        self.bytes = 0
        self._reset()

    def _reset(self) -> None:
        self.hashed = 0
        self._sha256 = hashlib.sha256()

    def follow(self, partial: Path, here: int) -> None:
        """Make the hash that of the first `here` bytes of the file."""
        if self.hashed == here:
            return
        self._reset()
        if not here:
            return
        with partial.open("rb") as file:
            while self.hashed < here and (piece := file.read(min(_PIECE_BYTES, here - self.hashed))):
                self.add(piece)

    def add(self, piece: bytes) -> None:
        """Go on with the next bytes."""
        self._sha256.update(piece)
        self.hashed += len(piece)

    @property
    def sha256(self) -> str:
        """Of all bytes so far."""
        return self._sha256.hexdigest()


def _stream(web: Web, item: Item, partial: Path, state: _State) -> tuple[str, int]:
    """One attempt: append to the partial file. Returns SHA-256 and size, or '' and size where the content is not what was expected."""
    here = partial.stat().st_size if partial.exists() else 0
    if item.size_bytes and here > item.size_bytes:
        partial.unlink()
        here = 0
    if not (item.size_bytes and here == item.size_bytes):
        _receive(web, item, partial, here, state)
    size = partial.stat().st_size
    state.follow(partial, size)
    if item.size_bytes and size != item.size_bytes:
        return "", size
    right = state.sha256 == item.sha256 if item.sha256 else git_sha1(partial) == item.git_sha1
    return (state.sha256 if right else ""), size


def _receive(web: Web, item: Item, partial: Path, here: int, state: _State) -> None:
    headers = {**item.headers, **({"Range": f"bytes={here}-"} if here else {})}
    try:
        answer = web.open("GET", item.url, headers, item.sign)
    except DownloadError as error:
        # The range begins where the file ends: it is whole, or not this file; the hash tells.
        if here and "answered 416" in str(error):
            return
        raise
    with answer:
        start, whole = _range(answer, here)
        if start not in (0, here):
            raise DownloadError(
                f"{shown(item.url)}: asked for the bytes from {here} on, the server sent those from {start} on."
            )
        _claim(partial, whole, start, item)
        state.follow(partial, start)
        with partial.open("ab" if start else "wb") as file:
            while piece := web.read(answer, _PIECE_BYTES, item.url):
                _write(file, piece, partial)
                state.add(piece)
                state.bytes += len(piece)
            file.flush()
            os.fsync(file.fileno())
    if whole and state.hashed < whole:
        raise DownloadError(
            f"{shown(item.url)}: the connection ended after {state.hashed} of {whole} bytes; what arrived is kept, run again.",
            transient=True,
        )


def _write(file: IO[bytes], piece: bytes, partial: Path) -> None:
    try:
        file.write(piece)
        file.flush()
    except OSError as error:
        # Half a file on a full disk is in everybody's way.
        with contextlib.suppress(OSError):
            file.close()
        partial.unlink(missing_ok=True)
        raise DownloadError(
            f"{partial.parent}: the download could not be written ({error.strerror}), nothing of {partial.name[1:-8]} was kept: "
            "free disk there, then run again."
        ) from None


def _claim(partial: Path, whole: int, here: int, item: Item) -> None:
    state = os.statvfs(partial.parent)
    free = state.f_bavail * state.f_frsize
    if whole - here > free:
        raise DownloadError(
            f"{shown(item.url)} needs {whole - here} more bytes at {partial.parent}, {free} are free: "
            "free some, or set model_root to a larger file system."
        )


def _range(answer: Any, here: int) -> tuple[int, int]:
    """First byte that was sent and the size of the whole file, 0 where it is not said."""
    if here and answer.status == 206:
        match = _CONTENT_RANGE.match(answer.headers.get("Content-Range", ""))
        return (int(match[1]), _length(match[2])) if match else (here, 0)
    return 0, _length(answer.headers.get("Content-Length"))


def _length(text: Optional[str]) -> int:  # noqa: UP045
    return int(text) if text and text.isdigit() else 0


def git_sha1(path: Path) -> str:
    """The id that git gives a file's content."""
    digest = hashlib.sha1(f"blob {path.stat().st_size}\0".encode())  # noqa: S324 - it is git's, beside a revision that pins it
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest()
