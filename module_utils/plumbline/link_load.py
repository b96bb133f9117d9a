"""The links of devices while copies run: what they can do, what they did, and what a copy over them can reach at most.

A link that trained down lowers what it can carry. So a copy is held against what the links on its way *can* do, and the cause
of a miss names the link that did not.
"""

from __future__ import annotations

from typing import Any

from .limits import pcie_bandwidth, pcie_bandwidth_text
from .pci_measurements import link_under_load

NAMES = ("pcie_link_speed_under_load", "pcie_link_width_under_load")


class LinkFacts:
    """The PCI tree of a machine (`pci_facts`), asked by the address of a device."""

    def __init__(self, facts: dict[str, Any]) -> None:
        """Take what `pci_facts` found."""
        self.functions = {function["address"]: function for function in facts["functions"]}
        self.links = {link["device"]: link for link in facts["links"]}
        self.devices = {device["address"]: device for device in facts["devices"]}

    def path(self, address: str) -> list[str]:
        """The functions from a device up to its root port, the device first; itself alone where the tree does not know it."""
        function = self.functions.get(address)
        return [address, *function["path"]] if function else [address]

    def hops(self, address: str) -> list[dict[str, Any]]:
        """The links from a device up to its root port, the nearest first."""
        device = self.devices.get(address)
        return [self.links[hop] for hop in device["hops"]] if device else []

    def limit(self, address: str) -> dict[str, Any] | None:
        """What the way to a device can carry in one direction: the narrowest hop by what both its ends can do.

        Returns `bytes_per_second`, `text` (how it came about), `link_class` (`32 GT/s x16`) and `hop`; `None` where no link shows.
        """
        able = [hop for hop in self.hops(address) if hop["limit_bytes_per_second"]]
        if not able:
            return None
        hop = min(able, key=lambda link: link["limit_bytes_per_second"])
        return {
            "bytes_per_second": hop["limit_bytes_per_second"],
            "text": f"{pcie_bandwidth_text(hop['max_speed_gts'], hop['max_width'], hop['flit'])}, what the link can do",
            "link_class": link_class(hop["max_speed_gts"], hop["max_width"]),
            "hop": hop["device"],
        }

    def under_load(self, address: str, seen: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
        """The hops of a device as they were while copies ran; a hop that no sample shows has no speed and no width."""
        return [_loaded(hop, seen) for hop in self.hops(address)]

    def measurements(
        self, scope: str, address: str, seen: dict[str, dict[str, Any]], during: str
    ) -> list[dict[str, Any]]:
        """Speed (GT/s) and width (lanes) of the worst hop of a device while copies ran, against what both its ends can do.

        `seen` is the summary of a `LinkSampler`: of each function the fastest state counts, for between two copies a link may idle.
        """
        hops = self.under_load(address, seen)
        if not hops:
            reason = self._why_no_link(address)
            return [{"name": name, "scope": scope, "skipped": reason} for name in NAMES]
        samples = max((state["samples"] for state in seen.values()), default=0)
        common = {
            "during": during,
            "samples": samples,
            "hops": [_shown(hop, seen) for hop in hops],
        }
        pairs = [link_under_load(hop, self.functions) for hop in hops]
        found = []
        for which, name in enumerate(NAMES):
            worst = max((pair[which] for pair in pairs), key=_badness)
            conditions = {**worst.get("conditions", {}), **common}
            statistic = f"highest of {samples} samples" if samples else ""
            found.append({**worst, "name": name, "scope": scope, "statistic": statistic, "conditions": conditions})
        return found

    def slow_hop(self, address: str, seen: dict[str, dict[str, Any]]) -> dict[str, Any] | None:
        """The measurement of the worst hop that stayed below what it can do, with its cause; `None` where none did."""
        bad = [
            measurement
            for hop in self.under_load(address, seen)
            for measurement in link_under_load(hop, self.functions)
            if measurement.get("value") is not None and measurement["value"] < measurement["limit"]
        ]
        return max(bad, key=_badness, default=None)

    def _why_no_link(self, address: str) -> str:
        if not address:
            return "the address of the GPU on PCI is not known, so no link can be looked at"
        if address not in self.functions:
            return f"{address} is not among the PCI devices of this machine, so its link cannot be looked at"
        return f"{address} shows no PCIe link here (a virtual or integrated device)"


def link_class(speed_gts: float, width: int) -> str:
    """The class of a link, by which gates may hold floors: `32 GT/s x16`."""
    return f"{speed_gts:g} GT/s x{width}"


def merge(summaries: list[dict[str, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """One summary of several samplers' over the same functions."""
    merged: dict[str, dict[str, Any]] = {}
    for summary in summaries:
        for address, state in summary.items():
            known = merged.setdefault(address, {**state, "samples": 0})
            known["samples"] += state["samples"]
            for key, choose in (
                ("lowest_gts", min),
                ("highest_gts", max),
                ("lowest_width", min),
                ("highest_width", max),
            ):
                known[key] = choose(known[key], state[key])
    return merged


def _loaded(hop: dict[str, Any], seen: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """A hop with the state under load in place of that at rest: of its two ends the slower."""
    ends = [seen[end] for end in (hop["port"], *hop["functions"]) if end in seen]
    speed = min((end["highest_gts"] for end in ends), default=None)
    width = min((end["highest_width"] for end in ends), default=None)
    bandwidth = None if speed is None or width is None else round(pcie_bandwidth(speed, width, hop["flit"]))
    return {**hop, "speed_gts": speed, "width": width, "bandwidth_bytes_per_second": bandwidth}


def _shown(hop: dict[str, Any], seen: dict[str, dict[str, Any]]) -> dict[str, Any]:
    lowest = min((seen[end]["lowest_gts"] for end in (hop["port"], *hop["functions"]) if end in seen), default=None)
    return {
        "device": hop["device"],
        "port": hop["port"],
        "slot": hop["slot"],
        "speed_gts": hop["speed_gts"],
        "lowest_speed_gts": lowest,
        "width": hop["width"],
        "max_speed_gts": hop["max_speed_gts"],
        "max_width": hop["max_width"],
    }


def _badness(measurement: dict[str, Any]) -> tuple[int, float]:
    """Orders hops: the largest miss is the worst, then what could not be read, then the slowest."""
    value, limit = measurement.get("value"), measurement.get("limit")
    if value is None or not limit:
        return (1, 0.0)
    return (2, 1 - value / limit) if value < limit else (0, -value)
