"""What the comparison within the fleet costs: one pass over the evidence of many hosts, and the judgement of each.

Makes synthetic evidence (8 GPUs a host with copies of four kinds and two chunk sizes, memory by NUMA node, each with its
samples, and as many records again that no rule compares), times the pass and the judgements in this process, and with
--playbook also a run of ansible-playbook over the hosts, all on this machine.

    python bench/fleet_gate.py --hosts 1000 [--playbook]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(CHECKOUT / "collections"))

import yaml  # noqa: E402
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import evidence, fleet, gates  # noqa: E402
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.fleet_evidence import survey_fleet  # noqa: E402

RUN = "20260101T000000Z"
COPIES = {"gpu_h2d_bandwidth": 55e9, "gpu_d2h_bandwidth": 55e9, "gpu_d2d_bandwidth": 2.1e12, "gpu_p2p_bandwidth": 390e9}


def measurements(generator: random.Random, slow: bool) -> list[dict[str, Any]]:
    """What one host measures; a slow one has one GPU that copies at 0.8 of the others' rate."""
    found = []
    for gpu in range(8):
        for name, usual in COPIES.items():
            for chunks in ("4 MiB", "1 GiB"):
                value = usual * generator.gauss(1, 0.005) * (0.8 if slow and gpu == 3 else 1)
                samples = [value * generator.uniform(0.98, 1) for _ in range(10)]
                scope = f"gpu 0000:{gpu:02x}:00.0, {chunks} chunks"
                found.append({"name": name, "scope": scope, "value": value, "unit": "B/s", "samples": samples})
    for scope, usual in (("numa0", 160e9), ("numa1", 160e9), ("node", 320e9)):
        value = usual * generator.gauss(1, 0.01)
        samples = [value * generator.uniform(0.9, 1) for _ in range(100)]
        found.append(
            {"name": "host_memory_bandwidth", "scope": scope, "value": value, "unit": "B/s", "samples": samples}
        )
    found += [
        {"name": "kernel_setting", "scope": f"setting {number}", "value": "1", "expected": "1"}
        for number in range(len(found))
    ]
    return found


def write(directory: Path, hosts: int) -> int:
    """Write the evidence of a run and return its size in bytes."""
    generator = random.Random(1)
    rules = {name: {"kind": "record"} for name in (*COPIES, "host_memory_bandwidth", "kernel_setting")}
    for number in range(1, hosts + 1):
        host = f"node{number:04d}"
        head = evidence.envelope("check", run=RUN, host=host, stage="validate", task="", check_mode=False)
        checks = gates.judge_all(measurements(generator, slow=number == hosts // 2), rules)
        evidence.append(directory / f"{host}.jsonl", [{**head, **check.record()} for check in checks])
    return sum(path.stat().st_size for path in directory.glob("*.jsonl"))


def in_process(directory: Path, rules: dict[str, Any]) -> None:
    """Time the pass, and what each host does by itself."""
    began = time.process_time()
    found = survey_fleet(directory, rules)
    passed = time.process_time() - began
    handed = len(json.dumps(found.groups))
    began, bad = time.process_time(), []
    paths = sorted(directory.glob("*.jsonl"))
    for path in paths:
        records = evidence.read(path, fleet.compared_names(rules)).records
        checks = fleet.judge_host(records, found.groups, rules)
        bad += [path.stem] if any(check.failed for check in checks) else []
    each = (time.process_time() - began) / len(paths)
    print(
        f"one pass over {found.hosts} hosts: {passed:.2f} s CPU, {len(found.groups)} groups, {handed / 1024:.0f} KiB handed on"
    )
    print(
        f"judgement of one host: {each * 1000:.1f} ms CPU; all: {each * len(paths):.1f} s; deviating: {', '.join(bad)}"
    )


def in_a_run(root: Path, hosts: int) -> None:
    """Time the two tasks in ansible-playbook, by the CPU of all its processes."""
    names = {f"node{number:04d}": None for number in range(1, hosts + 1)}
    known = {"ansible_connection": "local", "plumbline_run_id": RUN, "plumbline_artifacts_dir": str(root / "artifacts")}
    (root / "inventory.yml").write_text(yaml.safe_dump({"all": {"hosts": names, "vars": known}}))
    play = {
        "name": "Fleet",
        "hosts": "all",
        "gather_facts": False,
        "vars": {"plumbline_stage": "validate"},
        "vars_files": [str(CHECKOUT / "group_vars/all/gates.yml")],
        "tasks": [{"name": "Fleet", "ansible.builtin.import_tasks": str(CHECKOUT / "playbooks/tasks/fleet.yml")}],
    }
    (root / "play.yml").write_text(yaml.safe_dump([play], sort_keys=False))
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")}
    # The project's settings without its callbacks: the report is another cost.
    (root / "ansible.cfg").write_text(f"[defaults]\ncollections_path = {CHECKOUT / 'collections'}\nforks = 20\n")
    environment |= {"ANSIBLE_CONFIG": str(root / "ansible.cfg")}
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    program, inventory = Path(sys.executable).parent / "ansible-playbook", root / "inventory.yml"
    command = [str(program), "-i", str(inventory), str(root / "play.yml")]
    done = subprocess.run(command, env=environment, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    failed = [line.split()[0] for line in done.stdout.splitlines() if "failed=1" in line]
    print(
        f"ansible-playbook, both tasks on {hosts} hosts: {time.monotonic() - began:.0f} s, {cpu:.0f} s CPU; failed: {', '.join(failed)}"
    )
    if not failed:
        print(done.stdout[-2000:], done.stderr[-2000:])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=1000, metavar="N", help="hosts of the fleet (1000)")
    parser.add_argument("--playbook", action="store_true", help="also run ansible-playbook over them")
    options = parser.parse_args()
    rules = yaml.safe_load((CHECKOUT / "group_vars/all/gates.yml").read_text(encoding="utf-8"))["gates_rules"]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        size = write(root / "artifacts" / RUN, options.hosts)
        print(f"evidence of {options.hosts} hosts: {size / 1e6:.0f} MB")
        in_process(root / "artifacts" / RUN, rules)
        if options.playbook:
            in_a_run(root, options.hosts)


if __name__ == "__main__":
    main()
