"""Megatron partitions of Yuan2.0 as a source with the names and shapes of the Hugging Face layout. Nothing of a pickle is run.

DIR/latest_checkpointed_iteration.txt, DIR/iter_0000001/mp_rank_00[_000]/model_optim_rng.pt: a file for each rank of tensor (T) and pipeline
parallelism. Every tensor is put together from parts of the ranks' files, each a view, read some rows at a time. docs/yuan-checkpoints.md
has the layout.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Optional

from .checkpoint_errors import CheckpointError
from .safetensors_file import TensorSpec
from .tensor_source import Data, Place, rows_of
from .torch_pickle import StoredTensor
from .torch_source import TorchFile, tensors_in
from .yuan_architecture import EMBEDDING, HEAD, YuanSize, size_of
from .yuan_partitions import partitions

_LAYER = re.compile(r"^layers\.(\d+)\.(.+)$")
_ELSEWHERE = "copy the checkpoint again from where it came"
# The same on every rank: the local filter and the norms are not divided.
_SAME = {
    "input_layernorm.weight": "input_layernorm.weight",
    "post_attention_layernorm.weight": "post_attention_layernorm.weight",
    **{
        f"self_attention.lf_gate.{name}": f"self_attn.lf_gate.{name}"
        for name in ("conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias", "output_layernorm.weight")
    },
}


@dataclass(frozen=True)
class Part:
    """Some of a tensor: a view into one rank's file."""

    file: TorchFile
    tensor: StoredTensor
    name: str


@dataclass(frozen=True)
class Whole:
    """A tensor made of parts, one after the other along `axis` (0 or 1)."""

    spec: TensorSpec
    parts: tuple[Part, ...]
    axis: int


@dataclass
class _Stage:
    """One pipeline stage: for each tensor-parallel rank its file and its tensors, names joined by dots."""

    number: int
    files: list[TorchFile]
    tensors: list[dict[str, StoredTensor]]

    def part(self, rank: int, name: str, shape: tuple[int, ...]) -> Part:
        """A rank's tensor; raises CheckpointError where it is missing or has another shape."""
        tensor = self.tensors[rank].get(name)
        where = f"{self.files[rank].name} of rank {rank}, stage {self.number}"
        if tensor is None:
            raise CheckpointError(
                f"The partition {where} lacks the tensor {name}: expected it in every rank; {_ELSEWHERE}."
            )
        if tensor.shape != shape:
            raise CheckpointError(
                f"The partition {where} has the tensor {name} with the shape {list(tensor.shape)}: expected {list(shape)} from "
                "config.json and the number of ranks; take the config.json that was published with this checkpoint."
            )
        return Part(self.files[rank], tensor, name)

    def along(self, name: str, shape: tuple[int, ...]) -> tuple[Part, ...]:
        """The parts of all ranks, each of this shape."""
        return tuple(self.part(rank, name, shape) for rank in range(len(self.files)))


class MegatronYuanSource:
    """The partitions of one iteration. Raises CheckpointError for missing or doubled ranks, mixed iterations, and wrong shapes."""

    def __init__(self, directory: Path, config: Mapping[str, Any]) -> None:
        """Open every partition; only the pickles are read, not the tensors."""
        self._size = size_of(config)
        self._files: list[TorchFile] = []
        self._descriptors: dict[str, int] = {}
        try:
            places = partitions(directory)
            self._names = {path: path.relative_to(directory).as_posix() for path in places.values()}
            self._ranks = 1 + max(rank for rank, _ in places)
            self._check_division()
            stages = self._opened(places)
            self._wholes = {whole.spec.name: whole for whole in self._found(stages)}
        except BaseException:
            self.close()
            raise

    def specs(self) -> Sequence[TensorSpec]:
        """Every tensor, by layers."""
        return [whole.spec for whole in self._wholes.values()]

    def files(self) -> dict[str, int]:
        """Open descriptors of the files by their names below the directory."""
        return dict(self._descriptors)

    def file_of(self, name: str) -> str:
        """Name of the file that holds the first part of a tensor."""
        file = self._wholes[name].parts[0].file
        return next(path for path, descriptor in self._descriptors.items() if descriptor == file.descriptor)

    def place(self, name: str) -> Optional[Place]:  # noqa: UP045 - the node's Python may be 3.9
        """Where a tensor lies that is one part in C order."""
        parts = self._wholes[name].parts
        return parts[0].file.place(parts[0].tensor, parts[0].name) if len(parts) == 1 else None

    def read(self, name: str, first_row: int, rows: int) -> Data:
        """Rows of a tensor, put together from the ranks' parts."""
        whole = self._wholes[name]
        if whole.axis == 1 and len(whole.parts) > 1:
            return _beside(whole, first_row, rows)
        pieces = []
        begin = 0
        for part in whole.parts:
            end = begin + part.tensor.shape[0]
            first, last = max(begin, first_row), min(end, first_row + rows)
            if first < last:
                pieces.append(part.file.read(part.tensor, part.name, first - begin, last - first))
            begin = end
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def close(self) -> None:
        """Close the partitions."""
        for file in self._files:
            file.close()

    def _check_division(self) -> None:
        size = self._size
        for what, count in (
            ("attention heads", size.heads),
            ("rows of the vocabulary", size.vocabulary),
            ("columns of the MLP", size.width),
        ):
            if count % self._ranks:
                raise CheckpointError(
                    f"There are partitions of {self._ranks} tensor-parallel ranks: expected a number that divides the {count} {what}; "
                    "take the config.json that was published with this checkpoint."
                )

    def _opened(self, places: Mapping[tuple[int, int], Path]) -> list[_Stage]:
        stages: list[_Stage] = []
        iterations: dict[Any, str] = {}
        for stage in range(1 + max(number for _, number in places)):
            stages.append(_Stage(stage, [], []))
            for rank in range(self._ranks):
                path = places[rank, stage]
                file = TorchFile(path)
                self._files.append(file)
                self._descriptors[self._names[path]] = file.descriptor
                content = file.content if isinstance(file.content, dict) else {}
                where = f"{path.parent.name}/{path.name}"
                model = content.get("model")
                if not isinstance(model, dict):
                    raise CheckpointError(
                        f"{where} holds no weights under 'model': expected a training checkpoint of Megatron without virtual stages; "
                        "take the published one."
                    )
                iterations.setdefault(content.get("iteration"), where)
                _check_arguments(content.get("args"), where, len(places) // self._ranks, self._ranks, self._size)
                stages[-1].files.append(file)
                stages[-1].tensors.append(_named(model))
        if len(iterations) > 1:
            (first, here), (second, there) = list(iterations.items())[:2]
            raise CheckpointError(
                f"The partitions are of several iterations ({here} of {first}, {there} of {second}): expected one; {_ELSEWHERE}."
            )
        return stages

    def _found(self, stages: Sequence[_Stage]) -> list[Whole]:
        size, ranks = self._size, self._ranks
        rows = (size.vocabulary // ranks, size.hidden)
        found = [_whole(EMBEDDING, stages[0].along("embedding.word_embeddings.weight", rows))]
        layer = 0
        for stage in stages:
            count = _layers_of(stage)
            _check_alike(stage)
            for number in range(count):
                found += _layer(stage, number, layer, size)
                layer += 1
        if layer != size.layers:
            raise CheckpointError(
                f"The partitions hold {layer} layers in {len(stages)} stages: expected the {size.layers} of config.json; {_ELSEWHERE}."
            )
        last = stages[-1]
        found.append(_whole("model.norm.weight", (last.part(0, "encoder.final_layernorm.weight", (size.hidden,)),)))
        if any("output_layer.weight" in tensors for tensors in last.tensors):
            if size.tied:
                raise CheckpointError(
                    "The partitions hold an output_layer, config.json says tie_word_embeddings: expected one of both; "
                    "take the config.json that was published with this checkpoint."
                )
            found.append(_whole(HEAD, last.along("output_layer.weight", rows)))
        elif any("word_embeddings_for_head.weight" in tensors for tensors in last.tensors):
            found.append(_whole(HEAD, last.along("word_embeddings_for_head.weight", rows)))
        else:
            found.append(_whole(HEAD, found[0].parts))
        return found


def _named(model: Mapping[str, Any]) -> dict[str, StoredTensor]:
    """A rank's tensors by their names below language_model; names of older Megatron become those of the newer."""
    named = {}
    for name, tensor in tensors_in(model):
        short = name[len("language_model.") :] if name.startswith("language_model.") else name
        if short.startswith("transformer."):
            short = f"encoder.{short[len('transformer.') :]}"
        named[short.replace(".attention.", ".self_attention.")] = tensor
    return named


def _check_arguments(arguments: Any, where: str, stages: int, ranks: int, size: YuanSize) -> None:
    """What the training says of itself must be what is there. Files without arguments are taken as they are."""
    values = getattr(arguments, "values", {})
    for key, found in (("tensor_model_parallel_size", ranks), ("pipeline_model_parallel_size", stages)):
        stated = values.get(key)
        if isinstance(stated, int) and stated != found:
            raise CheckpointError(
                f"{where} was saved with {key} {stated}, there are partitions of {found}: expected all of them and no other; {_ELSEWHERE}."
            )
    for key, found in (("num_layers", size.layers), ("hidden_size", size.hidden), ("num_attention_heads", size.heads)):
        stated = values.get(key)
        if isinstance(stated, int) and stated != found:
            raise CheckpointError(
                f"{where} was trained with {key} {stated}, config.json says {found}: expected the same; "
                "take the config.json that was published with this checkpoint."
            )
    seen = values.get("num_attention_router_heads")
    if isinstance(seen, int) and isinstance(values.get("seq_length"), int) and seen != values["seq_length"]:
        raise CheckpointError(
            f"{where} was trained with num_attention_router_heads {seen} and seq_length {values['seq_length']}: expected the same number, "
            "another one is another router, which is not served here."
        )


def _layers_of(stage: _Stage) -> int:
    numbers = set()
    for name in stage.tensors[0]:
        match = _LAYER.match(name[len("encoder.") :]) if name.startswith("encoder.") else None
        if match:
            numbers.add(int(match[1]))
    if numbers != set(range(len(numbers))):
        raise CheckpointError(
            f"Stage {stage.number} of the partitions holds the layers {sorted(numbers)}: expected them counted from 0 without a gap; "
            f"{_ELSEWHERE}."
        )
    return len(numbers)


def _check_alike(stage: _Stage) -> None:
    """Vectors that are the same on every rank tell whether the ranks are of one model; they are small, the matrices are not compared."""
    for name, tensor in stage.tensors[0].items():
        if len(tensor.shape) != 1:
            continue
        first = bytes(stage.files[0].read(tensor, name, 0, tensor.shape[0]))
        for rank in range(1, len(stage.files)):
            other = stage.part(rank, name, tensor.shape)
            if bytes(other.file.read(other.tensor, name, 0, tensor.shape[0])) != first:
                raise CheckpointError(
                    f"The ranks 0 and {rank} of stage {stage.number} differ in {name}, which is the same on every rank: "
                    f"expected partitions of one checkpoint; {_ELSEWHERE}."
                )


def _layer(stage: _Stage, number: int, layer: int, size: YuanSize) -> list[Whole]:
    """The tensors of one layer; `number` counts within the stage."""
    here, target, ranks = f"encoder.layers.{number}.", f"model.layers.{layer}.", len(stage.files)
    hidden, half, projection = size.hidden, size.hidden // 2, size.projection
    shapes = {
        "conv1.weight": (half, hidden, 2, 1),
        "conv1.bias": (half,),
        "conv2.weight": (hidden, half, 2, 1),
    }
    found = []
    for name, served in _SAME.items():
        shape = shapes.get(name.partition("lf_gate.")[2], (hidden,))
        found.append(_whole(target + served, (stage.part(0, here + name, shape),)))
    both = stage.along(f"{here}self_attention.get_query_key.weight", (2 * projection // ranks, hidden))
    found += [
        _whole(f"{target}self_attn.{name}.weight", parts) for name, parts in zip(("q_proj", "k_proj"), _cut(both, 2))
    ]
    value = stage.along(f"{here}self_attention.get_value.weight", (projection // ranks, hidden))
    found.append(_whole(f"{target}self_attn.v_proj.weight", value))
    output = stage.along(f"{here}self_attention.dense.weight", (hidden, projection // ranks))
    found.append(_whole(f"{target}self_attn.o_proj.weight", output, axis=1))
    return found + (_moe(stage, here, target, size) if size.experts else _dense(stage, here, target, size))


def _dense(stage: _Stage, here: str, target: str, size: YuanSize) -> list[Whole]:
    ranks = len(stage.files)
    first = stage.along(f"{here}mlp.dense_h_to_4h.weight", (2 * size.width // ranks, size.hidden))
    # Each rank has its rows of the silu half, which the Hugging Face layout calls up_proj, then those of the linear half.
    halves = [_rows(part, which * size.width // ranks, size.width // ranks) for which in (0, 1) for part in first]
    down = stage.along(f"{here}mlp.dense_4h_to_h.weight", (size.hidden, size.width // ranks))
    return [
        _whole(f"{target}mlp.up_proj.weight", halves[:ranks]),
        _whole(f"{target}mlp.gate_proj.weight", halves[ranks:]),
        _whole(f"{target}mlp.down_proj.weight", down, axis=1),
    ]


def _moe(stage: _Stage, here: str, target: str, size: YuanSize) -> list[Whole]:
    ranks, hidden, experts = len(stage.files), size.hidden, size.experts
    width = size.width // ranks
    if 3 * experts % ranks:
        raise CheckpointError(f"The {3 * experts} rows of the router cannot lie in {ranks} ranks: {_ELSEWHERE}.")
    router = stage.along(f"{here}mlp.router.attention_router.query_key_value.weight", (3 * experts // ranks, hidden))
    found = [
        _whole(f"{target}mlp.gate.{name}.weight", parts)
        for name, parts in zip(("query", "key", "value"), _cut(router, 3))
    ]
    first = stage.along(f"{here}mlp.experts.weight1", (hidden, experts * 2 * width))
    second = stage.along(f"{here}mlp.experts.weight2", (experts * width, hidden))
    for expert in range(experts):
        # In memory [experts, hidden, 2 width] and [experts, width, hidden], whatever the saved shapes say; served transposed.
        block = 2 * width * hidden
        if ranks == 1:
            parts = [_view(first[0], expert * block, (2 * width, hidden), (1, 2 * width))]
        else:
            parts = [
                _view(part, expert * block + which * width, (width, hidden), (1, 2 * width))
                for which in (0, 1)
                for part in first
            ]
        found.append(_whole(f"{target}mlp.experts.{expert}.w1.weight", parts))
        parts = [_view(part, expert * width * hidden, (hidden, width), (1, hidden)) for part in second]
        found.append(_whole(f"{target}mlp.experts.{expert}.w2.weight", parts, axis=1))
    return found


def _whole(name: str, parts: Sequence[Part], axis: int = 0) -> Whole:
    first = parts[0].tensor
    types = {part.tensor.dtype for part in parts}
    if len(types) > 1:
        raise CheckpointError(
            f"The parts of {name} have the types {', '.join(sorted(types))}: expected one; {_ELSEWHERE}."
        )
    shape = list(first.shape)
    shape[axis] = sum(part.tensor.shape[axis] for part in parts)
    return Whole(TensorSpec(name, first.dtype, tuple(shape)), tuple(parts), axis)


def _rows(part: Part, first: int, rows: int) -> Part:
    """Some rows of a part."""
    tensor = part.tensor
    view = replace(tensor, offset=tensor.offset + first * tensor.stride[0], shape=(rows, *tensor.shape[1:]))
    return replace(part, tensor=view)


def _view(part: Part, offset: int, shape: tuple[int, ...], stride: tuple[int, ...]) -> Part:
    """Another view of a part's memory, which must lie in one piece."""
    tensor = part.tensor
    if tensor.stride != (tensor.shape[1], 1):
        raise CheckpointError(
            f"{part.file.name}: the tensor {part.name} does not lie in one piece, as Megatron saves it; {_ELSEWHERE}."
        )
    return replace(part, tensor=replace(tensor, offset=tensor.offset + offset, shape=shape, stride=stride))


def _cut(parts: Sequence[Part], count: int) -> list[list[Part]]:
    """The rows of all parts, one after the other, in `count` equal blocks."""
    rows = sum(part.tensor.shape[0] for part in parts) // count
    blocks: list[list[Part]] = [[] for _ in range(count)]
    begin = 0
    for part in parts:
        end = begin + part.tensor.shape[0]
        for number in range(count):
            first, last = max(begin, number * rows), min(end, (number + 1) * rows)
            if first < last:
                blocks[number].append(_rows(part, first - begin, last - first))
        begin = end
    return blocks


def _beside(whole: Whole, first_row: int, rows: int) -> Data:
    """Rows whose parts lie side by side."""
    import numpy as np  # noqa: PLC0415

    _, row_bytes = rows_of(whole.spec)
    joined: Any = np.empty((rows, row_bytes), dtype=np.uint8)
    column = 0
    for part in whole.parts:
        data = part.file.read(part.tensor, part.name, first_row, rows)
        width = row_bytes * part.tensor.shape[1] // whole.spec.shape[1]
        joined[:, column : column + width] = np.frombuffer(data, dtype=np.uint8).reshape(rows, width)
        column += width
    return memoryview(joined.reshape(-1))
