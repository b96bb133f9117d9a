"""Write small GGUF files for tests: a llama with random float32 weights and a byte-level tokenizer, whole or broken as asked."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np

ALIGNMENT = 32
LAYERS, HIDDEN, HEADS, KV_HEADS, INNER = 2, 32, 4, 2, 64


def byte_alphabet() -> list[str]:
    """GPT-2's printable stand-ins for the 256 bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return [chr(number) for number in printable] + [chr(256 + index) for index in range(256 - len(printable))]


TOKENS = ["<|end|>", "<|start|>", *byte_alphabet(), "th", "the"]
MERGES = ["t h", "th e"]


def metadata() -> dict[str, Any]:
    return {
        "general.architecture": "llama",
        "llama.block_count": LAYERS,
        "llama.context_length": 512,
        "llama.embedding_length": HIDDEN,
        "llama.feed_forward_length": INNER,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": [3, 3] + [1] * (len(TOKENS) - 2),
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.chat_template": "{{ messages }}",
    }


def tensors() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)

    def matrix(*shape: int) -> np.ndarray:
        return random.standard_normal(shape).astype(np.float32)

    head = HIDDEN // HEADS
    all_tensors = {"token_embd.weight": matrix(len(TOKENS), HIDDEN), "output_norm.weight": matrix(HIDDEN)}
    for layer in range(LAYERS):
        for name, shape in {
            "attn_norm.weight": (HIDDEN,),
            "attn_q.weight": (HEADS * head, HIDDEN),
            "attn_k.weight": (KV_HEADS * head, HIDDEN),
            "attn_v.weight": (KV_HEADS * head, HIDDEN),
            "attn_output.weight": (HIDDEN, HEADS * head),
            "ffn_norm.weight": (HIDDEN,),
            "ffn_gate.weight": (INNER, HIDDEN),
            "ffn_up.weight": (INNER, HIDDEN),
            "ffn_down.weight": (HIDDEN, INNER),
        }.items():
            all_tensors[f"blk.{layer}.{name}"] = matrix(*shape)
    return all_tensors


def write(path: Path, values: dict[str, Any] | None = None, arrays: dict[str, np.ndarray] | None = None) -> Path:
    values = metadata() if values is None else values
    arrays = tensors() if arrays is None else arrays
    out = bytearray(b"GGUF" + struct.pack("<IQQ", 3, len(arrays), len(values)))
    for key, value in values.items():
        out += _text(key) + _typed(value)
    offset = 0
    for name, array in arrays.items():
        kind = {"float32": 0, "float16": 1}[array.dtype.name]
        dimensions = list(reversed(array.shape))
        out += _text(name) + struct.pack(f"<I{len(dimensions)}QIQ", len(dimensions), *dimensions, kind, offset)
        offset += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
    out += b"\0" * (-len(out) % ALIGNMENT)
    for array in arrays.values():
        out += array.tobytes() + b"\0" * (-array.nbytes % ALIGNMENT)
    path.write_bytes(out)
    return path


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _typed(value: Any) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value[0], str):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(_text(item) for item in value)
    return struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *value)
