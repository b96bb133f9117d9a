"""`plumbline-metrics`: write what only the machine itself knows to a file that the node exporter hands to Prometheus.

Run by a systemd timer as root: `python3 -m plumbline.metrics_collector CONFIGURATION`, with a JSON object of `output` (file), `units`,
`certificates`, `bounds` (numbers by name, which the alerts compare with) and `sources` (which of `pcie`, `sensors`, `gpus`, `xids`,
`units`, `certificates` to read).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import metrics_sources
from .metrics_text import Metrics, write_whole

SOURCES = ("pcie", "sensors", "gpus", "xids", "units", "certificates")
_FIELDS: dict[str, type] = {"output": str, "units": list, "certificates": list, "sources": list, "bounds": dict}


def configuration(text: str) -> tuple[dict[str, Any], str]:
    """The configuration, and what is wrong with it."""
    try:
        found = json.loads(text)
    except ValueError as error:
        return {}, f"expected a JSON object, found text that is none ({error})"
    if not isinstance(found, dict):
        return {}, f"expected a JSON object, found {type(found).__name__}"
    for name, kind in _FIELDS.items():
        if not isinstance(found.get(name), kind):
            return {}, f"expected {name} to be of the type {kind.__name__}, found {found.get(name)!r}"
    odd = [
        name
        for name, value in found["bounds"].items()
        if isinstance(value, bool) or not isinstance(value, (int, float))
    ]
    if odd:
        return {}, f"expected the bound {odd[0]} to be a number, found {found['bounds'][odd[0]]!r}"
    unknown = [name for name in found["sources"] if name not in SOURCES]
    if unknown:
        return {}, f"expected the sources {', '.join(SOURCES)}, found {unknown[0]!r}"
    return found, ""


def _gpus(metrics: Metrics) -> str:
    text, problem = metrics_sources.run(["nvidia-smi", "-q", "-x"])
    return problem or metrics_sources.gpus(metrics, text)


def _xids(metrics: Metrics) -> str:
    text, problem = metrics_sources.run(
        ["journalctl", "--dmesg", "--boot", "--no-pager", "--output=short", "--grep=NVRM|nvidia-nvswitch"]
    )
    # It ends with 1 and no word where nothing matches.
    nothing = problem == "journalctl ended with status 1: "
    return problem if problem and not nothing else metrics_sources.xids(metrics, text)


def _units(metrics: Metrics, names: list[str]) -> str:
    if not names:
        return "no unit is named"
    text, problem = metrics_sources.show_units(names)
    boot = time.time() - time.clock_gettime(time.CLOCK_MONOTONIC)
    return problem or metrics_sources.units(metrics, text, boot_time_seconds=boot)


def _certificates(metrics: Metrics, paths: list[str]) -> str:
    reasons = [metrics_sources.certificate(metrics, Path(path)) for path in paths]
    return "; ".join(filter(None, reasons))


def collect(wish: dict[str, Any]) -> Metrics:
    """Read every wanted source. One that fails, for whatever reason, is told as a metric and does not keep others from being read."""
    metrics = Metrics()
    read: dict[str, Callable[[Metrics], str]] = {
        "pcie": metrics_sources.pcie,
        "sensors": metrics_sources.sensors,
        "gpus": _gpus,
        "xids": _xids,
        "units": lambda into: _units(into, wish["units"]),
        "certificates": lambda into: _certificates(into, wish["certificates"]),
    }
    for name in wish["sources"]:
        begun = time.monotonic()
        try:
            reason = read[name](metrics)
        except Exception as error:  # a collector that dies takes the other sources with it
            reason = f"{type(error).__name__}: {error}"
        if reason:
            # Into the file and not into the journal: a machine without a BMC would say so twice a minute.
            metrics.remark(f"{name}: {reason}")
        metrics.add(
            "plumbline_collector_source_up", "gauge", "Whether the source could be read.", not reason, source=name
        )
        metrics.add(
            "plumbline_collector_source_seconds",
            "gauge",
            "How long reading the source took.",
            round(time.monotonic() - begun, 6),
            source=name,
        )
    for name, value in wish["bounds"].items():
        metrics.add(
            "plumbline_limit", "gauge", "Bounds that this machine's figures are held against.", value, limit=name
        )
    metrics.add("plumbline_collector_time_seconds", "gauge", "When the collector last ran, Unix time.", time.time())
    return metrics


def main(arguments: list[str]) -> int:
    """Collect once; return the exit status."""
    if len(arguments) != 1:
        print("plumbline-metrics: expected one argument, the file of its configuration", file=sys.stderr)
        return 2
    try:
        wish, problem = configuration(Path(arguments[0]).read_text(encoding="utf-8"))
    except OSError as error:
        wish, problem = {}, f"cannot be read: {error.strerror}"
    if problem:
        print(f"plumbline-metrics: {arguments[0]}: {problem}", file=sys.stderr)
        return 2
    try:
        write_whole(Path(wish["output"]), collect(wish).render())
    except OSError as error:
        print(
            f"plumbline-metrics: {wish['output']} cannot be written: {error.strerror}: make its directory",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
