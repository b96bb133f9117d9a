"""A Hugging Face directory as a source: what of it is taken, whether it is whole, and its digest. Standard library only."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union

from .checkpoint_errors import CheckpointError
from .checkpoint_shapes import check_shapes
from .manifest import sha256_of_file
from .safetensors_file import TensorSpec
from .safetensors_source import PIECE, SafetensorsSource, SplitSource
from .torch_source import TorchBinSource
from .yuan_megatron import MegatronYuanSource
from .yuan_partitions import is_megatron, partitions

INDEX = "model.safetensors.index.json"
TORCH_INDEX = "pytorch_model.bin.index.json"
_TAKEN_SUFFIXES = {".json", ".txt", ".model", ".jinja", ".tiktoken"}
_TAKEN_NAMES = {"LICENSE", "NOTICE", "LICENSE.md", "README.md"}
# Plumbline's own, written anew for what is made.
_OURS = {"manifest.json", "reference.json", "journal.json"}
_TORCH = re.compile(r"^pytorch_model.*\.bin$")
_ELSEWHERE = "copy it again from where it came"

DirectorySource = Union[SafetensorsSource, SplitSource, TorchBinSource, MegatronYuanSource]


@dataclass(frozen=True)
class Weights:
    """The files that hold a directory's weights, in the order of their names, and what they are: safetensors, split, torch or megatron."""

    kind: str
    names: tuple[str, ...]

    def opened(self, directory: Path) -> DirectorySource:
        """The weights as a source; raises CheckpointError for a damaged or dangerous file."""
        if self.kind == "safetensors":
            return SafetensorsSource(directory, self.names)
        if self.kind == "megatron":
            return MegatronYuanSource(directory, read_json(directory, "config.json"))
        return SplitSource(directory, self.names) if self.kind == "split" else TorchBinSource(directory, self.names)


def weights_of(directory: Path) -> Weights | None:
    """Which files hold the weights: safetensors where there are any, else pieces of one, files of torch.save, partitions.

    None: none at all. Raises CheckpointError for partitions that are not complete.
    """
    names = sorted(path.name for path in directory.iterdir() if _lies_in(path, directory))
    for kind, found in (
        ("safetensors", [name for name in names if name.endswith(".safetensors")]),
        ("split", [name for name in names if PIECE.match(name)]),
        ("torch", [name for name in names if _TORCH.match(name)]),
    ):
        if found:
            return Weights(kind, tuple(found))
    if is_megatron(directory):
        return Weights(
            "megatron", tuple(sorted(path.relative_to(directory).as_posix() for path in partitions(directory).values()))
        )
    return None


def companions(directory: Path) -> list[str]:
    """Names of the files beside the weights that are taken, sorted: configuration, tokenizer, licence."""
    return sorted(
        path.name
        for path in directory.iterdir()
        if path.name not in _OURS
        and (path.suffix in _TAKEN_SUFFIXES or path.name in _TAKEN_NAMES)
        and _lies_in(path, directory)
    )


def taken_files(directory: Path) -> list[str]:
    """Names of the files that make a checkpoint, sorted: its weights and what goes with them. Anything else, code too, stays behind."""
    weights = weights_of(directory)
    return sorted({*companions(directory), *(weights.names if weights else ())})


def digest(directory: Path, known: Mapping[str, str] | None = None) -> str:
    """SHA-256 over the lines `SHA256  NAME` of the taken files: `sha256sum NAMES... | sha256sum` in the order of LC_ALL=C.

    `known` are hashes by name that were taken before.
    """
    given = known or {}
    lines = "".join(
        f"{given.get(name) or sha256_of_file(directory / name)}  {name}\n" for name in taken_files(directory)
    )
    return hashlib.sha256(lines.encode()).hexdigest()


def check(directory: Path) -> dict[str, tuple[str, TensorSpec]]:
    """Return file and spec of each tensor (of a split file its first piece); raises CheckpointError as `open_checked` does."""
    weights, source = open_checked(directory)
    try:
        return {spec.name: (_file_of(weights, source, spec.name), spec) for spec in source.specs()}
    finally:
        source.close()


def open_checked(directory: Path) -> tuple[Weights, DirectorySource]:
    """Open a directory's weights; raises CheckpointError for one that vLLM could not serve truly. Reads headers, no values."""
    weights = weights_of(directory)
    if weights is None:
        raise CheckpointError(
            f"{directory} holds no .safetensors file, no pieces of one and no pytorch_model*.bin: "
            "expected a checkpoint in Hugging Face's layout; name another model_source."
        )
    config = read_json(directory, "config.json")
    if not isinstance(config.get("architectures"), list) or not config["architectures"]:
        raise CheckpointError(
            f"{directory}/config.json names no architectures, so that no engine knows how to run it; {_ELSEWHERE}."
        )
    beside = set(companions(directory))
    if not (beside & {"tokenizer.json", "tokenizer.model"} or {"vocab.json", "merges.txt"} <= beside):
        raise CheckpointError(
            f"{directory} holds no tokenizer (tokenizer.json, tokenizer.model, or vocab.json and merges.txt); {_ELSEWHERE}."
        )
    index = {"safetensors": INDEX, "torch": TORCH_INDEX}.get(weights.kind, "")
    places = _places(directory, index) if index in beside else {}
    source = weights.opened(directory)
    try:
        specs = source.specs()
        found = {spec.name: _file_of(weights, source, spec.name) for spec in specs}
        for tensor, file in places.items():
            if found.get(tensor) != file:
                raise CheckpointError(
                    f"{directory}/{index} says that {tensor} lies in {file}, where it is not: the checkpoint is incomplete; {_ELSEWHERE}."
                )
        text_config = config.get("text_config")
        check_shapes(text_config if isinstance(text_config, dict) else config, specs, str(directory))
    except BaseException:
        source.close()
        raise
    return weights, source


def read_json(directory: Path, name: str) -> Mapping[str, Any]:
    """A JSON object of the checkpoint; raises CheckpointError where it is missing or malformed."""
    try:
        content = json.loads((directory / name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(
            f"{directory} lacks {name}: expected a checkpoint in Hugging Face's layout; {_ELSEWHERE}."
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{directory}/{name} cannot be read ({error}); {_ELSEWHERE}.") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{directory}/{name} holds no JSON object; {_ELSEWHERE}.")
    return content


def _places(directory: Path, index: str) -> Mapping[str, str]:
    """Which tensor lies in which file, as the index says; raises CheckpointError for a file that does not lie in the directory."""
    places = read_json(directory, index).get("weight_map")
    if not isinstance(places, dict):
        raise CheckpointError(f"{directory}/{index} holds no weight_map; {_ELSEWHERE}.")
    for file in places.values():
        plain = isinstance(file, str) and file not in ("", "..") and Path(file).name == file
        if not plain or not _inside(directory / file, directory):
            raise CheckpointError(
                f"{directory}/{index} names the file {file!r}, which does not lie in its directory: do not use this checkpoint."
            )
    return places


def _file_of(weights: Weights, source: DirectorySource, name: str) -> str:
    return weights.names[0] if isinstance(source, SplitSource) else source.file_of(name)


def _lies_in(path: Path, directory: Path) -> bool:
    """Whether it is a file of the directory, not hidden, and no link to somewhere else."""
    return not path.name.startswith(".") and path.is_file() and _inside(path, directory)


def _inside(path: Path, directory: Path) -> bool:
    return not path.is_symlink() or path.resolve().is_relative_to(directory.resolve())
