"""The Yuan2.0 that AWQ calibrates on computes what the reference does, and what AWQ smooths in it does not change its answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import quantise_yuan
from yuan_reference import checkpoints, configs
from yuan_reference.model import YuanReference


def written(directory: Path, name: str) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    config = configs.get(name)
    tensors = checkpoints.make_tensors(config, seed=11, dtype=torch.float32)
    checkpoints.write_hf_safetensors(directory, config, tensors)
    return config, tensors


@pytest.mark.parametrize("name", ["dense", "m32"])
def test_its_logits_are_the_references(tmp_path: Path, name: str) -> None:
    config, tensors = written(tmp_path, name)
    model = quantise_yuan.load(tmp_path)
    ids = torch.randint(3, 200, (2, 37), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        ours = model(ids).logits
    for row in range(2):
        expected = YuanReference(config, tensors).logits(ids[row])
        assert (ours[row] - expected).abs().max() <= 1e-4 * expected.abs().max()


@pytest.mark.parametrize(
    ("name", "smooth", "balance"),
    [
        ("m32", "self_attn.lf_gate.output_layernorm", ["self_attn.q_proj", "self_attn.k_proj"]),
        ("m32", "self_attn.v_proj", ["self_attn.o_proj"]),
        ("m32", "mlp.experts.0.w1", ["mlp.experts.0.w2"]),
        ("dense", "mlp.gate_proj", ["mlp.down_proj"]),
        ("dense", "post_attention_layernorm", ["mlp.gate_proj", "mlp.up_proj"]),
    ],
)
def test_what_is_smoothed_undoes_itself(tmp_path: Path, name: str, smooth: str, balance: list[str]) -> None:
    written(tmp_path, name)
    model = quantise_yuan.load(tmp_path)
    ids = torch.randint(3, 200, (1, 23), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        before = model(ids).logits
        layer = model.model.layers[0]
        parts = [layer.get_submodule(part) for part in balance]
        scales = torch.rand(parts[0].weight.shape[1], generator=torch.Generator().manual_seed(3)) + 0.5
        for part in parts:
            part.weight.mul_(scales)
        # As AWQModifier does: a vector as a whole, of a taller matrix the last rows.
        weight = layer.get_submodule(smooth).weight
        if weight.ndim == 1:
            weight.div_(scales)
        else:
            weight[-len(scales) :].div_(scales[:, None])
        after = model(ids).logits
        assert (after - before).abs().max() <= 1e-4 * before.abs().max()
        # The same scale on the wrong side does not.
        weight.mul_(2)
        assert (model(ids).logits - before).abs().max() > 1e-2 * before.abs().max()
