#!/usr/bin/env python3
"""Five times what the endpoint sustains, through the gateway: what is refused, how what is accepted fares, and how soon all is well again.

    python bench/overload.py                                           # a mock node and a gateway of its own, on loopback
    python bench/overload.py --gateway https://127.0.0.1:8463/v1 --ca-file gateway.pem --key-file lab/.state/api-key \
        --model SmolLM2-135M-Instruct --ttft 3 --end-to-end 10

The sustainable rate is searched first: the highest at which 99 % of the requests keep the service level. Then the load is half of
that, five times that, and half again. Recovered: from then on no request is refused and all keep the service level. Latencies
count from when a request was due.
Bounds: refusals are 429 or 503 with Retry-After and nothing else fails; P99 of the accepted within the service level; 10 s to
recover.
Prints one JSON object; ends with 1 where a bound is broken.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from bench.gateway_load import Client, Sample, Shape, Target, mock_gateway, percentile

FACTOR = 5
RECOVERY_SECONDS = 10
GOOD_FRACTION = 0.99


@dataclass(frozen=True)
class Level:
    """The service level of one request, in seconds."""

    ttft: float
    end_to_end: float

    def kept(self, sample: Sample) -> bool:
        """A whole answer, in time."""
        return bool(sample.answered and sample.to_first_token <= self.ttft and sample.to_end <= self.end_to_end)


async def search(client: Client, level: Level, start: float, seconds: float) -> tuple[float, list[dict[str, float]]]:
    """Return the highest rate (within a tenth) at which the service level is kept, and what was tried."""
    tried: list[dict[str, float]] = []

    async def good(rate: float) -> bool:
        samples = await client.run(rate, seconds)
        share = sum(map(level.kept, samples)) / len(samples)
        tried.append({"rate": round(rate, 2), "kept": round(share, 3), "requests": len(samples)})
        return share >= GOOD_FRACTION

    low, high = 0.0, start
    while await good(high):
        low, high = high, 2 * high
    while low == 0.0:
        if await good(high / 2):
            low = high / 2
        else:
            high /= 2
            if high < 0.05:
                raise SystemExit("the endpoint keeps its service level at no rate, so there is nothing to overload")
    while high > 1.1 * low:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if await good(middle) else (low, middle)
    return low, tried


def phase(samples: list[Sample], level: Level, seconds: float) -> dict[str, Any]:
    """What came of one phase's requests."""
    accepted = [sample for sample in samples if sample.answered]
    other = Counter(
        sample.error or f"status {sample.status}" for sample in samples if not sample.answered and not sample.refused
    )
    refusal_seconds = [sample.ended - sample.sent for sample in samples if sample.refused]
    result: dict[str, Any] = {
        "requests": len(samples),
        "offered_per_second": round(len(samples) / seconds, 2),
        "accepted": len(accepted),
        "accepted_per_second": round(len(accepted) / seconds, 2),
        "refused": dict(Counter(str(sample.status) for sample in samples if sample.refused)),
        "otherwise_failed": dict(other),
        "kept_service_level": sum(map(level.kept, samples)),
    }
    for name, values in (
        ("time_to_first_token", [sample.to_first_token for sample in accepted]),
        ("end_to_end", [sample.to_end for sample in accepted]),
        ("time_to_refusal", refusal_seconds),
    ):
        if values:
            result[f"{name}_seconds"] = {f"p{p:g}": round(percentile(values, p), 4) for p in (50.0, 90.0, 99.0)}
    return result


def recovery(after: list[Sample], overload_ended: float, level: Level) -> float:
    """Seconds from the end of the overload until the last request that was refused, failed or late had been due."""
    bad = [sample.scheduled - overload_ended for sample in after if not level.kept(sample)]
    return round(max(0.0, *bad), 2) if bad else 0.0


async def measure(target: Target, level: Level, options: argparse.Namespace) -> dict[str, Any]:
    """The search and the three phases."""
    client = Client([target], Shape(options.words, options.tokens))
    await client.run(options.start_rate / 2, 3)
    rate, tried = await search(client, level, options.start_rate, options.search_seconds)
    half = rate / 2
    before = await client.run(half, options.seconds / 2)
    # The load after the overload begins when the overload ends, not when its last answer has come.
    began = time.monotonic()
    storm = asyncio.create_task(
        Client([target], client.shape, seed=2, number=client.number + 10**6).run(FACTOR * rate, options.seconds)
    )
    await asyncio.sleep(options.seconds)
    ended = began + options.seconds
    calm = Client([target], client.shape, seed=3, number=client.number + 2 * 10**6)
    after = await calm.run(half, 3 * RECOVERY_SECONDS)
    during = await storm
    return {
        "sustainable_rate_per_second": round(rate, 2),
        "search": tried,
        "before": phase(before, level, options.seconds / 2),
        "overload": phase(during, level, options.seconds),
        "after": phase(after, level, 3 * RECOVERY_SECONDS),
        "recovered_after_seconds": recovery(after, ended, level),
    }


def broken(record: dict[str, Any], level: Level) -> list[str]:
    """The bounds that were not kept."""
    overload, found = record["overload"], []
    if overload["otherwise_failed"]:
        found.append(f"failed otherwise than with 429 or 503 and Retry-After: {overload['otherwise_failed']}")
    if not overload["refused"]:
        found.append("nothing was refused, so it was no overload")
    for name, bound in (("time_to_first_token", level.ttft), ("end_to_end", level.end_to_end)):
        figure = overload.get(f"{name}_seconds", {}).get("p99", float("inf"))
        if figure > bound:
            found.append(f"P99 of {name} of what was accepted is {figure} s, {bound} s is promised")
    if record["recovered_after_seconds"] > RECOVERY_SECONDS:
        found.append(f"recovered after {record['recovered_after_seconds']} s, {RECOVERY_SECONDS} s are allowed")
    return found


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gateway", help="base URL of the gateway; without it a mock node and a gateway of its own")
    parser.add_argument("--ca-file", default="")
    parser.add_argument("--key-file", type=Path)
    parser.add_argument("--model", default="mock")
    parser.add_argument("--ttft", type=float, default=1.0, help="promised time to first token, seconds")
    parser.add_argument("--end-to-end", type=float, default=2.0, help="promised time to the end of the answer, seconds")
    parser.add_argument("--start-rate", type=float, default=8.0, help="where the search begins, requests/s")
    parser.add_argument("--search-seconds", type=float, default=12.0)
    parser.add_argument("--seconds", type=float, default=30.0, help="length of the overload")
    parser.add_argument("--words", type=int, default=48)
    parser.add_argument("--tokens", type=int, default=20)
    parser.add_argument("--slots", type=int, default=8, help="of the mock node, and requests that the gateway gives it")
    parser.add_argument("--queue", type=int, default=8, help="requests that wait in the gateway before the mock node")
    parser.add_argument("--prefill", type=float, default=0.1)
    parser.add_argument("--token", type=float, default=0.02)
    options = parser.parse_args()
    level = Level(options.ttft, options.end_to_end)
    record: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "cpus": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "endpoint": options.model,
        "service_level_seconds": {"time_to_first_token": level.ttft, "end_to_end": level.end_to_end},
        "factor": FACTOR,
    }
    if options.gateway:
        if not options.key_file:
            parser.error("--gateway needs --key-file")
        key = options.key_file.read_text().strip()
        target = Target("gateway", options.gateway, key, options.model, options.ca_file)
        record |= asyncio.run(measure(target, level, options))
    else:
        limits = {"node_requests": options.slots, "queue_requests": options.queue, "queue_seconds": 1}
        with mock_gateway(slots=options.slots, prefill=options.prefill, token=options.token, **limits) as (_, front):
            record |= asyncio.run(measure(front, level, options))
    record["broken"] = broken(record, level)
    print(json.dumps(record, indent=2))
    return 1 if record["broken"] else 0


if __name__ == "__main__":
    sys.exit(main())
