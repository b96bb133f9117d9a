"""Copies that `nvbandwidth -j` timed, in the form that the GPU copy probe answers in.

Format and counting: NVIDIA/nvbandwidth (Apache-2.0), json_output.cpp, testcases_ce.cpp and README.md of version 0.8. Figures are texts in
10^9 bytes per second, `N/A` where a pair was not measured; a test that could not run is `Waived` and has no matrix.
"""

from __future__ import annotations

import json
import re
from typing import Any

PROGRAM = "nvbandwidth"
_BOTH = ("host_to_device_bidirectional_memcpy_ce", "device_to_host_bidirectional_memcpy_ce")
_ROWS = {
    "host_to_device_memcpy_ce": "host_to_device",
    "device_to_host_memcpy_ce": "device_to_host",
    "device_local_copy": "device_to_device",
}
_PEERS = "device_to_device_memcpy_write_ce"
TESTS = (*_ROWS, *_BOTH, _PEERS)
"""Copies by the copy engines, the kind that torch's `copy_` makes; of the two between GPUs the one where the source writes."""
_PASSED, _WAIVED = "Passed", "Waived"
_DEVICE = re.compile(r"\(([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.[0-7])?\)")
_MIB = 1 << 20


def command(program: str, chunk_bytes: int) -> list[str]:
    """The call that runs all tests once with buffers of a size (whole MiB, at least one)."""
    return [program, "-j", "-i", "1", "-b", str(max(1, chunk_bytes // _MIB)), "-t", *TESTS]


def parse(text: str) -> dict[str, Any]:
    """The answer of one run: `version`, `addresses` by index, and `figures`: (kind, gpu, peer) -> bytes per second.

    Raises ValueError with one sentence for what is no answer of nvbandwidth, or one that says that it failed.
    """
    try:
        root = json.loads(text[max(0, text.find("{")) :])["nvbandwidth"]
        tests = root.get("testcases") or []
        if not tests and root.get("error"):
            raise ValueError(f"nvbandwidth failed: {_line(root['error'])}")
        matrices: dict[str, list[list[float | None]]] = {}
        problems = []
        for test in tests:
            if test["status"] == _PASSED:
                matrices[test["name"]] = [[_figure(cell) for cell in row] for row in test["bandwidth_matrix"]]
            elif test["status"] != _WAIVED:
                problems.append(f"{test['name']}: {_line(test.get('error') or test['status'])}")
        devices = root.get("GPU Device list") or []
        addresses = [_address(str(device)) for device in devices]
    except (KeyError, TypeError, AttributeError, IndexError, json.JSONDecodeError, RecursionError):
        raise ValueError("expected the JSON answer of nvbandwidth -j, found something else") from None
    return {
        "version": str(root.get("version", "")),
        "driver_version": str(root.get("Driver Version", "")),
        "addresses": addresses,
        "figures": _figures(matrices),
        "problems": problems,
    }


def answer(runs: dict[int, list[dict[str, Any]]], addresses: list[str], links: dict[str, Any]) -> dict[str, Any]:
    """Put runs, by the size of their chunks, together as the copy probe would answer. `links`: what was sampled during all of them."""
    first = next(iter(runs.values()))[0]
    named = first["addresses"] or addresses
    points = []
    for chunk_bytes, results in runs.items():
        keys = dict.fromkeys(key for result in results for key in result["figures"])
        for kind, gpu, peer in keys:
            samples = [
                result["figures"][kind, gpu, peer] for result in results if (kind, gpu, peer) in result["figures"]
            ]
            over_pcie = kind not in ("device_to_device", "peer_to_peer")
            points.append(
                {
                    "kind": kind,
                    "gpu": _at(named, gpu),
                    "index": gpu,
                    "peer": "" if peer is None else _at(named, peer),
                    "peer_index": gpu if peer is None else peer,
                    "chunk_bytes": chunk_bytes,
                    "rounds": 1,
                    "samples": samples,
                    "submission": "nvbandwidth",
                    "link": links if over_pcie else {},
                }
            )
    count = max((point["index"] for point in points), default=-1) + 1
    problems = dict.fromkeys(
        problem for results in runs.values() for result in results for problem in result["problems"]
    )
    return {
        "gpus": {index: {"index": index, "address": _at(named, index)} for index in range(count)},
        "points": points,
        "notes": [f"nvbandwidth: {problem}" for problem in problems],
        "nvbandwidth_version": first["version"],
        "driver_version": first["driver_version"],
    }


def _figures(matrices: dict[str, list[list[float | None]]]) -> dict[tuple[str, int, int | None], float]:
    figures: dict[tuple[str, int, int | None], float] = {}
    for test, kind in _ROWS.items():
        for gpu, value in enumerate((matrices.get(test) or [[]])[0]):
            if value:
                figures[kind, gpu, None] = value
    # A bidirectional test of a copy engine times one of the two directions: the other one's test gives the rest of the sum.
    there, back = ((matrices.get(test) or [[]])[0] for test in _BOTH)
    for gpu, pair in enumerate(zip(there, back)):
        if pair[0] and pair[1]:
            figures["bidirectional", gpu, None] = pair[0] + pair[1]
    for gpu, row in enumerate(matrices.get(_PEERS) or []):
        for peer, value in enumerate(row):
            if value and peer != gpu:
                figures["peer_to_peer", gpu, peer] = value
    return figures


def _figure(cell: Any) -> float | None:
    """Bytes per second of a cell, `None` for N/A and for what is no finite positive number."""
    try:
        value = float(cell) * 1e9
    except (TypeError, ValueError, OverflowError):
        return None
    return value if 0 < value < float("inf") else None


def _address(device: str) -> str:
    match = _DEVICE.search(device)
    return f"{int(match.group(1), 16):04x}:{match.group(2)}:{match.group(3)}.0".lower() if match else ""


def _at(addresses: list[str], index: int) -> str:
    return addresses[index] if index < len(addresses) else ""


def _line(text: Any) -> str:
    return (str(text).strip().splitlines() or ["no reason given"])[0][:300]
