"""Every layout that the reference writes is read back equal, by the route that the publishers' tools take."""

from __future__ import annotations

import json
import pickletools
import sys
import types
import zipfile
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load as load_safetensors
from yuan_reference import checkpoints, configs
from yuan_reference.megatron import ModelType
from yuan_reference.model import YuanReference, tensor_shapes

NAMES = ("dense", "m32")
Tensors = dict[str, torch.Tensor]


def made(name: str, **changes: Any) -> tuple[dict[str, Any], Tensors]:
    config = configs.get(name, **changes)
    return config, checkpoints.make_tensors(config, seed=3, dtype=torch.bfloat16)


def assert_equal(got: Tensors, expected: Tensors) -> None:
    assert got.keys() == expected.keys()
    for name, tensor in expected.items():
        assert got[name].dtype == tensor.dtype
        assert torch.equal(got[name], tensor), name


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shards", [1, 3])
def test_safetensors(tmp_path: Path, name: str, shards: int) -> None:
    config, tensors = made(name)
    checkpoints.write_hf_safetensors(tmp_path, config, tensors, shards=shards)
    read_config, read = checkpoints.read_hf(tmp_path)
    assert_equal(read, tensors)
    assert read_config == {**config, "torch_dtype": "bfloat16"}
    index = tmp_path / "model.safetensors.index.json"
    assert len(list(tmp_path.glob("*.safetensors"))) == shards
    assert index.exists() == (shards > 1)
    if shards > 1:
        content = json.loads(index.read_text())
        assert content["weight_map"].keys() == tensors.keys()
        assert content["metadata"]["total_size"] == sum(tensor.nbytes for tensor in tensors.values())
        for file in set(content["weight_map"].values()):
            inside = load_safetensors((tmp_path / file).read_bytes())
            assert inside.keys() == {key for key, value in content["weight_map"].items() if value == file}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("form", [{}, {"legacy": True}, {"views": True}])
def test_bin(tmp_path: Path, name: str, form: dict[str, bool]) -> None:
    config, tensors = made(name)
    checkpoints.write_hf_bin(tmp_path, config, tensors, shards=2, **form)
    assert_equal(checkpoints.read_hf(tmp_path)[1], tensors)
    files = sorted(tmp_path.glob("*.bin"))
    assert [path.name for path in files] == ["pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"]
    assert all(zipfile.is_zipfile(path) != form.get("legacy", False) for path in files)
    weight_map = json.loads((tmp_path / "pytorch_model.bin.index.json").read_text())["weight_map"]
    assert weight_map.keys() == tensors.keys()


def test_views_are_views(tmp_path: Path) -> None:
    config, tensors = made("m32")
    checkpoints.write_hf_bin(tmp_path, config, tensors, shards=1, views=True)
    read = torch.load(tmp_path / "pytorch_model.bin", weights_only=True)
    w1 = read["model.layers.0.mlp.experts.3.w1.weight"]
    assert w1.stride() == (1, w1.shape[0])
    assert w1.storage_offset() == 3 * w1.numel()
    assert read["model.layers.0.self_attn.k_proj.weight"].storage_offset() > 0
    assert read["lm_head.weight"].data_ptr() == read["model.embed_tokens.weight"].data_ptr()


@pytest.mark.parametrize("pieces", [2, 3])
def test_split_pieces_are_one_file(tmp_path: Path, pieces: int) -> None:
    config, tensors = made("m32")
    checkpoints.write_split(tmp_path, config, tensors, pieces=pieces)
    parts = sorted(tmp_path.glob("gptq_model-4bit-128g.safetensors*"))
    assert [part.name[-2:] for part in parts] == [f"{number:02d}" for number in range(pieces)]
    sizes = [part.stat().st_size for part in parts]
    assert len(set(sizes[:-1])) == 1
    assert 0 < sizes[-1] < sizes[0]
    assert_equal(load_safetensors(b"".join(part.read_bytes() for part in parts)), tensors)


def load_rank(path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Read one of our own rank files as the training framework would: with its module in place."""
    module = types.ModuleType("megatron.core.enums")
    module.ModelType = ModelType  # type: ignore[attr-defined]
    for name in ("megatron", "megatron.core"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "megatron.core.enums", module)
    return torch.load(path, map_location="cpu", weights_only=False)  # type: ignore[no-any-return]


def hf_from_megatron(directory: Path, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Tensors:
    """The HF tensors of partitions, by the steps of the publishers' tools: merge the ranks, number the layers, cut.

    Written for this test from docs/yuan-checkpoints.md, and shares no code with the writer.
    """
    iteration = int((directory / "latest_checkpointed_iteration.txt").read_text())
    ranks: dict[tuple[int, int], dict[str, Any]] = {}
    for path in sorted((directory / f"iter_{iteration:07d}").iterdir()):
        tp, _, pp = path.name.removeprefix("mp_rank_").partition("_")
        ranks[int(tp), int(pp or 0)] = load_rank(path / "model_optim_rng.pt", monkeypatch)
    args: Namespace = ranks[0, 0]["args"]
    tp_size, pp_size = args.tensor_model_parallel_size, args.pipeline_model_parallel_size
    assert len(ranks) == tp_size * pp_size
    hf: Tensors = {}

    def across(stage: int, *keys: str) -> list[torch.Tensor]:
        found = []
        for rank in range(tp_size):
            value = ranks[rank, stage]["model"]
            for key in keys:
                value = value[key]
            found.append(value)
        return found

    hf["model.embed_tokens.weight"] = torch.cat(across(0, "language_model", "embedding", "word_embeddings", "weight"))
    last = pp_size - 1
    hf["model.norm.weight"] = across(last, "language_model", "encoder", "final_layernorm.weight")[0]
    if args.untie_embeddings_and_output_weights:
        hf["lm_head.weight"] = torch.cat(across(last, "language_model", "output_layer", "weight"))
    elif pp_size > 1:
        hf["lm_head.weight"] = torch.cat(across(last, "word_embeddings_for_head", "weight"))
    else:
        hf["lm_head.weight"] = hf["model.embed_tokens.weight"]
    hidden, experts = args.hidden_size, args.num_experts
    for index in range(args.num_layers):
        stage = next(s for s in range(pp_size) if index < sum(args.pipeline_blocks[: s + 1]))
        local = f"layers.{index - sum(args.pipeline_blocks[:stage])}."
        out = f"model.layers.{index}."

        def parts(name: str, stage: int = stage, local: str = local) -> list[torch.Tensor]:
            return across(stage, "language_model", "encoder", local + name)

        for name in ("input_layernorm.weight", "post_attention_layernorm.weight"):
            hf[out + name] = parts(name)[0]
        for name in ("conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias", "output_layernorm.weight"):
            copies = parts(f"self_attention.lf_gate.{name}")
            assert all(torch.equal(copy, copies[0]) for copy in copies)
            hf[f"{out}self_attn.lf_gate.{name}"] = copies[0]
        q, k = torch.cat(parts("self_attention.get_query_key.weight")).chunk(2)
        hf |= {f"{out}self_attn.q_proj.weight": q, f"{out}self_attn.k_proj.weight": k}
        hf[f"{out}self_attn.v_proj.weight"] = torch.cat(parts("self_attention.get_value.weight"))
        hf[f"{out}self_attn.o_proj.weight"] = torch.cat(parts("self_attention.dense.weight"), dim=1)
        if experts is None:
            halves = [part.chunk(2) for part in parts("mlp.dense_h_to_4h.weight")]
            hf[f"{out}mlp.up_proj.weight"] = torch.cat([half[0] for half in halves])
            hf[f"{out}mlp.gate_proj.weight"] = torch.cat([half[1] for half in halves])
            hf[f"{out}mlp.down_proj.weight"] = torch.cat(parts("mlp.dense_4h_to_h.weight"), dim=1)
            continue
        router = torch.cat(parts("mlp.router.attention_router.query_key_value.weight"))
        for number, name in enumerate(("query", "key", "value")):
            hf[f"{out}mlp.gate.{name}.weight"] = router[number * experts : (number + 1) * experts]
        first = [part.view(experts, hidden, -1).chunk(2, dim=2) for part in parts("mlp.experts.weight1")]
        second = [part.view(experts, -1, hidden) for part in parts("mlp.experts.weight2")]
        for expert in range(experts):
            both = [half[0][expert] for half in first] + [half[1][expert] for half in first]
            hf[f"{out}mlp.experts.{expert}.w1.weight"] = torch.cat(both, dim=1).t()
            hf[f"{out}mlp.experts.{expert}.w2.weight"] = torch.cat([part[expert] for part in second]).t()
    return hf


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 1), (1, 2), (2, 2), (4, 4)])
def test_megatron(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, tp: int, pp: int) -> None:
    config, tensors = made(name)
    checkpoints.write_megatron(tmp_path, config, tensors, tp=tp, pp=pp)
    assert_equal(hf_from_megatron(tmp_path, config, monkeypatch), tensors)


def test_megatron_with_unequal_stages_and_an_own_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, tensors = made("dense", tie_word_embeddings=False)
    assert not torch.equal(tensors["lm_head.weight"], tensors["model.embed_tokens.weight"])
    checkpoints.write_megatron(tmp_path, config, tensors, tp=2, pp=3, blocks=(1, 2, 1))
    assert_equal(hf_from_megatron(tmp_path, config, monkeypatch), tensors)


def test_megatron_files_hold_what_real_ones_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, tensors = made("m32")
    checkpoints.write_megatron(tmp_path, config, tensors, tp=2, pp=2)
    path = tmp_path / "iter_0063578" / "mp_rank_01_001" / "model_optim_rng.pt"
    with zipfile.ZipFile(path) as archive:
        pickle = archive.read(next(name for name in archive.namelist() if name.endswith("data.pkl")))
    operations = [(operation.name, argument) for operation, argument, _ in pickletools.genops(pickle)]
    called = {argument for name, argument in operations if name == "GLOBAL"}
    assert {"argparse Namespace", "megatron.core.enums ModelType", "torch bfloat16"} <= called
    assert "__builtin__ getattr" not in called
    assert "cuda:0" in {argument for name, argument in operations if name == "BINUNICODE"}
    with pytest.raises(Exception, match="Weights only load failed"):
        torch.load(path, weights_only=True, map_location="cpu")
    content = load_rank(path, monkeypatch)
    assert content["args"].rotary_percent == 0.5
    assert content["args"].kv_channels == 64
    assert set(content["model"]) == {"language_model", "word_embeddings_for_head"}
    assert set(content["model"]["language_model"]) == {"encoder"}


def test_wrong_readings_of_megatron_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Halves of a rank's part instead of the whole, columns instead of the view by expert: right shapes, wrong contents."""
    config, tensors = made("m32")
    checkpoints.write_megatron(tmp_path, config, tensors, tp=2, pp=1)
    root = tmp_path / "iter_0063578"
    encoders = [
        load_rank(root / f"mp_rank_0{rank}" / "model_optim_rng.pt", monkeypatch)["model"]["language_model"]["encoder"]
        for rank in range(2)
    ]
    by_rank = [part["layers.0.self_attention.get_query_key.weight"].chunk(2) for part in encoders]
    wrong_q = torch.cat([halves[0] for halves in by_rank])
    assert wrong_q.shape == tensors["model.layers.0.self_attn.q_proj.weight"].shape
    assert not torch.equal(wrong_q, tensors["model.layers.0.self_attn.q_proj.weight"])
    columns = torch.cat([part["layers.0.mlp.experts.weight1"] for part in encoders], dim=1)
    w1 = tensors["model.layers.0.mlp.experts.0.w1.weight"]
    assert columns[:, : w1.shape[0]].t().shape == w1.shape
    assert not torch.equal(columns[:, : w1.shape[0]].t(), w1)


@pytest.mark.parametrize(
    ("changes", "arguments", "message"),
    [
        ({}, {"tp": 3}, r"4 \(attention heads\) cannot be divided among 3"),
        ({}, {"pp": 3}, "4 layers cannot be divided equally among 3 stages"),
        ({}, {"pp": 2, "blocks": (1, 2)}, r"must have 4 layers together, blocks says \[1, 2\]"),
        ({"tie_word_embeddings": False}, {}, None),
    ],
)
def test_megatron_refuses(
    tmp_path: Path, changes: dict[str, Any], arguments: dict[str, Any], message: str | None
) -> None:
    config, tensors = made("dense", **changes)
    if message is None:
        config, message = {**config, "tie_word_embeddings": True}, "lm_head.weight differs"
    with pytest.raises(ValueError, match=message):
        checkpoints.write_megatron(tmp_path, config, tensors, **arguments)
    assert list(tmp_path.iterdir()) == []


def test_random_tensors_depend_on_name_and_seed_only() -> None:
    small, large = configs.get("m32", num_hidden_layers=2), configs.get("m32")
    few, many = checkpoints.make_tensors(small, seed=1), checkpoints.RandomTensors(large, seed=1)
    assert all(torch.equal(tensor, many[name]) for name, tensor in few.items())
    name = "model.layers.0.self_attn.q_proj.weight"
    assert not torch.equal(few[name], checkpoints.RandomTensors(small, seed=2)[name])
    assert len(many) == len(tensor_shapes(large))


@pytest.mark.parametrize("layout", ["hf-safetensors", "hf-bin", "split", "megatron"])
def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], layout: str) -> None:
    arguments = [str(tmp_path / "out"), "--layout", layout, "--config", "m32", "--seed", "4", "--dtype", "float32"]
    assert checkpoints.main([*arguments, "--set", "num_hidden_layers=2", "--set", "moe_config.moe_num_experts=4"]) == 0
    assert f"{layout}, " in capsys.readouterr().out
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["num_hidden_layers"], config["moe_config"]["moe_num_experts"]) == (2, 4)
    if layout.startswith("hf"):
        YuanReference(*checkpoints.read_hf(tmp_path / "out")).logits([1, 2])


def test_command_line_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    for arguments, message in (
        ([str(tmp_path)], "is not empty: name a new directory"),
        ([str(tmp_path / "a"), "--set", "hidden_size"], "--set wants KEY=JSON"),
        ([str(tmp_path / "b"), "--set", "hidden_size=many"], "--set hidden_size wants a JSON value"),
        ([str(tmp_path / "c"), "--layout", "megatron", "--tp", "3"], "cannot be divided among 3"),
    ):
        assert checkpoints.main(arguments) == 1
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1


def test_code_beside_the_weights_must_not_run(tmp_path: Path) -> None:
    config, tensors = made("dense")
    checkpoints.write_hf_safetensors(tmp_path, config, tensors)
    for name in ("configuration_yuan.py", "yuan_hf_model.py"):
        with pytest.raises(RuntimeError, match="executed"):
            exec((tmp_path / name).read_text())
