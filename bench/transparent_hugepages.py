#!/usr/bin/env python3
"""Measure what transparent huge pages do to the time a load of weights takes and to the latency of reading them.

Usage: python bench/transparent_hugepages.py [--gib N] [--rounds N]

Changes nothing on the machine: a process turns huge pages off for itself (prctl PR_SET_THP_DISABLE, "never") or asks for them
(madvise MADV_HUGEPAGE, "asked"); "unasked" is a process that says nothing, under whatever the machine is set to. Each mode
runs in a process of its own, in turn, so that other work on the machine meets all of them; medians over the rounds are
printed as one JSON object, with how much memory really was in huge pages. One thread: a page walk is a matter of one core.
Figures and their date belong in docs/kernel.md.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

MODES = ("never", "asked", "unasked")
SOURCE = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec * 1e-9; }
static int up(const void *a, const void *b) { double x = *(double *)a, y = *(double *)b; return (x > y) - (x < y); }

/* argv: mode, file, bytes. Prints: load s, faults, KiB in huge pages, step p50 s, step p99 s, ns per dependent read. */
int main(int argc, char **argv) {
    size_t bytes = strtoull(argv[3], 0, 10), align = 2u << 20, chunk = 8u << 20, step = 64u << 20;
    if (argv[1][0] == 'n' && prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)) { perror("prctl"); return 2; }
    char *raw = mmap(0, bytes + align, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED) { perror("mmap"); return 2; }
    char *at = (char *)(((uintptr_t)raw + align - 1) & ~(uintptr_t)(align - 1));
    if (argv[1][0] == 'a' && madvise(at, bytes, MADV_HUGEPAGE)) { perror("madvise"); return 2; }
    int fd = open(argv[2], O_RDONLY);
    if (fd < 0) { perror(argv[2]); return 2; }
    struct rusage before, after;
    getrusage(RUSAGE_SELF, &before);
    double begun = now();
    for (size_t done = 0; done < bytes;) {
        ssize_t got = read(fd, at + done, bytes - done < chunk ? bytes - done : chunk);
        if (got <= 0) { fprintf(stderr, "the file is too short\n"); return 2; }
        done += got;
    }
    double load = now() - begun;
    getrusage(RUSAGE_SELF, &after);
    long huge = -1; char line[256];
    FILE *maps = fopen("/proc/self/smaps_rollup", "r");
    while (maps && fgets(line, sizeof line, maps)) sscanf(line, "AnonHugePages: %ld kB", &huge);
    /* Steps of decoding: each reads a share of the weights from its first byte to its last. */
    size_t steps = 0, most = 4096; double *took = malloc(most * sizeof *took); volatile uint64_t keep = 0;
    for (int pass = 0; pass < 4; pass++)
        for (size_t from = 0; from + step <= bytes && steps < most; from += step) {
            uint64_t sum = 0; double start = now();
            for (uint64_t *word = (uint64_t *)(at + from), *end = (uint64_t *)(at + from + step); word < end; word += 8)
                sum += word[0] + word[1] + word[2] + word[3] + word[4] + word[5] + word[6] + word[7];
            keep += sum; took[steps++] = now() - start;
        }
    qsort(took, steps, sizeof *took, up);
    /* Reads that depend on each other, all over the memory, as blocks of a cache or rows of an embedding are looked up. */
    uint64_t state = 88172645463325252ull, reads = 4000000, lines = bytes / 64; double start = now();
    for (uint64_t i = 0; i < reads; i++) {
        state ^= state << 13; state ^= state >> 7; state ^= state << 17;
        state += *(uint64_t *)(at + (state % lines) * 64) & 1;
    }
    double chase = (now() - start) / reads * 1e9; keep += state;
    printf("%f %ld %ld %f %f %f\n", load, after.ru_minflt - before.ru_minflt, huge, took[steps / 2],
           took[(size_t)(steps * 0.99)], chase);
    return 0;
}
"""
FIELDS = ("load_seconds", "page_faults", "huge_kib", "step_p50_seconds", "step_p99_seconds", "random_read_ns")


def sample(program: Path, mode: str, weights: Path, size: int) -> dict[str, float]:
    """One run of one mode; ends the measurement where it fails."""
    done = subprocess.run([program, mode, weights, str(size)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"the mode {mode} could not be measured: {done.stderr.strip()}")
    return dict(zip(FIELDS, map(float, done.stdout.split()), strict=True))


def summary(samples: list[dict[str, float]], size: int) -> dict[str, float]:
    """Medians of the rounds, in the units that a reader thinks in."""
    middle = {name: statistics.median(one[name] for one in samples) for name in FIELDS}
    return {
        "in_huge_pages_share": round(max(middle["huge_kib"], 0) * 1024 / size, 3),
        "load_seconds_per_gib": round(middle["load_seconds"] / (size / 2**30), 3),
        "page_faults_of_load": int(middle["page_faults"]),
        "step_p50_ms": round(middle["step_p50_seconds"] * 1e3, 2),
        "step_p99_ms": round(middle["step_p99_seconds"] * 1e3, 2),
        "random_read_ns": round(middle["random_read_ns"], 1),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=1.0, help="size of the weights")
    parser.add_argument("--rounds", type=int, default=5, help="how often every mode is measured")
    arguments = parser.parse_args()
    size = int(arguments.gib * 2**30) & ~((2 << 20) - 1)
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        (folder / "thp.c").write_text(SOURCE)
        program, weights = folder / "thp", folder / "weights"
        subprocess.run(["gcc", "-O2", "-o", program, folder / "thp.c"], check=True)
        block = bytes(range(256)) * 4096
        with weights.open("wb") as stream:
            for _ in range(size // len(block)):
                stream.write(block)
        # Once for nothing, so that every counted load reads from the page cache.
        sample(program, "never", weights, size)
        found: dict[str, list[dict[str, float]]] = {mode: [] for mode in MODES}
        for turn in range(arguments.rounds):
            for index in range(len(MODES)):
                mode = MODES[(index + turn) % len(MODES)]
                found[mode].append(sample(program, mode, weights, size))
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    result: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"),
        "kernel": platform.release(),
        "set_to": setting.read_text().strip() if setting.exists() else "no transparent huge pages",
        "gib": arguments.gib,
        "rounds": arguments.rounds,
        **{mode: summary(samples, size) for mode, samples in found.items()},
    }
    never, asked = found["never"], found["asked"]
    result["never_over_asked"] = {
        name: round(
            statistics.median(a[name] / b[name] for a, b in zip(never, asked, strict=True)),
            3,
        )
        for name in ("load_seconds", "step_p50_seconds", "step_p99_seconds", "random_read_ns")
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
