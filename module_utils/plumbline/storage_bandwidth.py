"""Sequential reading of a model's directory with fio: which files to read, the command, and its answer as a measurement."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

NAME = "storage_read_bandwidth"
BLOCK_BYTES = 1 << 20
"""Size of one read: what a loader that streams shards asks for, and more than any device's best request size."""


def files_to_read(directory: Path) -> list[tuple[Path, int]]:
    """Return the regular files below a directory with their sizes in bytes, the largest first; links are not followed out of it."""
    found = []
    for folder, _, names in os.walk(directory):
        for name in names:
            path = Path(folder) / name
            try:
                if path.is_file() and not path.is_symlink() and path.stat().st_size >= BLOCK_BYTES:
                    found.append((path, path.stat().st_size))
            except OSError:
                continue
    return sorted(found, key=lambda item: (-item[1], str(item[0])))


def command(fio: str, path: Path, runtime_seconds: float, jobs: int, queue_depth: int) -> list[str]:
    """Return the fio call: only reads, direct I/O, each job on its own part of the file."""
    size = path.stat().st_size // jobs // BLOCK_BYTES * BLOCK_BYTES
    return [
        fio,
        "--name=sequential_read",
        "--readonly",
        f"--filename={str(path).replace(':', chr(92) + ':')}",
        "--rw=read",
        f"--bs={BLOCK_BYTES}",
        "--direct=1",
        "--ioengine=libaio",
        f"--iodepth={queue_depth}",
        f"--numjobs={jobs}",
        f"--size={size}",
        f"--offset_increment={size}",
        f"--runtime={runtime_seconds:g}",
        "--time_based",
        "--group_reporting",
        "--output-format=json",
    ]


def error(reason: str, scope: str) -> dict[str, Any]:
    """Return the measurement of a reading that failed."""
    return {"name": NAME, "scope": scope, "error": reason}


def measurement(answer_text: str, stderr: str, scope: str, conditions: dict[str, Any]) -> dict[str, Any]:
    """Turn fio's JSON answer into a measurement in bytes per second, or into an error that says what fio said.

    fio may print notes before the JSON object; a job's `error` is an errno. Fields: fio(1), "JSON output".
    """
    try:
        answer = json.loads(answer_text[answer_text.index("{") :])
        job = answer["jobs"][0]
        if job["error"]:
            return error(f"fio failed: {os.strerror(int(job['error']))}", scope)
        read = job["read"]
        bandwidth = float(read["bw_bytes"])
    except (ValueError, KeyError, IndexError, TypeError):
        lines = [line for line in (stderr + "\n" + answer_text).splitlines() if line.strip()]
        return error(f"expected fio's JSON answer, found: {(lines or ['nothing'])[0][:300]}", scope)
    if bandwidth <= 0:
        return error("fio read nothing in the time it had: give it more runtime_seconds", scope)
    return {
        "name": NAME,
        "scope": scope,
        "value": bandwidth,
        "unit": "B/s",
        "statistic": "mean over the run",
        "limit": None,
        "limit_source": "",
        "samples": [],
        "conditions": {
            **conditions,
            "bytes_read": int(read["io_bytes"]),
            "fio_version": str(answer.get("fio version", "")),
        },
    }
