"""The reference of Yuan2.0: its two paths agree, its identities hold, and each likely mistake changes the answer."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional
from yuan_reference import configs, model
from yuan_reference.checkpoints import make_tensors
from yuan_reference.model import YuanReference

NAMES = ("dense", "m32")
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-12}


def tokens(count: int, seed: int = 0) -> list[int]:
    return torch.randint(0, configs.VOCAB_SIZE, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def reference(name: str, dtype: torch.dtype = torch.float64) -> YuanReference:
    config = configs.get(name)
    return YuanReference(config, make_tensors(config, seed=1), dtype)


def stepwise(model_: YuanReference, ids: list[int]) -> torch.Tensor:
    state = model_.start()
    return torch.stack([model_.decode(state, token) for token in ids])


def difference(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).abs().max())


def filter_weights(hidden: int = 16) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    return {
        "conv1.weight": draw(hidden // 2, hidden, 2, 1),
        "conv1.bias": draw(hidden // 2),
        "conv2.weight": draw(hidden, hidden // 2, 2, 1),
        "conv2.bias": draw(hidden),
        "output_layernorm.weight": draw(hidden),
    }


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("length", [1, 2, 3, 17, 300])
@pytest.mark.parametrize("name", NAMES)
def test_step_by_step_gives_what_the_whole_sequence_gives(name: str, length: int, dtype: torch.dtype) -> None:
    reference_ = reference(name, dtype)
    ids = tokens(length)
    assert difference(reference_.logits(ids), stepwise(reference_, ids)) < TOLERANCE[dtype]


@pytest.mark.parametrize("name", NAMES)
def test_float32_is_close_to_float64(name: str) -> None:
    ids = tokens(64)
    exact = reference(name).logits(ids)
    assert difference(reference(name, torch.float32).logits(ids).double(), exact) / float(exact.abs().max()) < 1e-5


@pytest.mark.parametrize("name", NAMES)
def test_no_token_sees_a_later_one(name: str) -> None:
    reference_ = reference(name)
    ids = tokens(20)
    assert difference(reference_.logits(ids)[:12], reference_.logits([*ids[:12], *tokens(8, seed=9)])[:12]) < 1e-12


@pytest.mark.parametrize("name", NAMES)
def test_the_random_models_say_something(name: str) -> None:
    """Weights under which the logits do not differ among tokens and positions would compare equal to anything."""
    logits = reference(name).logits(tokens(50))
    assert 0.5 < float(logits.std(dim=0).mean()) < 10
    assert 0.5 < float(logits.std(dim=1).mean()) < 10
    assert len(set(logits.argmax(dim=1).tolist())) > 12


def test_local_filter_as_convolution_is_the_recurrence() -> None:
    weights = filter_weights()
    x = torch.randn(9, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    x_before, y1_before = torch.zeros(16, dtype=torch.float64), torch.zeros(8, dtype=torch.float64)
    steps = []
    for row in x:
        u, y1_before = model.local_filter_step(row, x_before, y1_before, weights)
        x_before = row
        steps.append(u)
    assert difference(model.local_filter(x, weights), torch.stack(steps)) < 1e-12


def test_local_filter_by_hand() -> None:
    """Two channels and one in between, all taps different: the older tap is index 0, and the first y1 before is 0 and not a."""
    weights = {
        "conv1.weight": torch.tensor([[[[2.0], [3.0]], [[5.0], [7.0]]]]),  # [1, 2, 2, 1]: channel, then tap
        "conv1.bias": torch.tensor([11.0]),
        "conv2.weight": torch.tensor([[[[13.0], [17.0]]], [[[19.0], [23.0]]]]),
        "conv2.bias": torch.tensor([29.0, 31.0]),
        "output_layernorm.weight": torch.ones(2),
    }
    x = torch.tensor([[1.0, 2.0], [3.0, -1.0]])
    y1 = [3 * 1 + 7 * 2 + 11, 2 * 1 + 5 * 2 + 3 * 3 + 7 * -1 + 11]
    y2 = [[17 * y1[0] + 29, 23 * y1[0] + 31], [13 * y1[0] + 17 * y1[1] + 29, 19 * y1[0] + 23 * y1[1] + 31]]
    total = torch.tensor(y2) + x
    expected = total / total.pow(2).mean(1, keepdim=True).sqrt()
    assert difference(model.local_filter(x, weights), expected) < 1e-6


def test_the_last_two_inputs_are_memory_enough() -> None:
    """The published code keeps [x[t-2], x[t-1]] instead of x[t-1] and y1[t-1]: the two memories are the same state."""
    weights = filter_weights()
    x = torch.randn(12, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    whole = model.local_filter(x, weights)
    for step in range(2, 12):
        # With two real rows before it, the row's answer does not depend on how the sequence began.
        image = x[step - 2 : step + 1].t().reshape(1, 16, 3, 1)
        first = functional.conv2d(image, weights["conv1.weight"], weights["conv1.bias"])
        second = functional.conv2d(first, weights["conv2.weight"], weights["conv2.bias"])
        u = model.rms_norm(second.reshape(16) + x[step], weights["output_layernorm.weight"], 1e-6)
        assert difference(u, whole[step]) < 1e-12


def test_router_is_a_softmax_over_the_two_largest_logits() -> None:
    logits = torch.randn(500, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    weights, experts = model.choose_experts(logits, 2)
    two = logits.topk(2, dim=1)
    assert torch.equal(experts, two.indices)
    assert difference(weights, torch.softmax(two.values, dim=1)) < 1e-12


def test_router_logits_by_the_formula() -> None:
    generator = torch.Generator().manual_seed(7)
    z = torch.randn(3, 6, dtype=torch.float64, generator=generator)
    q, k, v = (torch.randn(4, 6, dtype=torch.float64, generator=generator) for _ in range(3))
    got = model.router_logits(z, q, k, v)
    for token in range(3):
        queries, keys, values = (matrix @ z[token] for matrix in (q, k, v))
        for i in range(4):
            weights = [math.exp(float(queries[i] * keys[j])) for j in range(4)]
            expected = sum(w * float(value) for w, value in zip(weights, values, strict=True)) / sum(weights)
            assert float(got[token, i]) == pytest.approx(expected, rel=1e-12)


def test_experts_share_the_work() -> None:
    """The random router really chooses: every expert is used, and the first one's share is neither a half nor all of it."""
    config = configs.get("m32")
    tensors = make_tensors(config, seed=1)
    z = torch.randn(1000, config["hidden_size"], generator=torch.Generator().manual_seed(8))
    for layer in range(config["num_hidden_layers"]):
        gate = [tensors[f"model.layers.{layer}.mlp.gate.{name}.weight"] for name in ("query", "key", "value")]
        weights, experts = model.choose_experts(model.router_logits(z, *gate), 2)
        used = torch.bincount(experts.flatten(), minlength=8)
        assert int(used.min()) > 100
        assert 0.52 < float(weights[:, 0].mean()) < 0.95


def test_queries_and_keys_lie_by_head_in_the_stack() -> None:
    heads, head = 4, 3
    stacked = torch.arange(2 * heads * head)
    q, k = model.split_query_key(stacked, heads)
    for index in range(heads):
        assert q[index].tolist() == list(range(2 * index * head, (2 * index + 1) * head))
        assert k[index].tolist() == list(range((2 * index + 1) * head, (2 * index + 2) * head))


def test_rotation_turns_pairs_and_leaves_the_rest() -> None:
    x = torch.randn(5, 2, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(6))
    turned = model.rotate(x, torch.arange(5), rotary=4, base=100.0)
    assert torch.equal(turned[..., 4:], x[..., 4:])
    assert difference(turned[0], x[0]) == 0
    for position in range(5):
        for pair, frequency in enumerate((1.0, 0.1)):  # base ** (-2 * pair / 4)
            angle = position * frequency
            low, high = x[position, :, pair], x[position, :, pair + 2]
            assert difference(turned[position, :, pair], low * math.cos(angle) - high * math.sin(angle)) < 1e-12
            assert difference(turned[position, :, pair + 2], high * math.cos(angle) + low * math.sin(angle)) < 1e-12


def test_how_much_of_a_head_rotates() -> None:
    assert model.Dimensions.of(configs.get("dense")).rotary == 32  # all of it
    assert model.Dimensions.of(configs.get("m32")).rotary == 32  # half of 64
    assert model.Dimensions.of(configs.get("m32", rotary_percent=0.25)).rotary == 16


def wrong_zero_before_the_start(x: torch.Tensor, weight: dict[str, torch.Tensor]) -> torch.Tensor:
    """The local filter with the first convolution's answer to zeros, its bias, where a true zero belongs."""
    hidden = x.shape[1]
    image = functional.pad(x.t().reshape(1, hidden, -1, 1), (0, 0, 2, 0))
    first = functional.conv2d(image, weight["conv1.weight"], weight["conv1.bias"])
    second = functional.conv2d(first, weight["conv2.weight"], weight["conv2.bias"])
    y = second.reshape(hidden, -1).t()
    return model.rms_norm(y + x, weight["output_layernorm.weight"], 1e-6)


def wrong_order_of_taps(x: torch.Tensor, weight: dict[str, torch.Tensor]) -> torch.Tensor:
    return RIGHT["local_filter"](
        x, {name: tensor.flip(2) if tensor.dim() == 4 else tensor for name, tensor in weight.items()}
    )


def wrong_silu_branch(z: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    return RIGHT["dense_mlp"](z, up, gate, down)


def wrong_expert_half(z: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor) -> torch.Tensor:
    return RIGHT["expert_mlp"](z, torch.cat(w1.chunk(2)[::-1]), w2)


def wrong_usual_query_key(stacked: torch.Tensor, heads: int) -> tuple[torch.Tensor, torch.Tensor]:
    q, k = stacked.chunk(2, dim=-1)
    return q.reshape(*q.shape[:-1], heads, -1), k.reshape(*k.shape[:-1], heads, -1)


def wrong_whole_head_rotates(x: torch.Tensor, positions: torch.Tensor, rotary: int, base: float) -> torch.Tensor:
    return RIGHT["rotate"](x, positions, x.shape[-1], base)


def wrong_interleaved_rotation(x: torch.Tensor, positions: torch.Tensor, rotary: int, base: float) -> torch.Tensor:
    order = torch.cat((torch.arange(0, rotary, 2), torch.arange(1, rotary, 2), torch.arange(rotary, x.shape[-1])))
    return RIGHT["rotate"](x[..., order], positions, rotary, base)


def wrong_scaled_router(z: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return RIGHT["router_logits"](z, q * q.shape[0] ** -0.5, k, v)


def wrong_plain_router(z: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return z @ v.t()


def wrong_probabilities(logits: torch.Tensor, top_k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The two largest probabilities as they are, not made to sum to 1."""
    probability, expert = torch.softmax(logits, dim=-1).topk(top_k, dim=-1)
    return probability, expert


RIGHT: dict[str, Callable[..., torch.Tensor]] = {
    name: getattr(model, name) for name in ("local_filter", "dense_mlp", "expert_mlp", "rotate", "router_logits")
}


@pytest.mark.parametrize(
    ("name", "part", "wrong"),
    [
        ("dense", "local_filter", wrong_zero_before_the_start),
        ("m32", "local_filter", wrong_zero_before_the_start),
        ("dense", "local_filter", wrong_order_of_taps),
        ("dense", "dense_mlp", wrong_silu_branch),
        ("m32", "expert_mlp", wrong_expert_half),
        ("dense", "split_query_key", wrong_usual_query_key),
        ("m32", "split_query_key", wrong_usual_query_key),
        ("m32", "rotate", wrong_whole_head_rotates),
        ("dense", "rotate", wrong_interleaved_rotation),
        ("m32", "router_logits", wrong_scaled_router),
        ("m32", "router_logits", wrong_plain_router),
        ("m32", "choose_experts", wrong_probabilities),
    ],
)
def test_each_likely_mistake_is_seen(
    monkeypatch: pytest.MonkeyPatch, name: str, part: str, wrong: Callable[..., torch.Tensor]
) -> None:
    """An implementation with the mistake is more than ten times the required agreement (1e-3) away from the reference."""
    reference_ = reference(name)
    ids = tokens(17)
    right = reference_.logits(ids)
    monkeypatch.setattr(model, part, wrong)
    assert difference(reference_.logits(ids), right) / float(right.abs().max()) > 1e-2


def test_values_after_the_local_filter_are_seen() -> None:
    """V must be made of x, before the filter."""
    reference_ = reference("m32")
    ids = tokens(17)
    right = reference_.logits(ids)
    attention = reference_._attention
    reference_._attention = lambda index, u, x, past, position: attention(index, u, u, past, position)  # type: ignore[method-assign]
    assert difference(reference_.logits(ids), right) / float(right.abs().max()) > 1e-2


def test_greedy_continues_with_the_most_likely_token() -> None:
    reference_ = reference("m32")
    ids = tokens(5)
    for token in reference_.greedy(ids, 6):
        assert token == int(reference_.logits(ids)[-1].argmax())
        ids.append(token)


def test_bad_input_is_named() -> None:
    config = configs.get("dense")
    tensors = make_tensors(config)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    with pytest.raises(ValueError, match=r"1 tensor\(s\) are missing, the first is model.layers.1.mlp.up_proj.weight"):
        YuanReference(config, tensors)
    with pytest.raises(ValueError, match=r"have no place in this model, the first is extra"):
        YuanReference(config, make_tensors(config) | {"extra": torch.zeros(1)})
    with pytest.raises(ValueError, match=r"model.norm.weight has the shape \(3,\), the configuration says \(128,\)"):
        YuanReference(config, make_tensors(config) | {"model.norm.weight": torch.zeros(3)})
    with pytest.raises(ValueError, match="use_shareqk"):
        YuanReference(configs.get("dense", use_shareqk=True), tensors)
    with pytest.raises(ValueError, match="choose one of dense"):
        configs.get("llama")


def test_tied_head_may_be_absent() -> None:
    config = configs.get("dense")
    tensors = make_tensors(config)
    whole = YuanReference(config, tensors).logits([1, 2, 3])
    del tensors["lm_head.weight"]
    assert torch.equal(YuanReference(config, tensors).logits([1, 2, 3]), whole)
