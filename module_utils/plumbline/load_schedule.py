"""When each request of an open-loop load is due. The schedule is made before the load and never waits for an answer."""

from __future__ import annotations

import random
from collections.abc import Iterator

ARRIVALS = ("constant", "poisson")


def due_offsets(arrival: str, rate_per_second: float, requests: int, seed: int) -> list[float]:
    """Return for every request the seconds from the start of the load at which it is due; the first is due at 0.

    `constant` spaces them evenly. `poisson` draws the gaps from the exponential distribution (memoryless arrivals of
    independent users), the same for the same seed, and scales them so that the whole load has exactly the rate: thirty
    random gaps alone easily miss it by a fifth.

    :raises ValueError: for an unknown arrival process, or a rate or count that is not positive.
    """
    if arrival not in ARRIVALS:
        raise ValueError(f"the arrival process is one of {', '.join(ARRIVALS)}, not {arrival!r}")
    if not rate_per_second > 0:
        raise ValueError(f"the request rate is more than 0 per second, not {rate_per_second}")
    if requests < 1:
        raise ValueError(f"a load has at least 1 request, not {requests}")
    if arrival == "constant":
        return [index / rate_per_second for index in range(requests)]
    generator = random.Random(seed)  # noqa: S311  a load must be repeatable, not secret
    offsets = [0.0]
    for _ in range(requests - 1):
        offsets.append(offsets[-1] + generator.expovariate(rate_per_second))
    scale = (requests - 1) / rate_per_second / offsets[-1] if requests > 1 else 1.0
    return [offset * scale for offset in offsets]


def endless_offsets(arrival: str, rate_per_second: float, seed: int) -> Iterator[float]:
    """Yield for one request after the other the seconds from the start at which it is due, for a load that ends by time.

    As `due_offsets`, but the rate of random gaps is only that of the long run.
    :raises ValueError: for an unknown arrival process, or a rate that is not positive.
    """
    due_offsets(arrival, rate_per_second, 1, seed)
    generator = random.Random(seed)  # noqa: S311  a load must be repeatable, not secret
    index, offset = 0, 0.0
    while True:
        yield offset
        index += 1
        # Not summed up where they are even: a rounding error times a million requests is a drift.
        offset = index / rate_per_second if arrival == "constant" else offset + generator.expovariate(rate_per_second)
