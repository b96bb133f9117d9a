"""The soak on the node: keeps the load going and appends a line for each reading, whoever is logged in.

Runs as a transient systemd unit, `python3 -I plumbline-soak.pyz FOLDER RUNTIME`; standard library only. `FOLDER/spec.json` says what to do,
`RUNTIME` (in /run, gone with a restart) holds the API key. What was done already is read from the folder, so that the same command goes on.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from . import soak_readings as read
from .tree import Tree

SAMPLES, LOAD, SPEC, PROGRESS = "samples.jsonl", "load.jsonl", "spec.json", "progress.json"
_MOST_WAITING = 20_000
_SLOW_EVERY = 6  # of what costs more to read, one reading in so many
_SHARE_FOR_PSS = 0.01  # of the time may go into the proportional set size
_RESTART_LOAD_SECONDS = 10.0
_GAP = 5  # intervals without a sample: nothing was loaded or read then


class Lines:
    """Appends lines of JSON; what a full disk refuses waits in memory, the oldest is given up when too much waits."""

    def __init__(self, path: Path) -> None:
        """Open the file and end a line that was left unfinished."""
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        self._waiting: list[bytes] = []
        self.lost = 0
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            self._waiting.append(b"\n")

    def append(self, line: dict[str, Any]) -> None:
        """Append a line now or, where that fails, with the next one."""
        self._waiting.append(json.dumps(line, separators=(",", ":")).encode() + b"\n")
        if len(self._waiting) > _MOST_WAITING:
            self.lost += 1
            del self._waiting[0]
        while self._waiting:
            try:
                written = os.write(self._file, self._waiting[0])
            except OSError as error:
                print(f"{len(self._waiting)} lines wait for the disk: {error}", file=sys.stderr)
                return
            self._waiting[0] = self._waiting[0][written:]
            if not self._waiting[0]:
                del self._waiting[0]

    @property
    def waiting(self) -> int:
        """How many lines are not on the disk yet."""
        return len(self._waiting)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


class LoadCount:
    """Counts what the load client has written, reading each line once."""

    def __init__(self, path: Path) -> None:
        """Begin at the beginning of the file, whether it is there or not."""
        self._path, self._offset = path, 0
        self.requests = self.failed = 0

    def update(self) -> None:
        """Take in the whole lines that were added."""
        with contextlib.suppress(OSError), self._path.open("rb") as stream:
            stream.seek(self._offset)
            for line in stream:
                if not line.endswith(b"\n"):
                    break
                self._offset += len(line)
                with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
                    content = json.loads(line)
                    failed = sum(content["failed"].values())
                    self.failed += failed
                    self.requests += failed + content["completed"]


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file, without those that are damaged."""
    found = []
    with contextlib.suppress(FileNotFoundError), path.open("rb") as stream:
        for line in stream:
            with contextlib.suppress(ValueError):
                content = json.loads(line)
                if isinstance(content, dict):
                    found.append(content)
    return found


def done_seconds(samples: list[dict[str, Any]], interval: float) -> float:
    """How long the soak has run, gaps left out: those between its sessions, and those in which nothing was read."""
    total, last = 0.0, None
    for sample in samples:
        if sample.get("kind") == "session":
            last = None
        elif sample.get("kind") == "sample":
            moment = float(sample["time"])
            if last is not None and 0 < moment - last <= _GAP * interval:
                total += moment - last
            last = moment
    return total


class Sampler:
    """One session of a soak."""

    def __init__(self, folder: Path, runtime: Path) -> None:
        """Read what to do and what was done already."""
        self._folder, self._runtime = folder, runtime
        self._spec: dict[str, Any] = json.loads((folder / SPEC).read_text(encoding="utf-8"))
        self._interval = float(self._spec["interval_seconds"])
        self._tree = Tree()
        before = read_lines(folder / SAMPLES)
        self._wanted = float(self._spec["duration_seconds"])
        self._remaining = max(0.0, self._wanted - done_seconds(before, self._interval))
        self._counted = LoadCount(folder / LOAD)
        self._lines = Lines(folder / SAMPLES)
        self._load: subprocess.Popen[bytes] | None = None
        self._load_ended = 0.0
        self._stopped = False
        self._pss_after = 0.0

    def run(self) -> int:
        """Sample until the time is over or a signal comes; 0 in both cases."""
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, self._stop)
        boot = read.boot_identity(self._tree)
        self._lines.append({"kind": "session", "time": time.time(), "boot": boot, "remaining": self._remaining})
        begun, count = time.monotonic(), 0
        end = begun + self._remaining
        try:
            while not self._stopped and time.monotonic() < end:
                self._keep_loading(end)
                sample = self._sample(count % _SLOW_EVERY == 0)
                self._lines.append(sample)
                self._tell(sample, max(0.0, end - time.monotonic()))
                count += 1
                # The next whole interval since the beginning: a slow reading does not shift those behind it.
                due = begun + self._interval * (int((time.monotonic() - begun) / self._interval) + 1)
                while not self._stopped and (wait := min(due, end) - time.monotonic()) > 0:
                    time.sleep(min(wait, 1.0))
            self._lines.append(self._sample(True))
        finally:
            self._end_load()
            reason = "stopped" if self._stopped else "over"
            self._lines.append({"kind": "end", "time": time.time(), "reason": reason, "lost": self._lines.lost})
            self._lines.close()
        return 0

    def _stop(self, *_: Any) -> None:
        self._stopped = True

    def _tell(self, sample: dict[str, Any], remaining: float) -> None:
        """Leave in the runtime folder how far it is; it lies in memory, so that a full disk is no matter."""
        self._counted.update()
        progress = {
            "time": sample["time"],
            "done_seconds": self._wanted - remaining,
            "wanted_seconds": self._wanted,
            "requests": self._counted.requests,
            "failed": self._counted.failed,
            "memory_bytes": sample["memory"].get("anonymous"),
            "waiting": self._lines.waiting,
        }
        fresh = self._runtime / "progress.new"
        with contextlib.suppress(OSError):
            fresh.write_text(json.dumps(progress), encoding="utf-8")
            fresh.replace(self._runtime / PROGRESS)

    def _sample(self, slow: bool) -> dict[str, Any]:
        engine, processes = read.engine_processes(self._tree, self._spec["unit"])
        line: dict[str, Any] = {
            "kind": "sample",
            "time": round(time.time(), 3),
            "engine": engine,
            "node": read.node_memory(self._tree),
            "memory": read.process_memory(self._tree, processes),
            "loading": self._load is not None and self._load.poll() is None,
        }
        if slow:
            line["gpus"] = read.gpus()
            line["temperatures"] = read.temperatures(self._tree)
            line["links"] = read.links(self._tree)
            line["memory_errors"] = read.memory_errors(self._tree)
        if processes and time.monotonic() >= self._pss_after:
            pss, took = read.proportional_memory(self._tree, processes)
            if pss is not None:
                line["memory"]["pss"] = pss
            self._pss_after = time.monotonic() + took / _SHARE_FOR_PSS
        return line

    def _keep_loading(self, end: float) -> None:
        """Start the load, and again where it ended before its time."""
        now = time.monotonic()
        if self._load is not None:
            if self._load.poll() is None:
                return
            self._load, self._load_ended = None, now
        if (self._load_ended and now < self._load_ended + _RESTART_LOAD_SECONDS) or end - now < 1:
            return
        load = {
            **self._spec["load"],
            "api_key_file": str(self._runtime / "key"),
            "duration_seconds": round(end - now, 3),
            "output": str(self._folder / LOAD),
        }
        (self._runtime / "load.json").write_text(json.dumps(load), encoding="utf-8")
        self._load = subprocess.Popen(
            [self._spec["python"], "-I", str(self._folder / "plumbline-load.pyz"), str(self._runtime / "load.json")]
        )

    def _end_load(self) -> None:
        if self._load is None:
            return
        patience = float(self._spec["load"].get("grace_seconds", 10)) + 10
        if self._load.poll() is None and self._stopped:
            self._load.terminate()
        try:
            self._load.wait(patience)
        except subprocess.TimeoutExpired:
            self._load.terminate()
            try:
                self._load.wait(patience)
            except subprocess.TimeoutExpired:
                self._load.kill()
                self._load.wait()


def main(arguments: list[str]) -> int:
    """Run a session; one sentence and 2 where it cannot begin."""
    try:
        sampler = Sampler(Path(arguments[0]), Path(arguments[1]))
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        print(f"plumbline-soak: error: the soak cannot begin: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    return sampler.run()
