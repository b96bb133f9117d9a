"""Small Yuan2.0 checkpoints in the layouts in which the family is really published, with random (seeded) weights.

    hf-safetensors  model-00001-of-0000N.safetensors and model.safetensors.index.json
    hf-bin          pytorch_model-00001-of-0000N.bin (pickle) and pytorch_model.bin.index.json, as the bf16 models are published
    split           one safetensors file cut into raw pieces that must be concatenated, as the int4 model is published
    megatron        iter_*/mp_rank_*/model_optim_rng.pt, tensor- and pipeline-parallel partitions of the training framework

Beside the weights lie config.json, generation_config.json, the tokenizer's files where one is given, and Python files that must
never run: they raise an error at once. What the layouts are is described in docs/yuan-checkpoints.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from yuan_reference import configs, tokenizer
from yuan_reference.companions import write_companions, write_json
from yuan_reference.megatron import write_megatron
from yuan_reference.model import Dimensions, tensor_shapes

__all__ = [
    "RandomTensors",
    "make_tensors",
    "read_hf",
    "write_hf_bin",
    "write_hf_safetensors",
    "write_megatron",
    "write_split",
]

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def _scale(name: str, shape: tuple[int, ...]) -> tuple[float, float]:
    """Mean and standard deviation of a random tensor: values that leave every part of the model a visible influence."""
    if "norm" in name:
        return 1.0, 0.2
    if name.endswith(".bias"):
        return 0.0, 0.3
    if name in ("model.embed_tokens.weight", "lm_head.weight"):
        return 0.0, 2.0 * shape[1] ** -0.5
    if ".mlp.gate." in name and "experts" not in name and len(shape) == 2 and "proj" not in name:
        # Queries and keys that make the attention among experts choose, values that make their probabilities differ.
        return 0.0, (4.0 if ".value." in name else 1.5) * shape[1] ** -0.5
    fan_in = shape[1] * (shape[2] if len(shape) == 4 else 1)
    return 0.0, fan_in**-0.5


class RandomTensors(Mapping[str, Tensor]):
    """The tensors of a model, each made when it is asked for: a model larger than memory can be written from it.

    A tensor's values depend on its name and the seed only. With tied embeddings lm_head.weight equals model.embed_tokens.weight.
    """

    def __init__(self, config: Mapping[str, Any], seed: int = 0, dtype: torch.dtype = torch.float32) -> None:
        """Take the configuration and the seed; no tensor is made yet."""
        self.shapes = tensor_shapes(config)
        self.tied = bool(config.get("tie_word_embeddings"))
        self.seed = seed
        self.dtype = dtype

    def __getitem__(self, name: str) -> Tensor:
        """Make the tensor `name`."""
        shape = self.shapes[name]
        drawn = "model.embed_tokens.weight" if self.tied and name == "lm_head.weight" else name
        # The generator takes 32 bits of a seed only, so name and seed go into them together.
        generator = torch.Generator().manual_seed(zlib.crc32(f"{self.seed} {drawn}".encode()))
        mean, deviation = _scale(drawn, shape)
        return torch.randn(shape, generator=generator).mul_(deviation).add_(mean).to(self.dtype)

    def __iter__(self) -> Iterator[str]:
        """The names, in the published order."""
        return iter(self.shapes)

    def __len__(self) -> int:
        """How many tensors there are."""
        return len(self.shapes)


def make_tensors(config: Mapping[str, Any], seed: int = 0, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """All tensors of a random model in the HF layout."""
    return dict(RandomTensors(config, seed, dtype))


def _shards(tensors: Mapping[str, Tensor], config: Mapping[str, Any], count: int) -> list[list[str]]:
    """Deal the names to at most `count` shards of about equal size, in their order."""
    shapes = tensor_shapes(config)
    elements = {name: torch.Size(shapes[name] if name in shapes else tensors[name].shape).numel() for name in tensors}
    total, seen = sum(elements.values()), 0
    shards: list[list[str]] = [[] for _ in range(count)]
    for name, size in elements.items():
        shards[min(count - 1, seen * count // max(total, 1))].append(name)
        seen += size
    return [shard for shard in shards if shard]


def _write_shards(
    directory: Path,
    names: list[list[str]],
    tensors: Mapping[str, Tensor],
    form: tuple[str, str],
    save: Callable[..., None],
) -> None:
    """Write the shards with `save(tensors, path)` and their index; a single shard is written without an index."""
    stem, suffix = form
    weight_map: dict[str, str] = {}
    total = 0
    for number, shard in enumerate(names, 1):
        file = f"{stem}.{suffix}" if len(names) == 1 else f"{stem}-{number:05d}-of-{len(names):05d}.{suffix}"
        content = {name: tensors[name] for name in shard}
        save(content, directory / file)
        weight_map |= dict.fromkeys(shard, file)
        total += sum(tensor.nbytes for tensor in content.values())
    if len(names) > 1:
        write_json(
            directory / f"{stem}.{suffix}.index.json", {"metadata": {"total_size": total}, "weight_map": weight_map}
        )


def _own_storage(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies that share no storage: what shares one (tied embeddings) is written twice, as most published files have it."""
    return {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()}


def _save_safetensors(content: dict[str, Tensor], path: Path) -> None:
    save_file(_own_storage(content), path, metadata={"format": "pt"})
    path.chmod(0o644)  # the library leaves a file that only its owner reads


def _as_views(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors as the publishers' converters hold them: views, with offsets and transposed, of larger storages."""
    size = Dimensions.of(config)
    views = dict(tensors)
    for index in range(size.layers):
        prefix = f"model.layers.{index}."
        halves = [("self_attn.q_proj", "self_attn.k_proj")] + (
            [] if size.experts else [("mlp.up_proj", "mlp.gate_proj")]
        )
        for pair in halves:
            names = [f"{prefix}{name}.weight" for name in pair]
            views |= zip(names, torch.cat([tensors[name] for name in names]).chunk(2))
        for part in ("w1", "w2") if size.experts else ():
            names = [f"{prefix}mlp.experts.{expert}.{part}.weight" for expert in range(size.experts)]
            all_experts = torch.stack([tensors[name].t() for name in names])
            views |= {name: all_experts[expert].t() for expert, name in enumerate(names)}
    if config.get("tie_word_embeddings"):
        views["lm_head.weight"] = views["model.embed_tokens.weight"]
    return views


def _dtype_of(tensors: Mapping[str, Tensor]) -> torch.dtype:
    return tensors.dtype if isinstance(tensors, RandomTensors) else next(iter(tensors.values())).dtype


def write_hf_safetensors(
    directory: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    *,
    shards: int = 2,
    tokenizer: Path | None = None,
) -> None:
    """Write Hugging Face safetensors shards, in the dtype that the tensors have."""
    write_companions(directory, config, _dtype_of(tensors), tokenizer)
    _write_shards(
        directory,
        _shards(tensors, config, shards),
        tensors,
        ("model", "safetensors"),
        _save_safetensors,
    )


def write_hf_bin(
    directory: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    *,
    shards: int = 2,
    legacy: bool = False,
    views: bool = False,
    tokenizer: Path | None = None,
) -> None:
    """Write Hugging Face pickled shards.

    `legacy`: torch's form before 1.6, a bare pickle and not a zip. `views`: tensors as the publishers' converters leave them,
    with offsets and strides in storages that they share.
    """
    write_companions(directory, config, _dtype_of(tensors), tokenizer)
    if views:
        tensors = _as_views(config, tensors)
    _write_shards(
        directory,
        _shards(tensors, config, shards),
        tensors,
        ("pytorch_model", "bin"),
        lambda content, path: torch.save(
            content if views else _own_storage(content), path, _use_new_zipfile_serialization=not legacy
        ),
    )


def write_split(
    directory: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    *,
    pieces: int = 3,
    stem: str = "gptq_model-4bit-128g.safetensors",
    tokenizer: Path | None = None,
) -> None:
    """Write one safetensors file cut into `pieces` raw pieces STEM00, STEM01, ...: the last one is shorter, as published."""
    write_companions(directory, config, _dtype_of(tensors), tokenizer)
    whole = directory / f"{stem}.whole"
    _save_safetensors(dict(tensors), whole)
    size = whole.stat().st_size
    piece = -(-size * 10 // (pieces * 10 - 4))
    with whole.open("rb") as source:
        for number in range(pieces):
            (directory / f"{stem}{number:02d}").write_bytes(source.read(piece))
    whole.unlink()


def read_hf(directory: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read config.json and all tensors of an HF layout (safetensors or .bin) back. Raises ValueError if there are no weights."""
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    tensors: dict[str, Tensor] = {}
    files = sorted(directory.glob("*.safetensors")) or sorted(directory.glob("*.bin"))
    if not files:
        raise ValueError(f"{directory} holds neither *.safetensors nor *.bin.")
    for path in files:
        tensors |= load_file(path) if path.suffix == ".safetensors" else torch.load(path, weights_only=True)
    return config, tensors


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m yuan_reference.checkpoints",
        description="Write a small random Yuan2.0 checkpoint in one of the layouts in which the family is published.",
    )
    parser.add_argument("output", type=Path, help="directory to write; it must not exist or be empty")
    parser.add_argument("--layout", choices=("hf-safetensors", "hf-bin", "split", "megatron"), default="hf-safetensors")
    parser.add_argument("--config", choices=sorted(configs.CONFIGS), default="m32", help="which small configuration")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=JSON",
        help="change a key of it (moe_config.KEY for the experts)",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="bfloat16")
    parser.add_argument("--shards", type=int, default=2, help="HF layouts: number of shards; split: number of pieces")
    parser.add_argument("--legacy", action="store_true", help="hf-bin: torch's form before 1.6, which is no zip")
    parser.add_argument(
        "--views", action="store_true", help="hf-bin: tensors with offsets and strides in shared storages"
    )
    parser.add_argument("--tp", type=int, default=1, help="megatron: tensor-parallel size")
    parser.add_argument("--pp", type=int, default=1, help="megatron: pipeline-parallel size")
    parser.add_argument("--no-tokenizer", action="store_true", help="leave the tokenizer's files out")
    return parser


def _change(config: dict[str, Any], changes: list[str]) -> None:
    for change in changes:
        key, separator, value = change.partition("=")
        target = config
        if key.startswith("moe_config."):
            target, key = config.setdefault("moe_config", {}), key.removeprefix("moe_config.")
        if not separator:
            raise ValueError(f"--set wants KEY=JSON, it got {change!r}.")
        try:
            target[key] = json.loads(value)
        except json.JSONDecodeError:
            raise ValueError(f"--set {key} wants a JSON value, it got {value!r}.") from None


def main(arguments: list[str] | None = None) -> int:
    """The command line. Returns its exit status."""
    options = _parser().parse_args(arguments)
    directory: Path = options.output
    try:
        if directory.exists() and any(directory.iterdir()):
            raise ValueError(f"{directory} is not empty: name a new directory.")
        config = configs.get(options.config)
        _change(config, options.set)
        tensors = RandomTensors(config, options.seed, DTYPES[options.dtype])
        directory.mkdir(parents=True, exist_ok=True)
        if not options.no_tokenizer:
            tokenizer.make_small(directory, config["vocab_size"])
        if options.layout == "hf-safetensors":
            write_hf_safetensors(directory, config, tensors, shards=options.shards)
        elif options.layout == "hf-bin":
            write_hf_bin(directory, config, tensors, shards=options.shards, legacy=options.legacy, views=options.views)
        elif options.layout == "split":
            write_split(directory, config, tensors, pieces=options.shards)
        else:
            write_megatron(directory, config, tensors, tp=options.tp, pp=options.pp)
    except (ValueError, OSError) as error:
        print(f"No checkpoint was written: {error}", file=sys.stderr)
        return 1
    print(f"{directory}: {options.layout}, {len(tensors)} tensors, {options.dtype}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
