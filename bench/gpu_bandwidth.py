#!/usr/bin/env python3
"""Compare the module's GPU copies with the best copy that plain torch shows at any chunk size, interleaved in one run.

Usage, with a Python that has torch and a GPU: python bench/gpu_bandwidth.py [--rounds 3]

The plain copy is `target.copy_(source, non_blocking=True)` of one pinned buffer, again and again, for chunks from 1 MiB to
2 GiB. Prints for each round and direction the best of the plain sweep, the module's best, and their ratio; then the median
ratio. Needs 4 GiB of memory on both sides.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "module_utils" / "plumbline"))

import gpu_copy_probe  # type: ignore[import-not-found,unused-ignore]
import torch

SIZES = [1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20, 1 << 30, 2 << 30]


def plain_best(direction: str) -> tuple[float, int]:
    """Return the best bytes per second of the plain sweep in a direction, and its chunk in bytes."""
    best = (0.0, 0)
    for size in SIZES:
        host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        device = torch.empty(size, dtype=torch.uint8, device="cuda")
        source, target = (host, device) if direction == "host_to_device" else (device, host)
        count = max(1, (8 << 30) // size)
        target.copy_(source)
        for _ in range(3):
            torch.cuda.synchronize()
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            for _ in range(count):
                target.copy_(source, non_blocking=True)
            end.record()
            end.synchronize()
            best = max(best, (size * count / (begin.elapsed_time(end) / 1e3), size))
        del host, device, source, target
    return best


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    ratios: dict[str, list[float]] = {"host_to_device": [], "device_to_host": []}
    for number in range(arguments.rounds):
        started = time.monotonic()
        options = {"chunk_bytes": [4 << 20, 1 << 30], "seconds_per_point": 0.5, "repeats": 5}
        answer: dict[str, Any] = gpu_copy_probe.probe(options, torch)
        elapsed = time.monotonic() - started
        for direction, found in ratios.items():
            points = [point for point in answer["points"] if point["kind"] == direction]
            module_best = max(max(point["samples"]) for point in points)
            plain, size = plain_best(direction)
            found.append(module_best / plain)
            print(
                f"round {number + 1} {direction}: module {module_best / 1e9:.2f} GB/s, plain torch {plain / 1e9:.2f} GB/s "
                f"({size >> 20} MiB), ratio {module_best / plain:.4f}; module took {elapsed:.1f} s for all its points"
            )
    print(json.dumps({direction: statistics.median(values) for direction, values in ratios.items()}))


if __name__ == "__main__":
    main()
