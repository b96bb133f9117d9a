"""From the answer of the all-reduce probe to measurements."""

from __future__ import annotations

import json
from typing import Any

from .gpu_bandwidth import chunk_text


def bus_factor(ranks: int) -> float:
    """Return bus bandwidth over algorithm bandwidth of an all-reduce: 2 (n - 1) / n.

    Source: nccl-tests, doc/PERFORMANCE.md, section "AllReduce": each of n ranks sends and receives that many times the
    message, whatever the algorithm, so that the bus bandwidth can be compared with a link's.
    """
    return 2 * (ranks - 1) / ranks


def measurements(answer_text: str, stderr: str = "") -> list[dict[str, Any]]:
    """Return for each message size the algorithm and the bus bandwidth, in bytes per second; one error or skip where there is no figure."""
    lines = [line for line in answer_text.splitlines() if line.startswith("{")]
    found: list[dict[str, Any]] = []
    try:
        answer = json.loads(lines[-1])
        for key in ("error", "skipped"):
            if key in answer:
                return [{"name": "collective_bus_bandwidth", "scope": "all_reduce", key: str(answer[key])}]
        ranks, backend = int(answer["ranks"]), str(answer["backend"])
        for point in answer["points"]:
            scope = f"all_reduce over {ranks} ranks ({backend}), {chunk_text(point['message_bytes'])}"
            if "wrong" in point:
                found.append({"name": "collective_bus_bandwidth", "scope": scope, "error": point["wrong"]})
                continue
            algorithm = [point["message_bytes"] / float(seconds) for seconds in point["samples"]]
            common = {
                "scope": scope,
                "unit": "B/s",
                "statistic": f"best of {len(algorithm)}",
                "limit": None,
                "limit_source": "",
            }
            conditions = {
                "ranks": ranks,
                "backend": backend,
                "message_bytes": point["message_bytes"],
                "rounds": point["rounds"],
            }
            for name, factor in (
                ("collective_algorithm_bandwidth", 1.0),
                ("collective_bus_bandwidth", bus_factor(ranks)),
            ):
                samples = [value * factor for value in algorithm]
                found.append(
                    {"name": name, "value": max(samples), "samples": samples, "conditions": conditions, **common}
                )
    except (IndexError, KeyError, TypeError, ValueError, ZeroDivisionError):
        last = (stderr.strip().splitlines() or answer_text.strip().splitlines() or ["nothing"])[-1]
        reason = f"expected the all-reduce probe's JSON answer, found: {last[:300]}"
        return [{"name": "collective_bus_bandwidth", "scope": "all_reduce", "error": reason}]
    return found or [{"name": "collective_bus_bandwidth", "scope": "all_reduce", "error": "the probe measured nothing"}]
