"""The machine as the plan sees it: GPUs' memory, NUMA nodes with their cores, main memory less its limits. Reads /proc and /sys."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .checkpoint import element_bytes_of
from .node import node_facts
from .serving_plan import Gpu, Machine, Model, Node, PlanError
from .serving_plan_shape import read_shape, text_config
from .serving_plan_weights import checkpoint_tensors
from .tree import Tree, parse_cpu_list

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}


def memory_limit(text: str, total: int) -> int | None:
    """Bytes of a limit as systemd writes it (64G, 80%, infinity); `None` for none. Raises PlanError."""
    wish = text.strip()
    if not wish or wish == "infinity":
        return None
    if match := re.fullmatch(r"([0-9]{1,3}(?:\.[0-9]{1,4})?)%", wish):
        return int(total * float(match.group(1)) / 100)
    if match := re.fullmatch(r"([0-9]{1,18}(?:\.[0-9]{1,4})?)([KMGTP]?)", wish):
        return int(float(match.group(1)) * _UNITS[match.group(2)])
    raise PlanError(
        f"Expected a memory limit as systemd writes it (64G, 80%), found {text!r}: correct serving_memory_max."
    )


def visible_gpus(found: Sequence[Mapping[str, Any]], visible: str) -> list[Mapping[str, Any]]:
    """Those of the GPUs that CUDA_VISIBLE_DEVICES names by number or UUID; all of them where it is empty."""
    wanted = [word.strip() for word in visible.split(",") if word.strip()]
    if not wanted:
        return list(found)
    chosen = []
    for word in wanted:
        if word.isdigit() and int(word) < len(found):
            chosen.append(found[int(word)])
        else:
            chosen += [gpu for gpu in found if str(gpu.get("uuid") or "").startswith(word)]
    return chosen


def read_gpus(found: Sequence[Mapping[str, Any]], visible: str) -> tuple[tuple[Gpu, ...], str]:
    """The GPUs that the engine may use, from what nvidia-smi says; beside them the reason where their memory is not known."""
    gpus = []
    for gpu in visible_gpus(found, visible):
        if gpu.get("mig_mode") == "Enabled":
            return (), f"{gpu.get('address')} is divided (MIG), and nvidia-smi tells the memory of the whole"
        total = gpu.get("memory_total_bytes")
        if not total:
            return (), f"nvidia-smi does not tell the memory of {gpu.get('address')}"
        gpus.append(Gpu(str(gpu.get("name") or "GPU"), int(total - (gpu.get("memory_reserved_bytes") or 0))))
    return tuple(gpus), "" if gpus else "nvidia-smi names none that the engine may use"


def read_machine(
    root: str, on_cpu: bool, limits: Sequence[str], nodes: Sequence[int], gpus: tuple[Gpu, ...] = ()
) -> Machine:
    """Read the machine below `root`. `limits`: of unit and slice; `nodes`: the NUMA nodes that it may use, empty: all. Raises PlanError."""
    tree = Tree(root)
    facts = node_facts(root)
    total = facts["memory_total_bytes"]
    if not total:
        raise PlanError(f"Expected the machine's memory in {tree.path('/proc/meminfo')}, found none: {tree.remedy}.")
    sizes = [total, facts["memory_limit_bytes"], *(memory_limit(limit, total) for limit in limits)]
    allowed = set(parse_cpu_list(facts["cpu"]["allowed"]))
    found = []
    for node in facts["numa_nodes"]:
        if nodes and node["node"] not in nodes:
            continue
        cpus = set(parse_cpu_list(node["cpus"]))
        cpus = cpus & allowed if allowed else cpus
        cores = {tree.text(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list") or cpu for cpu in cpus}
        found.append(Node(node["node"], node["memory_total_bytes"], len(cores)))
    flags = set(facts["cpu"]["flags"])
    return Machine(
        on_cpu=on_cpu,
        memory_bytes=min(size for size in sizes if size),
        gpus=gpus,
        nodes=tuple(found),
        amx="amx_tile" in flags,
        avx512_bf16="avx512_bf16" in flags,
    )


def read_model(folder: Path, config: Mapping[str, Any], options: Mapping[str, Any]) -> Model:
    """The checkpoint, from its config and its files' headers; `options`: what it was approved with. Raises CheckpointError."""
    size, dtype = element_bytes_of(dict(text_config(config)), str(options.get("dtype") or "auto"))
    return Model(
        shape=read_shape(config),
        tensors=checkpoint_tensors(folder),
        dtype=dtype,
        element_bytes=size,
        quantization=str(options.get("quantization") or ""),
        kv_cache_dtype=_kv_cache_dtype(str(options.get("kv_cache_dtype") or "auto"), config),
    )


def _kv_cache_dtype(wish: str, config: Mapping[str, Any]) -> str:
    """The type of the cache; `auto` is what the checkpoint's quantisation says, where it says one (utils/torch_utils.py)."""
    found = config.get("quantization_config")
    if wish != "auto" or not isinstance(found, Mapping):
        return wish
    scheme = found.get("kv_cache_scheme")
    if isinstance(scheme, Mapping) and scheme.get("num_bits") == 8:
        return "fp8"
    algorithm = found.get("kv_cache_quant_algo") or (found.get("quantization") or {}).get("kv_cache_quant_algo")
    return "fp8" if str(algorithm).upper() == "FP8" else wish
