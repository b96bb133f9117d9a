"""Captured PCI trees: written once, with single functions changed for a fault and put back after it."""

from __future__ import annotations

import json
import re
from copy import deepcopy
from pathlib import Path
from typing import Any

from tests.tools import lspci_tree

from .bench import FIXTURES, Machine

HGX = FIXTURES / "pci/gpud_hgx_8xH100_spr_lspci-vvv.txt.gz"
IDLE = FIXTURES / "pci/rtx6000ada_idle_gen1_x16_lspci-vvv_excerpt.txt"
DGX = FIXTURES / "pci/gcm_DGX_A100_pci_manifest.json"
AZURE = FIXTURES / "pci/gpud_lspci-nn_a100.txt"

# The excerpt of the idle GPU shows it alone: the port it sits in, of the generation that its slot must be.
PORT = """80:01.0 PCI bridge: Intel Corporation Device 347a (prog-if 00 [Normal decode])
	NUMA node: 1
	Bus: primary=80, secondary=81, subordinate=81, sec-latency=0
	Capabilities: [58] Express (v2) Root Port (Slot+), MSI 00
		DevCap:	MaxPayload 512 bytes, PhantFunc 0
		DevCtl:	CorrErr- NonFatalErr- FatalErr- UnsupReq-
			MaxPayload 256 bytes, MaxReadReq 512 bytes
		LnkCap:	Port #0, Speed 16GT/s, Width x16, ASPM L1, Exit Latency L1 <64us
			ClockPM- Surprise- LLActRep+ BwNot+ ASPMOptComp+
		LnkCtl:	ASPM Disabled; RCB 64 bytes, Disabled- CommClk+
		LnkSta:	Speed 2.5GT/s (downgraded), Width x16
			TrErr- Train- SlotClk+ DLActive+ BWMgmt+ ABWMgmt+
		SltCap:	AttnBtn- PwrCtrl- MRL- AttnInd- PwrInd- HotPlug- Surprise-
			Slot #2, PowerLimit 75.000W; Interlock- NoCompl-
		SltSta:	Status: AttnBtn- PowerFlt- MRL- CmdCplt- PresDet+ Interlock-
		LnkCap2: Supported Link Speeds: 2.5-16GT/s, Crosslink- Retimer+ 2Retimers+ DRS-
		LnkCtl2: Target Link Speed: 16GT/s, EnterCompliance- SpeedDis-
	Kernel driver in use: pcieport
"""


class PciMachine(Machine):
    """A tree from `lspci -vvv`, with real configuration spaces."""

    def __init__(self, root: Path, captured: lspci_tree.Machine, **options: Any) -> None:
        super().__init__(root)
        self.machine = captured
        self.machine.write(root, **options)
        self.options = options
        self.expected: dict[str, int] = {}
        self._saved: dict[str, tuple[bytes, Any]] = {}
        self._moved: list[tuple[Path, Path]] = []
        self._extra: list[Path] = []

    def measurements(self) -> list[dict[str, Any]]:
        return self.look("pcie_info", functions="devices", expected_devices=self.expected)

    def directory(self, address: str) -> Path:
        return self.root / "sys/bus/pci/devices" / address

    def change(self, *addresses: str) -> list[lspci_tree.Function]:
        """The functions to change; `write` makes it so."""
        functions = [self.machine[address] for address in addresses]
        for function in functions:
            self._saved.setdefault(function.address, (bytes(function.config), deepcopy(function.aer)))
        return functions

    def write(self) -> None:
        for address in self._saved:
            lspci_tree.Machine.write_files(
                self.machine[address], self.directory(address), self.options.get("config_bytes", 4096)
            )

    def link(self, address: str, *, capped: str | None = None, **changes: Any) -> None:
        """Change both ends of the link above a device; `capped` is the target speed of the port."""
        parent = self.machine[address].parent
        ends = self.change(address, *([parent.address] if parent else []))
        for end in ends:
            end.set_link(**changes)
        if capped:
            ends[-1].set_link(target=capped)
        self.write()

    def silence(self, *addresses: str) -> None:
        """Let functions answer all ones, as what has no power does; the kernel remembers them."""
        self.change(*addresses)
        self.write()
        for address in addresses:
            (self.directory(address) / "config").write_bytes(b"\xff" * 4096)

    def remove(self, *addresses: str) -> None:
        """Take functions off the bus, as if they had never come up."""
        for address in addresses:
            entry = self.directory(address)
            self._moved.append((entry, self.root / f"moved-{address}"))
            entry.rename(self._moved[-1][1])

    def file(self, address: str, name: str, text: str) -> None:
        """A file that only this fault brings."""
        path = self.directory(address) / name
        path.write_text(text + "\n")
        self._extra.append(path)

    def restore(self) -> None:
        for address, (config, aer) in self._saved.items():
            self.machine[address].config[:], self.machine[address].aer = config, aer
        self.write()
        self._saved.clear()
        for entry, moved in reversed(self._moved):
            moved.rename(entry)
        self._moved.clear()
        for path in self._extra:
            path.unlink()
        self._extra.clear()
        self.expected = {}


class SysfsMachine(Machine):
    """A machine of which only sysfs' own link files are known, as a user without root sees it."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.devices: dict[str, dict[str, str]] = {}

    def add(self, address: str, class_code: str, vendor: str = "0x10de", **files: str) -> None:
        self.devices[address] = {"class": class_code, "vendor": vendor, "device": "0x0001", "numa_node": "-1", **files}
        self.write(address)

    def write(self, address: str, **changes: str) -> None:
        for name, text in {**self.devices[address], **changes}.items():
            self.put(f"/sys/bus/pci/devices/{address}/{name}", text)

    def measurements(self) -> list[dict[str, Any]]:
        return self.look("pcie_info", functions="none")

    def restore(self) -> None:
        for address in self.devices:
            self.write(address)


def hgx(root: Path) -> PciMachine:
    """Two sockets, 8 H100, 517 functions; 16 links that do not matter say "(downgraded)"."""
    return PciMachine(root, lspci_tree.machine(HGX))


def hgx_without_root(root: Path) -> PciMachine:
    return PciMachine(root, lspci_tree.machine(HGX), config_bytes=64)


def idle(root: Path) -> PciMachine:
    """A GPU at 2.5 GT/s that saves power, in a port of 16 GT/s, at the addresses of the issue's example."""
    text = lspci_tree.read_text(IDLE).replace("41:00.", "81:00.")
    return PciMachine(root, lspci_tree.Machine(PORT + "\n" + text))


def dgx(root: Path) -> SysfsMachine:
    """A DGX A100 from the manifest that its owner checks it against."""
    machine = SysfsMachine(root)
    classes = {"net": "0x020000", "ib": "0x020700", "nvme": "0x010802", "gpu": "0x030200", "pci": "0x068000"}
    for address, entry in json.loads(DGX.read_text())["pci"].items():
        speed, width = entry["link_speed"][-1], entry["link_width"]
        machine.add(
            address,
            classes[entry["type"]],
            current_link_speed=speed,
            max_link_speed=speed,
            current_link_width=width,
            max_link_width=width,
        )
    return machine


def azure(root: Path) -> SysfsMachine:
    """A virtual machine with 8 A100 and NICs that are virtual functions: their link's registers are reserved and read 0."""
    machine = SysfsMachine(root)
    for line in AZURE.read_text().splitlines():
        match = re.match(r"(\S+) .*?\[([0-9a-f]{4})\]: .*\[([0-9a-f]{4}):([0-9a-f]{4})\]", line)
        if not match:
            continue
        virtual = "Virtual Function" in line
        speed, width = ("Unknown", "0") if virtual else ("16.0 GT/s PCIe", "16")
        linked = match[3] != "1414"
        files = {
            "current_link_speed": speed,
            "max_link_speed": "16.0 GT/s PCIe",
            "current_link_width": width,
            "max_link_width": "16",
        }
        machine.add(match[1], f"0x{match[2]}00", f"0x{match[3]}", **(files if linked else {}))
    return machine
