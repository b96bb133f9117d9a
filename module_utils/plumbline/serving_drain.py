"""Drain an endpoint before it is stopped, so that no request is lost which somebody else could answer, and none that runs is cut off.

This file is both a library and, copied to `/opt/plumbline/bin/plumbline-drain`, the program that the serving unit runs before it ends its
engine (`ExecStop=`). Standard library only, Python 3.9, no import from its neighbours (it must stand alone on the node).

1. Notice: the record of the right completion goes, so that `GET /plumbline/status` says 503 while requests are still taken. A gateway that
   follows readiness sends new ones elsewhere.
2. Drain: the drain file comes, and the middleware (package plumbline_serving) refuses new requests with 503 and Retry-After.
3. It waits until no request runs, or the time is over.

An endpoint without the middleware is left to the engine's own way of stopping. The program always ends with 0: whatever happens
here, the engine is stopped.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

STATUS_PATH = "/plumbline/status"
POLL_SECONDS = 0.2
ANSWER_SECONDS = 5.0


class NoMiddleware(Exception):  # noqa: N818  a state of the endpoint, not a fault of the program
    """The endpoint answers, but does not know the status path."""


@dataclass(frozen=True)
class Status:
    """What the middleware says: whether it lets no new request in, and how many run."""

    draining: bool
    running: int


def parse_status(code: int, text: str) -> Status:
    """Return the status in an answer. Raises NoMiddleware when it is none."""
    try:
        payload: Any = json.loads(text) if code in (200, 503) else None
        return Status(payload["draining"] is True, int(payload["running"]))
    except (ValueError, TypeError, KeyError) as error:
        raise NoMiddleware(f"HTTP {code}") from error


def ask_status(base_url: str, timeout_seconds: float = ANSWER_SECONDS) -> Status:
    """Ask the endpoint whose API is at *base_url*.

    Raises NoMiddleware when it knows no such path, OSError when it does not answer.
    """
    parts = urlsplit(base_url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_seconds)
    try:
        connection.request("GET", STATUS_PATH, headers={"Connection": "close"})
        response = connection.getresponse()
        return parse_status(response.status, response.read(65536).decode("utf-8", "replace"))
    except http.client.HTTPException as error:
        raise OSError(f"no HTTP answer: {error or type(error).__name__}") from error
    finally:
        connection.close()


def recorded_url(record: Path, otherwise: str) -> str:
    """Return the address at which what runs was found ready: the unit's own text may have changed since its start."""
    try:
        found = json.loads(record.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return otherwise
    url = found.get("url") if isinstance(found, dict) else None
    return url if isinstance(url, str) and url.startswith("http://") else otherwise


def alive(pid: int) -> bool:
    """Tell whether the process still runs."""
    return Path(f"/proc/{pid}").exists()


@dataclass(frozen=True)
class Drain:
    """What to drain, and how patiently. Times in seconds."""

    main_pid: int
    base_url: str
    record: Path
    drain_file: Path
    notice_seconds: float
    timeout_seconds: float

    def run(self) -> str:
        """Drain, and return in a sentence how it went."""
        try:
            status = ask_status(self.base_url)
        except NoMiddleware as error:
            return f"{self.base_url} has no status to ask for ({error}): the engine itself ends what runs"
        except (OSError, ValueError) as error:
            return f"{self.base_url} does not answer ({error}): nothing to wait for"
        try:
            if self.record.exists():
                self.record.unlink()
        except OSError as error:
            print(f"plumbline-drain: {self.record} cannot be removed ({error}), so no gateway has notice", flush=True)
        else:
            self._sleep(self.notice_seconds)
        try:
            self.drain_file.touch()
        except OSError as error:
            return f"{self.drain_file} cannot be made ({error}): requests are cut off"
        return self._wait(status)

    def _wait(self, status: Status) -> str:
        began = time.monotonic()
        while alive(self.main_pid):
            try:
                status = ask_status(self.base_url)
            except (NoMiddleware, OSError, ValueError) as error:
                print(f"plumbline-drain: {self.base_url} does not say what runs ({error})", flush=True)
            else:
                if status.draining and status.running == 0:
                    return f"drained in {time.monotonic() - began:.1f} s"
            if time.monotonic() - began >= self.timeout_seconds:
                return f"{status.running} requests still run after {self.timeout_seconds:.0f} s (serving_drain_seconds): they are cut off"
            time.sleep(POLL_SECONDS)
        return "the engine ended by itself"

    def _sleep(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while alive(self.main_pid) and time.monotonic() < until:
            time.sleep(min(POLL_SECONDS, max(0.0, until - time.monotonic())))


def main(arguments: list[str] | None = None) -> int:
    """Run the program; the process to be stopped is in the environment variable MAINPID, as systemd sets it."""
    parser = argparse.ArgumentParser(prog="plumbline-drain", description="Drain an endpoint before it is stopped.")
    parser.add_argument("--url", required=True, help="base URL, where the record names none")
    parser.add_argument("--record", type=Path, required=True, help="what plumbline-ready wrote when it was ready")
    parser.add_argument("--drain-file", type=Path, required=True, help="file that lets no new request in")
    parser.add_argument("--notice", type=float, default=0.0, metavar="SECONDS", help="how long a gateway has notice")
    parser.add_argument("--timeout", type=float, default=30.0, metavar="SECONDS", help="how long requests may run on")
    options = parser.parse_args(arguments)
    main_pid = os.environ.get("MAINPID", "")
    if not main_pid.isdigit() or not alive(int(main_pid)):
        return 0  # it ended by itself, or was killed: nobody is left to drain
    url = recorded_url(options.record, options.url)
    drain = Drain(int(main_pid), url, options.record, options.drain_file, options.notice, options.timeout)
    print(f"plumbline-drain: {drain.run()}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
