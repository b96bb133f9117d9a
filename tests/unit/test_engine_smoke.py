"""The tiny model of the smoke test: its files, the options as vLLM takes them, and what counts as an answer."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import engine_smoke, engine_smoke_run
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.checkpoint_errors import CheckpointError
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.engine_smoke import (
    SmokeError,
    forward_passes,
    job_digest,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.engine_smoke_model import (
    SCHEMES,
    Layout,
    write_model,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.worker import Done

JOB: dict[str, Any] = {
    "options": {"dtype": "bfloat16", "max_num_seqs": 16},
    "environment": {"VLLM_CPU_KVCACHE_SPACE": 2, "VLLM_CACHE_ROOT": "/var/cache/plumbline-serving"},
    "scheme": "",
    "group_size": 128,
    "device": "cpu",
    "timeout_seconds": 300,
}


def _tensors(path: Path) -> dict[str, tuple[str, list[int], bytes]]:
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    body = content[8 + length :]
    header.pop("__metadata__")
    assert max(entry["data_offsets"][1] for entry in header.values()) == len(body)
    return {
        name: (entry["dtype"], entry["shape"], body[slice(*entry["data_offsets"])]) for name, entry in header.items()
    }


@pytest.mark.parametrize("ways", [1, 3, 8])
def test_the_model_can_be_split(tmp_path: Path, ways: int) -> None:
    write_model(str(tmp_path), "auto", Layout(), ways, ways)
    config = json.loads((tmp_path / "config.json").read_text())
    for key in ("num_attention_heads", "num_key_value_heads", "intermediate_size"):
        assert config[key] % ways == 0
    assert config["num_hidden_layers"] >= ways
    # The narrowest part of a layer still fits the groups and kernels of 4-bit weights.
    assert config["intermediate_size"] // ways % 128 == 0
    tensors = _tensors(tmp_path / "model.safetensors")
    assert tensors["model.layers.0.self_attn.q_proj.weight"][1] == [config["num_attention_heads"] * 64, 256]


@pytest.mark.parametrize(("dtype", "kind", "size"), [("float32", "F32", 4), ("half", "F16", 2), ("auto", "BF16", 2)])
def test_the_weights_are_of_the_type_that_will_serve(tmp_path: Path, dtype: str, kind: str, size: int) -> None:
    write_model(str(tmp_path), dtype, Layout())
    stored, shape, content = _tensors(tmp_path / "model.safetensors")["lm_head.weight"]
    assert stored == kind
    assert len(content) == shape[0] * shape[1] * size


def test_bfloat16_is_rounded_to_the_nearest(tmp_path: Path) -> None:
    for dtype in ("float32", "bfloat16"):
        (tmp_path / dtype).mkdir()
        write_model(str(tmp_path / dtype), dtype, Layout())
    exact = struct.unpack("<64f", _tensors(tmp_path / "float32/model.safetensors")["lm_head.weight"][2][:256])
    halves = _tensors(tmp_path / "bfloat16/model.safetensors")["lm_head.weight"][2][:128]
    rounded = [struct.unpack("<f", b"\0\0" + halves[index : index + 2])[0] for index in range(0, 128, 2)]
    for number, near in zip(exact, rounded, strict=True):
        assert abs(number - near) <= abs(number) * 2**-8


@pytest.mark.parametrize("scheme", [scheme for scheme in SCHEMES if scheme])
def test_quantised_layers_unpack_to_what_they_should_be(tmp_path: Path, scheme: str) -> None:
    write_model(str(tmp_path), "bfloat16", Layout(scheme))
    config = json.loads((tmp_path / "config.json").read_text())
    tensors = _tensors(tmp_path / "model.safetensors")
    method = config["quantization_config"]["quant_method"]
    assert method == {"awq": "awq", "gptq": "gptq"}.get(scheme, "compressed-tensors")
    name = "model.layers.0.mlp.down_proj"
    assert f"{name}.weight" not in tensors
    # Neither the head nor the embeddings are quantised.
    assert {"lm_head.weight", "model.embed_tokens.weight"} <= set(tensors)
    words = tensors[f"{name}.weight_packed" if method == "compressed-tensors" else f"{name}.qweight"]
    assert words[0] == "I32"
    outputs, inputs, each = 256, 256, 4 if scheme == "w8a16" else 8
    assert words[1] == {
        "awq": [inputs, outputs // 8],
        "gptq": [inputs // 8, outputs],
    }.get(scheme, [outputs, inputs // each])
    if method == "compressed-tensors":
        assert struct.unpack("<2q", tensors[f"{name}.weight_shape"][2]) == (outputs, inputs)
    else:
        zero = struct.unpack("<I", tensors[f"{name}.qzeros"][2][:4])[0]
        # The middle of the range; GPTQ stores it less one.
        assert zero == (0x88888888 if scheme == "awq" else 0x77777777)


def test_the_groups_are_those_that_will_serve(tmp_path: Path) -> None:
    write_model(str(tmp_path), "float16", Layout("w4a16", 32))
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["quantization_config"]["config_groups"]["group_0"]["weights"]["group_size"] == 32
    tensors = _tensors(tmp_path / "model.safetensors")
    assert tensors["model.layers.0.mlp.down_proj.weight_scale"][:2] == ("F16", [256, 8])


def test_options_as_the_unit_writes_them() -> None:
    assert engine_smoke_run.command_line(
        {
            "max_num_seqs": 16,
            "enforce_eager": True,
            "enable_prefix_caching": False,
            "compilation_config": {"level": 3},
            "middleware": ["a.b", "c.d"],
            "chat_template": None,
        }
    ) == [
        *["--compilation-config", '{"level": 3}'],
        *["--no-enable-prefix-caching", "--enforce-eager", "--max-num-seqs", "16", "--middleware", "a.b", "c.d"],
    ]


def _arguments(**options: Any) -> SimpleNamespace:
    known = {
        "load_format": "auto",
        "enforce_eager": False,
        "quantization": None,
        "gpu_memory_utilization": 0.92,
        "data_parallel_size": 1,
        "speculative_config": None,
        "tokenizer": None,
        "hf_overrides": {},
        "runner": "auto",
    }
    return SimpleNamespace(**{**known, **options})


def test_what_a_tiny_model_cannot_have_is_left_out_and_said() -> None:
    arguments, left_out = (
        _arguments(speculative_config={"model": "/draft"}, data_parallel_size=2, load_format="gguf"),
        [],
    )
    engine_smoke_run._fit(arguments, "cpu", left_out)
    assert left_out[:3] == ["speculative_config", "data_parallel_size", "load_format"]
    assert "eager" in left_out[3]
    assert (arguments.speculative_config, arguments.data_parallel_size, arguments.load_format) == (None, 1, "auto")
    assert arguments.enforce_eager
    assert arguments.gpu_memory_utilization == 0.92


def test_a_gpu_that_is_serving_keeps_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_smoke_run, "_gpu_share", lambda: 0.03)
    arguments = _arguments()
    engine_smoke_run._fit(arguments, "cuda", [])
    assert arguments.gpu_memory_utilization == 0.03
    assert arguments.kv_cache_memory_bytes < 1 << 30
    # Graphs and compilation are part of the test there.
    assert not arguments.enforce_eager


@pytest.mark.parametrize(
    ("asked", "quantization", "scheme", "served_as", "noted"),
    [
        ("", None, "", None, False),
        ("w4a16", None, "w4a16", None, False),
        ("", "awq", "awq", "awq", False),
        ("", "compressed-tensors", "w4a16", "compressed-tensors", False),
        ("", "fp8", "", "fp8", False),
        ("", "modelopt", "", None, True),
    ],
)
def test_the_checkpoint_follows_the_quantisation(
    asked: str, quantization: str | None, scheme: str, served_as: str | None, noted: bool
) -> None:
    arguments, left_out = _arguments(quantization=quantization), []
    assert engine_smoke_run._scheme(asked, arguments, left_out) == scheme
    assert arguments.quantization == served_as
    assert bool(left_out) == noted


def _rounds(ids: list[int], logprobs: list[float]) -> list[dict[str, Any]]:
    return [{"ids": ids, "logprobs": logprobs}, {"ids": ids[::-1], "logprobs": [number * 2 for number in logprobs]}]


GOOD = _rounds([3, 4, 5, 6], [-0.5, -0.25, -1.0, -2.0])


def test_an_answer() -> None:
    assert engine_smoke_run._judged([GOOD, GOOD]) == ""


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (_rounds([3, 4], [-0.5, -0.5]), GOOD, "gave 2 tokens where 4"),
        (_rounds([3, 4, 5, 6], [-0.5, float("nan"), -1.0, -2.0]), GOOD, "log probabilities that are none"),
        (_rounds([3, 4, 5, 6], [-0.5, float("-inf"), -1.0, -2.0]), GOOD, "log probabilities that are none"),
        (_rounds([3, 4, 5, 7], [-0.5, -0.25, -1.0, -2.0]), GOOD, "in two ways"),
        (_rounds([3, 4, 5, 6], [-0.9, -0.25, -1.0, -2.0]), GOOD, "in two ways"),
        # What equal logits give: the same token for every prompt.
        *[
            ([{"ids": [0] * 4, "logprobs": [-6.2] * 4}] * 2,) * 2 + ("answers every prompt alike",),
        ],
    ],
)
def test_what_is_no_answer(first: list[dict[str, Any]], second: list[dict[str, Any]], words: str) -> None:
    assert words in engine_smoke_run._judged([first, second])


def test_only_options_make_another_test() -> None:
    assert job_digest(JOB) == job_digest({**JOB, "timeout_seconds": 5})
    assert job_digest(JOB) != job_digest({**JOB, "options": {"dtype": "float32"}})
    assert job_digest(JOB) != job_digest({**JOB, "scheme": "w4a16"})


def test_a_plugins_model_is_tested_too(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[dict[str, Any], dict[str, str]]] = []

    def run(python: str, module: str, needs: tuple[str, ...], job: str, **how: Any) -> Done:
        assert (python, module, needs) == ("/e/bin/python", "engine_smoke_run", ("engine_smoke_model",))
        told.append((json.loads(job), how["environment"]))
        assert how["timeout"] == 300
        return Done({"model": told[-1][0]["model"], "seconds": 1.0, "others": ["yuan"]}, 0)

    monkeypatch.setattr(engine_smoke, "run_worker", run)
    assert forward_passes("/e/bin/python", JOB) == [{"model": name, "seconds": 1.0} for name in ("llama", "yuan")]
    assert [job["model"] for job, _ in told] == ["llama", "yuan"]
    assert told[0][0]["options"] == JOB["options"]
    # The inventory's environment comes last.
    assert told[0][1]["VLLM_CPU_KVCACHE_SPACE"] == "2"
    assert told[0][1]["TORCHDYNAMO_DISABLE"] == "1"
    # Another user's cache is not written to.
    assert "VLLM_CACHE_ROOT" not in told[0][1]


def test_vllms_own_last_words_are_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: Any, **__: Any) -> Done:
        raise CheckpointError("The work in /e/bin/python ended without a result (ValueError: fp8 (e4m3) needs a GPU).")

    monkeypatch.setattr(engine_smoke, "run_worker", run)
    with pytest.raises(SmokeError) as caught:
        forward_passes("/e/bin/python", JOB)
    assert str(caught.value) == "ValueError: fp8 (e4m3) needs a GPU"
