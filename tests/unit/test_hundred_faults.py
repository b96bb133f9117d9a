"""The proof of the survey's checks: over a hundred faults, each found by exactly the check that must find it, and no false alarm.

A fault is injected into a captured machine, the modules look at it as Ansible runs them, and the gate judges by the rules that are
shipped. `tests/faults/` holds the faults by kind; a new check gets its fault there.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import pytest

from tests.faults import (
    bandwidth_faults,
    bandwidth_machines,
    device_faults,
    gpu_faults,
    gpu_machines,
    link_faults,
    memory_faults,
    memory_machines,
    pci_machines,
    sensor_faults,
    sensor_machines,
)
from tests.faults.bench import Fault, Machine, told

LASTING: dict[str, Callable[[Path], Machine]] = {
    "hgx": pci_machines.hgx,
    "hgx without root": pci_machines.hgx_without_root,
    "idle": pci_machines.idle,
    "dgx": pci_machines.dgx,
    "azure": pci_machines.azure,
}
"""Machines that are written once; a fault puts back what it changed."""
FRESH: dict[str, Callable[[Path], Machine]] = {
    "icx": memory_machines.icx,
    "spr": memory_machines.spr,
    "m630": memory_machines.m630,
    "gpus": gpu_machines.gpus,
    "bandwidth": bandwidth_machines.bandwidth,
    "rack server's BMC": sensor_machines.rack_server,
    "gpu server's BMC": sensor_machines.gpu_server,
}
"""Machines that are written for each fault."""
HEALTHY: dict[str, Callable[[Path], Machine]] = {
    f"BMC of {name}": partial(sensor_machines.captured, name=name)
    for name in (
        "datakit_R620v1",
        "datakit_R740v1",
        "hardware_HP_ipmitool_sdr",
        "hpe_dl_sensor_excerpt",
        "inspur_gpu_node_ipmitool_sdr_list",
    )
}
"""Machines without a fault of their own here, which must raise no alarm all the same."""
FAULTS: list[Fault] = [
    *link_faults.faults(),
    *device_faults.faults(),
    *memory_faults.faults(),
    *gpu_faults.faults(),
    *sensor_faults.faults(),
    *bandwidth_faults.faults(),
]


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Machine]:
    @cache
    def made(name: str) -> Machine:
        return LASTING[name](tmp_path_factory.mktemp("machine"))

    return made


def machine(name: str, lasting: Callable[[str], Machine], tmp_path: Path) -> Machine:
    return lasting(name) if name in LASTING else {**FRESH, **HEALTHY}[name](tmp_path)


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_fault_is_found_by_its_check_and_by_no_other(
    fault: Fault, lasting: Callable[[str], Machine], tmp_path: Path
) -> None:
    bench = machine(fault.machine, lasting, tmp_path)
    try:
        fault.inject(bench)
        found = bench.alarms()
    finally:
        bench.restore()
    assert sorted((check.status, check.name, check.scope) for check in found) == sorted(fault.alarms)
    first = next(check for check in found if (check.status, check.name, check.scope) == fault.alarms[0])
    for text in fault.says:
        assert text in told(first)
    for check in found:
        assert check.next_command, check
        assert check.cause or check.status == "UNKNOWN", check


@pytest.mark.parametrize("name", sorted([*LASTING, *FRESH, *HEALTHY]))
def test_a_healthy_machine_raises_no_alarm(name: str, lasting: Callable[[str], Machine], tmp_path: Path) -> None:
    bench = machine(name, lasting, tmp_path)
    checks = bench.checks()
    assert [told(check) for check in bench.alarms()] == []
    assert "OK" in {check.status for check in checks}


def test_there_are_a_hundred_different_faults() -> None:
    names = Counter(str(fault) for fault in FAULTS)
    assert [name for name, count in names.items() if count > 1] == []
    # What differs in its address or its DIMM alone is one fault at many places.
    places = r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]|\bP\d-DIMM[A-H]1\b|\b(?:icx|spr)\b"
    different = {re.sub(places, "", name) for name in names}
    assert len(different) >= 100
