"""Our integers, scales and layout beside compressed-tensors itself, which vLLM reads checkpoints with."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import quantise_plan
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.quantise_numbers import Quantiser, Scheme
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.safetensors_file import TensorSpec
from compressed_tensors.compressors.pack_quantized import PackedQuantizationCompressor, unpack_from_int32
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def weights(dtype: str, rows: int = 96, columns: int = 512) -> torch.Tensor:
    torch.manual_seed(3)
    return (torch.randn(rows, columns) * 0.02).to(DTYPES[dtype])


def scheme_of(bits: int, group: int) -> QuantizationScheme:
    args = QuantizationArgs(num_bits=bits, type="int", symmetric=True, strategy="group", group_size=group)
    return QuantizationScheme(targets=["Linear"], weights=args)


def theirs(weight: torch.Tensor, scheme: QuantizationScheme) -> dict[str, torch.Tensor]:
    """What llmcompressor's model_free_ptq does with a weight: smallest and largest of a group, scale, round, pack."""
    groups = weight.unflatten(-1, (-1, scheme.weights.group_size))
    scale, zero_point = calculate_qparams(groups.amin(-1), groups.amax(-1), scheme.weights)
    state = {"weight": weight, "weight_scale": scale, "weight_zero_point": zero_point}
    compressed: dict[str, torch.Tensor] = PackedQuantizationCompressor.compress(state, scheme)
    return compressed


def ours(weight: torch.Tensor, bits: int, group: int) -> dict[str, torch.Tensor]:
    name = {dtype: name for name, dtype in DTYPES.items()}[weight.dtype]
    raw = weight.view(torch.uint8).numpy().tobytes()
    made = Quantiser(Scheme(bits, group), threads=1).rows(raw, name, *weight.shape)
    scale = torch.frombuffer(bytearray(made.scale.tobytes()), dtype=weight.dtype).reshape(made.scale.shape)
    return {"weight_packed": torch.from_numpy(made.packed.copy()), "weight_scale": scale}


@pytest.mark.parametrize("group", [32, 128])
@pytest.mark.parametrize("bits", [4, 8])
def test_the_same_bits_in_float32(bits: int, group: int) -> None:
    weight = weights("F32")
    made, expected = ours(weight, bits, group), theirs(weight, scheme_of(bits, group))
    assert torch.equal(made["weight_scale"], expected["weight_scale"])
    assert torch.equal(made["weight_packed"], expected["weight_packed"])
    assert expected["weight_shape"].tolist() == list(weight.shape)


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
@pytest.mark.parametrize("bits", [4, 8])
def test_the_same_scales_and_integers_that_are_never_farther(bits: int, dtype: str) -> None:
    weight = weights(dtype)
    made, expected = ours(weight, bits, 128), theirs(weight, scheme_of(bits, 128))
    assert torch.equal(made["weight_scale"], expected["weight_scale"])
    scale = made["weight_scale"].float().repeat_interleave(128, dim=1)
    mine = unpack_from_int32(made["weight_packed"], bits, weight.shape).float()
    other = unpack_from_int32(expected["weight_packed"], bits, weight.shape).float()
    assert (mine - other).abs().max() <= 1
    exact = weight.float() / scale
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    assert torch.equal(mine, exact.round().clamp(low, high))
    # Theirs is the same but for a quotient that is rounded to the weights' dtype before it is rounded to an integer.
    assert torch.equal(other, exact.to(weight.dtype).round().float().clamp(low, high))
    assert ((mine - exact).abs() <= (other - exact).abs()).all()


@pytest.mark.parametrize(("bits", "step"), [(4, 1 / 7.5), (8, 1 / 127.5)])
def test_what_it_unpacks_is_the_weight_within_half_a_step(bits: int, step: float) -> None:
    weight = weights("F32")
    made = ours(weight, bits, 128)
    state: dict[str, Any] = {**made, "weight_shape": torch.tensor(weight.shape)}
    back = PackedQuantizationCompressor.decompress(state, scheme_of(bits, 128))["weight"]
    largest = weight.unflatten(-1, (-1, 128)).abs().amax(-1, keepdim=True)
    error = (back - weight).unflatten(-1, (-1, 128)).abs() / largest
    assert float(error.max()) <= step / 2 * 1.001


def test_it_reads_our_configuration() -> None:
    specs = [
        TensorSpec("model.layers.0.self_attn.q_proj.weight", "BF16", (256, 256)),
        TensorSpec("model.layers.0.mlp.gate.weight", "BF16", (4, 256)),
    ]
    made = quantise_plan.quantization_config(quantise_plan.plan(specs, quantise_plan.scheme("rtn-w8a16", 64)))
    read = QuantizationConfig.model_validate(made)
    args = read.config_groups["group_0"].weights
    assert (args.num_bits, args.group_size, args.strategy, args.symmetric) == (8, 64, "group", True)
    assert read.format == "pack-quantized"
    assert read.ignore == ["lm_head", "model.layers.0.mlp.gate"]
