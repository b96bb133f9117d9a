"""Do the tensors fit the configuration? What every decoder in Hugging Face's layout has in common. Standard library only."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from .checkpoint_errors import CheckpointError
from .safetensors_file import TensorSpec

_LAYER = re.compile(r"^model\.layers\.(\d+)\.")


def check_shapes(config: Mapping[str, Any], specs: Iterable[TensorSpec], where: str) -> None:
    """Raise CheckpointError where embedding, norm, output matrix or the number of layers contradict the configuration.

    A name that the checkpoint has not is no contradiction: architectures differ, and the engine knows its own.
    """
    vocabulary, hidden, layers = (
        _positive(config, key, where) for key in ("vocab_size", "hidden_size", "num_hidden_layers")
    )
    expected = {
        "model.embed_tokens.weight": (vocabulary, hidden),
        "lm_head.weight": (vocabulary, hidden),
        "model.norm.weight": (hidden,),
    }
    seen: set[int] = set()
    for spec in specs:
        wanted = expected.get(spec.name, ())
        fits = len(wanted) == len(spec.shape) and all(
            size is None or size == found for size, found in zip(wanted, spec.shape)
        )
        if wanted and not fits:
            raise CheckpointError(
                f"{where}: the tensor {spec.name} has the shape {list(spec.shape)}, {list(wanted)} was expected from config.json: "
                "tensors and configuration are of different models; copy it again from where it came."
            )
        match = _LAYER.match(spec.name)
        if match:
            seen.add(int(match[1]))
    missing = [number for number in range(layers or 0) if number not in seen] if seen else []
    if missing:
        raise CheckpointError(
            f"{where}: config.json says {layers} layers, the tensors of layer {missing[0]} are missing: the checkpoint is incomplete; "
            "copy it again from where it came."
        )


def _positive(config: Mapping[str, Any], key: str, where: str) -> int | None:
    value = config.get(key)
    if value is None:
        return None
    if type(value) is not int or value < 1:
        raise CheckpointError(
            f"{where}: config.json says {key} is {value!r}, a positive whole number was expected; copy it again from where it came."
        )
    return value
