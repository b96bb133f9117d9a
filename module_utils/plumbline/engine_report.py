"""What an engine's installation says of itself, as measurements for the gate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_NAMES = ("engine_version", "engine_device", "engine_forward_pass")


def measurements(engine: str, version: str, device: str, marker: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """What the smoke test found, and how long its tiny models took; SKIPPED where check mode has not installed the engine."""
    if marker is None:
        reason = "check mode: the engine is not installed yet"
        return [{"name": name, "scope": engine, "skipped": reason} for name in _NAMES]
    smoke = marker["smoke"]
    conditions = {
        "torch": smoke["torch_version"],
        "device_name": smoke["device_name"],
        "packages": marker["packages"],
        "lock_sha256": marker["lock_sha256"],
        "manager": marker.get("manager", "uv"),
        "plugins": marker.get("plugins", {}),
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
        *_forward_passes(engine, marker.get("forward", [])),
    ]


def _forward_passes(engine: str, passes: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One measurement for each tiny model that answered with the options that will serve: how long it took, in seconds."""
    if not passes:
        return [{"name": "engine_forward_pass", "scope": engine, "skipped": "engine_smoke_forward_pass is false"}]
    return [
        {
            "name": "engine_forward_pass",
            "scope": f"{engine} {one['model']}",
            "value": one["seconds"],
            "unit": "s",
            "conditions": {key: one[key] for key in ("model", "scheme", "tokens", "left_out")},
        }
        for one in passes
    ]
