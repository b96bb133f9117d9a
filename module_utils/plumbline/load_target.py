"""Where a load goes, and the bytes of its requests."""

from __future__ import annotations

import json
import ssl
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Target:
    """Where the API is and how to get in. `base_url` ends in the API's version, for example `http://127.0.0.1:8000/v1`."""

    base_url: str
    api_key: str = field(default="", repr=False)
    ca_file: str = ""

    def place(self) -> tuple[str, int, ssl.SSLContext | None, str]:
        """Return host, port, TLS context and the path that requests start with.

        :raises ValueError: when the base URL is not an http or https URL with a host, or the key cannot be sent.
        """
        parts = urlsplit(self.base_url)
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            raise ValueError(f"the base URL is like http://127.0.0.1:8000/v1, not {self.base_url!r}; correct base_url")
        if not (self.api_key + self.base_url).isprintable() or not (self.api_key + self.base_url).isascii():
            raise ValueError("base_url and api_key are printable ASCII, another character was found: correct them")
        context = None
        if parts.scheme == "https":
            try:
                context = ssl.create_default_context(cafile=self.ca_file or None)
            except (OSError, ssl.SSLError) as error:
                raise ValueError(f"ca_file {self.ca_file} holds no CA certificates: {error}") from error
        return parts.hostname, port or (443 if context else 80), context, parts.path.rstrip("/")

    def head(self, method: str, path: str, body_bytes: int) -> bytes:
        """Return the head of a request with a body of so many bytes."""
        parts = urlsplit(self.base_url)
        lines = [
            f"{method} {parts.path.rstrip('/')}{path} HTTP/1.1",
            f"Host: {parts.netloc.rpartition('@')[2]}",
            "Accept: text/event-stream, application/json",
            "User-Agent: plumbline-benchmark",
        ]
        if self.api_key:
            lines.append(f"Authorization: Bearer {self.api_key}")
        if body_bytes:
            lines += ["Content-Type: application/json", f"Content-Length: {body_bytes}"]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")


def chat_body(model: str, messages: Any, output_tokens: int, ignore_eos: bool) -> bytes:
    """Return the body of a streaming chat completion. `ignore_eos` is vLLM's: every answer is then exactly `output_tokens` long."""
    body: dict[str, Any] = {
        "model": model,
        "messages": messages,
        "max_tokens": output_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if ignore_eos:
        body["ignore_eos"] = True
    return json.dumps(body, ensure_ascii=False).encode()
