"""Four- and eight-bit weights of three layouts, packed here or by vLLM's own packers, come back as what was packed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from plumbline_yuan.dequantise import dequantise
from torch import Tensor

ROWS, COLUMNS, GROUP = 48, 64, 32


def pack(values: Tensor, bits: int, dim: int) -> Tensor:
    """Unsigned values to 32-bit words along `dim`, lowest bits first."""
    count = 32 // bits
    moved = values.movedim(dim, -1)
    words = (moved.reshape(*moved.shape[:-1], -1, count).long() << (bits * torch.arange(count))).sum(-1)
    return words.to(torch.int32).movedim(-1, dim)


class Numbers:
    """A random quantised weight [rows, columns] and what it stands for."""

    def __init__(self, bits: int, symmetric: bool) -> None:
        generator = torch.Generator().manual_seed(bits + symmetric)
        self.values = torch.randint(0, 2**bits, (ROWS, COLUMNS), generator=generator)
        self.scale = torch.rand(ROWS, COLUMNS // GROUP, generator=generator) + 0.1
        self.zero = torch.randint(1, 2**bits, self.scale.shape, generator=generator)
        if symmetric:
            self.zero[:] = 2 ** (bits - 1)
        wide = [part.repeat_interleave(GROUP, dim=1) for part in (self.zero, self.scale)]
        self.weight = (self.values - wide[0]) * wide[1]


def compressed(bits: int, symmetric: bool) -> dict[str, Any]:
    weights = {"num_bits": bits, "symmetric": symmetric, "group_size": GROUP}
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"weights": weights}},
    }


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
def test_compressed_tensors(bits: int, symmetric: bool) -> None:
    numbers = Numbers(bits, symmetric)
    parts = [
        ("a.norm.weight", torch.ones(3)),
        ("a.weight_packed", pack(numbers.values, bits, 1)),
        ("a.weight_shape", torch.tensor([ROWS, COLUMNS])),
        ("a.weight_scale", numbers.scale),
    ]
    if not symmetric:
        parts.append(("a.weight_zero_point", pack(numbers.zero, bits, 0)))
    found = dict(dequantise(parts, compressed(bits, symmetric), torch.float32))
    assert found.keys() == {"a.norm.weight", "a.weight"}
    torch.testing.assert_close(found["a.weight"], numbers.weight)


def test_compressed_tensors_as_their_own_library_packs_them() -> None:
    library = pytest.importorskip("compressed_tensors.compressors.pack_quantized.helpers").pack_to_int32
    numbers = Numbers(4, True)
    signed = (numbers.values - 8).to(torch.int8)
    parts = [
        ("a.weight_packed", library(signed, 4)),
        ("a.weight_shape", torch.tensor([ROWS, COLUMNS])),
        ("a.weight_scale", numbers.scale),
    ]
    torch.testing.assert_close(dict(dequantise(parts, compressed(4, True), torch.float32))["a.weight"], numbers.weight)


@pytest.mark.parametrize("bits", [4, 8])
def test_gptq(bits: int) -> None:
    numbers = Numbers(bits, symmetric=False)
    parts = [
        ("a.qweight", pack(numbers.values.t(), bits, 0)),
        ("a.qzeros", pack((numbers.zero - 1).t(), bits, 1)),
        ("a.scales", numbers.scale.t()),
        ("a.g_idx", torch.arange(COLUMNS) // GROUP),
    ]
    found = dict(dequantise(parts, {"quant_method": "gptq", "bits": bits}, torch.float32))
    torch.testing.assert_close(found["a.weight"], numbers.weight)


def test_awq_as_vllm_packs_it() -> None:
    packer = pytest.importorskip("vllm.model_executor.layers.quantization.utils.quant_utils").awq_pack
    numbers = Numbers(4, symmetric=False)
    groups = COLUMNS // GROUP
    parts = [
        ("a.qweight", packer(numbers.values.t().contiguous(), 4, COLUMNS, ROWS)),
        ("a.qzeros", packer(numbers.zero.t().contiguous(), 4, groups, ROWS)),
        ("a.scales", numbers.scale.t()),
    ]
    found = dict(dequantise(parts, {"quant_method": "awq", "bits": 4}, torch.float32))
    torch.testing.assert_close(found["a.weight"], numbers.weight)


def test_an_incomplete_linear_is_one_sentence() -> None:
    with pytest.raises(ValueError, match=r"quantised a is incomplete: weight_scale, weight_shape is missing\.$"):
        list(
            dequantise([("a.weight_packed", torch.zeros(2, 2, dtype=torch.int32))], compressed(4, True), torch.float32)
        )


@pytest.mark.parametrize(
    "quantization", [{"quant_method": "fp8"}, {"quant_method": "compressed-tensors", "format": "nvfp4"}, {}]
)
def test_an_unknown_format_is_one_sentence(quantization: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"turns only pack-quantized .* back to full weights\.$"):
        list(dequantise([], quantization, torch.float32))


def test_only_the_values() -> None:
    numbers = Numbers(4, True)
    parts = {
        "weight_packed": pack(numbers.values, 4, 1),
        "weight_shape": torch.tensor([ROWS, COLUMNS]),
        "weight_scale": numbers.scale,
    }
    given = [(f"a.{module}.{name}", tensor) for module in ("q_proj", "v_proj") for name, tensor in parts.items()]
    found = dict(dequantise(given, compressed(4, True), torch.float32, only=".v_proj"))
    assert found.keys() == {"a.v_proj.weight", *(f"a.q_proj.{name}" for name in parts)}
    torch.testing.assert_close(found["a.v_proj.weight"], numbers.weight)
    both = dict(dequantise(given, compressed(4, True), torch.float32, only=(".q_proj", ".v_proj")))
    assert both.keys() == {"a.q_proj.weight", "a.v_proj.weight"}
    assert dict(dequantise(given, compressed(4, True), torch.float32, only=())).keys() == {name for name, _ in given}
