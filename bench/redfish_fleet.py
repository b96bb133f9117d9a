#!/usr/bin/env python3
"""Measure BIOS and firmware runs against a fleet of simulated BMCs: the controller's CPU-seconds for each host.

    python bench/redfish_fleet.py [--hosts 200] [--forks 8] [--playbooks bios firmware] [--runs 2] [--output FILE]

Starts one `python -m lab.bmc` with that many machines of five vendors, writes an inventory for them, and runs the playbooks: the first
run stages, the further ones find everything staged. CPU is user + system time of ansible-playbook and all its children, the
simulator's apart; peak RSS is that of the largest single process. Prints one JSON object; figures belong in docs/performance.md.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parent.parent
PROFILES = "ieit-nf8260g7,dell-r750,hpe-dl380a-gen11,lenovo-sr670v2,supermicro-821ge"
FIRST_PORT = 21000
# A survey of the node would be measured as well, and these have no node behind them.
NODE = {"boot_identity": "before", "container": False, "system": "Linux", "gpus": []}


@contextmanager
def fleet(hosts: int, directory: Path, password: str, profiles: str) -> Iterator[subprocess.Popen[str]]:
    """Run the simulator with `hosts` machines and end it afterwards."""
    command = [sys.executable, "-m", "lab.bmc", "--profile", profiles, "--count", str(hosts), "--port", str(FIRST_PORT)]
    command += ["--generate-certificate", str(directory / "tls")]
    with (directory / "simulator.log").open("w") as log:
        process = subprocess.Popen(
            command,
            cwd=CHECKOUT,
            env={**os.environ, "BMC_PASSWORD": password},
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        if process.stdout is None:
            raise SystemExit("the simulator has no output to read")
        for _ in range(hosts):
            if "https://" not in process.stdout.readline():
                raise SystemExit(f"the simulator did not start:\n{(directory / 'simulator.log').read_text()[-1000:]}")
        yield process
    finally:
        process.terminate()
        process.wait(timeout=60)


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far (proc(5), fields 14 and 15)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def inventory(hosts: int, directory: Path, password: str) -> Path:
    """Write an inventory of the simulated machines; the nodes are this machine, on which nothing is done."""
    nodes = {f"node{index + 1:03d}": {"bmc_port": FIRST_PORT + index} for index in range(hosts)}
    common = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "bmc_host": "127.0.0.1",
        "bmc_username": "admin",
        "bmc_password": password,
        "bmc_ca_file": str(directory / "tls" / "ca.pem"),
        "survey_node": NODE,
        "bios_logical": {"workload_profile": "custom", "c_states": "disabled", "sub_numa": "disabled"},
        "bios_unlock": True,
        "firmware_floors": {"BIOS": "1"},
    }
    path = directory / "hosts.json"
    path.write_text(json.dumps({"nodes": {"hosts": nodes, "vars": common}}))
    return path


def play(playbook: str, hosts: Path, directory: Path, forks: int) -> dict[str, Any]:
    """Run a playbook and return what it took; a failed host ends the measurement."""
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "ANSIBLE_FORKS": str(forks),
        "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default",
        "ANSIBLE_DISPLAY_OK_HOSTS": "false",
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_LOCAL_TEMP": str(directory / "tmp"),
        "PLUMBLINE_ARTIFACTS_DIR": str(directory / "artifacts"),
    }
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    command = ["ansible-playbook", "-i", str(hosts), f"playbooks/{playbook}.yml"]
    done = subprocess.run(command, cwd=CHECKOUT, env=environment, capture_output=True, text=True, check=False)
    wall, after = time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        raise SystemExit(f"{playbook} exited {done.returncode}:\n{done.stdout[-3000:]}{done.stderr[-1000:]}")
    changed = [int(count) for count in re.findall(r"^node\d+ .*changed=(\d+)", done.stdout, re.MULTILINE)]
    return {
        "playbook": playbook,
        "hosts_changed": sum(1 for count in changed if count),
        "wall_seconds": round(wall, 1),
        "cpu_seconds": round(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, 1),
        "peak_rss_mib": round(after.ru_maxrss / 1024),
    }


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=200)
    parser.add_argument("--forks", type=int, default=8)
    parser.add_argument("--playbooks", nargs="+", default=["bios", "firmware"])
    parser.add_argument("--runs", type=int, default=2, help="of each playbook; the first one stages")
    parser.add_argument("--profiles", default=PROFILES, help="kinds of machines, taken in turn")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    password = secrets.token_urlsafe(12)
    report: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"),
        "cpus": os.cpu_count(),
        "hosts": options.hosts,
        "forks": options.forks,
        "runs": [],
    }
    with tempfile.TemporaryDirectory(prefix="fleet-") as name:
        directory = Path(name)
        with fleet(options.hosts, directory, password, options.profiles) as simulator:
            report["simulator_start_cpu_seconds"] = cpu_seconds(simulator.pid)
            hosts = inventory(options.hosts, directory, password)
            for playbook in options.playbooks:
                for _ in range(options.runs):
                    began = cpu_seconds(simulator.pid)
                    figures = play(playbook, hosts, directory, options.forks)
                    figures["cpu_seconds_per_host"] = round(figures["cpu_seconds"] / options.hosts, 2)
                    figures["simulator_cpu_seconds"] = round(cpu_seconds(simulator.pid) - began, 1)
                    report["runs"].append(figures)
                    print(json.dumps(figures), file=sys.stderr, flush=True)
    text = json.dumps(report, indent=1)
    print(text)
    if options.output:
        options.output.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
