#!/usr/bin/env python3
"""Measure the main job on the embedded lab: first and second `make demo`, node tasks and controller CPU of a converged run.

Usage: python bench/site.py [--runs N] [--first]

With `--first` the lab is taken down before (`make clean`), so that the first demo builds everything but the caches;
without it only converged runs are measured. Prints one JSON object; figures and their date belong in docs/performance.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import time
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parent.parent


def run(command: list[str], environment: dict[str, str]) -> tuple[float, str]:
    """Run a command and return its wall time in seconds and its output; a failure ends the measurement."""
    started = time.monotonic()
    result = subprocess.run(command, cwd=CHECKOUT, env=environment, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        tail = result.stdout[-3000:] + result.stderr[-1000:]
        said = " ".join(command)
        raise SystemExit(f"{said} exited {result.returncode}, so there is nothing to measure:\n{tail}")
    return time.monotonic() - started, result.stdout


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3, help="converged runs to measure")
    parser.add_argument("--first", action="store_true", help="also measure a first demo, on a lab taken down before")
    arguments = parser.parse_args()
    environment = dict(os.environ)
    environment["ANSIBLE_CALLBACK_PLUGINS"] = str(CHECKOUT / "bench" / "callback_plugins")
    environment["ANSIBLE_CALLBACKS_ENABLED"] = "plumbline.plumbline.report,node_tasks"
    figures: dict[str, Any] = {"date": time.strftime("%Y-%m-%d"), "cpus": os.cpu_count()}
    if arguments.first:
        run(["make", "clean"], environment)
        figures["first_demo_seconds"] = round(run(["make", "demo"], environment)[0], 1)
    walls, counts = [], []
    for _ in range(arguments.runs):
        wall, output = run(["make", "demo"], environment)
        walls.append(wall)
        counts += [json.loads(line.split(" ", 1)[1]) for line in output.splitlines() if line.startswith("NODE_TASKS ")]
    figures["converged_demo_seconds"] = {
        "median": round(statistics.median(walls), 1),
        "minimum": round(min(walls), 1),
        "maximum": round(max(walls), 1),
    }
    figures["converged_run"] = counts[-1] if counts else None
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
