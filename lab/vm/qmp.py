"""QEMU's machine protocol (QMP): one JSON object a line over a Unix socket."""

from __future__ import annotations

import json
import os
import select
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lab.shell import LabError


class Qmp:
    """One connection. QEMU talks to one client a socket, so commands and events have a socket each."""

    def __init__(self, path: Path, timeout_seconds: float = 30, alive: Callable[[], bool] = lambda: True) -> None:
        """Connect and leave the negotiation behind; waits for the socket to appear, while QEMU is ``alive``."""
        self.timeout_seconds = timeout_seconds
        self._events: list[dict[str, Any]] = []
        self._buffer = b""
        self._socket = _connect(path, timeout_seconds, alive)
        try:
            greeting = self._read(time.monotonic() + timeout_seconds)
            if "QMP" not in greeting:
                raise LabError(f"expected QEMU's greeting on {path.name}, found {json.dumps(greeting)[:80]}")
            self.call("qmp_capabilities")
        except BaseException:
            self._socket.close()
            raise

    def close(self) -> None:
        """End the connection."""
        self._socket.close()

    def __enter__(self) -> Qmp:
        """The connection itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the connection."""
        self.close()

    def call(self, command: str, **arguments: Any) -> Any:
        """What a command returns; events that come meanwhile are kept for `event`."""
        asked: dict[str, Any] = {"execute": command, **({"arguments": arguments} if arguments else {})}
        try:
            self._socket.sendall(json.dumps(asked).encode() + b"\n")
        except OSError as error:
            raise LabError(f"QEMU does not take {command}: {error.strerror or error}") from None
        deadline = time.monotonic() + self.timeout_seconds
        while True:
            answer = self._read(deadline)
            if "event" in answer:
                self._events.append(answer)
            elif "error" in answer:
                raise LabError(f"QEMU refused {command}: {answer['error'].get('desc', 'no reason given')}")
            elif "return" in answer:
                return answer["return"]

    def event(self, timeout_seconds: float) -> dict[str, Any] | None:
        """The next event, None when none came in time; LabError where QEMU has ended."""
        if self._events:
            return self._events.pop(0)
        try:
            answer = self._read(time.monotonic() + timeout_seconds)
        except TimeoutError:
            return None
        return answer if "event" in answer else None

    def _read(self, deadline: float) -> dict[str, Any]:
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._socket], [], [], left)[0]:
                raise QmpTimeoutError("QEMU gave no answer on its control socket in time")
            try:
                chunk = self._socket.recv(65536)
            except OSError:
                chunk = b""
            if not chunk:
                raise QmpClosedError("QEMU closed its control socket")
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise LabError(f"expected a JSON object from QEMU, found {line[:60]!r}")
        return answer


class QmpTimeoutError(LabError, TimeoutError):
    """Nothing came in time."""


class QmpClosedError(LabError):
    """QEMU has ended, or is about to."""


def _connect(path: Path, timeout_seconds: float, alive: Callable[[], bool]) -> socket.socket:
    """A connected socket. Through the directory's descriptor, since a Unix socket's path has at most 107 bytes."""
    deadline = time.monotonic() + timeout_seconds
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        while True:
            made = socket.socket(socket.AF_UNIX)
            try:
                made.connect(f"/proc/self/fd/{directory}/{path.name}")
            except OSError as error:
                made.close()
                if time.monotonic() > deadline or not alive():
                    raise QmpClosedError(f"QEMU does not listen on {path}: {error.strerror or error}") from None
                time.sleep(0.1)
            else:
                return made
    finally:
        os.close(directory)
