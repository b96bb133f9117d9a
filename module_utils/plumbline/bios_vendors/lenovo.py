"""Lenovo ThinkSystem (XCC). An operating mode other than CustomMode locks the knobs under it; spelling varies by generation."""

from __future__ import annotations

from typing import Any

_ON, _OFF = ["Enabled", "Enable"], ["Disabled", "Disable"]
_SPEEDS = {f"gen{n}": [{"DevicesandIOPorts_PCIeGen_Slot*": [f"Gen{n}"]}] for n in range(1, 6)}

MAP: dict[str, Any] = {
    "vendor": "Lenovo",
    "manufacturers": ["lenovo"],
    "logical": {
        "memory_mode": {
            "optimized": [{"Memory_MirrorMode": _OFF}],
            "mirrored": [{"Memory_MirrorMode": ["Full"]}],
        },
        "pcie_link_speed": {"auto": [{"DevicesandIOPorts_PCIeGen_Slot*": ["Auto"]}], **_SPEEDS},
        "c_states": {
            "disabled": [{"Processors_CStates": _OFF, "Processors_C1EnhancedMode": _OFF}],
            "enabled": [{"Processors_CStates": ["Legacy"], "Processors_C1EnhancedMode": _ON}],
        },
        "p_states": {
            "os_control": [{"Processors_CPUPstateControl": ["CooperativeWithoutLegacy", "Legacy"]}],
            "autonomous": [{"Processors_CPUPstateControl": ["Autonomous"]}],
            "disabled": [{"Processors_CPUPstateControl": ["None"]}],
        },
        "turbo": {"enabled": [{"Processors_TurboMode": _ON}], "disabled": [{"Processors_TurboMode": _OFF}]},
        "sriov": {
            "enabled": [{"DevicesandIOPorts_SRIOV": _ON}],
            "disabled": [{"DevicesandIOPorts_SRIOV": _OFF}],
        },
        # Scaling off is the highest frequency all the time.
        "uncore_frequency": {
            "dynamic": [{"Processors_UncoreFrequencyScaling": _ON}],
            "maximum": [{"Processors_UncoreFrequencyScaling": _OFF}],
        },
        "workload_profile": {
            "custom": [{"OperatingModes_ChooseOperatingMode": ["CustomMode"]}],
            "high_performance": [{"OperatingModes_ChooseOperatingMode": ["MaximumPerformance"]}],
            "balanced": [{"OperatingModes_ChooseOperatingMode": ["Efficiency_FavorPerformance"]}],
            "power_saving": [{"OperatingModes_ChooseOperatingMode": ["MinimalPower"]}],
        },
        "sub_numa": {
            "disabled": [{"Processors_SNC": _OFF}],
            "two": [{"Processors_SNC": _ON}],
        },
        "numa": {
            "enabled": [{"Memory_SocketInterleave": ["NUMA"]}],
        },
        "above_4g_decoding": {},
        "pcie_aspm": {"disabled": [{"Power_ASPM": _OFF}], "auto": [{"Power_ASPM": ["Auto"]}]},
        "hyper_threading": {
            "enabled": [{"Processors_HyperThreading": _ON}],
            "disabled": [{"Processors_HyperThreading": _OFF}],
        },
    },
    "requires": {
        name: {"OperatingModes_ChooseOperatingMode": "CustomMode"}
        for name in (
            "Processors_CStates",
            "Processors_C1EnhancedMode",
            "Processors_CPUPstateControl",
            "Processors_TurboMode",
            "Processors_UncoreFrequencyScaling",
            "Memory_MemorySpeed",
        )
    },
}
