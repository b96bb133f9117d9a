"""Runs the driver's observation on a machine with an NVIDIA GPU and prints the measurements: python3 tests/gpu/driver_health.py

By hand, on a machine with a GPU; needs nothing but Python. Fails when nvidia-smi does not answer or a figure could not be read.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from module_utils.plumbline.gpu_driver import ask_driver, kernel_log, observe
from module_utils.plumbline.gpu_driver_measurements import measurements
from module_utils.plumbline.gpu_driver_plan import DriverWish, make_plan
from module_utils.plumbline.nvlink_health import ask_links, link_measurements
from module_utils.plumbline.tree import Tree


def run(command: list[str]) -> tuple[int, str, str]:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return 127, "", f"{command[0]} is not installed"
    return done.returncode, done.stdout, done.stderr


def main() -> int:
    tree = Tree("/")
    wish = DriverWish(
        version=sys.argv[1] if len(sys.argv) > 1 else "", module_options={"NVreg_EnableMSI": 1}, cuda_version="13.0"
    )
    seen = observe(tree, run, [])
    answer = ask_driver(run)
    plan = make_plan(tree, seen, wish)
    print(
        json.dumps({"left_alone": plan["left_alone"], "problems": plan["problems"], "secure_boot": seen["secure_boot"]})
    )
    found = measurements(seen, answer, kernel_log(run), wish)
    found += link_measurements(answer["smi"], ask_links(run), seen["nvswitches"], tree.uptime_seconds())
    for measured in found:
        value = measured.get("value", measured.get("skipped") or f"ERROR {measured.get('error')}")
        print(f"{measured['name']:26} {measured['scope']:26} {value} (expected {measured.get('expected', '-')})")
    return 0 if answer["smi"] and not any(measured.get("error") for measured in found) else 1


if __name__ == "__main__":
    sys.exit(main())
