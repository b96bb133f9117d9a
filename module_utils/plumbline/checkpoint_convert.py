"""Convert a checkpoint to a directory that vLLM loads. Runs in the engine's Python, which has numpy (and gguf); memory is bounded.

`prepared` reads headers only and needs the standard library only, so that what would be written is known before the first byte.
"""

from __future__ import annotations

import json
import resource
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from . import checkpoint_directory, gguf_architecture, gguf_tokenizer
from .cast_source import CastSource
from .checkpoint_errors import CheckpointError
from .checkpoint_writer import DEFAULT_SHARD_BYTES, Progress, Shard, as_they_are, forget, index_of, plan, write_shards
from .engine_architectures import check_known
from .gguf_source import GgufSource
from .safetensors_source import SafetensorsSource
from .source_hashes import SourceHashes
from .tensor_source import TensorSource, files_of
from .worker_result import say
from .yuan_architecture import is_yuan
from .yuan_convert import REPLACED, dressed

# What a worker that converts needs beside this module.
NEEDS = (
    "cast_source",
    "checkpoint_directory",
    "checkpoint_pipeline",
    "checkpoint_shapes",
    "checkpoint_writer",
    "engine_architectures",
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
    "sentencepiece_model",
    "yuan_architecture",
    "yuan_convert",
    "yuan_megatron",
    "yuan_partitions",
    "yuan_source",
    "yuan_tokenizer",
    "yuan_tokens",
)
_GENERATION = "generation_config.json"


@dataclass
class Conversion:
    """What will be written: tensors in shards, files made anew, and files of the source that are copied as they are.

    `made`: by name an object for JSON, text, or a function that makes one of both in the engine's Python.
    """

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


@dataclass(frozen=True)
class Written:
    """SHA-256 by name of the shards that were written, and of the source's files where that was asked for."""

    shards: dict[str, str]
    source: dict[str, str]


def convert(
    source: Path,
    target: Path,
    dtype: str,
    source_key: str,
    shard_bytes: int = DEFAULT_SHARD_BYTES,
    *,
    form: str = "gguf",
) -> dict[str, str]:
    """Write the checkpoint into an existing directory and return the SHA-256 of each shard. Raises as `write_shards` does."""
    conversion = prepared(source, form, dtype, shard_bytes)
    try:
        hashes = write(conversion, target, source_key).shards
        forget(target)
        return hashes
    finally:
        conversion.source.close()


def write(
    conversion: Conversion,
    target: Path,
    source_key: str,
    *,
    hash_source: bool = False,
    progress: Progress | None = None,
) -> Written:
    """Write what was prepared. The journal stays, so that a later run finds everything done, until `forget` is called."""
    # First: a tokenizer that is refused is refused before hours of writing.
    made = {name: given() if callable(given) else given for name, given in conversion.made.items()}
    hashes = SourceHashes(files_of(conversion.source)) if hash_source else None
    try:
        shards = write_shards(
            target, conversion.shards, source_key, conversion.source, progress, keep_journal=True, source_hashes=hashes
        )
        found = Written(shards, hashes.finish() if hashes is not None else {})
    finally:
        if hashes is not None:
            hashes.close()
    for path in conversion.copied:
        shutil.copyfile(path, target / path.name)
    # A directory that is taken over as it is may have none.
    if any(shard.head is None for shard in conversion.shards):
        made[checkpoint_directory.INDEX] = index_of(conversion.shards)
    for name, content in made.items():
        text = content if isinstance(content, str) else json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        (target / name).write_text(text, encoding="utf-8")
    return found


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
    if is_yuan(checkpoint_directory.read_json(directory, "config.json")):
        return _from_yuan(directory, source, copied, shard_bytes)
    if isinstance(source, SafetensorsSource):
        return Conversion(source, as_they_are(source), copied=copied)
    # An index of weights that are written anew would be a false one.
    copied = [path for path in copied if not path.name.endswith(".index.json")]
    return Conversion(source, plan(source.specs(), shard_bytes), copied=copied)


def _from_yuan(directory: Path, source: TensorSource, copied: list[Path], shard_bytes: int) -> Conversion:
    """The same for a Yuan2.0, whose configuration and tokenizer are made anew; what its own Python would do is done here."""
    try:
        there = {path.name for path in copied}
        given = {
            name: checkpoint_directory.read_json(directory, name)
            for name in (_GENERATION, "tokenizer_config.json")
            if name in there
        }
        yuan = dressed(directory, source, checkpoint_directory.read_json(directory, "config.json"), given)
    except BaseException:
        source.close()
        raise
    kept = [path for path in copied if path.name not in REPLACED and path.name not in yuan.made]
    if isinstance(source, SafetensorsSource) and yuan.source.unchanged:
        return Conversion(yuan.source, as_they_are(source), yuan.made, kept)
    kept = [path for path in kept if not path.name.endswith(".index.json")]
    return Conversion(yuan.source, plan(yuan.source.specs(), shard_bytes), yuan.made, kept)


# `safetensors` is any directory in Hugging Face's layout, whatever holds its weights: the name is part of a model's revision.
FORMATS: Mapping[str, Callable[[Path, str, int], Conversion]] = {"gguf": _from_gguf, "safetensors": _from_directory}


def main(job_text: str) -> int:
    """Carry out a job in JSON: source, target, format, dtype, source_key; hash_source where the source's SHA-256 are wanted."""
    job: dict[str, Any] = json.loads(job_text)
    begin = time.monotonic()
    try:
        if Path(job["source"]).is_dir():
            check_known(checkpoint_directory.read_json(Path(job["source"]), "config.json"))
        conversion = prepared(
            Path(job["source"]), job["format"], job["dtype"], job.get("shard_bytes", DEFAULT_SHARD_BYTES)
        )
        try:
            done = write(conversion, Path(job["target"]), job["source_key"], hash_source=bool(job.get("hash_source")))
        finally:
            conversion.source.close()
    except CheckpointError as error:
        say({"error": str(error)})
    except MemoryError:
        say(
            {
                "error": f"The conversion of {job['source']} found too little memory: stop what else runs here, then run again."
            }
        )
    except OSError as error:
        say(
            {
                "error": f"The checkpoint could not be written to {job['target']} ({error.strerror}): free disk there, then run again."
            }
        )
    else:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        say({**asdict(done), "seconds": round(time.monotonic() - begin, 3), "peak_bytes": peak})
    return 0
