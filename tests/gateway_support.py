"""A real HAProxy on loopback with the role's own configuration, in front of nodes that are processes of their own.

For tests and benches.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import gateway_runtime as runtime

CHECKOUT = Path(__file__).resolve().parents[1]
TEMPLATE = CHECKOUT / "roles" / "gateway" / "templates" / "haproxy.cfg.j2"
# Another version is tried with PLUMBLINE_HAPROXY=/path/to/haproxy.
HAPROXY = os.environ.get("PLUMBLINE_HAPROXY") or shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin") or ""
# Left out where HAProxy is missing, but never in CI: there the tests fail then.
WITHOUT_HAPROXY = not HAPROXY and os.environ.get("CI") != "true"
NODE_KEY = "the-key-of-the-nodes-0123456789"
KEYS = {"alice": "key-of-alice-0123456789abcdef", "bob": "key-of-bob-0123456789abcdefgh"}


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody listened on just now."""
    with_sockets = [socket.socket() for _ in range(count)]
    try:
        for probe in with_sockets:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in with_sockets]
    finally:
        for probe in with_sockets:
            probe.close()


def wait_for(condition: Any, what: str, timeout_seconds: float = 120.0) -> None:
    """Wait until something holds; how long it takes is judged nowhere."""
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come about in {timeout_seconds} s"
        time.sleep(0.02)


@dataclass
class Node:
    """One mock node: a process that can be killed."""

    name: str
    port: int
    options: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, str(CHECKOUT / "tests" / "mock_node.py"), "--port", str(self.port)]
        command += ["--key", NODE_KEY, "--name", self.name, *self.options]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        wait_for(lambda: self.control() is not None, f"{self.name} listening")

    def control(self, **changes: Any) -> dict[str, Any] | None:
        """Change what it does; what it has done so far, or None where it does not answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("POST", "/control", json.dumps(changes), {"Content-Type": "application/json"})
            answer: dict[str, Any] = json.load(connection.getresponse())
            return answer
        except OSError:
            return None
        finally:
            connection.close()

    def end(self, how: signal.Signals = signal.SIGKILL) -> None:
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(120)
            self.process = None


@dataclass
class Gateway:
    """HAProxy with a configuration of the role, in a directory of its own."""

    directory: Path
    nodes: list[Node]
    changes: dict[str, Any] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=lambda: dict(KEYS))
    limits: dict[str, int] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self.port, self.metrics_port, *self.spare = free_ports(2 + len(self.nodes))
        self.socket = self.directory / "admin.sock"
        self.state = self.directory / "servers.state"
        self.current = self.directory / "current"

    def wish(self) -> dict[str, Any]:
        """What the role hands to its template, with short times."""
        upgrade = zip(self.nodes, self.spare, strict=True)
        return {
            "log": "127.0.0.1:1",
            "user": "",
            "connections": 2000,
            "threads": 2,
            "reload_drain_seconds": 60,
            "run_directory": str(self.directory),
            "state_file": str(self.state),
            "buffer_bytes": 65536,
            "tls": False,
            "connect_seconds": 2,
            "request_seconds": 3,
            "idle_seconds": 30,
            "client_seconds": 3,
            "node_seconds": 30,
            "queue_seconds": 2,
            "check_timeout_seconds": 2,
            "check_interval_seconds": 1,
            "check_fall": 2,
            "retry_after_seconds": 2,
            "binds": [f"127.0.0.1:{self.port}"],
            "body_bytes": 4 * 2**20,
            "window_seconds": 10,
            "window_requests": 0,
            "queue_requests": 8,
            "node_requests": 8,
            "health_path": "/plumbline/status",
            "nodes": [{"name": n.name, "address": "127.0.0.1", "ports": [n.port, spare]} for n, spare in upgrade],
            "metrics_address": "127.0.0.1",
            "metrics_port": self.metrics_port,
            **self.changes,
        }

    def write(self) -> str:
        """Write the configuration; the digest that it is known by."""
        environment = jinja2.Environment(
            trim_blocks=True, keep_trailing_newline=True, undefined=jinja2.StrictUndefined, autoescape=False
        )
        text = environment.from_string(TEMPLATE.read_text()).render(gateway=self.wish())
        self.current.mkdir(exist_ok=True)
        digests = {name: hashlib.sha256(key.encode()).hexdigest().upper() for name, key in self.keys.items()}
        (self.current / "clients.map").write_text("".join(f"{digest} {name}\n" for name, digest in digests.items()))
        (self.current / "limits.map").write_text("".join(f"{name} {limit}\n" for name, limit in self.limits.items()))
        (self.current / "nodes.map").write_text(f"nodes {NODE_KEY}\n")
        digest = hashlib.sha256((text + repr([self.keys, self.limits])).encode()).hexdigest()[:16]
        (self.current / "haproxy.cfg").write_text(text.replace("@CONFIGURATION@", digest))
        return digest

    @property
    def configuration(self) -> Path:
        return self.current / "haproxy.cfg"

    def check(self) -> subprocess.CompletedProcess[str]:
        """`haproxy -c`, as the role does it."""
        command = [HAPROXY, "-c", "-f", str(self.configuration)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def start(self) -> None:
        digest = self.write()
        runtime.prepare(self.state, self.configuration)
        command = [HAPROXY, "-W", "-f", str(self.configuration)]
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait_for(lambda: self.running() == digest, f"the gateway ({(self.directory / 'log').read_text()[-500:]})")

    def running(self) -> str:
        with suppress(runtime.GatewayError):
            return runtime.running_configuration(runtime.ask(self.socket, "show info"))
        return ""

    def worker(self) -> int:
        return runtime.worker_pid(runtime.ask(self.socket, "show info"))

    def reload(self) -> None:
        """What the unit's ExecReload does."""
        assert self.process is not None
        before = self.worker()
        digest = self.write()
        runtime.save_state(self.socket, self.state, self.configuration)
        assert self.check().returncode == 0
        self.process.send_signal(signal.SIGUSR2)

        def fresh() -> bool:
            with suppress(runtime.GatewayError):
                return self.running() == digest and self.worker() != before
            return False

        wait_for(fresh, "the new process")

    def servers(self) -> dict[str, runtime.Server]:
        return {server.name: server for server in runtime.parse_servers(runtime.ask(self.socket, "show stat"))}

    def wait_ready(self, *names: str) -> None:
        """Wait until exactly these servers are given requests."""
        wait_for(lambda: {n for n, s in self.servers().items() if s.ready} == set(names), f"only {names} ready")

    def end(self) -> None:
        if self.process is not None:
            with suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(10)
            self.process = None

    # -- a client -----------------------------------------------------------------------------------------------------

    def connect(self, timeout_seconds: float = 30) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_seconds)

    def post(
        self, body: dict[str, Any], key: str = KEYS["alice"], path: str = "/v1/chat/completions"
    ) -> tuple[int, dict[str, str], bytes]:
        """One request on a connection of its own: status, headers (small letters), body."""
        connection = self.connect()
        try:
            # A gateway that refuses need not read the rest of a long body; its answer is there all the same.
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.request("POST", path, json.dumps(body), headers(key))
            return read(connection)
        finally:
            connection.close()


def headers(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}


def read(connection: http.client.HTTPConnection) -> tuple[int, dict[str, str], bytes]:
    response = connection.getresponse()
    return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()


def chat(**more: Any) -> dict[str, Any]:
    return {"model": "mock", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3, **more}


@contextmanager
def gateway(directory: Path, count: int = 3, node_options: tuple[str, ...] = (), **changes: Any) -> Iterator[Gateway]:
    """A gateway in front of nodes n1, n2...; all of it ends with the block."""
    names = [f"n{index + 1}" for index in range(count)]
    nodes = [Node(name, port, node_options) for name, port in zip(names, free_ports(count), strict=True)]
    made = Gateway(directory, nodes, changes)
    try:
        for node in nodes:
            node.start()
        made.start()
        made.wait_ready(*names)
        yield made
    finally:
        made.end()
        for node in nodes:
            node.end()
