"""How a worker hands back its result: one line of JSON with a mark, for the libraries it uses print to standard output too."""

from __future__ import annotations

import json
from typing import Any

_MARK = "plumbline-result "


def say(result: dict[str, Any]) -> None:
    """Print the result of a worker."""
    print("\n" + _MARK + json.dumps(result), flush=True)


def heard(output: str) -> dict[str, Any] | None:
    """The result in a worker's standard output, None where it gave none."""
    for line in reversed(output.splitlines()):
        if line.startswith(_MARK):
            result = json.loads(line[len(_MARK) :])
            return result if isinstance(result, dict) else None
    return None
