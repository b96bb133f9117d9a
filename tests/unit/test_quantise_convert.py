"""A checkpoint written quantised and held against its source: what is right passes, every damage is found where it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.checkpoint_convert import prepared
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.checkpoint_errors import CheckpointError
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.gates import judge
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.quantise_check import rounding
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.quantise_convert import convert, quantised
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.quantise_plan import plan, scheme
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.quantise_quality import measurements
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.safetensors_file import (
    TensorSpec,
    header_bytes,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.safetensors_source import SafetensorsSource

HIDDEN, VOCABULARY = 256, 96
DAMAGED = "model.layers.0.self_attn.o_proj"
SHAPES = {
    "model.embed_tokens.weight": (VOCABULARY, HIDDEN),
    "model.layers.0.input_layernorm.weight": (HIDDEN,),
    "model.layers.0.mlp.down_proj.weight": (HIDDEN, 512),
    f"{DAMAGED}.weight": (HIDDEN, HIDDEN),
    "model.norm.weight": (HIDDEN,),
}


def checkpoint(directory: Path) -> Path:
    directory.mkdir()
    random = np.random.default_rng(5)
    specs = [TensorSpec(name, "BF16", shape) for name, shape in SHAPES.items()]
    with (directory / "model.safetensors").open("wb") as file:
        file.write(header_bytes(specs))
        for spec in specs:
            file.write((random.standard_normal(spec.shape, dtype="<f4").view("<u4") >> 16).astype("<u2").tobytes())
    config = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "hidden_size": HIDDEN}
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "tokenizer.json").write_text("{}")
    return directory


def job(source: Path, target: Path, method: str = "rtn-w4a16", **more: Any) -> dict[str, Any]:
    target.mkdir(exist_ok=True)
    common = {"format": "safetensors", "dtype": "bfloat16", "source_key": "k", "group": 128}
    return {"source": str(source), "target": str(target), "method": method, **common, **more}


@pytest.mark.parametrize(("method", "bits"), [("rtn-w4a16", 4), ("rtn-w8a16", 8)])
def test_what_is_written_is_what_was_planned(tmp_path: Path, method: str, bits: int) -> None:
    source = checkpoint(tmp_path / "source")
    target = tmp_path / "target"
    result = convert(job(source, target, method))
    config = json.loads((target / "config.json").read_text())
    assert config["quantization_config"]["config_groups"]["group_0"]["weights"]["num_bits"] == bits
    assert config["hidden_size"] == HIDDEN
    assert (target / "tokenizer.json").exists()
    written = {spec.name: spec for spec in SafetensorsSource(target, sorted(result["shards"])).specs()}
    assert written[f"{DAMAGED}.weight_packed"] == TensorSpec(
        f"{DAMAGED}.weight_packed", "I32", (HIDDEN, HIDDEN * bits // 32)
    )
    assert f"{DAMAGED}.weight" not in written
    assert written["model.norm.weight"].dtype == "BF16"
    told = result["quantised"]
    assert told["weights"] == 2
    assert told["left_out"].keys() == {"model.embed_tokens"}
    assert told["source_weight_bytes"] == 2 * sum(int(np.prod(shape)) for shape in SHAPES.values())
    assert told["weight_bytes"] == sum(spec.size_bytes for spec in written.values())
    assert told["rounding_error"] <= 1.01


def rolled_row(scales: np.ndarray) -> np.ndarray:
    return np.roll(scales, 1, axis=0)


def swapped_groups(scales: np.ndarray) -> np.ndarray:
    return scales[:, ::-1]


def one_row_doubled(scales: np.ndarray) -> np.ndarray:
    damaged = scales.copy()
    # One more in the exponent of a bfloat16.
    damaged[17, 1] += 0x80
    return damaged


def one_row_zero(scales: np.ndarray) -> np.ndarray:
    damaged = scales.copy()
    damaged[17] = 0
    return damaged


def one_nibble(words: np.ndarray) -> np.ndarray:
    damaged = words.copy()
    damaged[5, 3] ^= 0x2
    return damaged


def swapped_columns(words: np.ndarray) -> np.ndarray:
    return np.roll(words, 1, axis=1)


@pytest.fixture(scope="module")
def rules(checkout: Path) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((checkout / "group_vars/all/gates.yml").read_text())["gates_rules"]
    return content


@pytest.mark.parametrize(
    ("part", "damage"),
    [
        ("weight_scale", rolled_row),
        ("weight_scale", swapped_groups),
        ("weight_scale", one_row_doubled),
        ("weight_scale", one_row_zero),
        ("weight_packed", one_nibble),
        ("weight_packed", swapped_columns),
    ],
)
def test_a_damage_is_found_and_refused(
    tmp_path: Path, rules: dict[str, Any], part: str, damage: Callable[[np.ndarray], np.ndarray]
) -> None:
    source, target = checkpoint(tmp_path / "source"), tmp_path / "target"
    result = convert(job(source, target))
    shard = target / next(iter(result["shards"]))
    written = SafetensorsSource(target, [shard.name])
    spec = next(spec for spec in written.specs() if spec.name == f"{DAMAGED}.{part}")
    data = bytearray(shard.read_bytes())
    begin = written.place(spec.name).offset
    values = np.frombuffer(bytes(data[begin : begin + spec.size_bytes]), "<u2" if part == "weight_scale" else "<i4")
    data[begin : begin + spec.size_bytes] = np.ascontiguousarray(damage(values.reshape(spec.shape))).tobytes()
    shard.write_bytes(data)
    whole = SafetensorsSource(source, ["model.safetensors"])
    found = rounding(whole, SafetensorsSource(target, [shard.name]), plan(whole.specs(), scheme("rtn-w4a16", 128)))
    assert found.where == f"{DAMAGED}.weight"
    told = {**result["quantised"], "rounding_error": found.largest, "rounding_error_at": found.where}
    judged = {one["name"]: judge(one, rules).status for one in measurements("m", told, None, {})}
    assert judged["model_rounding_error"] in ("CRITICAL", "UNKNOWN")
    right = {one["name"]: judge(one, rules).status for one in measurements("m", result["quantised"], None, {})}
    assert right["model_rounding_error"] == "OK"


def test_another_quantisers_weights_are_taken_over(tmp_path: Path) -> None:
    source, first = checkpoint(tmp_path / "source"), tmp_path / "first"
    convert(job(source, first))
    result = convert(job(source, tmp_path / "target", "awq-w4a16", by_another=str(first)))
    assert result["quantised"]["rounding_error"] is None
    assert (tmp_path / "target/model-00001-of-00001.safetensors").read_bytes() == next(
        first.glob("*.safetensors")
    ).read_bytes()
    assert (tmp_path / "target/tokenizer.json").exists()


def test_another_quantisers_weights_that_were_not_asked_for_are_refused(tmp_path: Path) -> None:
    source, other = checkpoint(tmp_path / "source"), tmp_path / "other"
    convert(job(source, other, "rtn-w8a16"))
    with pytest.raises(
        CheckpointError, match=r"left 2 tensors other than they were asked for, the first is .*weight_packed"
    ):
        convert(job(source, tmp_path / "target", "awq-w4a16", by_another=str(other)))


def test_a_source_that_says_it_is_quantised_is_refused(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "source")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "awq"}}))
    conversion = prepared(source, "safetensors", "bfloat16")
    with pytest.raises(CheckpointError, match="quantised already"):
        quantised(conversion, "rtn-w4a16", 128)
