"""The load client on the command line: `plumbline-benchmark URL --rate 2 --requests 200`."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .load_report import Summary, summarise
from .load_spec import LoadSpec, read_spec
from .load_sweep_plan import read_sweep
from .load_tally import PERCENTS

_EXAMPLES = """
examples:
  plumbline-benchmark http://127.0.0.1:8000/v1 --rate 2 --requests 200
  plumbline-benchmark https://llm.example/v1 --arrival poisson --rate 5 --duration 60 --slo end_to_end_latency=3
  plumbline-benchmark http://127.0.0.1:8000/v1 --rate 1 --duration 30 --sweep time_to_first_token_p99=0.5
  plumbline-benchmark http://127.0.0.1:8000/v1 --arrival closed --concurrency 8 --requests 100 --prompts mine.jsonl

The key is read from PLUMBLINE_API_KEY or --api-key-file, never from the command line, which others can see.
exit status: 0 a valid run; 1 an invalid one, or no answer, one sentence says why; 2 wrong usage.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Apply a load, print what came of it, and return the exit status."""
    parser = _parser()
    given = parser.parse_args(arguments)
    try:
        job = _job(given)
        checked = dict(job)
        sweep = checked.pop("sweep", None)
        spec = read_spec(checked)
        spec.target()
        if sweep:
            read_sweep(sweep)
    except ValueError as error:
        print(f"plumbline-benchmark: {error}", file=sys.stderr)
        return 2
    try:
        from .load_worker import measure  # noqa: PLC0415 - it needs aiohttp, which the help does not
    except ModuleNotFoundError as error:
        print(
            f"plumbline-benchmark: {sys.executable} has no {error.name}: set PLUMBLINE_PYTHON to one that has",
            file=sys.stderr,
        )
        return 1
    result = measure(job)
    if result["warmup_error"]:
        print(f"plumbline-benchmark: no request was answered: {result['warmup_error']}", file=sys.stderr)
        return 1
    summary = summarise(result, spec, given.minimum_rate_fraction)
    try:
        if given.output:
            Path(given.output).write_text(json.dumps(_record(result, summary), indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        print(f"plumbline-benchmark: {given.output} cannot be written: {error}", file=sys.stderr)
        return 1
    if given.json:
        print(json.dumps(_record(result, summary)))
    else:
        print(_text(result, summary))
    return 1 if summary.invalid else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="plumbline-benchmark",
        description="Measure latency, throughput and errors of an OpenAI-compatible endpoint, each request timed from when it was due.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("base_url", metavar="URL", help="like http://127.0.0.1:8000/v1")
    parser.add_argument("--api-key-file", metavar="FILE", help="file with the key")
    parser.add_argument("--ca-file", default="", metavar="FILE", help="CA certificates for https")
    parser.add_argument("--model", default="", help="the first that the endpoint lists")
    parser.add_argument("--arrival", choices=("constant", "poisson", "closed"), default="constant")
    parser.add_argument("--rate", type=float, default=0.0, metavar="PER_SECOND", help="requests per second")
    parser.add_argument("--concurrency", type=int, default=0, metavar="USERS", help="of --arrival closed")
    parser.add_argument("--requests", type=int, default=0, help="how many; or --duration")
    parser.add_argument("--duration", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--warmup-requests", type=int, default=1)
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--prompts", default="", metavar="FILE", help="JSONL of your own, sent in turn")
    parser.add_argument(
        "--respect-eos", action="store_true", help="answers end where the model ends them (servers other than vLLM)"
    )
    parser.add_argument("--timeout", type=float, default=120.0, metavar="SECONDS", help="of a request")
    parser.add_argument("--max-in-flight", type=int, default=4096)
    parser.add_argument("--minimum-rate-fraction", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--slo", action="append", default=[], metavar="LATENCY=SECONDS", help="bound of a good request, several times"
    )
    parser.add_argument(
        "--sweep",
        action="append",
        default=[],
        metavar="LATENCY_P99=SECONDS",
        help="find the highest rate that keeps it, several times",
    )
    parser.add_argument("--sweep-seconds", type=float, default=30.0, metavar="SECONDS", help="of each rate")
    parser.add_argument("--output", metavar="FILE", help="all of it as JSON, histograms and time line too")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _job(given: argparse.Namespace) -> dict[str, Any]:
    """Return the load as the worker takes it.

    :raises ValueError: when a bound is none.
    """
    job: dict[str, Any] = {
        "base_url": given.base_url,
        "ca_file": given.ca_file,
        "model": given.model,
        "arrival": given.arrival,
        "rate_per_second": given.rate,
        "concurrency": given.concurrency,
        "requests": given.requests,
        "duration_seconds": given.duration,
        "warmup_requests": given.warmup_requests,
        "prompt_tokens": given.prompt_tokens,
        "output_tokens": given.output_tokens,
        "prompts_file": given.prompts,
        "ignore_eos": not given.respect_eos,
        "request_timeout_seconds": given.timeout,
        "max_in_flight": given.max_in_flight,
        "seed": given.seed,
        "first_prompt": int(time.time()),
        "interval_seconds": 1,
        "slo": {f"{name}_seconds": bound for name, bound in map(_bound, given.slo)},
    }
    if given.api_key_file:
        job["api_key_file"] = given.api_key_file
    else:
        job["api_key"] = os.environ.get("PLUMBLINE_API_KEY", "")
    if given.sweep:
        job["sweep"] = {"seconds": given.sweep_seconds, "bounds": dict(map(_bound, given.sweep))}
        if given.arrival == "closed":
            raise ValueError("a sweep looks for a rate, which arrival closed has none of: choose constant or poisson")
    return job


def _bound(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        return name, float(value)
    except ValueError as error:
        raise ValueError(f"a bound is like end_to_end_latency=3, in seconds; {text!r} was found") from error


def _record(result: Mapping[str, Any], summary: Summary) -> dict[str, Any]:
    return {
        "invalid": summary.invalid,
        "requested_rate": summary.requested_rate,
        "achieved_rate": summary.achieved_rate,
        "output_tokens_per_second": summary.tokens_per_second,
        "good_fraction": summary.total.counts["good"] / max(1, summary.planned) if summary.spec.slo else None,
        "conditions": summary.conditions,
        "total": result["total"],
        "timeline": summary.timeline,
        "sweep": result.get("sweep"),
    }


def _text(result: Mapping[str, Any], summary: Summary) -> str:
    """Return the figures for a terminal."""
    spec, total = summary.spec, summary.total
    lines = [_headline(spec, summary)]
    if summary.invalid:
        lines.append(f"INVALID: {summary.invalid}")
    head = "".join(f"{f'P{percent:g}':>11}" for percent in PERCENTS)
    lines += ["", f"{'milliseconds':<24}{head}{'longest':>11}"]
    for name, histogram in total.histograms.items():
        if histogram.count:
            figures = [*histogram.percentiles(PERCENTS), histogram.maximum]
            lines.append(f"{name.replace('_', ' '):<24}" + "".join(f"{value * 1000:>11.2f}" for value in figures))
    lines += ["", f"answered {summary.succeeded} of {summary.planned}, {total.counts['output_tokens']} tokens"]
    if summary.tokens_per_second:
        lines[-1] += f", {summary.tokens_per_second:.1f} tokens/s"
    if summary.achieved_rate is not None:
        asked = f" of {summary.requested_rate:.4g} requested" if summary.requested_rate else ""
        lines.append(f"rate {summary.achieved_rate:.4g} requests/s{asked}")
    if spec.slo:
        lines.append(f"good {total.counts['good']} of {summary.planned} within the bounds")
    if total.failed:
        kinds = ", ".join(f"{count} x {kind}" for kind, count in sorted(total.failed.items()))
        lines.append(f"failed {kinds}; first: {total.first_error}")
    if sweep := result.get("sweep"):
        lines += _sweep_lines(sweep)
    return "\n".join(lines)


def _headline(spec: LoadSpec, summary: Summary) -> str:
    conditions = summary.conditions
    how = (
        f"{spec.concurrency} users, closed loop"
        if spec.arrival == "closed"
        else f"{spec.rate_per_second:g} requests/s, {spec.arrival}"
    )
    return f"{how}; {conditions['mean_prompt_tokens']:g} tokens in, {conditions['mean_output_tokens']:g} out"


def _sweep_lines(sweep: Mapping[str, Any]) -> list[str]:
    lines = ["", "rates tried:"]
    for step in sorted(sweep["steps"], key=lambda each: float(each["rate"])):
        lines.append(f"  {step['rate']:>9.4g} requests/s  {'held' if step['held'] else step['why']}")
    highest = sweep["highest_rate"]
    found = f"{highest:.4g} requests/s" if highest else "none"
    return [*lines, f"highest rate that held: {found} ({sweep['ended']})"]


if __name__ == "__main__":
    sys.exit(main())
