"""What the middleware is told, in the environment variable PLUMBLINE_SERVING: a JSON object."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

VARIABLE = "PLUMBLINE_SERVING"
_OVERLONG = ("refuse", "truncate")
_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "str": ((str,), "a text"),
    "int": ((int,), "a whole number, 0 or more"),
    "float": ((int, float), "a number, 0 or more"),
    "bool": ((bool,), "true or false"),
}


class SettingsError(Exception):
    """The settings are wrong; the message is one sentence for the user."""


@dataclass(frozen=True)
class Settings:
    """The settings. Numbers of 0 mean no limit; times are in seconds, sizes in bytes."""

    model: str = ""
    """The served model's name, which `POST /generate` asks."""
    prompt_maximum_characters: int = 0
    """Longest prompt, in characters (code points), all texts of a conversation together."""
    prompt_overlong: str = "refuse"
    """What happens to a longer one: refuse or truncate."""
    remove_control_characters: bool = False
    normalise_full_width_punctuation: bool = False
    maximum_concurrent_requests: int = 0
    """How many requests may run at once, in all API server processes together."""
    retry_after_seconds: int = 1
    """What a refused client is told to wait."""
    drain_file: str = ""
    """While this file exists, no new request is let in. Empty: there is no draining."""
    ready_record: str = ""
    """What plumbline-ready writes once a right completion came back. Empty: a healthy engine is ready."""
    generate_endpoint: bool = False
    """Whether there is `POST /generate`."""
    maximum_body_bytes: int = 0
    receive_timeout_seconds: float = 60.0
    """How long a request's body may take to arrive."""
    send_timeout_seconds: float = 120.0
    """How long a client may read nothing of its answer."""


def from_environment(environment: Mapping[str, str] | None = None) -> Settings:
    """Return the settings, all neutral where the variable is not set.

    Raises SettingsError where it is no JSON object, or has a field that is unknown or of the wrong type.
    """
    text = (os.environ if environment is None else environment).get(VARIABLE, "{}")
    try:
        document = json.loads(text)
    except ValueError as error:
        raise SettingsError(
            f"expected {VARIABLE} to be a JSON object, found none ({error}): correct the serving unit's environment"
        ) from None
    return from_mapping(document)


def from_mapping(document: Any) -> Settings:
    """Return the settings of a JSON object. Raises SettingsError."""
    if not isinstance(document, dict):
        raise SettingsError(
            f"expected {VARIABLE} to be a JSON object, found {type(document).__name__}: correct the serving unit's environment"
        )
    kinds = {field.name: str(field.type) for field in fields(Settings)}
    for name, value in document.items():
        if name not in kinds:
            raise SettingsError(
                f"expected {VARIABLE} to name {', '.join(kinds)}, found {name!r} as well: leave it out or correct its name"
            )
        _check(name, value, kinds[name])
    settings = Settings(**document)
    if settings.prompt_overlong not in _OVERLONG:
        raise SettingsError(
            f"expected prompt_overlong in {VARIABLE} to be {' or '.join(_OVERLONG)}, found {settings.prompt_overlong!r}: correct it"
        )
    return settings


def _check(name: str, value: Any, kind: str) -> None:
    types, words = _KINDS[kind]
    right = isinstance(value, types) and (kind == "bool" or not isinstance(value, bool))
    if right and kind in ("int", "float"):
        right = math.isfinite(value) and value >= 0
    if not right:
        raise SettingsError(f"expected {name} in {VARIABLE} to be {words}, found {value!r}: correct it")
