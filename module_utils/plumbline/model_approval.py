"""The approval of a model: bound to its bytes, the engine and the options that will serve, written only when the gate let it pass."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from .manifest import Binding, Refused, check_approval

SCHEMA = "plumbline.approval/1"
PASSED = ("OK", "WARN")


def recorded(approvals: Path, directory: Path, binding: Binding) -> list[dict[str, Any]] | None:
    """The measurements of an approval that holds for these bytes, engine and options; None where there is none."""
    try:
        approval = check_approval(approvals, directory, binding)
    except Refused:
        return None
    measured = approval.get("measurements")
    return measured if approval.get("schema") == SCHEMA and isinstance(measured, list) and measured else None


def approve(approvals: Path, model: Path, binding: Binding, measured: list[dict[str, Any]]) -> None:
    """Write the approval, by one rename."""
    approvals.mkdir(mode=0o755, parents=True, exist_ok=True)
    path = approvals / binding.file_name
    content = {
        "schema": SCHEMA,
        "model": str(model),
        "manifest_sha256": binding.manifest_sha256,
        "engine_id": binding.engine,
        "options": dict(binding.options),
        "measurements": measured,
    }
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(json.dumps(content, indent=1, sort_keys=True) + "\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.chmod(0o644)
    temporary.replace(path)


def revoke(approvals: Path, binding: Binding) -> bool:
    """Remove the approval; True where there was one."""
    try:
        (approvals / binding.file_name).unlink()
    except FileNotFoundError:
        return False
    return True
