#!/usr/bin/env python3
"""What the survey sees of the machine at hand, without Ansible: node, PCIe devices, DIMMs, and (with --memory) its memory bandwidth.

    python3 bench/survey_here.py [--memory] [--output FILE]

For a machine that Ansible cannot reach. Needs Python 3.9 and, for --memory, gcc.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Without Ansible the collection's package does not exist here, so its utilities are loaded as a package of their own.
ROOT = Path(__file__).parents[1]
package = types.ModuleType("plumbline")
package.__path__ = [str(ROOT / "module_utils/plumbline")]
sys.modules["plumbline"] = package

from plumbline import memory_bandwidth as memory  # noqa: E402
from plumbline.dimm_measurements import dimm_measurements  # noqa: E402
from plumbline.dimms import dimm_facts  # noqa: E402
from plumbline.node import node_facts  # noqa: E402
from plumbline.pci_measurements import pcie_measurements  # noqa: E402
from plumbline.pci_topology import pci_facts, readable  # noqa: E402
from plumbline.tree import Tree  # noqa: E402


def main() -> int:
    """Observe, measure when asked to, and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memory", action="store_true", help="measure the memory bandwidth, too: it loads all cores")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    report: dict[str, object] = {}
    timed: dict[str, float] = {}

    def observe(name: str, work: Callable[[], Any]) -> Any:
        begun = time.process_time()
        found = work()
        timed[name] = round(time.process_time() - begun, 4)
        return found

    node = observe("node", node_facts)
    node["cpu"]["flags"] = len(node["cpu"]["flags"])
    for private in ("hostname", "boot_identity", "kernel_cmdline"):
        node.pop(private)
    pcie = observe("pcie", pci_facts)
    dimm = observe("dimm", dimm_facts)
    for module in dimm["dimms"]:
        module.pop("serial_number")
    report["node"], report["cpu_seconds"] = node, timed
    report["pcie"] = {
        "functions": len(pcie["functions"]),
        "notes": pcie["notes"],
        "links": pcie["links"],
        "devices": pcie["devices"],
        "of_devices": readable(pcie, "devices"),
        "measurements": pcie_measurements(pcie, Tree().uptime_seconds()),
    }
    report["dimm"] = {
        **{key: dimm[key] for key in ("available", "reason", "notes", "smbios_version", "sockets", "bandwidth_source")},
        "dimms": len(dimm["dimms"]),
        "edac": dimm["edac"],
        "measurements": dimm_measurements(dimm),
    }
    if options.memory:
        try:
            report["memory"] = memory.measure(
                dimm, repetitions=20, seconds_per_node=10, matrix=True, cache=memory.default_cache(), compiler="gcc"
            )
        except memory.BuildError as error:
            report["memory"] = {"measurements": memory.failed(str(error))}
    text = json.dumps(report, indent=1)
    print(text)
    if options.output:
        options.output.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
