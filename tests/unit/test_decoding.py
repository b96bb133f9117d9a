"""What another program prints is decoded so that no byte of it can raise: tools print names, errors and paths of any encoding."""

from __future__ import annotations

import ast
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
FOLDERS = ("module_utils", "library", "action_plugins", "callback_plugins")


def calls_that_may_raise(source: str) -> list[int]:
    """Lines of calls with ``text=True`` and nothing that says what becomes of bytes that are no text."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and "text" in (words := {word.arg for word in node.keywords})
        and any(word.arg == "text" and getattr(word.value, "value", None) is True for word in node.keywords)
        and "errors" not in words
    ]


def test_output_of_programs_is_decoded_with_errors_replaced() -> None:
    assert calls_that_may_raise("run(['x'], text=True)") == [1]
    assert calls_that_may_raise("run(['x'], text=True, errors='replace')") == []
    files = [file for folder in FOLDERS for file in (CHECKOUT / folder).rglob("*.py")]
    assert len(files) > 100
    found = {
        str(file.relative_to(CHECKOUT)): lines for file in files if (lines := calls_that_may_raise(file.read_text()))
    }
    assert found == {}
