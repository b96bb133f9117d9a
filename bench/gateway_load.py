"""What the gateway's benches share: an open-loop streaming client that keeps every request, and a gateway in front of a mock node."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

CHECKOUT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(CHECKOUT), str(CHECKOUT / "collections")]
from tests.gateway_support import KEYS, NODE_KEY, Gateway, Node, free_ports  # noqa: E402


@dataclass(frozen=True)
class Target:
    """One way to the endpoint."""

    name: str
    base_url: str
    key: str
    model: str = "mock"
    ca_file: str = ""

    def tls(self) -> ssl.SSLContext | bool:
        """How its certificate is checked."""
        return ssl.create_default_context(cafile=self.ca_file) if self.ca_file else True


@dataclass
class Sample:
    """One request. Seconds on one monotonic clock; status 0: no answer."""

    target: str
    scheduled: float
    sent: float = 0.0
    status: int = 0
    first: float | None = None
    ended: float = 0.0
    tokens: int = 0
    error: str = ""
    retry_after: str = ""

    @property
    def answered(self) -> bool:
        """A whole answer came."""
        return self.status == 200 and self.first is not None and not self.error

    @property
    def refused(self) -> bool:
        """It was told to come again."""
        return self.status in (429, 503) and bool(self.retry_after)

    @property
    def to_first_token(self) -> float:
        """Seconds from when it was due."""
        assert self.first is not None
        return self.first - self.scheduled

    @property
    def to_end(self) -> float:
        """Seconds from when it was due."""
        return self.ended - self.scheduled


@dataclass(frozen=True)
class Shape:
    """What one request asks for."""

    words: int = 48
    tokens: int = 16

    def body(self, model: str, number: int) -> bytes:
        """A prompt that no other request has, so that no prefix cache answers it."""
        draw = random.Random(number)
        text = " ".join(draw.choice(_WORDS) for _ in range(self.words))
        asked = {"role": "user", "content": f"{number}: {text}"}
        body = {"model": model, "messages": [asked], "max_tokens": self.tokens, "temperature": 0, "stream": True}
        return json.dumps({**body, "ignore_eos": True}).encode()


_WORDS = (
    "server",
    "waits",
    "memory",
    "while",
    "links",
    "carry",
    "words",
    "from",
    "node",
    "to",
    "every",
    "answer",
    "has",
    "time",
)


async def one(session: aiohttp.ClientSession, target: Target, body: bytes, sample: Sample) -> None:
    """Send one request and note what came of it."""
    headers = {"Authorization": f"Bearer {target.key}", "Content-Type": "application/json"}
    sample.sent = time.monotonic()
    try:
        async with session.post(f"{target.base_url}/chat/completions", data=body, headers=headers) as response:
            sample.status = response.status
            sample.retry_after = response.headers.get("Retry-After", "")
            done = False
            async for line in response.content:
                if response.status != 200 or not line.startswith(b"data: "):
                    continue
                if line.startswith(b"data: [DONE]"):
                    done = True
                elif b'"content":' in line and b'"content":""' not in line:
                    sample.first = sample.first or time.monotonic()
                    sample.tokens += 1
            if response.status == 200 and not done:
                sample.error = "cut"
    except (aiohttp.ClientError, OSError, asyncio.TimeoutError) as error:
        sample.error = type(error).__name__
    sample.ended = time.monotonic()


@dataclass
class Client:
    """An open loop: requests go out when they are due, whatever the others do."""

    targets: Sequence[Target]
    shape: Shape
    fresh_connections: bool = False
    seed: int = 1
    number: int = field(default_factory=lambda: int(time.time() * 1000) % 10**9)

    async def run(self, rate: float, seconds: float) -> list[Sample]:
        """Load with a rate in requests/s, spread over the targets by chance in equal shares; wait for all answers."""
        draw = random.Random(self.seed)
        samples: list[Sample] = []
        async with contextlib.AsyncExitStack() as stack:
            sessions = {}
            for target in self.targets:
                connector = aiohttp.TCPConnector(limit=0, ssl=target.tls(), force_close=self.fresh_connections)
                timeout = aiohttp.ClientTimeout(total=300)
                sessions[target.name] = await stack.enter_async_context(
                    aiohttp.ClientSession(connector=connector, timeout=timeout)
                )
            began, due, tasks = time.monotonic(), 0.0, []
            queue: list[Target] = []
            while due < seconds:
                if not queue:  # each target once, in an order by chance: interleaved, and as often as the others
                    queue = list(self.targets)
                    draw.shuffle(queue)
                target = queue.pop()
                sample = Sample(target.name, began + due)
                samples.append(sample)
                self.number += 1
                body = self.shape.body(target.model, self.number)
                await asyncio.sleep(max(0.0, sample.scheduled - time.monotonic()))
                tasks.append(asyncio.create_task(one(sessions[target.name], target, body, sample)))
                due += draw.expovariate(rate)
            await asyncio.gather(*tasks)
        return samples


def percentile(values: Sequence[float], percent: float) -> float:
    """Nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-len(ordered) * int(percent * 10) // 1000) - 1))]


@contextlib.contextmanager
def mock_gateway(*, slots: int, prefill: float, token: float, **changes: Any) -> Iterator[tuple[Target, Target]]:
    """One mock node and the role's gateway with TLS in front of it: the direct way, and the one through the gateway."""
    with tempfile.TemporaryDirectory(prefix="plumbline-bench-") as name:
        folder = Path(name)
        (port,) = free_ports(1)
        node = Node("n1", port, ("--slots", str(slots), "--prefill", str(prefill), "--token", str(token)))
        front = Gateway(folder, [node], {"tls": True, "threads": 2, "client_seconds": 60, **changes})
        front.current.mkdir()
        make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=bench"
        names = ["-addext", "subjectAltName=IP:127.0.0.1"]
        key, certificate = folder / "key.pem", folder / "certificate.pem"
        subprocess.run([*make.split(), *names, "-keyout", key, "-out", certificate], check=True, capture_output=True)
        (front.current / "tls.pem").write_text(certificate.read_text() + key.read_text())
        try:
            node.start()
            front.start()
            front.wait_ready("n1")
            yield (
                Target("direct", f"http://127.0.0.1:{port}/v1", NODE_KEY),
                Target("gateway", f"https://127.0.0.1:{front.port}/v1", KEYS["alice"], ca_file=str(certificate)),
            )
        finally:
            front.end()
            node.end()
