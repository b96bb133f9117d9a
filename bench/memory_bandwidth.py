#!/usr/bin/env python3
"""Compare the `memory_bandwidth` kernel with a plain STREAM-equivalent and with likwid-bench (when installed), interleaved in one run.

    bench/memory_bandwidth.py [--rounds 10] [--output docs/measurements/NAME.json]

All three work on arrays of the same size and the same processors. A round runs each once, so that a disturbance meets all of them;
what counts is each one's best round. The aim is 0.97 of the better of the other two for read and triad.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "collections"))
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import memory_bandwidth as ours
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.memory_bandwidth_c import SOURCE
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.memory_plan import Group, plan
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.native_build import build
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.node import node_facts
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.tree import Tree

AIM = 0.97
PASSES = 20
# What STREAM does, written anew: plain C, one loop a kernel, the compiler and OpenMP do the rest (with -ffast-math, or the sum of the
# read loop would wait for each addition).
PLAIN = r"""
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
int main(int argc, char **argv)
{
    const long n = atol(argv[1]) / sizeof(double);
    const int passes = atoi(argv[2]);
    double *a = aligned_alloc(2 << 20, n * sizeof(double)), *b = aligned_alloc(2 << 20, n * sizeof(double));
    double *c = aligned_alloc(2 << 20, n * sizeof(double)), best[3] = {1e30, 1e30, 1e30}, sum = 0;
    if (argc != 3 || !a || !b || !c)
        return 1;
#pragma omp parallel for schedule(static)
    for (long i = 0; i < n; i++) {
        a[i] = 1;
        b[i] = 2;
        c[i] = 0;
    }
    for (int pass = 0; pass <= passes; pass++) {
        double t[4] = {omp_get_wtime()};
        double partial = 0;
#pragma omp parallel for schedule(static) reduction(+ : partial)
        for (long i = 0; i < n; i++)
            partial += a[i];
        sum += partial;
        t[1] = omp_get_wtime();
#pragma omp parallel for schedule(static)
        for (long i = 0; i < n; i++)
            c[i] = a[i];
        t[2] = omp_get_wtime();
#pragma omp parallel for schedule(static)
        for (long i = 0; i < n; i++)
            c[i] = a[i] + 3 * b[i];
        t[3] = omp_get_wtime();
        for (int k = 0; k < 3 && pass; k++)
            if (t[k + 1] - t[k] < best[k])
                best[k] = t[k + 1] - t[k];
    }
    printf("{\"read\": %.9f, \"copy\": %.9f, \"triad\": %.9f, \"sum\": %g}\n", best[0], best[1], best[2], sum + c[n / 2]);
    return 0;
}
"""
ARRAYS = {"read": 1, "copy": 2, "triad": 3}
LIKWID = {
    "read": ("load_avx512", "load_avx", "load_sse"),
    "copy": ("copy_mem_avx512", "copy_mem_avx", "copy_mem_sse"),
    "triad": ("stream_mem_avx512", "stream_mem_avx_fma", "stream_mem_avx", "stream_mem_sse"),
}


def run_ours(program: Path, group: Group) -> dict[str, float]:
    """Bandwidth of each kernel in B/s, best of the passes of one round."""
    kernel = ours.Kernel(program, "", PASSES, 5.0, Tree())
    found = ours._run(kernel, group, "rct")
    return {name: found["array_bytes"] * ARRAYS[name] / min(seconds) for name, seconds in found["seconds"].items()}


def run_plain(program: Path, group: Group) -> dict[str, float]:
    """The same of the STREAM-equivalent."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": str(len(group.cpus)),
        "OMP_PLACES": ",".join(f"{{{cpu}}}" for cpu in group.cpus),
        "OMP_PROC_BIND": "true",
    }
    done = subprocess.run(
        [program, str(group.array_bytes), str(PASSES)], capture_output=True, text=True, env=environment, check=True
    )
    seconds = json.loads(done.stdout)
    return {name: group.array_bytes * arrays / seconds[name] for name, arrays in ARRAYS.items()}


def likwid_tests() -> dict[str, list[str]]:
    """The kernels of likwid-bench that this processor can run."""
    flags = set(node_facts()["cpu"]["flags"])
    needs = {"avx512": "avx512f", "fma": "fma", "avx": "avx", "sse": "sse2"}
    return {
        kernel: [test for test in tests if all(flag in flags for word, flag in needs.items() if word in test)]
        for kernel, tests in LIKWID.items()
    }


def run_likwid(tests: dict[str, list[str]], group: Group) -> dict[str, float]:
    """The same of likwid-bench, the best of its variants; it reports the mean over its passes, so these are few."""
    best: dict[str, float] = {}
    for kernel, names in tests.items():
        for name in names:
            size = group.array_bytes * ARRAYS[kernel] // 1000
            command = ["likwid-bench", "-t", name, "-w", f"N:{size}kB:{len(group.cpus)}", "-i", str(PASSES // 4)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            match = re.search(r"MByte/s:\s+([\d.]+)", done.stdout)
            if match:
                best[kernel] = max(best.get(kernel, 0), float(match.group(1)) * 1e6)
    return best


def main() -> int:
    """Run the comparison and print it; status 1 when the aim is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--output", type=Path, help="write the figures there, as JSON")
    options = parser.parse_args()
    tree = Tree()
    group = plan(tree).whole
    tests = likwid_tests() if shutil.which("likwid-bench") else {}
    figures: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as cache:
        kernel, how = build("membw", SOURCE, ["-fopenmp"], cache=cache, processor="")
        plain, _ = build("stream", PLAIN, ["-fopenmp", "-ffast-math"], cache=cache, processor="")
        for _ in range(options.rounds):
            results = {"plumbline": run_ours(kernel, group), "stream": run_plain(plain, group)}
            if tests:
                results["likwid"] = run_likwid(tests, group)
            for tool, found in results.items():
                for name, value in found.items():
                    figures.setdefault(name, {}).setdefault(tool, []).append(value)
    facts = node_facts()
    report = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "processor": facts["cpu"]["model"],
        "hypervisor": facts["hypervisor"],
        "kernel": platform.release(),
        "compiler": how,
        "threads": len(group.cpus),
        "array_bytes": group.array_bytes,
        "array_over_cache": group.array_over_cache,
        "rounds": options.rounds,
        "likwid": bool(tests),
        "best_bytes_per_second": {
            name: {tool: round(max(values)) for tool, values in tools.items()} for name, tools in figures.items()
        },
        "median_bytes_per_second": {
            name: {tool: round(sorted(values)[len(values) // 2]) for tool, values in tools.items()}
            for name, tools in figures.items()
        },
    }
    ratios = {
        name: round(best["plumbline"] / max(value for tool, value in best.items() if tool != "plumbline"), 3)
        for name, best in report["best_bytes_per_second"].items()
    }
    report["ratio_to_the_better"] = ratios
    report["passed"] = all(ratios[name] >= AIM for name in ("read", "triad"))
    text = json.dumps(report, indent=2)
    print(text)
    if options.output:
        options.output.write_text(text + "\n", encoding="utf-8")
    return 0 if report["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
