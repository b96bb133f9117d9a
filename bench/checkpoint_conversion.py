#!/usr/bin/env python3
"""Time the conversion of checkpoints against `cp` of the same bytes, and measure its memory over sizes.

    bench/checkpoint_conversion.py [--work DIR] [--gigabytes 4] [--rounds 3] [--memory-gigabytes 1 5 20] [--output FILE.json]

Repack: one pytorch_model.bin to safetensors, and safetensors to safetensors, as the model stage does it: every value is looked at, what is
written is hashed, and so is what is read. `cp` copies the same file and `sync` waits for the disk, as the conversion does. Rounds are
interleaved; before each, the page cache is dropped (needs root; else it is said that caches were warm). Bound: 0.8 of cp.

Memory: the largest resident set of the conversion at each size, from .bin. Bound: 1.5 times the largest tensor and 512 MB; wanted: flat.

Checkpoints of random bfloat16 are made in DIR (default: a directory in /var/tmp), one at a time, and removed; it needs about twice the
largest size. Needs numpy; no PyTorch.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(CHECKOUT), str(CHECKOUT / "collections")]

import numpy as np  # noqa: E402
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import checkpoint_convert  # noqa: E402
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.safetensors_file import (  # noqa: E402
    TensorSpec,
    header_bytes,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.worker import run_worker  # noqa: E402

from tests.unit import torch_support  # noqa: E402

# 64 MiB each, as a layer of a model of some billion parameters has them.
SHAPE = (8192, 4096)
TENSOR_BYTES = SHAPE[0] * SHAPE[1] * 2
SHARD_TENSORS = 32


def block() -> bytes:
    """Finite random bfloat16 of one tensor."""
    bits = np.random.default_rng(0).integers(0, 1 << 16, TENSOR_BYTES // 2, dtype=np.uint16)
    return bytes((bits & 0xBFFF).tobytes())


def names(gigabytes: float) -> list[str]:
    return [
        f"model.layers.{number}.mlp.up_proj.weight" for number in range(max(1, round(gigabytes * 1e9 / TENSOR_BYTES)))
    ]


def model(directory: Path) -> Path:
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    (directory / "tokenizer.json").write_text("{}")
    return directory


def torch_checkpoint(directory: Path, gigabytes: float) -> Path:
    """pytorch_model.bin with tensors of SHAPE."""
    data = block()
    views = {
        name: torch_support.View(str(key), "BF16", SHAPE[0] * SHAPE[1], SHAPE, (SHAPE[1], 1))
        for key, name in enumerate(names(gigabytes))
    }
    pickled = torch_support.pickled(
        torch_support.mapping({name: torch_support.tensor(view) for name, view in views.items()})
    )
    path = model(directory) / "pytorch_model.bin"
    torch_support.write(path, pickled, {view.key: [data] for view in views.values()})
    return directory


def safetensors_checkpoint(directory: Path, gigabytes: float) -> Path:
    """The same as safetensors, in shards of about 2 GB."""
    data = block()
    model(directory)
    every = names(gigabytes)
    for first in range(0, len(every), SHARD_TENSORS):
        specs = [TensorSpec(name, "BF16", SHAPE) for name in every[first : first + SHARD_TENSORS]]
        with (directory / f"model-{first // SHARD_TENSORS:05d}.safetensors").open("wb") as file:
            file.write(header_bytes(specs))
            for _ in specs:
                file.write(data)
    return directory


def weights(directory: Path) -> list[Path]:
    return sorted(path for path in directory.iterdir() if path.suffix in (".bin", ".safetensors"))


def cold() -> bool:
    """Drop the page cache, or say that it cannot be done."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("1", encoding="ascii")
    except OSError:
        return False
    return True


def emptied(directory: Path) -> Path:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    return directory


def convert(source: Path, target: Path, *, hash_source: bool) -> dict[str, Any]:
    """What the model stage runs, in a Python of its own."""
    job = {
        "source": str(source),
        "target": str(target),
        "format": "safetensors",
        "dtype": "bfloat16",
        "source_key": "bench",
        "hash_source": hash_source,
    }
    return run_worker(
        sys.executable,
        "checkpoint_convert",
        checkpoint_convert.NEEDS,
        json.dumps(job),
        timeout=3600,
        unprivileged=False,
    ).result


def timed_copy(source: Path, target: Path) -> float:
    begin = time.monotonic()
    for path in weights(source):
        subprocess.run(["cp", path, target / path.name], check=True)
        subprocess.run(["sync", target / path.name], check=True)
    return time.monotonic() - begin


def repack(source: Path, work: Path, rounds: int) -> dict[str, Any]:
    """Seconds of conversion and copy, interleaved, which goes first by turns."""
    seconds: dict[str, list[float]] = {"conversion": [], "cp": []}
    size = sum(path.stat().st_size for path in weights(source))
    was_cold = True
    # Where files keep their bytes, the hash of what is written is that of what was read.
    hash_source = weights(source)[0].suffix == ".bin"
    for number in range(rounds):
        for which in ("conversion", "cp") if number % 2 == 0 else ("cp", "conversion"):
            target = emptied(work / "out")
            was_cold = cold() and was_cold
            if which == "cp":
                seconds[which].append(timed_copy(source, target))
            else:
                begin = time.monotonic()
                convert(source, target, hash_source=hash_source)
                # The start of Python counts as well.
                seconds[which].append(time.monotonic() - begin)
            print(f"  {which}: {size / seconds[which][-1] / 1e6:.0f} MB/s", file=sys.stderr, flush=True)
    shutil.rmtree(work / "out")
    ratios = [theirs / ours for ours, theirs in zip(seconds["conversion"], seconds["cp"])]
    return {
        "bytes": size,
        "cold_caches": was_cold,
        "conversion_seconds": [round(value, 2) for value in seconds["conversion"]],
        "cp_seconds": [round(value, 2) for value in seconds["cp"]],
        "ratio_each_round": [round(value, 2) for value in ratios],
        "ratio_median": round(statistics.median(ratios), 2),
    }


def memory(work: Path, sizes: list[float]) -> Iterator[dict[str, Any]]:
    for gigabytes in sizes:
        source = torch_checkpoint(work / "source", gigabytes)
        done = convert(source, emptied(work / "out"), hash_source=True)
        yield {
            "gigabytes": gigabytes,
            "largest_tensor_bytes": TENSOR_BYTES,
            "peak_bytes": done["peak_bytes"],
            "seconds": done["seconds"],
        }
        shutil.rmtree(source)
        shutil.rmtree(work / "out")


def main() -> None:
    """Measure, print, and keep on request."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--work", type=Path, default=Path("/var/tmp"), help="a directory on the disk to measure (%(default)s)"
    )
    parser.add_argument("--gigabytes", type=float, default=4.0, help="size of the repacks (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="of the repacks (%(default)s)")
    parser.add_argument(
        "--memory-gigabytes", type=float, nargs="*", default=[1.0, 5.0, 20.0], help="sizes, none to leave it out"
    )
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    largest = max([arguments.gigabytes if arguments.rounds else 0, *arguments.memory_gigabytes])
    free = shutil.disk_usage(arguments.work).free
    if free < 2.1e9 * largest:
        sys.exit(
            f"Expected {2.1 * largest:.0f} GB free at {arguments.work}, found {free / 1e9:.0f} GB: free some, or ask for less."
        )
    result: dict[str, Any] = {
        "date": datetime.datetime.now(tz=datetime.timezone.utc).date().isoformat(),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
    }
    with tempfile.TemporaryDirectory(prefix="plumbline-conversion-", dir=arguments.work) as place:
        work = Path(place)
        if arguments.rounds:
            for name, make in (("bin", torch_checkpoint), ("safetensors", safetensors_checkpoint)):
                print(f"{name} to safetensors", file=sys.stderr, flush=True)
                source = make(work / "source", arguments.gigabytes)
                result[f"{name}_to_safetensors"] = repack(source, work, arguments.rounds)
                shutil.rmtree(source)
        result["memory"] = list(memory(work, arguments.memory_gigabytes))
    text = json.dumps(result, indent=2)
    print(text)
    if arguments.output:
        arguments.output.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
