"""The prompts in a request's body: cleaned, and shortened or refused where they are too long."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from typing import Any

from plumbline_serving.settings import Settings
from plumbline_serving.text import with_usual_punctuation, without_control_characters

Place = tuple[Any, Any]
"""A text: the list or object that holds it, and its index or name there."""

_CONVERSATION = ("messages", "input", "instructions", "system")
_SEPARATE = ("prompt",)
# Where the text of a message, of an item or of a part stands. Not in here: what is no prose (images, identifiers, arguments of tools).
_TEXTS = ("content", "text", "reasoning", "reasoning_content", "thinking", "output")


def _encoder() -> Callable[[Any], bytes]:
    """Return what writes JSON: msgspec, on which vLLM stands, in a fifth of the time."""
    try:
        import msgspec  # noqa: PLC0415

        return msgspec.json.encode  # type: ignore[no-any-return]
    except ImportError:
        plain = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
        return lambda document: plain(document).encode()


_encode = _encoder()


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is no number of JSON, or too large a one")
    return value


# Not json.loads, which takes NaN and makes infinity of 1e999: no JSON, and the two encoders write them differently.
_decode = json.JSONDecoder(parse_float=_finite, parse_constant=_finite).decode


class Refusal(Exception):  # noqa: N818  an answer, not a fault of the program
    """A request is not let through; the message is one sentence for the client."""

    def __init__(self, status: int, message: str) -> None:
        """Take the HTTP status and the sentence."""
        super().__init__(message)
        self.status = status
        self.message = message


def parse(body: bytes) -> dict[str, Any]:
    """Return the JSON object of a body. Raises Refusal(400)."""
    try:
        # As FastAPI reads it; nearly always UTF-8, which a brace and no zero byte tell.
        encoding = "utf-8" if body[:1] == b"{" and body[1:2] != b"\0" else json.detect_encoding(body)
        document = _decode(body.decode(encoding, "surrogatepass"))
    except RecursionError:
        raise Refusal(400, "Expected a JSON body, found one that is nested too deeply: flatten it.") from None
    except ValueError as error:
        raise Refusal(400, f"Expected a JSON body, found another ({error}): correct it.") from None
    if not isinstance(document, dict):
        raise Refusal(400, f"Expected a JSON object as body, found {_name(document)}: send an object.")
    return document


class Hygiene:
    """What the settings ask of a prompt."""

    def __init__(self, settings: Settings) -> None:
        """Take the settings."""
        self._maximum = settings.prompt_maximum_characters
        self._truncate = settings.prompt_overlong == "truncate"
        self._steps = [
            step
            for step, wanted in (
                (without_control_characters, settings.remove_control_characters),
                (with_usual_punctuation, settings.normalise_full_width_punctuation),
            )
            if wanted
        ]

    def body(self, body: bytes) -> bytes:
        """Return the body to pass on: the same bytes where nothing had to change. Raises Refusal."""
        document = parse(body)
        try:
            changed = self.document(document)
        except RecursionError:
            raise Refusal(400, "Expected a conversation, found one that is nested too deeply: flatten it.") from None
        return encode(document) if changed else body

    def document(self, document: dict[str, Any]) -> bool:
        """Clean the prompts of a document in place; tell whether anything changed. Raises Refusal."""
        if not self._steps and not self._maximum:
            return False
        changed = False
        for places in prompts(document):
            for holder, key in places:
                text = clean = holder[key]
                for step in self._steps:
                    clean = step(clean)
                if clean is not text:
                    holder[key] = clean
                    changed = True
            if self._maximum:
                changed = self._shorten(places) or changed
        return changed

    def _shorten(self, places: list[Place]) -> bool:
        length = sum(len(holder[key]) for holder, key in places)
        over = length - self._maximum
        if over <= 0:
            return False
        # The longest text gives way: the question behind a long document, and the instructions before it, stay whole.
        holder, key = max(reversed(places), key=lambda place: len(place[0][place[1]]))
        left = len(holder[key]) - over
        if not self._truncate or left <= 0:
            raise Refusal(400, f"Expected a prompt of at most {self._maximum} characters, found {length}: shorten it.")
        # A str is made of code points, so no character is cut in two.
        holder[key] = holder[key][:left]
        return True


def prompts(document: dict[str, Any]) -> Iterator[list[Place]]:
    """Yield the prompts of a document, each as the places of its texts: a conversation is one, each of a list of prompts is one."""
    conversation: list[Place] = []
    for name in _CONVERSATION:
        if name in document:
            _collect(document, name, conversation)
    if conversation:
        yield conversation
    for name in _SEPARATE:
        value = document.get(name)
        if isinstance(value, str):
            yield [(document, name)]
        elif isinstance(value, list):
            for index, item in enumerate(value):
                if isinstance(item, str):
                    yield [(value, index)]


def encode(document: dict[str, Any]) -> bytes:
    """Return a document as JSON."""
    try:
        return _encode(document)
    except (UnicodeEncodeError, OverflowError):
        # A lone surrogate, which the settings let through, or a number of more than 64 bits.
        return json.dumps(document, separators=(",", ":")).encode()


def _collect(holder: Any, key: Any, places: list[Place]) -> None:
    """Add the texts at a place and below it."""
    value = holder[key]
    if isinstance(value, str):
        places.append((holder, key))
    elif isinstance(value, list):
        for index in range(len(value)):
            _collect(value, index, places)
    elif isinstance(value, dict):
        for name in _TEXTS:
            if name in value:
                _collect(value, name, places)


def _name(value: Any) -> str:
    return {str: "a text", list: "a list", bool: "true or false", type(None): "null"}.get(type(value), "a number")
