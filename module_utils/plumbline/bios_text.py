"""JSON or YAML from a person or from a machine, where a key that stands twice is a mistake and not a choice of ours."""

from __future__ import annotations

import json
import re
from collections.abc import Hashable
from typing import Any

import yaml

_SAFE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class TextError(ValueError):
    """What is wrong with a text; the message continues a sentence that names the file."""


class _Loader(_SAFE):  # type: ignore[misc]
    """A safe loader that refuses what other ones drop silently."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        """Refuse a key that stands twice."""
        seen: set[Any] = set()
        for key_node, _value in node.value:
            key = self.construct_object(key_node, deep=deep)
            if isinstance(key, Hashable) and key_node.tag != "tag:yaml.org,2002:merge":
                if key in seen:
                    raise TextError(f'has the key "{key}" twice (line {key_node.start_mark.line + 1}): keep one')
                seen.add(key)
        return super().construct_mapping(node, deep=deep)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise TextError(f'has the key "{twice}" twice: keep one')
    return found


def parse(text: str) -> Any:
    """A document from JSON or YAML.

    Raises:
        TextError: it is neither, or has a key twice.
    """
    try:
        # JSON first: it is what we write, and read many times as fast.
        return json.loads(text, object_pairs_hook=_unique)
    except TextError:
        raise
    except RecursionError:
        raise TextError("is nested too deep") from None
    except ValueError as error:
        broken = str(error) if re.match(r'\s*[{\[]\s*"', text) else ""
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - a safe loader, in C
    except RecursionError:
        raise TextError("is nested too deep") from None
    except yaml.YAMLError as error:
        if broken:
            raise TextError(f"is not whole JSON, as a file that was cut ({broken})") from None
        detail = " ".join(str(error).replace('in "<unicode string>", ', "").split())[:300]
        raise TextError(f"is neither JSON nor YAML: {detail}") from None
