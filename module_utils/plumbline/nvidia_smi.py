"""Reads what `nvidia-smi -q -x` prints, in its schemas v10 to v13; whatever is missing or N/A is `None`."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

# A machine with 16 GPUs prints about 1 MB; more is no answer of nvidia-smi.
_LONGEST = 32 * 1024 * 1024
_ADDRESS = re.compile(r"^([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])$")
_MIB = 1024 * 1024
# Fields that say that memory waits for a reset to be repaired: path, what it means.
_REPAIRS = (
    ("retired_pages/pending_retirement", "page retirement pending"),
    ("retired_pages/pending_blacklist", "page retirement pending"),
    ("remapped_rows/remapped_row_pending", "row remap pending"),
    ("ecc_errors/channel_repair_pending", "channel repair pending"),
    ("ecc_errors/tpc_repair_pending", "TPC repair pending"),
)
# Fields that say that memory can no longer be repaired; by NVIDIA's policy each is a reason to return the GPU.
_FAILURES = (
    ("remapped_rows/remapped_row_failure", "row remap failed"),
    ("ecc_errors/unrepairable_memory", "memory that cannot be repaired"),
    ("ecc_errors/aggregate/sram_threshold_exceeded", "SRAM error threshold exceeded"),
)


class SmiError(ValueError):
    """The text is no answer of nvidia-smi; one sentence says what it is instead."""


def parse_smi(text: str) -> dict[str, Any]:
    """The driver's version, CUDA's, the GPUs, and what nvidia-smi printed around its answer. Raises SmiError.

    Returns `schema`, `driver_version`, `cuda_version`, `attached_gpus`, `warnings` (lines outside the XML) and `gpus`.
    """
    if len(text) > _LONGEST:
        raise SmiError(f"nvidia-smi printed {len(text)} characters, more than any machine has to say")
    begin, end = text.find("<nvidia_smi_log"), text.rfind("</nvidia_smi_log>")
    if begin < 0 or end < begin:
        first = next((line.strip() for line in text.splitlines() if line.strip()), "nothing")
        raise SmiError(f"nvidia-smi -q -x printed no XML but {first[:200]!r}")
    end += len("</nvidia_smi_log>")
    try:
        # From the root element on: no document type, so there are no entities to expand.
        root = ElementTree.fromstring(text[begin:end])  # noqa: S314
    except (ElementTree.ParseError, ValueError) as error:
        raise SmiError(f"nvidia-smi -q -x printed XML that cannot be read ({error})") from None
    schema = re.search(r"nvsmi_device_v(\d+)\.dtd", text[:begin])
    around = (text[:begin] + "\n" + text[end:]).splitlines()
    return {
        "schema": int(schema.group(1)) if schema else None,
        "driver_version": _value(root, "driver_version"),
        "cuda_version": _value(root, "cuda_version"),
        "attached_gpus": _integer(root, "attached_gpus"),
        "warnings": [line.strip() for line in around if line.strip() and not line.strip().startswith("<")],
        "gpus": [_gpu(element) for element in root.findall("gpu")],
    }


def normalise_address(text: str) -> str:
    """A PCI address as Linux writes it (`0000:1b:00.0`); text of another form is returned as it is, in lower case."""
    lower = text.strip().lower()
    match = _ADDRESS.match(lower)
    if not match:
        return lower
    # nvidia-smi writes the domain with eight digits; Linux with four, or more where it needs them.
    domain = match.group(1)[-4:] if match.group(1)[:-4].strip("0") == "" else match.group(1).lstrip("0")
    return f"{domain}:{match.group(2)}:{match.group(3)}.{match.group(4)}"


def _gpu(gpu: ElementTree.Element) -> dict[str, Any]:
    link = "pci/pci_gpu_link_info/"
    address = _value(gpu, "pci/pci_bus_id") or gpu.get("id") or ""
    return {
        "address": normalise_address(address),
        "uuid": _value(gpu, "uuid"),
        "name": _value(gpu, "product_name"),
        "architecture": _value(gpu, "product_architecture"),
        "gsp_firmware_version": _value(gpu, "gsp_firmware_version"),
        "persistence_mode": _value(gpu, "persistence_mode"),
        "compute_mode": _value(gpu, "compute_mode"),
        "mig_mode": _value(gpu, "mig_mode/current_mig"),
        "memory_total_bytes": _quantity(gpu, "fb_memory_usage/total", "MiB", _MIB),
        # What the driver keeps of it: CUDA has the rest. Schemas before v12 do not tell.
        "memory_reserved_bytes": _quantity(gpu, "fb_memory_usage/reserved", "MiB", _MIB),
        "power_limit_watts": _power(gpu, "current_power_limit", "power_limit"),
        "power_limit_default_watts": _power(gpu, "default_power_limit"),
        "power_limit_minimum_watts": _power(gpu, "min_power_limit"),
        "power_limit_maximum_watts": _power(gpu, "max_power_limit"),
        "ecc_mode": _value(gpu, "ecc_mode/current_ecc"),
        "ecc_mode_pending": _value(gpu, "ecc_mode/pending_ecc"),
        "ecc_uncorrected": _ecc(gpu, "volatile", "uncorrectable", "double_bit"),
        "ecc_corrected": _ecc(gpu, "volatile", "correctable", "single_bit"),
        "ecc_uncorrected_sram": _ecc(gpu, "volatile", "uncorrectable", "", memories="sram"),
        "ecc_uncorrected_lifetime": _ecc(gpu, "aggregate", "uncorrectable", "double_bit"),
        "ecc_corrected_lifetime": _ecc(gpu, "aggregate", "correctable", "single_bit"),
        "repairs": _flags(gpu, _REPAIRS),
        "failures": _flags(gpu, _FAILURES),
        "remapped_rows_uncorrectable": _integer(gpu, "remapped_rows/remapped_row_unc"),
        "remapped_rows_correctable": _integer(gpu, "remapped_rows/remapped_row_corr"),
        "remap_banks": _banks(gpu),
        "retired_pages": _retired_pages(gpu),
        "recovery_action": _value(gpu, "gpu_recovery_action"),
        "fabric_state": _value(gpu, "fabric/state"),
        "fabric_status": _value(gpu, "fabric/status"),
        "pcie_replays": _integer(gpu, "pci/replay_counter"),
        "link_generation": _integer(gpu, link + "pcie_gen/current_link_gen"),
        "link_generation_maximum": _integer(gpu, link + "pcie_gen/max_link_gen"),
        "link_width": _lanes(gpu, link + "link_widths/current_link_width"),
        "link_width_maximum": _lanes(gpu, link + "link_widths/max_link_width"),
    }


def _power(gpu: ElementTree.Element, name: str, old: str = "") -> float | None:
    """A limit in watts; until schema v11 the readings stood elsewhere, and the limit in force had another name."""
    if gpu.find("gpu_power_readings") is not None:
        return _quantity(gpu, f"gpu_power_readings/{name}", "W", 1)
    return _quantity(gpu, f"power_readings/{old or name}", "W", 1)


def _ecc(gpu: ElementTree.Element, counter: str, modern: str, old: str, memories: str = "sram|dram") -> int | None:
    """Errors over all memories; `None` where the GPU counts none.

    *counter* is `volatile` (since the driver was loaded) or `aggregate` (of the GPU's life). Until schema v11 some GPUs
    tell single and double bits with a total, later ones correctable and uncorrectable errors by memory (with the kind of
    check in the name since v13).
    """
    total = _integer(gpu, f"ecc_errors/{counter}/{old}/total") if old else None
    if total is not None:
        return total
    counters = gpu.find(f"ecc_errors/{counter}")
    counted = [
        _number(element.text)
        for element in (counters if counters is not None else ())
        if re.match(rf"^({memories})_{modern}(_|$)", element.tag)
    ]
    known = [count for count in counted if count is not None]
    return sum(known) if known else None


def _flags(gpu: ElementTree.Element, fields: tuple[tuple[str, str], ...]) -> list[str] | None:
    """What of *fields* is set, without doubles; `None` where the GPU says nothing about any of them."""
    told = False
    found: dict[str, None] = {}
    for path, meaning in fields:
        value = _value(gpu, path)
        if value in ("Yes", "No"):
            told = True
        if value == "Yes":
            found[meaning] = None
    return list(found) if told else None


def _banks(gpu: ElementTree.Element) -> dict[str, int] | None:
    """Banks by how many spare rows they have left: `max`, `high`, `partial`, `low`, `none`."""
    found = {}
    for level in ("max", "high", "partial", "low", "none"):
        path = f"remapped_rows/row_remapper_histogram/row_remapper_histogram_{level}"
        count = _number((_value(gpu, path) or "").partition(" ")[0])
        if count is None:
            return None
        found[level] = count
    return found


def _retired_pages(gpu: ElementTree.Element) -> int | None:
    """Pages of memory that were taken out of use for good, on GPUs before row remapping; `None` where it tells none."""
    counts = [
        _integer(gpu, f"retired_pages/{cause}_retirement/retired_count")
        for cause in ("multiple_single_bit", "double_bit")
    ]
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _value(element: ElementTree.Element, path: str) -> str | None:
    found = element.find(path)
    text = (found.text or "").strip() if found is not None else ""
    if (
        not text
        or text in ("N/A", "[N/A]")
        or text.startswith(("Requested functionality", "[Unknown", "Unknown Error"))
    ):
        return None
    return text


def _number(text: str | None) -> int | None:
    stripped = (text or "").strip()
    # Digits of other scripts are digits to str.isdigit() but a count of nvidia-smi is ASCII; 20 of them hold 64 bits.
    return int(stripped) if re.fullmatch(r"[0-9]{1,20}", stripped) else None


def _integer(element: ElementTree.Element, path: str) -> int | None:
    return _number(_value(element, path))


def _lanes(element: ElementTree.Element, path: str) -> int | None:
    return _number((_value(element, path) or "").rstrip("x"))


def _quantity(element: ElementTree.Element, path: str, unit: str, factor: int) -> float | None:
    match = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,6})?) ?" + re.escape(unit), _value(element, path) or "")
    return float(match.group(1)) * factor if match else None
