"""What a Hugging Face checkpoint folder says of itself: sizes, from the headers of its safetensors files (8 bytes of length, then JSON).

Only headers are read, so a 200 GB checkpoint takes milliseconds.
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_STORED_BYTES = {
    "F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2,
    "I8": 1, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
}  # fmt: skip
_CONVERTED = ("F64", "F32", "F16", "BF16")  # what an engine loads in its own dtype; the rest (quantised) stays as it is
DTYPE_BYTES = {"float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2}
_LARGEST_HEADER = 100_000_000  # the format's own limit


class CheckpointError(Exception):
    """The folder is no checkpoint that can be read; the message says why."""


@dataclass(frozen=True)
class Tensor:
    """One tensor of a checkpoint."""

    name: str
    stored_dtype: str
    elements: int

    def loaded_bytes(self, element_bytes: int) -> int:
        """Bytes in memory when floats are loaded at `element_bytes` each."""
        return self.elements * (element_bytes if self.stored_dtype in _CONVERTED else _STORED_BYTES[self.stored_dtype])


@dataclass(frozen=True)
class Checkpoint:
    """Sizes of a checkpoint as it will be loaded. All sizes in bytes."""

    path: str
    architecture: str
    parameters: int
    file_bytes: int
    dtype: str
    loaded_bytes: int
    bytes_read_per_token: int
    kv_bytes_per_token: int | None
    max_position_embeddings: int | None
    rope_scaled: bool

    def as_dict(self) -> dict[str, Any]:
        """Return it for a module's answer."""
        return asdict(self)


def read_tensors(path: Path) -> list[Tensor]:
    """Return the tensors of one safetensors file from its header.

    :raises CheckpointError: when it is not such a file.
    """
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if not 2 <= length <= _LARGEST_HEADER:
                raise CheckpointError(
                    f"{path} is not a safetensors file: its header would be {length} bytes long; convert the model again"
                )
            header = json.loads(file.read(length))
        tensors = []
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            elements = 1
            for size in entry["shape"]:
                elements *= int(size)
            if entry["dtype"] not in _STORED_BYTES:
                raise CheckpointError(f"{path}: tensor {name} has the unknown type {entry['dtype']}")
            tensors.append(Tensor(name, entry["dtype"], elements))
        return tensors
    except (struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} is not a whole safetensors file ({error}); convert the model again") from error


def read_checkpoint(folder: Path, dtype: str) -> Checkpoint:
    """Return the sizes of the checkpoint in `folder` as an engine loads it with `dtype` (`auto`: as the config says).

    `bytes_read_per_token` is a lower bound of what decoding one token reads: weights that every token needs, of a mixture
    of experts only the active ones, and no input embedding (of which one row is read) unless the output layer shares it.

    :raises CheckpointError: when there is no readable checkpoint.
    """
    config_file = folder / "config.json"
    try:
        config = json.loads(config_file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"no readable model config in {folder} ({error}); run the model stage first") from error
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"no *.safetensors file in {folder}; run the model stage first")
    try:
        tensors = [tensor for file in files for tensor in read_tensors(file)]
        file_bytes = sum(file.stat().st_size for file in files)
    except OSError as error:
        raise CheckpointError(
            f"the checkpoint in {folder} cannot be read ({error}); run the model stage again"
        ) from error
    text_config = config.get("text_config", config)
    element_bytes, dtype = element_bytes_of(text_config, dtype)
    return Checkpoint(
        path=str(folder),
        architecture=", ".join(config.get("architectures") or []) or str(config.get("model_type", "unknown")),
        parameters=sum(tensor.elements for tensor in tensors),
        file_bytes=file_bytes,
        dtype=dtype,
        loaded_bytes=sum(tensor.loaded_bytes(element_bytes) for tensor in tensors),
        bytes_read_per_token=_bytes_read_per_token(tensors, text_config, element_bytes),
        kv_bytes_per_token=_kv_bytes_per_token(text_config, element_bytes),
        max_position_embeddings=text_config.get("max_position_embeddings"),
        rope_scaled=_rope_scaled(text_config),
    )


def element_bytes_of(config: dict[str, Any], dtype: str) -> tuple[int, str]:
    """Return the bytes of one element and the name of the type; raises CheckpointError for one that no engine computes in."""
    if dtype == "auto":
        declared = str(config.get("dtype") or config.get("torch_dtype") or "float16").replace("torch.", "")
        # vLLM serves float32 checkpoints in 16 bits unless told otherwise.
        dtype = "float16" if declared in ("float32", "float", "auto") else declared
    if dtype not in DTYPE_BYTES:
        raise CheckpointError(
            f"the dtype is auto or one of {', '.join(sorted(DTYPE_BYTES))}, not {dtype!r}; correct model_dtype"
        )
    return DTYPE_BYTES[dtype], dtype


def _bytes_read_per_token(tensors: list[Tensor], config: dict[str, Any], element_bytes: int) -> int:
    experts = _first(config, "num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
    active = _first(config, "num_experts_per_tok", "moe_top_k", "num_selected_experts", "moe_topk")
    share = min(1.0, active / experts) if experts and active else 1.0
    separate_output = any(tensor.name.endswith("lm_head.weight") for tensor in tensors)
    total = 0.0
    for tensor in tensors:
        if separate_output and "embed_tokens" in tensor.name:
            continue
        total += tensor.loaded_bytes(element_bytes) * (share if ".experts." in tensor.name else 1.0)
    return int(total)


def _kv_bytes_per_token(config: dict[str, Any], element_bytes: int) -> int | None:
    """Bytes that the key-value cache takes for one token: 2 (key and value) x layers x key-value heads x head size x element size."""
    layers = config.get("num_hidden_layers")
    heads = config.get("num_attention_heads")
    hidden = config.get("hidden_size")
    if not layers or not heads or not hidden:
        return None
    head_size = config.get("head_dim") or hidden // heads
    return int(2 * layers * (config.get("num_key_value_heads") or heads) * head_size * element_bytes)


def _rope_scaled(config: dict[str, Any]) -> bool:
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    kind = scaling.get("rope_type", scaling.get("type", "default")) if isinstance(scaling, dict) else "default"
    return kind not in (None, "default")


def _first(config: dict[str, Any], *names: str) -> int | None:
    return next((int(config[name]) for name in names if config.get(name)), None)
