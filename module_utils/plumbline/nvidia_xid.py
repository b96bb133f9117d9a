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

# "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
_NO_RECOVERY = re.compile(r"to 0x0+ \(None\)")

# Errors that NVIDIA's list of Xids lays at the door of the program that ran; the GPU goes on for the next one.
APPLICATION = frozenset({13, 31, 32, 43, 45, 66, 68, 69})

# Errors after which the GPU goes on as it is: NVIDIA's catalogue says IGNORE, or to restart the program that met it.
RECOVERED = frozenset({63, 92, 93, 94, 106, 107, 121, 160})
# An uncorrected memory error; 94 says that it was contained, that is, that one program met it and ended.
_UNCORRECTED = frozenset({48, 171, 172})
_CONTAINED = 94
# What says of the same GPU that it was more than that: not contained, not repaired.
_WORSE = frozenset({64, 95, 140, 161})

# What the commonest ones mean and what helps, after NVIDIA's "Xid Errors" document.
_MEANINGS = {
    48: "double-bit ECC error: reset the GPU; replace it if it comes again",
    61: "the GPU's internal microcontroller halted: restart, then update the driver",
    62: "the GPU's internal microcontroller halted: restart, then update the driver",
    63: "a memory row or page is to be taken out of use, which the next reset of the GPU does",
    64: "a memory row or page could not be taken out of use: reset the GPU; replace it if it comes again",
    74: "NVLink error: look at nvidia-smi nvlink -s, reseat or replace the GPU or its bridge",
    79: "the GPU has fallen off the bus: look at power, temperature, seating and the PCIe link (AER in the kernel log)",
    92: "a high rate of corrected memory errors",
    93: "the GPU's configuration memory has reached the wear limit that was set for it",
    94: "uncorrected memory error, contained: the program that met it ended; reset the GPU when convenient",
    95: "uncorrected memory error, not contained: reset the GPU before anything else runs on it",
    106: "a test message of the BMC's interface",
    107: "a test message of the BMC's interface",
    109: "context switch timed out: restart the program, then the GPU",
    119: "the GPU's system processor (GSP) did not answer: reset the GPU, then try another driver",
    120: "the GPU's system processor (GSP) failed: reset the GPU, then try another driver",
    121: "corrected errors on the link to the processor (C2C): reset the GPU when convenient",
    140: "uncorrected ECC error: reset the GPU; replace it if it comes again",
    154: "the driver asks for a recovery: nvidia-smi -q shows which (GPU Recovery Action)",
    160: "a channel of the memory is to be repaired, which the next reset of the GPU does",
    161: "a channel of the memory could not be repaired: replace the GPU if errors come again",
    171: "uncorrected error in the GPU's DRAM",
    172: "uncorrected error in the GPU's SRAM: replace the GPU where its threshold is exceeded",
}


def find_xids(log: str) -> list[dict[str, Any]]:
    """One entry per device and code: `address`, `code`, `count`, `application`, `recovered`, `switch`, `meaning`, `first` (a line).

    `recovered` is an error after which the GPU goes on as it is; an uncorrected memory error is one where the same GPU
    says that it was contained and nothing that is worse. SXids count only when the line calls them fatal; the others are
    the switch's own notes. An Xid 154 that takes a wish for recovery back is none.
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
        if not match or (match.group(2) == "154" and not switch and _NO_RECOVERY.search(line)):
            continue
        key = (normalise_address(match.group(1) + ".0"), int(match.group(2)), switch)
        counts[key] += 1
        first.setdefault(key, line.strip()[:300])
    codes: dict[str, set[int]] = {}
    for address, code, switch in counts:
        if not switch:
            codes.setdefault(address, set()).add(code)
    return [
        {
            "address": address,
            "code": code,
            "count": count,
            "application": code in APPLICATION and not switch,
            "recovered": not switch and _recovered(code, codes[address]),
            "switch": switch,
            "meaning": "a fatal error of an NVSwitch or its link" if switch else _MEANINGS.get(code, ""),
            "first": first[address, code, switch],
        }
        for (address, code, switch), count in sorted(counts.items())
    ]


def _recovered(code: int, beside: set[int]) -> bool:
    if code in _UNCORRECTED:
        return _CONTAINED in beside and not beside & _WORSE
    return code in RECOVERED
