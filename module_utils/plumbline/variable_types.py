"""Whether a value is of the type that an argument spec declares, and how to say so when it is not.

Stricter than Ansible's own conversion where YAML misleads: ``version: 1.10`` is the number 1.1, and ``mode: off`` is a
boolean. As lenient as needed for ``-e port=8000``, which arrives as text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any

Problems = Iterator[tuple[str, str]]
_BOOLEANS = frozenset({"true", "false", "yes", "no", "on", "off", "1", "0"})
_SECRET = re.compile(r"passw|secret|token$|api_key|private_key|credential", re.IGNORECASE)
_CENSORED = "a value that is not shown"


def looks_secret(name: str) -> bool:
    """Return whether a name promises a secret, so that its value is never printed."""
    return bool(_SECRET.search(name))


def value_problems(option: Mapping[str, Any], value: Any, secret: bool = False) -> Problems:
    """Yield a place within the value (``.key``, ``[0]``) and a sentence for each thing that is wrong with it."""
    kind = str(option.get("type", "str"))
    if value is None:
        if option.get("required") or option.get("default") is not None:
            yield "", f"{_NAMES.get(kind, kind)} was expected, nothing was found: give a value or remove the line"
        return
    accepts = _TYPES.get(kind)
    if accepts is not None and not accepts(value):
        yield "", f"{_NAMES[kind]} was expected, {_found(value, secret)} was found{_remedy(kind, value)}"
        return
    yield from _bound_problems(option, value, secret)
    choices = option.get("choices")
    if choices:
        for item in value if kind == "list" else [value]:
            if str(item) not in {str(choice) for choice in choices} or isinstance(item, bool) != _has_booleans(choices):
                yield "", _choice(choices, item, secret)
    if kind == "dict" and isinstance(option.get("options"), Mapping):
        yield from _mapping_problems(option["options"], value, secret)
    if kind == "list" and "elements" in option:
        inner = {"type": option["elements"], "options": option.get("options"), "required": True}
        for index, item in enumerate(value):
            for suffix, problem in value_problems(inner, item, secret):
                yield f"[{index}]{suffix}", problem


def _bound_problems(option: Mapping[str, Any], value: Any, secret: bool) -> Problems:
    """Yield what lies beyond ``minimum``, ``maximum`` or does not match ``pattern`` (of `bounds` in meta/variables.yml)."""
    low, high, pattern = option.get("minimum"), option.get("maximum"), option.get("pattern")
    if low is not None and float(value) < low:
        yield "", f"{low} or more was expected, {_found(value, secret)} was found: correct it"
    if high is not None and float(value) > high:
        yield "", f"{high} or less was expected, {_found(value, secret)} was found: correct it"
    if pattern and not re.fullmatch(pattern, str(value)):
        yield "", f"a text of the form {pattern} was expected, {_found(value, secret)} was found: correct it"


def _mapping_problems(options: Mapping[str, Any], value: Mapping[str, Any], secret: bool) -> Problems:
    aliases = {alias: name for name, option in options.items() for alias in (option or {}).get("aliases", ())}
    for key, item in value.items():
        option = options.get(aliases.get(key, key))
        if option is None:
            near = get_close_matches(str(key), options, 1)
            hint = f"did you mean {near[0]}?" if near else f"{', '.join(sorted(options))} are known"
            yield f".{key}", f"is unknown: {hint}"
            continue
        hidden = secret or bool(option.get("no_log")) or looks_secret(str(key))
        for suffix, problem in value_problems(option, item, hidden):
            yield f".{key}{suffix}", problem
    given = {aliases.get(key, key) for key in value}
    for name, option in options.items():
        if (option or {}).get("required") and name not in given:
            yield f".{name}", "a value is required, none was found"


def _choice(choices: Any, value: Any, secret: bool) -> str:
    hint = ""
    if isinstance(value, bool) and not _has_booleans(choices):
        hint = ": YAML reads on, off, yes and no as booleans, so put the word in quotes"
    elif isinstance(value, str) and (near := get_close_matches(value, [str(choice) for choice in choices], 1)):
        hint = f": did you mean {near[0]}?"
    return (
        f"one of {', '.join(str(choice) for choice in choices)} was expected, {_found(value, secret)} was found{hint}"
    )


def _has_booleans(choices: Any) -> bool:
    return any(isinstance(choice, bool) for choice in choices)


def _is_integer(value: Any) -> bool:
    if isinstance(value, str):
        return re.fullmatch(r"[+-]?\d+", value.strip()) is not None
    return isinstance(value, int) and not isinstance(value, bool)


def _is_float(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return False
    try:
        return math.isfinite(float(value))
    except ValueError:
        return False


def _is_boolean(value: Any) -> bool:
    return isinstance(value, bool) or (isinstance(value, str) and value.strip().lower() in _BOOLEANS)


def _is_text(value: Any) -> bool:
    return isinstance(value, (str, int)) and not isinstance(value, bool)


_TYPES: Mapping[str, Callable[[Any], bool]] = {
    "str": _is_text,
    "path": lambda value: isinstance(value, str),
    "int": _is_integer,
    "float": _is_float,
    "bool": _is_boolean,
    "list": lambda value: isinstance(value, (list, tuple)),
    "dict": lambda value: isinstance(value, Mapping),
}
_NAMES: Mapping[str, str] = {
    "str": "a text (str)",
    "path": "a path (str)",
    "int": "a whole number (int)",
    "float": "a number (float)",
    "bool": "true or false (bool)",
    "list": "a list",
    "dict": "a mapping (dict)",
}


def _remedy(kind: str, value: Any) -> str:
    if kind in ("str", "path") and isinstance(value, bool):
        return ": YAML reads on, off, yes and no as booleans, so put the word in quotes"
    if kind in ("str", "path") and isinstance(value, (int, float)):
        return ": put it in quotes, or YAML makes 1.1 of 1.10"
    if kind == "list" and isinstance(value, str):
        return ": write it as [item, item]"
    return ""


def _found(value: Any, secret: bool) -> str:
    if secret:
        return _CENSORED
    if isinstance(value, bool):
        return f"the boolean {str(value).lower()}"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, (list, tuple)):
        return "a list"
    text = " ".join(str(value).split())
    text = text if len(text) <= 60 else text[:59] + "…"
    return f"the text '{text}'" if isinstance(value, str) else f"the number {text}"
