"""Measure a model's likelihood in the engine that will serve, or read what an approval has recorded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .checkpoint_errors import CheckpointError
from .checkpoint_store import REFERENCE
from .likelihood import measurements
from .likelihood_served import BLOCK, ENVIRONMENT
from .quantise_quality import EVERY_NAME, Quantised, named, names
from .quantise_quality import measurements as about_quantised
from .worker import run_worker


@dataclass(frozen=True)
class Engine:
    """The engine that will serve: its id and Python, the options and environment variables it will have, and a time limit in seconds."""

    id: str
    python: str
    options: Mapping[str, str]
    environment: Mapping[str, str]
    timeout_seconds: int


def skipped(model: Path, reason: str, quantised: Quantised = None) -> list[dict[str, Any]]:
    """The measurements of a model that was not loaded."""
    wanted = names(quantised)
    return [{"name": name, "scope": model.parent.name, "skipped": reason} for name in EVERY_NAME if name in wanted]


def measure(model: Path, text: str, engine: Engine, quantised: Quantised = None) -> list[dict[str, Any]]:
    """Load the model into vLLM and compare it with its source. A model that the engine refuses is an error of the measurement.

    `quantised` is what the manifest says of how the model was quantised.
    """
    reference = json.loads((model / REFERENCE).read_text(encoding="utf-8"))
    # Room for a tokenizer that cuts the text into twice as many tokens; a whole number of cache blocks.
    length = -(-2 * len(reference["token_ids"]) // BLOCK) * BLOCK
    job = json.dumps({"model": str(model), "text": text, "options": dict(engine.options), "max_model_len": length})
    conditions = {"engine": engine.id, "revision": model.name, **engine.options}
    command = f"/opt/plumbline/bin/plumbline-verify-model {model}"
    environment = {**ENVIRONMENT, **engine.environment}
    scope, wanted = model.parent.name, names(quantised)
    try:
        done = run_worker(
            engine.python, "likelihood_served", (), job, timeout=engine.timeout_seconds, environment=environment
        )
    except CheckpointError as error:
        reason = f"the engine could not load the model: {error}"
        return [
            {"name": name, "scope": scope, "error": reason, "conditions": conditions, "next_command": command}
            for name in EVERY_NAME
            if name in wanted
        ]
    told = {**conditions, "peak_memory_bytes": done.peak_bytes}
    measured = named(measurements(scope, reference, done.result, told, command), quantised)
    return measured + (about_quantised(scope, quantised, (reference, done.result), conditions) if quantised else [])
