"""A machine that measures its memory bandwidth: the module's own run, with a program in the kernel's place that tells a rate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest import mock

from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import memory_bandwidth

from .bench import Machine, run_module
from .memory_machines import icx

_PROGRAM = """#!/bin/sh
threads=$(echo "$5" | awk -F, '{ print NF }')
[ -n "CRASH" ] && { echo "bus error" >&2; exit 1; }
awk -v bytes="$1" -v threads="$threads" 'BEGIN {
  split("SHARES", shares, " ")
  for (kernel = 1; kernel <= 3; kernel++) {
    list = ""
    for (i = 1; i in shares; i++) list = list (i > 1 ? ", " : "") sprintf("%.9e", bytes * kernel / (shares[i] * LIMIT))
    seconds[kernel] = "[" list "]"
  }
  printf "{\\"seconds\\": {\\"read\\": %s, \\"copy\\": %s, \\"triad\\": %s}, ", seconds[1], seconds[2], seconds[3]
  printf "\\"array_bytes\\": %d, \\"threads\\": %d, \\"wrong\\": WRONG, \\"unpinned\\": 0, ", bytes, threads - FEWER
  printf "\\"isa\\": \\"avx512\\", \\"non_temporal\\": true, \\"placement\\": {}}\\n"
}'
"""


class BandwidthMachine(Machine):
    """`shares` are the passes of the triad, as fractions of what the captured DIMMs allow."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.shares = [0.8] * 6
        self.told = {"WRONG": "0", "FEWER": "0", "CRASH": ""}
        self.dimms = icx(root / "dimms")
        self.dimms.measurements()

    def measurements(self) -> list[dict[str, Any]]:
        dimm = run_module("dimm_info", {"root": str(self.dimms.root)})
        text = _PROGRAM.replace("SHARES", " ".join(map(str, self.shares)))
        text = text.replace("LIMIT", str(dimm["bandwidth_bytes_per_second"]))
        for mark, value in self.told.items():
            text = text.replace(mark, value)
        program = self.put("/membw", text)
        program.chmod(0o755)
        with mock.patch.object(memory_bandwidth, "build", return_value=(program, "built before")):
            result = run_module("memory_bandwidth", {"dimm": json.loads(json.dumps(dimm)), "matrix": False})
        assert not result.get("failed"), result
        # Of the machine at hand: its NUMA nodes are not those of the captured DIMMs.
        return [one for one in result["measurements"] if one["scope"] == "node"]


def bandwidth(root: Path) -> BandwidthMachine:
    """Two sockets of 8 channels that reach 0.8 of their 409.6 GB/s."""
    return BandwidthMachine(root)
