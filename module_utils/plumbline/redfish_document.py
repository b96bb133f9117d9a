"""Members of a Redfish document, of the type that they should have: firmware writes null, text or nothing where a schema says otherwise."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]


def mapping(document: Any, *names: str) -> Json:
    """The object behind nested members, e.g. `mapping(system, "Links")`; empty where there is none."""
    for name in names:
        document = document.get(name) if isinstance(document, dict) else None
    return document if isinstance(document, dict) else {}


def items(document: Any, name: str) -> list[Json]:
    """The objects of an array; empty where there is none."""
    found = document.get(name) if isinstance(document, dict) else None
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def texts(document: Any, name: str) -> list[str]:
    """The members of an array of texts, numbers as text; empty where there is none."""
    found = document.get(name) if isinstance(document, dict) else None
    return [str(one) for one in found if isinstance(one, (str, int))] if isinstance(found, list) else []


def text(document: Any, *names: str) -> str:
    """The first of these members that has a text or a number, as text; empty where none has."""
    for name in names:
        value = document.get(name) if isinstance(document, dict) else None
        if isinstance(value, (str, int, float)) and not isinstance(value, bool) and str(value).strip():
            return str(value).strip()
    return ""


def address(document: Any, *names: str) -> str:
    """The `@odata.id` of a document, or of the one behind nested members; empty where there is none."""
    return text(mapping(document, *names), "@odata.id")
