"""The plugin's arithmetic without vLLM: the filter's steps over any division of sequences, the router; Triton's form against PyTorch's."""

from __future__ import annotations

import random

import pytest
import torch
from plumbline_yuan import kernels
from torch import Tensor
from yuan_reference import model

WIDTH, HIDDEN, SLOTS = 12, 24, 9


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Step:
    """A batch of one step: requests with one token first, as vLLM orders them; then rows that belong to nobody."""

    def __init__(self, parts: list[tuple[int, int, int]], padding: int = 0) -> None:
        """parts: (slot, position of the first token, tokens)."""
        ones = [part for part in parts if part[2] == 1]
        longer = [part for part in parts if part[2] > 1]
        self.parts = ones + longer
        lengths = torch.tensor([part[2] for part in longer], dtype=torch.int32)
        first = torch.full((max(1, int(lengths.sum())),), -1, dtype=torch.int32)
        starts = (lengths.cumsum(0) - lengths).long()
        first[starts] = torch.arange(len(longer), dtype=torch.int32)
        self.rows = kernels.Rows(
            decodes=len(ones),
            prefill_tokens=int(lengths.sum()),
            slots_d=torch.tensor([part[0] for part in ones] or [0], dtype=torch.int32),
            slots_p=torch.tensor([part[0] for part in longer] or [0], dtype=torch.int32),
            ends_p=lengths.cumsum(0).int() if longer else torch.zeros(1, dtype=torch.int32),
            first_p=first,
        )
        positions = [position + i for _, position, count in self.parts for i in range(count)]
        self.positions = torch.tensor(positions + [0] * padding)


def whole(older: Tensor, newer: Tensor, bias: Tensor) -> Tensor:
    """The convolution of a whole sequence."""
    return newer + torch.cat((torch.zeros(1, older.shape[1]), older[:-1])) + bias


@pytest.mark.parametrize("seed", range(5))
def test_any_division_of_sequences_gives_the_whole_convolution(seed: int) -> None:
    dice = random.Random(seed)
    lengths = [1, 2, 3, 17, 40]
    taps = [draw(n, 2 * WIDTH, seed=seed * 10 + i) for i, n in enumerate(lengths)]
    bias, state = draw(WIDTH, seed=99), draw(SLOTS, WIDTH, seed=98)  # slots hold what others left there
    slots = dice.sample(range(1, SLOTS), len(lengths))
    done, found = [0] * len(lengths), [[] for _ in lengths]  # type: ignore[var-annotated]
    while any(d < n for d, n in zip(done, lengths)):
        chosen = [i for i, n in enumerate(lengths) if done[i] < n and dice.random() < 0.7]
        counts = {i: min(dice.choice((1, 1, 2, 7)), lengths[i] - done[i]) for i in chosen}
        order = sorted(chosen, key=lambda i: counts[i] > 1)
        if not order:
            continue
        padding = dice.choice((0, 3))
        step = Step([(slots[i], done[i], counts[i]) for i in order], padding)
        batch = torch.cat([taps[i][done[i] : done[i] + counts[i]] for i in order] + [draw(padding, 2 * WIDTH)])
        out = kernels.shift_add(batch, WIDTH, bias, state, step.rows, step.positions)
        for i in order:
            part, out = out[: counts[i]], out[counts[i] :]
            found[i].append(part)
            done[i] += counts[i]
    for i, parts in enumerate(found):
        torch.testing.assert_close(torch.cat(parts), whole(taps[i][:, :WIDTH], taps[i][:, WIDTH:], bias))


def test_a_state_that_is_not_carried_over_is_seen() -> None:
    taps, bias, state = draw(2, 2 * WIDTH), torch.zeros(WIDTH), torch.zeros(SLOTS, WIDTH)
    kernels.shift_add(taps[:1], WIDTH, bias, state, Step([(3, 0, 1)]).rows, torch.tensor([0]))
    right = kernels.shift_add(taps[1:], WIDTH, bias, state, Step([(3, 1, 1)]).rows, torch.tensor([1]))
    other = kernels.shift_add(taps[1:], WIDTH, bias, state, Step([(4, 1, 1)]).rows, torch.tensor([1]))
    assert not torch.allclose(right, other)


def test_two_steps_are_the_reference_s_filter() -> None:
    hidden = 8
    weight = {
        "conv1.weight": draw(hidden // 2, hidden, 2, 1, seed=1),
        "conv1.bias": draw(hidden // 2, seed=2),
        "conv2.weight": draw(hidden, hidden // 2, 2, 1, seed=3),
        "conv2.bias": draw(hidden, seed=4),
        "output_layernorm.weight": draw(hidden, seed=5),
    }
    x = draw(6, hidden, seed=6)
    first = torch.cat([weight["conv1.weight"][:, :, tap, 0] for tap in (0, 1)])
    second = torch.cat([weight["conv2.weight"][:, :, tap, 0] for tap in (0, 1)])
    states = torch.zeros(2, hidden // 2), torch.zeros(2, hidden)
    step = Step([(1, 0, 6)])
    y1 = kernels.shift_add(x @ first.t(), hidden // 2, weight["conv1.bias"], states[0], step.rows, step.positions)
    u = torch.empty_like(x)
    kernels.shift_add_norm(
        y1 @ second.t(), weight["conv2.bias"], states[1], step.rows, step.positions, x,
        weight["output_layernorm.weight"], model.FILTER_NORM_EPS, u,
    )  # fmt: skip
    torch.testing.assert_close(u, model.local_filter(x, weight))


@pytest.mark.parametrize(("experts", "top_k"), [(32, 2), (8, 2), (6, 3), (48, 2)])
def test_router_is_the_reference_s(experts: int, top_k: int) -> None:
    z, weight = draw(11, 16), [draw(experts, 16, seed=i) for i in (1, 2, 3)]
    expected = model.choose_experts(model.router_logits(z, *weight), top_k)
    share, chosen = kernels.route(z @ torch.cat(weight).t(), experts, top_k, renormalize=True)
    assert torch.equal(chosen.long(), expected[1])
    torch.testing.assert_close(share, expected[0])
    share, _ = kernels.route(z @ torch.cat(weight).t(), experts, top_k, renormalize=False)
    probability = torch.softmax(model.router_logits(z, *weight), dim=-1)
    torch.testing.assert_close(share, probability.gather(1, expected[1]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "parts",
    [
        [(3, 4, 1), (1, 0, 1), (5, 0, 4), (2, 7, 3)],
        [(3, 1, 1), (4, 0, 1)],
        [(6, 0, 2), (7, 3, 5)],
    ],
)
def test_triton_s_filter_is_pytorch_s(parts: list[tuple[int, int, int]], dtype: torch.dtype) -> None:
    pytest.importorskip("triton", reason="the CPU engine has no Triton")
    from plumbline_yuan import triton_kernels  # noqa: PLC0415

    step = Step(parts, padding=2)
    tokens = len(step.positions)
    taps, bias = draw(tokens, 2 * WIDTH + 3).to(dtype), draw(WIDTH).to(dtype)
    states = [draw(SLOTS, WIDTH, seed=8).to(dtype) for _ in range(2)]
    expected = kernels.shift_add_torch(taps, WIDTH, bias, states[0], step.rows, step.positions)
    out = taps.new_empty(tokens, WIDTH)
    arguments = kernels.launch_arguments(taps, states[1], step.rows, step.positions)
    triton_kernels.shift_add_kernel[(tokens, 2)](
        taps, taps.stride(0), bias, *arguments, out, out.stride(0), WIDTH, HAS_BIAS=True, BLOCK=8
    )
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(states[1], states[0])

    taps, bias, weight, x = (draw(*n).to(dtype) for n in ((tokens, 2 * HIDDEN), (HIDDEN,), (HIDDEN,), (tokens, HIDDEN)))
    states = [draw(SLOTS, HIDDEN, seed=9).to(dtype) for _ in range(2)]
    expected = kernels.shift_add_norm_torch(taps, bias, states[0], step.rows, step.positions, x, weight, 1e-6)
    out = torch.empty_like(x)
    arguments = kernels.launch_arguments(taps, states[1], step.rows, step.positions)
    triton_kernels.shift_add_norm_kernel[(tokens,)](
        taps, taps.stride(0), bias, *arguments, x, x.stride(0), weight, 1e-6, out, out.stride(0), HIDDEN,
        HAS_BIAS=True, BLOCK=32,
    )  # fmt: skip
    torch.testing.assert_close(out, expected, rtol=2e-2, atol=1e-2) if dtype == torch.bfloat16 else (
        torch.testing.assert_close(out, expected)
    )
    torch.testing.assert_close(states[1], states[0])


def test_triton_s_router_is_pytorch_s() -> None:
    pytest.importorskip("triton", reason="the CPU engine has no Triton")
    from plumbline_yuan import triton_kernels  # noqa: PLC0415

    for experts, top_k, renormalize in ((32, 2, True), (6, 3, False)):
        projected = draw(5, 3 * experts)
        projected[4] = float("nan")  # a row that only fills up a graph
        share, chosen = torch.empty(5, top_k), torch.empty(5, top_k, dtype=torch.int32)
        triton_kernels.route_kernel[(5,)](
            projected, projected.stride(0), share, chosen,
            EXPERTS=experts, BLOCK=32 if experts == 32 else 8, TOP_K=top_k, RENORMALIZE=renormalize,
        )  # fmt: skip
        expected = kernels.route_torch(projected[:4], experts, top_k, renormalize)
        torch.testing.assert_close(share[:4], expected[0])
        assert torch.equal(chosen[:4], expected[1])
        assert all(0 <= int(expert) < experts for expert in chosen[4])


@pytest.mark.parametrize(("hidden", "width", "tokens"), [(16, 24, 1), (40, 12, 3)])
def test_triton_s_experts_are_the_reference_s(hidden: int, width: int, tokens: int) -> None:
    pytest.importorskip("triton", reason="the CPU engine has no Triton")
    experts, top_k = 5, 2
    x, w13, w2 = draw(tokens, hidden), draw(experts, 2 * width, hidden), draw(experts, hidden, width)
    weights = torch.rand(tokens, top_k, generator=torch.Generator().manual_seed(3))
    ids = torch.tensor([[3, 0], [1, 4], [4, 3]], dtype=torch.int32)[:tokens]
    expected = torch.stack(
        [
            sum(weights[t, k] * model.expert_mlp(x[t : t + 1], w13[ids[t, k]], w2[ids[t, k]])[0] for k in range(top_k))
            for t in range(tokens)
        ]
    )
    torch.testing.assert_close(kernels.few_experts(x, w13, w2, weights, ids), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("group", [32, 128])
def test_triton_reads_marlin_s_layout(group: int) -> None:
    pytest.importorskip("triton", reason="the CPU engine has no Triton")
    packers = pytest.importorskip("vllm.model_executor.layers.quantization.utils.marlin_utils_test")
    experts, hidden, width = 3, 128, 256
    permutation = packers.get_weight_perm(4)

    def packed(rows: int, columns: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
        """Words, scales and what they stand for, of `experts` matrices [outputs, inputs]."""
        words, scales, meant = [], [], []
        for expert in range(experts):
            generator = torch.Generator().manual_seed(10 * seed + expert)
            values = torch.randint(0, 16, (columns, rows), generator=generator, dtype=torch.int32)
            scale = torch.rand(columns // group, rows, generator=generator) * 0.1
            words.append(packers.marlin_weights(values, columns, rows, 4, permutation))
            # A group as large as the inputs would have another order; no model has that.
            scales.append(packers.marlin_permute_scales(scale, columns + group, rows, group))
            meant.append(((values - 8) * scale.repeat_interleave(group, dim=0)).t())
        return torch.stack(words), torch.stack(scales), torch.stack(meant)

    w13, w13_scale, first = packed(2 * width, hidden, 1)
    w2, w2_scale, second = packed(hidden, width, 2)
    for words, scales, meant in ((w13, w13_scale, first), (w2, w2_scale, second)):
        out = torch.full(meant.shape, float("nan"))
        kernels.unpack_marlin(words, scales, out)
        assert torch.equal(out, meant)


@pytest.mark.parametrize(("rows", "columns"), [(9, 40), (517, 40), (600, 1500), (2500, 24)])
def test_triton_s_products_are_pytorch_s(rows: int, columns: int) -> None:
    pytest.importorskip("triton", reason="the CPU engine has no Triton")
    x, weight = draw(3, columns).to(torch.bfloat16), draw(rows, columns, seed=1).to(torch.bfloat16)
    expected = x.float() @ weight.float().t()
    torch.testing.assert_close(kernels.few_products(x, weight, torch.float32), expected, rtol=1e-4, atol=1e-4)
    assert kernels.few_products(x, weight, x.dtype).dtype is x.dtype
    whole = kernels.few_products(x.float(), weight.float(), torch.float32)
    torch.testing.assert_close(whole, expected, rtol=1e-4, atol=1e-4)
