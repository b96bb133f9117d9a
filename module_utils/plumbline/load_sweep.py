"""Finds the highest request rate that holds a service level.

Each rate is a load of its own, and all of its answers are awaited before the next, so that no rate inherits another's queue.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from .load_run import Load, Outcome
from .load_spec import LoadSpec
from .load_sweep_plan import Sweep, next_rate, patience_seconds, requests_of
from .load_tally import Tally


def judge(total: Tally, outcome: Outcome, sweep: Sweep) -> str:
    """Return why a rate did not hold the service level; empty when it did."""
    planned = outcome.planned
    failed = planned - total.counts["completed"]
    if failed > sweep.error_fraction * planned:
        return f"{failed} of {planned} requests failed; first: {total.first_error or 'not sent in time'}"
    span = total.last_end - total.first_end
    achieved = (total.all_ended - 1) / span if span > 0 else 0.0
    asked = outcome.scheduled_rate or 0.0
    if achieved < sweep.rate_fraction * asked:
        return f"{achieved:.3g} requests/s ended where {asked:.3g}/s were sent"
    for name, bound in sweep.bounds:
        base, _, percent = name.rpartition("_p")
        histogram = total.histograms[base]
        value = histogram.percentile(int(percent)) if histogram.count else 0.0
        if value > bound:
            return f"{base.replace('_', ' ')} P{percent} {value:.3g} s, at most {bound:g} s is promised"
    return ""


async def run_sweep(spec: LoadSpec, sweep: Sweep) -> dict[str, Any]:
    """Search, beginning at the spec's rate; return the rates tried and the highest that held (0 when none did)."""
    steps: list[dict[str, Any]] = []
    number = spec.first_prompt
    ended = "no rate held"
    while (rate := next_rate(steps, spec.rate_per_second, sweep)) is not None:
        requests = requests_of(rate, sweep)
        step = replace(
            spec,
            rate_per_second=rate,
            requests=requests,
            duration_seconds=0.0,
            interval_seconds=0.0,
            max_duration_seconds=patience_seconds(rate, sweep),
            first_prompt=number,
        )
        number += requests + 100
        outcome = await Load(step).run()
        if outcome.warmup_error:
            ended = f"no warm-up request succeeded: {outcome.warmup_error}"
            break
        steps.append(_step(rate, outcome, sweep))
    held = [float(each["rate"]) for each in steps if each["held"]]
    if held:
        missed = [float(each["rate"]) for each in steps if not each["held"]]
        above = min((rate for rate in missed if rate > max(held)), default=None)
        ended = f"{above:g} requests/s did not hold" if above else "no rate that was tried did not hold"
    return {"steps": steps, "highest_rate": max(held, default=0.0), "ended": ended}


def _step(rate: float, outcome: Outcome, sweep: Sweep) -> dict[str, Any]:
    total = outcome.total
    why = judge(total, outcome, sweep)
    span = total.last_end - total.first_end
    figures = {
        f"{base}_p{percent}": round(total.histograms[base].percentile(percent), 6)
        for base, percent in (("time_to_first_token", 50), ("time_to_first_token", 99), ("end_to_end_latency", 99))
        if total.histograms[base].count
    }
    return {
        "rate": round(rate, 4),
        "held": not why,
        "why": why,
        "requests": outcome.planned,
        "achieved_rate": round((total.all_ended - 1) / span, 4) if span > 0 else 0.0,
        "output_tokens_per_second": round(total.counts["output_tokens"] / max(outcome.seconds, 1e-9), 2),
        "failed": sum(total.failed.values()),
        **figures,
    }
