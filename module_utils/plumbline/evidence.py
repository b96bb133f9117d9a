"""The evidence of a run: one JSON object a line, one file a host, appended and never rewritten.

Written on the controller by the gate and by the report callback, read by the report. docs/evidence.schema.json states
the shape of a record, docs/evidence.md explains it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

SCHEMA_VERSION = 1
FILE_MODE = 0o640
DIRECTORY_MODE = 0o750


class Evidence(NamedTuple):
    """What was read of one host: its records in order, and a sentence for each line that had to be dropped."""

    records: list[dict[str, Any]]
    problems: list[str]


def evidence_path(artifacts_dir: str, run: str, host: str) -> Path:
    """Return the file of one host in one run; a name that would leave the folder is made harmless."""
    return Path(artifacts_dir).expanduser().absolute() / _safe(run) / f"{_safe(host)}.jsonl"


def envelope(kind: str, *, run: str, host: str, stage: str, task: str, check_mode: bool) -> dict[str, Any]:
    """Return what every record starts with."""
    return {
        "schema": SCHEMA_VERSION,
        "kind": kind,
        "time": datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "run": run,
        "host": host,
        "stage": stage,
        "task": task,
        "check_mode": check_mode,
    }


def append(path: Path, records: list[Mapping[str, Any]]) -> None:
    """Append records, each as one line, in one write under a lock, so that no two writers mix.

    A file whose last line was cut off by a crash gets a line break first: the new records stay readable.
    Raises OSError where the folder or the file cannot be written.
    """
    if not records:
        return
    _make_directories(path.parent)
    lines = "".join(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n" for record in records)
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        size = os.fstat(handle).st_size
        if size == 0:
            os.fchmod(handle, FILE_MODE)
        elif os.pread(handle, 1, size - 1) != b"\n":
            lines = "\n" + lines
        data = lines.encode("utf-8", errors="replace")
        written = os.write(handle, data)
        if written != len(data):
            raise OSError(f"only {written} of {len(data)} bytes could be written to {path}")
    finally:
        os.close(handle)


def read(path: Path, names: Iterable[str] | None = None) -> Evidence:
    """Read the evidence of one host. What cannot be read is dropped and named, never a reason to fail.

    With ``names``, lines in which none of them occurs are passed over unread, so that many files are read fast.
    """
    marks = None if names is None else [name.encode() for name in names]
    records: list[dict[str, Any]] = []
    problems: list[str] = []
    try:
        data = path.read_bytes()
    except OSError as error:
        return Evidence([], [f"{path.name}: cannot be read ({error.strerror or error})"])
    if not data:
        problems.append(f"{path.name}: the file is empty")
    lines = data.split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip() or (marks is not None and not any(mark in line for mark in marks)):
            continue
        try:
            record = json.loads(line.decode("utf-8"))
        except (ValueError, RecursionError):
            what = "is cut off" if number == len(lines) else "is no JSON"
            problems.append(f"{path.name}, line {number}: {what}, dropped")
            continue
        problem = _problem(record)
        if problem:
            problems.append(f"{path.name}, line {number}: {problem}, dropped")
        else:
            records.append(record)
    return Evidence(records, problems)


def read_run(directory: Path) -> dict[str, Evidence]:
    """Read a run's folder; the keys are the names of the files without their ending, that is, the hosts."""
    return {path.stem: read(path) for path in sorted(directory.glob("*.jsonl"))}


# The texts that a record of each kind must have, beside those that all have.
_TEXTS: Mapping[str, tuple[str, ...]] = {
    "check": ("name", "scope", "reason"),
    "failure": ("task", "message"),
    "stage": (),
    "restart": ("how",),
    "machine": (),
}
KINDS = frozenset(_TEXTS)
# What a field must be where it is there and not null; the report counts on it.
_SHAPES: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("samples",), (list,)),
    **dict.fromkeys(("conditions", "rule", "machine"), (dict,)),
    **dict.fromkeys(
        (
            "title",
            "measured",
            "required",
            "unit",
            "statistic",
            "limit_source",
            "cause",
            "next_command",
            "endpoint",
            "hardware",
        ),
        (str,),
    ),
    **dict.fromkeys(("limit", "fraction", "threshold", "spread", "seconds", "changed", "failed"), (int, float)),
}
_STATUSES = frozenset({"OK", "WARN", "CRITICAL", "UNKNOWN", "SKIPPED"})


def _problem(record: Any) -> str:
    if not isinstance(record, dict):
        return "is no JSON object"
    if record.get("schema") != SCHEMA_VERSION:
        return f"has schema {record.get('schema')!r}, this Plumbline reads {SCHEMA_VERSION}"
    kind = record.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        return f"is of the unknown kind {kind!r}"
    missing = [key for key in ("time", "run", "host", "stage", *_TEXTS[kind]) if not isinstance(record.get(key), str)]
    if missing:
        return f"lacks {', '.join(missing)}"
    status = record.get("status")
    if kind == "check" and not (isinstance(status, str) and status in _STATUSES):
        return f"has the unknown status {status!r}"
    misshapen = [
        key for key, kinds in _SHAPES.items() if record.get(key) is not None and not isinstance(record[key], kinds)
    ]
    return f"has a value of another type in {', '.join(misshapen)}" if misshapen else ""


def _safe(name: str) -> str:
    cleaned = re.sub(r"[^\w.:@%+=,\[\]-]", "_", str(name))
    return cleaned if cleaned.strip(".") else "_" + cleaned


def _make_directories(directory: Path) -> None:
    """Create missing folders with their mode; one that exists keeps the mode that a person gave it."""
    missing = []
    while not directory.exists():
        missing.append(directory)
        directory = directory.parent
    for folder in reversed(missing):
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=DIRECTORY_MODE)
