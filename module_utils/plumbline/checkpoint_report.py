"""What a checkpoint is, before anything is done with it: layout, architecture, sizes, tokenizer, and whether it can be served."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Optional

from . import checkpoint_convert, checkpoint_directory
from .checkpoint_errors import CheckpointError
from .engine_architectures import check_known
from .manifest import sha256_of_file
from .yuan_partitions import partitions

_LAYOUTS = {
    "safetensors": "Hugging Face, safetensors",
    "split": "one safetensors file in pieces",
    "torch": "Hugging Face, files of torch.save (read, not run)",
}


@dataclass
class Report:
    """What was found. `problem` is the sentence for which it cannot be converted, empty where it can. Sizes in bytes."""

    path: str
    layout: str = ""
    architecture: str = ""
    tensors: int = 0
    parameters: int = 0
    weight_bytes: int = 0
    dtypes: Optional[dict[str, int]] = None  # noqa: UP045 - the node's Python may be 3.9
    sha256: str = ""
    problem: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def lines(self) -> list[str]:
        """For people."""
        types = ", ".join(f"{count} {name}" for name, count in sorted((self.dtypes or {}).items()))
        rows = [("path", self.path), ("layout", self.layout), ("architecture", self.architecture)]
        if self.tensors:
            rows.append(
                (
                    "weights",
                    f"{self.tensors} tensors ({types}), {amount(self.parameters)} parameters, {gigabytes(self.weight_bytes)}",
                )
            )
        if self.sha256:
            rows.append(("sha256", f"{self.sha256}  (model_source_sha256)"))
        rows.append(("convertible", "no" if self.problem else "yes"))
        return [f"{name:<13} {value}" for name, value in rows if value]


def form_of(path: Path) -> str:
    """The format of a source as `prepared` calls it; raises CheckpointError for what is none."""
    if path.is_dir():
        return "safetensors"
    if path.is_file():
        return "gguf"
    raise CheckpointError(f"{path}: expected a .gguf file or the directory of a checkpoint, found nothing.")


def inspect(path: Path, with_sha256: bool = False) -> Report:
    """Read headers, configuration and tokenizer. With `with_sha256` every byte is read."""
    report = Report(str(path))
    try:
        form = form_of(path)
        report.layout = layout_of(path)
        if path.is_dir():
            config = checkpoint_directory.read_json(path, "config.json")
            report.architecture = ", ".join(str(name) for name in config.get("architectures") or [])
            check_known(config)
        conversion = checkpoint_convert.prepared(path, form, "bfloat16")
        try:
            specs = conversion.source.specs()
        finally:
            conversion.source.close()
        if form == "gguf":
            report.architecture = ", ".join(conversion.made["config.json"]["architectures"])
        report.tensors = len(specs)
        report.parameters = sum(math.prod(spec.shape) for spec in specs)
        report.weight_bytes = sum(spec.size_bytes for spec in specs)
        report.dtypes = dict(Counter(spec.dtype for spec in specs))
        if with_sha256:
            report.sha256 = checkpoint_directory.digest(path) if path.is_dir() else sha256_of_file(path)
    except CheckpointError as error:
        report.problem = str(error)
    return report


def layout_of(path: Path) -> str:
    """The layout in words; raises CheckpointError for partitions that are not complete."""
    if path.is_file():
        return "GGUF"
    weights = checkpoint_directory.weights_of(path)
    if weights is None:
        return "none that is known"
    if weights.kind == "megatron":
        found = partitions(path)
        ranks, stages = 1 + max(rank for rank, _ in found), 1 + max(stage for _, stage in found)
        return f"Megatron partitions, {ranks} tensor-parallel x {stages} stages"
    return f"{_LAYOUTS[weights.kind]}, {len(weights.names)} file{'s' if len(weights.names) > 1 else ''}"


def amount(number: float) -> str:
    """A number of parameters in words, for example 39.94 B."""
    for factor, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= factor:
            return f"{number / factor:.2f} {unit}"
    return str(int(number))


def gigabytes(size: float) -> str:
    """A size in GB, or in MB where it is small."""
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
