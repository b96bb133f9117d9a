"""The load client on the command line."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.load_command import main

from tests.mock_endpoint import Behaviour, serve
from tests.unit.measurement_names import CHECKOUT


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLUMBLINE_API_KEY", Behaviour.api_key)


def test_figures_on_the_terminal_and_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "figures.json"
    with serve(Behaviour()) as mock:
        rate = ["--rate", "20", "--requests", "6", "--minimum-rate-fraction", "0.01"]
        status = main(
            [mock.base_url, *rate, "--output-tokens", "5", "--output", str(file), "--slo", "end_to_end_latency=60"]
        )
    said = capsys.readouterr()
    assert (status, said.err) == (0, "")
    assert "answered 6 of 6, 30 tokens" in said.out
    assert "good 6 of 6 within the bounds" in said.out
    assert "P99.9" in said.out
    record = json.loads(file.read_text())
    assert record["good_fraction"] == 1
    assert record["total"]["completed"] == 6
    assert record["timeline"] == [] or record["timeline"][0]["seconds"] > 0
    assert Behaviour.api_key not in said.out + file.read_text()


def test_an_invalid_run_says_so_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    with serve(Behaviour(one_at_a_time=True, first_token_seconds=0.3)) as mock:
        status = main([mock.base_url, "--rate", "50", "--requests", "6", "--output-tokens", "5"])
    assert status == 1
    assert "INVALID: the endpoint finished" in capsys.readouterr().out


def test_a_closed_loop_and_a_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    with serve(Behaviour()) as mock:
        closed = ["--arrival", "closed", "--concurrency", "2", "--requests", "6"]
        assert main([mock.base_url, *closed, "--output-tokens", "5", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["conditions"]["concurrency"] == 2
    with serve(Behaviour(one_at_a_time=True, first_token_seconds=0.1)) as mock:
        few = ["--rate", "2", "--requests", "2", "--output-tokens", "5", "--minimum-rate-fraction", "0.01"]
        main([mock.base_url, *few, "--sweep", "end_to_end_latency_p99=0.2", "--sweep-seconds", "0.1"])
    said = capsys.readouterr().out
    assert "rates tried:" in said
    assert "highest rate that held: " in said


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["http://127.0.0.1:9/v1", "--rate", "1", "--requests", "2"], 1, "the endpoint lists no model"),
        (["http://127.0.0.1:9/v1", "--requests", "2"], 2, "needs a rate_per_second above 0"),
        (["http://127.0.0.1:9/v1", "--rate", "1"], 2, "requests or duration_seconds"),
        (["nonsense", "--rate", "1", "--requests", "2"], 2, "base URL"),
        (["http://127.0.0.1:9/v1", "--rate", "1", "--requests", "2", "--slo", "x"], 2, "a bound is like"),
        (["http://127.0.0.1:9/v1", "--rate", "1", "--requests", "2", "--sweep", "x=1"], 2, "a bound is called like"),
        (
            ["http://127.0.0.1:9/v1", "--rate", "1", "--requests", "2", "--prompts", "/no/such"],
            2,
            "/no/such cannot be read",
        ),
        (
            ["http://127.0.0.1:9/v1", "--rate", "1", "--requests", "2", "--api-key-file", "/no/such"],
            2,
            "/no/such cannot be read",
        ),
    ],
)
def test_what_is_wrong_is_one_sentence(
    arguments: list[str], status: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == status
    said = capsys.readouterr()
    assert words in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""


def test_the_program_itself() -> None:
    done = subprocess.run([CHECKOUT / "bin/plumbline-benchmark", "--help"], capture_output=True, text=True, check=True)
    assert "--sweep" in done.stdout
