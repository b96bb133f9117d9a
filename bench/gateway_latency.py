#!/usr/bin/env python3
"""What the gateway adds to the time to first token: one interleaved run, each request straight to the node or through the gateway.

    python bench/gateway_latency.py                                   # a mock node and a gateway with TLS of its own, on loopback
    python bench/gateway_latency.py --direct http://127.0.0.1:8000/v1 --gateway https://127.0.0.1:8463/v1 --ca-file gateway.pem \
        --key-file lab/.state/api-key --model SmolLM2-135M-Instruct --rate 2 --seconds 300

Bounds: 1 ms at P50, 2 ms at P99. The intervals are 95 % bootstrap intervals of the difference; a bound inside of one is not
settled by this run. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from bench.gateway_load import Client, Sample, Shape, Target, mock_gateway, percentile

BOUNDS_SECONDS = {50.0: 0.001, 99.0: 0.002}
RESAMPLES = 2000


def difference(direct: Sequence[float], gateway: Sequence[float], percent: float) -> dict[str, float]:
    """Milliseconds that the gateway adds at a percentile, with the interval."""
    draw = random.Random(1)
    resampled = sorted(
        percentile(draw.choices(gateway, k=len(gateway)), percent)
        - percentile(draw.choices(direct, k=len(direct)), percent)
        for _ in range(RESAMPLES)
    )
    return {
        "direct_ms": round(1000 * percentile(direct, percent), 3),
        "gateway_ms": round(1000 * percentile(gateway, percent), 3),
        "added_ms": round(1000 * (percentile(gateway, percent) - percentile(direct, percent)), 3),
        "added_low_ms": round(1000 * resampled[int(0.025 * RESAMPLES)], 3),
        "added_high_ms": round(1000 * resampled[int(0.975 * RESAMPLES)], 3),
        "bound_ms": 1000 * BOUNDS_SECONDS[percent],
    }


def figures(samples: list[Sample]) -> dict[str, Any]:
    """What the run says. Latencies count from when a request was sent: here the question is what the way adds, not the load."""
    found = {
        name: [s.first - s.sent for s in samples if s.target == name and s.answered and s.first is not None]
        for name in ("direct", "gateway")
    }
    result: dict[str, Any] = {
        f"p{percent:g}": difference(found["direct"], found["gateway"], percent) for percent in BOUNDS_SECONDS
    }
    result["answered"] = {name: len(values) for name, values in found.items()}
    result["not_answered"] = sum(not s.answered for s in samples)
    return result


async def measure(targets: Sequence[Target], options: argparse.Namespace) -> dict[str, Any]:
    """Both kinds of clients: connections that are kept, and a new one for each request."""
    shape = Shape(options.words, options.tokens)
    await Client(targets, shape).run(options.rate, min(5.0, options.seconds))
    results = {}
    for name, fresh in (("kept_connections", False), ("new_connections", True)):
        results[name] = figures(
            await Client(targets, shape, fresh_connections=fresh).run(options.rate, options.seconds)
        )
    return results


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--direct", help="base URL of the node; without it a mock node")
    parser.add_argument("--gateway", help="base URL of the gateway")
    parser.add_argument("--ca-file", default="", help="the gateway's certificate")
    parser.add_argument("--key-file", type=Path, help="file with the key of both")
    parser.add_argument("--model", default="mock")
    parser.add_argument("--rate", type=float, default=40.0, help="requests/s, both ways together")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--words", type=int, default=48)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--slots", type=int, default=32, help="of the mock node")
    parser.add_argument("--prefill", type=float, default=0.05)
    parser.add_argument("--token", type=float, default=0.02)
    options = parser.parse_args()
    if bool(options.direct) != bool(options.gateway) or (options.direct and not options.key_file):
        parser.error("--direct, --gateway and --key-file go together")
    version = subprocess.run(["haproxy", "-v"], capture_output=True, text=True, check=False).stdout.split("\n")[0]
    record: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "cpus": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "rate_per_second": options.rate,
        "seconds": options.seconds,
        "haproxy": version,
    }
    if options.direct:
        key = options.key_file.read_text().strip()
        targets = (
            Target("direct", options.direct, key, options.model),
            Target("gateway", options.gateway, key, options.model, options.ca_file),
        )
        record |= {"endpoint": options.model, **asyncio.run(measure(targets, options))}
    else:
        limits = {"node_requests": options.slots, "queue_requests": options.slots}
        with mock_gateway(slots=options.slots, prefill=options.prefill, token=options.token, **limits) as targets:
            record |= {"endpoint": "mock", **asyncio.run(measure(targets, options))}
    record["load_after"] = round(os.getloadavg()[0], 1)
    print(json.dumps(record, indent=2))


if __name__ == "__main__":
    main()
