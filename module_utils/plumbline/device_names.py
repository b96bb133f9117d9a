"""What the kernel calls the devices and the board of a machine: names for people, from sysfs and /proc, no table of ids."""

from __future__ import annotations

from typing import Any

from .tree import Tree

_PCI = "/sys/bus/pci/devices"
_SECTOR_BYTES = 512  # of /sys/block/*/size, whatever the drive's own sectors are
_DMI_IDS = {
    "manufacturer": "sys_vendor",
    "product_name": "product_name",
    "serial_number": "product_serial",
    "bios_vendor": "bios_vendor",
    "bios_version": "bios_version",
    "bios_date": "bios_date",
    "board_manufacturer": "board_vendor",
    "board_name": "board_name",
}


def dmi_ids(tree: Tree) -> dict[str, str | None]:
    """The strings of /sys/class/dmi/id, which anybody may read but for the serial number; `None` where there is none."""
    return {key: tree.text(f"/sys/class/dmi/id/{name}") or None for key, name in _DMI_IDS.items()}


def device_names(tree: Tree) -> dict[str, dict[str, Any]]:
    """`name`, `interfaces` and `size_bytes` of GPUs, NICs and NVMe drives, by PCI address; only of those that say any.

    A GPU's name is that of NVIDIA's driver, a NIC's that of its InfiniBand driver, a drive's its own model.
    """
    gpus = {name.lower(): name for name in tree.names("/proc/driver/nvidia/gpus")}
    found = {}
    for address in tree.names(_PCI):
        base = f"{_PCI}/{address}"
        names = set(tree.names(base))
        entry: dict[str, Any] = {"name": None, "interfaces": [], "size_bytes": None}
        if address.lower() in gpus:
            entry["name"] = _gpu_model(tree.text(f"/proc/driver/nvidia/gpus/{gpus[address.lower()]}/information"))
        if "net" in names:
            entry["interfaces"] = [_interface(tree, f"{base}/net/{name}", name) for name in tree.names(f"{base}/net")]
        if "infiniband" in names:
            for name in tree.names(f"{base}/infiniband"):
                entry["name"] = tree.text(f"{base}/infiniband/{name}/hca_type") or entry["name"]
                entry["interfaces"].append(_port(tree, f"{base}/infiniband/{name}", name))
        if "nvme" in names:
            for name in tree.names(f"{base}/nvme"):
                entry["name"] = tree.text(f"{base}/nvme/{name}/model") or entry["name"]
                entry["size_bytes"] = _namespaces_bytes(tree, f"{base}/nvme/{name}", name)
        if any(entry.values()):
            found[address] = entry
    return found


def _gpu_model(text: str | None) -> str | None:
    for line in (text or "").splitlines():
        key, found, value = line.partition(":")
        if found and key.strip() == "Model":
            return value.strip() or None
    return None


def _interface(tree: Tree, base: str, name: str) -> dict[str, Any]:
    """A network interface: its state, and its speed in bit/s, which the kernel tells (in Mbit/s) only while it is up."""
    speed = tree.integer(f"{base}/speed")
    return {
        "name": name,
        "state": tree.text(f"{base}/operstate") or None,
        "bits_per_second": speed * 10**6 if speed is not None and speed > 0 else None,
    }


def _port(tree: Tree, base: str, name: str) -> dict[str, Any]:
    """The first port of an InfiniBand device; `rate` reads `400 Gb/sec (4X NDR)`, `state` reads `4: ACTIVE`."""
    rate = (tree.text(f"{base}/ports/1/rate") or "").split()
    state = (tree.text(f"{base}/ports/1/state") or "").rpartition(":")[2].strip().lower()
    try:
        speed = float(rate[0]) * 1e9 if len(rate) > 1 and rate[1].startswith("Gb") else None
    except ValueError:
        speed = None
    return {"name": name, "state": state or None, "bits_per_second": speed}


def _namespaces_bytes(tree: Tree, base: str, controller: str) -> int | None:
    sizes = [tree.integer(f"{base}/{name}/size") for name in tree.names(base) if name.startswith(controller[:4])]
    known = [size for size in sizes if size]
    return sum(known) * _SECTOR_BYTES if known else None
