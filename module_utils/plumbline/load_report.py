"""What became of a load, as measurements. No opinion: limits and service levels are judged by the gate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .load_histogram import PERCENTILE_METHOD
from .load_spec import LoadSpec
from .load_tally import PERCENTS, Tally

MOST_SAMPLES = 5000
RATE_FRACTION = 0.9
"""An achieved rate below this fraction of the requested one makes a run invalid: its latencies describe a queue."""

LATENCIES = {
    "time_to_first_token": (50, 90, 99),
    "inter_token_latency": (50, 99),
    "end_to_end_latency": (50, 90, 99),
}


@dataclass
class Summary:
    """The figures of one load. Seconds, tokens per second, requests per second."""

    spec: LoadSpec
    total: Tally
    planned: int
    requested_rate: float | None
    achieved_rate: float | None
    tokens_per_second: float | None
    timeline: list[dict[str, Any]]
    invalid: str = ""
    conditions: dict[str, Any] = field(default_factory=dict)

    @property
    def succeeded(self) -> int:
        """Requests that were answered whole."""
        return self.total.counts["completed"]

    @property
    def failed(self) -> int:
        """Requests that were not, unsent ones too."""
        return self.planned - self.succeeded


def summarise(result: Mapping[str, Any], spec: LoadSpec, rate_fraction: float = RATE_FRACTION) -> Summary:
    """Work out the figures of a load from what its worker said.

    The achieved rate is that of the *ends* of the requests, failed ones too: in a steady state it equals the rate of the
    arrivals whatever the latency is; when the server cannot keep up it is the rate that the server can do.
    :raises ValueError: when the worker's answer is none.
    """
    total = Tally.from_json(result["total"])
    span = total.last_end - total.first_end
    # Tokens count from the first due time to the last end.
    busy = total.end - total.start
    summary = Summary(
        spec=spec,
        total=total,
        planned=int(result["planned"]) or total.counts["requested"],
        requested_rate=result["scheduled_rate"],
        achieved_rate=(total.all_ended - 1) / span if span > 0 else None,
        tokens_per_second=total.counts["output_tokens"] / busy if total.counts["completed"] and busy > 0 else None,
        timeline=_timeline(result["timeline"], total.start),
    )
    summary.invalid = _invalid(summary, rate_fraction)
    summary.conditions = _conditions(summary)
    return summary


def _invalid(summary: Summary, rate_fraction: float) -> str:
    """Return why the run does not show what was asked for, or nothing."""
    spec, total = summary.spec, summary.total
    unsent = summary.planned - total.counts["sent"]
    if unsent > 0:
        limit = f" within {spec.max_duration_seconds:g} s" if spec.max_duration_seconds else ""
        return (
            f"{unsent} of {summary.planned} requests were never sent{limit} and at most {spec.max_in_flight} in flight;"
            " lower the rate, or allow more of either"
        )
    if not summary.succeeded:
        return f"none of {summary.planned} requests succeeded ({_kinds(total.failed)}); first: {total.first_error or 'no detail'}"
    requested, achieved = summary.requested_rate, summary.achieved_rate
    if requested and achieved and achieved < rate_fraction * requested:
        return (
            f"the endpoint finished {achieved:.3g} requests/s where {requested:.3g}/s were sent (at least"
            f" {rate_fraction:.0%} is needed), so latencies describe a growing queue; ask for a lower rate"
        )
    return ""


def _kinds(errors: Mapping[str, int]) -> str:
    return ", ".join(f"{count} x {kind}" for kind, count in sorted(errors.items())) or "no error seen"


def _conditions(summary: Summary) -> dict[str, Any]:
    spec, total = summary.spec, summary.total
    done = max(1, summary.succeeded)
    lag = total.histograms["send_lag"]
    conditions = {
        "requests": summary.planned,
        "failed": summary.failed,
        "errors": dict(total.failed),
        "warmup_requests_excluded": max(1, spec.warmup_requests),
        "arrival": spec.arrival,
        "mean_prompt_tokens": round(total.counts["prompt_tokens"] / done, 1),
        "mean_output_tokens": round(total.counts["output_tokens"] / done, 1),
        "prompts": f"{len(spec.prompts)} of the user's, over and over" if spec.prompts else "real text, no two alike",
        "timed_from": "the scheduled send"
        if spec.arrival != "closed"
        else "the send: a closed loop does not see stalls",
        "send_lag_p99_seconds": round(lag.percentile(99), 6) if lag.count else None,
        "most_in_flight": total.most_in_flight,
        "seed": spec.seed,
        "client": "one event loop, streaming",
    }
    if spec.arrival == "closed":
        conditions["concurrency"] = spec.concurrency
    else:
        conditions["requested_rate_per_second"] = spec.rate_per_second
    if total.counts["output_tokens"] > total.counts["pieces"]:
        # The server sent several tokens at once: the gaps between pieces are then not those between tokens.
        conditions["tokens_per_piece"] = round(total.counts["output_tokens"] / max(1, total.counts["pieces"]), 2)
    return conditions


def _timeline(lines: Sequence[Mapping[str, Any]], start: float) -> list[dict[str, Any]]:
    """Return a few figures of each interval, for a plot."""
    timeline = []
    for line in lines:
        length = line["end"] - line["start"]
        # The last one may be cut off by the end, and says little then.
        if length <= 0 or length < 0.5 * (lines[0]["end"] - lines[0]["start"]):
            continue
        first, whole = line["time_to_first_token_seconds"], line["end_to_end_latency_seconds"]
        timeline.append(
            {
                "seconds": round(line["end"] - start, 3),
                "requested_per_second": round(line["requested"] / length, 3),
                "completed_per_second": round(line["completed"] / length, 3),
                "failed": sum(line["failed"].values()),
                "in_flight": line["in_flight"],
                "time_to_first_token_p50": first.get("p50"),
                "time_to_first_token_p99": first.get("p99"),
                "end_to_end_latency_p99": whole.get("p99"),
            }
        )
    return timeline


def measurements(summary: Summary, scope: str) -> list[dict[str, Any]]:
    """Return the measurements of a load. An invalid run yields errors in place of latencies and rates: never a flattering figure."""
    entries: list[dict[str, Any]] = []
    for name, percents in LATENCIES.items():
        histogram = summary.total.histograms[name]
        for percent in percents:
            entry = _entry(f"{name}_p{percent}", scope, "s", f"P{percent} of {histogram.count}", summary)
            entry["conditions"]["percentile_method"] = PERCENTILE_METHOD
            if not summary.invalid and histogram.count:
                entry["value"] = histogram.percentile(percent)
                # Once for each distribution, at its judged tail: the report draws one plot from it.
                if percent == 99:
                    entry["samples"] = histogram.spread(MOST_SAMPLES)
                    figures = zip(PERCENTS, histogram.percentiles(PERCENTS))
                    entry["conditions"]["percentiles_seconds"] = {
                        f"p{each:g}": round(value, 6) for each, value in figures
                    }
            elif not summary.invalid:
                entry["error"] = "no request gave enough tokens to time"
            entries.append(entry)
    throughput = _entry(
        "output_tokens_per_second",
        scope,
        "tokens/s",
        f"all tokens of {summary.succeeded} requests over the run",
        summary,
    )
    throughput["value"] = None if summary.invalid else summary.tokens_per_second
    entries.append(throughput)
    errors = _entry("request_error_fraction", scope, "fraction", f"failed of {summary.planned}", summary)
    # Judged even when the run is invalid: it is then often the reason.
    errors.update(error="", value=summary.failed / max(1, summary.planned))
    if summary.total.failed:
        errors["cause"] = f"{_kinds(summary.total.failed)}; first: {summary.total.first_error or 'no detail'}"
    entries.append(errors)
    return [*entries, _rate(summary, scope), _goodput(summary, scope), _lag(summary, scope)]


def _rate(summary: Summary, scope: str) -> dict[str, Any]:
    entry = _entry("achieved_request_rate", scope, "requests/s", f"ends of {summary.planned} requests", summary)
    if summary.achieved_rate is not None:
        entry.update(error="", value=summary.achieved_rate)
        if summary.requested_rate is not None:
            entry.update(limit=summary.requested_rate, limit_source="requested rate")
    elif not entry["error"]:
        entry["error"] = "a rate needs at least 2 finished requests"
    if len(summary.timeline) > 1:
        entry["conditions"]["timeline"] = summary.timeline
    return entry


def _goodput(summary: Summary, scope: str) -> dict[str, Any]:
    """Requests per second that were answered within the bounds of a good one; of an invalid run too, which it describes well."""
    slo = summary.spec.slo
    if not slo:
        return {"name": "goodput_request_rate", "scope": scope, "skipped": "no bounds of a good request were given"}
    bounds = ", ".join(f"{name[: -len('_seconds')].replace('_', ' ')} {value:g} s" for name, value in slo.items())
    good = summary.total.counts["good"]
    entry = _entry("goodput_request_rate", scope, "requests/s", f"{good} of {summary.planned} within {bounds}", summary)
    entry["error"] = ""
    seconds = summary.total.end - summary.total.start
    if summary.achieved_rate is not None:
        # As many of what ended, at the rate at which it ended.
        entry["value"] = summary.achieved_rate * good / max(1, summary.total.all_ended)
    else:
        entry["value"] = good / seconds if seconds > 0 else 0.0
    if summary.requested_rate is not None:
        entry.update(limit=summary.requested_rate, limit_source="requested rate")
    return entry


def _lag(summary: Summary, scope: str) -> dict[str, Any]:
    """How late the client itself was; it is in the latencies, and is not the endpoint's."""
    lag = summary.total.histograms["send_lag"]
    entry = _entry("client_send_lag_p99", scope, "s", f"P99 of {lag.count}", summary)
    if lag.count:
        entry.update(error="", value=lag.percentile(99))
    elif not entry["error"]:
        entry["error"] = "no request was sent"
    return entry


def decode_measurement(
    summary: Summary, scope: str, bytes_per_token: float | None, memory_bytes_per_second: float | None
) -> dict[str, Any]:
    """Return the decode rate of one stream beside what the memory allows.

    Every decoded token reads the active weights once, so a stream cannot be faster than memory bandwidth / bytes of active
    weights, however many streams share the step.
    """
    times = summary.total.histograms["time_per_output_token"]
    entry = _entry("stream_decode_tokens_per_second", scope, "tokens/s", f"median of {times.count} streams", summary)
    if not summary.invalid and times.count and times.percentile(50) > 0:
        entry["value"] = 1 / times.percentile(50)
        entry["samples"] = [1 / each for each in times.spread(MOST_SAMPLES) if each > 0]
    elif not summary.invalid:
        entry["error"] = "no request gave enough tokens to time"
    if bytes_per_token and memory_bytes_per_second:
        entry["limit"] = memory_bytes_per_second / bytes_per_token
        entry["limit_source"] = (
            f"{memory_bytes_per_second / 1e9:.1f} GB/s of memory bandwidth / {bytes_per_token / 1e9:.3f} GB of weights read for each token"
        )
    return entry


def sweep_measurement(sweep: Mapping[str, Any] | None, scope: str) -> dict[str, Any]:
    """Return the highest rate that held the service level, from what the worker said of its sweep; None: none was asked for."""
    if sweep is None:
        return {"name": "highest_rate_within_slo", "scope": scope, "skipped": "no sweep of rates was asked for"}
    steps, rate = list(sweep["steps"]), sweep["highest_rate"]
    entry: dict[str, Any] = {
        "name": "highest_rate_within_slo",
        "scope": scope,
        "unit": "requests/s",
        "statistic": f"highest of {len(steps)} rates",
        "conditions": {"sweep": steps, "ended": sweep["ended"]},
    }
    if rate:
        return {**entry, "value": rate}
    return {**entry, "error": f"no rate held the service level: {steps[-1]['why'] if steps else sweep['ended']}"}


def failed_measurements(scope: str, error: str, cause: str = "", next_command: str = "") -> list[dict[str, Any]]:
    """Return every measurement of a load that could not be applied at all, each with the error."""
    return [
        {"name": name, "scope": scope, "error": error, "cause": cause, "next_command": next_command} for name in names()
    ]


def skipped_measurements(scope: str, reason: str) -> list[dict[str, Any]]:
    """Return every measurement of a load that was not meant to be applied now, each with the reason."""
    return [{"name": name, "scope": scope, "skipped": reason} for name in names()]


def names() -> list[str]:
    """Return the names of all measurements of a load."""
    latencies = [f"{name}_p{percent}" for name, percents in LATENCIES.items() for percent in percents]
    return [
        *latencies,
        "output_tokens_per_second",
        "request_error_fraction",
        "achieved_request_rate",
        "goodput_request_rate",
        "client_send_lag_p99",
        "stream_decode_tokens_per_second",
        "highest_rate_within_slo",
    ]


def _entry(name: str, scope: str, unit: str, statistic: str, summary: Summary) -> dict[str, Any]:
    return {
        "name": name,
        "scope": scope,
        "value": None,
        "unit": unit,
        "statistic": statistic,
        "limit": None,
        "limit_source": "",
        "samples": [],
        "conditions": dict(summary.conditions),
        "skipped": "",
        "error": f"the run is invalid: {summary.invalid}" if summary.invalid else "",
        "cause": "",
    }
