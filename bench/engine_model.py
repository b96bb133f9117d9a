#!/usr/bin/env python3
"""Time the engine and model stages on the lab's node, from bare to approved and again when converged, and the conversion against `cp`.

    . lab/activate && bench/engine_model.py [--output docs/measurements/NAME.json]

Uses directories of its own below /opt/plumbline-bench on the node, so that what serves there is left alone, and removes them. The engine's
package cache starts empty. The conversion runs in the node's active engine, float32 and bfloat16, interleaved with `cp` of the same bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parent.parent
ROOT = "/opt/plumbline-bench"
PLACES = {
    "engine_root": f"{ROOT}/engines",
    "model_root": f"{ROOT}/models",
    "model_approvals_root": f"{ROOT}/approvals",
    "model_tools_root": f"{ROOT}/bin",
}
ROUNDS = 3
# Runs on the node in the engine's Python: convert and copy, interleaved; the largest resident set of the conversions.
CONVERT = """
import json, os, resource, shutil, sys, tempfile, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from plumbline.checkpoint_convert import convert
found = {"float32": [], "bfloat16": [], "cp": []}
for _ in range(int(sys.argv[3])):
    for dtype in ("float32", "bfloat16"):
        with tempfile.TemporaryDirectory(dir=sys.argv[1]) as place:
            begin = time.monotonic()
            convert(Path(sys.argv[2]), Path(place), dtype, "bench")
            seconds = time.monotonic() - begin
            size = sum(path.stat().st_size for path in Path(place).iterdir())
            found[dtype].append([size, seconds])
            if dtype == "bfloat16":
                shard = next(Path(place).glob("*.safetensors"))
                begin = time.monotonic()
                with open(shard, "rb") as source, open(shard.with_name("copy"), "wb") as target:
                    shutil.copyfileobj(source, target, 1 << 20)
                    target.flush()
                    os.fdatasync(target.fileno())
                found["cp"].append([shard.stat().st_size, time.monotonic() - begin])
found["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print("bench " + json.dumps(found))
"""


def playbook(name: str) -> float:
    """Run a stage with the bench's directories and return its seconds."""
    command = ["ansible-playbook", "-i", "inventories/lab", f"playbooks/{name}.yml", "-e", json.dumps(PLACES)]
    begin = time.monotonic()
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        sys.exit(f"The stage {name} failed:\n{done.stdout[-3000:]}{done.stderr[-1000:]}")
    return round(time.monotonic() - begin, 1)


def node(script: str, module: str = "shell") -> str:
    """Run a shell script on the node and return what it printed."""
    command = ["ansible", "-i", "inventories/lab", "nodes", "-m", module, "-a", script]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        sys.exit(f"On the node '{script[:80]}' failed:\n{done.stdout[-2000:]}{done.stderr[-1000:]}")
    return done.stdout


def conversion() -> dict[str, Any]:
    """Rates of the conversion and of a copy, bytes written per second (median of the rounds), and the peak resident set in bytes."""
    sys.path.insert(0, str(CHECKOUT / "collections"))
    module = import_module("ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.checkpoint_convert")
    names = ("checkpoint_convert", "checkpoint_errors", "worker_result", *module.NEEDS)
    node(f"mkdir -p {ROOT}/plumbline && touch {ROOT}/plumbline/__init__.py")
    for name in names:
        node(f"src={CHECKOUT}/module_utils/plumbline/{name}.py dest={ROOT}/plumbline/{name}.py mode=0644", "copy")
    source = json.loads((CHECKOUT / "lab/.state/lab.json").read_text(encoding="utf-8"))["model_source"]
    node(f"src={source} dest={ROOT}/source.gguf mode=0644", "copy")
    output = node(
        f"{PLACES['engine_root']}/current/bin/python - {ROOT} {ROOT}/source.gguf {ROUNDS} <<'END'\n{CONVERT}\nEND"
    )
    found = json.loads(re.search(r"^bench (.*)$", output, re.MULTILINE)[1])  # type: ignore[index]
    rates = {
        name: statistics.median(size / seconds for size, seconds in found[name])
        for name in ("float32", "bfloat16", "cp")
    }
    return {
        **{f"{name}_bytes_per_second": round(rate) for name, rate in rates.items()},
        "peak_bytes": found["peak_bytes"],
    }


def main() -> None:
    """Measure, print, and keep on request."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    node(f"rm -rf {ROOT}")
    try:
        result: dict[str, Any] = {"load_average": os.getloadavg()[0]}
        for stage in ("engine", "model"):
            result[f"{stage}_first_seconds"] = playbook(stage)
        for stage in ("engine", "model"):
            result[f"{stage}_converged_seconds"] = playbook(stage)
        result["conversion"] = conversion()
    finally:
        node(f"rm -rf {ROOT}")
    text = json.dumps(result, indent=2)
    print(text)
    if arguments.output:
        arguments.output.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
