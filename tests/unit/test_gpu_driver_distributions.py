"""What the role gpu_driver would use on each distribution: package manager, packages, source; read from its own variables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.playbook_run import CHECKOUT, run_playbook

ROLE = CHECKOUT / "roles" / "gpu_driver"
WANTED = {
    "manager": "{{ __gpu_driver_manager }}",
    "installable": "{{ __gpu_driver_release in __gpu_driver_managers }}",
    "known": "{{ __gpu_driver_known }}",
    "content": "{{ __gpu_driver_source_content }}",
    "file": "{{ __gpu_driver_source_file }}",
}
# As /etc/os-release names them (node_info): distribution, version, source, then what follows from it.
CASES: list[tuple[str, str, str, dict[str, Any]]] = [
    ("debian", "12", "distribution", {"manager": "apt", "first": "nvidia-open-kernel-dkms", "content": "Components: contrib non-free"}),
    ("debian", "12", "nvidia", {"first": "nvidia-kernel-open-dkms", "content": "repos/debian12/x86_64/"}),
    ("debian", "12", "directory", {"first": "nvidia-kernel-open-dkms", "content": "URIs: file:/var/lib/plumbline/gpu_driver"}),
    ("ubuntu", "20.04", "distribution", {"first": "nvidia-headless-{branch}-server-open", "content": ""}),
    ("ubuntu", "22.04", "nvidia", {"manager": "apt", "first": "nvidia-kernel-open-dkms", "content": "repos/ubuntu2204/x86_64/"}),
    ("ubuntu", "24.04", "distribution", {"first": "nvidia-headless-{branch}-server-open", "content": ""}),
    ("rhel", "9.4", "nvidia", {"manager": "dnf", "first": "kmod-nvidia-open-dkms", "content": "repos/rhel9/x86_64"}),
    ("rocky", "9.5", "directory", {"manager": "dnf", "first": "kmod-nvidia-open-dkms", "content": "baseurl=file:///srv/packages"}),
    ("almalinux", "9.5", "distribution", {"manager": "dnf", "first": "", "content": ""}),
    ("fedora", "41", "nvidia", {"installable": False, "first": "", "content": ""}),
]  # fmt: skip


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The role's variables on every distribution, from one run."""
    directory = tmp_path_factory.mktemp("distributions")
    loop = [
        {"distribution": name, "distribution_version": version, "source": source} for name, version, source, _ in CASES
    ]
    tasks = [
        {"name": "Defaults", "ansible.builtin.include_vars": {"file": str(ROLE / "defaults/main.yml")}},
        {"name": "Variables", "ansible.builtin.include_vars": {"file": str(ROLE / "vars/main.yml")}},
        {
            "name": "Answers",
            "ansible.builtin.copy": {
                "dest": f"{directory}/{{{{ item.distribution }}}}-{{{{ item.distribution_version }}}}-{{{{ item.source }}}}.json",
                "content": "{{ wanted | to_json }}",
                "mode": "0644",
            },
            "loop": loop,
            "vars": {
                "survey_node": "{{ item }}",
                "gpu_driver_source": "{{ item.source }}",
                "gpu_driver_directory": "/srv/packages",
                "wanted": WANTED,
            },
        },
    ]
    # include_vars would win over the task's own variables for these two.
    tasks[0]["ansible.builtin.include_vars"]["name"] = "defaults"
    play = {"name": "Ask", "hosts": "all", "gather_facts": False, "tasks": tasks, "vars": {"gpu_driver_apt_source": ""}}
    outcome = run_playbook(directory, [play])
    assert outcome.status == 0, outcome.output
    return {path.stem: json.loads(path.read_text()) for path in Path(directory).glob("*.json")}


@pytest.mark.parametrize(("name", "version", "source", "expected"), CASES, ids=lambda value: str(value)[:20])
def test_each_distribution_gets_its_own(
    answers: dict[str, dict[str, Any]], name: str, version: str, source: str, expected: dict[str, Any]
) -> None:
    found = answers[f"{name}-{version}-{source}"]
    assert found["installable"] is expected.get("installable", True)
    assert found["manager"] == expected.get("manager", found["manager"])
    assert (found["known"]["open"] or [""])[0] == expected["first"]
    assert expected["content"] in found["content"]
    assert bool(found["content"].strip()) is bool(expected["content"])
    directory = "/etc/yum.repos.d" if found["manager"] == "dnf" else "/etc/apt/sources.list.d"
    assert found["file"].startswith(directory)
    # Both kinds of modules are known wherever one is.
    assert bool(found["known"]["open"]) is bool(found["known"]["proprietary"])
