"""What survives a restart of the simulator: one JSON document, replaced atomically."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

Json = dict[str, Any]
FORMAT = 1
_UNFINISHED = ".tmp"


class StateError(Exception):
    """The state file cannot be used; the text is one sentence for a person."""


class State:
    """The document, in memory when `path` is None."""

    def __init__(self, profile_name: str, path: Path | None = None) -> None:
        """Read the document at `path` where there is one."""
        self.path = path
        self.data: Json = {"format": FORMAT, "profile": profile_name}
        if path is None:
            return
        if path.exists():
            self.data = self._load(path, profile_name)
        try:
            for unfinished in path.parent.glob(f".{path.name}.*{_UNFINISHED}"):  # of a process that was killed
                unfinished.unlink()
            self.save()
        except OSError as error:
            raise StateError(
                f"The state file {path} cannot be written ({error.strerror}); name one in a directory that you may"
                " write to."
            ) from error

    @staticmethod
    def _load(path: Path, profile_name: str) -> Json:
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise StateError(
                f"The state file {path} cannot be read ({error}); expected the JSON that this simulator wrote; "
                "correct its permissions, or delete it to start from the defaults of the profile."
            ) from error
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise StateError(
                f"The state file {path} has not the format {FORMAT} of this simulator; delete it to start anew."
            )
        if data.get("profile") != profile_name:
            raise StateError(
                f"The state file {path} belongs to the profile {data.get('profile')!r}, not to {profile_name!r}; "
                "name that profile, or delete the file to start anew."
            )
        return data

    def section(self, name: str, default: Any) -> Any:
        """Return a part of the document, made from `default` the first time."""
        return self.data.setdefault(name, default)

    def save(self) -> None:
        """Write the document so that a reader sees the old or the new one, never a part."""
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{self.path.name}.", suffix=_UNFINISHED, dir=self.path.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                json.dump(self.data, stream, indent=1)
                stream.flush()
                os.fsync(stream.fileno())
            Path(name).replace(self.path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(name).unlink()
            raise
