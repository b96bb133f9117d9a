"""From the answer of the all-reduce probe to measurements."""

from __future__ import annotations

import json
from typing import Any

from .gpu_bandwidth import chunk_text
from .link_load import LinkFacts
from .nvlink import NvLinks

_LIMITED_FROM_BYTES = 256 << 20
"""Smaller messages spend their time on latency: only from here on the link is what bounds them (nccl-tests' figures level off)."""


def bus_factor(ranks: int) -> float:
    """Return bus bandwidth over algorithm bandwidth of an all-reduce: 2 (n - 1) / n.

    Source: nccl-tests, doc/PERFORMANCE.md, section "AllReduce": each of n ranks sends and receives that many times the
    message, whatever the algorithm, so that the bus bandwidth can be compared with a link's.
    """
    return 2 * (ranks - 1) / ranks


def bus_limit(addresses: list[str], tree: LinkFacts | None, nvlinks: NvLinks | None) -> dict[str, Any]:
    """What bounds the bus bandwidth over GPUs: the NVLinks of the GPU that has least, else the narrowest PCIe link among theirs.

    Bus bandwidth counts what one GPU sends, so it is held against one direction of one GPU's links.
    """
    bonded = [nvlinks.gpu(address) if nvlinks else None for address in addresses]
    if addresses and all(bonded):
        bandwidth, text = min(each for each in bonded if each)
        down = sum(nvlinks.inactive(address) for address in addresses) if nvlinks else 0
        cause = f"{down} NVLinks are inactive: see the fabric manager, then reseat the GPUs or the bridge"
        told = {"cause": cause, "next_command": "nvidia-smi nvlink -s"} if down else {}
        return {"limit": bandwidth, "limit_source": f"{text} of one GPU", "link_class": "NVLink", **told}
    ends = [tree.limit(address) if tree else None for address in addresses]
    known = [each for each in ends if each]
    if not known or len(known) < len(ends):
        return {"limit": None, "limit_source": ""}
    narrow = min(known, key=lambda each: float(each["bytes_per_second"]))
    source = f"{narrow['text']}, no NVLink"
    return {"limit": narrow["bytes_per_second"], "limit_source": source, "link_class": narrow["link_class"]}


def measurements(
    answer_text: str, stderr: str = "", tree: LinkFacts | None = None, nvlinks: NvLinks | None = None
) -> list[dict[str, Any]]:
    """Return for each message size the algorithm and the bus bandwidth, in bytes per second; one error or skip where there is no figure."""
    lines = [line for line in answer_text.splitlines() if line.startswith("{")]
    found: list[dict[str, Any]] = []
    try:
        answer = json.loads(lines[-1])
        for key in ("error", "skipped"):
            if key in answer:
                return [{"name": "collective_bus_bandwidth", "scope": "all_reduce", key: str(answer[key])}]
        ranks, backend = int(answer["ranks"]), str(answer["backend"])
        limit = bus_limit([str(address) for address in answer.get("addresses", [])], tree, nvlinks)
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
            }
            unlimited = {"limit": None, "limit_source": ""}
            bus = limit if point["message_bytes"] >= _LIMITED_FROM_BYTES else unlimited
            conditions = {
                "ranks": ranks,
                "backend": backend,
                "message_bytes": point["message_bytes"],
                "rounds": point["rounds"],
            }
            for name, factor, bound in (
                ("collective_algorithm_bandwidth", 1.0, unlimited),
                ("collective_bus_bandwidth", bus_factor(ranks), bus),
            ):
                samples = [value * factor for value in algorithm]
                figure = {"name": name, "value": max(samples), "samples": samples, "conditions": conditions}
                found.append({**figure, **common, **bound})
    except (IndexError, KeyError, TypeError, AttributeError, ValueError, ZeroDivisionError, OverflowError):
        last = (stderr.strip().splitlines() or answer_text.strip().splitlines() or ["nothing"])[-1]
        reason = f"expected the all-reduce probe's JSON answer, found: {last[:300]}"
        return [{"name": "collective_bus_bandwidth", "scope": "all_reduce", "error": reason}]
    return found or [{"name": "collective_bus_bandwidth", "scope": "all_reduce", "error": "the probe measured nothing"}]
