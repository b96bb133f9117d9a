"""The load client against an endpoint with planned behaviour. No assertion depends on how fast this machine is."""

from __future__ import annotations

import ast
import asyncio
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import load_program
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.load_events import StreamError, TokenStream
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.load_program import NEEDS, program
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.load_prompts import prompt, words_for_tokens
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.load_run import Load, Outcome
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.load_schedule import (
    due_offsets,
    endless_offsets,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.load_spec import read_spec
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.load_sweep_plan import Sweep, next_rate
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.load_tally import Tally
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.load_target import Target

from tests.mock_endpoint import Behaviour, serve

LOAD: dict[str, Any] = {
    "arrival": "constant",
    "rate_per_second": 50,
    "requests": 10,
    "prompt_tokens": 60,
    "output_tokens": 5,
    "request_timeout_seconds": 20,
    "max_duration_seconds": 60,
    "max_in_flight": 64,
    "first_prompt": 7,
    "model": "mock",
}


def applied(url: str, **changes: Any) -> Outcome:
    spec = read_spec({**LOAD, "base_url": url, "api_key": Behaviour.api_key, **changes})
    return asyncio.run(Load(spec).run())


def load(behaviour: Behaviour, **changes: Any) -> Outcome:
    with serve(behaviour) as mock:
        return applied(mock.base_url, **changes)


def test_every_request_is_answered_and_timed() -> None:
    total = load(Behaviour()).total
    assert total.counts["requested"] == total.counts["sent"] == total.counts["completed"] == 10
    assert total.counts["output_tokens"] == total.counts["pieces"] == 50
    assert dict(total.failed) == {}
    counted = {name: histogram.count for name, histogram in total.histograms.items()}
    assert counted == {
        "time_to_first_token": 10,
        "inter_token_latency": 40,
        "time_per_output_token": 10,
        "end_to_end_latency": 10,
        "send_lag": 10,
    }
    first, whole = total.histograms["time_to_first_token"], total.histograms["end_to_end_latency"]
    assert 0 < first.percentile(50) <= whole.percentile(50)


def test_prompts_reach_the_wanted_length_and_differ() -> None:
    with serve(Behaviour()) as mock:
        outcome = applied(mock.base_url)
    assert outcome.prompt_words == 30  # the mock makes two tokens of a word
    assert outcome.total.counts["prompt_tokens"] == 600
    texts = [body["messages"][0]["content"] for body in mock.bodies]
    assert len(set(texts)) == len(texts) == 11
    assert len({text.split()[0] for text in texts}) == 11  # different from the first word on: no prefix cache helps
    assert all(body["stream"] and body["ignore_eos"] and body["max_tokens"] == 5 for body in mock.bodies)


def test_a_stall_is_in_the_latency_of_every_request_that_was_due_during_it() -> None:
    """Coordinated omission: a closed-loop client would see one slow request here."""
    behaviour = Behaviour(stall_at=1, stall_seconds=1.0)  # request 0 is the warm-up
    first = load(behaviour, rate_per_second=20, requests=10).total.histograms["time_to_first_token"]
    # What was due d seconds into the stall waits at least for the rest of it; lower bounds hold on any machine.
    waits = sorted(first.spread(10), reverse=True)
    for index, wait in enumerate(waits):
        assert wait >= 1.0 - index / 20 - 0.06
    assert sum(wait > 0.5 for wait in waits) >= 9


def test_a_closed_loop_sees_one_slow_request_in_that_stall() -> None:
    behaviour = Behaviour(stall_at=1, stall_seconds=1.0)
    closed = {"arrival": "closed", "concurrency": 1, "rate_per_second": 0}
    first = load(behaviour, requests=10, **closed).total.histograms["time_to_first_token"]
    assert sum(wait > 0.9 for wait in first.spread(10)) == 1


def test_a_closed_loop_keeps_its_users_busy_until_its_time_is_over() -> None:
    behaviour = Behaviour(first_token_seconds=0.05)
    closed = {"arrival": "closed", "concurrency": 3, "rate_per_second": 0, "requests": 0, "duration_seconds": 0.6}
    outcome = load(behaviour, **closed)
    assert outcome.total.most_in_flight == 3
    assert 3 <= outcome.total.counts["completed"] <= 3 * 12
    assert outcome.scheduled_rate is None
    assert outcome.total.in_flight == 0


def test_sending_does_not_wait_for_answers() -> None:
    total = load(Behaviour(first_token_seconds=0.6), rate_per_second=100, requests=20).total
    assert total.most_in_flight >= 15


def test_the_limit_of_requests_in_flight_holds_and_shows_as_latency() -> None:
    total = load(Behaviour(first_token_seconds=0.2), rate_per_second=1000, requests=6, max_in_flight=2).total
    assert total.most_in_flight == 2
    assert total.counts["completed"] == 6
    assert total.histograms["end_to_end_latency"].maximum >= 0.55  # three rounds of 0.2 s, all due at once


def test_the_time_limit_ends_the_load_and_says_what_was_not_sent() -> None:
    outcome = load(Behaviour(first_token_seconds=30), warmup_requests=0, request_timeout_seconds=0.3)
    assert outcome.warmup_error.startswith("timeout")
    assert outcome.total.counts["sent"] == 0
    slow = Behaviour(one_at_a_time=True, first_token_seconds=0.4)
    outcome = load(slow, max_duration_seconds=1, max_in_flight=1)
    assert outcome.planned == 10
    assert outcome.total.counts["sent"] < 10
    assert outcome.total.failed["timeout"] == 1


@pytest.mark.parametrize(
    ("behaviour", "kind"),
    [
        (Behaviour(fail_every=2, fail_status=503), "http_503"),
        (Behaviour(fail_every=2, fail_status=429), "http_429"),
    ],
)
def test_failures_are_told_apart(behaviour: Behaviour, kind: str) -> None:
    total = load(behaviour).total
    assert dict(total.failed) == {kind: 5}
    assert total.counts["completed"] == total.histograms["end_to_end_latency"].count == 5
    assert total.first_error == f"{kind}: planned failure"


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        (Behaviour(cut_off=True), "incomplete: the stream ended after 5 pieces of text"),
        (Behaviour(no_tokens=True), "empty: a whole answer without any text"),
        (Behaviour(broken_json=True), "incomplete: the stream ended after 0 pieces"),
        (Behaviour(between_tokens_seconds=10), "timeout: no whole answer"),
        (Behaviour(fail_every=1, fail_status=500), "http_500: planned failure"),
    ],
)
def test_a_warm_up_that_fails_says_why(behaviour: Behaviour, words: str) -> None:
    outcome = load(behaviour, request_timeout_seconds=0.5)
    assert outcome.warmup_error.startswith(words)


def test_nobody_listens() -> None:
    with serve(Behaviour()) as mock:
        gone = mock.base_url
    assert applied(gone).warmup_error.startswith("connection: ")


def test_a_wrong_key_ends_the_warm_up_at_once() -> None:
    with serve(Behaviour()) as mock:
        outcome = applied(mock.base_url, api_key="wrong", warmup_requests=5, warmup_wait_seconds=60)
    assert outcome.warmup_error.startswith("http_401")
    assert mock.bodies == []
    assert outcome.total.counts["sent"] == 0


def test_an_endpoint_that_still_loads_is_waited_for() -> None:
    assert load(Behaviour(not_before=2), warmup_wait_seconds=60).total.counts["completed"] == 10
    assert load(Behaviour(not_before=2)).warmup_error == "http_503: loading"


def test_a_server_without_usage_still_counts_tokens() -> None:
    assert load(Behaviour(report_usage=False)).total.counts["output_tokens"] == 50


def test_a_good_request_keeps_every_bound() -> None:
    slow = Behaviour(first_token_seconds=0.2, between_tokens_seconds=0.05)
    for slo, good in (
        ({"end_to_end_latency_seconds": 60}, 10),
        ({"time_to_first_token_seconds": 0.1}, 0),
        ({"inter_token_latency_seconds": 0.04}, 0),
        ({"end_to_end_latency_seconds": 0.3, "time_to_first_token_seconds": 60}, 0),
    ):
        assert load(slow, slo=slo).total.counts["good"] == good, slo


def test_intervals_add_up_to_the_whole() -> None:
    outcome = load(Behaviour(first_token_seconds=0.05), rate_per_second=20, requests=12, interval_seconds=0.2)
    assert len(outcome.timeline) >= 3
    merged = Tally(outcome.total.start)
    for tally in outcome.timeline:
        merged.add(Tally.from_json(json.loads(json.dumps(tally.to_json()))))
    whole, again = outcome.total.to_json(), merged.to_json()
    for name in ("requested", "sent", "completed", "output_tokens", "failed", "histograms", "most_in_flight"):
        assert again[name] == whole[name], name


class KeepAlive:
    """An HTTP/1.1 server of whole answers that keeps its connections, and can let go of them as it likes."""

    def __init__(self, *, drop_after_answer: bool = False, content_length: bool = False, hang_up: bool = False) -> None:
        self._drop, self._content_length, self._hang_up = drop_after_answer, content_length, hang_up
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.connections = 0
        self.requests = 0
        threading.Thread(target=self._accept, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/v1"

    def __enter__(self) -> KeepAlive:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        buffer = b""
        with connection:
            while True:
                while b"\r\n\r\n" not in buffer:
                    if not (data := connection.recv(65536)):
                        return
                    buffer += data
                head, _, buffer = buffer.partition(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
                while len(buffer) < length:
                    buffer += connection.recv(65536)
                buffer = buffer[length:]
                self.requests += 1
                if self._hang_up and self.requests > 1:
                    return
                self._answer(connection)
                if self._drop:
                    return

    def _answer(self, connection: socket.socket) -> None:
        texts = ["a", 'with \\" a quote', '"content":"" inside', "d"]
        events = [{"choices": [{"delta": {"role": "assistant", "content": ""}}]}]
        events += [{"choices": [{"delta": {"content": text}}]} for text in texts]
        events += [{"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4}}]
        body = b"".join(b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\r\n\r\n" for event in events)
        body += b": ping\n\ndata: [DONE]\n\n"
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
        if self._content_length:
            connection.sendall(head + b"content-length: %d\r\n\r\n" % len(body) + body)
            return
        connection.sendall(head + b"transfer-encoding: chunked\r\n\r\n")
        # In pieces of every size, so that no boundary of the protocol meets one of the network.
        sizes = itertools.cycle((1, 7, 30, 3))
        while body:
            size = next(sizes)
            connection.sendall(b"%x\r\n%s\r\n" % (len(body[:size]), body[:size]))
            body = body[size:]
        connection.sendall(b"0\r\n\r\n")


@pytest.mark.parametrize("content_length", [False, True])
def test_connections_are_kept_and_pieces_found_however_they_are_cut(content_length: bool) -> None:
    with KeepAlive(content_length=content_length) as server:
        total = applied(server.url, rate_per_second=100, requests=30, output_tokens=4).total
    assert dict(total.failed) == {}
    assert total.counts["completed"] == 30
    assert total.counts["pieces"] == total.counts["output_tokens"] == 120
    assert server.connections < 30


def test_a_server_that_closes_after_each_answer_costs_no_request() -> None:
    with KeepAlive(drop_after_answer=True) as server:
        total = applied(server.url, rate_per_second=100, requests=30, output_tokens=4).total
    assert dict(total.failed) == {}
    assert total.counts["completed"] == 30


def test_a_server_that_hangs_up_without_an_answer_fails_the_request() -> None:
    with KeepAlive(hang_up=True) as server:
        total = applied(server.url, output_tokens=4).total
    assert dict(total.failed) == {"connection": 10}
    assert total.counts["resent"] == 10  # once each, since the server may have meant the idle connection
    assert server.requests == 21


# --- one answer, byte by byte ------------------------------------------------------------------------------------------


def test_a_stream_is_read_however_it_is_spelled() -> None:
    spellings = [
        b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n',
        b'data: {"choices": [{"delta": {"content": "b"}}]}\n\n',
        b'data:{"choices":[{"delta":{"reasoning_content":"c"}}]}\r\n\r\n',
        b'data: {"choices":[{"delta":{"reasoning":"d"}}]}\n\n',
        b'event: message\ndata: {"choices":[{"delta":{"content":"e"}}]}\n\n',
        b'data: {"choices":[{"delta":{"content":""},"finish_reason":"stop"}]}\n\n',
        b'data: {"choices":[{"delta":{}}]}\n\n: comment\n\n',
        b"data: [DONE]\n\n",
    ]
    for order in (spellings, [*reversed(spellings[:-1]), spellings[-1]]):
        for size in (1, 5, 10_000):
            stream = TokenStream()
            data = b"".join(order)
            for start in range(0, len(data), size):
                stream.feed(data[start : start + size], start)
            stream.finish()
            assert len(stream.times) == stream.output_tokens == 5


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b'data: {"error": {"message": "out of memory"}}\n\n', "server_error"),
        (b"data: {broken\n\n", "malformed"),
        (b'data: {"choices": 5}\n\n', "malformed"),
        (b'data: {"choices": [], "usage": {"prompt_tokens": 1}}\n\n', "malformed"),
        (b"data: [1]\n\n", "malformed"),
        (b"x" * (1 << 21), "malformed"),
    ],
)
def test_a_stream_that_is_none_is_told(data: bytes, kind: str) -> None:
    with pytest.raises(StreamError) as caught:
        TokenStream().feed(data, 0)
    assert caught.value.kind == kind


# --- for hours ---------------------------------------------------------------------------------------------------------


def start(tmp_path: Path, **spec: Any) -> subprocess.Popen[str]:
    (tmp_path / "load.pyz").write_bytes(program())
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    arguments = [sys.executable, "-I", str(tmp_path / "load.pyz"), str(tmp_path / "spec.json")]
    return subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True)


def long_spec(tmp_path: Path, url: str, **changes: Any) -> dict[str, Any]:
    key = tmp_path / "key"
    key.write_text(Behaviour.api_key + "\n")
    spec = {"base_url": url, "api_key_file": str(key), "rate_per_second": 40, "duration_seconds": 1}
    return {**spec, "output": str(tmp_path / "out"), "interval_seconds": 0.25, "output_tokens": 5, **changes}


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_long_run_appends_a_line_for_each_interval(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text('{"kind": "interv')  # an earlier run was killed in mid-write
    with serve(Behaviour()) as mock:
        process = start(tmp_path, **long_spec(tmp_path, mock.base_url))
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    out.write_text(out.read_text().partition("\n")[2])
    first, *intervals, last = lines_of(out)
    assert first["kind"] == "start"
    assert first["load"]["rate_per_second"] == 40
    assert last["kind"] == "end"
    assert last["reason"] == "over"
    assert len(intervals) >= 4
    assert {line["kind"] for line in intervals} == {"interval"}
    merged = Tally(0)
    for line in intervals:
        merged.add(Tally.from_json(line))
    assert merged.counts["completed"] == merged.histograms["end_to_end_latency"].count == 40
    assert all(earlier["end"] == later["start"] for earlier, later in itertools.pairwise(intervals))
    assert Behaviour.api_key not in out.read_text()


def test_the_long_run_ends_cleanly_on_a_signal(tmp_path: Path) -> None:
    with serve(Behaviour(first_token_seconds=0.3)) as mock:
        process = start(tmp_path, **long_spec(tmp_path, mock.base_url, duration_seconds=600))
        deadline = time.monotonic() + 60
        while not mock.bodies[1:] and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    lines = lines_of(tmp_path / "out")
    assert lines[-1]["reason"] == "stopped"
    intervals = [line for line in lines if line["kind"] == "interval"]
    assert sum(line["sent"] for line in intervals) == sum(line["completed"] for line in intervals) > 0


def test_the_long_run_gives_up_what_takes_longer_than_its_grace(tmp_path: Path) -> None:
    with serve(Behaviour(stall_at=1, stall_seconds=20)) as mock:
        process = start(tmp_path, **long_spec(tmp_path, mock.base_url, duration_seconds=600, grace_seconds=0.1))
        deadline = time.monotonic() + 60
        while not mock.bodies[1:] and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGTERM)
        process.communicate(timeout=60)
    intervals = [line for line in lines_of(tmp_path / "out") if line["kind"] == "interval"]
    assert sum(line["abandoned"] for line in intervals) == sum(line["sent"] for line in intervals) > 0
    assert all(line["failed"] == {} for line in intervals)


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ({"rate": 3}, 2, "rate is no field of a load"),
        ({"output": ""}, 2, "output (a file) and interval_seconds"),
        ({"interval_seconds": -1}, 2, "interval_seconds is a number from 0"),
        ({"api_key_file": "/no/such/key"}, 2, "api_key_file /no/such/key cannot be read"),
        ({"base_url": "http://127.0.0.1:9/v1"}, 1, "the endpoint lists no model"),
        ({"output": "/no/such/folder/out"}, 1, "/no/such/folder/out"),
    ],
)
def test_the_long_run_says_what_is_wrong_in_one_sentence(
    tmp_path: Path, changes: dict[str, Any], status: int, words: str
) -> None:
    process = start(tmp_path, **long_spec(tmp_path, "http://127.0.0.1:9/v1", **changes))
    _, errors = process.communicate(timeout=60)
    assert process.returncode == status
    assert words in errors
    assert "Traceback" not in errors


def test_the_program_carries_all_that_its_modules_import() -> None:
    """`-I` and an archive: nothing of this checkout is on its path. And the same code is the same bytes."""
    assert program() == program()
    assert len(set(NEEDS)) == len(NEEDS)


def test_ansible_carries_to_the_node_what_the_program_holds() -> None:
    """It looks which modules a module's source imports, and knows nothing of a list of names."""
    tree = ast.parse(Path(load_program.__file__).read_text(encoding="utf-8"))
    relative = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level]
    assert {name.name for node in relative for name in node.names} == {load_program.WORKER, *NEEDS}


# --- the plan ----------------------------------------------------------------------------------------------------------


def test_the_key_is_not_in_the_endpoints_text() -> None:
    assert "secret-key" not in repr(Target("http://127.0.0.1/v1", "secret-key"))
    assert "secret-key" not in repr(read_spec({**LOAD, "base_url": "http://127.0.0.1/v1", "api_key": "secret-key"}))


def test_constant_arrivals() -> None:
    assert due_offsets("constant", 4, 5, 1) == [0, 0.25, 0.5, 0.75, 1.0]
    assert list(itertools.islice(endless_offsets("constant", 4, 1), 5)) == [0, 0.25, 0.5, 0.75, 1.0]


def test_poisson_arrivals_have_the_rate_and_repeat() -> None:
    offsets = due_offsets("poisson", 10, 20_001, 3)
    assert offsets == due_offsets("poisson", 10, 20_001, 3)
    assert offsets != due_offsets("poisson", 10, 20_001, 4)
    for some in (offsets, list(itertools.islice(endless_offsets("poisson", 10, 3), 20_001))):
        gaps = [later - earlier for earlier, later in itertools.pairwise(some)]
        mean = sum(gaps) / len(gaps)
        assert mean == pytest.approx(0.1, rel=0.03)
        # The standard deviation of an exponential distribution is its mean.
        deviation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
        assert deviation == pytest.approx(mean, rel=0.03)


def test_few_poisson_arrivals_have_exactly_the_rate_too() -> None:
    for seed in range(20):
        assert due_offsets("poisson", 0.5, 24, seed)[-1] == pytest.approx(46)
    assert due_offsets("poisson", 0.5, 1, 1) == [0]


@pytest.mark.parametrize(
    ("arrival", "rate", "requests", "word"),
    [
        ("bursty", 1, 1, "bursty"),
        ("constant", 0, 1, "rate"),
        ("poisson", float("nan"), 1, "rate"),
        ("constant", 1, 0, "at least 1"),
    ],
)
def test_nonsense_schedules_are_refused(arrival: str, rate: float, requests: int, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        due_offsets(arrival, rate, requests, 1)


def test_prompts_have_the_asked_words() -> None:
    for words in (8, 100, 2000):
        assert len(prompt(3, words).split()) == words
    with pytest.raises(ValueError, match="at least 8"):
        prompt(3, 7)
    assert words_for_tokens(512, [(64, 128)]) == 256
    assert words_for_tokens(1, [(64, 128)]) == 8


def test_the_chat_template_is_told_from_the_words() -> None:
    """30 tokens of template and 1.25 tokens a word: one sample misses, two do not."""

    def counted(words: int) -> int:
        return 30 + round(words * 1.25)

    first = words_for_tokens(80, [(64, counted(64))])
    assert counted(first) > 85
    second = words_for_tokens(80, [(64, counted(64)), (first, counted(first))])
    assert abs(counted(second) - 80) <= 1
    # A tokenizer that is not linear must not lead astray.
    assert words_for_tokens(80, [(64, 100), (32, 100)]) == 26


@pytest.mark.parametrize(("limit", "first"), [(37.0, 1.0), (37.0, 500.0), (0.3, 20.0), (1e9, 1.0), (20.0, 20.0)])
def test_the_search_closes_in_on_the_limit(limit: float, first: float) -> None:
    sweep = Sweep(steps=40, maximum_rate=1000, bounds=(("time_to_first_token_p99", 1.0),))
    steps: list[dict[str, Any]] = []
    while (rate := next_rate(steps, first, sweep)) is not None:
        steps.append({"rate": rate, "held": rate <= limit})
    highest = max(step["rate"] for step in steps if step["held"])
    assert min(limit, 1000) / 1.05 <= highest <= min(limit, 1000)
    assert len(steps) <= 18
    assert len({step["rate"] for step in steps}) == len(steps)


def test_the_search_ends_when_its_steps_are_spent() -> None:
    never = [{"rate": 2.0**-step, "held": False} for step in range(12)]
    assert next_rate(never, 1.0, Sweep()) is None
    assert next_rate(never[:3], 1.0, Sweep()) == 0.125
