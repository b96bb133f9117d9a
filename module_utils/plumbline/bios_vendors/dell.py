"""Dell PowerEdge 14G and later (iDRAC). `SysProfile` other than Custom locks the performance attributes."""

from __future__ import annotations

from typing import Any

_ON, _OFF = ["Enabled"], ["Disabled"]

MAP: dict[str, Any] = {
    "vendor": "Dell",
    "manufacturers": ["dell"],
    "logical": {
        "memory_mode": {
            "optimized": [{"MemOpMode": ["OptimizerMode"]}],
            "mirrored": [{"MemOpMode": ["MirrorMode"]}],
        },
        # 14G and older only; it lowers the speed of all slots.
        "pcie_link_speed": {
            "auto": [{"IioPcieGlobalSpeed": ["Default"]}],
            "gen1": [{"IioPcieGlobalSpeed": ["Gen1"]}],
            "gen2": [{"IioPcieGlobalSpeed": ["Gen2"]}],
            "gen3": [{"IioPcieGlobalSpeed": ["Gen3"]}],
        },
        "c_states": {
            "disabled": [{"ProcCStates": _OFF, "ProcC1E": _OFF}],
            "enabled": [{"ProcCStates": _ON, "ProcC1E": _ON}],
        },
        # No attribute switches SpeedStep off; these say who chooses the P-state.
        "p_states": {
            "os_control": [{"ProcPwrPerf": ["OsDbpm"]}],
            "maximum_performance": [{"ProcPwrPerf": ["MaxPerf"]}],
        },
        "turbo": {"enabled": [{"ProcTurboMode": _ON}], "disabled": [{"ProcTurboMode": _OFF}]},
        "sriov": {"enabled": [{"SriovGlobalEnable": _ON}], "disabled": [{"SriovGlobalEnable": _OFF}]},
        "uncore_frequency": {
            "dynamic": [{"UncoreFrequency": ["DynamicUFS"]}],
            "maximum": [{"UncoreFrequency": ["MaxUFS"]}],
        },
        "workload_profile": {
            "custom": [{"SysProfile": ["Custom"]}],
            "high_performance": [{"WorkloadProfile": ["HpcProfile"]}, {"SysProfile": ["PerfOptimized"]}],
            "low_latency": [{"WorkloadProfile": ["LowLatencyOptimizedProfile"]}],
            "balanced": [{"SysProfile": ["PerfPerWattOptimizedDapc", "PerfPerWattOptimizedOs"]}],
            "virtualization": [{"WorkloadProfile": ["VtOptimizedProfile"]}],
        },
        "sub_numa": {
            "disabled": [{"SubNumaCluster": _OFF}],
            "two": [{"SubNumaCluster": ["2-Way"]}],
        },
        "numa": {"enabled": [{"NodeInterleave": _OFF}], "disabled": [{"NodeInterleave": _ON}]},
        "above_4g_decoding": {"enabled": [{"MmioAbove4Gb": _ON}], "disabled": [{"MmioAbove4Gb": _OFF}]},
        "pcie_aspm": {"disabled": [{"PcieAspmL1": _OFF}], "auto": [{"PcieAspmL1": _ON}]},
        "hyper_threading": {"enabled": [{"LogicalProc": _ON}], "disabled": [{"LogicalProc": _OFF}]},
    },
    "requires": {
        name: {"SysProfile": "Custom"}
        for name in ("ProcCStates", "ProcC1E", "ProcPwrPerf", "ProcTurboMode", "UncoreFrequency", "PcieAspmL1")
    },
}
