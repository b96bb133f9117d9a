"""Prometheus for tests: where its programs are, and a process of it that ends with the test."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[1]


def program(name: str) -> str:
    """Path of a program that `python -m lab packages --tests` unpacks; the test is skipped without it, but never in CI."""
    unpacked = CHECKOUT / ".cache" / "programs" / "usr" / "bin" / name
    found = shutil.which(name) or (str(unpacked) if unpacked.exists() else "")
    if not found and os.environ.get("CI"):
        pytest.fail(f"{name} is missing: python -m lab packages --tests")
    if not found:
        pytest.skip(f"{name} is not here: python -m lab packages --tests")
    return found


def free_port() -> int:
    """A port on loopback that nobody uses now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def running(command: Sequence[str], port: int, log: Path) -> Iterator[None]:
    """Run a program until the block ends; it must listen on *port*."""
    with log.open("w") as output, subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as process:
        try:
            end = time.monotonic() + 60
            while True:
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < end, log.read_text()
                time.sleep(0.05)
            yield
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
