"""Captured SMBIOS tables with an EDAC tree beside them, written for each fault."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.tools import smbios_tables as made

from .bench import FIXTURES, Machine

ICX, SPR, DELL = "csit_sm_icx_dmidecode_memory", "csit_sm_spr_dmidecode_memory", "dell_24slot_8populated_2666of3200"
M630, HPE = "netbox-agent_Dell_PowerEdge_M630", "netbox-agent_HP_BL460c_Gen10"
_CONTROLLERS = 4


class MemoryMachine(Machine):
    """A machine's table, and memory controllers that counted no error."""

    def __init__(self, root: Path, name: str) -> None:
        super().__init__(root)
        self.structures, self.version = made.capture(FIXTURES / f"smbios/{name}.txt")
        self.cut: int | None = None
        for index in range(_CONTROLLERS):
            self.controller(index)

    def controller(self, index: int, **counts: int) -> None:
        """A controller of a driver of today: counters of its own, without a place, and of each DIMM."""
        base = f"/sys/devices/system/edac/mc/mc{index}"
        whole = {
            "ce_count": 0,
            "ue_count": 0,
            "ce_noinfo_count": 0,
            "ue_noinfo_count": 0,
            "seconds_since_reset": 36_000,
            **counts,
        }
        for name, count in whole.items():
            if not name.startswith("dimm_"):
                self.put(f"{base}/{name}", str(count))
        self.put(f"{base}/mc_name", f"Intel_10nm Socket#{index // 2} IMC#{index % 2}")
        for slot in range(2):
            for name in ("dimm_ce_count", "dimm_ue_count"):
                self.put(f"{base}/dimm{slot}/{name}", str(counts.get(name, 0) if slot == 0 else 0))
            label = f"CPU_SrcID#{index // 2}_MC#{index % 2}_Chan#{slot}_DIMM#0"
            self.put(f"{base}/dimm{slot}/dimm_label", label)

    def rows(self, index: int, corrected: int, uncorrected: int) -> None:
        """A controller in the older layout, without directories of DIMMs."""
        base = f"/sys/devices/system/edac/mc/mc{index}"
        for slot in range(2):
            for name in ("dimm_ce_count", "dimm_ue_count", "dimm_label"):
                (self.root / f"{base}/dimm{slot}/{name}".lstrip("/")).unlink()
        for name, count in (("ce_count", corrected), ("ue_count", uncorrected)):
            self.put(f"{base}/{name}", str(count))
            self.put(f"{base}/csrow0/{name}", str(count))
        for channel, label in enumerate(("P1-DIMMA1", "P1-DIMMB1")):
            self.put(f"{base}/csrow0/ch{channel}_ce_count", str(corrected if channel else 0))
            self.put(f"{base}/csrow0/ch{channel}_dimm_label", label)

    def fitted(self) -> list[made.Structure]:
        """The structures of the modules, in the table's order."""
        return [one for one in self.structures if one.kind == 17 and one.data[0xC:0xE] != b"\0\0"]

    def rate(self, *places: int, rated: int | None = None, configured: int | None = None) -> None:
        for place in places:
            if rated is not None:
                self.fitted()[place].put("H", 0x15, rated)
            if configured is not None:
                self.fitted()[place].put("H", 0x20, configured)

    def take_out(self, *places: int) -> None:
        """What firmware shows of slots whose modules are gone."""
        for structure in [self.fitted()[place] for place in places]:
            for offset in (0xC, 0x15, 0x20):
                structure.put("H", offset, 0)

    def resize(self, megabytes: int, *places: int) -> None:
        for place in places:
            self.fitted()[place].put("H", 0xC, megabytes)

    def arrays(self) -> list[made.Structure]:
        return [one for one in self.structures if one.kind == 16]

    def measurements(self) -> list[dict[str, Any]]:
        made.write(self.root, self.structures, self.version)
        if self.cut is not None:
            path = self.root / "sys/firmware/dmi/tables/DMI"
            path.write_bytes(path.read_bytes()[: self.cut])
        return self.look("dimm_info")


def icx(root: Path) -> MemoryMachine:
    """Two sockets of 8 channels, DDR4-3200, one DIMM a channel."""
    return MemoryMachine(root, ICX)


def spr(root: Path) -> MemoryMachine:
    """Two sockets of 8 channels, DDR5-4800, one DIMM a channel."""
    return MemoryMachine(root, SPR)


def m630(root: Path) -> MemoryMachine:
    """Dell, two sockets of 4 channels, DDR4-2133."""
    return MemoryMachine(root, M630)
