"""Four- and eight-bit weights back to the model's type while they are loaded: all on a CPU, which lacks kernels; else the values.

Layouts: compressed-tensors `pack-quantized`, GPTQ and AWQ, as their own tools write them. Symmetric and asymmetric.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

# AWQ packs eight nibbles of a word in this order of output columns.
AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)


def unpack(packed: Tensor, bits: int, dim: int, order: tuple[int, ...] | None = None) -> Tensor:
    """Spread 32-bit words to the 32 / bits unsigned values each holds, along `dim` (0 or 1); lowest bits first, or in `order`."""
    count = 32 // bits
    places = order or tuple(range(count))
    shifts = torch.tensor([bits * place for place in places], dtype=torch.int32)
    values = (packed.to(torch.int32).unsqueeze(-1) >> shifts) & (2**bits - 1)
    if dim == 0:
        return values.permute(0, 2, 1).reshape(packed.shape[0] * count, packed.shape[1])
    return values.reshape(packed.shape[0], packed.shape[1] * count)


def _spread(groups: Tensor, columns: int, index: Tensor | None) -> Tensor:
    """Per-group figures [rows, groups] for every column."""
    if index is not None:
        return groups[:, index.long()]
    return groups.repeat_interleave(columns // groups.shape[1], dim=1)


def _compressed(parts: Mapping[str, Tensor], bits: int) -> Tensor:
    rows, columns = (int(n) for n in parts["weight_shape"])
    values = unpack(parts["weight_packed"], bits, 1)[:, :columns].float()
    index = parts.get("weight_g_idx")
    if (zero := parts.get("weight_zero_point")) is not None:
        values -= _spread(unpack(zero, bits, 0)[:rows].float(), columns, index)
    else:
        values -= 2 ** (bits - 1)
    return values * _spread(parts["weight_scale"].float(), columns, index)


def _gptq(parts: Mapping[str, Tensor], bits: int) -> Tensor:
    values = unpack(parts["qweight"], bits, 0).t().float()
    index = parts.get("g_idx")
    # The format stores a zero point less one.
    zero = (unpack(parts["qzeros"], bits, 1).t() + 1).float()
    columns = values.shape[1]
    return (values - _spread(zero, columns, index)) * _spread(parts["scales"].t().float(), columns, index)


def _awq(parts: Mapping[str, Tensor], bits: int) -> Tensor:
    values = unpack(parts["qweight"], bits, 1, AWQ_ORDER).t().float()
    zero = unpack(parts["qzeros"], bits, 1, AWQ_ORDER).t().float()
    columns = values.shape[1]
    return (values - _spread(zero, columns, None)) * _spread(parts["scales"].t().float(), columns, None)


def layout(quantization: Mapping[str, Any]) -> tuple[Callable[[Mapping[str, Tensor]], Tensor], frozenset[str]]:
    """What turns a Linear's tensors to its weight, and the names that must be there, from config.json's quantization_config.

    Raises ValueError for a format that this module does not read.
    """
    method = quantization.get("quant_method")
    if method == "compressed-tensors":
        groups = list((quantization.get("config_groups") or {}).values())
        widths = {int((group.get("weights") or {}).get("num_bits", 0)) for group in groups}
        if quantization.get("format") == "pack-quantized" and len(widths) == 1 and widths <= {4, 8}:
            (bits,) = widths
            needed = {"weight_packed", "weight_scale", "weight_shape"}
            if any(not (group.get("weights") or {}).get("symmetric", True) for group in groups):
                needed.add("weight_zero_point")
            return lambda parts: _compressed(parts, bits), frozenset(needed)
    elif method == "gptq" and quantization.get("bits") in (4, 8):
        bits = int(quantization["bits"])
        return lambda parts: _gptq(parts, bits), frozenset({"qweight", "qzeros", "scales", "g_idx"})
    elif method == "awq" and quantization.get("bits", 4) == 4:
        return lambda parts: _awq(parts, 4), frozenset({"qweight", "qzeros", "scales"})
    raise ValueError(
        f"config.json has quantization_config with quant_method {method!r} and format {quantization.get('format')!r}; on this "
        "machine the Yuan plugin turns only pack-quantized compressed-tensors, gptq and awq of 4 or 8 bits back to full weights."
    )


SUFFIXES = frozenset(
    {
        "weight_packed",
        "weight_scale",
        "weight_shape",
        "weight_zero_point",
        "weight_g_idx",
        "qweight",
        "qzeros",
        "scales",
        "g_idx",
    }
)


def dequantise(
    weights: Iterable[tuple[str, Tensor]],
    quantization: Mapping[str, Any],
    dtype: torch.dtype,
    only: str | tuple[str, ...] = "",
) -> Iterator[tuple[str, Tensor]]:
    """Replace the parts of every quantised Linear by its weight, once they are all there. Raises ValueError if some never come.

    `only`: of the Linears whose names end so, or in one of these ways.
    """
    restore, needed = layout(quantization)
    optional = {"weight_g_idx"}
    waiting: dict[str, dict[str, Tensor]] = {}
    late: dict[str, dict[str, Tensor]] = {}
    for name, tensor in weights:
        module, _, suffix = name.rpartition(".")
        if suffix not in SUFFIXES or not module.endswith(only):
            yield name, tensor
            continue
        parts = waiting.setdefault(module, {})
        parts[suffix] = tensor
        if needed <= parts.keys():
            if optional & _possible(quantization):
                late[module] = waiting.pop(module)
                continue
            yield f"{module}.weight", restore(waiting.pop(module)).to(dtype)
    for module, parts in late.items():
        parts.update(waiting.pop(module, {}))
        yield f"{module}.weight", restore(parts).to(dtype)
    for module, parts in waiting.items():
        raise ValueError(
            f"The checkpoint's quantised {module} is incomplete: {', '.join(sorted(needed - parts.keys()))} is missing."
        )


def _possible(quantization: Mapping[str, Any]) -> set[str]:
    """Parts that may or may not follow: the order of activations, where the configuration asks for one."""
    groups = (quantization.get("config_groups") or {}).values()
    return (
        {"weight_g_idx"} if any((group.get("weights") or {}).get("actorder") == "group" for group in groups) else set()
    )
