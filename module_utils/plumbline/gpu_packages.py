"""Which packages make up the driver: open or proprietary modules by the GPUs, the fabric manager where there are NVSwitches."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .gpu_driver import wants_fabric_manager

if TYPE_CHECKING:
    from .gpu_driver_plan import DriverWish

OPEN, PROPRIETARY = "open", "proprietary"
# NVIDIA numbers its devices upwards, generation by generation (pci.ids). The proprietary modules of today's branches begin with
# Maxwell; the open ones with Turing, whose GPUs were the first with a system processor; Blackwell and newer run on the open ones
# only (NVIDIA, "NVIDIA Transitions Fully Towards Open-Source GPU Kernel Modules"; "Driver Installation Guide", Kernel Modules).
_FIRST_MAXWELL, _FIRST_TURING, _FIRST_BLACKWELL = 0x1340, 0x1E00, 0x2900


def flavours(device: int | None) -> list[str]:
    """The kinds of kernel module that a GPU (PCI device id) runs on, the better one first; none for what is older than Maxwell."""
    if device is None:
        return [OPEN, PROPRIETARY]
    if device < _FIRST_MAXWELL:
        return []
    if device < _FIRST_TURING:
        return [PROPRIETARY]
    return [OPEN, PROPRIETARY] if device < _FIRST_BLACKWELL else [OPEN]


def generation(device: int | None) -> str:
    """The side of NVIDIA's line that a GPU is on, in words."""
    if device is None:
        return "of unknown generation"
    if device < _FIRST_MAXWELL:
        return "older than Maxwell"
    if device < _FIRST_TURING:
        return "of a generation before Turing"
    return "between Turing and Hopper" if device < _FIRST_BLACKWELL else "of Blackwell or newer"


def choose_flavour(devices: dict[str, int | None], wanted: str, installed: str = "") -> tuple[str, str]:
    """`open` or `proprietary` for all GPUs together, and one sentence when there is none that is wanted and fits.

    *installed* is the kind whose packages are there: `auto` keeps it where it fits, since both work.
    """
    for address, device in devices.items():
        can = flavours(device)
        if not can or (wanted != "auto" and wanted not in can):
            asked = "any driver of today" if wanted == "auto" or not can else f"{wanted} kernel modules"
            offer = f"set gpu_driver_kernel_modules to {can[0]} or auto" if can else "take it out of the machine"
            return "", (
                f"gpu_driver_kernel_modules: expected GPUs that run on {asked}, found {address} (10de:{device or 0:04x}), "
                f"{generation(device)}: {offer}"
            )
    fitting = [kind for kind in (OPEN, PROPRIETARY) if all(kind in flavours(device) for device in devices.values())]
    if not fitting:
        told = ", ".join(f"{address} {generation(device)}" for address, device in devices.items())
        return "", (
            f"gpu_driver_kernel_modules: no kind of kernel module runs all GPUs of this node ({told}): take one kind of them out"
        )
    if wanted != "auto":
        return wanted, ""
    return (installed if installed in fitting else fitting[0]), ""


def asked_packages(wish: DriverWish) -> list[str]:
    """Every package that the node is to be asked for, whichever kind of module it will be."""
    names = [*wish.packages, *wish.packages_open, *fabric_candidates(wish, wish.version)]
    return list(dict.fromkeys(name for name in _named(names, wish.version) if "{" not in name))


def resolve(seen: dict[str, Any], wish: DriverWish) -> DriverWish:
    """The wish with the packages for this node's GPUs, the fabric manager's package, and what forbids it."""
    problem = ""
    packages, flavour = wish.packages, ""
    known: dict[str, str] = {}
    if wish.packages_open and wish.packages != wish.packages_open:
        first = {kind: _named(names[:1], wish.version) for kind, names in _kinds(wish).items()}
        known = {names[0]: kind for kind, names in first.items() if names}
        installed = next((kind for name, kind in known.items() if name in seen["packages"]), "")
        flavour, problem = choose_flavour(seen["gpu_devices"], wish.kernel_modules, installed)
        packages = _kinds(wish)[flavour] if flavour else wish.packages
    elif wish.kernel_modules != "auto":
        # Packages that the inventory names itself are taken as they are, and whether it fits is checked all the same.
        flavour, problem = choose_flavour(seen["gpu_devices"], wish.kernel_modules)
    named = _named(packages, wish.version)
    if any("{branch}" in name for name in named):
        problem = problem or (
            "gpu_driver_version: expected the branch of the driver, which this distribution's packages carry in their names, found "
            'nothing: set it, for instance to "580"'
        )
    fabric = ""
    if wants_fabric_manager(wish.fabric_manager, seen["nvswitches"]):
        candidates = fabric_candidates(wish, wish.version)
        there = [name for name in candidates if name in seen["packages"]]
        there += [name for name in candidates if name in seen["available"]]
        fabric = (there or candidates or [""])[0]
    return replace(
        wish,
        packages=named,
        flavour=flavour,
        fabric=fabric,
        package_problem=problem,
        first_packages=tuple(known) or tuple(named[:1]),
    )


def fabric_candidates(wish: DriverWish, version: str) -> list[str]:
    """Names that the fabric manager's package may have, best first; those that carry a branch only where one is wished."""
    return [name for name in _named(wish.fabric_packages, version) if "{" not in name]


def _kinds(wish: DriverWish) -> dict[str, list[str]]:
    return {OPEN: wish.packages_open, PROPRIETARY: wish.packages}


def _named(names: list[str], version: str) -> list[str]:
    branch = version.partition(".")[0]
    return [name.replace("{branch}", branch) if branch else name for name in names]
