"""Finds what NVIDIA's driver complained about in a kernel log: Xid of GPUs, SXid of NVSwitches."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from .nvidia_smi import normalise_address

# "NVRM: Xid (PCI:0000:9b:00): 119, pid=..."; drivers before 2014 leave out "PCI:", some forms add the function.
_XID = re.compile(
    r"NVRM: Xid \((?:PCI:)?([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2})(?:\.[0-7])?\): (\d{1,5})\b(.*)"
)
# "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"
_SXID = re.compile(r"SXid \(PCI:([0-9A-Fa-f:]{10,16})(?:\.[0-7])?\): (\d{1,6}), (Fatal|Non-fatal)?(.*)", re.IGNORECASE)

# Errors that NVIDIA's list of Xids lays at the door of the program that ran; the GPU goes on for the next one.
APPLICATION = frozenset({13, 31, 32, 43, 45, 66, 68, 69})

# What the commonest ones mean and what helps, after NVIDIA's "Xid Errors" document.
_MEANINGS = {
    48: "double-bit ECC error: reset the GPU; replace it if it comes again",
    61: "the GPU's internal microcontroller halted: restart, then update the driver",
    62: "the GPU's internal microcontroller halted: restart, then update the driver",
    63: "a memory row or page is to be taken out of use: reset the GPU to activate that",
    64: "a memory row or page could not be taken out of use: reset the GPU; replace it if it comes again",
    74: "NVLink error: look at nvidia-smi nvlink -s, reseat or replace the GPU or its bridge",
    79: "the GPU has fallen off the bus: look at power, temperature, seating and the PCIe link (AER in the kernel log)",
    92: "a high rate of corrected memory errors",
    94: "uncorrected memory error, contained: the program that met it ended; reset the GPU soon",
    95: "uncorrected memory error, not contained: reset the GPU before anything else runs on it",
    109: "context switch timed out: restart the program, then the GPU",
    119: "the GPU's system processor (GSP) did not answer: reset the GPU, then try another driver",
    120: "the GPU's system processor (GSP) failed: reset the GPU, then try another driver",
    140: "uncorrected ECC error: reset the GPU; replace it if it comes again",
    154: "the driver asks for a recovery: nvidia-smi -q shows which (GPU Recovery Action)",
}


def find_xids(log: str) -> list[dict[str, Any]]:
    """One entry per device and code: `address`, `code`, `count`, `application`, `switch`, `meaning`, `first` (a line).

    SXids count only when the line calls them fatal; the others are the switch's own notes.
    """
    counts: Counter[tuple[str, int, bool]] = Counter()
    first: dict[tuple[str, int, bool], str] = {}
    for line in log.splitlines():
        match = _XID.search(line)
        switch = False
        if not match:
            match = _SXID.search(line)
            switch = match is not None
            if match and (match.group(3) or "").lower() != "fatal":
                continue
        if not match:
            continue
        key = (normalise_address(match.group(1) + ".0"), int(match.group(2)), switch)
        counts[key] += 1
        first.setdefault(key, line.strip()[:300])
    return [
        {
            "address": address,
            "code": code,
            "count": count,
            "application": code in APPLICATION and not switch,
            "switch": switch,
            "meaning": "a fatal error of an NVSwitch or its link" if switch else _MEANINGS.get(code, ""),
            "first": first[address, code, switch],
        }
        for (address, code, switch), count in sorted(counts.items())
    ]
