"""What this lab is called, which ports it uses, and where it keeps its things."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lab.shell import LabError, read, write_atomically

DEFAULTS: dict[str, Any] = {"name": "plumbline-lab", "ssh_port": 2222, "api_port": 8000, "bmc_port": 8443}
VARIABLES = {
    "name": "LAB_NAME",
    "ssh_port": "LAB_SSH_PORT",
    "api_port": "LAB_API_PORT",
    "bmc_port": "LAB_BMC_PORT",
    "gateway_port": "LAB_GATEWAY_PORT",
}
PORTS = ("ssh_port", "api_port", "bmc_port", "gateway_port")
# The gateway's port where none is given: so far from the API's, so that labs side by side need to say no more than before.
GATEWAY_AFTER_API = 463
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,40}")


@dataclass(frozen=True)
class Lab:
    """One lab. A checkout has one; several checkouts run side by side under different names and ports."""

    root: Path
    name: str
    ssh_port: int
    api_port: int
    bmc_port: int
    gateway_port: int = 0

    @property
    def container(self) -> str:
        """Name of the node's container."""
        return f"{self.name}-node1"

    @property
    def state(self) -> Path:
        """Directory of keys, secrets, logs and the process file: mode 0700, never in git."""
        return self.root / "lab" / ".state"

    @property
    def cache(self) -> Path:
        """Directory of downloads that survive ``make clean``."""
        return self.root / ".cache"

    @property
    def record(self) -> Path:
        """File in which a running lab notes its settings; the inventory reads it."""
        return self.state / "lab.json"

    @property
    def vault_password_file(self) -> Path:
        """What the vault is encrypted with; `lab/activate` names it to Ansible."""
        return self.state / "vault-password"

    @property
    def vault_file(self) -> Path:
        """The encrypted variables of the inventory."""
        return self.root / "inventories" / "lab" / "group_vars" / "nodes" / "vault.yml"

    def settings(self) -> dict[str, Any]:
        """Name and ports, as recorded."""
        return {key: value for key, value in asdict(self).items() if key != "root"}

    def ensure_state(self) -> None:
        """Make the state directory, closed to others."""
        self.state.mkdir(parents=True, exist_ok=True)
        owner = self.state.stat().st_uid
        if owner != os.geteuid():
            raise LabError(
                f"this checkout's lab was made by the user with the number {owner}, and you are {os.geteuid()}: run make as that user"
                + (" (sudo make ...)" if owner == 0 else "")
            )
        self.state.chmod(0o700)

    def write_record(self, extra: Mapping[str, Any]) -> None:
        """Note the settings and whatever else the inventory reads."""
        content = json.dumps({**self.settings(), **extra}, indent=2, sort_keys=True) + "\n"
        if read(self.record) != content:
            write_atomically(self.record, content, 0o600)


def sound(found: Any) -> dict[str, Any]:
    """Recorded settings with every name and type as it should be; anything else becomes empty."""
    if not isinstance(found, dict) or any(type(found.get(key)) is not type(value) for key, value in DEFAULTS.items()):
        return {}
    kept = {key: found[key] for key in DEFAULTS}
    # A lab that was made before there was a gateway has no port for it.
    return {**kept, "gateway_port": found["gateway_port"]} if type(found.get("gateway_port")) is int else kept


def read_record(root: Path) -> dict[str, Any]:
    """The settings noted by the last ``up``; empty when there are none or the file is damaged."""
    try:
        return sound(json.loads(read(root / "lab" / ".state" / "lab.json")))
    except ValueError:
        return {}


def port_number(variable: str, text: str) -> int:
    """A port for loopback that an ordinary user may take, or LabError that names the variable."""
    if not text.isascii() or not text.isdigit() or not 1024 <= int(text) <= 65535:
        raise LabError(f"{variable} must be a port from 1024 to 65535, found '{text}'")
    return int(text)


def gateway_port(api_port: int) -> int:
    """The gateway's port where none is given."""
    return api_port + GATEWAY_AFTER_API if api_port + GATEWAY_AFTER_API <= 65535 else api_port - GATEWAY_AFTER_API


def load(root: Path, environ: Mapping[str, str], record: Mapping[str, Any], *, recorded_first: bool = False) -> Lab:
    """Settings from the environment, else as recorded, else the defaults.

    ``recorded_first`` is for taking the lab down: what is running counts then, not what the next one should be.
    """
    values: dict[str, Any] = {}
    for key, variable in VARIABLES.items():
        given = environ.get(variable, "")
        if key in record and (recorded_first or not given):
            values[key] = record[key]
        elif not given and key == "gateway_port":
            values[key] = gateway_port(values["api_port"])
        elif not given:
            values[key] = DEFAULTS[key]
        elif key == "name":
            if not _NAME.fullmatch(given):
                raise LabError(
                    f"{variable} must be made of small letters, digits and dashes (41 characters at most), found '{given}'"
                )
            values[key] = given
        else:
            values[key] = port_number(variable, given)
    ports = [values[key] for key in PORTS]
    if len(set(ports)) < len(ports):
        shown = ", ".join(f"{VARIABLES[key]}={values[key]}" for key in PORTS)
        raise LabError(f"the lab's four ports must differ, found {shown}")
    return Lab(root=root, **values)
