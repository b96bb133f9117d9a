"""Rounding to nearest: integers, scales and layout against a slow independent computation, and what must be left out or refused."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import quantise_plan
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.checkpoint_errors import CheckpointError
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.quantise_numbers import (
    NotFiniteError,
    Quantiser,
    Scheme,
    scales_as_float,
    unpacked,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.quantise_source import QuantisedSource
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.safetensors_file import TensorSpec
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.tensor_source import pieces


def stored(values: np.ndarray, dtype: str) -> np.ndarray:
    """Values in a safetensors dtype; bfloat16 as uint16, by truncation, so that every value is one that bfloat16 has."""
    if dtype == "BF16":
        return (np.ascontiguousarray(values, "<f4").view("<u4") >> 16).astype("<u2")
    return np.ascontiguousarray(values, "<f2" if dtype == "F16" else "<f4")


def as_float(data: np.ndarray, dtype: str) -> np.ndarray:
    return (data.astype("<u4") << 16).view("<f4") if dtype == "BF16" else data.astype("<f4")


def nearest_bfloat16(value: float) -> float:
    """The bfloat16 nearest to a value, by trying its neighbours; of two equally near the one with an even last bit."""
    bits = int(np.float32(value).view("<u4")) >> 16
    tried = [(number, float(np.uint32(number << 16).view("<f4"))) for number in (bits, bits + 1)]
    return min(tried, key=lambda one: (abs(one[1] - value), one[0] & 1))[1]


def slowly(values: np.ndarray, dtype: str, scheme: Scheme) -> tuple[np.ndarray, np.ndarray]:
    """Integers and scales, one value at a time; the quotient in float32, where the largest value of a group may be an exact tie."""
    low, high = -(2 ** (scheme.bits - 1)), 2 ** (scheme.bits - 1) - 1
    integers = np.zeros(values.shape, dtype=int)
    scales = np.zeros((values.shape[0], values.shape[1] // scheme.group))
    for row in range(values.shape[0]):
        for number in range(scales.shape[1]):
            part = values[row, number * scheme.group : (number + 1) * scheme.group].astype(float)
            scale = float(np.float32(np.float32(abs(part).max()) / np.float32((high - low) / 2)))
            if dtype == "F16":
                scale = float(np.float16(scale))
            elif dtype == "BF16":
                scale = nearest_bfloat16(scale)
            scale = scale or {"F32": 2.0**-23, "F16": 2.0**-10, "BF16": 2.0**-7}[dtype]
            scales[row, number] = scale
            integers[row, number * scheme.group : (number + 1) * scheme.group] = [
                min(high, max(low, round(float(np.float32(value) / np.float32(scale))))) for value in part
            ]
    return integers, scales


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group", [32, 128])
def test_integers_and_scales_are_those_of_a_slow_computation(dtype: str, bits: int, group: int) -> None:
    scheme = Scheme(bits, group)
    values = np.random.default_rng(bits + group).standard_normal((9, 256)).astype("<f4") * 0.02
    values[3, :group] = 0
    values[4, 7] = 30.0
    data = stored(values, dtype)
    quantiser = Quantiser(scheme, threads=1)
    made = quantiser.rows(data.tobytes(), dtype, *data.shape)
    integers, scales = slowly(as_float(data, dtype), dtype, scheme)
    assert np.array_equal(scales_as_float(made.scale, dtype), scales.astype("<f4"))
    assert np.array_equal(unpacked(made.packed, bits, 256), integers)


def test_the_first_value_lies_in_the_lowest_bits() -> None:
    values = np.zeros((1, 32), dtype="<f4")
    values[0, :4] = [-7.5, 1, 7, -1]
    made = Quantiser(Scheme(4, 32), threads=1).rows(values.tobytes(), "F32", 1, 32)
    # -8, 1, 7, -1 with 8 added: 0, 9, 15, 7.
    assert made.packed[0, 0] & 0xFFFF == 0x7F90
    made = Quantiser(Scheme(8, 32), threads=1).rows((values * 17).tobytes(), "F32", 1, 32)
    assert [int(byte) for byte in made.packed[0, :1].view("u1")] == [0, 128 + 17, 128 + 119, 128 - 17]


def test_a_half_goes_to_the_even_integer() -> None:
    values = np.zeros((1, 32), dtype="<f4")
    values[0, :5] = [7.5, 0.5, 1.5, 2.5, -1.5]
    made = Quantiser(Scheme(4, 32), threads=1).rows(values.tobytes(), "F32", 1, 32)
    assert unpacked(made.packed, 4, 32)[0, :5].tolist() == [7, 0, 2, 2, -2]


def test_several_threads_give_the_same_bytes() -> None:
    values = np.random.default_rng(1).standard_normal((1037, 384)).astype("<f4")
    one = Quantiser(Scheme(4, 128), threads=1).rows(values.tobytes(), "F32", *values.shape)
    many = Quantiser(Scheme(4, 128), threads=5)
    other = many.rows(values.tobytes(), "F32", *values.shape)
    many.close()
    assert np.array_equal(one.packed, other.packed)
    assert np.array_equal(one.scale, other.scale)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
def test_a_weight_that_is_not_finite_is_refused(value: float, dtype: str) -> None:
    values = np.ones((2, 32), dtype="<f4")
    values[1, 5] = value
    with pytest.raises(NotFiniteError):
        Quantiser(Scheme(4, 32), threads=1).rows(stored(values, dtype).tobytes(), dtype, 2, 32)


# --- which weights ---

LLAMA = [
    TensorSpec("model.embed_tokens.weight", "BF16", (512, 256)),
    TensorSpec("model.layers.0.input_layernorm.weight", "BF16", (256,)),
    TensorSpec("model.layers.0.self_attn.q_proj.weight", "BF16", (256, 256)),
    TensorSpec("model.layers.0.self_attn.q_proj.bias", "BF16", (256,)),
    TensorSpec("model.layers.0.mlp.down_proj.weight", "BF16", (256, 640)),
    TensorSpec("lm_head.weight", "BF16", (512, 256)),
]
MOE = [
    TensorSpec("model.layers.0.mlp.gate.weight", "BF16", (4, 256)),
    TensorSpec("model.layers.0.mlp.experts.0.up_proj.weight", "BF16", (128, 256)),
    TensorSpec("model.layers.0.mlp.experts.0.down_proj.weight", "BF16", (256, 128)),
    TensorSpec("model.layers.1.block_sparse_moe.gate.weight", "BF16", (4, 256)),
    TensorSpec("model.layers.1.block_sparse_moe.experts.3.w2.weight", "BF16", (256, 128)),
    TensorSpec("model.layers.2.mlp.shared_expert.gate_proj.weight", "BF16", (128, 256)),
    TensorSpec("model.layers.2.mlp.shared_expert_gate.weight", "BF16", (1, 256)),
]
YUAN = [
    TensorSpec("model.layers.0.self_attn.lf_gate.conv1.weight", "BF16", (128, 256, 2, 1)),
    TensorSpec("model.layers.0.self_attn.lf_gate.output_layernorm.weight", "BF16", (256,)),
    TensorSpec("model.layers.0.self_attn.k_proj.weight", "BF16", (256, 256)),
    TensorSpec("model.layers.0.mlp.gate.query.weight", "BF16", (4, 256)),
    TensorSpec("model.layers.0.mlp.experts.0.w1.weight", "BF16", (512, 256)),
    TensorSpec("model.layers.0.mlp.experts.0.w2.weight", "BF16", (256, 256)),
]


def names(plan: quantise_plan.Plan) -> list[str]:
    return [spec.name.split(".", 2)[2] for spec in plan.quantised]


def test_projections_are_quantised_and_the_rest_is_left() -> None:
    plan = quantise_plan.plan(LLAMA, Scheme(4, 128))
    assert names(plan) == ["0.self_attn.q_proj.weight", "0.mlp.down_proj.weight"]
    assert plan.ignore == ["lm_head", "model.embed_tokens"]
    assert [spec.name for spec in plan.specs(LLAMA)][2:5] == [
        "model.layers.0.self_attn.q_proj.weight_shape",
        "model.layers.0.self_attn.q_proj.weight_packed",
        "model.layers.0.self_attn.q_proj.weight_scale",
    ]
    assert plan.specs(LLAMA)[3].shape == (256, 32)
    assert plan.specs(LLAMA)[4] == TensorSpec("model.layers.0.self_attn.q_proj.weight_scale", "BF16", (256, 2))


def test_experts_are_quantised_and_routers_are_left() -> None:
    plan = quantise_plan.plan(MOE, Scheme(4, 128))
    assert len(plan.quantised) == 4
    assert set(plan.left_out) == {
        "model.layers.0.mlp.gate",
        "model.layers.1.block_sparse_moe.gate",
        "model.layers.2.mlp.shared_expert_gate",
    }


def test_yuans_filter_and_router_are_left() -> None:
    plan = quantise_plan.plan(YUAN, Scheme(8, 128))
    assert names(plan) == ["0.self_attn.k_proj.weight", "0.mlp.experts.0.w1.weight", "0.mlp.experts.0.w2.weight"]
    assert set(plan.left_out) == {"model.layers.0.self_attn.lf_gate.conv1", "model.layers.0.mlp.gate.query"}
    assert "re:.*lf_gate.*" in plan.ignore


def test_inputs_that_are_no_multiple_of_the_group_are_left_with_the_reason() -> None:
    odd = [*LLAMA, TensorSpec("model.layers.0.mlp.up_proj.weight", "BF16", (640, 200))]
    plan = quantise_plan.plan(odd, Scheme(4, 128))
    assert plan.left_out["model.layers.0.mlp.up_proj"] == "200 inputs are no multiple of the group of 128"
    assert "model.layers.0.mlp.up_proj" in plan.ignore


@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        (
            TensorSpec("m.experts.0.w2.weight", "BF16", (256, 96)),
            "multiple of the group of 128; set model_quantise_group_size to 32",
        ),
        (TensorSpec("m.experts.0.w2.weight", "BF16", (256, 100)), "no group fits"),
        (TensorSpec("m.experts.gate_up_proj", "BF16", (4, 256, 256)), "all experts of a layer"),
        (TensorSpec("m.self_attn.v_proj.weight_packed", "I32", (4, 256)), "quantised already"),
        (TensorSpec("m.self_attn.v_proj.weight", "F8_E4M3", (4, 256)), "F8_E4M3"),
    ],
)
def test_what_no_engine_could_load_is_refused(extra: TensorSpec, reason: str) -> None:
    with pytest.raises(CheckpointError, match=reason):
        quantise_plan.plan([*LLAMA, extra], Scheme(4, 128))


def test_a_checkpoint_without_known_weights_is_refused() -> None:
    with pytest.raises(CheckpointError, match="no weight that can be quantised"):
        quantise_plan.plan([TensorSpec("h.0.attn.c_attn.weight", "F32", (256, 768))], Scheme(4, 128))


@pytest.mark.parametrize(
    ("method", "group", "reason"), [("rtn-w3a16", 128, "model_quantise"), ("rtn-w4a16", 100, "group_size")]
)
def test_a_scheme_that_no_kernel_serves_is_refused(method: str, group: int, reason: str) -> None:
    with pytest.raises(CheckpointError, match=reason):
        quantise_plan.scheme(method, group)


def test_a_config_that_is_quantised_already_is_refused() -> None:
    plan = quantise_plan.plan(LLAMA, Scheme(4, 128))
    assert (
        quantise_plan.configured({"a": 1}, plan)["quantization_config"]["config_groups"]["group_0"]["weights"][
            "num_bits"
        ]
        == 4
    )
    with pytest.raises(CheckpointError, match="gptq"):
        quantise_plan.configured({"quantization_config": {"quant_method": "gptq"}}, plan)


# --- streaming ---


class Memory:
    """Tensors in memory, and what was read of them."""

    def __init__(self, tensors: dict[str, np.ndarray]) -> None:
        self.tensors = tensors
        self.reads: list[tuple[str, int, int]] = []
        self.closed = False

    def specs(self) -> Sequence[TensorSpec]:
        return [TensorSpec(name, "F32", values.shape) for name, values in self.tensors.items()]

    def read(self, name: str, first_row: int, rows: int) -> bytes:
        self.reads.append((name, first_row, rows))
        return self.tensors[name][first_row : first_row + rows].tobytes()

    def close(self) -> None:
        self.closed = True


WEIGHT = "model.layers.0.self_attn.q_proj.weight"


def source(values: np.ndarray) -> tuple[Memory, QuantisedSource]:
    memory = Memory({WEIGHT: values, "model.norm.weight": np.arange(4, dtype="<f4")})
    return memory, QuantisedSource(memory, quantise_plan.plan(memory.specs(), Scheme(4, 128)), threads=1)


def read_all(made: QuantisedSource, piece_bytes: int) -> dict[str, bytes]:
    return {spec.name: b"".join(bytes(piece) for piece in pieces(made, spec, piece_bytes)) for spec in made.specs()}


@pytest.mark.parametrize("piece_bytes", [1, 1000, 1 << 20])
def test_pieces_of_any_size_give_the_same_bytes(piece_bytes: int) -> None:
    values = np.random.default_rng(2).standard_normal((37, 256)).astype("<f4")
    memory, made = source(values)
    got = read_all(made, piece_bytes)
    whole = Quantiser(Scheme(4, 128), threads=1).rows(values.tobytes(), "F32", *values.shape)
    module = WEIGHT[: -len(".weight")]
    assert got[f"{module}.weight_packed"] == whole.packed.tobytes()
    assert got[f"{module}.weight_scale"] == whole.scale.tobytes()
    assert got[f"{module}.weight_shape"] == struct.pack("<2q", 37, 256)
    assert got["model.norm.weight"] == memory.tensors["model.norm.weight"].tobytes()
    # One pass: the scales of rows that were packed are not computed a second time.
    assert sum(rows for name, _, rows in memory.reads if name == WEIGHT) == 37
    made.close()
    assert memory.closed


def test_scales_are_right_where_the_integers_were_written_by_an_earlier_run() -> None:
    values = np.random.default_rng(3).standard_normal((12, 256)).astype("<f4")
    _, made = source(values)
    whole = Quantiser(Scheme(4, 128), threads=1).rows(values.tobytes(), "F32", *values.shape)
    module = WEIGHT[: -len(".weight")]
    assert bytes(made.read(f"{module}.weight_scale", 5, 7)) == whole.scale[5:].tobytes()
    # The beginning was packed by an earlier run, the end now.
    made.read(f"{module}.weight_packed", 6, 6)
    assert bytes(made.read(f"{module}.weight_scale", 0, 12)) == whole.scale.tobytes()


def test_a_weight_that_is_not_finite_is_named() -> None:
    values = np.ones((4, 128), dtype="<f4")
    values[2, 2] = np.nan
    _, made = source(values)
    with pytest.raises(CheckpointError, match=rf"{WEIGHT} holds values that are not finite"):
        read_all(made, 1 << 20)
