"""Where tensors go: queries and keys, experts' halves, the filter's taps; and that nothing is left out or left over."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from plumbline_yuan import loading
from plumbline_yuan.config import YuanSizes
from torch import Tensor, nn
from yuan_reference import checkpoints, configs, model


@pytest.mark.parametrize("heads", [4, 3])
def test_queries_and_keys_are_the_reference_s(heads: int) -> None:
    head, hidden = 8, 16
    q_proj, k_proj = torch.randn(heads * head, hidden), torch.randn(heads * head, hidden)
    u = torch.randn(5, hidden)
    query, key = loading.regroup_query_key(q_proj, k_proj, heads, 0)
    expected = model.split_query_key(torch.cat((u @ q_proj.t(), u @ k_proj.t()), dim=-1), heads)
    torch.testing.assert_close((u @ query.t()).reshape(5, heads, head), expected[0])
    torch.testing.assert_close((u @ key.t()).reshape(5, heads, head), expected[1])


@pytest.mark.parametrize("parts", [2, 4])
def test_a_process_s_rows_are_whole_heads(parts: int) -> None:
    heads, head, hidden = 4, 8, 6
    whole = torch.randn(2 * heads * head, hidden)
    query, key = loading.regroup_query_key(whole[: heads * head], whole[heads * head :], heads, 0)
    both = whole.reshape(heads, 2, head, hidden)
    for rank in range(parts):
        mine = slice(rank * heads // parts, (rank + 1) * heads // parts)
        size = heads * head // parts
        assert torch.equal(query[rank * size : (rank + 1) * size], both[mine, 0].reshape(size, hidden))
        assert torch.equal(key[rank * size : (rank + 1) * size], both[mine, 1].reshape(size, hidden))


def test_packed_columns_move_with_their_heads() -> None:
    # AWQ and GPTQ have the outputs last, AWQ eight of them in a word.
    heads, head = 4, 16
    order = torch.arange(2 * heads * head).reshape(1, -1)
    query, _ = loading.regroup_query_key(order[:, : heads * head], order[:, heads * head :], heads, 1)
    words = order.reshape(1, -1, 8)[..., 0] // 8
    packed, _ = loading.regroup_query_key(words[:, : heads * head // 8], words[:, heads * head // 8 :], heads, 1)
    assert torch.equal(query.reshape(1, -1, 8)[..., 0] // 8, packed)


class Recorder(nn.Module):
    """A model of one process: the parameters that vLLM's layers would have, filled by the loaders' rules."""

    def __init__(self, sizes: YuanSizes, merged: bool = True) -> None:
        super().__init__()
        self.sizes = sizes
        hidden, projection, width = sizes.hidden, sizes.projection, sizes.width
        shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (sizes.vocab, hidden),
            "model.norm.weight": (hidden,),
        }
        if not sizes.tied:
            shapes["lm_head.weight"] = (sizes.vocab, hidden)
        for layer in range(sizes.layers):
            own: dict[str, tuple[int, ...]] = {
                "input_layernorm.weight": (hidden,),
                "post_attention_layernorm.weight": (hidden,),
                "self_attn.in_proj.weight": (hidden + (projection if merged else 0), hidden),
                "self_attn.qk_proj.weight": (2 * projection, hidden),
                "self_attn.o_proj.weight": (hidden, projection),
                "self_attn.local_filter.conv1_bias": (hidden // 2,),
                "self_attn.local_filter.conv2_bias": (hidden,),
                "self_attn.local_filter.norm_weight": (hidden,),
                "self_attn.local_filter.conv2.weight": (2 * hidden, hidden // 2),
            }
            if sizes.experts:
                count = sizes.experts[layer]
                own["mlp.gate.weight"] = (3 * count, hidden)
                own["mlp.experts.routed_experts.w13_weight"] = (count, 2 * width, hidden)
                own["mlp.experts.routed_experts.w2_weight"] = (count, hidden, width)
            else:
                own["mlp.up_gate_proj.weight"] = (2 * width, hidden)
                own["mlp.down_proj.weight"] = (hidden, width)
            shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in own.items()}
        for name, shape in shapes.items():
            self._add(name, shape)

    def _add(self, name: str, shape: tuple[int, ...]) -> None:
        *path, last = name.split(".")
        module: nn.Module = self
        for part in path:
            if not hasattr(module, part):
                module.add_module(part, nn.Module())
            module = getattr(module, part)
        parameter = nn.Parameter(torch.full(shape, float("nan")), requires_grad=False)
        if re.search(r"in_proj|qk_proj|up_gate_proj|mlp\.gate\.|routed_experts", name):
            parameter.weight_loader = self._load  # type: ignore[attr-defined]
        setattr(module, last, parameter)

    def _load(
        self, parameter: Any, tensor: Tensor, name: Any = None, shard_id: Any = None, expert_id: Any = None
    ) -> None:
        if expert_id is not None:
            rows = self.sizes.width
            place = parameter.data[expert_id]
            place = place if shard_id == "w2" else place[:rows] if shard_id == "w1" else place[rows:]
        else:
            # Shards follow each other; all but the last have the size of the first.
            place = parameter.data[name * len(tensor) :][: len(tensor)] if name != 2 else parameter.data[-len(tensor) :]
        assert place.shape == tensor.shape
        place.copy_(tensor)


def made(name: str, **changes: Any) -> tuple[YuanSizes, dict[str, Tensor]]:
    config = configs.get(name, **changes)
    return YuanSizes.of(config), checkpoints.make_tensors(config, seed=3)


@pytest.mark.parametrize("name", ["dense", "m32"])
@pytest.mark.parametrize("leave_out", ["", "lm_head.weight", "model.embed_tokens.weight"])
def test_everything_is_filled_with_or_without_the_tied_head(name: str, leave_out: str) -> None:
    sizes, tensors = made(name)
    embedding = tensors["model.embed_tokens.weight"]
    tensors.pop(leave_out, None)
    target = Recorder(sizes)
    loading.load(target, sizes, tensors.items(), merged_values=True)
    for parameter_name, parameter in target.named_parameters():
        assert not parameter.isnan().any(), parameter_name
    assert torch.equal(target.get_parameter("model.embed_tokens.weight"), embedding)
    layer = "model.layers.1.self_attn."
    taps = target.get_parameter(f"{layer}in_proj.weight")
    half = sizes.hidden // 2
    assert torch.equal(taps[:half], tensors[f"{layer}lf_gate.conv1.weight"][:, :, 0, 0])
    assert torch.equal(taps[half : 2 * half], tensors[f"{layer}lf_gate.conv1.weight"][:, :, 1, 0])
    assert torch.equal(taps[2 * half :], tensors[f"{layer}v_proj.weight"])


def test_the_linear_branch_of_the_dense_mlp_is_the_second_half() -> None:
    sizes, tensors = made("dense")
    target = Recorder(sizes)
    loading.load(target, sizes, tensors.items(), merged_values=True)
    both = target.get_parameter("model.layers.0.mlp.up_gate_proj.weight")
    assert torch.equal(both[: sizes.width], tensors["model.layers.0.mlp.up_proj.weight"])
    assert torch.equal(both[sizes.width :], tensors["model.layers.0.mlp.gate_proj.weight"])


@pytest.mark.parametrize(
    "name",
    [
        "model.norm.weight",
        "model.layers.0.self_attn.lf_gate.conv2.bias",
        "model.layers.2.self_attn.v_proj.weight",
        "model.layers.3.mlp.gate.key.weight",
        "model.layers.1.mlp.experts.5.w2.weight",
        "model.layers.1.mlp.experts.0.w1.weight",
    ],
)
def test_a_missing_tensor_is_one_sentence(name: str) -> None:
    sizes, tensors = made("m32")
    del tensors[name]
    with pytest.raises(
        ValueError, match=r"^The checkpoint leaves 1 of the model's parameters unfilled, the first is .*\.$"
    ):
        loading.load(Recorder(sizes), sizes, tensors.items(), merged_values=True)


def test_half_of_a_pair_and_both_tied_tensors_missing() -> None:
    sizes, tensors = made("m32")
    with pytest.raises(ValueError, match=r"k_proj\.weight without its other half"):
        loading.load(
            Recorder(sizes),
            sizes,
            [(n, t) for n, t in tensors.items() if n != "model.layers.0.self_attn.q_proj.weight"],
            True,
        )
    with pytest.raises(ValueError, match=r"the first is model\.embed_tokens\.weight"):
        loading.load(
            Recorder(sizes), sizes, [(n, t) for n, t in tensors.items() if "embed" not in n and "head" not in n], True
        )


def test_an_untied_head_must_be_there() -> None:
    sizes, tensors = made("m32", tie_word_embeddings=False)
    del tensors["lm_head.weight"]
    with pytest.raises(ValueError, match=r"the first is lm_head\.weight"):
        loading.load(Recorder(sizes), sizes, tensors.items(), merged_values=True)


def test_tied_tensors_that_differ() -> None:
    sizes, tensors = made("dense")
    tensors["lm_head.weight"] = tensors["lm_head.weight"] + 1
    with pytest.raises(
        ValueError, match=r"ties the embeddings, but lm_head.weight differs from model.embed_tokens.weight"
    ):
        loading.load(Recorder(sizes), sizes, tensors.items(), merged_values=True)


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.4.input_layernorm.weight",
        "model.layers.0.self_attn.get_query_key.weight",
        "model.layers.0.mlp.up_proj.weight",
        "model.layers.0.mlp.experts.8.w1.weight",
        "model.layers.0.mlp.gate.bias.weight",
        "model.layers.0.self_attn.lf_gate.conv3.weight",
        "transformer.h.0.weight",
    ],
)
def test_a_tensor_without_a_place_is_one_sentence(name: str) -> None:
    sizes, tensors = made("m32")
    with pytest.raises(
        ValueError, match=f"^The checkpoint has a tensor {re.escape(name)} that has no place in this Yuan model.$"
    ):
        loading.load(Recorder(sizes), sizes, {**tensors, name: torch.zeros(4, 4)}.items(), merged_values=True)


@pytest.mark.parametrize(
    "name", ["model.layers.0.self_attn.q_proj.weight", "model.layers.1.mlp.experts.3.w1.weight", "model.norm.weight"]
)
def test_a_wrong_shape_is_one_sentence(name: str) -> None:
    sizes, tensors = made("m32")
    tensors[name] = tensors[name][:-1]
    with pytest.raises(ValueError, match=f"^{re.escape(name)} has the shape .*, config.json says .*$"):
        loading.load(Recorder(sizes), sizes, tensors.items(), merged_values=True)


def test_frequencies_in_old_files_are_ignored() -> None:
    sizes, tensors = made("dense")
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(16)
    loading.load(Recorder(sizes), sizes, tensors.items(), merged_values=True)


def test_one_scale_for_a_tensor_cannot_follow_queries_and_keys() -> None:
    sizes, _ = made("dense")
    place = loading.Placement(sizes, merged_values=False)
    with pytest.raises(ValueError, match="one per row"):
        list(place.pieces([("model.layers.0.self_attn.q_proj.weight_scale", torch.ones(1))]))


def test_an_order_of_groups_without_a_parameter_must_be_the_usual_one() -> None:
    sizes, tensors = made("m32")
    name = "model.layers.0.mlp.experts.0.w2.g_idx"
    usual = torch.arange(sizes.width) // 32
    loading.load(Recorder(sizes), sizes, {**tensors, name: usual}.items(), merged_values=True)
    with pytest.raises(ValueError, match="its quantisation is not the one that"):
        loading.load(Recorder(sizes), sizes, {**tensors, name: usual.flip(0)}.items(), merged_values=True)


def test_figures_of_the_cache_are_vllm_s_own() -> None:
    sizes, _ = made("m32")
    names = [f"model.layers.0.self_attn.attn.{name}" for name in ("k_scale", "k_zero_point", "q_scale")]
    assert loading.expected(sizes, [*names, "model.norm.weight"], True) == {"model.norm.weight": {None}}
