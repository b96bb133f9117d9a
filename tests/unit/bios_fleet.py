"""What the tests of the BIOS playbooks share: an inventory of simulated machines, and runs of playbooks against it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.bmc.testing import RunningBmc

ROOT = Path(__file__).parents[2]
RUN = "20260101T000000Z"


@dataclass
class Fleet:
    """Machines by their inventory names; None is a machine without a BMC."""

    directory: Path
    machines: dict[str, RunningBmc | None]

    @property
    def artifacts(self) -> Path:
        """Where a run of `play` leaves its files."""
        return self.directory / "artifacts" / RUN / "bios"

    def inventory(self) -> dict[str, Any]:
        """The inventory for `ansible-playbook -i`."""
        hosts: dict[str, Any] = {}
        for name, bmc in self.machines.items():
            hosts[name] = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
            if bmc is not None:
                hosts[name] |= {
                    "bmc_host": "127.0.0.1",
                    "bmc_port": int(bmc.base_url.rsplit(":", 1)[1]),
                    "bmc_username": bmc.username,
                    "bmc_password": bmc.password,
                    "bmc_ca_file": bmc.ca_file,
                    "bmc_timeout_seconds": 5,
                }
        return {"nodes": {"hosts": hosts}}

    def play(self, *playbooks: str, options: tuple[str, ...] = (), **variables: Any) -> tuple[int, str]:
        """Run playbooks in one process: exit status and output. Nothing is surveyed, which saves seconds."""
        (self.directory / "hosts.json").write_text(json.dumps(self.inventory()))
        known = {
            "plumbline_run_id": RUN,
            "survey_node": {"boot_identity": "before", "container": False, "system": "Linux", "gpus": []},
            **variables,
        }
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PLUMBLINE_ARTIFACTS_DIR": str(self.directory / "artifacts"),
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default",
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_LOCAL_TEMP": str(self.directory / "tmp"),
        }
        done = subprocess.run(
            [
                *("ansible-playbook", "-i", str(self.directory / "hosts.json"), *options),
                *("-e", json.dumps(known), *[f"playbooks/{name}.yml" for name in playbooks]),
            ],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=180,
        )
        output = done.stdout + done.stderr
        assert "Traceback" not in output
        return done.returncode, output


def changed(output: str, host: str) -> int:
    """How many tasks changed something on a host, from the recap."""
    recap = next(line for line in output.splitlines() if line.startswith(f"{host} ") and "changed=" in line)
    return int(recap.split("changed=")[1].split()[0])
