"""Write a checkpoint quantised. Runs in the engine's Python; `quantised` reads headers only and needs the standard library only."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from . import checkpoint_directory
from .checkpoint_convert import NEEDS as CONVERT_NEEDS
from .checkpoint_convert import Conversion, prepared, write
from .checkpoint_errors import CheckpointError
from .checkpoint_writer import DEFAULT_SHARD_BYTES
from .quantise_check import rounding
from .quantise_plan import Plan, configured, plan, scheme
from .quantise_source import QuantisedSource
from .safetensors_source import SafetensorsSource
from .tensor_source import TensorSource
from .worker_result import say

# What a worker needs beside this module.
NEEDS = (
    *CONVERT_NEEDS,
    "checkpoint_convert",
    "quantise_check",
    "quantise_numbers",
    "quantise_plan",
    "quantise_source",
)
_CONFIG = "config.json"


def quantised(
    conversion: Conversion,
    method: str,
    group: int,
    by_another: Path | None = None,
    shard_bytes: int = DEFAULT_SHARD_BYTES,
) -> tuple[Conversion, Plan]:
    """The conversion with its weights rounded; or, `by_another`, with the weights that a quantiser has left in that directory.

    Raises CheckpointError for a source that cannot be quantised, or for weights that are not those that were asked for.
    """
    made = plan(conversion.source.specs(), scheme(method, group))
    config = conversion.made.get(_CONFIG)
    if not isinstance(config, dict):
        config = checkpoint_directory.read_json(
            next(path.parent for path in conversion.copied if path.name == _CONFIG), _CONFIG
        )
    config = configured(config, made)
    source: TensorSource = (
        QuantisedSource(conversion.source, made) if by_another is None else _checked(by_another, conversion, made)
    )
    changed = conversion.changed(source, shard_bytes)
    return (
        replace(
            changed,
            made={**changed.made, _CONFIG: config},
            copied=[path for path in changed.copied if path.name != _CONFIG],
        ),
        made,
    )


def _checked(directory: Path, conversion: Conversion, made: Plan) -> TensorSource:
    """Another quantiser's weights, which must have the names, types and shapes that the plan gives."""
    source = SafetensorsSource(directory, sorted(path.name for path in directory.glob("*.safetensors")))
    found = {spec.name: spec for spec in source.specs()}
    wanted = {spec.name: spec for spec in made.specs(conversion.source.specs())}
    # A tied output matrix may be left out, and is written where it was not.
    for name in ("lm_head.weight",):
        if name not in wanted or name not in found:
            found.pop(name, None)
            wanted.pop(name, None)
    wrong = sorted(name for name in {**wanted, **found} if found.get(name) != wanted.get(name))
    if wrong:
        source.close()
        raise CheckpointError(
            f"The quantiser left {len(wrong)} tensors other than they were asked for, the first is {wrong[0]} "
            f"({found.get(wrong[0])} instead of {wanted.get(wrong[0])}): this architecture cannot be quantised so; "
            "set model_quantise to rtn-w4a16."
        )
    return source


def convert(job: dict[str, Any]) -> dict[str, Any]:
    """Carry out a job (as for checkpoint_convert, and method, group, by_another); what is said of it goes into the manifest."""
    target, shard_bytes = Path(job["target"]), job.get("shard_bytes", DEFAULT_SHARD_BYTES)
    conversion = prepared(Path(job["source"]), job["format"], job["dtype"], shard_bytes)
    try:
        by_another = Path(job["by_another"]) if job.get("by_another") else None
        changed, made = quantised(conversion, job["method"], job["group"], by_another, shard_bytes)
        done = write(changed, target, job["source_key"], hash_source=bool(job.get("hash_source")))
        told = {
            "method": job["method"],
            "bits": made.scheme.bits,
            "group": made.scheme.group,
            "weights": len(made.quantised),
            "left_out": dict(sorted(made.left_out.items())),
            "parameters": sum(math.prod(spec.shape) for spec in conversion.source.specs()),
            "source_weight_bytes": sum(spec.size_bytes for spec in conversion.source.specs()),
            "weight_bytes": sum(spec.size_bytes for shard in changed.shards for spec in shard.tensors),
            "rounding_error": None,
        }
        if by_another is None:
            result = SafetensorsSource(target, sorted(done.shards))
            try:
                worst = rounding(conversion.source, result, made)
            finally:
                result.close()
            told.update(rounding_error=worst.largest, rounding_error_at=worst.where)
        else:
            changed.source.close()
    finally:
        conversion.source.close()
    return {"shards": done.shards, "source": done.source, "quantised": told}


def main(job_text: str) -> int:
    """Carry out a job in JSON."""
    job: dict[str, Any] = json.loads(job_text)
    try:
        result = convert(job)
    except CheckpointError as error:
        result = {"error": str(error)}
    except MemoryError:
        result = {
            "error": f"Quantising {job['source']} found too little memory: stop what else runs here, then run again."
        }
    except OSError as error:
        reason = f"The quantised checkpoint could not be written to {job['target']} ({error.strerror})"
        result = {"error": f"{reason}: free disk there, then run again."}
    say(result)
    return 0
