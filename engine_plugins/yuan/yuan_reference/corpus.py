"""Text to train on without a download: the documentation strings of the standard library and of installed packages.

Deterministic for given versions: files in the order of their names, every string once, and what is held out decided by a hash of
the file's name, so that no file is in both parts.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import re
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

# The standard library, and packages that an engine's environment has because torch needs them.
PACKAGES = ("numpy", "sympy", "networkx", "torch")
HELD_OUT_PART = 50  # one file in so many
_STRING = re.compile(r'"""(.+?)"""', re.DOTALL)
_SHORTEST = 200  # characters


def _roots(packages: Sequence[str]) -> Iterator[Path]:
    yield Path(sysconfig.get_path("stdlib"))
    for name in packages:
        found = importlib.util.find_spec(name)
        if found is None or not found.submodule_search_locations:
            raise ValueError(f"The text to train on comes from the package {name}, which is not installed.")
        yield Path(next(iter(found.submodule_search_locations)))


def read(packages: Sequence[str] = PACKAGES) -> tuple[list[str], list[str]]:
    """Return (training documents, held-out documents). Raises ValueError if a package is not installed."""
    training: list[str] = []
    held_out: list[str] = []
    seen: set[str] = set()
    for root in _roots(packages):
        for path in sorted(root.rglob("*.py")):
            name = path.relative_to(root)
            if "site-packages" in name.parts or "dist-packages" in name.parts:
                continue
            part = held_out if _hash(f"{root.name}/{name}") % HELD_OUT_PART == 0 else training
            for text in _strings(path):
                if text not in seen:
                    seen.add(text)
                    part.append(text)
    return training, held_out


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def _strings(path: Path) -> Iterator[str]:
    """The triple-quoted strings of a file that are long enough to be documentation, without their indentation."""
    try:
        source = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return
    for match in _STRING.finditer(source):
        text = inspect.cleandoc(match[1])
        if len(text) >= _SHORTEST:
            yield text
