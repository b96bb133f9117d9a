"""What the virtual bare metal is called, which ports it uses, and where it keeps its things."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.settings import Lab, port_number
from lab.shell import LabError, read

DEFAULTS = {"ssh_port": 2223, "bmc_port": 8444, "ipmi_port": 9223}
VARIABLES = {"ssh_port": "LAB_VM_SSH_PORT", "bmc_port": "LAB_VM_BMC_PORT", "ipmi_port": "LAB_VM_IPMI_PORT"}


@dataclass(frozen=True)
class VmLab(Lab):
    """The lab of the virtual machine: beside the container's, with a state directory and an inventory of its own."""

    ipmi_port: int = DEFAULTS["ipmi_port"]

    @property
    def container(self) -> str:
        """Name of the machine; host keys are known under it."""
        return self.name

    @property
    def state(self) -> Path:
        """Directory of the machine: disks, tables, keys, logs, sockets."""
        return self.root / "lab" / ".state" / "vm"

    @property
    def vault_password_file(self) -> Path:
        """The container lab's: one `. lab/activate` opens both vaults."""
        return self.root / "lab" / ".state" / "vault-password"

    @property
    def vault_file(self) -> Path:
        """The encrypted variables of its inventory."""
        return self.root / "inventories" / "lab-vm" / "group_vars" / "nodes" / "vault.yml"


def load(root: Path, environ: Mapping[str, str] = os.environ, *, recorded_first: bool = False) -> VmLab:
    """Settings from the environment, else as the machine's record says, else the defaults."""
    try:
        found = json.loads(read(root / "lab" / ".state" / "vm" / "lab.json"))
    except ValueError:
        found = {}
    record: dict[str, Any] = found if isinstance(found, dict) else {}
    ports: dict[str, int] = {}
    for key, variable in VARIABLES.items():
        given, noted = environ.get(variable, ""), record.get(key)
        if type(noted) is int and (recorded_first or not given):
            ports[key] = noted
        else:
            ports[key] = port_number(variable, given) if given else DEFAULTS[key]
    if len(set(ports.values())) < len(ports):
        shown = ", ".join(f"{VARIABLES[key]}={value}" for key, value in ports.items())
        raise LabError(f"the virtual machine's ports must differ, found {shown}")
    return VmLab(root=root, name="plumbline-vm1", api_port=0, **ports)
