"""Server-sent events, as an OpenAI-compatible endpoint streams them.

Source: the WHATWG HTML standard, section 9.2.6 "Interpreting an event stream". Only the `data` field matters here.
"""

from __future__ import annotations

DONE = "[DONE]"


class EventParser:
    """Puts the lines of one stream together to events."""

    def __init__(self) -> None:
        """Start with no event begun."""
        self._data: list[str] = []

    def feed(self, line: bytes) -> str | None:
        """Take one line, with or without its end, and return the data of the event that it completes, if it completes one."""
        text = line.decode("utf-8", "replace").rstrip("\r\n")
        if not text:
            if not self._data:
                return None
            data = "\n".join(self._data)
            self._data = []
            return data
        field, separator, value = text.partition(":")
        if field == "data" and separator:
            self._data.append(value[1:] if value.startswith(" ") else value)
        return None
