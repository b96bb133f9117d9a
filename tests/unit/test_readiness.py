"""Ready means a right completion; `/health` may say what it likes."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import readiness
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.readiness import (
    Answer,
    KeyRefused,
    NotYet,
    Question,
    Refused,
    Wait,
    ask,
    degenerate,
    judge,
    parse_answer,
    wait_until_ready,
)

from tests.mock_endpoint import FLAT, Behaviour, serve

QUESTION = Question("What is the capital of France?", "Paris")
PROGRAM = Path(__file__).resolve().parents[2] / "module_utils" / "plumbline" / "readiness.py"


def run(
    behaviour: Behaviour, tmp_path: Path, *more: str, key: str = Behaviour.api_key, seconds: float = 20
) -> tuple[int, str, Path]:
    """Run the program as systemd does, alone, with nothing on its path."""
    record = tmp_path / "ready.json"
    with serve(behaviour) as mock:
        command = [
            sys.executable,
            "-I",
            str(PROGRAM),
            "wait",
            "--url",
            mock.base_url,
            "--model",
            "mock",
            "--question",
            QUESTION.text,
        ]
        done = subprocess.run(
            [*command, "--expected", "Paris", "--timeout", str(seconds), "--record", str(record), *more],
            env={"VLLM_API_KEY": key, "PLUMBLINE_CONFIGURATION": "abc123", "PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout + done.stderr, record


def test_ready_when_a_right_answer_came(tmp_path: Path) -> None:
    code, output, record = run(Behaviour(), tmp_path)
    assert code == 0, output
    noted = json.loads(record.read_text())
    assert noted["configuration"] == "abc123"
    assert noted["key_sha256"] == readiness.key_digest(Behaviour.api_key)
    assert noted["answer"]["text"] == "The capital of France is Paris."
    assert stat.S_IMODE(record.stat().st_mode) == 0o600
    assert Behaviour.api_key not in record.read_text() + output


def test_a_checkpoint_that_answers_nonsense_is_refused_though_health_says_200(tmp_path: Path) -> None:
    """The tied embedding was dropped: every logit is equal, and every token is one that is not shown."""
    broken = Behaviour(answer="", top_logprobs=FLAT)
    with serve(broken) as mock, urllib.request.urlopen(mock.base_url.replace("/v1", "/health"), timeout=5) as health:
        assert health.status == 200
    code, output, record = run(broken, tmp_path)
    assert code == readiness.EXIT_REFUSED
    assert "equally likely" in output
    assert not record.exists()


def test_equal_logits_are_refused_even_if_the_text_is_right(tmp_path: Path) -> None:
    code, output, _ = run(Behaviour(top_logprobs=FLAT), tmp_path)
    assert code == readiness.EXIT_REFUSED
    assert "equally likely" in output


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        (Behaviour(answer="I like turtles."), ("turtles", "Paris", "serving_ready_expected")),
        (Behaviour(answer="  \n"), ("no text",)),
        (Behaviour(broken_json=True), ("not JSON",)),
        (Behaviour(fail_every=1, fail_status=404), ("HTTP 404", "planned failure")),
    ],
)
def test_wrong_answers_are_refused_at_once_with_the_reason(
    behaviour: Behaviour, words: tuple[str, ...], tmp_path: Path
) -> None:
    code, output, record = run(behaviour, tmp_path, seconds=3600)
    assert code == readiness.EXIT_REFUSED
    assert output.startswith("plumbline-ready: refused: ")
    assert len(output.splitlines()) == 1
    for word in words:
        assert word in output
    assert not record.exists()


def test_a_wrong_key_is_refused(tmp_path: Path) -> None:
    code, output, _ = run(Behaviour(), tmp_path, key="wrong")
    assert code == readiness.EXIT_REFUSED
    assert "serving_api_key" in output


def test_loading_takes_a_while(tmp_path: Path) -> None:
    code, output, _ = run(Behaviour(not_before=2), tmp_path)
    assert code == 0
    assert "HTTP 503" in output


def test_nobody_listens_in_time(tmp_path: Path) -> None:
    code, output, record = run(Behaviour(), tmp_path, "--url", "http://127.0.0.1:9/v1", seconds=1.5)
    assert code == readiness.EXIT_NOT_READY
    assert "no right completion in time; last: no answer from http://127.0.0.1:9/v1" in output
    assert not record.exists()


def test_an_endpoint_that_fails_inside_again_and_again_is_given_up(tmp_path: Path) -> None:
    code, output, record = run(Behaviour(fail_every=1, fail_status=500), tmp_path, seconds=3600)
    assert code == readiness.EXIT_NOT_READY
    assert "HTTP 500" in output
    assert "5 times in a row" in output
    assert not record.exists()


def test_an_engine_that_ended_is_not_waited_for() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    wait = Wait(time.monotonic() + 3600, ended.pid, lambda _: None)
    with pytest.raises(NotYet, match="engine ended"):
        wait_until_ready("http://127.0.0.1:9/v1", "key", "mock", QUESTION, wait)


def test_an_expectation_that_is_no_regular_expression(tmp_path: Path) -> None:
    code, output, _ = run(Behaviour(), tmp_path, "--expected", "(")
    assert code == readiness.EXIT_REFUSED
    assert "serving_ready_expected" in output


def test_the_completions_api_for_models_without_a_chat_template() -> None:
    question = Question("The capital of France is", "Paris", "completions")
    with serve(Behaviour()) as mock:
        answer = ask(mock.base_url, mock.behaviour.api_key, "mock", question, 5)
        assert judge(question, answer) == ""
        assert mock.bodies[0]["prompt"] == "The capital of France is"
    with serve(Behaviour(top_logprobs=FLAT)) as mock:
        assert "equally likely" in judge(question, ask(mock.base_url, mock.behaviour.api_key, "mock", question, 5))


def test_who_is_asked_wrongly() -> None:
    with serve(Behaviour()) as mock, pytest.raises(KeyRefused):
        ask(mock.base_url, "wrong", "mock", QUESTION, 5)
    with pytest.raises(Refused, match="base URL"):
        ask("127.0.0.1:8000", "key", "mock", QUESTION, 5)


@pytest.mark.parametrize(
    "payload", [{}, {"choices": []}, {"choices": [{}]}, [], None, {"choices": [{"message": None}]}]
)
def test_answers_that_are_none(payload: object) -> None:
    with pytest.raises(Refused, match="OpenAI API"):
        parse_answer("chat", payload)


def test_degenerate_distributions() -> None:
    healthy = [[-0.1, -3.0], [-0.7, -0.70001]]
    assert degenerate(healthy) == ""
    assert degenerate([]) == ""  # a server that gives none: the text alone is judged
    assert degenerate([[-0.5]]) == ""
    assert "equally likely" in degenerate([[-10.8, -10.8], [-10.8, -10.8]])
    assert "not a finite" in degenerate([[float("nan"), -1.0]])
    assert judge(QUESTION, Answer("Paris", healthy, 2, "m")) == ""


def test_the_record_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    for text in ("first", "second"):
        readiness.record(path, Answer(text, [], 1, "m"), "key", 5, "http://127.0.0.1:1/v1")
    assert json.loads(path.read_text())["answer"]["text"] == "second"
    assert [entry.name for entry in tmp_path.iterdir()] == ["ready.json"]


def test_pauses_grow_after_starts_that_came_to_nothing() -> None:
    pauses = [readiness.pause_seconds(failures, 10, 300) for failures in range(9)]
    assert pauses == [0, 0, 10, 20, 40, 80, 160, 300, 300]
    assert readiness.pause_seconds(10**6, 10, 300) == 300


def test_starts_are_counted_until_one_becomes_ready(tmp_path: Path) -> None:
    failures = tmp_path / "failures"
    assert [readiness.count_start(failures) for _ in range(3)] == [0, 1, 2]
    code, output, _ = run(Behaviour(), tmp_path, "--failures", str(failures))
    assert code == 0, output
    assert not failures.exists()
    assert readiness.count_start(failures) == 0
    failures.write_text("damaged")
    assert readiness.count_start(failures) == 0


def test_a_failed_start_stays_counted(tmp_path: Path) -> None:
    failures = tmp_path / "failures"
    readiness.count_start(failures)
    code, _, _ = run(Behaviour(answer="no"), tmp_path, "--failures", str(failures))
    assert code == readiness.EXIT_REFUSED
    assert readiness.count_start(failures) == 1


def test_the_pause_is_made_and_said(tmp_path: Path) -> None:
    failures = tmp_path / "failures"
    failures.write_text("2")
    command = [
        sys.executable,
        "-I",
        str(PROGRAM),
        "back-off",
        "--failures",
        str(failures),
        "--delay",
        "0.2",
        "--maximum",
        "9",
    ]
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0
    assert time.monotonic() - began >= 0.2
    assert "after 2 starts" in done.stdout
    assert failures.read_text() == "3"


def back_off(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", str(PROGRAM), "back-off", "--delay", "0.1", "--maximum", "9", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_failures_that_cannot_be_counted_do_not_keep_it_from_serving(tmp_path: Path) -> None:
    """A full /run, for one. There is a pause, for it could be the tenth start in a row that fails."""
    done = back_off("--failures", str(tmp_path))
    assert done.returncode == 0
    assert "failed starts cannot be counted" in done.stdout
    assert "pausing" in done.stdout


def test_what_the_last_run_left_is_forgotten(tmp_path: Path) -> None:
    left = tmp_path / "draining"
    left.touch()
    done = back_off("--failures", str(tmp_path / "failures"), "--forget", str(left), str(tmp_path / "not-there"))
    assert done.returncode == 0
    assert not left.exists()
    # A drain file that stays would refuse every request for ever: no start with it.
    left.mkdir()
    done = back_off("--failures", str(tmp_path / "failures"), "--forget", str(left))
    assert done.returncode == readiness.EXIT_NOT_READY
    assert done.stdout.startswith("plumbline-ready: error: ")
    assert "Traceback" not in done.stderr


def test_the_record_says_which_start_and_what_it_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PLUMBLINE_CONFIGURATION", "PLUMBLINE_SERVES", "INVOCATION_ID"):
        monkeypatch.setenv(name, name.lower())
    readiness.record(tmp_path / "r", Answer("Paris", [], 1, "m"), "key", 5, "http://127.0.0.1:1/v1")
    noted = json.loads((tmp_path / "r").read_text())
    assert noted["configuration"] == "plumbline_configuration"
    assert noted["serves"] == "plumbline_serves"
    assert noted["invocation"] == "invocation_id"
    assert (noted["main_pid"], noted["url"]) == (5, "http://127.0.0.1:1/v1")
