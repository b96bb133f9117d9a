"""Firmware images as an inventory names them: taken apart, checked without a BMC, and read from disk before an upload."""

from __future__ import annotations

import errno
import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from .redfish_connection import RedfishError

KINDS = ("auto", "bmc", "bios", "other")
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")
_CHUNK_BYTES = 1024 * 1024


class FirmwareError(RedfishError):
    """What is wrong with the wanted firmware, in one sentence; nothing was sent to the BMC."""

    def __init__(self, problems: Sequence[str]) -> None:
        """Join all problems: a person wants to correct them in one go."""
        super().__init__("; ".join(problems))
        self.problems = list(problems)


@dataclass(frozen=True)
class Image:
    """One image of `firmware_images`.

    `component` names components as a floor does (id, name, or a pattern). `file` lies on the controller and is uploaded, `uri` is
    fetched by the BMC. `targets` are URIs for the BMC, empty where the image itself says what it is for.
    """

    component: str
    version: str
    file: str = ""
    uri: str = ""
    sha256: str = ""
    targets: tuple[str, ...] = ()
    kind: str = "auto"

    @property
    def source(self) -> str:
        """Where the image comes from, for a sentence."""
        return self.file or self.uri


def parse_images(entries: Sequence[Mapping[str, Any]]) -> list[Image]:
    """Take the list of an inventory apart.

    Raises:
        FirmwareError: with a sentence for everything that is wrong with it.
    """
    problems: list[str] = []
    images: list[Image] = []
    for number, entry in enumerate(entries):
        where = f"firmware_images[{number}] ({entry.get('component') or 'no component'})"
        found = _entry_problems(entry)
        problems += [f"{where}: {text}" for text in found]
        if not found:
            images.append(
                Image(
                    component=str(entry["component"]),
                    version=str(entry["version"]),
                    file=str(entry.get("file") or "").strip(),
                    uri=str(entry.get("uri") or "").strip(),
                    sha256=str(entry.get("sha256") or "").strip().lower(),
                    targets=tuple(str(uri) for uri in entry.get("targets") or ()),
                    kind=str(entry.get("kind") or "auto"),
                )
            )
    seen: dict[str, str] = {}
    for image in images:
        key = image.component.lower()
        if key in seen:
            problems.append(f"firmware_images names {image.component} twice: keep the one image that is meant")
        seen[key] = image.version
    if problems:
        raise FirmwareError(problems)
    return images


def _entry_problems(entry: Mapping[str, Any]) -> list[str]:
    problems = []
    if not isinstance(entry.get("component"), str) or not str(entry.get("component")).strip():
        problems.append("component is missing: name it as the firmware inventory does")
    version = entry.get("version")
    if not isinstance(version, str) or not version.strip():
        problems.append(
            f"version should be a quoted text (YAML reads 1.10 as 1.1), found {'nothing' if version is None else version}"
        )
    file, uri, sha256 = (str(entry.get(key) or "").strip() for key in ("file", "uri", "sha256"))
    if bool(file) == bool(uri):
        problems.append(
            "exactly one of file (on the controller, uploaded) and uri (fetched by the BMC) is expected, found "
            + ("both" if file else "none")
        )
    elif file and not _SHA256.fullmatch(sha256):
        problems.append(
            f"sha256 of {file} should be 64 hexadecimal digits, found {sha256 or 'nothing'}: take it from the vendor's"
            " download page, or from sha256sum of a file that you trust"
        )
    elif uri:
        problems += _uri_problems(uri, sha256)
    if str(entry.get("kind") or "auto") not in KINDS:
        problems.append(f"kind should be one of {', '.join(KINDS)}, found {entry.get('kind')}")
    return problems


def _uri_problems(uri: str, sha256: str) -> list[str]:
    problems = []
    try:
        parts = urlsplit(uri)
    except ValueError:  # as of brackets around what is no IPv6 address
        parts = urlsplit("")
    if parts.scheme.lower() not in ("http", "https") or not parts.hostname:
        problems.append(f"uri should be like https://images.example/bios.bin, found {uri.rsplit('@', maxsplit=1)[-1]}")
    if parts.username or parts.password:
        problems.append(
            "uri must hold no password, since BMCs show it in their tasks and logs: serve the image without one"
        )
    if sha256:
        problems.append(
            "sha256 cannot be checked for an image that the BMC fetches by itself: take it out, or use file"
        )
    return problems


@dataclass(frozen=True)
class FileState:
    """What tells whether a file is still the one whose checksum was taken."""

    size_bytes: int
    modified_ns: int


def check_file(image: Image) -> FileState:
    """Hold an image file against its checksum; reads it once, a block at a time.

    Returns:
        Its size, and when it was last written.

    Raises:
        FirmwareError: it cannot be read, is empty, or is not what the checksum says.
    """
    path = Path(image.file)
    digest = hashlib.sha256()
    size = modified = 0
    try:
        # A pipe or a device would be waited for, or read, without an end.
        if path.exists() and not path.is_file() and not path.is_dir():
            raise OSError(errno.EINVAL, "it is no regular file")
        with path.open("rb") as stream:
            modified = os.fstat(stream.fileno()).st_mtime_ns
            while block := stream.read(_CHUNK_BYTES):
                digest.update(block)
                size += len(block)
    except OSError as error:
        raise FirmwareError(
            [
                f"the image {image.file} for {image.component} cannot be read on the controller ({error.strerror}):"
                " correct file in firmware_images, or put the image there"
            ]
        ) from None
    if digest.hexdigest() != image.sha256:
        raise FirmwareError(
            [
                f"the image {image.file} for {image.component} ({size} bytes) has the SHA-256 {digest.hexdigest()}, expected"
                f" {image.sha256}: it is damaged, truncated or another one; download it again"
                if size
                else f"the image {image.file} for {image.component} is empty: download it again"
            ]
        )
    return FileState(size, modified)


def is_unchanged(image: Image, state: FileState) -> bool:
    """Whether a file is as it was when its checksum was taken, by its size and time."""
    try:
        now = Path(image.file).stat()
    except OSError:
        return False
    return FileState(now.st_size, now.st_mtime_ns) == state
