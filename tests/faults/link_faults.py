"""Faults of PCIe links at every hop above a device that matters: narrowed, slowed, told to be slow, down."""

# ruff: noqa: E501 (a fault a line reads as a table)

from __future__ import annotations

from functools import lru_cache
from typing import Any

from tests.tools import lspci_tree

from .bench import Fault
from .pci_machines import HGX

KIND = "PCIe link"
GPU, PORT, UPSTREAM = "0000:19:00.0", "0000:17:01.0", "0000:16:00.0"
_ENDS = ("Ethernet controller", "Non-Volatile memory controller")
# An onboard NIC of a management port, on a link of its own that is also narrower than its card: lspci calls it downgraded.
_ONBOARD = "0000:01:00.0"
_SWITCHES = (
    UPSTREAM,
    "0000:38:00.0",
    "0000:49:00.0",
    "0000:5a:00.0",
    "0000:98:00.0",
    "0000:b8:00.0",
    "0000:c8:00.0",
    "0000:d8:00.0",
)
RISER = "reseat or replace the riser"


@lru_cache(maxsize=1)
def _machine() -> lspci_tree.Machine:
    return lspci_tree.machine(HGX)


def _ends(class_names: tuple[str, ...]) -> list[str]:
    """The first function of each device of a class, in order of address."""
    functions = _machine().functions.items()
    return [a for a, f in functions if f.class_name in class_names and a.endswith(".0") and a != _ONBOARD]


def _called(address: str) -> str:
    name = {"Ethernet controller": "NIC", "Non-Volatile memory controller": "NVMe drive", "3D controller": "GPU"}
    return name.get(_machine()[address].class_name, "switch")


def _port(address: str) -> str:
    parent = _machine()[address].parent
    assert parent is not None
    return parent.address


def _link(
    name: str, address: str, alarm: tuple[str, str], says: tuple[str, ...], machine: str = "hgx", **change: Any
) -> Fault:
    return Fault(KIND, name, machine, lambda bench: bench.link(address, **change), ((*alarm, address),), says)


def _everywhere() -> list[Fault]:
    """Each switch, NIC and drive: narrow, slow, and slow because its port is told so. Each GPU in the same ways, and down."""
    found = []
    for address in [*_SWITCHES, *_ends(_ENDS)]:
        called, port = _called(address), _port(address)
        names = (called, address, port)
        found += [
            _link(f"{called} {address} narrowed to x2", address, ("CRITICAL", "pcie_link_width"), (*names, "runs x2", "Reseat"), width=2),
            _link(f"{called} {address} trained down to 8 GT/s", address, ("CRITICAL", "pcie_link_speed"), (*names, "trained down", "riser"), speed="8"),
            _link(
                f"{called} {address} capped at 8 GT/s by its port", address, ("CRITICAL", "pcie_link_speed"),
                (*names, f"the port {port} has target speed 8.0 GT/s", RISER), speed="8", capped="8",
            ),
        ]  # fmt: skip
    for address in _ends(("3D controller",)):
        port = _port(address)
        names = (f"GPU {address}", port)
        found += [
            _link(f"GPU {address} narrowed to x8", address, ("CRITICAL", "pcie_link_width"), (*names, "runs x8", "can do x16"), width=8),
            _link(
                f"GPU {address} capped at 16 GT/s by its port", address, ("CRITICAL", "pcie_link_speed"),
                (*names, f"the port {port} has target speed 16.0 GT/s", RISER), speed="16", capped="16",
            ),
            _link(f"GPU {address} at 16 GT/s for no reason", address, ("WARN", "pcie_link_speed_unloaded"), (*names, "look again while it copies"), speed="16"),
            _link(f"GPU {address} without a single lane", address, ("CRITICAL", "pcie_link_width"), (*names, "is down"), width=0),
        ]  # fmt: skip
    return found


def _special() -> list[Fault]:
    def narrow_and_slow(bench: Any) -> None:
        bench.link(UPSTREAM, width=4, speed="8")

    def one_end(bench: Any) -> None:
        bench.change(GPU)[0].set_link(width=4)
        bench.write()

    def two_hops(bench: Any) -> None:
        bench.link(UPSTREAM, width=8)
        bench.link("0000:18:00.0", width=1)

    def second_capability(bench: Any) -> None:
        (gpu,) = bench.change(GPU)
        # A capability that claims the full width, behind the right one (hwloc#653).
        gpu.config[0xC0:0x100] = gpu.config[0x60:0xA0]
        gpu.config[0x61] = 0xC0
        gpu.config[0xC1] = 0
        bench.link(GPU, width=8)

    def bridge_of_the_card(bench: Any) -> None:
        bench.link(UPSTREAM, speed="2.5")

    width, speed = ("CRITICAL", "pcie_link_width"), ("CRITICAL", "pcie_link_speed")
    return [
        Fault(KIND, "switch narrow and slow at once", "hgx", narrow_and_slow, ((*width, UPSTREAM), (*speed, UPSTREAM)), (UPSTREAM, "above GPU")),
        Fault(KIND, "only the GPU's end says that lanes are missing", "hgx", one_end, ((*width, GPU),), (f"GPU {GPU}", PORT, "x4")),
        Fault(KIND, "two hops of one way at once", "hgx", two_hops, ((*width, UPSTREAM), (*width, "0000:18:00.0")), (UPSTREAM, "runs x8")),
        Fault(KIND, "narrow GPU with a second link capability that looks well", "hgx", second_capability, ((*width, GPU),), (f"GPU {GPU}", "runs x8")),
        Fault(KIND, "switch at the lowest speed is not taken for a GPU that saves power", "hgx", bridge_of_the_card, ((*speed, UPSTREAM),), (UPSTREAM,)),
        _link("as the issue tells it", "0000:81:00.0", speed, (
            "GPU 0000:81:00.0 runs 8.0 GT/s x16; it and its slot can do 16.0: the port 0000:80:01.0 has target speed 8.0 GT/s. "
            "Look at BIOS slot speed, then reseat or replace the riser",), "idle", speed="8", capped="8"),
        _link("idle GPU whose port may go no faster than 2.5 GT/s", "0000:81:00.0", speed, ("target speed 2.5 GT/s", "0000:80:01.0"), "idle", capped="2.5"),
        _link("idle GPU of half the lanes", "0000:81:00.0", width, ("GPU 0000:81:00.0", "runs x8", "Reseat"), "idle", width=8),
        _link("idle GPU of one lane", "0000:81:00.0", width, ("GPU 0000:81:00.0", "runs x1;"), "idle", width=1),
        _link("GPU at 8 GT/s though its port asks for 16", "0000:81:00.0", ("WARN", "pcie_link_speed_unloaded"), ("asks for 16.0", "trained down"), "idle", speed="8"),
        _link("GPU narrowed, seen without root", GPU, width, (f"GPU {GPU}", PORT, "runs x8"), "hgx without root", width=8),
        _link("NVMe drive slowed, seen without root", "0000:18:00.0", speed, ("NVMe drive 0000:18:00.0", "trained down"), "hgx without root", speed="2.5"),
        _link("switch narrowed, seen without root", UPSTREAM, width, (UPSTREAM, "runs x4"), "hgx without root", width=4),
    ]  # fmt: skip


def _seen_alone(name: str, machine: str, address: str, says: tuple[str, ...], check: str, **files: str) -> Fault:
    status = "WARN" if check == "pcie_link_speed_unloaded" else "CRITICAL"
    return Fault(KIND, name, machine, lambda bench: bench.write(address, **files), ((status, check, address),), says)


def faults() -> list[Fault]:
    """All of this kind."""
    alone = [
        _seen_alone("DGX: GPU of 8 lanes", "dgx", "0000:87:00.0", ("GPU 0000:87:00.0", "runs x8", "x16"), "pcie_link_width", current_link_width="8"),
        _seen_alone("DGX: InfiniBand NIC of 8 lanes", "dgx", "0000:4b:00.0", ("NIC 0000:4b:00.0", "runs x8"), "pcie_link_width", current_link_width="8"),
        _seen_alone("DGX: InfiniBand NIC at 8 GT/s", "dgx", "0000:ba:00.0", ("NIC 0000:ba:00.0", "8.0 GT/s"), "pcie_link_speed", current_link_speed="8.0 GT/s PCIe"),
        _seen_alone("DGX: NVMe drive of 2 lanes", "dgx", "0000:22:00.0", ("NVMe drive 0000:22:00.0", "runs x2"), "pcie_link_width", current_link_width="2"),
        _seen_alone("DGX: NVMe drive at 2.5 GT/s", "dgx", "0000:09:00.0", ("NVMe drive 0000:09:00.0", "2.5 GT/s"), "pcie_link_speed", current_link_speed="2.5 GT/s PCIe"),
        _seen_alone("Azure: GPU at 8 GT/s", "azure", "000c:00:00.0", ("GPU 000c:00:00.0", "8.0 GT/s"), "pcie_link_speed_unloaded", current_link_speed="8.0 GT/s PCIe"),
        _seen_alone("Azure: GPU of 4 lanes", "azure", "0001:00:00.0", ("GPU 0001:00:00.0", "runs x4"), "pcie_link_width", current_link_width="4"),
    ]  # fmt: skip
    return _everywhere() + _special() + alone
