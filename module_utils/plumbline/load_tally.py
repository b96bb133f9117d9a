"""What became of the requests of a stretch of time: counts and histograms that add up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from .load_histogram import Histogram

LATENCIES = (
    "time_to_first_token",
    "inter_token_latency",
    "time_per_output_token",
    "end_to_end_latency",
    "send_lag",
)
PERCENTS = (50, 90, 95, 99, 99.9)
COUNTS = ("requested", "sent", "completed", "good", "abandoned", "resent", "prompt_tokens", "output_tokens", "pieces")


class Tally:
    """Counts and latencies of one stretch. Times are in seconds; `start` and `end` are those of the wall clock."""

    def __init__(self, start: float) -> None:
        """Start empty at a time."""
        self.start, self.end = start, start
        self.counts: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.first_error = ""
        self.histograms = {name: Histogram() for name in LATENCIES}
        # Of all that ended, well or not, on the monotonic clock.
        self.first_end, self.last_end = 0.0, 0.0
        self.in_flight, self.most_in_flight = 0, 0
        self.client_cpu_seconds = 0.0

    def ended(self, now: float) -> None:
        """Note that a request ended."""
        self.first_end = self.first_end or now
        self.last_end = now

    def fail(self, kind: str, detail: str) -> None:
        """Count a failed request, which is in no latency."""
        self.failed[kind] += 1
        self.first_error = self.first_error or (f"{kind}: {detail}" if detail else kind)

    @property
    def all_ended(self) -> int:
        """Requests that ended, well or not."""
        return self.counts["completed"] + sum(self.failed.values())

    def add(self, other: Tally) -> None:
        """Take in a later stretch."""
        self.end = other.end
        self.counts.update(other.counts)
        self.failed.update(other.failed)
        self.first_error = self.first_error or other.first_error
        for name, histogram in other.histograms.items():
            self.histograms[name].add(histogram)
        self.first_end = self.first_end or other.first_end
        self.last_end = other.last_end or self.last_end
        self.in_flight = other.in_flight
        self.most_in_flight = max(self.most_in_flight, other.most_in_flight)
        self.client_cpu_seconds += other.client_cpu_seconds

    def to_json(self) -> dict[str, Any]:
        """Return it as one line of a worker's output has it."""
        return {
            "start": round(self.start, 3),
            "end": round(self.end, 3),
            **{name: self.counts[name] for name in COUNTS},
            "failed": dict(self.failed),
            "first_error": self.first_error,
            "in_flight": self.in_flight,
            "most_in_flight": self.most_in_flight,
            "client_cpu_seconds": round(self.client_cpu_seconds, 3),
            **{f"{name}_seconds": _figures(histogram) for name, histogram in self.histograms.items()},
            "histograms": {name: histogram.encode() for name, histogram in self.histograms.items()},
            "first_end": self.first_end,
            "last_end": self.last_end,
        }

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> Tally:
        """Return the tally of such a line.

        :raises ValueError: when it is none.
        """
        try:
            tally = cls(float(line["start"]))
            tally.end = float(line["end"])
            tally.counts.update({name: int(line[name]) for name in COUNTS})
            tally.failed.update({str(kind): int(count) for kind, count in line["failed"].items()})
            tally.first_error = str(line["first_error"])
            tally.in_flight, tally.most_in_flight = int(line["in_flight"]), int(line["most_in_flight"])
            tally.client_cpu_seconds = float(line["client_cpu_seconds"])
            tally.first_end, tally.last_end = float(line["first_end"]), float(line["last_end"])
            tally.histograms = {name: Histogram.decode(line["histograms"][name]) for name in LATENCIES}
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"a line of a load's output was expected: {type(error).__name__} {error}") from error
        return tally


def _figures(histogram: Histogram) -> dict[str, Any]:
    if not histogram.count:
        return {"count": 0}
    percentiles = zip(PERCENTS, histogram.percentiles(PERCENTS))
    return {
        "count": histogram.count,
        "mean": round(histogram.mean, 6),
        **{f"p{percent:g}": round(value, 6) for percent, value in percentiles},
        "max": round(histogram.maximum, 6),
    }
