"""Sequential reading of a model's directory with fio: which files to read, the command, and its answer as a measurement."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

from .block_devices import Backing
from .link_load import NAMES, LinkFacts

NAME = "storage_read_bandwidth"
LOAD_NAME = "checkpoint_load_seconds"
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


def command(fio: str, file: tuple[Path, int], runtime_seconds: float, jobs: int, queue_depth: int) -> list[str]:
    """Return the fio call: only reads, direct I/O, each job on its own part of the file."""
    path, file_bytes = file
    size = file_bytes // jobs // BLOCK_BYTES * BLOCK_BYTES
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
            code = int(job["error"])
            hint = " (the file system may not know direct I/O)" if code == errno.EINVAL else ""
            return error(f"fio failed: {os.strerror(code)}{hint}", scope)
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


def with_limit(found: dict[str, Any], backing: Backing, links: LinkFacts, seen: dict[str, dict[str, Any]]) -> None:
    """Add what the links of the drives below can carry together, as the limit of a reading, and the cause where one runs slower."""
    limits = [limit for address in backing.addresses if (limit := links.limit(address))]
    found["conditions"]["backing"] = backing.text()
    if not limits or len(limits) < len(backing.addresses):
        return
    classes = [limit["link_class"] for limit in limits]
    several = f"{len(limits)} x " if len(limits) > 1 else ""
    found["limit"] = sum(limit["bytes_per_second"] for limit in limits)
    found["limit_source"] = (
        f"{several}{limits[0]['text']}" if len(set(classes)) == 1 else f"the links of {len(limits)} drives"
    )
    found["link_class"] = f"{several}{classes[0]}" if len(set(classes)) == 1 else "several"
    for address in backing.addresses:
        slow = links.slow_hop(address, seen)
        if slow:
            found.update({key: slow[key] for key in ("cause", "next_command") if key in slow})


def link_measurements(
    backing: Backing, links: LinkFacts, seen: dict[str, dict[str, Any]], scope: str
) -> list[dict[str, Any]]:
    """The links of the drives under load, or why there are none to look at."""
    if not backing.addresses:
        return [{"name": name, "scope": scope, "skipped": backing.reason} for name in NAMES]
    return [
        measurement
        for address in backing.addresses
        for measurement in links.measurements(f"nvme {address}", address, seen, "sequential reads")
    ]


def load_measurement(directory_bytes: int, bandwidth: float, scope: str) -> dict[str, Any]:
    """How long reading the whole directory takes at the measured rate: the least that loading the checkpoint can take, in seconds."""
    return {
        "name": LOAD_NAME,
        "scope": scope,
        "value": directory_bytes / bandwidth,
        "unit": "s",
        "statistic": "computed: bytes of the directory over the measured bandwidth",
        "conditions": {"directory_bytes": directory_bytes, "bandwidth_bytes_per_second": bandwidth},
    }
