"""Metrics in Prometheus's text format, for the textfile collector of the node exporter."""

from __future__ import annotations

import math
import os
import tempfile
from pathlib import Path

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Metrics:
    """Samples by family, in the order in which they came. Adding never raises for a value: what is no finite number is left out."""

    def __init__(self) -> None:
        """Start without any."""
        self._families: dict[str, tuple[str, str, dict[tuple[tuple[str, str], ...], float]]] = {}
        self._remarks: list[str] = []

    def remark(self, text: str) -> None:
        """Add a line that Prometheus reads over and people do not."""
        self._remarks.append(" ".join(text.split()))

    def add(self, name: str, kind: str, description: str, value: object, /, **labels: object) -> None:
        """Add one sample. *kind* is `gauge` or `counter`; a second sample with the same labels replaces the first."""
        if isinstance(value, bool):
            value = int(value)
        if not isinstance(value, (int, float)) or not math.isfinite(value):
            return
        key = tuple(sorted((label, str(text)) for label, text in labels.items()))
        self._families.setdefault(name, (kind, description, {}))[2][key] = value

    def render(self) -> str:
        """Return the text, each family with its description and kind."""
        # Not to be taken for a HELP or TYPE line.
        lines = [f"# - {text}" for text in self._remarks]
        for name, (kind, description, samples) in self._families.items():
            lines += [f"# HELP {name} {description}", f"# TYPE {name} {kind}"]
            for labels, value in samples.items():
                told = ",".join(f'{label}="{text.translate(_ESCAPES)}"' for label, text in labels)
                # repr() keeps every bit of a float; Prometheus reads whole numbers of any length as floats.
                lines.append(f"{name}{{{told}}} {value!r}" if told else f"{name} {value!r}")
        return "\n".join(lines) + "\n"


def write_whole(path: Path, text: str) -> None:
    """Replace a file in one step, readable by all: the exporter never sees half of it."""
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
