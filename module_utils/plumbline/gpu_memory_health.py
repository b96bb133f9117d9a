"""What the gates look at of a GPU's memory: errors, repairs that wait, repairs that are exhausted.

After NVIDIA's "GPU Memory Error Management" (docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt): an error that was contained
ends one program and the driver takes the row out of use; the repair waits for the next reset and harms nothing until then;
a repair that failed, or the flag of the SRAM's threshold, is a reason to return the GPU. Counters of the GPU's life outlast
a repair, so they say nothing about its health today.
"""

from __future__ import annotations

from typing import Any


def memory_measurements(gpu: dict[str, Any]) -> list[dict[str, Any]]:
    """Measurements of one GPU of `parse_smi`'s answer; what it does not tell is skipped or left out."""
    return [*_errors(gpu), _waiting(gpu), _failed(gpu), *_reserve(gpu)]


def _of(name: str, gpu: dict[str, Any], value: Any, **more: Any) -> dict[str, Any]:
    base = {"name": name, "scope": gpu["address"], "value": value, "statistic": "read once"}
    return {**base, **{key: item for key, item in more.items() if item != ""}}


def _errors(gpu: dict[str, Any]) -> list[dict[str, Any]]:
    address = gpu["address"]
    count = gpu["ecc_uncorrected"]
    if count is None:
        reason = "this GPU counts no ECC errors, or ECC is off"
        return [{"name": "gpu_ecc_uncorrected", "scope": address, "unit": "count", "skipped": reason}]
    command = f"nvidia-smi -q -d ECC,ROW_REMAPPER -i {address}"
    sram = gpu["ecc_uncorrected_sram"]
    where = f" ({sram} of them in its caches)" if sram else ""
    found = [
        _of(
            "gpu_ecc_uncorrected",
            gpu,
            count,
            unit="count",
            statistic="since the driver was loaded",
            conditions={"sram": sram},
            cause=f"memory of the GPU lost data{where}: the programs that met it ended, others go on; reset the GPU when convenient"
            if count
            else "",
            next_command=command,
        )
    ]
    if gpu["ecc_corrected"] is not None:
        found.append(
            _of(
                "gpu_ecc_corrected",
                gpu,
                gpu["ecc_corrected"],
                unit="count",
                statistic="since the driver was loaded",
                cause="a cell of the GPU's memory is weak: errors by the million cost time; reset the GPU, return it if they come again"
                if gpu["ecc_corrected"]
                else "",
                next_command=command,
            )
        )
    if gpu["ecc_uncorrected_lifetime"] is not None:
        found.append(
            _of(
                "gpu_ecc_uncorrected_lifetime",
                gpu,
                gpu["ecc_uncorrected_lifetime"],
                unit="count",
                statistic="of the GPU's life",
                conditions={"corrected": gpu["ecc_corrected_lifetime"]},
            )
        )
    return found


def _waiting(gpu: dict[str, Any]) -> dict[str, Any]:
    if gpu["repairs"] is None:
        reason = "this GPU does not tell of repairs of its memory"
        return {"name": "gpu_memory_repair", "scope": gpu["address"], "skipped": reason}
    return _of(
        "gpu_memory_repair",
        gpu,
        ", ".join(gpu["repairs"]) or "none pending",
        expected="none pending",
        cause="the GPU takes bad memory out of use at its next reset, until then the driver keeps programs away from it"
        if gpu["repairs"]
        else "",
        next_command=f"restart the node when convenient, or stop what uses the GPU and run: nvidia-smi --gpu-reset -i {gpu['address']}"
        if gpu["repairs"]
        else "",
    )


def _failed(gpu: dict[str, Any]) -> dict[str, Any]:
    if gpu["failures"] is None:
        reason = "this GPU does not tell whether its memory can still be repaired"
        return {"name": "gpu_memory_failure", "scope": gpu["address"], "skipped": reason}
    return _of(
        "gpu_memory_failure",
        gpu,
        ", ".join(gpu["failures"]) or "none",
        expected="none",
        cause="the GPU can repair its memory no longer: have NVIDIA's field diagnostic confirm it, and replace the GPU"
        if gpu["failures"]
        else "",
        next_command=f"nvidia-smi -q -d ECC,ROW_REMAPPER -i {gpu['address']}" if gpu["failures"] else "",
    )


def _reserve(gpu: dict[str, Any]) -> list[dict[str, Any]]:
    """What was repaired so far, and the banks of memory in which nothing more can be."""
    found = []
    if gpu["remapped_rows_uncorrectable"] is not None:
        found.append(
            _of(
                "gpu_remapped_rows",
                gpu,
                gpu["remapped_rows_uncorrectable"],
                unit="count",
                statistic="of the GPU's life, for uncorrectable errors",
                conditions={"for_correctable_errors": gpu["remapped_rows_correctable"], "banks": gpu["remap_banks"]},
            )
        )
    banks = gpu["remap_banks"]
    # Drivers that know no histogram print zeros throughout.
    if banks and any(banks.values()):
        found.append(
            _of(
                "gpu_exhausted_banks",
                gpu,
                banks["none"],
                unit="count",
                conditions=banks,
                cause="these banks of the GPU's memory have no spare row left: the next bad row there cannot be repaired"
                if banks["none"]
                else "",
                next_command=f"nvidia-smi -q -d ROW_REMAPPER -i {gpu['address']}",
            )
        )
    if gpu["retired_pages"] is not None:
        found.append(
            _of(
                "gpu_retired_pages",
                gpu,
                gpu["retired_pages"],
                unit="count",
                statistic="of the GPU's life",
                cause="weak memory was taken out of use page by page; a GPU has room for 64 pages"
                if gpu["retired_pages"]
                else "",
                next_command=f"nvidia-smi -q -d PAGE_RETIREMENT -i {gpu['address']}",
            )
        )
    return found
