"""An open-loop load: requests go out when they are due, whether or not earlier ones were answered.

A closed-loop client waits for an answer before it asks again, so a stall of the server delays the very requests that would have measured it
(coordinated omission). Here each request has its own thread and its latency counts from the moment at which it was due.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Callable

from .load_prompts import prompt as make_prompt
from .load_prompts import words_for_tokens
from .load_schedule import due_offsets
from .openai_client import Clock, Endpoint, Prompt, Timing, stream

SAMPLE_WORDS = 64


@dataclass(frozen=True)
class LoadPlan:
    """The load to apply. Lengths in tokens, times in seconds, rates in requests per second."""

    arrival: str
    rate_per_second: float
    requests: int
    warmup_requests: int
    prompt_tokens: int
    output_tokens: int
    ignore_eos: bool
    request_timeout_seconds: float
    max_duration_seconds: float
    max_in_flight: int
    seed: int
    first_prompt: int


@dataclass
class LoadResult:
    """What became of the load. `due` are the measured requests' planned offsets; `timings` those that were sent, warm-up excluded."""

    plan: LoadPlan
    due: list[float]
    timings: list[Timing] = field(default_factory=list)
    started: float = 0.0
    prompt_words: int = 0
    most_in_flight: int = 0
    warmup_error: str = ""

    @property
    def unsent(self) -> int:
        """Requests that were due but never went out, because time or the limit of requests in flight ran out."""
        return len(self.due) - len(self.timings)


Send = Callable[[Prompt, Timing, float], None]
"""Sends one request and fills in its timing, giving up at a time on the load's clock."""


def http_sender(endpoint: Endpoint, model: str, clock: Clock = time.monotonic) -> Send:
    """Return the sender that really talks to an endpoint."""

    def send(request: Prompt, timing: Timing, deadline: float) -> None:
        stream(endpoint, model, request, timing, deadline=deadline, clock=clock)

    return send


def run_load(
    plan: LoadPlan, send: Send, clock: Clock = time.monotonic, sleep: Callable[[float], None] = time.sleep
) -> LoadResult:
    """Warm up, then apply the load, and return what happened. Ends within `max_duration_seconds` (of the measured part, warm-up apart).

    When no warm-up request succeeds, nothing is measured and `warmup_error` says why.
    """
    result = LoadResult(plan, due_offsets(plan.arrival, plan.rate_per_second, plan.requests, plan.seed))
    words, result.warmup_error = _warm_up(plan, send, clock)
    if result.warmup_error:
        return result
    result.prompt_words = words
    slots = threading.Semaphore(plan.max_in_flight)
    gauge = _Gauge()
    threads: list[threading.Thread] = []
    result.started = clock() + 0.05
    end = result.started + plan.max_duration_seconds

    def one(request: Prompt, timing: Timing) -> None:
        try:
            with gauge:
                send(request, timing, min(end, clock() + plan.request_timeout_seconds))
        finally:
            slots.release()

    for index, offset in enumerate(result.due):
        due = result.started + offset
        # Made before it is due, so that the making is not in the latency.
        request = Prompt(
            make_prompt(plan.first_prompt + plan.warmup_requests + index, words), plan.output_tokens, plan.ignore_eos
        )
        while (wait := due - clock()) > 0:
            sleep(wait)
        if clock() >= end or not slots.acquire(timeout=max(0.0, end - clock())):
            break
        timing = Timing(index, due)
        result.timings.append(timing)
        thread = threading.Thread(target=one, args=(request, timing), daemon=True)
        threads.append(thread)
        thread.start()
    for thread in threads:
        thread.join()
    result.most_in_flight = gauge.most
    return result


class _Gauge:
    """Counts how many are inside, and the most that ever were."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now = 0
        self.most = 0

    def __enter__(self) -> None:
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._now -= 1


def _warm_up(plan: LoadPlan, send: Send, clock: Clock) -> tuple[int, str]:
    """Send the warm-up requests one after the other; return the words per prompt that make the wanted tokens, and an error if none worked.

    At least one is always sent: it tells how many tokens the server makes of a word.
    """
    words = SAMPLE_WORDS
    samples: list[tuple[int, int]] = []
    error = ""
    worked = False
    for index in range(max(1, plan.warmup_requests)):
        now = clock()
        timing = Timing(-1 - index, now)
        request = Prompt(make_prompt(plan.first_prompt + index, words), plan.output_tokens, plan.ignore_eos)
        send(request, timing, now + plan.request_timeout_seconds)
        if timing.succeeded:
            if timing.prompt_tokens:
                samples.append((words, timing.prompt_tokens))
                words = words_for_tokens(plan.prompt_tokens, samples)
            worked = True
        else:
            error = f"{timing.error}: {timing.detail}" if timing.detail else timing.error
            if timing.error in ("http_401", "http_403", "http_404", "connection"):
                break  # asking again will not help
    return words, "" if worked else error
