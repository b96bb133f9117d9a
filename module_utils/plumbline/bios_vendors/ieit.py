"""IEIT (Inspur): M6 and M7 boards. M7 takes value names (`C0SUPPORT`), M6 display texts (`C0/C1 state`)."""

from __future__ import annotations

from typing import Any

_ON, _OFF = ["Enabled"], ["Disabled", "DISABLE"]

# Every name that IEIT's own tool ties to the custom power profile.
_CUSTOM_M7 = [
    "ProcessorHyperThreadingDisable",
    "ProcessorHWPMEnable",
    "MonitorMWait",
    "ProcessorEistEnable",
    "ControlTurboPStatus",
    "TurboMode",
    "VTdSupport",
    "PcieGlobalAspm",
    "NumaEn",
    "SriovSupport",
    "MlcStreamerPrefetcherEnable",
    "L2RfoPrefetchDisable",
    "MlcSpatialPrefetcherEnable",
    "DCUStreamerPrefetcherEnable",
    "DCUIPPrefetcherEnable",
    "PatrolScrub",
    "ProcessorC1eEnable",
    "C6Enable",
    "PackageCState",
    "UncoreFreqScaling",
    "AltEngPerfBIAS",
    "SncEn",
    "KtiPrefetchEn",
]
_CUSTOM_M6 = [
    "ProcessorHwpmEn",
    "ProcessorMwait",
    "ProcessorEist",
    "TurboModeEn",
    "IioVtdSupport",
    "Numaen",
    "ProcessorHardwarePrefetcher",
    "ProcessorAdjacentCachePrefetcher",
    "ProcessorDcuStreamerPrefetcher",
    "ProcessorDcuIpPrefetcher",
    "ProcessorC1E",
    "C6En",
    "PackageCstateReport",
    "Snc",
]

MAP: dict[str, Any] = {
    "vendor": "IEIT",
    "manufacturers": ["ieit", "inspur", "kaytus"],
    "logical": {
        "memory_mode": {
            "optimized": [{"MirrorMode": _OFF, "volMemMode": ["1LM"]}],
            "mirrored": [{"MirrorMode": ["MIRROR_ENABLE", "Full Mirror Mode"]}],
        },
        "c_states": {
            "disabled": [
                {"C6Enable": _OFF, "PackageCState": ["C0SUPPORT"], "ProcessorC1eEnable": _OFF},
                {"C6En": _OFF, "PackageCstateReport": ["C0/C1 state"], "ProcessorC1E": _OFF},
            ],
            "enabled": [
                {"C6Enable": _ON, "PackageCState": ["Auto"], "ProcessorC1eEnable": _ON},
                {"C6En": _ON, "PackageCstateReport": ["Auto"], "ProcessorC1E": _ON},
            ],
        },
        "p_states": {
            "os_control": [
                {"ProcessorEistEnable": _ON, "ProcessorHWPMEnable": ["NATIVE_MODE"]},
                {"ProcessorEist": _ON, "ProcessorHwpmEn": ["Native Mode"]},
            ],
            "autonomous": [{"ProcessorHWPMEnable": ["HWPM_OOB"]}, {"ProcessorHwpmEn": ["Out of Band Mode"]}],
            "disabled": [{"ProcessorEistEnable": _OFF}, {"ProcessorEist": _OFF}],
        },
        "turbo": {
            "enabled": [{"TurboMode": _ON}, {"TurboModeEn": _ON}],
            "disabled": [{"TurboMode": _OFF}, {"TurboModeEn": _OFF}],
        },
        "sriov": {
            "enabled": [{"SriovSupport": _ON}, {"PciSriov": _ON}],
            "disabled": [{"SriovSupport": _OFF}, {"PciSriov": _OFF}],
        },
        "uncore_frequency": {
            "dynamic": [{"UncoreFreqScaling": _ON}, {"UfsDis": _ON}],
            "maximum": [{"UncoreFreqScaling": ["Max Frequency"]}, {"UfsDis": ["MAX Frequency"]}],
            "minimum": [{"UncoreFreqScaling": ["Min Frequency"]}, {"UfsDis": ["Min Frequency"]}],
        },
        "workload_profile": {
            "custom": [{"PowerProfile": ["CUSTOM", "Custom"]}],
            "high_performance": [{"PowerProfile": ["HIGH_PERFORMANCE_COMPUTE", "High Performance Compute"]}],
            "low_latency": [{"PowerProfile": ["LOW_LATENCY", "Low Latency"]}],
            "balanced": [{"PowerProfile": ["BALANCE_EFFICIENCY", "Balance/Energy Efficiency"]}],
            "power_saving": [{"PowerProfile": ["POWER_SAVING", "Power Saving"]}],
            "virtualization": [{"PowerProfile": ["VIRTUALIZATION_HPC", "VIRTUALIZATION", "Virtualization"]}],
        },
        "sub_numa": {
            "disabled": [{"SncEn": ["KTI_DISABLE"]}, {"Snc": _OFF}],
            "two": [{"SncEn": ["KTI_SNC2"]}, {"Snc": ["Enable SNC2 (2-clusters)"]}],
            "four": [{"SncEn": ["KTI_SNC4"]}],
            "auto": [{"SncEn": ["KTI_AUTO"]}, {"Snc": ["Auto"]}],
        },
        "numa": {
            "enabled": [{"NumaEn": _ON}, {"Numaen": _ON}],
            "disabled": [{"NumaEn": _OFF}, {"Numaen": _OFF}],
        },
        "above_4g_decoding": {"enabled": [{"Above4gDecode": _ON}], "disabled": [{"Above4gDecode": _OFF}]},
        "pcie_aspm": {
            "disabled": [{"PcieGlobalAspm": ["STR_DISABLE"]}],
            "auto": [{"PcieGlobalAspm": ["STR_PER_PORT"]}],
        },
        "hyper_threading": {
            "enabled": [{"ProcessorHyperThreadingDisable": ["PROCESSOR_LP_ALL"]}],
            "disabled": [{"ProcessorHyperThreadingDisable": ["PROCESSOR_LP_1"]}],
        },
        # No attribute sets a link speed; nothing to do is what "auto" asks for.
        "pcie_link_speed": {},
    },
    "requires": {
        **{name: {"PowerProfile": "CUSTOM"} for name in _CUSTOM_M7},
        **{name: {"PowerProfile": "Custom"} for name in _CUSTOM_M6},
        # M6, M7: without SpeedStep there is no turbo.
        "TurboMode": {"PowerProfile": "CUSTOM", "ProcessorEistEnable": "Enabled"},
        "TurboModeEn": {"PowerProfile": "Custom", "ProcessorEist": "Enabled"},
        "volMemMode": {"NumaEn": "Enabled"},
    },
}
