"""--tags takes whole stages: a judgement without the tasks that measured for it could only fail."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.playbook_run import CHECKOUT

# The roles whose tasks measure within their own play; the others are read back by the stage verify.
ROLES = ("survey", "engine", "model", "serving", "gateway", "accept")


def tasks_of(*options: str) -> str:
    done = subprocess.run(
        [
            Path(sys.executable).parent / "ansible-playbook",
            "-i",
            "inventories/example",
            "site.yml",
            "--list-tasks",
            *options,
        ],
        cwd=CHECKOUT,
        env={**os.environ, "ANSIBLE_CONFIG": str(CHECKOUT / "ansible.cfg")},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return done.stdout


def test_verify_is_a_stage_and_no_part_of_others() -> None:
    listed = tasks_of("--tags", "verify")
    assert re.findall(rf"^ +({'|'.join(ROLES)}) : ", listed, re.MULTILINE) == []
    assert "bios : " in listed
    assert "kernel : " in listed


# A role whose tasks are spread over two stages.
STAGES = {"engine": "engine,tune"}


@pytest.mark.parametrize("role", ROLES)
def test_a_stage_has_all_of_its_tasks(role: str) -> None:
    pattern = re.compile(rf"^ +({role} : .*?)\tTAGS", re.MULTILINE)
    assert pattern.findall(tasks_of("--tags", STAGES.get(role, role))) == pattern.findall(tasks_of())
    assert pattern.findall(tasks_of())
