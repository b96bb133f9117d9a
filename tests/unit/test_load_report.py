"""What a load's timings are reported as: figures where they are true, errors where they would flatter."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.load_client import LoadPlan, LoadResult
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.load_report import (
    decode_measurement,
    failed_measurements,
    measurements,
    names,
    skipped_measurements,
    summarise,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.openai_client import Timing


def plan(rate: float, requests: int) -> LoadPlan:
    return LoadPlan("constant", rate, requests, 1, 64, 4, True, 60, 600, 64, 1, 0)


def timing(number: int, due: float, first: float, gap: float, *, tokens: int = 4, late: float = 0.0) -> Timing:
    times = [due + late + first + gap * index for index in range(tokens)]
    return Timing(number, due, due + late, times, times[-1], 64, tokens)


def result_of(timings: list[Timing], rate: float = 2.0, requests: int | None = None) -> LoadResult:
    count = len(timings) if requests is None else requests
    return LoadResult(plan(rate, count), [index / rate for index in range(count)], timings, started=100.0)


def steady(count: int = 20, rate: float = 2.0) -> LoadResult:
    return result_of([timing(index, 100 + index / rate, 0.5, 0.1) for index in range(count)], rate)


def by_name(result: LoadResult) -> dict[str, dict[str, Any]]:
    return {entry["name"]: entry for entry in measurements(summarise(result), "endpoint")}


def test_figures_of_a_steady_run() -> None:
    found = by_name(steady())
    assert found["time_to_first_token_p50"]["value"] == pytest.approx(0.5)
    assert found["inter_token_latency_p99"]["value"] == pytest.approx(0.1)
    assert found["end_to_end_latency_p90"]["value"] == pytest.approx(0.8)
    # 80 tokens from 0 s to 9.5 + 0.8 s.
    assert found["output_tokens_per_second"]["value"] == pytest.approx(80 / 10.3)
    assert found["achieved_request_rate"]["value"] == pytest.approx(2.0)
    assert found["achieved_request_rate"]["limit"] == pytest.approx(2.0)
    assert found["request_error_fraction"]["value"] == 0
    assert all(entry["error"] == "" for entry in found.values())
    assert {entry["unit"] for entry in found.values()} == {"s", "tokens/s", "requests/s", "fraction"}
    assert len(found["inter_token_latency_p99"]["samples"]) == 60
    assert found["inter_token_latency_p50"]["samples"] == []
    assert found["end_to_end_latency_p99"]["statistic"] == "P99 of 20"
    assert "type 7" in found["end_to_end_latency_p99"]["conditions"]["percentile_method"]


def test_a_late_send_counts_against_the_endpoint_and_is_recorded() -> None:
    timings = [timing(index, 100 + index / 2, 0.5, 0.1, late=0.3) for index in range(20)]
    found = by_name(result_of(timings))
    assert found["time_to_first_token_p50"]["value"] == pytest.approx(0.8)
    assert found["time_to_first_token_p50"]["conditions"]["send_lag_p99_seconds"] == pytest.approx(0.3)


def test_a_saturated_endpoint_makes_the_run_invalid() -> None:
    """Answers end at 1 per second where 2 per second were sent: the latencies describe a growing queue."""
    timings = [timing(index, 100 + index / 2, 0.5 + index * 0.5, 0.1) for index in range(20)]
    found = by_name(result_of(timings))
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


def test_latency_alone_does_not_make_a_run_invalid() -> None:
    """Ten seconds each, but as many end as begin: the rate was held."""
    found = by_name(result_of([timing(index, 100 + index / 2, 10, 0.1) for index in range(20)]))
    assert found["achieved_request_rate"]["value"] == pytest.approx(2.0)
    assert found["time_to_first_token_p50"]["value"] == pytest.approx(10)


def test_failed_requests_are_kept_apart() -> None:
    timings = [timing(index, 100 + index / 2, 0.5, 0.1) for index in range(20)]
    # Refused in no time: were these counted, the latency would look better.
    for index in (3, 4):
        timings[index] = Timing(
            index, 100 + index / 2, 100 + index / 2, [], 100 + index / 2 + 0.001, error="http_503", detail="busy"
        )
    found = by_name(result_of(timings))
    assert found["request_error_fraction"]["value"] == pytest.approx(0.1)
    assert found["request_error_fraction"]["cause"] == "2 x http_503; first: busy"
    assert found["end_to_end_latency_p50"]["value"] == pytest.approx(0.8)
    assert found["end_to_end_latency_p50"]["statistic"] == "P50 of 18"
    assert found["output_tokens_per_second"]["value"] == pytest.approx(72 / 10.3)
    assert found["end_to_end_latency_p50"]["conditions"]["errors"] == {"http_503": 2}


def test_no_request_succeeded() -> None:
    timings = [
        Timing(index, 100.0 + index, 100.0 + index, [], 101.0 + index, error="connection", detail="refused")
        for index in range(4)
    ]
    found = by_name(result_of(timings, rate=1))
    assert found["request_error_fraction"]["value"] == 1
    assert "none of 4 requests succeeded (4 x connection)" in found["end_to_end_latency_p99"]["error"]
    assert found["end_to_end_latency_p99"]["value"] is None


def test_requests_that_were_never_sent_make_the_run_invalid() -> None:
    found = by_name(result_of([timing(index, 100 + index / 2, 0.5, 0.1) for index in range(5)], requests=20))
    assert "15 of 20 requests were never sent" in found["time_to_first_token_p99"]["error"]


def test_answers_of_one_token_have_no_inter_token_latency() -> None:
    found = by_name(result_of([timing(index, 100 + index / 2, 0.5, 0.1, tokens=1) for index in range(20)]))
    assert found["inter_token_latency_p50"]["error"] == "no request gave enough tokens to time"
    assert found["time_to_first_token_p50"]["value"] == pytest.approx(0.5)


def test_the_limit_of_the_decode_rate() -> None:
    entry = decode_measurement(summarise(steady()), "endpoint", 5.38e8, 2.0e10)
    assert entry["value"] == pytest.approx(10)  # 3 gaps of 0.1 s for 3 tokens
    assert entry["limit"] == pytest.approx(2.0e10 / 5.38e8)
    assert "20.0 GB/s" in entry["limit_source"]
    assert decode_measurement(summarise(steady()), "endpoint", None, 2.0e10)["limit"] is None


def test_what_could_not_be_measured_is_named_completely() -> None:
    reported = [entry["name"] for entry in measurements(summarise(steady()), "e")]
    assert [*reported, "stream_decode_tokens_per_second"] == names()
    assert [entry["name"] for entry in failed_measurements("e", "down")] == names()
    assert all(entry["error"] == "down" for entry in failed_measurements("e", "down"))
    assert all(entry["skipped"] == "check mode" for entry in skipped_measurements("e", "check mode"))
