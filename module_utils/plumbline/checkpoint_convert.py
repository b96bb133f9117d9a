"""Convert a checkpoint to a directory that vLLM loads. Runs in the engine's Python, which has numpy (and gguf); memory is bounded.

`prepared` reads headers only and needs the standard library only, so that what would be written is known before the first byte.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from . import checkpoint_directory, gguf_architecture, gguf_tokenizer
from .cast_source import CastSource
from .checkpoint_errors import CheckpointError
from .checkpoint_writer import DEFAULT_SHARD_BYTES, Shard, as_they_are, index_of, plan, write_shards
from .gguf_source import GgufSource
from .safetensors_source import SafetensorsSource
from .tensor_source import TensorSource
from .worker_result import say

# What a worker that converts needs beside this module.
NEEDS = (
    "cast_source",
    "checkpoint_directory",
    "checkpoint_pipeline",
    "checkpoint_shapes",
    "checkpoint_writer",
    "finite",
    "gguf_architecture",
    "gguf_file",
    "gguf_source",
    "gguf_tokenizer",
    "manifest",
    "safetensors_file",
    "safetensors_source",
    "source_hashes",
    "tensor_source",
    "torch_pickle",
    "torch_source",
)
_GENERATION = "generation_config.json"


@dataclass
class Conversion:
    """What will be written: tensors in shards, JSON files made anew, and files of the source that are copied as they are."""

    source: TensorSource
    shards: list[Shard]
    made: dict[str, Any] = field(default_factory=dict)
    copied: list[Path] = field(default_factory=list)

    @property
    def size_bytes(self) -> int:
        """Bytes of it all, near enough: JSON that is made anew is not counted."""
        return sum(shard.size_bytes for shard in self.shards) + sum(path.stat().st_size for path in self.copied)

    def changed(self, source: TensorSource, shard_bytes: int = DEFAULT_SHARD_BYTES) -> Conversion:
        """The same with the tensors of a transform of its source, in shards of their own."""
        shards = plan(source.specs(), shard_bytes)
        copied = [path for path in self.copied if not path.name.endswith(".index.json")]
        return replace(self, source=source, shards=shards, copied=copied)


def prepared(source: Path, form: str, dtype: str, shard_bytes: int = DEFAULT_SHARD_BYTES) -> Conversion:
    """Open a source of one of FORMATS and plan its conversion; raises CheckpointError for what cannot be served truly."""
    return FORMATS[form](source, dtype, shard_bytes)


def convert(
    source: Path,
    target: Path,
    dtype: str,
    source_key: str,
    shard_bytes: int = DEFAULT_SHARD_BYTES,
    *,
    form: str = "gguf",
    keep_journal: bool = False,
) -> dict[str, str]:
    """Write the checkpoint into an existing directory and return the SHA-256 of each shard. Raises as `write_shards` does."""
    conversion = prepared(source, form, dtype, shard_bytes)
    try:
        return written(conversion, target, source_key, keep_journal=keep_journal)
    finally:
        conversion.source.close()


def written(conversion: Conversion, target: Path, source_key: str, *, keep_journal: bool = False) -> dict[str, str]:
    """Write what was prepared, as `convert` does."""
    hashes = write_shards(target, conversion.shards, source_key, conversion.source, keep_journal=keep_journal)
    for path in conversion.copied:
        shutil.copyfile(path, target / path.name)
    made = dict(conversion.made)
    # A directory that is taken over as it is may have none.
    if any(shard.head is None for shard in conversion.shards):
        made[checkpoint_directory.INDEX] = index_of(conversion.shards)
    for name, content in made.items():
        text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        (target / name).write_text(text, encoding="utf-8")
    return hashes


def _from_gguf(path: Path, dtype: str, shard_bytes: int) -> Conversion:
    source = GgufSource(path)
    try:
        header = source.header
        config = gguf_architecture.config(header, dtype)
        files = gguf_tokenizer.tokenizer_files(header, config["vocab_size"])
    except BaseException:
        source.close()
        raise
    special = {key: value for key, value in gguf_architecture.special_tokens(header).items() if value is not None}
    cast = CastSource(source, dtype)
    return Conversion(cast, plan(cast.specs(), shard_bytes), {**files, "config.json": config, _GENERATION: special})


def _from_directory(directory: Path, _dtype: str, shard_bytes: int) -> Conversion:
    """Weights keep their types: the engine casts while it loads. Safetensors keep their files, byte for byte."""
    _, source = checkpoint_directory.open_checked(directory)
    copied = [directory / name for name in checkpoint_directory.companions(directory)]
    if isinstance(source, SafetensorsSource):
        return Conversion(source, as_they_are(source), copied=copied)
    # An index of weights that are written anew would be a false one.
    copied = [path for path in copied if not path.name.endswith(".index.json")]
    return Conversion(source, plan(source.specs(), shard_bytes), copied=copied)


# `safetensors` is any directory in Hugging Face's layout, whatever holds its weights: the name is part of a model's revision.
FORMATS: Mapping[str, Callable[[Path, str, int], Conversion]] = {"gguf": _from_gguf, "safetensors": _from_directory}


def main(job_text: str) -> int:
    """Carry out a job in JSON (source, target, format, dtype, source_key)."""
    job: dict[str, Any] = json.loads(job_text)

    def work() -> dict[str, Any]:
        hashes = convert(
            Path(job["source"]),
            Path(job["target"]),
            job["dtype"],
            job["source_key"],
            job.get("shard_bytes", DEFAULT_SHARD_BYTES),
            form=job.get("format", "gguf"),
            keep_journal=True,
        )
        return {"shards": hashes}

    return reported(work, job["source"], job["target"])


def reported(work: Callable[[], dict[str, Any]], source: str, target: str) -> int:
    """Say what a worker's work gave back, or in one sentence why there is nothing."""
    try:
        result = work()
    except CheckpointError as error:
        say({"error": str(error)})
    except MemoryError:
        say({"error": f"The conversion of {source} found too little memory: stop what else runs here, then run again."})
    except OSError as error:
        say(
            {
                "error": f"The checkpoint could not be written to {target} ({error.strerror}): free disk there, then run again."
            }
        )
    else:
        say(result)
    return 0
