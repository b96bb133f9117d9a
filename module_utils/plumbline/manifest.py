#!/usr/bin/python3
"""Verify a model before it serves: every file is the one that was approved, and the approval is for this engine and these options.

Stands alone on the node as /opt/plumbline/bin/plumbline-verify-model and runs before every start of the server, so it is standard library
only and imports nothing of Plumbline. Exit status: 0 the model may serve, 1 it may not (one sentence says why), 2 wrong usage.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import stat
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, Optional

MANIFEST = "manifest.json"
SCHEMA = "plumbline.model/1"
APPROVALS = Path("/opt/plumbline/approvals")
_CHUNK_BYTES = 4 << 20
_APPROVE = "run the stage model, which measures its likelihood in the engine (ansible-playbook playbooks/model.yml)"
REINSTALL = "remove the directory of the model and run the stage model again (ansible-playbook playbooks/model.yml)"


class Refused(Exception):  # noqa: N818 - a verdict, not an accident
    """The model may not serve; the message is one sentence."""


def sha256_of_file(path: Path) -> str:
    """SHA-256 of a file as hex digits, read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        view = memoryview(bytearray(_CHUNK_BYTES))
        while count := file.readinto(view):
            digest.update(view[:count])
    return digest.hexdigest()


class Binding(NamedTuple):
    """What an approval is bound to: the bytes of the model, the engine, and the options that will serve."""

    manifest_sha256: str
    engine: str
    options: Mapping[str, str]

    @property
    def file_name(self) -> str:
        """Name of the approval's file."""
        key = json.dumps([self.manifest_sha256, self.engine, sorted(self.options.items())])
        return f"{self.manifest_sha256[:16]}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"

    def told(self) -> str:
        """Engine and options, for people."""
        options = " ".join(f"{key}={value}" for key, value in sorted(self.options.items()))
        return f"the engine {self.engine} with {options or 'no options'}"


def read_manifest(directory: Path) -> tuple[dict[str, Any], str]:
    """The manifest of a model directory and its SHA-256; raises Refused where it is missing or malformed."""
    path = directory / MANIFEST
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise Refused(f"{path}: expected the manifest of the model, found none; {REINSTALL}.") from None
    except OSError as error:
        raise Refused(
            f"{path}: the manifest cannot be read ({error.strerror}); make it readable for this user, or {REINSTALL}."
        ) from None
    try:
        manifest = json.loads(data)
        sound = manifest["schema"] == SCHEMA and isinstance(manifest["files"], dict) and bool(manifest["files"])
    except (ValueError, KeyError, TypeError):
        sound = False
    if not sound:
        raise Refused(f"{path}: expected a manifest of the schema {SCHEMA}, found something else; {REINSTALL}.")
    return manifest, hashlib.sha256(data).hexdigest()


def check_files(directory: Path, manifest: Mapping[str, Any]) -> None:
    """Raise Refused unless the directory holds exactly the files of its manifest, each with its size and SHA-256."""
    files = {}
    for name, entry in manifest["files"].items():
        _check_name(directory, name)
        if (
            not isinstance(entry, dict)
            or not isinstance(entry.get("sha256"), str)
            or not isinstance(entry.get("bytes"), int)
        ):
            raise Refused(f"{directory / MANIFEST}: the entry of {name} states no SHA-256 and size; {REINSTALL}.")
        files[name] = entry
    present = {
        path.relative_to(directory).as_posix(): path
        for path in directory.rglob("*")
        if path.is_symlink() or not path.is_dir()
    }
    present.pop(MANIFEST, None)
    for name in sorted(files):
        if name not in present:
            raise Refused(
                f"{directory / name}: expected a file of {files[name]['bytes']} bytes, found none; {REINSTALL}."
            )
    for name in sorted(set(present) - set(files)):
        raise Refused(
            f"{present[name]}: expected nothing, found a file that the manifest does not know; remove it, or {REINSTALL}."
        )
    for name, entry in sorted(files.items()):
        found = os.lstat(present[name])
        if not stat.S_ISREG(found.st_mode):
            raise Refused(f"{present[name]}: expected a regular file, found a link or a device; {REINSTALL}.")
        if found.st_size != entry["bytes"]:
            raise Refused(f"{present[name]}: expected {entry['bytes']} bytes, found {found.st_size}; {REINSTALL}.")
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        for name, digest in zip(sorted(files), pool.map(lambda name: _hash(present[name]), sorted(files))):
            if digest != files[name]["sha256"]:
                raise Refused(
                    f"{present[name]}: expected the SHA-256 {files[name]['sha256']}, found {digest}; {REINSTALL}."
                )


def check_approval(approvals: Path, directory: Path, binding: Binding) -> dict[str, Any]:
    """Return the approval of this model for this engine and these options; raises Refused where there is none."""
    path = approvals / binding.file_name
    try:
        approval = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise Refused(f"{directory}: expected an approval for {binding.told()}, found none; {_APPROVE}.") from None
    except (OSError, ValueError) as error:
        raise Refused(f"{path}: the approval cannot be read ({error}); {_APPROVE}.") from None
    bound = {"manifest_sha256": binding.manifest_sha256, "engine_id": binding.engine, "options": dict(binding.options)}
    if not isinstance(approval, dict) or any(approval.get(key) != value for key, value in bound.items()):
        raise Refused(f"{path}: expected an approval of {directory} for {binding.told()}, found another; {_APPROVE}.")
    return approval


def check_any_approval(approvals: Path, directory: Path, manifest_sha256: str) -> None:
    """Raise Refused unless some engine's gate let these bytes pass."""
    for path in sorted(approvals.glob(f"{manifest_sha256[:16]}-*.json")):
        try:
            approval = json.loads(path.read_text(encoding="utf-8"))
            check_approval(approvals, directory, Binding(manifest_sha256, approval["engine_id"], approval["options"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, Refused):
            continue
        return
    raise Refused(f"{directory}: expected an approval of this model in {approvals}, found none; {_APPROVE}.")


def _check_name(directory: Path, name: str) -> None:
    parts = PurePosixPath(name).parts
    if (
        not parts
        or name.startswith("/")
        or ".." in parts
        or "\\" in name
        or "\0" in name
        or PurePosixPath(name).as_posix() != name
    ):
        raise Refused(
            f"{directory / MANIFEST}: names the file {name!r}, which does not lie in the model's directory; {REINSTALL}."
        )


def _hash(path: Path) -> str:
    try:
        return sha256_of_file(path)
    except OSError as error:
        raise Refused(
            f"{path}: cannot be read ({error.strerror}); make it readable for this user, or {REINSTALL}."
        ) from None


def main(arguments: Optional[Sequence[str]] = None) -> int:  # noqa: UP045 - the node's Python may be 3.9
    """Entry point of plumbline-verify-model."""
    parser = argparse.ArgumentParser(
        prog="plumbline-verify-model", description="Refuse a model that is not what was approved."
    )
    parser.add_argument("directory", type=Path, help="directory of the model")
    parser.add_argument("--engine", help="id of the engine that will serve; without it, any engine's approval will do")
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="option that will serve, for example dtype=float32",
    )
    parser.add_argument(
        "--approvals", type=Path, default=APPROVALS, help="directory of the approvals (default: %(default)s)"
    )
    parser.add_argument("--files-only", action="store_true", help="check the files and ask for no approval")
    given = parser.parse_args(arguments)
    options = {}
    for option in given.option:
        name, equals, value = option.partition("=")
        if not equals or not name:
            parser.error(f"--option: expected NAME=VALUE, found {option!r}")
        options[name] = value
    try:
        manifest, manifest_sha256 = read_manifest(given.directory)
        # First, for it is cheap: hashing a large model takes minutes.
        if given.engine and not given.files_only:
            check_approval(given.approvals, given.directory, Binding(manifest_sha256, given.engine, options))
        elif not given.files_only:
            check_any_approval(given.approvals, given.directory, manifest_sha256)
        check_files(given.directory, manifest)
    except Refused as refusal:
        print(f"plumbline-verify-model: {refusal}", file=sys.stderr)
        return 1
    size = sum(entry["bytes"] for entry in manifest["files"].values())
    approved = ", approval not looked at" if given.files_only else f", approved for {given.engine or 'an engine'}"
    print(
        f"plumbline-verify-model: {given.directory}: {len(manifest['files'])} files, {size} bytes as recorded{approved}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
