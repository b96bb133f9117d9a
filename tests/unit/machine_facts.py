"""Facts of captured machines, as the survey's modules find them, and the checks that the gates make of them."""

from __future__ import annotations

import importlib
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.tools import smbios_tables
from tests.tools.lspci_tree import machine

CHECKOUT = Path(__file__).resolve().parents[2]
FIXTURES = CHECKOUT / "tests/fixtures"
HGX = "gpud_hgx_8xH100_spr_lspci-vvv.txt.gz"
NO_BMC = {"available": False, "reason": "bmc_host is not set, so that the machine has no BMC that could be asked"}
_UTILS = "ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline"


def util(name: str) -> Any:
    """Return a module of module_utils."""
    return importlib.import_module(f"{_UTILS}.{name}")


@cache
def rules() -> dict[str, Any]:
    """Return the rules of group_vars/all/gates.yml."""
    found: dict[str, Any] = yaml.safe_load((CHECKOUT / "group_vars/all/gates.yml").read_text())["gates_rules"]
    return found


def write_file(root: Path, name: str, text: str) -> None:
    """Write one file of a captured tree."""
    path = root / name.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def write_tree(root: Path, pci: str = "", smbios: str = "", sockets: int = 2, cores: int = 56) -> Path:
    """Write the tree of a machine with ``sockets`` NUMA nodes and two threads a core; its PCI and SMBIOS are captures."""
    if pci:
        machine(FIXTURES / "pci" / pci).write(root)
    if smbios:
        structures, version = smbios_tables.capture(FIXTURES / "smbios" / smbios)
        smbios_tables.write(root, structures, version)
    total = sockets * cores
    write_file(root, "/proc/cpuinfo", "model name\t: Intel(R) Xeon(R) Platinum 8480C\nflags\t\t: avx512f\n")
    write_file(root, "/proc/meminfo", f"MemTotal: {sockets * 256 * 2**20} kB\n")
    write_file(root, "/proc/sys/kernel/osrelease", "6.8.0-60-generic\n")
    write_file(root, "/proc/sys/kernel/arch", "x86_64\n")
    write_file(root, "/etc/os-release", 'ID=ubuntu\nVERSION_ID="24.04"\n')
    write_file(root, "/sys/devices/system/cpu/online", f"0-{2 * total - 1}\n")
    for cpu in range(2 * total):
        base = f"/sys/devices/system/cpu/cpu{cpu}/topology"
        write_file(root, f"{base}/physical_package_id", f"{cpu % total // cores}\n")
        write_file(root, f"{base}/thread_siblings_list", f"{cpu % total},{cpu % total + total}\n")
    for node in range(sockets):
        first = node * cores
        base = f"/sys/devices/system/node/node{node}"
        write_file(
            root, f"{base}/cpulist", f"{first}-{first + cores - 1},{first + total}-{first + total + cores - 1}\n"
        )
        write_file(
            root, f"{base}/meminfo", f"Node {node} MemTotal: {256 * 2**20} kB\nNode {node} MemFree: {2**20} kB\n"
        )
    for name, text in (("sys_vendor", "Supermicro"), ("product_name", "SYS-821GE-TNHR"), ("bios_version", "1.4")):
        write_file(root, f"/sys/class/dmi/id/{name}", f"{text}\n")
    return root


def facts_of(root: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the survey's facts (`node`, `pcie`, `dimm`, `bmc`) of a tree, and its measurements."""
    pcie, dimm = util("pci_topology").pci_facts(str(root)), util("dimms").dimm_facts(str(root), 0)
    found = util("pci_measurements").pcie_measurements(pcie, 86400.0) + util("dimm_measurements").dimm_measurements(
        dimm
    )
    pcie["functions"] = util("pci_topology").readable(pcie, "devices")
    return {"node": util("node").node_facts(str(root)), "pcie": pcie, "dimm": dimm, "bmc": NO_BMC}, found


def checks_of(measurements: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the checks as the evidence keeps them."""
    return [check.record() for check in util("gates").judge_all(measurements, rules())]
