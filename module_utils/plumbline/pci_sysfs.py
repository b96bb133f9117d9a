"""One PCI function from sysfs: its configuration space and the files that the kernel keeps beside it."""

from __future__ import annotations

import os
import re
from typing import Any

from .pci import CONFIG_UNPRIVILEGED_BYTES, config_from_bytes, config_from_file, parse_function
from .tree import Tree

DEVICES = "/sys/bus/pci/devices"
_SPEED = re.compile(r"^([0-9.]+) GT/s")
# What the kernel says of a register that reads all ones (63), and of a width that it cannot tell (255).
_WIDTH_UNKNOWN = 63
_COUNT = re.compile(r"^[0-9]{1,20}$")
_AER_FILES = ("correctable", "nonfatal", "fatal")


def read_function(tree: Tree, address: str, slots: dict[str, str]) -> dict[str, Any]:
    """All of one function but its place in the tree; `other_links` holds every link that it describes."""
    base = f"{DEVICES}/{address}"
    facts = _read_config(tree, base)
    physical = tree.link(f"{base}/physfn")
    # A virtual function answers FFFF for its ids: the kernel knows them from the physical function.
    for key, name in (("vendor_id", "vendor"), ("device_id", "device"), ("class_code", "class")):
        if facts[key] in (None, 0xFFFF, 0xFFFFFF):
            facts[key] = tree.integer(f"{base}/{name}")
    numa_node = tree.integer(f"{base}/numa_node")
    driver = tree.link(f"{base}/driver")
    links = facts.pop("link_capabilities")
    if physical is not None or not facts["responsive"]:
        # A virtual function shares the link of its physical one, and its registers of a link are reserved. What does not
        # answer tells nothing: the kernel's files then repeat old figures, or all ones.
        links = []
    elif facts["readable_bytes"] <= CONFIG_UNPRIVILEGED_BYTES:
        # Without root the capabilities are out of reach, but the kernel tells the link's state to everybody.
        links = _sysfs_links(tree, base)
    function: dict[str, Any] = {
        "address": address,
        **facts,
        "driver": driver.rsplit("/", 1)[-1] if driver else None,
        "numa_node": numa_node if numa_node is not None and numa_node >= 0 else None,
        "slot": slots.get(address.rpartition(".")[0]),
        "physical_function": physical.rsplit("/", 1)[-1] if physical else None,
        "link": None,
        "other_links": links,
        "aer": None,
        "parent": None,
    }
    if links or not facts["responsive"]:
        function["aer"] = _aer(tree, base)
    if not facts["responsive"]:
        function["power_state"] = tree.text(f"{base}/power_state")
    return function


def _read_config(tree: Tree, base: str) -> dict[str, Any]:
    try:
        descriptor = os.open(tree.path(f"{base}/config"), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return parse_function(config_from_bytes(b""))
    try:
        return parse_function(config_from_file(descriptor))
    finally:
        os.close(descriptor)


def _sysfs_links(tree: Tree, base: str) -> list[dict[str, Any]]:
    max_width = tree.integer(f"{base}/max_link_width")
    if not max_width or max_width >= _WIDTH_UNKNOWN:
        return []
    return [
        {
            "offset": None,
            "port_number": None,
            "max_speed_gts": _sysfs_speed(tree.text(f"{base}/max_link_speed")),
            "supported_speeds_gts": [],
            "max_width": max_width,
            "speed_gts": _sysfs_speed(tree.text(f"{base}/current_link_speed")),
            "width": tree.integer(f"{base}/current_link_width"),
            "target_speed_gts": None,
            "aspm_supported": None,
            "aspm_enabled": None,
            "disabled": None,
            "training": None,
            "active": None,
            "bandwidth_managed": None,
            "bandwidth_autonomous": None,
            "flit": False,
            "retimers": None,
            "source": "sysfs",
        }
    ]


def _sysfs_speed(text: str | None) -> float | None:
    match = _SPEED.match(text or "")
    try:
        return float(match.group(1)) if match else None
    except ValueError:
        return None


def _aer(tree: Tree, base: str) -> dict[str, dict[str, int]] | None:
    """Error counters since boot by kind, `None` where the kernel keeps none for this device; zeros are left out."""
    counters: dict[str, dict[str, int]] = {}
    for name in _AER_FILES:
        text = tree.text(f"{base}/aer_dev_{name}")
        if text is None:
            return None
        counts = {}
        for line in text.splitlines():
            key, _, value = line.partition(" ")
            if _COUNT.match(value) and (key.startswith("TOTAL_") or int(value)):
                counts["total" if key.startswith("TOTAL_") else key] = int(value)
        counts.setdefault("total", sum(counts.values()))
        counters[name] = counts
    return counters


def physical_slots(tree: Tree) -> dict[str, str]:
    """Names of the physical slots by the address (without the function) of what sits in them."""
    base = "/sys/bus/pci/slots"
    found = {}
    for name in tree.names(base):
        address = tree.text(f"{base}/{name}/address")
        if address:
            found[address] = name
    return found
