"""Run a small playbook for a test, with the project's configuration, on localhost only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import yaml

CHECKOUT = Path(__file__).resolve().parents[2]
RUN = "20260101T000000Z"


@dataclass
class Outcome:
    """What a run left behind."""

    status: int
    output: str
    directory: Path

    def evidence(self, host: str) -> list[dict]:
        path = self.directory / RUN / f"{host}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def kinds(self, host: str) -> list[str]:
        return [record["kind"] for record in self.evidence(host)]

    @property
    def last_line(self) -> str:
        return self.output.strip().splitlines()[-1]


def play(tasks: list, stage: str = "accept", **keywords: object) -> dict:
    return {
        "name": f"The {stage} stage",
        "hosts": "all",
        "gather_facts": False,
        "vars": {"plumbline_stage": stage},
        "tasks": tasks,
        **keywords,
    }


def run_playbook(
    tmp_path: Path,
    plays: list,
    *options: str,
    hosts: tuple[str, ...] = ("node1",),
    variables: dict | None = None,
    **environment: str,
) -> Outcome:
    """Run plays against hosts that are all this machine; ``variables`` are those of the inventory."""
    known = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "plumbline_run_id": RUN,
        "plumbline_artifacts_dir": str(tmp_path / "artifacts"),
        **(variables or {}),
    }
    (tmp_path / "inventory.yml").write_text(
        yaml.safe_dump({"all": {"hosts": {host: {} for host in hosts}, "vars": known}})
    )
    (tmp_path / "play.yml").write_text(yaml.safe_dump(plays, sort_keys=False))
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("ANSIBLE_", "NO_COLOR"))}
    done = subprocess.run(
        [
            Path(sys.executable).parent / "ansible-playbook",
            "-i",
            tmp_path / "inventory.yml",
            tmp_path / "play.yml",
            *options,
        ],
        cwd=CHECKOUT,
        env={**clean, "ANSIBLE_CONFIG": str(CHECKOUT / "ansible.cfg"), "ANSIBLE_LOCALHOST_WARNING": "0", **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return Outcome(done.returncode, done.stdout + done.stderr, tmp_path / "artifacts")
