"""Golden files on the controller: read by the action plugins, written so that only their owner reads them."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from .bios_golden import GoldenFileError
from .bios_text import TextError, parse

# A backup holds serial numbers and addresses, but no secret.
_FILE_MODE = 0o600
_DIRECTORY_MODE = 0o750


def read_document(path: str) -> Any:
    """Read a JSON or YAML document from a file.

    Raises:
        GoldenFileError: the file cannot be read, or is neither.
    """
    file = Path(path).expanduser()
    try:
        return parse(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise GoldenFileError(
            f"The golden file {path} cannot be read on the controller ({error.strerror}): write one with"
            " playbooks/bios_backup.yml, or correct its path"
        ) from None
    except TextError as error:
        raise GoldenFileError(
            f"The golden file {path} {error}; correct it, or write it again with playbooks/bios_backup.yml"
        ) from None
    except UnicodeError as error:
        raise GoldenFileError(f"The golden file {path} is no text in UTF-8: {error}") from None


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
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        remedy = "make room there, or take another folder" if full else "correct its path, or make its folder writable"
        raise GoldenFileError(
            f"The file {path} cannot be written on the controller ({error.strerror}): {remedy}; nothing of it was left"
        ) from None
