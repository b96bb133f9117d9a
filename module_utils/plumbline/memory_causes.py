"""Why a measured memory bandwidth may be below what the DIMMs allow, from what is known of the run and of the machine."""

from __future__ import annotations

from typing import Any

from .loose import mappings, number, words

NEXT = "dmidecode -t memory | grep -E 'Locator|Size|Speed'; numactl --hardware; turbostat --quiet --num_iterations 1"
"""What to look at: the DIMMs, where memory is, the processor's clock."""


def probable_cause(conditions: dict[str, Any], dimm: dict[str, Any] | None) -> str:
    """The causes at hand, the likeliest first; without any, where to look in the firmware. *conditions* are of the measurement."""
    found = []
    quota = conditions.get("cpu_quota")
    if quota and quota < conditions.get("threads", 0):
        found.append(f"a quota leaves {quota:g} processors to {conditions['threads']} threads")
    load = conditions.get("load_average_before") or 0
    if load >= 1:
        found.append(f"other programs were at work (load average {load:g})")
    if any("pinned" in note for note in conditions.get("notes", [])):
        found.append("threads could not be pinned to their processors")
    for socket in mappings((dimm or {}).get("sockets")):
        most, least = number(socket.get("channel_bytes_largest")), number(socket.get("channel_bytes_smallest"))
        if most and least and least < most:
            found.append(
                f"the channels of socket {words(socket.get('socket')) or '?'} hold unequal memory, which interleaves only in part"
            )
    if conditions.get("non_temporal_stores") is False:
        found.append("this processor's kernel uses plain stores, which read each line before they write it")
    advice = (
        "look at the BIOS: power profile, memory interleaving, NUMA nodes per socket; and at a processor that throttles"
    )
    return f"{'; '.join(found)}; else {advice}" if found else advice
