"""Hosts that did not come back from a restart: a mark beside the evidence, which stays until the host answers again."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from .evidence import DIRECTORY_MODE, FILE_MODE, evidence_path

FOLDER = "marks"

Mark = dict[str, Any]
"""`host`, `since` (UTC, ISO 8601), `run`, `reason` (a sentence), `because` (stages), `console` (its last lines), `console_source`;
`lost` where it went away outside of a restart."""


def path_of(artifacts_dir: str, host: str) -> Path:
    """Return the file of a host's mark."""
    return evidence_path(artifacts_dir, FOLDER, host).with_suffix(".json")


def put(artifacts_dir: str, host: str, **what: Any) -> Path:
    """Mark a host. Raises OSError where the file cannot be written."""
    path = path_of(artifacts_dir, host)
    path.parent.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    since = datetime.now(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")
    draft = path.with_name(f".{path.name}.new")
    draft.write_text(json.dumps({"host": host, "since": since, **what}, indent=1) + "\n")
    draft.chmod(FILE_MODE)
    draft.replace(path)
    return path


def get(artifacts_dir: str, host: str) -> Mark | None:
    """Return a host's mark, None where it has none; a damaged one says only that it is there."""
    path = path_of(artifacts_dir, host)
    try:
        found = json.loads(path.read_text())
    except OSError:
        return None
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"host": host, "since": "", "reason": f"{path} cannot be read"}


def remove(artifacts_dir: str, host: str) -> bool:
    """Take a host's mark away; whether there was one. Raises OSError where it cannot."""
    path = path_of(artifacts_dir, host)
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True


def told(mark: Mark) -> str:
    """One sentence on a marked host, for the next run."""
    since = f" of {mark['since']}" if mark.get("since") else ""
    console = mark.get("console") or []
    last = f" Its console ended with: {console[-1]}" if console else ""
    what = "could not be reached any more in the run" if mark.get("lost") else "did not come back from its restart"
    return (
        f"{mark.get('host')} {what}{since}: {mark.get('reason', 'no reason is on record')}.{last} "
        "The mark goes when it answers a survey."
    )
