"""The inventories that come with the project: the example can be copied, the lab's reads what the lab noted."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

BIN = Path(sys.executable).parent


def run(program: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")}
    environment["PATH"] = f"{BIN}:{environment['PATH']}"
    return subprocess.run(
        [str(BIN / program), *arguments], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


def test_the_example_lists_every_host_in_its_groups(checkout: Path) -> None:
    done = run("ansible-inventory", "-i", "inventories/example", "--list", cwd=checkout)
    assert done.returncode == 0, done.stderr
    listed = json.loads(done.stdout)
    by_kind = {host for group in ("gpu_nodes", "cpu_nodes") for host in listed[group]["hosts"]}
    assert by_kind | set(listed["gateway"]["hosts"]) == set(listed["_meta"]["hostvars"])
    assert len({group for group in ("supermicro", "dell", "ieit", "hpe") if listed[group]["hosts"]}) == 4


def test_the_example_passes_preflight_once_it_has_its_secrets(checkout: Path, tmp_path: Path) -> None:
    example = yaml.safe_load((checkout / "inventories/example/group_vars/nodes/vault.yml.example").read_text())
    assert set(example) == {"vault_bmc_password", "vault_serving_api_key"}
    secrets = json.dumps(
        {"vault_bmc_password": "p" * 12, "vault_serving_api_key": "k" * 32, "plumbline_artifacts_dir": str(tmp_path)}
    )
    done = run("ansible-playbook", "-i", "inventories/example", "playbooks/preflight.yml", "-e", secrets, cwd=checkout)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def copied(checkout: Path, tmp_path: Path) -> Path:
    for name in ("lab", "lab-vm"):
        target = tmp_path / "inventories" / name
        shutil.copytree(checkout / "inventories" / name, target, ignore=shutil.ignore_patterns("vault.yml"))
    return tmp_path


def debug(
    copied: Path, expression: str, inventory: str = "lab", host: str = "lab-node1"
) -> subprocess.CompletedProcess[str]:
    return run(
        "ansible",
        "-i",
        f"inventories/{inventory}",
        "-c",
        "local",
        "-m",
        "debug",
        "-a",
        f"msg={{{{ {expression} }}}}",
        host,
        cwd=copied,
    )


def test_the_labs_inventory_reads_ports_and_keys_from_the_record(copied: Path) -> None:
    record = copied / "lab" / ".state" / "lab.json"
    record.parent.mkdir(parents=True)
    noted = {
        "ssh_port": 3222,
        "api_port": 3800,
        "bmc_port": 3443,
        "gateway_port": 3463,
        "find_links": ["/srv/wheels"],
        "known_hosts": "/k",
        "container": "x-node1",
    }
    noted |= {"ssh_key": "/s", "ca_file": "/ca.pem", "control_path_dir": "/cp", "model_source": "/m.gguf"}
    record.write_text(json.dumps(noted))
    done = debug(
        copied, "[bmc_port, engine_find_links, ansible_ssh_common_args, bmc_ca_file, serving_port, gateway_port]"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    shown = json.loads(done.stdout.partition("=>")[2])["msg"]
    assert shown[:2] == [3443, ["/srv/wheels"]]
    assert "UserKnownHostsFile=/k" in shown[2]
    assert "HostKeyAlias=x-node1" in shown[2]
    assert shown[3:] == ["/ca.pem", 3800, 3463]


def test_without_a_lab_the_inventory_says_what_to_do(copied: Path) -> None:
    done = debug(copied, "bmc_port")
    assert done.returncode != 0
    assert "the embedded lab is not up (run make lab)" in done.stdout + done.stderr


def test_the_virtual_machines_inventory_reads_its_own_record(copied: Path) -> None:
    done = debug(copied, "bmc_port", "lab-vm", "lab-vm1")
    assert done.returncode != 0
    assert "the virtual bare metal is not up (run make lab-vm)" in done.stdout + done.stderr
    record = copied / "lab" / ".state" / "vm" / "lab.json"
    record.parent.mkdir(parents=True)
    noted = {"ssh_port": 3223, "bmc_port": 3444, "known_hosts": "/k", "container": "vm1"}
    record.write_text(json.dumps({**noted, "ssh_key": "/s", "ca_file": "/ca.pem", "control_path_dir": "/cp"}))
    done = debug(copied, "[bmc_port, ansible_port, bmc_ca_file, bios_settings.XmpDdrFreqLimit]", "lab-vm", "lab-vm1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout.partition("=>")[2])["msg"] == [3444, 3223, "/ca.pem", "3200"]
