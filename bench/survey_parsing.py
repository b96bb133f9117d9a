#!/usr/bin/env python3
"""CPU time to parse a whole machine's PCIe tree (the captured one of 517 functions) and SMBIOS tables. The aim is 100 ms each.

    bench/survey_parsing.py [--rounds 7] [--root /]

With --root it measures the machine at hand too, where configuration reads go to real devices.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any, Callable

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "collections"), str(ROOT)]
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.dimm_measurements import dimm_measurements  # noqa: E402
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.dimms import dimm_facts  # noqa: E402
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.pci_measurements import pcie_measurements  # noqa: E402
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.pci_topology import pci_facts  # noqa: E402

from tests.tools import smbios_tables  # noqa: E402
from tests.tools.lspci_tree import machine  # noqa: E402

AIM_SECONDS = 0.1


def cpu_seconds(rounds: int, work: Callable[[], Any]) -> float:
    """The least CPU time of several rounds, in seconds."""
    best = float("inf")
    for _ in range(rounds):
        begun = time.process_time()
        work()
        best = min(best, time.process_time() - begun)
    return best


def pcie_pass(root: str) -> None:
    """One pass over the PCIe functions of a tree."""
    pcie_measurements(pci_facts(root))


def smbios_pass(root: str) -> None:
    """One pass over the SMBIOS tables of a tree."""
    dimm_measurements(dimm_facts(root))


def main() -> int:
    """Measure and print; status 1 when the aim is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--root", help="also measure this tree")
    options = parser.parse_args()
    figures: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as work:
        captured = machine(ROOT / "tests/fixtures/pci/gpud_hgx_8xH100_spr_lspci-vvv.txt.gz")
        pci = str(captured.write(Path(work) / "pci"))
        structures, version = smbios_tables.capture(ROOT / "tests/fixtures/smbios/netbox-agent_HP_BL460c_Gen10.txt")
        smbios = str(smbios_tables.write(Path(work) / "smbios", structures, version))
        trees = [("captured", pci, smbios)] + ([("here", options.root, options.root)] if options.root else [])
        for name, pci_root, smbios_root in trees:
            facts = pci_facts(pci_root)
            functions = len(facts["functions"])
            figures[name] = {
                "functions": functions,
                "pcie_cpu_seconds": round(cpu_seconds(options.rounds, partial(pcie_pass, pci_root)), 4),
                "smbios_cpu_seconds": round(cpu_seconds(options.rounds, partial(smbios_pass, smbios_root)), 4),
            }
    print(json.dumps(figures, indent=2))
    worst = max(figures["captured"][key] for key in ("pcie_cpu_seconds", "smbios_cpu_seconds"))
    return 0 if worst < AIM_SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
