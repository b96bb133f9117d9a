"""The load client in one file, to be run by a Python that has aiohttp: `python -I plumbline-load.pyz SPEC.json`."""

from __future__ import annotations

import io
import pkgutil
import zipfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # Ansible carries to the node what is named here. It is imported there by the Python that has aiohttp, and by no other.
    from . import (  # noqa: F401
        load_events,
        load_histogram,
        load_http,
        load_prompts,
        load_run,
        load_schedule,
        load_spec,
        load_sweep,
        load_sweep_plan,
        load_tally,
        load_target,
        load_timer,
        load_worker,
        worker_result,
    )

WORKER = "load_worker"
NEEDS = (
    "load_events",
    "load_histogram",
    "load_http",
    "load_prompts",
    "load_run",
    "load_schedule",
    "load_spec",
    "load_sweep",
    "load_sweep_plan",
    "load_target",
    "load_tally",
    "load_timer",
    "worker_result",
)
"""What the worker imports beside it, for `run_worker`."""

_PACKAGE = "plumbline_load"
_START = f"import sys\nfrom {_PACKAGE}.{WORKER} import command\nsys.exit(command(sys.argv))\n"


def program() -> bytes:
    """Return the program as a zip archive that Python runs; the same bytes for the same code."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        _add(archive, "__main__.py", _START.encode())
        _add(archive, f"{_PACKAGE}/__init__.py", b"")
        for name in (WORKER, *NEEDS):
            # Not a path: on the node these modules lie in Ansible's archive.
            source = pkgutil.get_data(__package__ or __name__.rpartition(".")[0], f"{name}.py")
            if source is None:
                raise FileNotFoundError(f"Plumbline's own module {name} was not carried to the node: report this")
            _add(archive, f"{_PACKAGE}/{name}.py", source)
    return out.getvalue()


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    info.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(info, content)
