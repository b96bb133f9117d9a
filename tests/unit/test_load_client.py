"""The load client against an endpoint with planned behaviour. No assertion depends on how fast this machine is."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.load_client import (
    LoadPlan,
    LoadResult,
    http_sender,
    run_load,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.load_prompts import prompt, words_for_tokens
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.load_schedule import due_offsets
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.openai_client import (
    Endpoint,
    Prompt,
    RequestFailed,
    Timing,
    stream,
)

from tests.mock_endpoint import Behaviour, serve

PLAN = LoadPlan(
    arrival="constant",
    rate_per_second=50,
    requests=10,
    warmup_requests=1,
    prompt_tokens=60,
    output_tokens=5,
    ignore_eos=True,
    request_timeout_seconds=20,
    max_duration_seconds=60,
    max_in_flight=64,
    seed=1,
    first_prompt=7,
)


def load(behaviour: Behaviour, plan: LoadPlan = PLAN, api_key: str = Behaviour.api_key) -> LoadResult:
    with serve(behaviour) as mock:
        return run_load(plan, http_sender(Endpoint(mock.base_url, api_key), behaviour.model))


def one(behaviour: Behaviour, seconds: float = 20) -> Timing:
    timing = Timing(0, time.monotonic())
    with serve(behaviour) as mock:
        endpoint = Endpoint(mock.base_url, behaviour.api_key)
        stream(endpoint, "mock", Prompt("hello", 5), timing, deadline=time.monotonic() + seconds)
    return timing


def test_every_request_is_answered_and_timed() -> None:
    result = load(Behaviour())
    assert result.unsent == 0
    assert len(result.timings) == 10
    for timing in result.timings:
        assert timing.succeeded, timing
        assert len(timing.token_times) == 5
        assert timing.output_tokens == 5
        assert timing.sent is not None
        assert timing.scheduled <= timing.sent <= timing.token_times[0]
        assert timing.end_to_end >= timing.time_to_first_token > 0


def test_prompts_reach_the_wanted_length_and_differ() -> None:
    with serve(Behaviour()) as mock:
        result = run_load(PLAN, http_sender(Endpoint(mock.base_url, mock.behaviour.api_key), "mock"))
    assert result.prompt_words == 30  # the mock makes two tokens of a word
    assert {timing.prompt_tokens for timing in result.timings} == {60}
    texts = [body["messages"][0]["content"] for body in mock.bodies]
    assert len(set(texts)) == len(texts) == 11
    assert len({text.split()[0] for text in texts}) == 11  # different from the first word on: no prefix cache helps
    assert all(body["stream"] and body["ignore_eos"] and body["max_tokens"] == 5 for body in mock.bodies)


def test_a_stall_is_in_the_latency_of_every_request_that_was_due_during_it() -> None:
    """Coordinated omission: a closed-loop client would see one slow request here."""
    behaviour = Behaviour(stall_at=1, stall_seconds=1.0)  # request 0 is the warm-up
    result = load(behaviour, replace(PLAN, rate_per_second=20, requests=10))
    first = result.timings[0]
    for timing in result.timings:
        due_after_first = timing.scheduled - first.scheduled
        # What was due d seconds into the stall waits at least for the rest of it; lower bounds hold on any machine.
        assert timing.time_to_first_token >= 1.0 - due_after_first - 0.05
    assert sum(timing.time_to_first_token > 0.5 for timing in result.timings) >= 9


def test_sending_does_not_wait_for_answers() -> None:
    behaviour = Behaviour(first_token_seconds=0.6)
    result = load(behaviour, replace(PLAN, rate_per_second=100, requests=20))
    assert result.most_in_flight >= 15


def test_the_limit_of_requests_in_flight_holds_and_shows_as_latency() -> None:
    behaviour = Behaviour(first_token_seconds=0.2)
    result = load(behaviour, replace(PLAN, rate_per_second=1000, requests=6, max_in_flight=2))
    assert result.most_in_flight == 2
    assert max(timing.end_to_end for timing in result.timings) >= 0.55  # three rounds of 0.2 s, all due at once


def test_the_time_limit_ends_the_load_and_says_what_was_not_sent() -> None:
    behaviour = Behaviour(first_token_seconds=30)
    result = load(behaviour, replace(PLAN, warmup_requests=0, request_timeout_seconds=0.3))
    assert result.warmup_error.startswith("timeout")
    assert result.unsent == 10

    behaviour = Behaviour(one_at_a_time=True, first_token_seconds=0.4)
    result = load(behaviour, replace(PLAN, max_duration_seconds=1, max_in_flight=1))
    assert result.unsent > 0


@pytest.mark.parametrize(
    ("behaviour", "kind"),
    [
        (Behaviour(fail_every=1, fail_status=503), "http_503"),
        (Behaviour(fail_every=1, fail_status=429), "http_429"),
        (Behaviour(cut_off=True), "incomplete"),
        (Behaviour(no_tokens=True), "empty"),
        (Behaviour(broken_json=True), "incomplete"),
    ],
)
def test_failures_are_told_apart(behaviour: Behaviour, kind: str) -> None:
    timing = one(behaviour)
    assert timing.error == kind
    assert not timing.succeeded
    assert timing.detail


def test_a_request_that_takes_too_long_is_a_timeout() -> None:
    timing = one(Behaviour(between_tokens_seconds=10), seconds=0.5)
    assert timing.error == "timeout"
    assert not timing.succeeded


def test_nobody_listens() -> None:
    timing = Timing(0, time.monotonic())
    with serve(Behaviour()) as mock:
        gone = mock.base_url
    stream(Endpoint(gone, "key"), "mock", Prompt("hello", 5), timing, deadline=time.monotonic() + 5)
    assert timing.error == "connection"


def test_a_server_without_usage_still_counts_tokens() -> None:
    timing = one(Behaviour(report_usage=False))
    assert timing.succeeded
    assert timing.output_tokens == 5


def test_a_wrong_key_ends_the_warm_up_at_once() -> None:
    with serve(Behaviour()) as mock:
        plan = replace(PLAN, warmup_requests=5)
        result = run_load(plan, http_sender(Endpoint(mock.base_url, "wrong"), "mock"))
    assert result.warmup_error.startswith("http_401")
    assert mock.bodies == []
    assert result.timings == []


def test_the_first_model_that_an_endpoint_lists() -> None:
    with serve(Behaviour(model="smol")) as mock:
        listed = Endpoint(mock.base_url, mock.behaviour.api_key).get_json("/models", 5)
        with pytest.raises(RequestFailed, match="http_401"):
            Endpoint(mock.base_url, "wrong").get_json("/models", 5)
    assert listed["data"][0]["id"] == "smol"


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://127.0.0.1/v1", "http:///v1"])
def test_a_base_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="base URL"):
        Endpoint(url).connect(1)


def test_the_key_is_not_in_the_endpoints_text() -> None:
    assert "secret-key" not in repr(Endpoint("http://127.0.0.1/v1", "secret-key"))


def test_constant_arrivals() -> None:
    assert due_offsets("constant", 4, 5, 1) == [0, 0.25, 0.5, 0.75, 1.0]


def test_poisson_arrivals_have_the_rate_and_repeat() -> None:
    offsets = due_offsets("poisson", 10, 20_001, 3)
    assert offsets == due_offsets("poisson", 10, 20_001, 3)
    assert offsets != due_offsets("poisson", 10, 20_001, 4)
    gaps = [later - earlier for earlier, later in zip(offsets, offsets[1:], strict=False)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(0.1)
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
