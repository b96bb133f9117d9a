"""Draining before a stop: notice, refusal, patience; and that nothing here keeps an engine from being stopped."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import serving_drain
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.serving_drain import (
    NoMiddleware,
    Status,
    parse_status,
    recorded_url,
)

PROGRAM = Path(serving_drain.__file__).resolve()


class Endpoint:
    """What the middleware says of an endpoint in which *requests* run, each of which ends after so many questions for the status."""

    def __init__(self, folder: Path, requests: list[int], *, status: bool = True) -> None:
        self.record, self.drain_file = folder / "ready.json", folder / "draining"
        self.requests = requests
        self.knows_status = status
        self.seen: list[tuple[bool, bool]] = []  # record there, drain file there, at each question

    def answer(self) -> tuple[int, dict[str, Any]]:
        draining = self.drain_file.exists()
        self.seen.append((self.record.exists(), draining))
        if not self.knows_status:
            return 404, {"detail": "Not Found"}
        self.requests = [left - 1 for left in self.requests if left > 1] if draining else self.requests
        return 503, {"ready": False, "draining": draining, "running": len(self.requests), "refused": 0}


@contextmanager
def listening(endpoint: Endpoint) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

        def do_GET(self) -> None:
            code, payload = endpoint.answer() if self.path == "/plumbline/status" else (404, {})
            body = json.dumps(payload).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def drain(endpoint: Endpoint, url: str, *more: str, pid: str | None = None) -> str:
    """Run the program as systemd does; a sleeping process stands for the engine."""
    with subprocess.Popen(["sleep", "60"]) as engine:
        try:
            command = [sys.executable, "-I", str(PROGRAM), "--url", url, "--record", str(endpoint.record)]
            command += ["--drain-file", str(endpoint.drain_file), *more]
            environment = {"MAINPID": str(engine.pid) if pid is None else pid}
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
        finally:
            engine.kill()
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def ready(endpoint: Endpoint, url: str) -> None:
    endpoint.record.write_text(json.dumps({"url": url, "main_pid": 1}))


def test_notice_then_refusal_then_the_end_of_what_runs(tmp_path: Path) -> None:
    endpoint = Endpoint(tmp_path, [2, 3])
    with listening(endpoint) as url:
        ready(endpoint, url)
        began = time.monotonic()
        # The record's address counts, not the unit's: the text of the unit may be that of the next start already.
        said = drain(endpoint, "http://127.0.0.1:9/v1", "--notice", "0.5", "--timeout", "30")
    assert "drained in" in said
    assert time.monotonic() - began >= 0.5
    assert endpoint.seen[0] == (True, False)
    assert endpoint.seen[1:] == [(False, True)] * 3
    assert endpoint.drain_file.exists()


def test_patience_ends(tmp_path: Path) -> None:
    endpoint = Endpoint(tmp_path, [10**6])
    with listening(endpoint) as url:
        ready(endpoint, url)
        said = drain(endpoint, url, "--timeout", "0.5")
    assert "1 requests still run after 0 s" in said or "1 requests still run after 1 s" in said
    assert "cut off" in said


def test_without_the_middleware_the_engine_ends_what_runs(tmp_path: Path) -> None:
    endpoint = Endpoint(tmp_path, [], status=False)
    with listening(endpoint) as url:
        ready(endpoint, url)
        said = drain(endpoint, url, "--notice", "60")
    assert "has no status to ask for (HTTP 404)" in said
    assert not endpoint.drain_file.exists()
    assert endpoint.record.exists()


def test_an_engine_that_does_not_answer_is_not_waited_for(tmp_path: Path) -> None:
    assert "does not answer" in drain(Endpoint(tmp_path, []), "http://127.0.0.1:9/v1", "--notice", "60")


@pytest.mark.parametrize("pid", ["", "999999999"])
def test_nobody_is_left_to_drain(tmp_path: Path, pid: str) -> None:
    endpoint = Endpoint(tmp_path, [1])
    with listening(endpoint) as url:
        assert drain(endpoint, url, "--notice", "60", pid=pid) == ""
    assert endpoint.seen == []


def test_a_drain_file_that_cannot_be_made(tmp_path: Path) -> None:
    endpoint = Endpoint(tmp_path, [1])
    with listening(endpoint) as url:
        ready(endpoint, url)
        endpoint.drain_file = tmp_path / "no-such-directory" / "draining"
        assert "requests are cut off" in drain(endpoint, url)


def test_what_is_no_status() -> None:
    assert parse_status(503, '{"draining": true, "running": 2}') == Status(True, 2)
    for code, text in ((200, "{}"), (200, "[]"), (200, "no JSON"), (404, '{"draining": true, "running": 0}')):
        with pytest.raises(NoMiddleware):
            parse_status(code, text)


def test_a_record_without_an_address(tmp_path: Path) -> None:
    for text in ("", "[]", '{"url": 5}', '{"url": "file:///etc"}'):
        (tmp_path / "r").write_text(text)
        assert recorded_url(tmp_path / "r", "http://h:1/v1") == "http://h:1/v1"
    assert recorded_url(tmp_path / "none", "http://h:1/v1") == "http://h:1/v1"
