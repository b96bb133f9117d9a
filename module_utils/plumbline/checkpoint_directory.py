"""A Hugging Face directory as a source: what of it is taken, whether it is whole, and its digest. Standard library only."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .checkpoint_errors import CheckpointError
from .manifest import sha256_of_file
from .safetensors_file import TensorSpec, read_tensors

INDEX = "model.safetensors.index.json"
_TAKEN_SUFFIXES = {".json", ".safetensors", ".txt", ".model", ".jinja", ".tiktoken"}
_TAKEN_NAMES = {"LICENSE", "NOTICE", "LICENSE.md", "README.md"}
# Plumbline's own, written anew for what is made.
_OURS = {"manifest.json", "reference.json"}
# May run code when they are loaded.
_PICKLES = {".bin", ".pt", ".pth", ".ckpt", ".pkl"}
_ELSEWHERE = "copy it again from where it came"


def taken_files(directory: Path) -> list[str]:
    """Names of the files that a checkpoint needs, sorted. Python files, pickles and anything else stay behind."""
    names = []
    for path in directory.iterdir():
        if path.name.startswith(".") or path.name in _OURS:
            continue
        if path.is_symlink() and not path.resolve().is_relative_to(directory.resolve()):
            continue
        if path.is_file() and (path.suffix in _TAKEN_SUFFIXES or path.name in _TAKEN_NAMES):
            names.append(path.name)
    return sorted(names)


def digest(directory: Path) -> str:
    """SHA-256 over the lines `SHA256  NAME` of the taken files: `sha256sum NAMES... | sha256sum` in the order of LC_ALL=C."""
    lines = "".join(f"{sha256_of_file(directory / name)}  {name}\n" for name in taken_files(directory))
    return hashlib.sha256(lines.encode()).hexdigest()


def check(directory: Path) -> dict[str, tuple[str, TensorSpec]]:
    """Return file and spec of each tensor; raises CheckpointError for a directory that vLLM could not serve truly."""
    names = set(taken_files(directory))
    shards = sorted(name for name in names if name.endswith(".safetensors"))
    if not shards:
        pickles = sorted(path.name for path in directory.iterdir() if path.suffix in _PICKLES)
        if pickles:
            raise CheckpointError(
                f"{directory} holds pickles ({pickles[0]}), which may run code when loaded, and no safetensors: "
                "convert them to safetensors in a sandbox first."
            )
        raise CheckpointError(
            f"{directory} holds no .safetensors file: expected a checkpoint in Hugging Face's layout; name another model_source."
        )
    config = read_json(directory, "config.json")
    if not isinstance(config.get("architectures"), list) or not config["architectures"]:
        raise CheckpointError(
            f"{directory}/config.json names no architectures, so that no engine knows how to run it; {_ELSEWHERE}."
        )
    if not (names & {"tokenizer.json", "tokenizer.model"} or {"vocab.json", "merges.txt"} <= names):
        raise CheckpointError(
            f"{directory} holds no tokenizer (tokenizer.json, tokenizer.model, or vocab.json and merges.txt); {_ELSEWHERE}."
        )
    tensors: dict[str, tuple[str, TensorSpec]] = {}
    for shard in shards:
        for spec in read_tensors(directory / shard):
            if spec.name in tensors:
                raise CheckpointError(
                    f"The tensor {spec.name} lies in {tensors[spec.name][0]} and in {shard}: expected one; {_ELSEWHERE}."
                )
            tensors[spec.name] = (shard, spec)
    if INDEX in names:
        _check_index(directory, tensors)
    return tensors


def copy(directory: Path, target: Path) -> None:
    """Copy the taken files."""
    for name in taken_files(directory):
        shutil.copyfile(directory / name, target / name)


def read_json(directory: Path, name: str) -> Mapping[str, Any]:
    """A JSON object of the checkpoint; raises CheckpointError where it is missing or malformed."""
    try:
        content = json.loads((directory / name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(
            f"{directory} lacks {name}: expected a checkpoint in Hugging Face's layout; {_ELSEWHERE}."
        ) from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{directory}/{name} cannot be read ({error}); {_ELSEWHERE}.") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{directory}/{name} holds no JSON object; {_ELSEWHERE}.")
    return content


def _check_index(directory: Path, tensors: Mapping[str, tuple[str, TensorSpec]]) -> None:
    places = read_json(directory, INDEX).get("weight_map")
    if not isinstance(places, dict):
        raise CheckpointError(f"{directory}/{INDEX} holds no weight_map; {_ELSEWHERE}.")
    for tensor, shard in places.items():
        if not isinstance(shard, str) or Path(shard).name != shard:
            raise CheckpointError(
                f"{directory}/{INDEX} names the file {shard!r}, which does not lie in its directory: do not use this checkpoint."
            )
        if tensor not in tensors or tensors[tensor][0] != shard:
            raise CheckpointError(
                f"{directory}/{INDEX} says that {tensor} lies in {shard}, where it is not: the checkpoint is incomplete; {_ELSEWHERE}."
            )
