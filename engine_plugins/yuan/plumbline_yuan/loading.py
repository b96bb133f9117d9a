"""Where a checkpoint's tensors (HF layout) go in the model: regrouped queries and keys, split experts, the filter's taps.

Every tensor must have a place and every parameter must be filled: a weight that is silently left out costs all quality and no speed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from plumbline_yuan.config import YuanSizes

# Along which axis a Linear's tensor has the outputs, by the name's last part; None: it has none.
_OUTPUTS = {
    "weight": 0,
    "weight_packed": 0,
    "weight_scale": 0,
    "weight_zero_point": 0,
    "weight_shape": None,
    "weight_g_idx": None,
    "qweight": 1,
    "qzeros": 1,
    "scales": 1,
    "g_idx": None,
}
_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")
_EXPERT = re.compile(r"mlp\.experts\.(\d+)\.(w1|w2)\.(\w+)")
_ROUTER = {"query": 0, "key": 1, "value": 2}
# Made by vLLM where a layer is quantised, and filled by it where the checkpoint says nothing: the order of groups, figures of the
# activations and of the cache of keys and values (whose layer has nothing else to load).
_OPTIONAL = re.compile(r"(\.self_attn\.attn\..*|g_idx|g_idx_sort_indices|input_scale|a_scale)$")


class Piece(NamedTuple):
    """A tensor for a parameter (or a shard of it, or of one of its experts)."""

    parameter: str
    tensor: Tensor
    shard: int | str | None = None
    expert: int | None = None


def _no_place(name: str) -> ValueError:
    return ValueError(f"The checkpoint has a tensor {name} that has no place in this Yuan model.")


def regroup_query_key(first: Tensor, second: Tensor, heads: int, dim: int | None) -> tuple[Tensor, Tensor]:
    """Queries and keys from what the checkpoint calls q_proj and k_proj.

    Stacked along the outputs (`dim`), each head has its query rows before its key rows. Whole heads move, so that packed rows,
    scales and zero points follow in the same way. Tensors without outputs (`dim` None) are left as they are.
    """
    if dim is None:
        return first, second
    stacked = torch.cat((first, second), dim=dim)
    size = stacked.shape[dim]
    if size % (2 * heads):
        raise ValueError(f"{size} rows cannot be dealt to the queries and keys of {heads} heads")
    shape = list(stacked.shape)
    both = stacked.reshape(*shape[:dim], heads, 2, size // (2 * heads), *shape[dim + 1 :])
    shape[dim] = size // 2
    query, key = (both.select(dim + 1, which).reshape(shape) for which in (0, 1))
    return query, key


class Placement:
    """Turns (name, tensor) of a checkpoint to pieces for the model's parameters."""

    def __init__(self, sizes: YuanSizes, merged_values: bool) -> None:
        """`merged_values`: v_proj shares a parameter with the filter's first convolution (unquantised models)."""
        self.sizes = sizes
        self.merged_values = merged_values
        self._halves: dict[str, Tensor] = {}

    def pieces(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Piece]]:
        """Yield each tensor's name with its pieces. Raises ValueError, one sentence, for what has no place or another shape."""
        for name, tensor in weights:
            if name in ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"):
                self._check(
                    name, tensor, (self.sizes.hidden,) if "norm" in name else (self.sizes.vocab, self.sizes.hidden)
                )
                yield name, Piece(name, tensor)
                continue
            match = _LAYER.fullmatch(name)
            if match is None or int(match[1]) >= self.sizes.layers:
                raise _no_place(name)
            if match[2] == "self_attn.rotary_emb.inv_freq":
                continue  # computed from the configuration
            for piece in self._layer(name, int(match[1]), match[2], tensor):
                yield name, piece
        if self._halves:
            raise ValueError(
                f"The checkpoint has {min(self._halves)} without its other half: q_proj and k_proj belong together."
            )

    def _check(self, name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{name} has the shape {tuple(tensor.shape)}, config.json says {shape}.")

    def _layer(self, name: str, layer: int, rest: str, tensor: Tensor) -> Iterator[Piece]:
        prefix = f"model.layers.{layer}."
        module, _, suffix = rest.rpartition(".")
        if suffix == "weight" and (shape := self._shape(layer, module)) is not None:
            self._check(name, tensor, shape)
        if module.startswith("mlp."):
            yield from self._mlp(name, layer, rest, tensor)
        elif module in ("self_attn.q_proj", "self_attn.k_proj") and suffix in _OUTPUTS:
            yield from self._query_key(name, prefix, module, suffix, tensor)
        elif module == "self_attn.v_proj" and suffix in _OUTPUTS:
            if self.merged_values:
                yield Piece(f"{prefix}self_attn.in_proj.{suffix}", tensor, 2)
            else:
                yield Piece(f"{prefix}{rest}", tensor)
        elif module == "self_attn.o_proj" and suffix in _OUTPUTS:
            yield Piece(f"{prefix}{rest}", tensor)
        elif rest in ("input_layernorm.weight", "post_attention_layernorm.weight"):
            self._check(name, tensor, (self.sizes.hidden,))
            yield Piece(f"{prefix}{rest}", tensor)
        elif module.startswith("self_attn.lf_gate."):
            yield from self._filter(name, prefix, rest.removeprefix("self_attn.lf_gate."), tensor)
        else:
            raise _no_place(name)

    def _mlp(self, name: str, layer: int, rest: str, tensor: Tensor) -> Iterator[Piece]:
        prefix = f"model.layers.{layer}."
        module, _, suffix = rest.rpartition(".")
        if self.sizes.experts:
            which = module.removeprefix("mlp.gate.")
            if expert := _EXPERT.fullmatch(rest):
                yield from self._expert(name, prefix, layer, expert, tensor)
            elif which in _ROUTER and suffix == "weight":
                yield Piece(f"{prefix}mlp.gate.weight", tensor, _ROUTER[which])
            else:
                raise _no_place(name)
        elif module in ("mlp.up_proj", "mlp.gate_proj") and suffix in _OUTPUTS:
            # silu is on up_proj: vLLM applies it to the first part.
            yield Piece(f"{prefix}mlp.up_gate_proj.{suffix}", tensor, int(module == "mlp.gate_proj"))
        elif module == "mlp.down_proj" and suffix in _OUTPUTS:
            yield Piece(f"{prefix}{rest}", tensor)
        else:
            raise _no_place(name)

    def _shape(self, layer: int, module: str) -> tuple[int, ...] | None:
        """The shape of an unquantised Linear's weight."""
        size = self.sizes
        shapes: dict[str, tuple[int, ...]] = {
            "self_attn.q_proj": (size.projection, size.hidden),
            "self_attn.k_proj": (size.projection, size.hidden),
            "self_attn.v_proj": (size.projection, size.hidden),
            "self_attn.o_proj": (size.hidden, size.projection),
        }
        if size.experts:
            shapes |= {f"mlp.gate.{name}": (size.experts[layer], size.hidden) for name in _ROUTER}
            for expert in range(size.experts[layer]) if module.startswith("mlp.experts.") else ():
                shapes[f"mlp.experts.{expert}.w1"] = (2 * size.width, size.hidden)
                shapes[f"mlp.experts.{expert}.w2"] = (size.hidden, size.width)
        else:
            shapes |= {f"mlp.{name}": (size.width, size.hidden) for name in ("up_proj", "gate_proj")}
            shapes["mlp.down_proj"] = (size.hidden, size.width)
        return shapes.get(module)

    def _query_key(self, name: str, prefix: str, module: str, suffix: str, tensor: Tensor) -> Iterator[Piece]:
        if _OUTPUTS[suffix] is not None and tensor.numel() == 1:
            raise ValueError(
                f"{name} holds one figure for a whole tensor; q_proj and k_proj mix queries and keys, so they need one per row."
            )
        query_name, key_name = (f"{prefix}self_attn.{part}_proj.{suffix}" for part in "qk")
        other = key_name if name == query_name else query_name
        if other not in self._halves:
            self._halves[name] = tensor
            return
        found = self._halves.pop(other)
        first, second = (tensor, found) if name == query_name else (found, tensor)
        for shard, part in enumerate(regroup_query_key(first, second, self.sizes.heads, _OUTPUTS[suffix])):
            yield Piece(f"{prefix}self_attn.qk_proj.{suffix}", part, shard)

    def _filter(self, name: str, prefix: str, rest: str, tensor: Tensor) -> Iterator[Piece]:
        hidden = self.sizes.hidden
        shapes: dict[str, tuple[int, ...]] = {
            "conv1.weight": (hidden // 2, hidden, 2, 1),
            "conv2.weight": (hidden, hidden // 2, 2, 1),
            "output_layernorm.weight": (hidden,),
        }
        if self.sizes.filter_bias:
            shapes |= {"conv1.bias": (hidden // 2,), "conv2.bias": (hidden,)}
        if rest not in shapes:
            raise _no_place(name)
        self._check(name, tensor, shapes[rest])
        place = f"{prefix}self_attn.local_filter"
        if rest == "conv1.weight":
            for tap in (0, 1):  # 0 is the older one
                yield Piece(f"{prefix}self_attn.in_proj.weight", tensor[:, :, tap, 0].contiguous(), tap)
        elif rest == "conv2.weight":
            yield Piece(f"{place}.conv2.weight", torch.cat((tensor[:, :, 0, 0], tensor[:, :, 1, 0])))
        else:
            names = {"conv1.bias": "conv1_bias", "conv2.bias": "conv2_bias", "output_layernorm.weight": "norm_weight"}
            yield Piece(f"{place}.{names[rest]}", tensor)

    def _expert(self, name: str, prefix: str, layer: int, match: re.Match[str], tensor: Tensor) -> Iterator[Piece]:
        expert, which, suffix = int(match[1]), match[2], match[3]
        if not self.sizes.experts or expert >= self.sizes.experts[layer] or suffix not in _OUTPUTS:
            raise _no_place(name)
        place = f"{prefix}mlp.experts.routed_experts."
        if which == "w2":
            yield Piece(f"{place}w2_{suffix}", tensor, "w2", expert)
            return
        dim = _OUTPUTS[suffix]
        # The first half goes through silu, as vLLM's w1; the second is the linear branch, its w3.
        halves = [tensor] * 2 if dim is None or tensor.numel() == 1 else list(tensor.chunk(2, dim=dim))
        for shard, half in zip(("w1", "w3"), halves):
            yield Piece(f"{place}w13_{suffix}", half, shard, expert)


def expected(sizes: YuanSizes, parameters: Iterable[str], merged_values: bool) -> dict[str, set[Any]]:
    """For each parameter the shards that must come: (expert, shard) for experts, shard numbers, or None for the whole."""
    shards: dict[str, set[Any]] = {}
    for name in parameters:
        if _OPTIONAL.search(name):
            continue
        if ".routed_experts." in name:
            layer = int(name.split(".")[2])
            kinds = ("w1", "w3") if ".w13_" in name else ("w2",)
            shards[name] = {(expert, kind) for expert in range(sizes.experts[layer]) for kind in kinds}
        elif ".in_proj." in name:
            shards[name] = {0, 1, 2} if merged_values else {0, 1}
        elif ".qk_proj." in name or ".up_gate_proj." in name:
            shards[name] = {0, 1}
        elif name.endswith(".mlp.gate.weight"):
            shards[name] = {0, 1, 2}
        else:
            shards[name] = {None}
    return shards


def put(parameter: nn.Parameter, piece: Piece) -> None:
    """Hand a piece to the parameter's own loader, which takes this process's part of it."""
    loader = getattr(parameter, "weight_loader", None)
    if loader is None:
        if parameter.shape != piece.tensor.shape:
            raise ValueError(f"the parameter has the shape {tuple(parameter.shape)}")
        parameter.data.copy_(piece.tensor)
    elif piece.expert is not None:
        loader(parameter, piece.tensor, piece.parameter, shard_id=piece.shard, expert_id=piece.expert)
    elif piece.shard is not None:
        loader(parameter, piece.tensor, piece.shard)
    else:
        loader(parameter, piece.tensor)


def load(model: nn.Module, sizes: YuanSizes, weights: Iterable[tuple[str, Tensor]], merged_values: bool) -> set[str]:
    """Fill the model's parameters; returns their names. Raises ValueError, one sentence, where anything is missing or left over."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    missing = expected(sizes, dict(model.named_parameters()), merged_values)
    embedding, head = "model.embed_tokens.weight", "lm_head.weight"
    seen_tied: str | None = None
    for name, piece in Placement(sizes, merged_values).pieces(weights):
        target = piece.parameter
        if sizes.tied and target in (embedding, head):
            # One parameter, whichever of the two the file holds; where it holds both they must be equal.
            if seen_tied is not None:
                _check_tied(parameters[embedding], piece.tensor, name, seen_tied)
                continue
            seen_tied, target = name, embedding
        if target not in parameters:
            if _is_needless(piece):
                continue
            raise ValueError(
                f"The checkpoint has a tensor {name}, for which the model has no parameter {target}: "
                "its quantisation is not the one that config.json describes."
            )
        try:
            put(parameters[target], piece)
        except (AssertionError, RuntimeError, ValueError, IndexError) as error:
            raise ValueError(
                f"{name} with the shape {tuple(piece.tensor.shape)} does not fit the parameter {target}: {error or 'shapes differ'}."
            ) from error
        if target in missing:
            missing[target].discard((piece.expert, piece.shard) if piece.expert is not None else piece.shard)
    if left := sorted(name for name, shards in missing.items() if shards):
        raise ValueError(
            f"The checkpoint leaves {len(left)} of the model's parameters unfilled, the first is {left[0]} "
            f"(missing: {sorted(map(str, missing[left[0]]))[:3]}): a tensor is missing from it."
        )
    return set(parameters)


def _is_needless(piece: Piece) -> bool:
    """Whether a layer without such a parameter loses nothing: the shape before packing, or an order of groups that is the usual one.

    Newer versions of vLLM have no parameter for either where they need none.
    """
    if piece.parameter.endswith("weight_shape"):
        return True
    return piece.parameter.endswith("g_idx") and bool((piece.tensor.diff() >= 0).all())


def _check_tied(parameter: nn.Parameter, tensor: Tensor, name: str, before: str) -> None:
    """Compare the second of two tied tensors with the first one, in this process's rows."""
    module_rows = min(parameter.shape[0], tensor.shape[0])
    start = getattr(parameter, "plumbline_first_row", 0)
    rows = min(module_rows, max(tensor.shape[0] - start, 0))
    part = tensor[start : start + rows].to(device=parameter.device, dtype=parameter.dtype)
    if not torch.equal(parameter.data[:rows], part):
        raise ValueError(
            f"config.json ties the embeddings, but {name} differs from {before}: one of the two is not this model's."
        )
