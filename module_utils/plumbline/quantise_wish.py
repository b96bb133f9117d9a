"""How a model is to be quantised, and the work of the quantiser's own environment. Standard library only."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import quantise_awq
from .checkpoint_errors import CheckpointError
from .quantise_plan import Plan, scheme
from .worker import run_worker

AWQ = "awq-w4a16"


@dataclass(frozen=True)
class Quantise:
    """One of quantise_plan.METHODS with its options; what begins with `calibration` and `python` is for AWQ alone."""

    method: str
    group: int
    calibration: str = ""
    calibration_name: str = ""
    samples: int = 64
    length: int = 512
    grid: int = 20
    python: str = ""
    timeout_seconds: int = 14400

    def __post_init__(self) -> None:
        """Refuse what cannot be quantised so, before anything is read."""
        scheme(self.method, self.group)
        if self.method != AWQ:
            return
        if not self.python:
            raise CheckpointError(
                "AWQ needs the quantiser's own environment: expected its Python, found none; run the whole stage model."
            )
        if not self.calibration.strip():
            raise CheckpointError(
                "AWQ needs text to calibrate on: set model_quantise_calibration_file to a file on the controller with text like the "
                f"model's work, {self.samples} pieces of {self.length} tokens (about {self.samples * self.length * 4 // 1000} kB)."
            )

    @property
    def key(self) -> list[Any]:
        """What the result depends on; part of a model's revision."""
        if self.method != AWQ:
            return [self.method, self.group]
        text = hashlib.sha256(self.calibration.encode()).hexdigest()
        return [self.method, self.group, text, self.samples, self.length, self.grid]


def run_awq(wish: Quantise, source: Path, target: Path, made: Plan) -> None:
    """Let llmcompressor quantise a directory in Hugging Face's layout into another. Raises CheckpointError with its own reason."""
    job = {
        "source": str(source),
        "target": str(target),
        "text": quantise_awq.text_of(wish.calibration, wish.calibration_name),
        "samples": wish.samples,
        "length": wish.length,
        "bits": made.scheme.bits,
        "group": made.scheme.group,
        "grid": wish.grid,
        "ignore": made.ignore,
    }
    run_worker(
        wish.python,
        "quantise_awq",
        (),
        json.dumps(job),
        timeout=wish.timeout_seconds,
        unprivileged=False,
    )
