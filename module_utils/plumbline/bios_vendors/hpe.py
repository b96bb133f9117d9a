"""HPE ProLiant (iLO 5 and later), Intel and AMD. `WorkloadProfile` other than Custom locks what the profile sets."""

from __future__ import annotations

from typing import Any

_ON, _OFF = ["Enabled"], ["Disabled"]
_SPEEDS = {f"gen{n}": [{"PciSlot*LinkSpeed": [f"PcieGen{n}"]}] for n in range(1, 6)}

MAP: dict[str, Any] = {
    "vendor": "HPE",
    "manufacturers": ["hpe", "hewlett"],
    "logical": {
        "memory_mode": {
            "optimized": [{"AdvancedMemProtection": ["AdvancedEcc"]}],
            "mirrored": [{"AdvancedMemProtection": ["MirroredAdvancedEcc"]}],
        },
        "pcie_link_speed": {"auto": [{"PciSlot*LinkSpeed": ["Auto"]}, {"MaxPcieSpeed": ["PerPortCtrl"]}], **_SPEEDS},
        "c_states": {
            "disabled": [{"MinProcIdlePower": ["NoCStates"], "MinProcIdlePkgState": ["NoState"]}],
            "enabled": [{"MinProcIdlePower": ["C6"], "MinProcIdlePkgState": ["C6Retention"]}],
        },
        # No attribute switches SpeedStep off; these say who chooses the P-state.
        "p_states": {
            "os_control": [{"PowerRegulator": ["OsControl"]}],
            "maximum_performance": [{"PowerRegulator": ["StaticHighPerf"]}],
        },
        "turbo": {
            "enabled": [{"ProcTurbo": _ON}],
            "disabled": [{"ProcTurbo": _OFF}],
        },
        "sriov": {"enabled": [{"Sriov": _ON}], "disabled": [{"Sriov": _OFF}]},
        "uncore_frequency": {
            "dynamic": [{"UncoreFreqScaling": ["Auto"]}],
            "maximum": [{"UncoreFreqScaling": ["Maximum"]}],
            "minimum": [{"UncoreFreqScaling": ["Minimum"]}],
        },
        "workload_profile": {
            "custom": [{"WorkloadProfile": ["Custom"]}],
            "high_performance": [{"WorkloadProfile": ["HighPerformanceCompute(HPC)"]}],
            "throughput": [{"WorkloadProfile": ["GeneralThroughputCompute"]}],
            "low_latency": [{"WorkloadProfile": ["LowLatency"]}],
            "balanced": [{"WorkloadProfile": ["GeneralPowerEfficientCompute"]}],
            "virtualization": [{"WorkloadProfile": ["Virtualization-MaxPerformance"]}],
        },
        "sub_numa": {
            "disabled": [{"SubNumaClustering": _OFF}],
            "two": [{"SubNumaClustering": ["EnableSnc2"]}],
            "four": [{"SubNumaClustering": ["EnableSnc4"]}],
        },
        "numa": {
            "enabled": [{"NodeInterleaving": _OFF}, {"Numa": _ON}],
            "disabled": [{"NodeInterleaving": _ON}, {"Numa": _OFF}],
        },
        "above_4g_decoding": {},
        "pcie_aspm": {"disabled": [{"PcieGlobalAspm": _OFF}], "auto": [{"PcieGlobalAspm": _ON}]},
        "hyper_threading": {
            "enabled": [{"ProcHyperthreading": _ON}],
            "disabled": [{"ProcHyperthreading": _OFF}],
        },
    },
    # The registry's own Dependencies say what a profile locks, and they say it better: not every profile locks everything.
    "requires": {},
}
