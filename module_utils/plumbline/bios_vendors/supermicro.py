"""Supermicro. The suffix of a name (`_3D22`) varies by board and BIOS; Disable and Disabled are mixed within one BIOS."""

from __future__ import annotations

from typing import Any

_ON, _OFF = ["Enabled", "Enable"], ["Disabled", "Disable"]

MAP: dict[str, Any] = {
    "vendor": "Supermicro",
    "manufacturers": ["supermicro", "super micro"],
    "logical": {
        "memory_mode": {
            "optimized": [{"MirrorMode": _OFF, "VolatileMemoryMode": ["1LM"]}],
            "mirrored": [{"MirrorMode": ["Full Mirror Mode"]}],
        },
        # Names of the GB300 board; a bound for each port, which cannot raise a speed.
        "pcie_link_speed": {f"gen{n}": [{"Socket*Pcie*MaxPCIespeed": [f"GEN{n}"]}] for n in range(1, 6)},
        "c_states": {
            "disabled": [{"CPUC6Report": _OFF, "PackageCState": ["C0/C1 state"], "EnhancedHaltState_C1E": _OFF}],
            "enabled": [{"CPUC6Report": _ON, "PackageCState": ["Auto"], "EnhancedHaltState_C1E": _ON}],
        },
        "p_states": {
            "os_control": [
                {"SpeedStep_P_States": _ON, "HardwareP_States": ["Native Mode"]},
                {"SpeedStep(P-States)": _ON},
            ],
            "autonomous": [{"HardwareP_States": ["Out of Band Mode"]}],
            "disabled": [{"SpeedStep_P_States": _OFF}, {"SpeedStep(P-States)": _OFF}],
        },
        "turbo": {"enabled": [{"TurboMode": _ON}], "disabled": [{"TurboMode": _OFF}]},
        "sriov": {
            "enabled": [{"SR_IOVSupport": _ON}, {"SR-IOVSupport": _ON}],
            "disabled": [{"SR_IOVSupport": _OFF}, {"SR-IOVSupport": _OFF}],
        },
        "uncore_frequency": {},
        # No workload profile; the power technology is what locks and frees the performance knobs.
        "workload_profile": {
            "custom": [{"PowerTechnology": ["Custom"]}],
            "power_saving": [{"PowerTechnology": ["Energy Efficient"]}],
        },
        "sub_numa": {
            "disabled": [{"SNC": _OFF}],
            "two": [{"SNC": ["Enable SNC2 (2-clusters)"]}],
            "four": [{"SNC": ["Enable SNC4 (4-clusters)"]}],
            "auto": [{"SNC": ["Auto"]}],
        },
        "numa": {"enabled": [{"NUMA": _ON}], "disabled": [{"NUMA": _OFF}]},
        "above_4g_decoding": {"enabled": [{"Above4GDecoding": _ON}], "disabled": [{"Above4GDecoding": _OFF}]},
        "pcie_aspm": {
            "disabled": [{"PCIeASPMSupport_Global": _OFF}, {"Socket*Pcie*AdvertiseASPML1": [False]}],
            "auto": [{"PCIeASPMSupport_Global": ["Auto"]}, {"Socket*Pcie*AdvertiseASPML1": [True]}],
        },
        "hyper_threading": {},
    },
    "requires": {},
}
