"""Configurations: the published models' sizes, what is refused and how, and that no code of a checkpoint runs."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from plumbline_yuan import register
from plumbline_yuan.config import YuanConfig, YuanSizes
from yuan_reference import configs
from yuan_reference.model import Dimensions

# config.json of the published models, the keys that decide (yuan-architecture.md, section 1).
PUBLISHED = {
    "2B": {"hidden_size": 2048, "num_attention_heads": 32, "num_hidden_layers": 24, "intermediate_size": 8192},
    "102B": {"hidden_size": 8192, "num_attention_heads": 64, "num_hidden_layers": 84, "intermediate_size": 32768},
    "M32": {
        "hidden_size": 2048,
        "num_attention_heads": 16,
        "attention_projection_size": 4096,
        "num_hidden_layers": 24,
        "intermediate_size": 8192,
        "use_moe": True,
        "moe_config": {
            "moe_num_experts": 32,
            "moe_top_k": 2,
            "ffn_hidden_size": 8192,
            "norm_topk_prob": True,
            "gated_linear_unit": True,
        },
    },
}


@pytest.mark.parametrize(("name", "head", "rotary"), [("2B", 64, 64), ("102B", 128, 128), ("M32", 256, 128)])
def test_published_models(name: str, head: int, rotary: int) -> None:
    config = YuanConfig(vocab_size=135040, **PUBLISHED[name])
    sizes = YuanSizes.of(config)
    assert (sizes.head, sizes.rotary, sizes.rotary_base) == (head, rotary, 10000.0)
    assert (config.head_dim, config.num_key_value_heads) == (head, config.num_attention_heads)
    assert sizes.experts == ((32,) * 24 if name == "M32" else ())
    assert sizes.tied


@pytest.mark.parametrize("name", ["dense", "m32"])
def test_as_the_reference_reads_it(name: str) -> None:
    sizes, dimensions = YuanSizes.of(configs.get(name)), Dimensions.of(configs.get(name))
    assert (sizes.hidden, sizes.heads, sizes.head, sizes.rotary, sizes.width, sizes.norm_eps) == (
        dimensions.hidden, dimensions.heads, dimensions.head, dimensions.rotary, dimensions.width, dimensions.norm_eps,
    )  # fmt: skip
    assert sizes.experts == (dimensions.experts,) * dimensions.layers * bool(dimensions.experts)


def test_experts_that_differ_from_layer_to_layer() -> None:
    moe = {**configs.M32["moe_config"], "per_layer_experts_blocks": [8, 4, 6, 8]}
    assert YuanSizes.of(configs.get("m32", moe_config=moe)).experts == (8, 4, 6, 8)


def moe(**changes: Any) -> dict[str, Any]:
    return {"moe_config": {**configs.M32["moe_config"], **changes}}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"use_shareqk": True}, "sets use_shareqk"),
        ({"use_yarn": True}, "sets use_yarn"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "sets rope_scaling"),
        ({"num_attention_heads": 5}, "5 attention heads over a projection of 256"),
        ({"rotary_percent": 1.5}, "96 rotating elements in heads of 64"),
        (moe(router_type="linear"), "router_type 'linear'"),
        (moe(gated_linear_unit=False), "gated_linear_unit false"),
        (moe(moe_top_k=9), "moe_top_k is 9, but a layer has only 8"),
        (moe(per_layer_experts_blocks=[8, 8]), "has 2 entries for 4 layers"),
        ({"moe_config": {"moe_top_k": 2}}, "lacks moe_num_experts, ffn_hidden_size"),
    ],
)
def test_what_is_not_computed_is_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as refused:
        YuanSizes.of(configs.get("m32", **changes))
    assert "\n" not in str(refused.value)


def serving(**changes: Any) -> Any:
    """As much of vLLM's configuration as the plugin looks at."""
    parallel = {"tensor_parallel_size": 1, "pipeline_parallel_size": 1, "enable_dbo": False, "enable_eplb": False}
    parallel |= {"decode_context_parallel_size": 1, "prefill_context_parallel_size": 1}
    compilation = SimpleNamespace(splitting_ops=changes.pop("splitting_ops", None))
    speculative = changes.pop("speculative_config", None)
    return SimpleNamespace(
        model_config=SimpleNamespace(hf_config=YuanConfig(**configs.get("m32"))),
        parallel_config=SimpleNamespace(**{**parallel, **changes}),
        speculative_config=speculative,
        compilation_config=compilation,
    )


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"pipeline_parallel_size": 2}, "pipeline_parallel_size is 2"),
        ({"speculative_config": SimpleNamespace()}, "speculative_config is set"),
        ({"enable_dbo": True}, "enable_dbo is set"),
        ({"enable_eplb": True}, "enable_eplb is set"),
        ({"decode_context_parallel_size": 2}, "decode_context_parallel_size is 2"),
        ({"tensor_parallel_size": 3}, "tensor_parallel_size 3 does not divide the model's 4 attention heads"),
    ],
)
def test_what_is_not_served_is_refused(changes: dict[str, Any], sentence: str) -> None:
    settings = pytest.importorskip("plumbline_yuan.settings")
    settings.YuanServing.verify_and_update_config(serving())
    with pytest.raises(ValueError, match=sentence) as refused:
        settings.YuanServing.verify_and_update_config(serving(**changes))
    assert "\n" not in str(refused.value)


def test_the_filter_s_op_is_among_a_user_s_splitting_ops() -> None:
    settings = pytest.importorskip("plumbline_yuan.settings")
    config = serving(splitting_ops=["vllm::unified_attention_with_output"])
    settings.YuanServing.verify_and_update_config(config)
    assert config.compilation_config.splitting_ops[-1] == "vllm::plumbline_yuan_filter"


@pytest.mark.parametrize("named", [True, False])
def test_no_code_of_a_checkpoint_runs(tmp_path: Path, named: bool) -> None:
    vllm_configs = pytest.importorskip("vllm.transformers_utils.config")
    register()
    register()
    config = configs.get("m32")
    if not named:
        del config["model_type"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    for name in ("configuration_yuan.py", "yuan_hf_model.py"):
        (tmp_path / name).write_text("raise RuntimeError('executed')\n")
    found = vllm_configs.get_config(tmp_path, trust_remote_code=False)
    assert isinstance(found, YuanConfig)
    assert found.head_dim == 64
    assert found.to_dict()["moe_config"] == config["moe_config"]


def test_other_models_are_read_as_before(tmp_path: Path) -> None:
    vllm_configs = pytest.importorskip("vllm.transformers_utils.config")
    register()
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64})
    )
    assert type(vllm_configs.get_config(tmp_path, trust_remote_code=False)).__name__ == "LlamaConfig"


def test_the_op_splits_compiled_graphs() -> None:
    compilation = pytest.importorskip("vllm.config").CompilationConfig
    register()
    register()
    assert compilation._attention_ops.count("vllm::plumbline_yuan_filter") == 1


@pytest.mark.parametrize(
    ("quantization", "merged"),
    [
        (
            {
                "quant_method": "compressed-tensors",
                "format": "pack-quantized",
                "config_groups": {"a": {"weights": {"num_bits": 4}}},
            },
            True,
        ),
        ({"quant_method": "gptq", "bits": 4}, True),
        ({"quant_method": "fp8"}, False),
        (None, False),
    ],
)
def test_values_are_merged_where_their_format_can_be_turned_back(
    monkeypatch: pytest.MonkeyPatch, quantization: dict[str, Any] | None, merged: bool
) -> None:
    settings = pytest.importorskip("plumbline_yuan.settings")
    monkeypatch.setenv("PLUMBLINE_YUAN_DEQUANTISE", "0")
    config = SimpleNamespace(
        quant_config=object(), model_config=SimpleNamespace(hf_config=YuanConfig(quantization_config=quantization))
    )
    assert settings.merges_values(config) is merged
    assert settings.merges_values(SimpleNamespace(quant_config=None)) is True


@pytest.mark.parametrize(
    ("kind", "names"), [("m32", {"q_proj", "k_proj", "v_proj", "o_proj"}), ("dense", {"v_proj"}), ("unread", set())]
)
def test_attention_is_served_in_full_where_the_experts_are_quantised(
    monkeypatch: pytest.MonkeyPatch, kind: str, names: set[str]
) -> None:
    settings = pytest.importorskip("plumbline_yuan.settings")
    monkeypatch.setenv("PLUMBLINE_YUAN_DEQUANTISE", "0")
    quantization = {"quant_method": "fp8"} if kind == "unread" else {"quant_method": "gptq", "bits": 4}
    shape = {key: value for key, value in configs.get(kind.replace("unread", "m32")).items() if key != "model_type"}
    config = SimpleNamespace(
        quant_config=object(),
        model_config=SimpleNamespace(hf_config=YuanConfig(**shape, quantization_config=quantization)),
    )
    assert settings.full_attention(config) == tuple(
        f".self_attn.{name}" for name in ("q_proj", "k_proj", "v_proj", "o_proj") if name in names
    )
    config.quant_config = None
    assert settings.full_attention(config) == ()


@pytest.mark.parametrize("name", ["few_tokens", "many_tokens"])
def test_a_setting_that_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    settings = pytest.importorskip("plumbline_yuan.settings")
    settings._count.cache_clear()
    monkeypatch.setenv(f"PLUMBLINE_YUAN_{name.upper()}", "some")
    with pytest.raises(
        ValueError, match=rf"^PLUMBLINE_YUAN_{name.upper()} is 'some': it must be a number, 0 or more\.$"
    ):
        getattr(settings, name)()
    settings._count.cache_clear()
