"""Golden files on the controller: read by the action plugins, written so that only their owner reads them."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import yaml

from .bios_golden import GoldenFileError

# A backup holds serial numbers and addresses, but no secret.
_FILE_MODE = 0o600
_DIRECTORY_MODE = 0o750
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_document(path: str) -> Any:
    """Read a JSON or YAML document from a file.

    Raises:
        GoldenFileError: the file cannot be read, or is neither.
    """
    file = Path(path).expanduser()
    try:
        text = file.read_text(encoding="utf-8")
        # JSON first: it is what we write, and read many times as fast.
        with contextlib.suppress(ValueError):
            return json.loads(text)
        return yaml.load(text, Loader=_LOADER)  # noqa: S506 - a safe loader, in C
    except OSError as error:
        raise GoldenFileError(
            f"The golden file {path} cannot be read on the controller ({error.strerror}): write one with"
            " playbooks/bios_backup.yml, or correct its path"
        ) from None
    except (ValueError, yaml.YAMLError) as error:
        detail = " ".join(str(error).split())[:300]
        raise GoldenFileError(f"The golden file {path} is neither JSON nor YAML: {detail}") from None


def as_text(document: Any) -> str:
    """A document as it is written: JSON that a person and `diff` can read."""
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def write_document(path: str, document: Any) -> None:
    """Write a document as JSON, whole or not at all, readable by its owner only.

    Raises:
        GoldenFileError: it cannot be written.
    """
    file = Path(path).expanduser()
    temporary = ""
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=_DIRECTORY_MODE)
        handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(as_text(document))
        Path(temporary).chmod(_FILE_MODE)
        Path(temporary).replace(file)
    except OSError as error:
        if temporary:
            Path(temporary).unlink(missing_ok=True)
        raise GoldenFileError(
            f"The file {path} cannot be written on the controller ({error.strerror}): correct its path"
        ) from None
