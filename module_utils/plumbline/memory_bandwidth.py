"""Measures memory bandwidth: each NUMA node, the whole node, and reads between NUMA nodes."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .latency_statistics import thin
from .memory_bandwidth_c import SOURCE
from .memory_causes import NEXT, probable_cause
from .memory_plan import ARRAY_OVER_CACHE, Group, Plan, cpu_quota, node_limits, plan
from .native_build import BuildError, build, usable
from .tree import Tree, format_cpu_list

NAMES = {"triad": "host_memory_bandwidth", "read": "host_memory_read_bandwidth", "copy": "host_memory_copy_bandwidth"}
"""Measurement by kernel; triad is what STREAM is quoted by."""
_ARRAYS_MOVED = {"read": 1, "copy": 2, "triad": 3}
COUNTING = (
    "read 1, copy 2, triad 3 arrays a pass (STREAM); non-temporal stores, so no write-allocate traffic is left out"
)
_COUNTING_PLAIN = (
    "read 1, copy 2, triad 3 arrays a pass (STREAM); plain stores, so the memory also reads each line it writes"
)
# Arrays below this share of the caches would measure the caches.
_OVER_CACHE_MIN = 2.0
_TIMEOUT_SLACK_SECONDS = 60
_SAMPLES_MAX = 100
# Of the time for a NUMA node: what reads between nodes may take.
_MATRIX_SHARE = 0.3
# Each round gets memory of its own: which pages a process happens to get moves the figure by a third on some machines.
_ROUNDS = 2


class MeasureError(Exception):
    """A measurement failed; the text says what was expected, found and what to do."""


def skipped(reason: str) -> list[dict[str, Any]]:
    """The measurement that was not made, with the reason."""
    return [{"name": NAMES["triad"], "scope": "node", "skipped": reason}]


def failed(reason: str) -> list[dict[str, Any]]:
    """The measurement that should have been made and could not be."""
    return [{"name": NAMES["triad"], "scope": "node", "error": reason}]


def default_cache() -> str:
    """Where built programs are kept: of the system for root, of the user for others; elsewhere where that is read-only or noexec."""
    places = ["/var/cache/plumbline"] if os.geteuid() == 0 else []
    with contextlib.suppress(RuntimeError):  # a user without a home
        places.append(str(Path.home() / ".cache/plumbline"))
    places.append(f"/tmp/plumbline-{os.geteuid()}")  # noqa: S108 (refused where somebody else made it)
    return next((place for place in places if usable(place)), places[0])


def measure(
    dimm: dict[str, Any] | None, *, repetitions: int, seconds_per_node: float, matrix: bool, cache: str, compiler: str
) -> dict[str, Any]:
    """Build the kernel when it is not there yet, and run it. Returns `measurements`, `built` and the time that it took.

    A run ends when `repetitions` passes went by without a better figure, or when its share of `seconds_per_node` is over.
    """
    begun = time.monotonic()
    tree = Tree()
    program, how = build("membw", SOURCE, ["-fopenmp"], cache=cache, processor=_processor(tree), compiler=compiler)
    work = plan(tree)
    if not work.groups:
        return {
            "measurements": failed(
                "expected processors in a NUMA node that this process may use, found none: check its cpuset"
            )
        }
    limits = node_limits(work.packages, dimm)
    several = len(work.groups) > 1
    seconds = seconds_per_node * len(work.groups)
    groups = [*work.groups, work.whole] if several else [_as_node(work)]
    kernel = Kernel(program, how, repetitions, seconds * (1 - _MATRIX_SHARE) / len(groups) / _ROUNDS, tree)
    measurements = []
    for group in groups:
        measurements += _measure_group(kernel, group, limits.get(group.scope), dimm)
    if not several:
        # One NUMA node is the whole node: measured once, reported for both.
        measurements += [{**found, "scope": work.groups[0].scope} for found in measurements]
    elif matrix:
        kernel.seconds = seconds * _MATRIX_SHARE / len(work.groups)
        measurements += _matrix(kernel, work)
    return {
        "measurements": measurements,
        "program": str(program),
        "built": how,
        "seconds": round(time.monotonic() - begun, 2),
    }


@dataclass
class Kernel:
    """The built program and how long it may run for one group."""

    program: Path
    how: str
    repetitions: int
    seconds: float
    tree: Tree


def _as_node(work: Plan) -> Group:
    group = work.whole
    group.notes = [*work.groups[0].notes] if work.groups else []
    return group


def _processor(tree: Tree) -> str:
    """What decides which instructions `-march=native` may use."""
    wanted = ("vendor_id", "cpu family", "model", "stepping", "flags", "Features", "CPU implementer", "CPU part", "isa")
    seen: dict[str, str] = {}
    for line in (tree.text("/proc/cpuinfo") or "").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in wanted:
            seen.setdefault(name.strip(), value.strip())
    return json.dumps(seen, sort_keys=True)


def _run(kernel: Kernel, group: Group, kernels: str, touch: str = "") -> dict[str, Any]:
    threads = len(group.cpus)
    cpus = ",".join(map(str, group.cpus))
    command = [str(kernel.program), str(group.array_bytes), str(kernel.repetitions), str(kernel.seconds), kernels, cpus]
    environment = {
        **os.environ,
        # More threads than this may be asked for nowhere, and their places are set one by one.
        "OMP_NUM_THREADS": str(threads),
        "OMP_DYNAMIC": "false",
        "OMP_PROC_BIND": "false",
        "OMP_WAIT_POLICY": "active",
    }
    try:
        done = subprocess.run(
            [*command, *([touch] if touch else [])],
            capture_output=True,
            text=True,
            errors="replace",
            env=environment,
            timeout=kernel.seconds + _TIMEOUT_SLACK_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise MeasureError(f"the kernel did not end within {error.timeout:.0f} s: the machine is overloaded") from error
    except OSError as error:
        raise MeasureError(
            f"expected to run {kernel.program}, found: {error.strerror}: set cache_directory to a file system without noexec"
        ) from error
    try:
        found = json.loads(done.stdout)
    except ValueError:
        killed = f" by signal {-done.returncode}" if done.returncode < 0 else ""
        raise MeasureError(
            f"the kernel ended{killed} (status {done.returncode}) without a result: {done.stderr.strip()}"
        ) from None
    if not isinstance(found, dict) or "error" in found:
        raise MeasureError(str(found.get("error") if isinstance(found, dict) else found))
    if found["wrong"]:
        raise MeasureError(
            f"{found['wrong']} results of the kernel are wrong: the memory or the processor computes wrongly"
        )
    if found["threads"] != threads:
        raise MeasureError(
            f"expected {threads} threads, {found['threads']} were started: a limit on processes is in the way"
        )
    result: dict[str, Any] = found
    return result


def _measure_group(
    kernel: Kernel, group: Group, limit: tuple[float, str] | None, dimm: dict[str, Any] | None = None
) -> list[dict[str, Any]]:
    if group.array_over_cache < _OVER_CACHE_MIN:
        reason = (
            f"expected memory for three arrays of {ARRAY_OVER_CACHE} times the last-level caches "
            f"({group.cache_bytes >> 20} MiB), found room for {group.array_over_cache:g} times: free memory and run again"
        )
        return [{"name": NAMES["triad"], "scope": group.scope, "error": reason, "next_command": "free -m"}]
    load = os.getloadavg()[0]
    try:
        found = _run(kernel, group, "rct")
        for _ in range(_ROUNDS - 1):
            for operation, seconds in _run(kernel, group, "rct")["seconds"].items():
                found["seconds"][operation] += seconds
    except MeasureError as error:
        return [
            {
                "name": NAMES["triad"],
                "scope": group.scope,
                "error": str(error),
                "next_command": "dmesg | tail; ulimit -a",
            }
        ]
    notes = list(group.notes)
    if found["unpinned"]:
        notes.append("some threads could not be pinned to their processors: they may have read from far memory")
    conditions = {
        "cpus": format_cpu_list(group.cpus),
        "threads": found["threads"],
        "array_bytes": found["array_bytes"],
        "last_level_cache_bytes": group.cache_bytes,
        "array_over_cache": group.array_over_cache,
        "instructions": found["isa"],
        "non_temporal_stores": found["non_temporal"],
        "bytes_counted": COUNTING if found["non_temporal"] else _COUNTING_PLAIN,
        "pages_by_node": found["placement"],
        "compiler": kernel.how,
        "load_average_before": round(load, 2),
        "cpu_quota": cpu_quota(kernel.tree),
        "notes": notes,
    }
    measurements = []
    for operation, name in NAMES.items():
        seconds = found["seconds"][operation]
        moved = found["array_bytes"] * _ARRAYS_MOVED[operation]
        measurement: dict[str, Any] = {
            "name": name,
            "scope": group.scope,
            "value": round(moved / min(seconds)),
            "unit": "B/s",
            "statistic": f"best of {len(seconds)}",
            "samples": thin([round(moved / second) for second in seconds], _SAMPLES_MAX),
            "conditions": {"kernel": operation, **conditions},
        }
        if limit is not None:
            measurement["limit"], measurement["limit_source"] = limit
        if operation == "triad":
            measurement["cause"], measurement["next_command"] = probable_cause(conditions, dimm), NEXT
        measurements.append(measurement)
    return measurements


def _matrix(kernel: Kernel, work: Plan) -> list[dict[str, Any]]:
    """Reads by the processors of each NUMA node from the memory of each: rows are processors, columns memory."""
    targets: dict[int, str] = {group.nodes[0]: ",".join(map(str, group.cpus)) for group in work.groups}
    targets.update({node: f"node:{node}" for node in work.memory_only})
    kernel.seconds /= len(targets)
    measurements = []
    for group in work.groups:
        for memory, touch in targets.items():
            scope = f"cpus of {group.nodes[0]}, memory of {memory}"
            measurement: dict[str, Any] = {"name": "numa_memory_bandwidth", "scope": scope}
            try:
                found = _run(kernel, group, "r", touch)
            except MeasureError as error:
                measurements.append({**measurement, "error": str(error)})
                continue
            seconds = found["seconds"]["read"]
            measurements.append(
                {
                    **measurement,
                    "value": round(found["array_bytes"] / min(seconds)),
                    "unit": "B/s",
                    "statistic": f"best of {len(seconds)}",
                    "conditions": {
                        "kernel": "read",
                        "threads": found["threads"],
                        "array_bytes": found["array_bytes"],
                        "pages_by_node": found["placement"],
                    },
                }
            )
    return measurements


__all__ = ["BuildError", "MeasureError", "default_cache", "failed", "measure", "skipped"]
