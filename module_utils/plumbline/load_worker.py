"""The load client as a program of its own, in a Python that has aiohttp (the engine's has).

As a worker of `run_worker` it takes its load on standard input and says its result once. With a file as argument it runs for hours:
it appends a line of JSON to the load's `output` for each interval and ends cleanly on SIGTERM. docs/benchmark.md describes both.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from .load_run import Load, Outcome
from .load_spec import LoadSpec, read_spec
from .load_sweep import run_sweep
from .load_sweep_plan import read_sweep
from .worker_result import say

_MOST_WAITING_LINES = 10_000


def main(job: str) -> int:
    """Apply the load that a JSON text describes and say what happened."""
    try:
        say(measure(json.loads(job)))
    except (ValueError, OSError) as error:
        say({"error": str(error)})
        return 1
    return 0


def measure(content: Any) -> dict[str, Any]:
    """Apply the load that a JSON object describes, and search for the highest rate if its `sweep` says how.

    :raises ValueError: when it is not sound.
    """
    given = dict(content) if isinstance(content, dict) else content
    wish = given.pop("sweep", None) if isinstance(given, dict) else None
    spec = read_spec(given)
    sweep = read_sweep(wish) if wish else None
    _hurry()
    try:
        spec = _with_model(spec)
    except ModelUnknownError as error:
        return {"warmup_error": str(error)}
    outcome = asyncio.run(_run(Load(spec)))
    result = outcome_json(outcome)
    if sweep is not None and not outcome.warmup_error and not outcome.stopped:
        first = replace(spec, first_prompt=spec.first_prompt + spec.requests + spec.warmup_requests + 1)
        result["sweep"] = asyncio.run(run_sweep(first, sweep))
    return result


class ModelUnknownError(ValueError):
    """The endpoint lists no model."""


def _hurry() -> None:
    """Come before others to the processor, where that is allowed: a client that waits its turn behind the engine measures its own wait."""
    with contextlib.suppress(OSError, AttributeError):  # forbidden, or not Linux
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def outcome_json(outcome: Outcome) -> dict[str, Any]:
    """Return an outcome as JSON has it."""
    return {
        "total": outcome.total.to_json(),
        "timeline": [tally.to_json() for tally in outcome.timeline],
        "planned": outcome.planned,
        "scheduled_rate": outcome.scheduled_rate,
        "prompt_words": outcome.prompt_words,
        "warmup_error": outcome.warmup_error,
        "seconds": outcome.seconds,
        "stopped": outcome.stopped,
    }


def command(arguments: Sequence[str]) -> int:
    """Run `SPEC.json` for hours; return the exit status. 0: it ran to its end or was told to end, 1: it could not run, 2: no sound spec."""
    if len(arguments) != 2:
        print("usage: load_worker SPEC.json", file=sys.stderr)
        return 2
    try:
        spec = _read_file(arguments[1])
    except ValueError as error:
        print(f"{arguments[1]}: {error}", file=sys.stderr)
        return 2
    try:
        with _Lines(spec.output) as lines:
            return _long_run(spec, lines)
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1


def _read_file(path: str) -> LoadSpec:
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"a load in JSON was expected: {error}") from error
    spec = read_spec(content)
    if not spec.output or not spec.interval_seconds:
        raise ValueError("output (a file) and interval_seconds (above 0) are needed to run for hours")
    return replace(spec, first_prompt=spec.first_prompt or int(time.time()))


def _long_run(spec: LoadSpec, lines: _Lines) -> int:
    _hurry()
    spec = _with_model(spec)
    told = {name: value for name, value in asdict(spec).items() if name not in ("api_key", "prompts")}
    load = Load(spec, lambda tally: lines.write({"kind": "interval", **tally.to_json()}))
    lines.write({"kind": "start", "time": time.time(), "process": os.getpid(), "load": told})
    outcome = asyncio.run(_run(load))
    reason = outcome.warmup_error or ("stopped" if outcome.stopped else "over")
    lines.write(
        {
            "kind": "end",
            "time": time.time(),
            "reason": reason,
            "prompt_words": outcome.prompt_words,
            "seconds": outcome.seconds,
        }
    )
    if outcome.warmup_error:
        print(f"no warm-up request succeeded: {outcome.warmup_error}", file=sys.stderr)
    return 1 if outcome.warmup_error else 0


async def _run(load: Load) -> Outcome:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(NotImplementedError, RuntimeError):  # elsewhere than in the main thread
            loop.add_signal_handler(number, load.stop)
    return await load.run()


def _with_model(spec: LoadSpec) -> LoadSpec:
    return spec if spec.model else replace(spec, model=asyncio.run(first_model(spec)))


async def first_model(spec: LoadSpec) -> str:
    """Return the first model that the endpoint lists.

    :raises ModelUnknownError: when it lists none.
    """
    import aiohttp  # noqa: PLC0415 - 0.2 s, for this alone

    tls = spec.target().place()[2]
    headers = {"Authorization": f"Bearer {spec.api_key}"} if spec.api_key else {}
    until = time.monotonic() + spec.warmup_wait_seconds
    while True:
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30), headers=headers) as session,
                session.get(spec.base_url.rstrip("/") + "/models", ssl=tls or True) as answer,
            ):
                text = await answer.text()
                if answer.status != 200:
                    raise ValueError(f"http_{answer.status}: {text[:300]}")
                return str(json.loads(text)["data"][0]["id"])
        except (aiohttp.ClientError, asyncio.TimeoutError, ValueError, KeyError, IndexError, TypeError) as error:
            if time.monotonic() >= until:
                reason = str(error) or type(error).__name__
                raise ModelUnknownError(f"the endpoint lists no model: {reason}") from error
        await asyncio.sleep(1)


class _Lines:
    """Appends lines of JSON to a file; what a full disk refuses waits in memory for the next one."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._waiting: list[bytes] = []
        self._file = -1

    def __enter__(self) -> _Lines:
        # A line that an earlier run left unfinished must not swallow the first of this one.
        self._file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            self._waiting.append(b"\n")
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)
        if self._waiting:
            print(f"{self._path}: {len(self._waiting)} lines could not be written", file=sys.stderr)

    def write(self, line: dict[str, Any]) -> None:
        self._waiting.append(json.dumps(line, separators=(",", ":")).encode() + b"\n")
        del self._waiting[:-_MOST_WAITING_LINES]
        while self._waiting:
            try:
                written = os.write(self._file, self._waiting[0])
            except OSError as error:
                print(f"{self._path} cannot be written: {error}; kept for the next interval", file=sys.stderr)
                return
            if written < len(self._waiting[0]):
                self._waiting[0] = self._waiting[0][written:]
            else:
                del self._waiting[0]
