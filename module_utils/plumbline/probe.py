"""Run one of this package's probe programs under another Python (the engine's, with torch)."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

# The names only reach the probe if AnsiballZ ships them; it follows import statements.
from . import all_reduce_probe, gpu_copy_probe  # noqa: F401


def source_of(name: str) -> str:
    """Return the source of a module of this package, also where the package lies in a zip file, as AnsiballZ ships it."""
    spec = importlib.util.find_spec(f"{__package__}.{name}")
    loader: Any = spec.loader if spec else None
    source = loader.get_source(spec.name) if spec and hasattr(loader, "get_source") else None
    if not isinstance(source, str):
        raise FileNotFoundError(f"the probe {name} was not shipped with the module")
    return source


def run_probe(name: str, python: str, options: dict[str, Any], timeout_seconds: int) -> tuple[str, str]:
    """Run the probe with its options as JSON and return what it wrote to stdout and stderr; never raises for a probe that fails.

    A Python that is not there or a run past `timeout_seconds` comes back as an `error` answer, like one of the probe's own.
    """
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    with tempfile.TemporaryDirectory(prefix="plumbline-probe-") as folder:
        program = Path(folder) / f"{name}.py"
        program.write_text(source_of(name))
        try:
            result = subprocess.run(
                [python, str(program), json.dumps(options)],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout_seconds,
                env=environment,
                check=False,
            )
        except OSError as error:
            return json.dumps(
                {"error": f"cannot start {python}: {error.strerror}; give the Python of an engine with torch"}
            ), ""
        except subprocess.TimeoutExpired:
            return json.dumps({"error": f"the probe was still running after {timeout_seconds} s and was ended"}), ""
    return result.stdout, result.stderr
