"""Megatron partitions of Yuan2.0: what the training framework saves, one file for each tensor- and pipeline-parallel rank.

The layout is described in docs/yuan-checkpoints.md. A file holds more than the weights, and the reader has to live with it: the
training arguments (a Namespace with a torch dtype and an enumeration of a module that is not installed here), the states of the
random generators, and tensors that were saved from a GPU.
"""

from __future__ import annotations

import enum
import random
import sys
import types
from argparse import Namespace
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from yuan_reference.companions import write_companions
from yuan_reference.model import Dimensions

ITERATION = 63578


def write_megatron(
    directory: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    *,
    tp: int = 1,
    pp: int = 1,
    blocks: Sequence[int] | None = None,
    iteration: int = ITERATION,
    location: str = "cuda:0",
    tokenizer: Path | None = None,
) -> None:
    """Write `tensors` (names of the HF layout) as partitions for `tp` tensor- and `pp` pipeline-parallel ranks.

    Beside them lies what the publishers' converter wants to find there: config.json and its companions.
    `blocks`: layers in each stage, where they are not equal. `location`: the device that the files say their tensors were on.
    Raises ValueError if the model cannot be cut so.
    """
    size = Dimensions.of(config)
    stages = _stages(size.layers, pp, blocks)
    for what, count in {
        "attention heads": size.heads,
        "vocabulary": size.vocab,
        "feed-forward width": size.width,
    }.items():
        if count % tp:
            raise ValueError(f"{count} ({what}) cannot be divided among {tp} tensor-parallel ranks.")
    tied = bool(config.get("tie_word_embeddings"))
    if tied and not torch.equal(tensors["model.embed_tokens.weight"], tensors["lm_head.weight"]):
        raise ValueError("tie_word_embeddings is true, but lm_head.weight differs from model.embed_tokens.weight.")
    write_companions(directory, config, tensors["model.norm.weight"].dtype, tokenizer)
    root = directory / f"iter_{iteration:07d}"
    for stage, layers in enumerate(stages):
        for rank in range(tp):
            content = {
                "args": _arguments(config, tp, pp, stages, tensors["model.norm.weight"].dtype),
                "checkpoint_version": 3.0,
                "iteration": iteration,
                "model": _model(config, tensors, layers, (rank, tp), first=stage == 0, last=stage == pp - 1),
                "opt_param_scheduler": {"max_lr": 9e-5, "num_steps": iteration, "lr_decay_style": "cosine"},
                "rng_state": [_random_state()],
            }
            name = f"mp_rank_{rank:02d}" if pp == 1 else f"mp_rank_{rank:02d}_{stage:03d}"
            (root / name).mkdir(parents=True, exist_ok=True)
            with _saved_from(location), _model_type_module():
                torch.save(content, root / name / "model_optim_rng.pt")
    (directory / "latest_checkpointed_iteration.txt").write_text(str(iteration), encoding="utf-8")


def _stages(layers: int, pp: int, blocks: Sequence[int] | None) -> list[range]:
    if blocks is None:
        if layers % pp:
            raise ValueError(
                f"{layers} layers cannot be divided equally among {pp} stages: say how many each one has (blocks)."
            )
        blocks = [layers // pp] * pp
    if len(blocks) != pp or sum(blocks) != layers:
        raise ValueError(f"The {pp} stages must have {layers} layers together, blocks says {list(blocks)}.")
    starts = [sum(blocks[:stage]) for stage in range(pp)]
    return [range(start, start + count) for start, count in zip(starts, blocks)]


def _part(tensor: Tensor, rank: tuple[int, int], axis: int) -> Tensor:
    """One rank's contiguous part along `axis`, with its own storage."""
    return tensor.chunk(rank[1], dim=axis)[rank[0]].clone(memory_format=torch.contiguous_format)


def _halves_part(tensor: Tensor, rank: tuple[int, int], axis: int) -> Tensor:
    """One rank's part of a gated projection: its part of the silu half, then its part of the linear half."""
    return torch.cat([_part(half, rank, axis) for half in tensor.chunk(2, dim=axis)], dim=axis)


def _layer(
    config: Mapping[str, Any], tensors: Mapping[str, Tensor], index: int, rank: tuple[int, int]
) -> dict[str, Tensor]:
    """One rank's tensors of layer `index`, without the prefix of the layer."""
    size = Dimensions.of(config)

    def get(name: str) -> Tensor:
        return tensors[f"model.layers.{index}.{name}.weight"]

    filter_names = ("conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias", "output_layernorm.weight")
    layer = {
        "input_layernorm.weight": get("input_layernorm").clone(),
        "self_attention.get_value.weight": _part(get("self_attn.v_proj"), rank, 0),
        "self_attention.get_query_key.weight": _part(
            torch.cat((get("self_attn.q_proj"), get("self_attn.k_proj"))), rank, 0
        ),
        # The local filter is not divided: every rank has all of it.
        **{
            f"self_attention.lf_gate.{name}": tensors[f"model.layers.{index}.self_attn.lf_gate.{name}"]
            for name in filter_names
        },
        "self_attention.dense.weight": _part(get("self_attn.o_proj"), rank, 1),
        "post_attention_layernorm.weight": get("post_attention_layernorm").clone(),
    }
    if not size.experts:
        # The half that goes through silu lies first, and that is what the HF layout calls up_proj.
        both = torch.cat((get("mlp.up_proj"), get("mlp.gate_proj")))
        return layer | {
            "mlp.dense_h_to_4h.weight": _halves_part(both, rank, 0),
            "mlp.dense_4h_to_h.weight": _part(get("mlp.down_proj"), rank, 1),
        }
    router = torch.cat([get(f"mlp.gate.{name}") for name in ("query", "key", "value")])
    first = torch.stack([get(f"mlp.experts.{expert}.w1").t() for expert in range(size.experts)])  # [N, H, 2F]
    second = torch.stack([get(f"mlp.experts.{expert}.w2").t() for expert in range(size.experts)])  # [N, F, H]
    # The saved shapes are those of one large matrix; the order in memory is expert by expert all the same.
    return layer | {
        "mlp.router.attention_router.query_key_value.weight": _part(router, rank, 0),
        "mlp.experts.weight1": _halves_part(first, rank, 2).reshape(size.hidden, -1),
        "mlp.experts.weight2": _part(second, rank, 1).reshape(-1, size.hidden),
    }


def _model(
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    layers: range,
    rank: tuple[int, int],
    *,
    first: bool,
    last: bool,
) -> dict[str, Any]:
    encoder: OrderedDict[str, Tensor] = OrderedDict()
    for local, index in enumerate(layers):
        for name, tensor in _layer(config, tensors, index, rank).items():
            encoder[f"layers.{local}.{name}"] = tensor
    language_model: dict[str, Any] = {"encoder": encoder}
    if first:
        embedding = OrderedDict(weight=_part(tensors["model.embed_tokens.weight"], rank, 0))
        language_model = {"embedding": {"word_embeddings": embedding}, **language_model}
    model: dict[str, Any] = {"language_model": language_model}
    if last:
        encoder["final_layernorm.weight"] = tensors["model.norm.weight"].clone()
        head = OrderedDict(weight=_part(tensors["lm_head.weight"], rank, 0))
        if not config.get("tie_word_embeddings"):
            language_model["output_layer"] = head
        elif not first:
            model["word_embeddings_for_head"] = head
    return model


class ModelType(enum.Enum):
    """As Megatron has it; saved under Megatron's name for it, so that the files name a module that is not installed."""

    encoder_or_decoder = 1

    def __reduce_ex__(self, protocol: object) -> tuple[type[ModelType], tuple[int]]:
        """As Python up to 3.10 pickles an enumeration, and as the published files have it: a call with the value."""
        return ModelType, (self.value,)


ModelType.__module__ = "megatron.core.enums"


@contextmanager
def _model_type_module() -> Iterator[None]:
    """For the time of a save, a module megatron.core.enums: pickle wants to find what it names."""
    names = ("megatron", "megatron.core", "megatron.core.enums")
    modules = {name: types.ModuleType(name) for name in names}
    modules["megatron.core.enums"].ModelType = ModelType  # type: ignore[attr-defined]
    with mock.patch.dict(sys.modules, modules):
        yield


@contextmanager
def _saved_from(location: str) -> Iterator[None]:
    """For the time of a save, let every storage say that it lay on the device `location`."""
    with mock.patch("torch.serialization.location_tag", return_value=location):
        yield


def _random_state() -> dict[str, Any]:
    """The states of the random generators of a rank, of the types that they really have."""
    return {
        "random_rng_state": random.Random(1234).getstate(),  # noqa: S311 (a state to be saved, nothing is drawn for secrecy)
        "np_rng_state": np.random.RandomState(1234).get_state(),
        "torch_rng_state": torch.Generator().manual_seed(1234).get_state(),
        "cuda_rng_state": torch.zeros(16, dtype=torch.uint8),
        "rng_tracker_states": {"model-parallel-rng": torch.zeros(16, dtype=torch.uint8)},
    }


def _arguments(config: Mapping[str, Any], tp: int, pp: int, stages: list[range], dtype: torch.dtype) -> Namespace:
    """The training arguments that say how the model is shaped and cut, under the training framework's names."""
    size = Dimensions.of(config)
    blocks = [len(stage) for stage in stages]
    arguments = {
        "tensor_model_parallel_size": tp,
        "pipeline_model_parallel_size": pp,
        "transformer_pipeline_model_parallel_size": pp,
        "pipeline_model_parallel_method": "uniform" if len(set(blocks)) == 1 else "block",
        "pipeline_model_parallel_blocks": ",".join(map(str, blocks)),
        "pipeline_blocks": blocks,
        "virtual_pipeline_model_parallel_size": None,
        "num_layers": size.layers,
        "encoder_num_layers": size.layers,
        "hidden_size": size.hidden,
        "ffn_hidden_size": size.width,
        "num_attention_heads": size.heads,
        "kv_channels": size.head,
        "seq_length": config["max_position_embeddings"],
        "max_position_embeddings": config["max_position_embeddings"],
        "make_vocab_size_divisible_by": 128,
        "padded_vocab_size": size.vocab,
        "tokenizer_type": "YuanTokenizer",
        "position_embedding_type": "rope",
        "rotary_percent": size.rotary / size.head,
        "rotary_base": int(size.rotary_base),
        "swiglu": True,
        "norm_dtype": "RMSNorm",
        "add_bias_linear": False,
        "untie_embeddings_and_output_weights": not config.get("tie_word_embeddings"),
        "use_lf_gate": True,
        "lf_conv2d_group": 1,
        "lf_conv2d_num_pad": 1,
        "bf16": dtype == torch.bfloat16,
        "fp16": dtype == torch.float16,
        "params_dtype": dtype,
        "model_type": ModelType.encoder_or_decoder,
        "num_experts": size.experts or None,
    }
    if size.experts:
        arguments |= {
            "moe_router_topk": size.top_k,
            "moe_grouped_gemm": True,
            "use_attention_router": True,
            "use_fp32_router": True,
            "num_attention_router_heads": config["max_position_embeddings"],
            "num_shared_experts": None,
        }
    return Namespace(**arguments)
