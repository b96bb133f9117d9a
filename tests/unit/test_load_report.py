"""What a load is reported as: figures where they are true, errors where they would flatter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.load_report import (
    decode_measurement,
    failed_measurements,
    measurements,
    names,
    skipped_measurements,
    summarise,
    sweep_measurement,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.load_spec import LoadSpec
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.load_tally import Tally


@dataclass
class Request:
    """One request as it went: seconds after the start of the load, which is 100 on every clock."""

    due: float
    first: float = 0.5
    gap: float = 0.1
    tokens: int = 4
    late: float = 0.0
    error: str = ""
    detail: str = ""

    @property
    def end(self) -> float:
        return self.due + self.late + (0.001 if self.error else self.first + self.gap * (self.tokens - 1))


SPEC = LoadSpec(
    "http://x/v1", rate_per_second=2, requests=20, slo={"end_to_end_latency_seconds": 1.0}, max_duration_seconds=600
)


def result_of(requests: Sequence[Request], planned: int | None = None, rate: float = 2.0) -> dict[str, Any]:
    tally = Tally(100.0)
    for request in sorted(requests, key=lambda each: each.end):
        tally.counts["requested"] += 1
        tally.counts["sent"] += 1
        tally.ended(100 + request.end)
        tally.histograms["send_lag"].record(request.late)
        if request.error:
            tally.fail(request.error, request.detail)
            continue
        first, whole = request.first + request.late, request.end - request.due
        tally.counts.update(completed=1, prompt_tokens=64, output_tokens=request.tokens, pieces=request.tokens)
        tally.counts["good"] += whole <= SPEC.slo["end_to_end_latency_seconds"]
        tally.histograms["time_to_first_token"].record(first)
        tally.histograms["end_to_end_latency"].record(whole)
        tally.histograms["inter_token_latency"].record_all([request.gap] * (request.tokens - 1))
        if request.tokens > 1:
            tally.histograms["time_per_output_token"].record(request.gap)
    tally.end = tally.last_end
    return {
        "total": tally.to_json(),
        "timeline": [],
        "planned": len(requests) if planned is None else planned,
        "scheduled_rate": rate,
    }


def steady(**changes: Any) -> dict[str, Any]:
    return result_of([Request(index / 2, **changes) for index in range(20)])


def by_name(result: dict[str, Any], spec: LoadSpec = SPEC) -> dict[str, dict[str, Any]]:
    return {entry["name"]: entry for entry in measurements(summarise(result, spec), "endpoint")}


def test_figures_of_a_steady_run() -> None:
    found = by_name(steady())
    assert found["time_to_first_token_p50"]["value"] == pytest.approx(0.5, rel=1e-3)
    assert found["inter_token_latency_p99"]["value"] == pytest.approx(0.1, rel=1e-3)
    assert found["end_to_end_latency_p90"]["value"] == pytest.approx(0.8, rel=1e-3)
    # 80 tokens from 0 s to 9.5 + 0.8 s.
    assert found["output_tokens_per_second"]["value"] == pytest.approx(80 / 10.3)
    assert found["achieved_request_rate"]["value"] == pytest.approx(2.0)
    assert found["achieved_request_rate"]["limit"] == pytest.approx(2.0)
    assert found["goodput_request_rate"]["value"] == pytest.approx(2.0)
    assert found["request_error_fraction"]["value"] == 0
    assert all(entry["error"] == "" for entry in found.values())
    assert {entry["unit"] for entry in found.values()} == {"s", "tokens/s", "requests/s", "fraction"}
    assert len(found["inter_token_latency_p99"]["samples"]) == 60
    assert found["inter_token_latency_p50"]["samples"] == []
    assert found["end_to_end_latency_p99"]["statistic"] == "P99 of 20"
    assert "type 7" in found["end_to_end_latency_p99"]["conditions"]["percentile_method"]
    assert set(found["end_to_end_latency_p99"]["conditions"]["percentiles_seconds"]) == {
        "p50",
        "p90",
        "p95",
        "p99",
        "p99.9",
    }


def test_a_late_send_counts_against_the_endpoint_and_is_recorded() -> None:
    found = by_name(steady(late=0.3))
    assert found["time_to_first_token_p50"]["value"] == pytest.approx(0.8, rel=1e-3)
    assert found["time_to_first_token_p50"]["conditions"]["send_lag_p99_seconds"] == pytest.approx(0.3, rel=1e-3)
    assert found["client_send_lag_p99"]["value"] == pytest.approx(0.3, rel=1e-3)
    assert found["goodput_request_rate"]["value"] == 0  # 1.1 s each, where 1 s is good
    assert "0 of 20 within end to end latency 1 s" in found["goodput_request_rate"]["statistic"]


def test_a_saturated_endpoint_makes_the_run_invalid() -> None:
    """Answers end at 1 per second where 2 per second were sent: the latencies describe a growing queue."""
    found = by_name(result_of([Request(index / 2, 0.5 + index * 0.5) for index in range(20)]))
    for name in (
        "time_to_first_token_p50",
        "end_to_end_latency_p99",
        "inter_token_latency_p50",
        "output_tokens_per_second",
    ):
        assert found[name]["value"] is None
        assert "the run is invalid" in found[name]["error"]
        assert "1 requests/s where 2/s" in found[name]["error"]
    assert found["achieved_request_rate"]["value"] == pytest.approx(1.0)
    assert found["request_error_fraction"]["value"] == 0
    assert found["request_error_fraction"]["error"] == ""
    # Only the first was answered within a second; 1 in 20 of what ended, at one a second.
    assert found["goodput_request_rate"]["value"] == pytest.approx(0.05)


def test_latency_alone_does_not_make_a_run_invalid() -> None:
    """Ten seconds each, but as many end as begin: the rate was held."""
    found = by_name(steady(first=10))
    assert found["achieved_request_rate"]["value"] == pytest.approx(2.0)
    assert found["time_to_first_token_p50"]["value"] == pytest.approx(10, rel=1e-3)


def test_failed_requests_are_kept_apart() -> None:
    # Refused in no time: were these counted, the latency would look better.
    busy = {"error": "http_503", "detail": "busy"}
    found = by_name(result_of([Request(index / 2, **(busy if index in (3, 4) else {})) for index in range(20)]))
    assert found["request_error_fraction"]["value"] == pytest.approx(0.1)
    assert found["request_error_fraction"]["cause"] == "2 x http_503; first: http_503: busy"
    assert found["end_to_end_latency_p50"]["value"] == pytest.approx(0.8, rel=1e-3)
    assert found["end_to_end_latency_p50"]["statistic"] == "P50 of 18"
    assert found["output_tokens_per_second"]["value"] == pytest.approx(72 / 10.3)
    assert found["end_to_end_latency_p50"]["conditions"]["errors"] == {"http_503": 2}
    assert found["goodput_request_rate"]["value"] == pytest.approx(1.8, rel=0.02)


def test_no_request_succeeded() -> None:
    found = by_name(result_of([Request(index, error="connection", detail="refused") for index in range(4)], rate=1))
    assert found["request_error_fraction"]["value"] == 1
    assert "none of 4 requests succeeded (4 x connection)" in found["end_to_end_latency_p99"]["error"]
    assert found["end_to_end_latency_p99"]["value"] is None


def test_requests_that_were_never_sent_make_the_run_invalid() -> None:
    found = by_name(result_of([Request(index / 2) for index in range(5)], planned=20))
    assert "15 of 20 requests were never sent within 600 s" in found["time_to_first_token_p99"]["error"]
    assert found["request_error_fraction"]["value"] == 0.75


def test_answers_of_one_token_have_no_inter_token_latency() -> None:
    found = by_name(steady(tokens=1))
    assert found["inter_token_latency_p50"]["error"] == "no request gave enough tokens to time"
    assert found["time_to_first_token_p50"]["value"] == pytest.approx(0.5, rel=1e-3)


def test_several_tokens_at_once_are_told() -> None:
    result = steady()
    assert "tokens_per_piece" not in by_name(result)["inter_token_latency_p99"]["conditions"]
    result["total"]["output_tokens"] *= 2
    assert by_name(result)["inter_token_latency_p99"]["conditions"]["tokens_per_piece"] == 2


def test_the_time_line_is_kept_for_the_report() -> None:
    result = steady()
    result["timeline"] = [{**result["total"], "start": 100.0 + 5 * part, "end": 105.0 + 5 * part} for part in (0, 1)]
    conditions = by_name(result)["achieved_request_rate"]["conditions"]
    assert [point["seconds"] for point in conditions["timeline"]] == [5, 10]
    assert conditions["timeline"][0]["completed_per_second"] == 4
    assert "timeline" not in by_name(steady())["achieved_request_rate"]["conditions"]


def test_no_goodput_without_bounds() -> None:
    entry = by_name(steady(), LoadSpec("http://x/v1", rate_per_second=2, requests=20))["goodput_request_rate"]
    assert entry["skipped"] == "no bounds of a good request were given"


def test_the_limit_of_the_decode_rate() -> None:
    summary = summarise(steady(), SPEC)
    entry = decode_measurement(summary, "endpoint", 5.38e8, 2.0e10)
    assert entry["value"] == pytest.approx(10, rel=1e-3)  # 3 gaps of 0.1 s for 3 tokens
    assert entry["limit"] == pytest.approx(2.0e10 / 5.38e8)
    assert "20.0 GB/s" in entry["limit_source"]
    assert decode_measurement(summary, "endpoint", None, 2.0e10)["limit"] is None


def test_a_sweep_names_the_highest_rate_that_held() -> None:
    steps = [{"rate": 2, "held": True, "why": ""}, {"rate": 4, "held": False, "why": "too slow"}]
    entry = sweep_measurement({"steps": steps, "highest_rate": 2, "ended": "4 requests/s did not hold"}, "e")
    assert (entry["value"], entry["unit"], entry["conditions"]["sweep"]) == (2, "requests/s", steps)
    none = sweep_measurement({"steps": steps[1:], "highest_rate": 0, "ended": ""}, "e")
    assert none["error"] == "no rate held the service level: too slow"
    assert sweep_measurement(None, "e")["skipped"]


def test_a_workers_answer_that_is_none_is_told() -> None:
    result = steady()
    del result["total"]["histograms"]["send_lag"]
    with pytest.raises(ValueError, match="a line of a load's output was expected"):
        summarise(result, SPEC)


def test_what_could_not_be_measured_is_named_completely() -> None:
    reported = [entry["name"] for entry in measurements(summarise(steady(), SPEC), "e")]
    assert [*reported, "stream_decode_tokens_per_second", "highest_rate_within_slo"] == names()
    assert [entry["name"] for entry in failed_measurements("e", "down")] == names()
    assert all(entry["error"] == "down" for entry in failed_measurements("e", "down"))
    assert all(entry["skipped"] == "check mode" for entry in skipped_measurements("e", "check mode"))
