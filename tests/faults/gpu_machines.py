"""A node with 8 GPUs and NVSwitches whose tools print what was captured: the module's own commands find them on PATH."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.tree import Tree

from .bench import FIXTURES, Machine

NVIDIA = FIXTURES / "nvidia"
H200 = (NVIDIA / "h200_580_nvidia-smi-q-x_v13.xml").read_text()
STATUS = (NVIDIA / "gpud_nvlink_status_a100.txt").read_text()
XID = (NVIDIA / "gpud_dmesg_xid119.log").read_text()
LSPCI = FIXTURES / "pci/gpud_lspci-nn_a100.txt"
_KERNEL = "6.1.0-27-amd64"
_LINE = re.compile(r"^(\S+) .*?\[(0302|0680)\]: NVIDIA")


class GpuMachine(Machine):
    """The PCI addresses of a captured node, an H200's `nvidia-smi -q -x` for each GPU, and the NVLinks of another captured node."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        lines = [match for line in LSPCI.read_text().splitlines() if (match := _LINE.match(line))]
        self.gpus = [match[1] for match in lines if match[2] == "0302"]
        for match in lines:
            base = f"/sys/bus/pci/devices/{match[1]}"
            self.put(f"{base}/vendor", "0x10de")
            self.put(f"{base}/class", f"0x{match[2]}00")
        self.put("/proc/sys/kernel/osrelease", _KERNEL)
        self.put("/proc/driver/nvidia/version", (NVIDIA / "h200_580_proc_driver_nvidia_version.txt").read_text())
        self.uuids = re.findall(r"UUID: ([^)]+)\)", STATUS)
        self.before, one, self.after = re.split(r"(<gpu id=.*</gpu>)", H200, maxsplit=1, flags=re.DOTALL)
        self.blocks = [self._block(one, address, uuid) for address, uuid in zip(self.gpus, self.uuids)]
        self.nvlink = STATUS
        self.counters = "".join(
            f"GPU {index}: NVIDIA H200 (UUID: {uuid})\n" + "".join(_counters(link) for link in range(12))
            for index, uuid in enumerate(self.uuids)
        )
        self.log = "kernel: Linux version 6.1.0\n"
        self.around = ""
        self.silence = ""
        self.status = 0
        self.fabric_state = "active"
        self.fabric_version = re.findall(r"<driver_version>([\d.]+)<", H200)[0]

    @staticmethod
    def _block(one: str, address: str, uuid: str) -> str:
        text = one.replace("00000000:00:06.0", f"0000{address.upper()}").replace(
            "GPU-00000000-0000-0000-0000-000000000001", uuid
        )
        # Behind NVSwitches the fabric manager takes each GPU in.
        text = text.replace(
            "<state>N/A</state>\n\t\t\t<status>N/A</status>", "<state>Completed</state>\n\t\t\t<status>Success</status>"
        )
        return re.sub(r"<replay_counter>\d+<", "<replay_counter>0<", text)

    def change(self, gpu: int, old: str, new: str) -> None:
        """Let one GPU's answer say something else."""
        assert old in self.blocks[gpu], old
        self.blocks[gpu] = self.blocks[gpu].replace(old, new)

    def xid(self, gpu: int, code: int, text: str) -> None:
        """A line of the kernel log, in the form of the captured one."""
        self.log += f"[Sun Feb 23 16:24:18 2025] NVRM: Xid (PCI:{self.gpus[gpu][:-2]}): {code}, {text}\n"

    @contextmanager
    def _tools(self) -> Iterator[None]:
        """The commands of a live node, which print what this machine holds."""
        answer = self.before + "\n".join(self.blocks) + self.after + self.around
        prints = {
            "smi": self.silence if self.silence else answer,
            "status": self.nvlink,
            "errors": self.counters,
            "log": self.log,
        }
        for name, text in prints.items():
            self.put(f"/answers/{name}", text)
        said = f"{self.root}/answers"
        smi = f'case "$*" in *"nvlink -s"*) f=status;; *"nvlink -e"*) f=errors;; *) f=smi;; esac; cat {said}/$f; exit {self.status}'
        for name, line in (
            ("nvidia-smi", smi),
            ("systemctl", f"case $1 in is-active) echo {self.fabric_state};; is-enabled) echo enabled;; esac"),
            ("nv-fabricmanager", f'echo "Fabric Manager version is : {self.fabric_version}"'),
            ("journalctl", f"cat {said}/log"),
            ("dmesg", "exit 1"),
            ("modinfo", "exit 1"),
        ):
            self.put(f"/tools/{name}", f"#!/bin/sh\n{line}").chmod(0o755)
        path = f"{self.root}/tools:{os.environ['PATH']}"
        with mock.patch.dict(os.environ, {"PATH": path}), mock.patch.object(Tree, "is_live", True):
            yield

    def measurements(self) -> list[dict[str, Any]]:
        with self._tools():
            return self.look("gpu_driver_info")


def _counters(link: int) -> str:
    kinds = ("Replay", "Recovery", "CRC")
    return "".join(f"\t Link {link}: {kind} Errors: 0\n" for kind in kinds) + "\n"


def gpus(root: Path) -> GpuMachine:
    """8 GPUs, 6 NVSwitches, 12 NVLinks a GPU."""
    return GpuMachine(root)
