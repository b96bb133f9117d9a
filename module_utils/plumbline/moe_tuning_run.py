"""Tune a model's fused-MoE configuration in the engine's Python, and keep it as data: vLLM's file, and beside it how it was measured."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import moe_tune_worker  # noqa: F401 - carried to the node because it is named here; it runs in the engine's Python
from .checkpoint_errors import CheckpointError
from .moe_tune_plan import NotTunable, Shape, file_text, shape_of
from .moe_tune_search import Found, measurements
from .worker import run_worker

METADATA = ".metadata.json"
_NEEDS = ("moe_tune_plan", "moe_tune_search", "moe_tune_gpu")
# Starting the engine's Python, laying out weights, and the last measurement that the budget let begin.
_BEYOND_BUDGET_SECONDS = 240
_FORMAT = 1


@dataclass(frozen=True)
class Wish:
    """What to tune: the engine's Python, the model's directory, and where the files go."""

    engine_python: str
    model: Path
    tensor_parallel_size: int
    batch_sizes: Sequence[int]
    time_budget_seconds: int
    output: Path
    workers: int = 0
    force: bool = False


@dataclass
class Outcome:
    """What came of it. `skipped` says why nothing was tuned; else `files` are those that lie there now."""

    measurements: list[dict[str, Any]]
    files: list[str]
    skipped: str = ""
    changed: bool = False
    recorded: bool = False
    seconds: float = 0.0


def tune(wish: Wish, check_mode: bool = False) -> Outcome:
    """Tune, or return what is on record for this shape, engine and these batch sizes.

    Raises CheckpointError with one sentence where the model or the engine is not as it should be.
    """
    try:
        shape = shape_of(_config(wish.model), wish.tensor_parallel_size)
    except NotTunable as reason:
        return skipped("none", str(reason))
    except ValueError as error:
        raise CheckpointError(f"{wish.model}: {error}") from error
    kept = None if wish.force else recorded(wish, shape)
    if kept is not None:
        return kept
    if check_mode:
        outcome = skipped(shape.label, "check mode: nothing is measured")
        outcome.changed = True
        return outcome
    job = {
        "shape": shape.as_dict(),
        "batch_sizes": sorted(set(wish.batch_sizes)),
        "time_budget_seconds": wish.time_budget_seconds,
        "workers": wish.workers,
    }
    environment = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_TUNED_CONFIG_FOLDER": ""}
    done = run_worker(
        wish.engine_python,
        "moe_tune_worker",
        _NEEDS,
        json.dumps(job),
        timeout=wish.time_budget_seconds + _BEYOND_BUDGET_SECONDS,
        environment={**environment, **_library_paths()},
    )
    if why := done.result.get("skipped"):
        return skipped(shape.label, str(why))
    return _keep(wish, shape, done.result)


def skipped(scope: str, reason: str) -> Outcome:
    """An outcome without a figure, and why."""
    return Outcome([{"name": "moe_tuning_gain", "scope": scope, "skipped": reason}], [], skipped=reason)


def recorded(wish: Wish, shape: Shape) -> Outcome | None:
    """What was kept in the same directory for the same shape, GPU, vLLM and batch sizes, its file unchanged; else None.

    It may have been measured on another machine and copied here.
    """
    version, gpus = _vllm_version(wish.engine_python), _gpus()
    for path in sorted(wish.output.glob(f"*{METADATA}")) if wish.output.is_dir() else ():
        try:
            told = json.loads(path.read_text(encoding="utf-8"))
            # A name alone: what a damaged record names outside of its directory is none of ours.
            file = wish.output / Path(told["file_name"]).name
            content = json.loads(file.read_text(encoding="utf-8"))
            counts = (
                told["format"] == _FORMAT
                and told["shape"] == shape.as_dict()
                and told["conditions"]["vllm"] == version
                and told["conditions"]["gpu"] in gpus
                and set(wish.batch_sizes) <= {int(size) for size in content if size.isdigit()}
                and content == told["content"]
            )
            measurements = list(told["measurements"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
        if counts:
            return Outcome(measurements, [str(file), str(path)], recorded=True)
    return None


def _vllm_version(python: str) -> str:
    """The version of vLLM beside a Python, without starting it; empty where there is none or more than one."""
    found = {
        path.name[len("vllm-") : -len(".dist-info")]
        for path in Path(python).parent.parent.glob("lib/python*/site-packages/vllm-*.dist-info")
        if path.is_dir()
    }
    return found.pop() if len(found) == 1 else ""


def _gpus(root: Path = Path("/proc/driver/nvidia/gpus")) -> set[str]:
    """Names of this machine's GPUs as the driver tells them."""
    names = set()
    for path in root.glob("*/information"):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "Model":
                names.add(value.strip())
    return names


def _config(model: Path) -> Mapping[str, Any]:
    path = model / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(
            f"The model's config.json could not be read ({error}): name the directory of a model."
        ) from error
    except ValueError as error:
        raise CheckpointError(f"{path} is not JSON ({error}): make the model again.") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{path} is not a JSON object: make the model again.")
    return config


def _library_paths() -> dict[str, str]:
    # Triton builds a launcher with the C compiler and loads the driver's library; a site may have to say where they are.
    return {
        name: os.environ[name]
        for name in ("LD_LIBRARY_PATH", "CUDA_HOME", "CC", "CUDA_VISIBLE_DEVICES")
        if name in os.environ
    }


def _keep(wish: Wish, shape: Shape, result: Mapping[str, Any]) -> Outcome:
    found = [Found(**entry) for entry in result["found"]]
    conditions = dict(result["conditions"])
    measured = measurements(shape, found, conditions)
    content = file_text({entry.tokens: entry.config for entry in found}, str(conditions["triton"]))
    name = str(result["file_name"])
    if "/" in name or not name.endswith(".json"):
        raise CheckpointError(f"vLLM names the configuration {name!r}, which is no plain file name: report this.")
    told = {
        "format": _FORMAT,
        "file_name": name,
        "shape": shape.as_dict(),
        "conditions": conditions,
        "seconds": result["seconds"],
        "content": content,
        "found": [entry.as_dict() for entry in found],
        "measurements": measured,
    }
    wish.output.mkdir(mode=0o755, parents=True, exist_ok=True)
    paths = (wish.output / name, wish.output / f"{name[: -len('.json')]}{METADATA}")
    # The record first: a file without one is never taken for a finished run.
    for path, value in ((paths[1], told), (paths[0], content)):
        _write(path, json.dumps(value, indent=1) + "\n")
    return Outcome(measured, [str(path) for path in paths], changed=True, seconds=float(result["seconds"]))


def _write(path: Path, text: str) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".moe-")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
