"""From the answer of the GPU copy probe to measurements, with the limit of the link that the copy really ran on."""

from __future__ import annotations

import json
from typing import Any

from .limits import pcie_bandwidth, pcie_bandwidth_text

KINDS = {
    "host_to_device": "gpu_h2d_bandwidth",
    "device_to_host": "gpu_d2h_bandwidth",
    "bidirectional": "gpu_bidirectional_bandwidth",
    "device_to_device": "gpu_d2d_bandwidth",
    "peer_to_peer": "gpu_p2p_bandwidth",
}
"""Kind of copy in the probe's answer -> name of the measurement."""

_OVER_PCIE = {"host_to_device": 1, "device_to_host": 1, "bidirectional": 2}


def chunk_text(chunk_bytes: int) -> str:
    """Return a chunk size for a person: 4 MiB, 1 GiB."""
    for factor, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if chunk_bytes >= factor and chunk_bytes % factor == 0:
            return f"{chunk_bytes // factor} {unit}"
    return f"{chunk_bytes} B"


def _measurement(point: dict[str, Any]) -> dict[str, Any]:
    kind, samples, link = point["kind"], [float(sample) for sample in point["samples"]], point.get("link") or {}
    scope = f"gpu {point['gpu'] or '?'}" + (f" to {point['peer']}" if point.get("peer") else "")
    result: dict[str, Any] = {
        "name": KINDS[kind],
        "scope": f"{scope}, {chunk_text(point['chunk_bytes'])} chunks",
        "value": max(samples),
        "unit": "B/s",
        "statistic": f"best of {len(samples)}",
        "samples": samples,
        "limit": None,
        "limit_source": "",
        "conditions": {"chunk_bytes": point["chunk_bytes"], "rounds": point["rounds"], "link_under_load": link},
    }
    if "direct" in point:
        result["conditions"]["direct_peer_access"] = point["direct"]
    if kind in _OVER_PCIE and link.get("samples"):
        speed, width = link["highest_gigatransfers_per_second"], link["highest_width"]
        directions = _OVER_PCIE[kind]
        result["limit"] = directions * pcie_bandwidth(speed, width)
        both = " x 2 directions" if directions == 2 else ""
        result["limit_source"] = pcie_bandwidth_text(speed, width) + both + " (link under load, sysfs)"
    return result


def failed(reason: str) -> list[dict[str, Any]]:
    """Return the measurements of a probe that could not measure: one error for the GPUs as a whole."""
    return [{"name": "gpu_h2d_bandwidth", "scope": "gpus", "error": reason}]


def measurements(answer_text: str, stderr: str = "") -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Turn what the probe printed into measurements and its facts (GPUs, versions, notes).

    Anything but a well-formed answer becomes an error measurement that says what was found.
    """
    lines = [line for line in answer_text.splitlines() if line.startswith("{")]
    try:
        answer = json.loads(lines[-1])
        if "error" in answer:
            return failed(str(answer["error"])), {}
        found = [_measurement(point) for point in answer["points"] if point["samples"]]
        facts = {key: answer[key] for key in ("gpus", "notes", "torch_version", "cuda_version", "elapsed_seconds")}
    except (IndexError, KeyError, TypeError, ValueError):
        last = (stderr.strip().splitlines() or answer_text.strip().splitlines() or ["nothing"])[-1]
        return failed(f"expected the GPU copy probe's JSON answer, found: {last[:300]}"), {}
    if not found:
        return failed("the probe measured nothing: " + ("; ".join(map(str, facts["notes"])) or "no GPU")), facts
    return found, facts
