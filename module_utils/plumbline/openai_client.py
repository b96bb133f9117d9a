"""One streaming request to an OpenAI-compatible endpoint, timed token by token. Standard library only: it runs on the node."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import time
from dataclasses import dataclass, field
from typing import Any, Callable
from urllib.parse import urlsplit

from .sse import DONE, EventParser

Clock = Callable[[], float]


@dataclass(frozen=True)
class Endpoint:
    """Where the API is and how to get in. `base_url` ends in the API's version, for example `http://127.0.0.1:8000/v1`."""

    base_url: str
    api_key: str = field(default="", repr=False)
    ca_file: str = ""

    def connect(self, timeout_seconds: float) -> tuple[http.client.HTTPConnection, str]:
        """Return a connection (not opened yet) and the path that requests start with.

        :raises ValueError: when the base URL is not an http or https URL with a host.
        """
        parts = urlsplit(self.base_url)
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            raise ValueError(
                f"the endpoint's base URL is like http://127.0.0.1:8000/v1, not {self.base_url!r}; correct serving_endpoint or base_url"
            )
        path = parts.path.rstrip("/")
        if parts.scheme == "https":
            context = ssl.create_default_context(cafile=self.ca_file or None)
            return http.client.HTTPSConnection(parts.hostname, port, timeout=timeout_seconds, context=context), path
        return http.client.HTTPConnection(parts.hostname, port, timeout=timeout_seconds), path

    def headers(self) -> dict[str, str]:
        """Return the headers of a JSON request; the key is in `Authorization`."""
        headers = {
            "Content-Type": "application/json",
            "Accept": "text/event-stream, application/json",
            "Connection": "close",
        }
        if self.api_key:
            headers["Authorization"] = f"Bearer {self.api_key}"
        return headers

    def get_json(self, path: str, timeout_seconds: float) -> Any:
        """Return what GET of a path below the base URL answers.

        :raises OSError: when it cannot be reached. :raises RequestFailed: for a status other than 200 or an answer that is not JSON.
        """
        connection, prefix = self.connect(timeout_seconds)
        try:
            connection.request("GET", prefix + path, headers=self.headers())
            response = connection.getresponse()
            body = response.read()
            if response.status != 200:
                raise RequestFailed(f"http_{response.status}", _message(body))
            return json.loads(body)
        except (http.client.HTTPException, ValueError) as error:
            raise RequestFailed("malformed", f"{type(error).__name__}: {error}") from error
        finally:
            connection.close()


class RequestFailed(Exception):  # noqa: N818  it names a kind of outcome, counted by
    """A request that came back, but not with what was asked for."""

    def __init__(self, kind: str, detail: str) -> None:
        """Keep the kind of failure (short, to count by) and the words of the server."""
        super().__init__(f"{kind}: {detail}" if detail else kind)
        self.kind = kind
        self.detail = detail


@dataclass(frozen=True)
class Prompt:
    """What one request asks for."""

    text: str
    output_tokens: int
    ignore_eos: bool = True

    def body(self, model: str) -> dict[str, Any]:
        """Return the request body. `ignore_eos` is vLLM's: it makes every answer exactly `output_tokens` long, so that figures compare."""
        body: dict[str, Any] = {
            "model": model,
            "messages": [{"role": "user", "content": self.text}],
            "max_tokens": self.output_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.ignore_eos:
            body["ignore_eos"] = True
        return body


@dataclass
class Timing:
    """What happened to one request.

    Times are in seconds on one monotonic clock; `scheduled` is when it was due, `sent` when it went out.
    """

    number: int
    scheduled: float
    sent: float | None = None
    token_times: list[float] = field(default_factory=list)
    ended: float | None = None
    prompt_tokens: int = 0
    output_tokens: int = 0
    error: str = ""
    detail: str = ""

    @property
    def succeeded(self) -> bool:
        """Tell whether a whole answer came back."""
        return not self.error and self.ended is not None and bool(self.token_times)

    @property
    def time_to_first_token(self) -> float:
        """Seconds from when the request was *due* to its first token; a stall that delays sending is in it (coordinated omission)."""
        return self.token_times[0] - self.scheduled

    @property
    def end_to_end(self) -> float:
        """Seconds from when the request was *due* to the end of its answer."""
        return (self.ended if self.ended is not None else self.token_times[-1]) - self.scheduled

    @property
    def inter_token(self) -> list[float]:
        """Seconds between each token-carrying event and the next."""
        return [later - earlier for earlier, later in zip(self.token_times, self.token_times[1:])]

    @property
    def decode_tokens_per_second(self) -> float | None:
        """Output tokens per second after the first token; None for answers too short to tell."""
        if len(self.token_times) < 2 or self.output_tokens < 2:
            return None
        seconds = self.token_times[-1] - self.token_times[0]
        return (self.output_tokens - 1) / seconds if seconds > 0 else None


def stream(
    endpoint: Endpoint, model: str, prompt: Prompt, timing: Timing, *, deadline: float, clock: Clock = time.monotonic
) -> None:
    """Send one streaming chat completion and write what happened into `timing`. Never raises for what a server or network may do.

    :param deadline: when to give up, on the same clock.
    """
    connection: http.client.HTTPConnection | None = None
    try:
        connection, prefix = endpoint.connect(max(0.001, deadline - clock()))
        body = json.dumps(prompt.body(model)).encode()
        timing.sent = clock()
        connection.connect()
        sock = (
            connection.sock
        )  # kept: http.client lets go of it when the answer begins, and each read needs its own limit
        connection.request("POST", prefix + "/chat/completions", body=body, headers=endpoint.headers())
        sock.settimeout(max(0.001, deadline - clock()))
        response = connection.getresponse()
        if response.status != 200:
            raise RequestFailed(f"http_{response.status}", _message(response.read(65536)))
        _read_events(response, sock, timing, deadline, clock)
    except RequestFailed as error:
        timing.error, timing.detail = error.kind, error.detail
    except (socket.timeout, TimeoutError):
        timing.error, timing.detail = "timeout", "no whole answer within the time limit"
    except http.client.HTTPException as error:
        timing.error, timing.detail = "incomplete", f"{type(error).__name__}: {error}"
    except OSError as error:
        timing.error, timing.detail = "connection", str(error)
    except (ValueError, KeyError, TypeError, AttributeError) as error:  # JSON that is not what the API promises
        timing.error, timing.detail = "malformed", f"{type(error).__name__}: {error}"
    finally:
        timing.ended = clock()
        if connection is not None:
            connection.close()


def _read_events(
    response: http.client.HTTPResponse, sock: socket.socket, timing: Timing, deadline: float, clock: Clock
) -> None:
    """Read the stream to its end, noting when each piece of text arrived."""
    parser = EventParser()
    done = False
    while not done:
        remaining = deadline - clock()
        if remaining <= 0:
            raise socket.timeout
        sock.settimeout(remaining)
        line = response.readline(1 << 20)
        if not line:
            break
        data = parser.feed(line)
        if data is None:
            continue
        arrived = clock()
        if data.strip() == DONE:
            done = True
            continue
        event = json.loads(data)
        if "error" in event:
            raise RequestFailed("server_error", str(event["error"])[:300])
        usage = event.get("usage")
        if usage:
            timing.prompt_tokens = int(usage["prompt_tokens"])
            timing.output_tokens = int(usage["completion_tokens"])
        for choice in event.get("choices", []):
            if choice.get("delta", {}).get("content"):
                timing.token_times.append(arrived)
    if not done:
        raise RequestFailed(
            "incomplete", f"the stream ended after {len(timing.token_times)} pieces, without its end mark"
        )
    if not timing.token_times:
        raise RequestFailed("empty", "a whole answer without any text")
    if not timing.output_tokens:  # a server that reports no usage: one piece is taken for one token
        timing.output_tokens = len(timing.token_times)


def _message(body: bytes) -> str:
    """Return the human part of an error answer, short."""
    text = body.decode("utf-8", "replace")
    try:
        parsed = json.loads(text)
    except ValueError:
        return text.strip()[:300]
    error = parsed.get("error", parsed) if isinstance(parsed, dict) else parsed
    message = error.get("message", error) if isinstance(error, dict) else error
    return str(message)[:300]
