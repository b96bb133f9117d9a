"""What an engine's installation says of itself, as measurements for the gate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def measurements(engine: str, version: str, device: str, marker: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Version and device that the smoke test found; SKIPPED where check mode has not installed the engine."""
    if marker is None:
        reason = "check mode: the engine is not installed yet"
        return [{"name": name, "scope": engine, "skipped": reason} for name in ("engine_version", "engine_device")]
    smoke = marker["smoke"]
    conditions = {
        "torch": smoke["torch_version"],
        "device_name": smoke["device_name"],
        "packages": marker["packages"],
        "lock_sha256": marker["lock_sha256"],
    }
    return [
        {
            "name": "engine_version",
            "scope": engine,
            "value": smoke["vllm_version"],
            "expected": version,
            "conditions": conditions,
        },
        {
            "name": "engine_device",
            "scope": engine,
            "value": smoke["device"],
            "expected": device,
            "conditions": conditions,
        },
    ]
