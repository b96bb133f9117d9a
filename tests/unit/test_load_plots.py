"""The plots of a load, from evidence as a gate writes it, and from evidence that anybody may have written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.report import plots

from tests.unit.test_report import RULES, Run, page

RULES.update({name: {"kind": "record"} for name in ("achieved_request_rate", "highest_rate_within_slo")})

TIMELINE = [
    {
        "seconds": float(second),
        "requested_per_second": 20.0,
        "completed_per_second": 20.0 - (second == 4) * 15,
        "failed": 3 * (second == 4),
        "in_flight": 4,
        "time_to_first_token_p50": 0.05,
        "time_to_first_token_p99": 0.5 if second == 4 else 0.06,
        "end_to_end_latency_p99": 0.7 if second == 4 else 0.25,
    }
    for second in range(1, 8)
]
SWEEP = [
    {
        "rate": rate,
        "held": held,
        "why": "" if held else "slow",
        "time_to_first_token_p99": 0.05,
        "end_to_end_latency_p99": 0.3,
    }
    for rate, held in ((10, True), (20, True), (40, False), (28.3, False))
]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    (tmp_path / "run").mkdir()
    return Run(tmp_path / "run")


def drawn(run: Run) -> dict[str, plots.Plot]:
    return {plot.title: plot for plot in plots.draw(run.report)}


def rate(run: Run, name: str, **conditions: Any) -> None:
    run.check("node1", name, value=20.0, unit="requests/s", conditions=conditions)


def test_the_course_of_a_load(run: Run) -> None:
    rate(run, "achieved_request_rate", timeline=TIMELINE)
    plot = drawn(run)["course of the load"]
    for text in ("first token P99", "end to end P99", "requested", "answered", "failed"):
        assert text in plot.svg
    assert "#0102" not in plot.svg
    assert "timeline" not in page(run).text  # drawn, and not printed as text as well


def test_the_rates_of_a_sweep(run: Run) -> None:
    rate(run, "highest_rate_within_slo", sweep=SWEEP)
    plot = drawn(run)["rates of the sweep"]
    assert "20 requests/s" in plot.svg
    assert {"var(--ok)", "var(--critical)"} <= set(re.findall(r"var\(--[a-z]+\)", plot.svg))
    assert re.search(r">10<", plot.svg)  # a tick of the axis


def test_the_tail_is_drawn_where_there_is_one(run: Run) -> None:
    run.check("node1", "end_to_end_latency_p99", value=1.9, unit="s", samples=[1 + index / 200 for index in range(200)])
    plot = drawn(run)["latency by percentile"]
    assert ">P99<" in plot.svg
    assert ">P99.9<" not in plot.svg  # 200 requests have none


def test_few_samples_have_no_tail(run: Run) -> None:
    run.check("node1", "end_to_end_latency_p99", value=1.9, unit="s", samples=[1 + index / 50 for index in range(50)])
    assert set(drawn(run)) == {"end to end latency"}


def test_many_hosts_have_no_course_each(run: Run) -> None:
    for host in range(5):
        run.check(
            f"node{host}", "achieved_request_rate", value=20.0, unit="requests/s", conditions={"timeline": TIMELINE}
        )
    assert drawn(run) == {}


@pytest.mark.parametrize(
    "conditions",
    [
        {"timeline": "text"},
        {"timeline": [1, None, "x"]},
        {"timeline": [{"seconds": "x", "failed": None}]},
        {"timeline": [{}]},
        {"sweep": [{"rate": "x"}]},
        {"sweep": [{"rate": 3.0, "held": "perhaps", "time_to_first_token_p50": None}]},
        {"sweep": [{"rate": 0.0, "held": False, "end_to_end_latency_p99": 0.0}]},
        {"sweep": {"rate": 1}},
    ],
)
def test_evidence_that_is_damaged_draws_less_and_breaks_nothing(run: Run, conditions: dict[str, Any]) -> None:
    rate(run, "achieved_request_rate", **conditions)
    rate(run, "highest_rate_within_slo", **conditions)
    assert "20" in page(run).text
