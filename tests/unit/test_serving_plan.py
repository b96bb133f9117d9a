"""The plan's arithmetic by hand, its refusals, old names of options, and the module as Ansible runs it."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.checkpoint import Tensor
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.serving_plan import (
    Gpu,
    Machine,
    Model,
    Node,
    Plan,
    Wish,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.serving_plan_cpu import plan_cpu
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.serving_plan_gpu import (
    plan_gpu,
    utilisation,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.serving_plan_machine import (
    memory_limit,
    read_gpus,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.serving_plan_memory import Step, graph_count
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.serving_plan_options import (
    REFUSED,
    RENAMED,
    PlanError,
    read_options,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.serving_plan_shape import read_shape
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.serving_plan_weights import Loading, weigh
from ansible_collections.plumbline.plumbline.plugins.modules import serving_plan

GIB = 2**30
LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}
LLAMA_BYTES = 16 * 10**9
H100 = Gpu("NVIDIA H100 80GB HBM3", 79 * GIB)


def model(config: dict[str, Any] | None = None, size: int = LLAMA_BYTES, **more: Any) -> Model:
    """A model whose weights are one tensor of so many bytes."""
    known = {"dtype": "bfloat16", "element_bytes": 2, **more}
    return Model(read_shape({**LLAMA, **(config or {})}), [Tensor("model.layers.0.mlp.w", "U8", size)], **known)


def gpus(count: int = 1, gpu: Gpu = H100) -> Machine:
    return Machine(False, 512 * GIB, (gpu,) * count)


def cpu(memory: int = 64 * GIB, *nodes: int) -> Machine:
    return Machine(True, memory, nodes=tuple(Node(number, size, 32) for number, size in enumerate(nodes or (memory,))))


def wish(**more: Any) -> Wish:
    return Wish(read_options(more.pop("options", {})), **more)


def line(plan: Plan, what: str) -> int:
    found = next(each.bytes for each in plan.lines if each.what == what)
    assert found is not None
    return found


# --- a GPU ---


def test_a_model_on_one_gpu() -> None:
    plan = plan_gpu(model(), gpus(), wish(request_tokens=1280))
    assert plan.refusal == ""
    # 32 layers x 8 heads x 128 x (key and value) x 2 bytes = 131,072 bytes a token; blocks of 16.
    per_token = 131072
    assert plan.kv_cache_tokens == plan.kv_cache_bytes // (16 * per_token) * 16
    assert line(plan, "one request") == (131072 // 16 + 1) * 16 * per_token
    assert plan.options == {
        "tensor_parallel_size": 1,
        "gpu_memory_utilization": 0.92,
        "max_model_len": 131072,
        "max_num_batched_tokens": 8192,
        "max_num_seqs": plan.options["max_num_seqs"],
    }
    # Whole eights, no more than the cache holds; it was reckoned with the sampler's memory for more.
    assert plan.options["max_num_seqs"] % 8 == 0
    assert 0.9 < plan.options["max_num_seqs"] / (plan.kv_cache_tokens / 1280) <= 1
    parts = sum(line(plan, what) for what in ("weights", "activations", "CUDA graphs", "context", "key-value cache"))
    assert parts == line(plan, "budget") == int(0.92 * 79 * GIB)
    assert not plan.fits_beside


def test_what_does_not_fit_one_is_split_over_as_few_as_hold_it() -> None:
    big = model({"num_hidden_layers": 80, "hidden_size": 8192, "num_attention_heads": 64}, 144 * 10**9)
    plan = plan_gpu(big, gpus(8), wish(max_model_len=32768))
    assert plan.refusal == ""
    assert plan.options["tensor_parallel_size"] == 4
    assert line(plan, "weights") == 36 * 10**9
    assert any("4 of 8 GPUs stay idle" in note for note in plan.notes)


def test_more_gpus_are_asked_where_fewer_hold_hardly_more_than_one_request() -> None:
    big = model({"num_hidden_layers": 80, "hidden_size": 8192, "num_attention_heads": 64}, 142 * 10**9)
    short = plan_gpu(big, gpus(2), wish(max_model_len=8192))
    assert short.refusal == ""
    assert 8192 < short.kv_cache_tokens < 16 * 2048
    assert plan_gpu(big, gpus(8), wish(max_model_len=8192)).options["tensor_parallel_size"] == 4


def test_heads_are_copied_where_there_are_fewer_than_gpus() -> None:
    """Eight heads of keys over 16 GPUs: each keeps one of them, as with 8."""
    eight = plan_gpu(model(), gpus(16), wish(options={"tensor_parallel_size": 8}))
    sixteen = plan_gpu(model(), gpus(16), wish(options={"tensor_parallel_size": 16}))
    assert line(eight, "one request") == line(sixteen, "one request")


def test_a_context_that_was_not_asked_for_is_shortened() -> None:
    plan = plan_gpu(model({"max_position_embeddings": 10**6}), gpus(), wish())
    assert plan.refusal == ""
    assert 400_000 < plan.options["max_model_len"] < 500_000
    assert any("for the 1000000 of the model need" in note for note in plan.notes)


@pytest.mark.parametrize(
    ("made", "machine", "wanted", "words"),
    [
        (model(size=100 * 10**9), gpus(), wish(), ("to hold the weights (93.13 GiB)", "model_quantise", "smaller model")),
        (model(), gpus(), wish(max_model_len=10**6), ("one request of 1000000 tokens", "lower serving_max_model_len to ")),
        (model(size=100 * 10**9), gpus(8), wish(options={"tensor_parallel_size": 1}), ("raise tensor_parallel_size (the node has 8",)),
        (model(), gpus(8), wish(options={"tensor_parallel_size": 3}), ("3 x 1 x 1", "32 attention heads")),
        (model(), gpus(2), wish(options={"tensor_parallel_size": 4}), ("the 2 GPUs", "needs 4 GPUs")),
        (model(), gpus(2), wish(options={"data_parallel_size": 4}), ("1 x 1 x 4", "needs 4 GPUs")),
    ],
)  # fmt: skip
def test_what_a_gpu_cannot_hold_is_refused_with_the_arithmetic(
    made: Model, machine: Machine, wanted: Wish, words: tuple[str, ...]
) -> None:
    plan = plan_gpu(made, machine, wanted)
    for word in words:
        assert word in plan.refusal, plan.refusal
    assert plan.refusal.startswith("Expected ")
    assert plan.refusal.count(". ") == 0
    assert plan.options == {}


def test_the_inventorys_options_win_and_the_arithmetic_goes_by_them() -> None:
    own = {
        "gpu_memory_utilization": "0.45",
        "max_num_seqs": 4,
        "enforce_eager": True,
        "seed": None,
        "cpu_offload_gb": 2,
    }
    plan = plan_gpu(model(), gpus(), wish(options=own))
    assert plan.options["gpu_memory_utilization"] == 0.45
    assert plan.options["max_num_seqs"] == 4
    assert plan.options["seed"] is None
    assert line(plan, "budget") == int(0.45 * 79 * GIB)
    assert line(plan, "CUDA graphs") == 0
    assert line(plan, "weights") == LLAMA_BYTES - 2 * GIB
    assert plan.fits_beside


def test_two_at_once_get_half_each() -> None:
    plan = plan_gpu(model(), gpus(), wish(instances=2))
    assert plan.options["gpu_memory_utilization"] == 0.46
    assert plan.fits_beside


def test_a_small_gpu_keeps_more_outside() -> None:
    assert utilisation(22 * GIB, 1) == 0.91
    assert utilisation(16 * GIB, 1) == 0.88
    assert utilisation(140 * GIB, 1) == 0.92


def test_cache_of_eight_bits_holds_twice_as_much() -> None:
    sixteen = plan_gpu(model(), gpus(), wish(options={"max_num_seqs": 64}))
    eight = plan_gpu(model(kv_cache_dtype="fp8"), gpus(), wish(options={"max_num_seqs": 64}))
    assert eight.kv_cache_tokens == pytest.approx(2 * sixteen.kv_cache_tokens, rel=0.01)


def test_graphs_as_vllm_counts_them() -> None:
    """With 256 requests: 1, 2, 4, every eighth up to 248, every sixteenth up to 512, in pieces and whole."""
    assert graph_count(Step(8192, 256, 2, 1)) == 2 * (3 + 31 + 17)
    assert graph_count(Step(8192, 1, 2, 1)) == 2 * 2


# --- the CPU engine ---


def test_a_cpu_node_gets_a_cache_for_what_may_run_at_once() -> None:
    plan = plan_cpu(model({"max_position_embeddings": 8192}), cpu(), wish(request_tokens=1024))
    assert plan.refusal == ""
    # 128 requests of 1,024 tokens x 131,072 bytes = 16 GiB.
    assert plan.environment["VLLM_CPU_KVCACHE_SPACE"] == "16"
    assert plan.options["max_model_len"] == 8192
    assert plan.options["max_num_seqs"] == 128
    assert "tensor_parallel_size" not in plan.options
    assert plan.bytes_total == line(plan, "weights") + line(plan, "activations") + line(plan, "processes") + 16 * GIB
    assert not plan.fits_beside


def test_sockets_share_what_one_node_reads_alone() -> None:
    plan = plan_cpu(model(size=100 * 10**9), cpu(1024 * GIB, *(256 * GIB,) * 4), wish(max_model_len=8192))
    assert plan.options["tensor_parallel_size"] == 4
    assert plan.environment["VLLM_CPU_NUM_OF_RESERVED_CPU"] == "4"
    assert line(plan, "weights") == 25 * 10**9


@pytest.mark.parametrize(
    ("made", "machine", "wanted", "words"),
    [
        (model(), cpu(16 * GIB), wish(), ("Expected 16.00 GiB of memory", "weights (14.90 GiB as bfloat16)", "smaller model")),
        (model(), cpu(), wish(kv_cache_gib=64), ("64 GiB of key-value cache", "lower serving_kv_cache_gib")),
        (model(element_bytes=4, dtype="float32"), cpu(16 * GIB), wish(), ("16-bit model_dtype",)),
        (
            model(),
            cpu(),
            wish(kv_cache_gib=1, max_model_len=65536),
            (
                "1 GiB of key-value cache to hold one request of 65536",
                "8.02 GiB",
                "lower serving_max_model_len to 8064",
                "serving_kv_cache_gib to 9",
            ),
        ),
        (model(), cpu(), wish(options={"tensor_parallel_size": 2}), ("up to the 1 NUMA nodes", "found 2")),
        (
            model(size=50 * 10**9),
            cpu(80 * GIB, 40 * GIB, 40 * GIB),
            wish(options={"tensor_parallel_size": 1}),
            ("NUMA node(s) with 40.00 GiB",),
        ),
    ],
)  # fmt: skip
def test_what_a_cpu_node_cannot_hold_is_refused_with_the_arithmetic(
    made: Model, machine: Machine, wanted: Wish, words: tuple[str, ...]
) -> None:
    plan = plan_cpu(made, machine, wanted)
    for word in words:
        assert word in plan.refusal, plan.refusal
    assert plan.options == {}


def test_a_prompt_of_latent_attention_is_one_step_on_a_cpu() -> None:
    latent = {
        "model_type": "deepseek_v2", "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
        "max_position_embeddings": 16384,
    }  # fmt: skip
    plan = plan_cpu(model(latent), cpu(), wish())
    assert plan.options["max_num_batched_tokens"] == 16384
    # One vector of 576 a token and layer, in blocks of 16.
    assert line(plan, "one request") == (16384 // 16 + 1) * 16 * 576 * 2 * 32


def test_what_is_not_understood_is_said_and_not_refused() -> None:
    odd = {"layer_types": ["wavelet_attention"] * 32}
    plan = plan_cpu(model(odd), cpu(), wish())
    assert plan.refusal == ""
    assert plan.kv_cache_tokens == 0
    assert "max_model_len" not in plan.options
    assert any("wavelet_attention" in note for note in plan.notes)


@pytest.mark.parametrize(
    "broken",
    [{}, {"hidden_size": "many"}, {"num_hidden_layers": -3}, {"num_attention_heads": None}, {"quantization_config": 7}],
)
def test_a_strange_config_ends_in_no_traceback(broken: dict[str, Any]) -> None:
    shape = read_shape({**({} if not broken else LLAMA), **broken})
    plan = plan_cpu(Model(shape, [], "bfloat16", 2), cpu(), wish())
    assert isinstance(plan.as_dict(), dict)


# --- weights ---


def test_tensors_as_they_are_loaded() -> None:
    shape = read_shape(
        {
            **LLAMA,
            "hidden_size": 8,
            "vocab_size": 100,
            "num_hidden_layers": 2,
            "num_key_value_heads": 2,
            "tie_word_embeddings": True,
        }
    )
    tensors = [
        Tensor("model.embed_tokens.weight", "F32", 800),
        Tensor("lm_head.weight", "F32", 800),
        Tensor("model.layers.0.self_attn.k_proj.weight", "F32", 64),
        Tensor("model.layers.0.self_attn.o_proj.weight", "F32", 64),
        Tensor("model.layers.0.input_layernorm.weight", "F32", 8),
        Tensor("model.layers.0.self_attn.rotary_emb.inv_freq", "F32", 8),
        Tensor("model.layers.2.mlp.up_proj.weight", "F32", 10**6),
    ]
    # The vocabulary in rows of 64; the output layer is the embedding; a third layer is for speculation, positions are computed.
    assert weigh(tensors, shape, Loading(2)).per_rank == 2 * (128 * 8 + 64 + 64 + 8)
    # Two heads of keys over four processes: each has one. Norms are everybody's.
    assert weigh(tensors, shape, Loading(2, 4)).per_rank == 2 * (128 * 8 // 4 + 64 // 2 + 64 // 4 + 8)


def test_packed_weights_stay_packed_but_where_the_yuan_plugin_unpacks_them() -> None:
    config = {
        "model_type": "yuan", "architectures": ["YuanForCausalLM"],
        "quantization_config": {"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": {"num_bits": 4}}}},
    }  # fmt: skip
    packed = [
        Tensor("model.layers.0.mlp.up_proj.weight_packed", "I32", 1000),
        Tensor("model.layers.0.mlp.up_proj.weight_scale", "BF16", 250),
    ]
    made = Model(read_shape({**LLAMA, **config}), packed, "bfloat16", 2)
    assert made.weights(gpus(), 1).per_rank == 4 * 1000 + 2 * 250
    values = [
        Tensor(each.name.replace("mlp.up_proj", "self_attn.v_proj"), each.stored_dtype, each.elements)
        for each in packed
    ]
    assert Model(made.shape, values, "bfloat16", 2).weights(gpus(), 1).per_rank == 8 * 1000 * 2
    assert made.weights(cpu(), 1).per_rank == 8 * 1000 * 2


def test_a_vision_tower_may_have_more_layers_than_the_language_model() -> None:
    shape = read_shape({**LLAMA, "num_hidden_layers": 2})
    tower = Tensor("visual.blocks.31.attn.qkv.weight", "BF16", 100)
    assert weigh([tower], shape, Loading(2)).per_rank == 200


# --- kinds of layers, by the rules of each family ---


@pytest.mark.parametrize(
    ("config", "kinds"),
    [
        ({"sliding_window": 4096, "use_sliding_window": False}, "ffff"),
        ({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 3}, "fffs"),
        ({"model_type": "cohere2", "sliding_window": 4096}, "sssf"),
        ({"model_type": "llama4_text", "attention_chunk_size": 8192}, "cccf"),
        ({"model_type": "jamba", "attn_layer_period": 4, "attn_layer_offset": 2, "mamba_d_state": 16, "mamba_d_conv": 4}, "ttft"),
        (
            {
                "model_type": "nemotron_h", "hybrid_override_pattern": "M-*E", "n_groups": 8, "mamba_num_heads": 64, "mamba_head_dim": 64,
                "ssm_state_size": 128, "conv_kernel": 4,
            },
            "tf",
        ),
        (
            {
                "model_type": "kimi_linear", "kv_lora_rank": 512, "qk_rope_head_dim": 64,
                "linear_attn_config": {"kda_layers": [1, 2, 3], "full_attn_layers": [4], "num_heads": 32, "head_dim": 128},
            },
            "tttm",
        ),
        ({"model_type": "deepseek_v32", "kv_lora_rank": 512, "qk_rope_head_dim": 64, "index_head_dim": 128}, "mimimimi"),
        ({"model_type": "gemma3n_text", "num_kv_shared_layers": 2}, "ff"),
        ({"block_configs": [{"attention": {"no_op": True}}, {"attention": {"n_heads_in_group": 8}}]}, "f"),
        ({"is_encoder_decoder": True}, ""),
        ({"model_type": "falcon_h1"}, ""),
    ],
)  # fmt: skip
def test_the_kinds_of_layers(config: dict[str, Any], kinds: str) -> None:
    letters = {"full": "f", "sliding": "s", "chunked": "c", "state": "t", "mla": "m", "index": "i"}
    shape = read_shape({**LLAMA, "num_hidden_layers": 4, **config})
    assert "".join(letters[layer.kind] for layer in shape.layers) == kinds
    assert bool(shape.unknown) == (not kinds)


# --- options ---


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_means_nothing_today_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(PlanError, match=rf"^Expected options of today's vLLM in serving_options, found {name}: .+\.$"):
        read_options({name: 1})


@pytest.mark.parametrize("name", sorted(RENAMED))
def test_another_name_is_carried_over_and_said(name: str) -> None:
    found = read_options({name.replace("_", "-"): "1"})
    assert set(found.values) == {RENAMED[name]}
    assert RENAMED[name] in found.notes[0]


@pytest.mark.parametrize(
    "given",
    [
        {"max_num_seqs": "many"},
        {"max_num_seqs": 0},
        {"tensor_parallel_size": 1.5},
        {"max_num_batched_tokens": True},
        {"gpu_memory_utilization": 92},
        {"gpu_memory_utilization": "most"},
        {"max-num-seqs": 1, "max_num_seqs": 1},
        {"tp": 1, "tensor_parallel_size": 1},
    ],
)
def test_what_is_no_number_is_one_sentence(given: dict[str, Any]) -> None:
    with pytest.raises(
        PlanError, match=r"^Expected .* found .*: (correct it|keep one)\.$|under different spellings: keep one\.$"
    ):
        read_options(given)


@pytest.mark.parametrize(("block", "machine"), [(16, cpu()), (24, gpus())])
def test_blocks_that_no_kernel_takes(block: int, machine: Machine) -> None:
    with pytest.raises(PlanError, match=f"found {block}: remove it"):
        (plan_cpu if machine.on_cpu else plan_gpu)(model(), machine, wish(options={"block_size": block}))


def test_limits_as_systemd_writes_them() -> None:
    assert memory_limit("64G", 10**12) == 64 * GIB
    assert memory_limit("50%", 10**12) == 5 * 10**11
    assert memory_limit("", 5) is None
    assert memory_limit("infinity", 5) is None
    with pytest.raises(PlanError, match="found 'much'"):
        memory_limit("much", 5)


def test_gpus_that_may_be_used() -> None:
    found = [
        {"name": "A", "uuid": f"GPU-{number}", "memory_total_bytes": 10.0, "memory_reserved_bytes": 1.0}
        for number in range(3)
    ]
    assert len(read_gpus(found, "0,GPU-2")[0]) == 2
    assert read_gpus(found, "")[0][0].memory_bytes == 9
    assert "MIG" in read_gpus([{**found[0], "mig_mode": "Enabled"}], "")[1]
    assert "names none" in read_gpus(found, "7")[1]


# --- the module ---


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    header = json.dumps(
        {"model.layers.0.mlp.w": {"dtype": "BF16", "shape": [1000, 1000], "data_offsets": [0, 2000000]}}
    ).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "num_hidden_layers": 2}))
    return tmp_path


def call(capsys: pytest.CaptureFixture[str], **arguments: Any) -> dict[str, Any]:
    with patch_module_args(arguments), pytest.raises(SystemExit):
        serving_plan.main()
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def test_the_module_tells_options_arithmetic_and_a_measurement(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = call(
        capsys,
        checkpoint=str(checkpoint),
        device="cpu",
        model_options={"dtype": "bfloat16"},
        kv_cache_gib=1,
        max_model_len=2048,
    )
    assert told["available"]
    assert told["refusal"] == ""
    assert told["environment"]["VLLM_CPU_KVCACHE_SPACE"] == "1"
    assert {each["what"] for each in told["arithmetic"]} >= {
        "memory",
        "weights",
        "activations",
        "key-value cache",
        "one request",
    }
    (measurement,) = told["measurements"]
    assert measurement["value"] == told["bytes_total"]
    assert "1 tensors of" in measurement["conditions"]["weights"]
    assert "max_num_seqs" in measurement["conditions"]["options"]


def test_without_nvidia_smi_there_is_no_plan_and_the_options_are_as_given(
    checkpoint: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(checkpoint))
    monkeypatch.setattr("ansible.module_utils.basic.AnsibleModule.get_bin_path", lambda *_, **__: None)
    told = call(capsys, checkpoint=str(checkpoint), device="cuda", options={"tp": "2"})
    assert not told["available"]
    assert told["options"] == {"tensor_parallel_size": 2}
    assert told["measurements"][0]["skipped"] == "the memory of the GPUs is not known: nvidia-smi is not installed"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"options": {"swap_space": 4}}, "kv_offloading_size"),
        ({"options": {"quantize": "awq"}}, "model_quantization"),
        ({"memory_limits": ["lots"]}, "serving_memory_max"),
        ({"kv_cache_gib": -1}, "serving_kv_cache_gib"),
    ],
)
def test_the_module_refuses_in_one_sentence(
    checkpoint: Path, capsys: pytest.CaptureFixture[str], given: dict[str, Any], words: str
) -> None:
    told = call(capsys, checkpoint=str(checkpoint), device="cpu", **given)
    assert told["failed"]
    assert words in told["msg"]
    assert "Traceback" not in told["msg"]


def test_no_checkpoint_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = call(capsys, checkpoint=str(tmp_path), device="cpu")
    assert not told["available"]
    assert "no readable model config" in told["reason"]
