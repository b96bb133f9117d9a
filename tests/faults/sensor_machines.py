"""Machines whose BMC answers in-band: captured output of `ipmitool`, which the module finds on PATH."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any
from unittest import mock

from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import bmc_ipmi_run

from .bench import FIXTURES, Machine, run_module

IPMI = FIXTURES / "ipmi"
_NOW = "11/30/2026 12:00:00"
_LOG_INFO = "Version          : 1.5 (v1.5, v2 compliant)\nEntries          : 2\nPercent Used     : 4%\nOverflow         : false\n"
_SHELL = """#!/bin/sh
case "$*" in
  *"sdr dump"*) exit 1;;
  *"sel elist") f=log;;
  *"sel info") f=info;;
  *"sel time get") f=clock;;
  *"sdr elist") f=described;;
  *sensor) f=measured;;
  *) exit 1;;
esac
[ -f "$0.$f" ] || { echo "Unable to establish the session" >&2; exit 1; }
cat "$0.$f"
"""


class SensorMachine(Machine):
    """What each call of `ipmitool` prints; a call that is not in `answers` fails."""

    def __init__(self, root: Path, measured: str, described: str) -> None:
        super().__init__(root)
        self.answers = {
            "measured": measured,
            "described": described,
            "log": "   1 | 11/20/2026 | 08:00:00 | System Event #0x83 | Timestamp Clock Sync | Asserted\n",
            "info": _LOG_INFO,
            "clock": _NOW + "\n",
        }
        self.options: dict[str, Any] = {}

    def reading(self, name: str, value: str, status: str) -> None:
        """Let a sensor of the list with thresholds read something else."""
        old = self.answers["measured"]
        pattern = rf"(?m)^({re.escape(name)} *\| )[^|]*(\|[^|]*\| )[^|]*(\|)"
        self.answers["measured"] = re.sub(pattern, rf"\g<1>{value:<11}\g<2>{status:<6}\g<3>", old, count=1)
        assert self.answers["measured"] != old, name

    def state(self, number: str, text: str, status: str = "ok") -> None:
        """Let a sensor of the list with entities, by its number, say something else."""
        old = self.answers["described"]
        pattern = rf"(?m)^([^|]*\| {number} \| )[^|]*(\|[^|]*\| ).*$"
        self.answers["described"] = re.sub(pattern, rf"\g<1>{status:<4}\g<2>{text}", old, count=1)
        assert self.answers["described"] != old, number

    def event(self, text: str) -> None:
        """An entry of the event log of today."""
        self.answers["log"] += f"   {self.answers['log'].count(chr(10)) + 1} | 11/30/2026 | 09:30:00 | {text}\n"

    def measurements(self) -> list[dict[str, Any]]:
        tool = self.put("/tools/ipmitool", _SHELL)
        tool.chmod(0o755)
        for name, text in self.answers.items():
            Path(f"{tool}.{name}").write_text(text)
        path = f"{tool.parent}:{os.environ['PATH']}"
        with mock.patch.dict(os.environ, {"PATH": path}), mock.patch.object(bmc_ipmi_run, "obstacle", return_value=""):
            result = run_module("bmc_sensors_info", self.options)
        assert not result.get("failed"), result
        found = result["measurements"]
        assert isinstance(found, list)
        return found


def rack_server(root: Path) -> SensorMachine:
    """A Dell R740: a list with entities and states, without thresholds."""
    return SensorMachine(root, "", (IPMI / "datakit_R740v2.txt").read_text())


def gpu_server(root: Path) -> SensorMachine:
    """A GPU node with one of two processors: a list with thresholds."""
    return SensorMachine(root, (IPMI / "gpu_node_one_cpu_sensor_excerpt.txt").read_text(), "")


def captured(root: Path, name: str) -> SensorMachine:
    """The machine of one captured list, of either form."""
    text = (IPMI / f"{name}.txt").read_text()
    return SensorMachine(root, text, "") if "sensor" in name else SensorMachine(root, "", text)
