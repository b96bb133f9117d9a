"""Which memory devices of a SMBIOS table are slots of DRAM channels, and what their widths and speeds really mean."""

from __future__ import annotations

from typing import Any

# A module of DDR carries 64 bits of data a transfer (DDR5: two sub-channels of 32); the rest of its total width is for ECC. Some
# firmware counts that as data, some tells one sub-channel.
_DDR_DATA_BITS = 64

# The slowest rates that these generations have (JESD79-4, JESD79-5). What is below was told as the clock, half the rate.
_SLOWEST_MTS = {"DDR4": 1600, "DDR5": 3200}
_ROUNDING_MTS = 2

_SOLDERED_FORMS = ("chip", "row of chips", "die")


def data_bits(kind: str | None, told: int | None) -> int:
    """Bits of data that a module moves in one transfer."""
    if told is None or (kind or "").startswith("DDR"):
        return _DDR_DATA_BITS
    return told


def soldered(device: dict[str, Any]) -> bool:
    """Whether a device is no module in a slot: LPDDR, or a form that only a soldered part has."""
    return (device["type"] or "").startswith("LPDDR") or device["form_factor"] in _SOLDERED_FORMS


def slots_and_others(smbios: dict[str, Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The devices that are slots (or soldered DRAM) of the processors' own channels, and what else holds memory.

    Memory in the processor's package (HBM) and behind CXL is memory of the system, but fills no channel of a socket.
    Flash and caches have arrays of another use and are left out; where arrays are missing every device counts.
    """
    arrays = {array["handle"]: array for array in smbios["memory_arrays"]}
    system = {handle for handle, array in arrays.items() if array["system_memory"]}
    devices = [device for device in smbios["memory_devices"] if not system or device["array_handle"] in system]
    devices = devices or smbios["memory_devices"]
    slots, others = [], []
    for device in devices:
        where = "HBM" if (device["type"] or "").startswith("HBM") else None
        if arrays.get(device["array_handle"], {}).get("cxl"):
            where = "CXL"
        if where is None:
            slots.append(device)
            continue
        others.append(
            {
                "where": where,
                "locator": device["locator"],
                "type": device["type"],
                "size_bytes": device["size_bytes"],
                "array_handle": device["array_handle"],
            }
        )
    return slots, others


def transfer_rates(devices: list[dict[str, Any]]) -> list[str]:
    """Double configured speeds that are clocks, in place; one note says of how many. Seen with AMD firmware up to Zen 2."""
    doubled = [device for device in devices if _is_clock(device)]
    for device in doubled:
        device["configured_speed_mts"] *= 2
    if not doubled:
        return []
    return [
        f"the firmware tells the memory clock of {len(doubled)} DIMMs as their configured speed: taken twice, as transfers are counted"
    ]


def _is_clock(device: dict[str, Any]) -> bool:
    slowest = _SLOWEST_MTS.get(device["type"] or "")
    rated, configured = device["speed_mts"], device["configured_speed_mts"]
    if not slowest or not rated or not configured or 2 * configured > rated + _ROUNDING_MTS:
        return False
    # No DIMM of DDR4 runs at exactly half of its rating either: 1600 of 3200 is the clock.
    return bool(configured < slowest or (device["type"] == "DDR4" and rated - 2 * configured <= _ROUNDING_MTS))
