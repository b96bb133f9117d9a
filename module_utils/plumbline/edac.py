"""Error counters of the memory controllers, from the kernel's EDAC drivers in sysfs."""

from __future__ import annotations

from typing import Any

from .tree import Tree

_BASE = "/sys/devices/system/edac/mc"


def edac_facts(tree: Tree) -> dict[str, Any]:
    """Corrected and uncorrected errors by controller and, where the driver knows, by DIMM; counts since the driver began."""
    controllers = []
    for name in tree.names(_BASE):
        if not (name.startswith("mc") and name[2:].isdigit()):
            continue
        base = f"{_BASE}/{name}"
        correctable, uncorrectable = tree.integer(f"{base}/ce_count"), tree.integer(f"{base}/ue_count")
        if correctable is None and uncorrectable is None:
            continue
        controllers.append(
            {
                "name": name,
                "driver": tree.text(f"{base}/mc_name"),
                "correctable": correctable,
                "uncorrectable": uncorrectable,
                "correctable_without_place": tree.integer(f"{base}/ce_noinfo_count"),
                "uncorrectable_without_place": tree.integer(f"{base}/ue_noinfo_count"),
                "seconds": tree.integer(f"{base}/seconds_since_reset"),
                "dimms": _dimms(tree, base) or _rows(tree, base),
            }
        )
    reason = "" if controllers else "no EDAC driver counts memory errors here; the BMC's event log may hold them"
    return {"available": bool(controllers), "reason": reason, "controllers": controllers}


def _dimms(tree: Tree, base: str) -> list[dict[str, Any]]:
    """The DIMMs (or ranks, with older drivers) that have errors; hundreds without are of no use to anybody."""
    found = []
    for name in tree.names(base):
        if not name.startswith(("dimm", "rank")):
            continue
        correctable = tree.integer(f"{base}/{name}/dimm_ce_count")
        uncorrectable = tree.integer(f"{base}/{name}/dimm_ue_count")
        if correctable or uncorrectable:
            found.append(
                {
                    "name": name,
                    "label": tree.text(f"{base}/{name}/dimm_label") or None,
                    "location": tree.text(f"{base}/{name}/dimm_location") or None,
                    "correctable": correctable,
                    "uncorrectable": uncorrectable,
                }
            )
    return found


def _rows(tree: Tree, base: str) -> list[dict[str, Any]]:
    """The same from the older layout: chip-select rows, whose channels count corrected errors and carry the labels."""
    found = []
    for row in tree.names(base):
        if not (row.startswith("csrow") and row[5:].isdigit()):
            continue
        path = f"{base}/{row}"
        labels = []
        for name in tree.names(path):
            if not (name.startswith("ch") and name.endswith("_ce_count")):
                continue
            channel = name[: -len("_ce_count")]
            label = tree.text(f"{path}/{channel}_dimm_label") or f"{row} {channel}"
            labels.append(label)
            correctable = tree.integer(f"{path}/{name}")
            if correctable:
                found.append(
                    {
                        "name": f"{row} {channel}",
                        "label": label,
                        "location": None,
                        "correctable": correctable,
                        "uncorrectable": 0,
                    }
                )
        uncorrectable = tree.integer(f"{path}/ue_count")
        if uncorrectable:
            # A row's channels are read as one word: which of them failed is not known.
            label = " or ".join(labels[:4]) or row
            found.append(
                {"name": row, "label": label, "location": None, "correctable": 0, "uncorrectable": uncorrectable}
            )
    return found
