"""A tiny model in the llama layout for the smoke test: random weights, plain or quantised, written without any library but numpy."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_HIDDEN, _HEAD, _VOCABULARY = 256, 64, 512
_DTYPES = {"auto": "BF16", "bfloat16": "BF16", "float16": "F16", "half": "F16", "float32": "F32", "float": "F32"}
_TORCH = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
# The order in which AWQ packs eight 4-bit numbers into a word.
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
SCHEMES = ("", "w4a16", "w8a16", "awq", "gptq")


@dataclass(frozen=True)
class Layout:
    """How the tiny checkpoint is quantised: one of SCHEMES, and how many inputs share a scale."""

    scheme: str = ""
    group_size: int = 128


def write_model(
    directory: str, dtype: str, layout: Layout, tensor_parallel_size: int = 1, pipeline_parallel_size: int = 1
) -> None:
    """Write config.json and model.safetensors of a model that can be split so many ways.

    `dtype` is vLLM's option. Of the schemes w4a16 and w8a16 are compressed-tensors' pack-quantized, awq and gptq the 4-bit
    layouts of that name. Widths are multiples of what the 4-bit kernels of vLLM take (128 inputs, 64 outputs per part).
    """
    import numpy as np  # noqa: PLC0415 - the engine's

    kind = _DTYPES.get(dtype, "BF16")
    scheme = layout.scheme
    heads, kv_heads, width = 4 * tensor_parallel_size, 2 * tensor_parallel_size, _HIDDEN * tensor_parallel_size
    layers = max(2, pipeline_parallel_size)
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": _HIDDEN,
        "intermediate_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": _HEAD,
        "vocab_size": _VOCABULARY,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": _TORCH[kind],
    }
    if scheme:
        config["quantization_config"] = _quantization_config(layout)
    random = np.random.default_rng(20260101)
    tensors: dict[str, tuple[str, tuple[int, ...], bytes]] = {}

    def plain(name: str, values: Any) -> None:
        tensors[name] = (kind, values.shape, _bytes(values, kind))

    def linear(name: str, outputs: int, inputs: int) -> None:
        if scheme:
            tensors.update(_quantised(name, (outputs, inputs), layout, kind, random))
        else:
            plain(f"{name}.weight", random.standard_normal((outputs, inputs), dtype=np.float32) * inputs**-0.5)

    plain("model.embed_tokens.weight", random.standard_normal((_VOCABULARY, _HIDDEN), dtype=np.float32))
    for number in range(layers):
        prefix = f"model.layers.{number}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            plain(f"{prefix}.{norm}.weight", np.ones(_HIDDEN, np.float32))
        for part, outputs, inputs in (
            ("self_attn.q_proj", heads * _HEAD, _HIDDEN),
            ("self_attn.k_proj", kv_heads * _HEAD, _HIDDEN),
            ("self_attn.v_proj", kv_heads * _HEAD, _HIDDEN),
            ("self_attn.o_proj", _HIDDEN, heads * _HEAD),
            ("mlp.gate_proj", width, _HIDDEN),
            ("mlp.up_proj", width, _HIDDEN),
            ("mlp.down_proj", _HIDDEN, width),
        ):
            linear(f"{prefix}.{part}", outputs, inputs)
    plain("model.norm.weight", np.ones(_HIDDEN, np.float32))
    # Logits far enough apart that rounding chooses no other token.
    plain("lm_head.weight", random.standard_normal((_VOCABULARY, _HIDDEN), dtype=np.float32) * (4 * _HIDDEN**-0.5))
    place = Path(directory)
    (place / "config.json").write_text(json.dumps(config), encoding="utf-8")
    _write_safetensors(place / "model.safetensors", tensors)


def _quantised(
    name: str, shape: tuple[int, int], layout: Layout, kind: str, random: Any
) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """The tensors of one quantised layer; the numbers are uniform, so the scale is that of a normal layer over their deviation."""
    import numpy as np  # noqa: PLC0415

    outputs, inputs = shape
    scheme, group = layout.scheme, layout.group_size
    bits = 8 if scheme == "w8a16" else 4
    each = 32 // bits
    values = random.integers(0, 1 << bits, (outputs, inputs), dtype=np.int64)
    deviation = ((1 << bits) ** 2 / 12.0) ** 0.5
    scales: Any = np.full((outputs, inputs // group), inputs**-0.5 / deviation, np.float32)
    middle = 1 << (bits - 1)
    if scheme in ("w4a16", "w8a16"):
        return {
            f"{name}.weight_packed": _words(_packed(values, range(each), bits)),
            f"{name}.weight_scale": (kind, scales.shape, _bytes(scales, kind)),
            f"{name}.weight_shape": ("I64", (2,), struct.pack("<2q", outputs, inputs)),
        }
    # AWQ and GPTQ hold scales as float16, transposed.
    half = ("F16", scales.T.shape, _bytes(np.ascontiguousarray(scales.T), "F16"))
    if scheme == "awq":
        zeros: Any = np.full((inputs // group, outputs), middle, np.int64)
        return {
            f"{name}.qweight": _words(_packed(values.T, _AWQ_ORDER, bits)),
            f"{name}.qzeros": _words(_packed(zeros, _AWQ_ORDER, bits)),
            f"{name}.scales": half,
        }
    # GPTQ stores each zero point less one.
    zeros = np.full((inputs // group, outputs), middle - 1, np.int64)
    return {
        f"{name}.qweight": _words(np.ascontiguousarray(_packed(values, range(each), bits).T)),
        f"{name}.qzeros": _words(_packed(zeros, range(each), bits)),
        f"{name}.scales": half,
        f"{name}.g_idx": ("I32", (inputs,), (np.arange(inputs, dtype=np.int32) // group).tobytes()),
    }


def _packed(values: Any, order: Any, bits: int) -> Any:
    """Pack along the last axis: number order[i] of each word's numbers into its bits i*bits and up."""
    import numpy as np  # noqa: PLC0415

    order = list(order)
    grouped = values.reshape(*values.shape[:-1], values.shape[-1] // len(order), len(order)).astype(np.uint64)
    word = np.zeros(grouped.shape[:-1], np.uint64)
    for position, which in enumerate(order):
        word |= grouped[..., which] << np.uint64(position * bits)
    return word.astype(np.uint32).view(np.int32)


def _words(values: Any) -> tuple[str, tuple[int, ...], bytes]:
    return ("I32", values.shape, values.tobytes())


def _quantization_config(layout: Layout) -> dict[str, Any]:
    scheme, group = layout.scheme, layout.group_size
    if scheme == "awq":
        return {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm"}
    if scheme == "gptq":
        return {
            "quant_method": "gptq",
            "bits": 4,
            "group_size": group,
            "desc_act": False,
            "sym": True,
            "lm_head": False,
        }
    weights = {
        "num_bits": 8 if scheme == "w8a16" else 4,
        "type": "int",
        "symmetric": True,
        "strategy": "group",
        "group_size": group,
        "dynamic": False,
        "actorder": None,
        "observer": "minmax",
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": weights,
                "input_activations": None,
                "output_activations": None,
            }
        },
        "ignore": ["lm_head"],
    }


def _bytes(values: Any, kind: str) -> bytes:
    import numpy as np  # noqa: PLC0415

    if kind == "F32":
        return bytes(values.astype("<f4").tobytes())
    if kind == "F16":
        return bytes(values.astype("<f2").tobytes())
    # bfloat16 is the upper half of float32, rounded to the nearest even.
    bits = np.ascontiguousarray(values, dtype="<f4").view(np.uint32).astype(np.uint64)
    return bytes(
        ((bits + np.uint64(0x7FFF) + ((bits >> np.uint64(16)) & np.uint64(1))) >> np.uint64(16)).astype("<u2").tobytes()
    )


def _write_safetensors(path: Path, tensors: dict[str, tuple[str, tuple[int, ...], bytes]]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (kind, shape, content) in tensors.items():
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [offset, offset + len(content)]}
        offset += len(content)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, content in tensors.values():
            file.write(content)
