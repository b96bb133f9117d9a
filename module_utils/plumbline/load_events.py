"""Counts the tokens of one streamed answer, with as little work for each as can be.

A server-sent event that carries text is recognised by a few bytes. Whatever is not of that commonest form (the first event, the
last, usage, errors, reasoning, other servers' spelling) is read as JSON. Source of the framing: WHATWG HTML standard, section 9.2.6.
"""

from __future__ import annotations

import json
from array import array
from typing import Any

_MOST_PENDING = 1 << 20
_QUOTE = 0x22
_TEXT_FIELDS = ("content", "reasoning_content", "reasoning")


class StreamError(Exception):
    """An answer that is not what was asked for: `kind` to count by, the server's words as text."""

    def __init__(self, kind: str, detail: str) -> None:
        """Keep both."""
        super().__init__(detail)
        self.kind = kind


class TokenStream:
    """The events of one answer. `times` holds when each piece of text arrived, in the caller's clock."""

    __slots__ = ("_pending", "done", "output_tokens", "prompt_tokens", "times")

    # How this server spells a field with text; found out with the first that is read as JSON.
    marker = b'"content":"'

    def __init__(self) -> None:
        """Start before the first byte."""
        self.times = array("d")
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.done = False
        self._pending = b""

    def feed(self, data: bytes, now: float) -> None:
        """Take the next bytes, which arrived at a time.

        :raises StreamError: for an error that the server reports, or what is no event stream.
        """
        if self._pending:
            data = self._pending + data
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
        events = data.split(b"\n\n")
        self._pending = events.pop()
        if len(self._pending) > _MOST_PENDING:
            raise StreamError("malformed", f"an event longer than {_MOST_PENDING} bytes")
        marker = TokenStream.marker
        length = len(marker)
        for event in events:
            at = event.find(marker)
            # An empty text has its closing quote right here.
            if at > 0 and event[at + length] != _QUOTE and event.startswith(b"data:"):
                self.times.append(now)
            else:
                self._read(event, now)

    def finish(self) -> None:
        """Say that the answer has ended.

        :raises StreamError: when it is not whole.
        """
        if not self.done:
            raise StreamError(
                "incomplete", f"the stream ended after {len(self.times)} pieces of text, without its end mark"
            )
        if not self.times:
            raise StreamError("empty", "a whole answer without any text")
        if not self.output_tokens:  # a server that reports no usage: one piece is taken for one token
            self.output_tokens = len(self.times)

    def _read(self, event: bytes, now: float) -> None:
        lines = [line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:")]
        if not lines:
            return  # a comment, which keeps the connection alive
        text = b"\n".join(lines)
        if text == b"[DONE]":
            self.done = True
            return
        try:
            content = json.loads(text)
            self._take(content, event, now)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StreamError("malformed", f"{type(error).__name__}: {error}") from error

    def _take(self, content: Any, event: bytes, now: float) -> None:
        if content.get("error"):
            raise StreamError("server_error", message_of(content))
        usage = content.get("usage")
        if usage:
            self.prompt_tokens = int(usage["prompt_tokens"])
            self.output_tokens = int(usage["completion_tokens"])
        for choice in content.get("choices", []):
            delta = choice.get("delta") or {}
            field = next((name for name in _TEXT_FIELDS if delta.get(name)), None)
            if field is None:
                continue
            self.times.append(now)
            for marker in (f'"{field}":"', f'"{field}": "'):
                if marker.encode() in event:
                    TokenStream.marker = marker.encode()


def message_of(content: Any) -> str:
    """Return the human part of an error answer, short."""
    if isinstance(content, (bytes, str)):
        text = content.decode("utf-8", "replace") if isinstance(content, bytes) else content
        try:
            content = json.loads(text)
        except ValueError:
            return text.strip()[:300]
    error = content.get("error", content) if isinstance(content, dict) else content
    message = error.get("message", error) if isinstance(error, dict) else error
    return str(message)[:300]
