"""Read what somebody else wrote (facts, evidence) without believing its shape: what is not as expected is absent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def mapping(value: Any) -> Mapping[str, Any]:
    """Return a mapping as it is, and anything else as an empty one."""
    return value if isinstance(value, Mapping) else {}


def mappings(value: Any) -> list[Mapping[str, Any]]:
    """Return the mappings of a list."""
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, (list, tuple)) else []


def texts(value: Any) -> list[str]:
    """Return the texts of a list that say something."""
    return [text for item in value if (text := words(item))] if isinstance(value, (list, tuple)) else []


def words(value: Any) -> str:
    """Return a text or a number on one line; anything else is an empty text."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return ""
    return " ".join(str(value).split())


def number(value: Any) -> float | None:
    """Return a finite number that fits a float, else `None`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def count(value: Any) -> int | None:
    """Return a number as a whole one, else `None`."""
    found = number(value)
    return None if found is None else int(found)


def known_sum(values: list[float | None]) -> float | None:
    """Return the sum of what is known, `None` where nothing is."""
    found = [value for value in values if value is not None]
    return sum(found) if found else None
