"""Convert a GGUF file to a directory that vLLM loads. Runs in the engine's Python, which has numpy and gguf; memory is bounded."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import gguf_architecture, gguf_tokenizer
from .checkpoint_errors import CheckpointError
from .checkpoint_writer import DEFAULT_SHARD_BYTES, Array, Shard, index_of, plan, write_shards
from .gguf_file import TENSOR_TYPES, GgufHeader, GgufTensor, read_header
from .worker_result import say

_PIECE_VALUES = 16 << 20  # 64 MiB in float32
DTYPES = ("float32", "bfloat16", "float16")


def shards_of(header: GgufHeader, dtype: str, shard_bytes: int = DEFAULT_SHARD_BYTES) -> list[Shard]:
    """What would be written; known from the header alone, so that free disk can be compared before the first byte."""
    return plan(
        [(mapped.name, mapped.source.shape) for mapped in gguf_architecture.tensors(header)], dtype, shard_bytes
    )


def convert(
    source: Path, target: Path, dtype: str, source_key: str, shard_bytes: int = DEFAULT_SHARD_BYTES
) -> dict[str, str]:
    """Write the checkpoint into an existing directory and return the SHA-256 of each shard."""
    header = read_header(source)
    config = gguf_architecture.config(header, dtype)
    files = gguf_tokenizer.tokenizer_files(header, config["vocab_size"])
    by_name = {mapped.name: mapped for mapped in gguf_architecture.tensors(header)}
    shards = shards_of(header, dtype, shard_bytes)
    generation = {key: value for key, value in gguf_architecture.special_tokens(header).items() if value is not None}
    with source.open("rb") as file:
        hashes = write_shards(target, shards, source_key, lambda name: _pieces(file.fileno(), by_name[name]))
    for name, content in {
        **files,
        "config.json": config,
        "generation_config.json": generation,
        "model.safetensors.index.json": index_of(shards),
    }.items():
        (target / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return hashes


def _pieces(descriptor: int, mapped: gguf_architecture.Mapped) -> Iterator[Array]:
    """The values of a tensor in the order of the checkpoint, some rows at a time."""
    import numpy as np  # noqa: PLC0415

    tensor = mapped.source
    _, block, block_bytes = TENSOR_TYPES[tensor.type]
    width = tensor.shape[-1]
    rows = int(np.prod(tensor.shape[:-1], dtype=np.int64))
    row_bytes = width // block * block_bytes
    head_rows = rows // mapped.interleaved_heads if mapped.interleaved_heads else 1
    at_once = max(1, _PIECE_VALUES // width // head_rows) * head_rows
    for first in range(0, rows, at_once):
        count = min(at_once, rows - first)
        raw = os.pread(descriptor, count * row_bytes, tensor.offset + first * row_bytes)
        if len(raw) != count * row_bytes:
            raise CheckpointError(
                f"The tensor {tensor.name} ends early: the source was cut while it was read; copy it again."
            )
        data = np.frombuffer(raw, dtype=np.uint8).reshape(count, row_bytes)
        values = _values(data, tensor)
        if mapped.interleaved_heads:
            # llama.cpp puts the two halves of each head's rotary dimensions side by side; Hugging Face keeps them apart.
            values = values.reshape(-1, head_rows // 2, 2, width).swapaxes(1, 2)
        yield np.ascontiguousarray(values, dtype=np.float32).reshape(-1)
        os.posix_fadvise(descriptor, tensor.offset + first * row_bytes, len(raw), os.POSIX_FADV_DONTNEED)


def _values(data: Array, tensor: GgufTensor) -> Array:
    """Rows of raw bytes as float32."""
    import numpy as np  # noqa: PLC0415

    if tensor.type_name in ("F32", "F16"):
        return data.view("<f4" if tensor.type_name == "F32" else "<f2").astype(np.float32)
    from gguf import GGMLQuantizationType  # noqa: PLC0415
    from gguf.quants import dequantize  # noqa: PLC0415

    return dequantize(data, GGMLQuantizationType(tensor.type))


def main(job_text: str) -> int:
    """Carry out a job in JSON (source, target, dtype, source_key)."""
    job: dict[str, Any] = json.loads(job_text)
    try:
        hashes = convert(
            Path(job["source"]),
            Path(job["target"]),
            job["dtype"],
            job["source_key"],
            job.get("shard_bytes", DEFAULT_SHARD_BYTES),
        )
    except CheckpointError as error:
        say({"error": str(error)})
    except OSError as error:
        say(
            {
                "error": f"The checkpoint could not be written to {job['target']} ({error.strerror}): free disk there, then run again."
            }
        )
    else:
        say({"shards": hashes})
    return 0
