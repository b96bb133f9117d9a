"""The module llm_benchmark as Ansible runs it, against an endpoint that is planned."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.load_histogram import Histogram
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.load_report import names
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.worker import run_worker
from ansible_collections.plumbline.plumbline.plugins.modules import llm_benchmark

from tests.mock_endpoint import Behaviour, serve

KEY = Behaviour.api_key


@pytest.fixture(autouse=True)
def own_rights(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker may read this checkout's virtual environment, which a user without rights may not."""
    monkeypatch.setattr(llm_benchmark, "run_worker", partial(run_worker, unprivileged=False))


def bench(url: str, capsys: pytest.CaptureFixture[str], **more: Any) -> dict[str, Any]:
    arguments = {"base_url": url, "api_key": KEY, "rate_per_second": 20, "requests": 5, "output_tokens": 5, **more}
    with patch_module_args(arguments), pytest.raises(SystemExit):
        llm_benchmark.main()
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def by_name(answer: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {entry["name"]: entry for entry in answer["measurements"]}


def test_a_load(capsys: pytest.CaptureFixture[str]) -> None:
    with serve(Behaviour(model="smol")) as mock:
        answer = bench(
            mock.base_url,
            capsys,
            bytes_read_per_token=5e8,
            memory_bandwidth=2e10,
            minimum_rate_fraction=0.01,
            slo={"end_to_end_latency_seconds": 60},
        )
    assert [entry["name"] for entry in answer["measurements"]] == names()
    assert [entry for entry in answer["measurements"] if entry.get("error")] == []
    assert answer["invalid"] == ""
    assert mock.bodies[0]["model"] == "smol"
    found = by_name(answer)
    assert found["stream_decode_tokens_per_second"]["limit"] == 40
    assert found["goodput_request_rate"]["value"] == pytest.approx(found["achieved_request_rate"]["value"])
    assert found["highest_rate_within_slo"]["skipped"] == "no sweep of rates was asked for"
    assert Histogram.decode(answer["histograms"]["end_to_end_latency"]).count == 5
    assert KEY not in json.dumps({**answer, "invocation": ""})


def test_a_server_at_its_limit_makes_the_run_invalid(capsys: pytest.CaptureFixture[str]) -> None:
    with serve(Behaviour(one_at_a_time=True, first_token_seconds=0.3)) as mock:
        answer = bench(mock.base_url, capsys)
    assert "growing queue" in answer["invalid"]
    found = by_name(answer)
    assert found["end_to_end_latency_p50"]["value"] is None
    assert found["achieved_request_rate"]["value"] < 4
    assert found["goodput_request_rate"]["skipped"]


def test_a_wrong_key_fails_every_measurement(capsys: pytest.CaptureFixture[str]) -> None:
    with serve(Behaviour()) as mock:
        for model in (None, "mock"):
            answer = bench(mock.base_url, capsys, api_key="wrong-key", model=model)
            assert [entry["name"] for entry in answer["measurements"]] == names()
            assert all("401" in entry["error"] for entry in answer["measurements"])


def test_nobody_listens(capsys: pytest.CaptureFixture[str]) -> None:
    answer = bench("http://127.0.0.1:9/v1", capsys)
    assert all(entry["error"].startswith("the endpoint lists no model: ") for entry in answer["measurements"])


def test_no_load_in_check_mode(capsys: pytest.CaptureFixture[str]) -> None:
    with serve(Behaviour()) as mock:
        answer = bench(mock.base_url, capsys, _ansible_check_mode=True)
    assert all(entry["skipped"] == "check mode applies no load" for entry in answer["measurements"])
    assert mock.bodies == []


def test_the_users_prompts_are_sent_in_turn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('"First?"\n\n{"messages": [{"role": "user", "content": "Second?"}], "output_tokens": 3}\n')
    with serve(Behaviour()) as mock:
        answer = bench(mock.base_url, capsys, prompts_file=str(file))
    asked = [(body["messages"][0]["content"], body["max_tokens"]) for body in mock.bodies]
    assert asked == [("First?", 5), *[("First?", 5), ("Second?", 3)] * 2, ("First?", 5)]
    assert by_name(answer)["time_to_first_token_p99"]["conditions"]["prompts"] == "2 of the user's, over and over"


def test_the_highest_rate_is_searched(capsys: pytest.CaptureFixture[str]) -> None:
    # One answer at a time, 50 ms each: never more than 20 a second, on any machine.
    with serve(Behaviour(one_at_a_time=True, first_token_seconds=0.05)) as mock:
        sweep = {"seconds": 0.5, "steps": 4, "bounds": {"end_to_end_latency_p99": 30}}
        answer = bench(mock.base_url, capsys, rate_per_second=2, requests=2, sweep=sweep)
    entry = by_name(answer)["highest_rate_within_slo"]
    tried = entry["conditions"]["sweep"]
    assert tried[0]["rate"] == 2
    assert all(not step["held"] for step in tried if step["rate"] > 25)
    assert entry.get("value", 0) <= 25


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"requests": 1}, "requests must be at least 2"),
        ({"rate_per_second": 0}, "rate_per_second must be at least"),
        ({"rate_per_second": None}, "arrival constant needs a rate_per_second above 0"),
        ({"arrival": "closed", "rate_per_second": None}, "needs a concurrency"),
        ({"arrival": "closed", "concurrency": 2}, "arrival closed has no rate_per_second"),
        ({"requests": 1000, "rate_per_second": 1, "max_duration_seconds": 60}, "take 999 s, which does not fit into"),
        ({"base_url": "127.0.0.1:8000"}, "base URL"),
        ({"base_url": "http://127.0.0.1:port/v1"}, "base URL"),
        ({"api_key": "two\r\nlines"}, "printable ASCII"),
        ({"minimum_rate_fraction": 2}, "at most 1"),
        ({"prompts_file": "/no/such/file"}, "/no/such/file"),
        ({"slo": {"latency": 1}}, "slo has no latency"),
        ({"sweep": {"bounds": {"latency_p99": 1}}}, "called like time_to_first_token_p99"),
        ({"sweep": {"seconds": 3}}, "sweep needs bounds"),
        ({"sweep": {"speed": 3}}, "sweep has no speed"),
        ({"python": "/no/such/python"}, "which does not run"),
    ],
)
def test_loads_that_make_no_sense_are_refused(
    capsys: pytest.CaptureFixture[str], arguments: dict[str, Any], words: str
) -> None:
    answer = bench("http://127.0.0.1:9/v1", capsys, **arguments)
    assert answer["failed"]
    assert words in answer["msg"]
    assert "Traceback" not in answer["msg"]


def test_a_python_without_aiohttp_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')  # without site-packages
    bare.chmod(0o755)
    answer = bench("http://127.0.0.1:9/v1", capsys, python=str(bare))
    assert answer["failed"]
    assert f"{bare} has no aiohttp" in answer["msg"]
