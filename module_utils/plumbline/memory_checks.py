"""Measurements of memory as a whole: its error counters, whether ECC is on, and whether the kernel has all of it."""

from __future__ import annotations

from typing import Any

_SECONDS_PER_HOUR = 3600
_LOOK = "dmidecode -t memory | grep -E 'Locator|Size|Width|Error Correction'"


def dimm_ecc(facts: dict[str, Any], modules: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Whether error correction is on, of a machine that has any DIMM with check bits; DIMMs without spoil it for all."""
    plain = [str(dimm["locator"]) for dimm in modules if dimm["ecc"] is False]
    if not any(dimm["ecc"] for dimm in modules):
        return []
    arrays = {
        array["error_correction"] for array in facts["memory_arrays"] if array["system_memory"] and not array["cxl"]
    }
    measurement: dict[str, Any] = {
        "name": "dimm_ecc",
        "scope": "node",
        "value": "on" if not plain and "none" not in arrays else "off",
        "expected": "on",
        "unit": "",
        "conditions": {"error_correction": sorted(told for told in arrays if told), "dimms_without_check_bits": plain},
        "next_command": _LOOK,
    }
    if plain:
        measurement["cause"] = (
            f"DIMM {', '.join(plain[:4])}{f' and {len(plain) - 4} more' if len(plain) > 4 else ''} "
            "has no check bits, so nothing corrects errors there: replace it with one that has"
        )
    else:
        measurement["cause"] = "the DIMMs have check bits and the firmware does not use them: switch ECC on in the BIOS"
    return [measurement]


def memory_visible(facts: dict[str, Any]) -> list[dict[str, Any]]:
    """What the kernel manages beside what is fitted; nothing where memory of other kinds makes them incomparable."""
    kernel, fitted = facts["kernel_memory_bytes"], facts["memory_bytes"]
    persistent = any(dimm["technology"] not in ("DRAM", "NVDIMM-N") for dimm in facts["dimms"] if dimm["populated"])
    if not kernel or not fitted or persistent or facts["other_memory"]:
        return []
    return [
        {
            "name": "memory_visible",
            "scope": "node",
            "value": kernel,
            "unit": "B",
            "limit": fitted,
            "limit_source": "sum of the DIMMs (SMBIOS)",
            "cause": (
                f"the DIMMs hold {fitted >> 30} GiB and the kernel has {kernel >> 30}: a DIMM that the firmware mapped out, mirroring, "
                "or memory that was set aside (mem=, crashkernel=, integrated graphics)"
            ),
            "next_command": "dmesg | grep -iE 'memory:|e820'; cat /proc/cmdline",
        }
    ]


def edac_measurements(edac: dict[str, Any]) -> list[dict[str, Any]]:
    """`edac_uncorrectable_errors` since boot and `edac_correctable_errors` per hour of each memory controller."""
    if not edac["available"]:
        return [{"name": "edac_uncorrectable_errors", "scope": "node", "skipped": edac["reason"]}]
    found = []
    for controller in edac["controllers"]:
        for kind in ("uncorrectable", "correctable"):
            found.append(_edac(controller, kind))
    return found


def _edac(controller: dict[str, Any], kind: str) -> dict[str, Any]:
    scope, count, seconds = controller["name"], controller[kind], controller["seconds"]
    measurement: dict[str, Any] = {"name": f"edac_{kind}_errors", "scope": scope}
    if count is None:
        error = f"memory controller {scope} does not tell its {kind} errors"
        return {**measurement, "error": error, "next_command": f"grep . /sys/devices/system/edac/mc/{scope}/*count"}
    hours = max((seconds or 0) / _SECONDS_PER_HOUR, 1.0)
    places = [
        f"{dimm[kind]} at {dimm['label'] or dimm['location'] or dimm['name']}"
        for dimm in controller["dimms"]
        if dimm[kind]
    ]
    unplaced = controller[f"{kind}_without_place"]
    if unplaced:
        places.append(f"{unplaced} without a place")
    per_hour = kind == "correctable"
    measurement.update(
        value=round(count / hours, 3) if per_hour else count,
        unit="1/h" if per_hour else "count",
        conditions={"count": count, "seconds": seconds, "driver": controller["driver"]},
    )
    if count:
        errors = f"{kind} error" + ("s" if count != 1 else "")
        measurement["cause"] = (
            f"memory controller {scope} counted {count} {errors}"
            + (f" ({', '.join(places[:6])})" if places else "")
            + ": replace the DIMM"
        )
        measurement["next_command"] = (
            f"grep -r . /sys/devices/system/edac/mc/{scope} 2>/dev/null | grep -E '[cu]e_count|label'"
        )
    return measurement
