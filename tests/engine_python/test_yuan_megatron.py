"""Megatron partitions of Yuan become the Hugging Face layout, bit for bit; what does not fit is one sentence."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import yuan_partitions
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.checkpoint_errors import CheckpointError
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.tensor_source import TensorSource, pieces
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.yuan_architecture import check
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.yuan_megatron import MegatronYuanSource
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.yuan_source import YuanSource
from yuan_reference import checkpoints, configs, megatron

DTYPES = {"BF16": torch.bfloat16, "F32": torch.float32, "F16": torch.float16}


def read_all(source: TensorSource, piece_bytes: int) -> dict[str, torch.Tensor]:
    """Every tensor of a source, read in pieces."""
    found = {}
    for spec in source.specs():
        data = bytearray().join(bytes(piece) for piece in pieces(source, spec, piece_bytes))
        found[spec.name] = torch.frombuffer(data, dtype=DTYPES[spec.dtype]).reshape(spec.shape)
    return found


@pytest.mark.parametrize("piece_bytes", [1 << 20, 1000])
@pytest.mark.parametrize(
    ("ranks", "blocks"), [((1, 1), None), ((2, 1), None), ((1, 2), None), ((4, 2), None), ((2, 3), (1, 2, 1))]
)
@pytest.mark.parametrize("name", ["dense", "m32"])
def test_equal_to_the_hugging_face_layout(
    tmp_path: Path, name: str, ranks: tuple[int, int], blocks: Any, piece_bytes: int
) -> None:
    config = configs.get(name)
    tensors = checkpoints.make_tensors(config, seed=7, dtype=torch.bfloat16)
    checkpoints.write_megatron(tmp_path, config, tensors, tp=ranks[0], pp=ranks[1], blocks=blocks)
    source = YuanSource(MegatronYuanSource(tmp_path, config), config)
    found = read_all(source, piece_bytes)
    source.close()
    assert found.keys() == tensors.keys()
    for tensor_name, tensor in tensors.items():
        assert torch.equal(found[tensor_name], tensor), tensor_name


def test_untied_embeddings(tmp_path: Path) -> None:
    config = configs.get("dense", tie_word_embeddings=False)
    tensors = checkpoints.make_tensors(config, seed=7, dtype=torch.float32)
    assert not torch.equal(tensors["lm_head.weight"], tensors["model.embed_tokens.weight"])
    checkpoints.write_megatron(tmp_path, config, tensors, tp=2, pp=2)
    source = MegatronYuanSource(tmp_path, config)
    check(config, source.specs())
    assert torch.equal(read_all(source, 4096)["lm_head.weight"], tensors["lm_head.weight"])
    source.close()
    with pytest.raises(CheckpointError, match=r"hold an output_layer, config.json says tie_word_embeddings"):
        MegatronYuanSource(tmp_path, {**config, "tie_word_embeddings": True})


@pytest.fixture
def written(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    config = configs.get("m32")
    checkpoints.write_megatron(tmp_path, config, checkpoints.make_tensors(config, seed=7), tp=2, pp=2)
    return tmp_path / "iter_0063578", config


def another_iteration(root: Path) -> None:
    config = configs.get("m32")
    other = root.parent / "other"
    checkpoints.write_megatron(other, config, checkpoints.make_tensors(config, seed=7), tp=2, pp=2, iteration=5)
    shutil.copyfile(
        other / "iter_0000005/mp_rank_01_001/model_optim_rng.pt", root / "mp_rank_01_001/model_optim_rng.pt"
    )


def another_model(root: Path) -> None:
    config = configs.get("m32")
    other = root.parent / "other"
    checkpoints.write_megatron(other, config, checkpoints.make_tensors(config, seed=8), tp=2, pp=2)
    shutil.copyfile(
        other / "iter_0063578/mp_rank_01_001/model_optim_rng.pt", root / "mp_rank_01_001/model_optim_rng.pt"
    )


def load(path: Path) -> dict[str, Any]:
    """A partition without its arguments, whose class is not installed here."""
    with megatron._model_type_module():
        content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=False)
    content.pop("args")
    return content


def changed(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    """A partition that is saved again after a change."""

    def apply(root: Path) -> None:
        path = root / "mp_rank_00_001/model_optim_rng.pt"
        content = load(path)
        change(content)
        torch.save(content, path)

    return apply


def of_encoder(key: str, value: Any) -> Callable[[Path], None]:
    return changed(lambda content: content["model"]["language_model"]["encoder"].update({key: value}))


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (
            lambda root: shutil.rmtree(root / "mp_rank_01_000"),
            r"lacks the partition of tensor-parallel rank 1, stage 0",
        ),
        (
            lambda root: shutil.rmtree(root / "mp_rank_01_001"),
            r"lacks the partition of tensor-parallel rank 1, stage 1",
        ),
        (
            lambda root: [shutil.rmtree(root / f"mp_rank_01_00{stage}") for stage in (0, 1)],
            r"was saved with tensor_model_parallel_size 2, there are partitions of 1",
        ),
        (
            lambda root: [shutil.rmtree(root / f"mp_rank_0{rank}_001") for rank in (0, 1)],
            r"was saved with pipeline_model_parallel_size 2, there are partitions of 1",
        ),
        (
            lambda root: shutil.copytree(root / "mp_rank_01_000", root / "mp_rank_01"),
            r"are both tensor-parallel rank 1, stage 0",
        ),
        (lambda root: [path.unlink() for path in (root / "mp_rank_00_000").iterdir()], r"holds no model_optim_rng.pt"),
        (another_iteration, r"of several iterations \(.* of 63578, .* of 5\)"),
        (another_model, r"The ranks 0 and 1 of stage 1 differ in .*norm"),
        (lambda root: (root / "mp_rank_00_000/model_optim_rng.pt").write_bytes(b"PK"), r"truncated or something else"),
        (
            lambda root: (root.parent / "latest_checkpointed_iteration.txt").write_text("12"),
            r"names iter_0000012, which is not there",
        ),
        (
            lambda root: (root.parent / "latest_checkpointed_iteration.txt").write_text("../x"),
            r"expected the number of an iteration",
        ),
        (changed(lambda content: content.pop("model")), r"holds no weights under 'model'"),
        (of_encoder("layers.7.input_layernorm.weight", torch.ones(128)), r"the layers \[0, 1, 7\]"),
        (
            of_encoder("layers.0.self_attention.get_value.weight", torch.ones(3, 128)),
            r"shape \[3, 128\]: expected \[128, 128\]",
        ),
        (
            of_encoder("layers.0.self_attention.get_value.weight", None),
            r"lacks the tensor encoder.layers.0.self_attention.get_value",
        ),
        (of_encoder("layers.0.mlp.experts.weight1", torch.ones(1024, 128).t()), r"does not lie in one piece"),
        (
            of_encoder("layers.0.mlp.experts.weight1", torch.ones(128, 1024, dtype=torch.float16)),
            r"have the types F16, F32",
        ),
    ],
)
def test_what_does_not_fit(written: tuple[Path, dict[str, Any]], damage: Callable[[Path], Any], sentence: str) -> None:
    root, config = written
    damage(root)
    with pytest.raises(CheckpointError, match=sentence):
        MegatronYuanSource(root.parent, config)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"num_hidden_layers": 5}, r"trained with num_layers 4, config.json says 5"),
        (
            {"num_attention_heads": 1, "attention_projection_size": 255},
            r"2 tensor-parallel ranks: expected .* 1 attention heads",
        ),
        ({"vocab_size": 511}, r"divides the 511 rows of the vocabulary"),
        ({"vocab_size": 1024}, r"word_embeddings.weight with the shape \[256, 128\]: expected \[512, 128\]"),
        ({"architectures": ["LlamaForCausalLM"]}, r"expected \['YuanForCausalLM'\]"),
        ({"moe_config": {**configs.M32["moe_config"], "moe_num_experts": 16}}, r"expected \[24, 128\]"),
    ],
)
def test_another_config(written: tuple[Path, dict[str, Any]], change: dict[str, Any], sentence: str) -> None:
    root, config = written
    with pytest.raises(CheckpointError, match=sentence):
        MegatronYuanSource(root.parent, {**config, **change})


def test_the_directory_of_the_ranks_itself(written: tuple[Path, dict[str, Any]]) -> None:
    root, config = written
    assert yuan_partitions.is_megatron(root)
    assert yuan_partitions.is_megatron(root.parent)
    (root.parent / "latest_checkpointed_iteration.txt").unlink()
    for directory in (root, root.parent):
        MegatronYuanSource(directory, config).close()
    (root.parent / "iter_0000001").mkdir()
    with pytest.raises(CheckpointError, match="and 2 iterations"):
        MegatronYuanSource(root.parent, config)


def test_a_partition_that_would_execute_code(written: tuple[Path, dict[str, Any]]) -> None:
    root, config = written
    marker = root / "ran"
    path = root / "mp_rank_00_000/model_optim_rng.pt"
    content = load(path)
    content["evil"] = Evil(str(marker))
    torch.save(content, path)
    with pytest.raises(CheckpointError, match=r"would run (posix|os).system.*nothing of it was run"):
        MegatronYuanSource(root.parent, config)
    assert not marker.exists()


class Evil:
    def __init__(self, marker: str) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        import os  # noqa: PLC0415

        return os.system, (f"touch {json.dumps(self.marker)}",)


def test_several_threads_may_read(tmp_path: Path) -> None:
    config = configs.get("m32")
    tensors = checkpoints.make_tensors(config, seed=7, dtype=torch.bfloat16)
    checkpoints.write_megatron(tmp_path, config, tensors, tp=2, pp=1)
    source = MegatronYuanSource(tmp_path, config)
    # Experts are transposed views, of which a file keeps one in order.
    specs = [spec for spec in source.specs() if ".experts." in spec.name] * 3

    def right(number: int) -> bool:
        spec = specs[number]
        first = number % (spec.shape[0] - 8)
        data = bytearray(source.read(spec.name, first, 8))
        found = torch.frombuffer(data, dtype=torch.bfloat16).reshape(8, spec.shape[1])
        return torch.equal(found, tensors[spec.name][first : first + 8])

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(right, range(len(specs))))
    finally:
        sys.setswitchinterval(interval)
    source.close()
