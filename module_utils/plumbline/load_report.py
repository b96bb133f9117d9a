"""What a load's timings say, as measurements. No opinion: limits and service levels are judged by the gate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .latency_statistics import PERCENTILE_METHOD, percentile, thin
from .load_client import LoadResult
from .openai_client import Timing

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

    requests: int
    succeeded: int
    errors: dict[str, int]
    error_detail: str
    requested_rate: float | None
    achieved_rate: float | None
    tokens_per_second: float | None
    samples: dict[str, list[float]]
    stream_rates: list[float]
    send_lags: list[float]
    prompt_tokens: float
    output_tokens: float
    invalid: str = ""
    conditions: dict[str, Any] = field(default_factory=dict)


def _rate(times: Sequence[float]) -> float | None:
    """Events per second between the first and the last of them; None for fewer than two."""
    if len(times) < 2 or max(times) <= min(times):
        return None
    return (len(times) - 1) / (max(times) - min(times))


def summarise(result: LoadResult, rate_fraction: float = RATE_FRACTION) -> Summary:
    """Work out the figures of a load that was sent.

    The achieved rate is that of the *ends* of the requests, failed ones too: in a steady state it equals the rate of the
    arrivals whatever the latency is; when the server cannot keep up it is the rate that the server can do.
    """
    timings = result.timings
    good = [timing for timing in timings if timing.succeeded]
    failed = [timing for timing in timings if not timing.succeeded]
    requested = _rate(result.due)
    achieved = _rate([timing.ended for timing in timings if timing.ended is not None])
    end = max((timing.ended for timing in good if timing.ended is not None), default=None)
    summary = Summary(
        requests=len(result.due),
        succeeded=len(good),
        errors=dict(Counter(timing.error or "unfinished" for timing in failed)),
        error_detail=next((timing.detail for timing in failed if timing.detail), ""),
        requested_rate=requested,
        achieved_rate=achieved,
        tokens_per_second=sum(timing.output_tokens for timing in good) / (end - result.started)
        if end is not None
        else None,
        samples={
            "time_to_first_token": [timing.time_to_first_token for timing in good],
            "inter_token_latency": [gap for timing in good for gap in timing.inter_token],
            "end_to_end_latency": [timing.end_to_end for timing in good],
        },
        stream_rates=[rate for rate in (timing.decode_tokens_per_second for timing in good) if rate is not None],
        send_lags=[timing.sent - timing.scheduled for timing in timings if timing.sent is not None],
        prompt_tokens=_mean(good, "prompt_tokens"),
        output_tokens=_mean(good, "output_tokens"),
    )
    summary.invalid = _invalid(result, summary, rate_fraction)
    summary.conditions = _conditions(result, summary)
    return summary


def _mean(timings: Sequence[Timing], attribute: str) -> float:
    return round(sum(getattr(timing, attribute) for timing in timings) / len(timings), 1) if timings else 0.0


def _invalid(result: LoadResult, summary: Summary, rate_fraction: float) -> str:
    """Return why the run does not show what was asked for, or nothing."""
    if result.unsent:
        return (
            f"{result.unsent} of {len(result.due)} requests were never sent within {result.plan.max_duration_seconds:g} s and at most "
            f"{result.plan.max_in_flight} in flight; lower the rate, or allow more of either"
        )
    if not summary.succeeded:
        return f"none of {summary.requests} requests succeeded ({_kinds(summary.errors)}); first: {summary.error_detail or 'no detail'}"
    if (
        summary.requested_rate
        and summary.achieved_rate
        and summary.achieved_rate < rate_fraction * summary.requested_rate
    ):
        return (
            f"the endpoint finished {summary.achieved_rate:.3g} requests/s where {summary.requested_rate:.3g}/s were sent (at least "
            f"{rate_fraction:.0%} is needed), so latencies describe a growing queue; ask for a lower rate"
        )
    return ""


def _kinds(errors: dict[str, int]) -> str:
    return ", ".join(f"{count} x {kind}" for kind, count in sorted(errors.items())) or "no error seen"


def _conditions(result: LoadResult, summary: Summary) -> dict[str, Any]:
    plan = result.plan
    return {
        "requests": summary.requests,
        "failed": summary.requests - summary.succeeded,
        "errors": summary.errors,
        "warmup_requests_excluded": max(1, plan.warmup_requests),
        "arrival": plan.arrival,
        "requested_rate_per_second": plan.rate_per_second,
        "mean_prompt_tokens": summary.prompt_tokens,
        "mean_output_tokens": summary.output_tokens,
        "timed_from": "the scheduled send",
        "send_lag_p99_seconds": round(percentile(summary.send_lags, 99), 6) if summary.send_lags else None,
        "most_in_flight": result.most_in_flight,
        "seed": plan.seed,
        "client": "open loop, one thread a request, streaming",
    }


def measurements(summary: Summary, scope: str) -> list[dict[str, Any]]:
    """Return the measurements of a load. An invalid run yields errors in place of latencies and rates: never a flattering figure."""
    entries: list[dict[str, Any]] = []
    for name, percents in LATENCIES.items():
        samples = summary.samples[name]
        for percent in percents:
            entry = _entry(f"{name}_p{percent}", scope, "s", f"P{percent} of {len(samples)}", summary)
            entry["conditions"]["percentile_method"] = PERCENTILE_METHOD
            if not summary.invalid and samples:
                entry["value"] = percentile(samples, percent)
                # Once for each distribution, at its judged tail: the report draws one plot from it.
                entry["samples"] = thin(samples, MOST_SAMPLES) if percent == 99 else []
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
    errors = _entry("request_error_fraction", scope, "fraction", f"failed of {summary.requests}", summary)
    # Judged even when the run is invalid: it is then often the reason.
    errors.update(error="", value=(summary.requests - summary.succeeded) / summary.requests)
    if summary.errors:
        errors["cause"] = f"{_kinds(summary.errors)}; first: {summary.error_detail or 'no detail'}"
    entries.append(errors)
    rate = _entry("achieved_request_rate", scope, "requests/s", f"ends of {summary.requests} requests", summary)
    if summary.achieved_rate is not None:
        rate.update(error="", value=summary.achieved_rate, limit=summary.requested_rate, limit_source="requested rate")
    elif not rate["error"]:
        rate["error"] = "a rate needs at least 2 finished requests"
    entries.append(rate)
    return entries


def decode_measurement(
    summary: Summary, scope: str, bytes_per_token: float | None, memory_bytes_per_second: float | None
) -> dict[str, Any]:
    """Return the decode rate of one stream beside what the memory allows.

    Every decoded token reads the active weights once, so a stream cannot be faster than memory bandwidth / bytes of active
    weights, however many streams share the step.
    """
    entry = _entry(
        "stream_decode_tokens_per_second", scope, "tokens/s", f"median of {len(summary.stream_rates)} streams", summary
    )
    if not summary.invalid and summary.stream_rates:
        entry["value"] = percentile(summary.stream_rates, 50)
        entry["samples"] = thin(summary.stream_rates, MOST_SAMPLES)
    elif not summary.invalid:
        entry["error"] = "no request gave enough tokens to time"
    if bytes_per_token and memory_bytes_per_second:
        entry["limit"] = memory_bytes_per_second / bytes_per_token
        entry["limit_source"] = (
            f"{memory_bytes_per_second / 1e9:.1f} GB/s of memory bandwidth / {bytes_per_token / 1e9:.3f} GB of weights read for each token"
        )
    return entry


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
        "stream_decode_tokens_per_second",
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
