"""What goes with the weights of a Yuan2.0 checkpoint: config.json, tokenizer and chat template, made by this code and not the checkpoint's.

Planning needs the standard library only; tokenizer.json is made when it is written, in the engine's Python.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .checkpoint_errors import CheckpointError
from .sentencepiece_model import read
from .tensor_source import TensorSource
from .yuan_architecture import EMBEDDING
from .yuan_partitions import LATEST
from .yuan_source import YuanSource
from .yuan_tokenizer import tokenizer_json
from .yuan_tokens import check_tokenizer_json, generation_config, served_config, special_ids, tokenizer_config

_TORCH_NAMES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
# What says the same as the files that are made anew, or something else.
REPLACED = frozenset(
    {"special_tokens_map.json", "added_tokens.json", "chat_template.jinja", "chat_template.json", LATEST}
)


@dataclass
class Dressed:
    """A source to be served and the files made for it: by name an object for JSON, or a function that makes text or an object."""

    source: YuanSource
    made: dict[str, Any] = field(default_factory=dict)


def dressed(
    directory: Path, source: TensorSource, config: Mapping[str, Any], given: Mapping[str, Mapping[str, Any]]
) -> Dressed:
    """Check weights and tokenizer of a Yuan2.0 in the Hugging Face layout, and say what is written besides the weights.

    `given`: objects of generation_config.json and tokenizer_config.json of the checkpoint, where it has them. Raises CheckpointError.
    """
    served = YuanSource(source, config)
    dtype = next((spec.dtype for spec in served.specs() if spec.name == EMBEDDING), "BF16")
    tokenizer = directory / "tokenizer.model"
    made: dict[str, Any] = {}
    if tokenizer.is_file():
        model = read(tokenizer)
        special = special_ids(model, config)
        made["tokenizer.json"] = lambda: tokenizer_json(model, special, tokenizer)
    elif (directory / "tokenizer.json").is_file():
        special = check_tokenizer_json(directory, config)
    else:
        raise CheckpointError(
            f"{directory} holds no tokenizer.model: expected the tokenizer of Yuan2.0 beside the weights; "
            "copy it there from where the checkpoint was published."
        )
    made["config.json"] = served_config(config, special, _TORCH_NAMES[dtype])
    made["generation_config.json"] = generation_config(given.get("generation_config.json", {}), special)
    made["tokenizer_config.json"] = tokenizer_config(given.get("tokenizer_config.json", {}), config)
    return Dressed(served, made)
