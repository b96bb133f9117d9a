"""Which weights of a checkpoint are quantised, what they become, and what config.json says of it. Standard library only.

Only weights that are known to be those of a Linear layer, by their names, are quantised: [outputs, inputs], with `y = x W^T`. Everything
else stays as it is: routers (a rounded router sends tokens to other experts), Yuan's local filter, the output matrix, embeddings, norms.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .checkpoint_errors import CheckpointError
from .quantise_numbers import GROUPS, ITEM_BYTES, Scheme
from .safetensors_file import TensorSpec

METHODS = {"rtn-w4a16": 4, "rtn-w8a16": 8, "awq-w4a16": 4}

# llama, qwen2, qwen3, mistral, phi3, gemma, mixtral (w1 to w3), qwen3-moe, yuan (w1, w2). GPT-2's c_attn and its like are not among them:
# they lie as [inputs, outputs].
_LINEAR = re.compile(
    r"(^|\.)((self_attn|attention)\.(q|k|v|o|qkv)_proj|((mlp|shared_expert|shared_experts)\.|experts\.\d+\.)(gate|up|down|gate_up)_proj"
    r"|experts\.\d+\.w[123])\.weight$"
)
_EXPERT = re.compile(r"(^|\.)experts\.\d+\.")
# Experts of a layer in one tensor, as some architectures store them.
_FUSED_EXPERTS = re.compile(r"(^|\.)experts\.[a-z_]+(\.weight)?$")
_YUAN_LEFT = ("re:.*lf_gate.*", r"re:.*mlp\.gate(\..*)?$")


@dataclass(frozen=True)
class Plan:
    """What is quantised, in the order of the source, and the modules that have a matrix and keep it."""

    scheme: Scheme
    quantised: tuple[TensorSpec, ...]
    left_out: Mapping[str, str]

    def specs(self, source: Sequence[TensorSpec]) -> list[TensorSpec]:
        """What the quantised checkpoint holds."""
        chosen = {spec.name for spec in self.quantised}
        return [new for spec in source for new in (becomes(spec, self.scheme) if spec.name in chosen else (spec,))]

    @property
    def ignore(self) -> list[str]:
        """Modules that the engine must not expect quantised."""
        names = ["lm_head", *(name for name in self.left_out if name != "lm_head")]
        if any(".lf_gate." in name for name in names):
            names.extend(_YUAN_LEFT)
        return names


def scheme(method: str, group: int) -> Scheme:
    """The scheme of one of METHODS; raises CheckpointError for a group that the engines have no kernel for."""
    if method not in METHODS:
        raise CheckpointError(f"model_quantise is {method!r}: expected none or one of {', '.join(METHODS)}.")
    if group not in GROUPS:
        raise CheckpointError(
            f"model_quantise_group_size is {group}: expected {', '.join(map(str, GROUPS[:-1]))} or {GROUPS[-1]}, "
            "for which vLLM has kernels."
        )
    return Scheme(METHODS[method], group)


def plan(specs: Iterable[TensorSpec], wanted: Scheme) -> Plan:
    """Decide for each tensor; raises CheckpointError where the checkpoint cannot be quantised so that an engine loads it."""
    quantised: list[TensorSpec] = []
    left: dict[str, str] = {}
    for spec in specs:
        module = spec.name[: -len(".weight")] if spec.name.endswith(".weight") else spec.name
        if spec.name.endswith((".weight_packed", ".qweight", ".weight_scale")):
            raise CheckpointError(
                f"The source holds {spec.name}: it is quantised already; set model_quantise to none, or name the source in full precision."
            )
        if _FUSED_EXPERTS.search(spec.name) and len(spec.shape) > 2:
            raise CheckpointError(
                f"The tensor {spec.name} holds all experts of a layer: expected one tensor an expert; "
                "set model_quantise to none, this architecture cannot be quantised here."
            )
        if len(spec.shape) < 2 or not spec.name.endswith(".weight"):
            continue
        if not _LINEAR.search(spec.name) or len(spec.shape) != 2:
            left[module] = "not the matrix of a Linear layer that is known to bear it"
        elif spec.dtype not in ITEM_BYTES:
            raise CheckpointError(
                f"The tensor {spec.name} is {spec.dtype}: expected {', '.join(ITEM_BYTES)} to quantise; name the source in full precision."
            )
        elif spec.shape[1] % wanted.group:
            _refuse_expert(spec, wanted)
            left[module] = f"{spec.shape[1]} inputs are no multiple of the group of {wanted.group}"
        else:
            quantised.append(spec)
    if not quantised:
        raise CheckpointError(
            "The source holds no weight that can be quantised: expected Linear layers named as in llama, qwen2, qwen3, mixtral or Yuan, "
            f"with inputs that are a multiple of {wanted.group}; set model_quantise to none."
        )
    return Plan(wanted, tuple(quantised), left)


def _refuse_expert(spec: TensorSpec, wanted: Scheme) -> None:
    """The engine runs all experts of a layer in one kernel: either all of their matrices are quantised or none."""
    if not _EXPERT.search(spec.name):
        return
    fitting = [group for group in GROUPS if spec.shape[1] % group == 0]
    remedy = (
        f"set model_quantise_group_size to {fitting[-1]}" if fitting else "no group fits, set model_quantise to none"
    )
    raise CheckpointError(
        f"The expert {spec.name} has {spec.shape[1]} inputs: expected a multiple of the group of {wanted.group}; {remedy}."
    )


def becomes(spec: TensorSpec, wanted: Scheme) -> tuple[TensorSpec, TensorSpec, TensorSpec]:
    """The three tensors of a quantised weight; the largest dtype first, so that each of them is aligned."""
    rows, columns = spec.shape
    module = spec.name[: -len(".weight")]
    return (
        TensorSpec(f"{module}.weight_shape", "I64", (2,)),
        TensorSpec(f"{module}.weight_packed", "I32", (rows, columns // wanted.packed)),
        TensorSpec(f"{module}.weight_scale", spec.dtype, (rows, columns // wanted.group)),
    )


def quantization_config(made: Plan) -> dict[str, Any]:
    """`quantization_config` of config.json, as compressed-tensors reads it."""
    weights = {
        "num_bits": made.scheme.bits,
        "type": "int",
        "symmetric": True,
        "strategy": "group",
        "group_size": made.scheme.group,
        "dynamic": False,
        "actorder": None,
        "block_structure": None,
        "observer": None,
        "observer_kwargs": {},
    }
    group = {
        "targets": ["Linear"],
        "weights": weights,
        "input_activations": None,
        "output_activations": None,
        "format": "pack-quantized",
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": made.ignore,
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
    }


def configured(config: Mapping[str, Any], made: Plan) -> dict[str, Any]:
    """config.json of the quantised model; raises CheckpointError where the source's says that it is quantised already."""
    if config.get("quantization_config"):
        method = config["quantization_config"].get("quant_method", "unknown")
        raise CheckpointError(
            f"The source is quantised already ({method}): set model_quantise to none, or name the source in full precision."
        )
    return {**config, "quantization_config": quantization_config(made)}
