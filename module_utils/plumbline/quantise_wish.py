"""How a model is to be quantised, and the work of the quantiser's own environment. Standard library only."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import quantise_awq
from .checkpoint_directory import read_json
from .checkpoint_errors import CheckpointError
from .likelihood_served import BLOCK
from .quantise_plan import Plan, scheme
from .worker import run_worker

AWQ = "awq-w4a16"
LEAST_GRID = 4


@dataclass(frozen=True)
class Quantise:
    """One of quantise_plan.METHODS with its options. What concerns calibration, and `python`, are for AWQ alone.

    `reference`: what computes how likely the source finds the known text, transformers in float32, or `engine`, which needs no more memory
    than to serve it; `environment` is the engine's then.
    """

    method: str
    group: int
    calibration_file: str = ""
    calibration_sha256: str = ""
    samples: int = 64
    length: int = 512
    grid: int = 20
    python: str = ""
    timeout_seconds: int = 14400
    reference: str = "transformers"
    environment: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what cannot be quantised so, before anything is read."""
        scheme(self.method, self.group)
        if self.method == AWQ and self.grid < LEAST_GRID:
            raise CheckpointError(
                f"model_quantise_awq_grid is {self.grid}: expected at least {LEAST_GRID}, of which half is tried in each of two ways."
            )
        if self.method == AWQ and not self.calibration_file:
            raise CheckpointError(
                "AWQ needs text to calibrate on: set model_quantise_calibration_file to a file on the controller with text like the "
                f"model's work, {self.samples} pieces of {self.length} tokens (about {self.samples * self.length * 4 // 1000} kB)."
            )

    @property
    def key(self) -> list[Any]:
        """What the result depends on; part of a model's revision."""
        found: list[Any] = [self.method, self.group]
        if self.method == AWQ:
            found += [self.calibration_sha256, self.samples, self.length, self.grid]
        return found if self.reference == "transformers" else [*found, self.reference]


def run_awq(wish: Quantise, source: Path, target: Path, made: Plan) -> None:
    """Let llmcompressor quantise a directory in Hugging Face's layout into another. Raises CheckpointError with its own reason."""
    job = {
        "source": str(source),
        "target": str(target),
        "text": quantise_awq.text_of(_calibration(wish), wish.calibration_file),
        "samples": wish.samples,
        "length": wish.length,
        "bits": made.scheme.bits,
        "group": made.scheme.group,
        "grid": wish.grid,
        "ignore": made.ignore,
    }
    if not wish.python:
        raise CheckpointError(
            "AWQ needs the quantiser's own environment: expected its Python, found none; run the whole stage model."
        )
    run_worker(
        wish.python,
        "quantise_awq",
        ("quantise_yuan",),
        json.dumps(job),
        timeout=wish.timeout_seconds,
        unprivileged=False,
    )


def _calibration(wish: Quantise) -> str:
    try:
        content = Path(wish.calibration_file).read_bytes()
        text = content.decode("utf-8")
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"The calibration file {wish.calibration_file}: expected text in UTF-8, it cannot be read ({error}); name another one."
        ) from None
    found = hashlib.sha256(content).hexdigest()
    if found != wish.calibration_sha256:
        raise CheckpointError(
            f"The calibration file {wish.calibration_file}: expected the SHA-256 {wish.calibration_sha256}, found {found}; "
            "it changed meanwhile: run again."
        )
    return text


def engines_job(source: Path, text: str, dtype: str) -> dict[str, Any]:
    """The job of likelihood_served for a source, as it would be served."""
    most = read_json(source, "config.json").get("max_position_embeddings")
    # No tokenizer makes more tokens than there are bytes.
    length = -(-(len(text.encode()) + 1) // BLOCK) * BLOCK
    return {
        "model": str(source),
        "text": text,
        "options": {"dtype": dtype},
        "max_model_len": min(length, most) if isinstance(most, int) else length,
    }
