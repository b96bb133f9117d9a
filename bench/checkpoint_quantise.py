#!/usr/bin/env python3
"""Time Plumbline's rounding to the nearest against llmcompressor's `model_free_ptq`: one scheme, the same checkpoint, one run, interleaved.

    bench/checkpoint_quantise.py --engine-python PYTHON --llmcompressor-python PYTHON [--bytes 1e9] [--rounds 3] [--output FILE]

PYTHON of an engine (numpy is enough), and of an environment with llmcompressor (roles/model/files/locks/). Makes a checkpoint of random
bfloat16 weights below --work, reads it once so that both find it in the page cache, and then lets each quantise it in turn, in a process of
its own. What counts is the call, without the start of Python and its imports, which is given beside it. Ours hashes what it writes, waits
for the disk and compares every integer with its source afterwards; theirs does neither. The aim is 3 times as fast.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "collections"))
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.safetensors_file import (
    TensorSpec,
    header_bytes,
)

CHECKOUT = Path(__file__).resolve().parents[1]
AIM = 3.0
HIDDEN, INNER = 4096, 14336

# The peak is VmHWM: what getrusage says is inherited from this process, which made the checkpoint.
OURS = """
import json, re, sys, time
sys.path.insert(0, {checkout!r})
from module_utils.plumbline.quantise_convert import convert
import numpy
started = time.monotonic()
convert(json.loads(sys.argv[1]))
print(json.dumps([time.monotonic() - started, int(re.search("VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024]))
"""
THEIRS = """
import json, re, sys, time
from llmcompressor import model_free_ptq
job = json.loads(sys.argv[1])
started = time.monotonic()
model_free_ptq(job["source"], job["target"], scheme=job["scheme"], ignore=["lm_head", "model.embed_tokens"],
               max_workers=job["workers"], device="cpu")
print(json.dumps([time.monotonic() - started, int(re.search("VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024]))
"""


def specs(wanted: float) -> list[TensorSpec]:
    """Layers of an 8B llama until there are so many bytes."""
    found = [TensorSpec("model.embed_tokens.weight", "BF16", (1024, HIDDEN))]
    shapes = {
        "self_attn.q_proj": (HIDDEN, HIDDEN),
        "self_attn.k_proj": (1024, HIDDEN),
        "self_attn.v_proj": (1024, HIDDEN),
    }
    shapes.update(
        {"self_attn.o_proj": (HIDDEN, HIDDEN), "mlp.gate_proj": (INNER, HIDDEN), "mlp.up_proj": (INNER, HIDDEN)}
    )
    shapes["mlp.down_proj"] = (HIDDEN, INNER)
    layer = 0
    while sum(spec.size_bytes for spec in found) < wanted:
        found += [TensorSpec(f"model.layers.{layer}.{name}.weight", "BF16", shape) for name, shape in shapes.items()]
        layer += 1
    return found


def make(directory: Path, wanted: float) -> int:
    """Write the checkpoint; its shards hold one layer each, so that several workers have work. Returns its bytes."""
    import numpy as np  # noqa: PLC0415

    random = np.random.default_rng(0)
    groups: dict[str, list[TensorSpec]] = {}
    for spec in specs(wanted):
        groups.setdefault(spec.name.split(".")[2] if ".layers." in spec.name else "embedding", []).append(spec)
    index = {}
    for number, group in enumerate(groups.values(), start=1):
        name = f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        with (directory / name).open("wb") as file:
            file.write(header_bytes(group))
            for spec in group:
                values = random.standard_normal(spec.shape, dtype="<f4") * np.float32(0.02)
                file.write((values.view("<u4") >> 16).astype("<u2").tobytes())
                index[spec.name] = name
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}), encoding="utf-8")
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (directory / "tokenizer.json").write_text("{}", encoding="utf-8")
    return sum(path.stat().st_size for path in directory.glob("*.safetensors"))


def run(python: str, code: str, job: dict[str, Any], target: Path) -> dict[str, float]:
    """Quantise once; seconds of the call, of the process, and its largest resident set in bytes."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    started = time.monotonic()
    done = subprocess.run(
        [python, "-c", code, json.dumps({**job, "target": str(target)})], capture_output=True, text=True, check=False
    )
    whole = time.monotonic() - started
    if done.returncode:
        raise SystemExit(f"checkpoint_quantise: {python} failed: {done.stderr.strip().splitlines()[-1:]}")
    seconds, peak = json.loads(done.stdout.strip().splitlines()[-1])
    return {"seconds": seconds, "process_seconds": whole, "peak_bytes": peak}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--engine-python", required=True)
    parser.add_argument("--llmcompressor-python", required=True)
    parser.add_argument("--bytes", type=float, default=1e9)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bits", type=int, choices=(4, 8), default=4)
    parser.add_argument("--work", default="/var/tmp")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    scheme = f"W{arguments.bits}A16"
    results: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="plumbline-quantise-", dir=arguments.work) as work:
        source = Path(work) / "source"
        source.mkdir()
        size = make(source, arguments.bytes)
        ours: dict[str, object] = {
            "source": str(source),
            "format": "safetensors",
            "dtype": "bfloat16",
            "source_key": "bench",
            "method": f"rtn-{scheme.lower()}",
            "group": 128,
        }
        contenders = {"plumbline": (arguments.engine_python, OURS.format(checkout=str(CHECKOUT)), ours)}
        for workers in (1, os.cpu_count() or 1):
            theirs = {"source": str(source), "scheme": scheme, "workers": workers}
            contenders[f"model_free_ptq, {workers} workers"] = (arguments.llmcompressor_python, THEIRS, theirs)
        for number in range(arguments.rounds):
            for name, (python, code, job) in contenders.items():
                results.setdefault(name, []).append(run(python, code, job, Path(work) / "target"))
                print(f"round {number + 1}: {name}: {results[name][-1]['seconds']:.2f} s", flush=True)
    best = {name: min(one["seconds"] for one in found) for name, found in results.items()}
    ratio = min(seconds for name, seconds in best.items() if name != "plumbline") / best["plumbline"]
    summary = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": {"processors": os.cpu_count(), "kernel": platform.release(), "load": os.getloadavg()},
        "scheme": scheme,
        "source_bytes": size,
        "best_seconds": best,
        "median_seconds": {name: statistics.median(one["seconds"] for one in found) for name, found in results.items()},
        "peak_bytes": {name: max(one["peak_bytes"] for one in found) for name, found in results.items()},
        "times_as_fast": round(ratio, 2),
        "rounds": results,
    }
    if arguments.output:
        arguments.output.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    print(
        f"{scheme}, {size / 1e9:.2f} GB: plumbline is {ratio:.1f} times as fast as the better of model_free_ptq (aim {AIM:g})"
    )
    return 0 if ratio >= AIM else 1


if __name__ == "__main__":
    sys.exit(main())
