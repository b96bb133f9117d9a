#!/usr/bin/env python3
"""Measure how long the endpoint takes from SIGKILL of its engine to the first right answer, beside a cold start.

Usage, as root on the node: python3 serving_recovery.py [--rounds N] [--victim engine|server] [--drop-caches]
On the lab: python -m lab shell -- sudo python3 - --rounds 5 <bench/serving_recovery.py

In turn, so that other work on the machine meets both: a *cold start* (`systemctl stop`, then from `systemctl start` to a right
answer), and a *recovery* (requests run; SIGKILL; from there to a right answer). Both ask four times a second, as a client that
waits would, and both read the weights from wherever they are: the page cache, or, with --drop-caches, which clears that of the
whole machine, the disk. Address, model, question and key come from the unit and its key file. Prints one JSON object; figures
and their date belong in docs/performance.md. Standard library, Python 3.9.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import re
import shlex
import signal
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

UNIT = "plumbline-serving.service"
KEY_FILE = Path("/etc/plumbline/serving.env")
POLL_SECONDS = 0.25
GIVE_UP_SECONDS = 1800.0
LOAD = 4


class Endpoint:
    """The endpoint as the unit's file describes it."""

    def __init__(self) -> None:
        """Read the unit and the key."""
        text = Path(f"/etc/systemd/system/{UNIT}").read_text(encoding="utf-8").replace("\\\n", " ")
        post = next(line for line in text.splitlines() if line.startswith("ExecStartPost="))
        words = shlex.split(post.replace("%%", "%").replace("$$", "$"))
        told = {words[index]: words[index + 1] for index in range(len(words) - 1) if words[index].startswith("--")}
        self.url = urlsplit(told["--url"])
        self.model, self.api = told["--model"], told["--api"]
        self.question, self.expected = told["--question"], told["--expected"]
        self.key = KEY_FILE.read_text(encoding="utf-8").strip().partition("=")[2]

    def ask(self, tokens: int = 24, timeout_seconds: float = 120.0, **more: Any) -> str:
        """Return the text of an answer. Raises OSError where there is none."""
        asked: dict[str, Any] = {"prompt": self.question}
        if self.api == "chat":
            asked = {"messages": [{"role": "user", "content": self.question}]}
        body = {"model": self.model, "max_tokens": tokens, "temperature": 0, **asked, **more}
        path = self.url.path + ("/chat/completions" if self.api == "chat" else "/completions")
        connection = http.client.HTTPConnection(self.url.hostname or "", self.url.port, timeout=timeout_seconds)
        try:
            headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
            connection.request("POST", path, json.dumps(body), headers)
            response = connection.getresponse()
            text = response.read().decode("utf-8", "replace")
            if response.status != 200:
                raise OSError(f"HTTP {response.status}: {text[:200]}")
            choice = json.loads(text)["choices"][0]
            return str(choice["message"]["content"] if self.api == "chat" else choice["text"])
        except (http.client.HTTPException, ValueError) as error:
            raise OSError(str(error) or type(error).__name__) from error
        finally:
            connection.close()

    def first_right_answer(self, began: float) -> float:
        """Ask until the answer is right; return the seconds since *began*."""
        while time.monotonic() - began < GIVE_UP_SECONDS:
            try:
                if re.search(self.expected, self.ask()):
                    return time.monotonic() - began
            except OSError:
                pass
            time.sleep(POLL_SECONDS)
        raise SystemExit(f"no right answer within {GIVE_UP_SECONDS:.0f} s: journalctl -u {UNIT}")


def systemctl(*arguments: str) -> str:
    """Call systemctl and return what it printed."""
    return subprocess.run(["systemctl", *arguments], check=True, capture_output=True, text=True).stdout.strip()


def victim_of(kind: str) -> int:
    """Return the process to kill: the API server, or the engine core below it."""
    main = int(systemctl("show", UNIT, "--property=MainPID", "--value"))
    if kind == "server":
        return main
    for entry in Path("/proc").iterdir():
        try:
            if (
                entry.name.isdigit()
                and UNIT in (entry / "cgroup").read_text()
                and (entry / "comm").read_text().startswith("VLLM::Eng")
            ):
                return int(entry.name)
        except OSError:
            continue
    raise SystemExit(f"no engine core found in {UNIT}: is it running?")


def cold_start(endpoint: Endpoint, drop_caches: bool) -> float:
    """Return the seconds from the start of a stopped unit to a right answer."""
    systemctl("stop", UNIT)
    if drop_caches:
        os.sync()
        Path("/proc/sys/vm/drop_caches").write_text("3")
    began = time.monotonic()
    systemctl("start", "--no-block", UNIT)
    return endpoint.first_right_answer(began)


def recovery(endpoint: Endpoint, kind: str, drop_caches: bool) -> float:
    """Return the seconds from SIGKILL under load to a right answer."""

    def load() -> None:
        with contextlib.suppress(OSError):  # it is cut off: that is the point
            endpoint.ask(tokens=1000, ignore_eos=True)

    requests = [threading.Thread(target=load, daemon=True) for _ in range(LOAD)]
    for request in requests:
        request.start()
    time.sleep(2.0)
    victim = victim_of(kind)
    if drop_caches:
        os.sync()
        Path("/proc/sys/vm/drop_caches").write_text("3")
    before = systemctl("show", UNIT, "--property=MainPID", "--value")
    began = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    seconds = endpoint.first_right_answer(began)
    # What answered is a new one: the old one was not merely slow to die.
    if systemctl("show", UNIT, "--property=MainPID", "--value") == before:
        raise SystemExit("the endpoint answered without having been started again, so there is nothing to measure")
    for request in requests:
        request.join(120)
    return seconds


def wait_until_active() -> None:
    """A right answer may come moments before the unit is told so."""
    while systemctl("show", UNIT, "--property=ActiveState", "--value") != "active":
        time.sleep(POLL_SECONDS)


def figures(values: list[float]) -> dict[str, Any]:
    """Return median, extremes and values, in seconds."""
    rounded = [round(value, 2) for value in values]
    return {
        "median": round(statistics.median(values), 2),
        "minimum": min(rounded),
        "maximum": max(rounded),
        "all": rounded,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--victim", choices=("engine", "server"), default="engine")
    parser.add_argument("--drop-caches", action="store_true")
    options = parser.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("run this as root on the node: it stops and kills the endpoint")
    endpoint = Endpoint()
    endpoint.first_right_answer(time.monotonic())
    cold: list[float] = []
    recovered: list[float] = []
    for _ in range(options.rounds):
        cold.append(cold_start(endpoint, options.drop_caches))
        wait_until_active()
        recovered.append(recovery(endpoint, options.victim, options.drop_caches))
        wait_until_active()
        print(f"cold start {cold[-1]:.1f} s, recovery {recovered[-1]:.1f} s", file=sys.stderr, flush=True)
    ratio = statistics.median(recovered) / statistics.median(cold)
    print(
        json.dumps(
            {
                "date": time.strftime("%Y-%m-%d"),
                "victim": options.victim,
                "cpus": os.cpu_count(),
                "cold_start_seconds": figures(cold),
                "recovery_seconds": figures(recovered),
                "ratio_of_medians": round(ratio, 3),
                "ratios_by_round": [round(after / before, 3) for before, after in zip(cold, recovered)],
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
