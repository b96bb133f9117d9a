"""Tell a person that something still runs: a live line on a terminal, a line now and then in a log."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from typing import TextIO

from .console import elapsed, host_list

FIRST_NOTICE_SECONDS = 10.0
NEXT_NOTICE_SECONDS = 30.0
_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_REFRESH_SECONDS = 0.2


class RunningTasks:
    """What runs where since when. Pure: the clock comes from outside."""

    def __init__(self) -> None:
        """Begin with nothing running."""
        self._hosts: dict[str, dict[str, float]] = {}
        self._names: dict[str, str] = {}
        self._notes: dict[str, str] = {}
        self._noticed: dict[str, float] = {}

    def start(self, task: str, name: str, host: str, now: float) -> None:
        """A host began a task."""
        self._names[task] = name
        self._hosts.setdefault(task, {})[host] = now

    def note(self, task: str, text: str) -> None:
        """Something to add to a task's line, such as which attempt this is."""
        self._notes[task] = text

    def stop(self, task: str, host: str) -> None:
        """A host ended a task."""
        hosts = self._hosts.get(task, {})
        hosts.pop(host, None)
        if not hosts:
            for table in (self._hosts, self._names, self._notes, self._noticed):
                table.pop(task, None)  # type: ignore[attr-defined]

    def clear(self) -> None:
        """Nothing runs any more."""
        for table in (self._hosts, self._names, self._notes, self._noticed):
            table.clear()  # type: ignore[attr-defined]

    def longest(self, now: float) -> tuple[str, float] | None:
        """Return the text and the age in seconds of what has run the longest, or None."""
        if not self._hosts:
            return None
        task = min(self._hosts, key=lambda key: min(self._hosts[key].values()))
        return self._text(task), now - min(self._hosts[task].values())

    def notices(self, now: float) -> list[str]:
        """Return a line for each task that has run for 10 s without a word, and then one every 30 s."""
        lines = []
        for task, hosts in self._hosts.items():
            age = now - min(hosts.values())
            last = self._noticed.get(task)
            if age >= FIRST_NOTICE_SECONDS if last is None else now - last >= NEXT_NOTICE_SECONDS:
                self._noticed[task] = now
                lines.append(f"{self._text(task)}: {elapsed(age)} so far")
        return lines

    def _text(self, task: str) -> str:
        note = self._notes.get(task)
        return f"{self._names[task]} on {host_list(self._hosts[task], 3)}" + (f" ({note})" if note else "")


class LiveLine:
    """A thread that shows what runs. ``say`` prints a whole line for a log; a terminal gets one line that moves."""

    def __init__(self, say: Callable[[str], None], stream: TextIO, live: bool) -> None:
        """Take where a log line goes (``say``), the terminal (``stream``) and whether it is one (``live``)."""
        self._say = say
        self._stream = stream
        self._live = live
        self._lock = threading.Lock()
        self._tasks = RunningTasks()
        self._drawn = False
        self._paused = False
        self._frame = 0
        self._pid = os.getpid()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, task: str, name: str, host: str) -> None:
        """A host began a task; the thread starts with the first."""
        with self._lock:
            self._tasks.start(task, name, host, time.monotonic())
        if self._thread is None:
            self._thread = threading.Thread(target=self._loop, name="plumbline-live-line", daemon=True)
            self._thread.start()

    def note(self, task: str, text: str) -> None:
        """Add to a task's line."""
        with self._lock:
            self._tasks.note(task, text)

    def stop(self, task: str, host: str) -> None:
        """A host ended a task."""
        with self._lock:
            self._tasks.stop(task, host)

    def pause(self, paused: bool) -> None:
        """Keep silent while a person is asked something."""
        self.clear()
        self._paused = paused

    def clear(self) -> None:
        """Wipe the live line, so that another line can be printed. Harmless in Ansible's forked workers."""
        if not self._drawn or os.getpid() != self._pid:
            return
        with self._lock:
            if self._drawn:
                self._drawn = False
                self._write("\r\033[K")

    def end(self) -> None:
        """Stop the thread; nothing is left running."""
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout=2)
            self._thread = None
        self.clear()

    def _loop(self) -> None:
        while not self._wake.wait(_REFRESH_SECONDS if self._live else 1.0):
            if self._paused:
                continue
            if self._live:
                self._draw()
                continue
            with self._lock:
                lines = self._tasks.notices(time.monotonic())
            for line in lines:
                self._say(line)

    def _draw(self) -> None:
        with self._lock:
            longest = self._tasks.longest(time.monotonic())
            if longest is None or longest[1] < 1:
                return
            text, age = longest
            self._frame = (self._frame + 1) % len(_FRAMES)
            line = f"{_FRAMES[self._frame]} {elapsed(age)}  {text}"
            width = shutil.get_terminal_size((100, 24)).columns - 1
            self._drawn = True
            self._write(f"\r\033[K{line[:width]}\r")

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # the terminal went away: the run goes on
            self._live = False


def is_terminal(stream: TextIO = sys.stdout) -> bool:
    """Return whether a person watches: a terminal that can move its cursor."""
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
