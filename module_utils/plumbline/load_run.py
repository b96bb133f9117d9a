"""Applies a load: requests go out when they are due, whether or not earlier ones were answered, and are timed from when they were due.

A client that waits for an answer before it asks again asks less while a server stalls, and so never sees the stall (coordinated
omission). One event loop sends, reads and counts; what can be made before a request is due is made before.
"""

from __future__ import annotations

import asyncio
import gc
import math
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count, islice
from operator import sub
from typing import Callable

from .load_http import Flight, Pool
from .load_prompts import prompt, words_for_tokens
from .load_schedule import due_offsets, endless_offsets
from .load_spec import LoadSpec
from .load_tally import Tally
from .load_target import chat_body
from .load_timer import Timer

SAMPLE_WORDS = 64
HOPELESS = ("http_401", "http_403", "http_404")
_AHEAD = 32
_SWEEP_SECONDS = 0.05
_SPARE_SECONDS = 0.05
_PAUSE_AFTER_FAILURE_SECONDS = 0.1


@dataclass
class Outcome:
    """How a load went. `scheduled_rate` is that of the due times, in requests/s; none in a closed loop."""

    total: Tally
    timeline: list[Tally] = field(default_factory=list)
    planned: int = 0
    scheduled_rate: float | None = None
    prompt_words: int = 0
    warmup_error: str = ""
    first_answer_seconds: float = 0.0
    seconds: float = 0.0
    stopped: bool = False


class Load:
    """One load against one endpoint."""

    def __init__(self, spec: LoadSpec, on_interval: Callable[[Tally], None] | None = None) -> None:
        """Take what to apply; `on_interval` gets each interval when it is over.

        :raises ValueError: when the target is no endpoint.
        """
        self.spec = spec
        self.target = spec.target()
        self.target.place()
        self._on_interval = on_interval
        self._bodies: Iterator[bytes] = iter(())
        self._ready: deque[bytes] = deque()
        self._backlog: deque[float] = deque()
        self._flying: dict[int, Flight] = {}
        self._number = count()
        self._dues: Iterator[float] = iter(())
        self._next: float | None = None
        self._started = 0.0
        self._exhausted = False  # nothing more is due
        self._halted = False  # nothing more is sent, due or not
        self._grace_end = math.inf
        self._all_done: asyncio.Future[None] | None = None
        self._spare = 1
        self._now = Tally(time.time())
        self.outcome = Outcome(Tally(time.time()))

    async def run(self) -> Outcome:
        """Warm up, then apply the load, and return what happened. When no warm-up request succeeds, nothing is measured."""
        self._loop = asyncio.get_running_loop()
        self._pool = Pool(self.target, self._loop)
        try:
            await self._warm_up()
            if not self.outcome.warmup_error:
                await self._apply()
        finally:
            self._pool.close()
        return self.outcome

    def stop(self) -> None:
        """Send nothing more; what is under way has `grace_seconds` to end. May be called at any time, more than once."""
        if not self._halted:
            self._halted = self.outcome.stopped = True
            self._grace_end = time.monotonic() + self.spec.grace_seconds
            self._look_whether_done()

    # --- warm-up ---

    async def _warm_up(self) -> None:
        """Send the warm-up requests one after the other; find the words per prompt that make the wanted tokens.

        At least one is always sent: it tells how many tokens the server makes of a word, and how long an answer takes.
        """
        spec = self.spec
        words, samples, error, worked = SAMPLE_WORDS, [], "", 0
        patience = time.monotonic() + spec.warmup_wait_seconds
        numbers = count(spec.first_prompt)
        while worked < max(1, spec.warmup_requests) and not self._halted:
            flight = await self._ask(prompt(next(numbers), words))
            if flight.error:
                error = f"{flight.error}: {flight.detail}" if flight.detail else flight.error
                worked += spec.warmup_wait_seconds == 0 and not worked
                if flight.error in HOPELESS or time.monotonic() >= patience:
                    break
                await asyncio.sleep(1)
                continue
            worked += 1
            error = ""
            self.outcome.first_answer_seconds = flight.ended - flight.sent
            if flight.stream.prompt_tokens and not spec.prompts:
                samples.append((words, flight.stream.prompt_tokens))
                words = words_for_tokens(spec.prompt_tokens, samples)
        self.outcome.warmup_error = error if not self.outcome.first_answer_seconds else ""
        self.outcome.prompt_words = words
        self._bodies = self._make_bodies(numbers, words)

    def _make_bodies(self, numbers: Iterator[int], words: int) -> Iterator[bytes]:
        spec = self.spec
        if spec.prompts:
            bodies = [
                self._wire(entry["messages"], entry.get("output_tokens", spec.output_tokens)) for entry in spec.prompts
            ]
            while True:
                yield from bodies
        for number in numbers:
            yield self._wire([{"role": "user", "content": prompt(number, words)}], spec.output_tokens)

    def _wire(self, messages: object, output_tokens: int) -> bytes:
        body = chat_body(self.spec.model, messages, output_tokens, self.spec.ignore_eos)
        return self.target.head("POST", "/chat/completions", len(body)) + body

    async def _ask(self, text: str) -> Flight:
        done: asyncio.Future[None] = self._loop.create_future()
        messages = self.spec.prompts[0]["messages"] if self.spec.prompts else [{"role": "user", "content": text}]
        wire = self._wire(messages, self.spec.output_tokens)

        def finished(_: Flight) -> None:
            if not done.done():
                done.set_result(None)

        flight = Flight(time.monotonic(), wire, finished)
        self._pool.send(flight)
        try:
            await asyncio.wait_for(done, self.spec.request_timeout_seconds)
        except asyncio.TimeoutError:
            _give_up(flight)
        return flight

    # --- the measured part ---

    async def _apply(self) -> None:
        spec, outcome = self.spec, self.outcome
        closed = spec.arrival == "closed"
        for _ in range(_AHEAD):
            self._ready.append(next(self._bodies))
        if not closed:
            self._spare = math.ceil(spec.rate_per_second * _SPARE_SECONDS) + 1
        expected = spec.concurrency if closed else spec.rate_per_second * outcome.first_answer_seconds * 1.5
        self._pool.warm(min(spec.max_in_flight, math.ceil(expected) + self._spare))
        await self._pool.ready()
        collected = gc.get_threshold()
        gc.collect()
        gc.freeze()
        # A collection of all generations among many live requests would be a pause of its own.
        gc.set_threshold(50_000, 20, 100)
        self._all_done = self._loop.create_future()
        self._timer = Timer(self._loop, self._fire)
        self._cpu = time.process_time()
        self._started = time.monotonic() + 0.05
        self._wall = time.time() + 0.05 - self._started
        self._now = Tally(self._wall + self._started)
        outcome.total.start = outcome.total.end = self._now.start
        chores = [self._loop.create_task(self._sweep())]
        if spec.interval_seconds:
            chores.append(self._loop.create_task(self._cut_intervals()))
        try:
            if closed:
                self._start_closed()
            else:
                self._start_open()
            self._look_whether_done()
            await self._all_done
        finally:
            for chore in chores:
                chore.cancel()
            self._timer.close()
            gc.set_threshold(*collected)
            gc.unfreeze()
        outcome.seconds = time.monotonic() - self._started
        self._cut()

    def _start_open(self) -> None:
        spec = self.spec
        if spec.requests:
            offsets = due_offsets(spec.arrival, spec.rate_per_second, spec.requests, spec.seed)
            self.outcome.planned = len(offsets)
            self.outcome.scheduled_rate = (len(offsets) - 1) / offsets[-1] if len(offsets) > 1 else spec.rate_per_second
            self._dues = iter(offsets)
        else:
            self._dues = endless_offsets(spec.arrival, spec.rate_per_second, spec.seed)
            self.outcome.scheduled_rate = spec.rate_per_second
        self._advance()
        self._fire()

    def _start_closed(self) -> None:
        self.outcome.planned = self.spec.requests
        self._timer.at(self._started)
        if self.spec.duration_seconds:
            self._loop.call_later(self.spec.duration_seconds + 0.05, self._exhaust)

    def _advance(self) -> None:
        """Find the next due time, if there is one."""
        offset = next(self._dues, None)
        if offset is None or (self.spec.duration_seconds and offset >= self.spec.duration_seconds):
            self._next = None
            self._exhausted = True
        else:
            self._next = self._started + offset

    def _fire(self) -> None:
        """Send all that is due now."""
        if self._halted:
            return
        if self.spec.arrival == "closed":
            for _ in range(self.spec.concurrency):
                self._again()
            return
        while self._next is not None and self._next <= time.monotonic():
            self._now.counts["requested"] += 1
            due = self._next
            self._advance()
            if len(self._flying) >= self.spec.max_in_flight:
                self._backlog.append(due)
            else:
                self._launch(due)
        if self._next is not None:
            self._timer.at(self._next)
        self._pool.warm(min(self._spare, self.spec.max_in_flight - len(self._flying)))

    def _again(self) -> None:
        """The next request of a user in a closed loop."""
        if self._halted or self._exhausted:
            self._look_whether_done()
            return
        sent = self._now.counts["requested"] + self.outcome.total.counts["requested"]
        if self.spec.requests and sent >= self.spec.requests:
            self._exhaust()
            return
        self._now.counts["requested"] += 1
        self._launch(time.monotonic())

    def _launch(self, due: float) -> None:
        flight = Flight(due, self._ready.popleft(), self._finished)
        flight.launched = time.monotonic()
        flight.number = next(self._number)
        self._flying[flight.number] = flight
        self._now.most_in_flight = max(self._now.most_in_flight, len(self._flying))
        self._now.counts["sent"] += 1
        self._pool.send(flight)
        self._ready.append(next(self._bodies))

    def _finished(self, flight: Flight) -> None:
        del self._flying[flight.number]
        self._record(flight)
        if self._backlog and not self._halted:
            self._launch(self._backlog.popleft())
        elif self.spec.arrival == "closed":
            # Not at once: an endpoint that refuses would keep the loop busy.
            self._loop.call_later(_PAUSE_AFTER_FAILURE_SECONDS if flight.error else 0, self._again)
        self._look_whether_done()

    def _exhaust(self) -> None:
        self._exhausted = True
        self._look_whether_done()

    def _look_whether_done(self) -> None:
        over = self._halted or (self._exhausted and not self._backlog)
        if over and not self._flying and self._all_done is not None and not self._all_done.done():
            self._all_done.set_result(None)

    def _record(self, flight: Flight) -> None:
        tally, stream = self._now, flight.stream
        tally.counts["resent"] += flight.tries > 1
        if flight.error == "abandoned":
            tally.counts["abandoned"] += 1
            return
        tally.ended(flight.ended)
        if flight.sent:
            tally.histograms["send_lag"].record(flight.sent - flight.due)
        if flight.error:
            tally.fail(flight.error, flight.detail)
            return
        times = stream.times
        first, whole = times[0] - flight.due, flight.ended - flight.due
        gaps = list(map(sub, islice(times, 1, None), times))
        tally.counts["completed"] += 1
        tally.counts["prompt_tokens"] += stream.prompt_tokens
        tally.counts["output_tokens"] += stream.output_tokens
        tally.counts["pieces"] += len(times)
        tally.histograms["time_to_first_token"].record(first)
        tally.histograms["end_to_end_latency"].record(whole)
        tally.histograms["inter_token_latency"].record_all(gaps)
        each = (times[-1] - times[0]) / (stream.output_tokens - 1) if stream.output_tokens > 1 and gaps else None
        if each is not None:
            tally.histograms["time_per_output_token"].record(each)
        tally.counts["good"] += self._keeps_slo(first, each, whole)

    def _keeps_slo(self, first: float, each: float | None, whole: float) -> bool:
        slo = self.spec.slo
        return (
            first <= slo.get("time_to_first_token_seconds", math.inf)
            and (each or 0.0) <= slo.get("inter_token_latency_seconds", math.inf)
            and whole <= slo.get("end_to_end_latency_seconds", math.inf)
        )

    # --- chores ---

    async def _sweep(self) -> None:
        """Give up what takes too long, and everything when the time is over."""
        spec = self.spec
        end = self._started + spec.max_duration_seconds if spec.max_duration_seconds else math.inf
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            now = time.monotonic()
            oldest = now - spec.request_timeout_seconds
            late = []
            for flight in self._flying.values():  # in the order of their launch
                if flight.launched > oldest:
                    break
                late.append(flight)
            for flight in late:
                _give_up(flight)
            if now >= end:
                self._halted = True
            if now >= min(end, self._grace_end):
                for flight in list(self._flying.values()):
                    if now >= end:
                        _give_up(flight)
                    else:
                        _give_up(flight, "abandoned", "")
                self._look_whether_done()

    async def _cut_intervals(self) -> None:
        for number in count(1):
            await asyncio.sleep(self._started + number * self.spec.interval_seconds - time.monotonic())
            self._cut()

    def _cut(self) -> None:
        """Close the interval and begin the next."""
        done = self._now
        done.end = self._wall + time.monotonic()
        done.in_flight = len(self._flying)
        cpu = time.process_time()
        done.client_cpu_seconds, self._cpu = cpu - self._cpu, cpu
        self._now = Tally(done.end)
        self._now.most_in_flight = len(self._flying)
        self.outcome.total.add(done)
        if self._on_interval is not None:
            self._on_interval(done)
        elif self.spec.interval_seconds:
            self.outcome.timeline.append(done)


def _give_up(flight: Flight, kind: str = "timeout", detail: str = "no whole answer within the time limit") -> None:
    connection = flight.connection
    flight.end(time.monotonic(), kind, detail)
    if connection is not None:
        connection.flight = None
        connection.close()
