#!/usr/bin/env python3
"""Measure the load client itself, against an endpoint of planned behaviour (bench/stream_server.py) in a process of its own.

    bench/load_client.py lag                                  how late it sends at 500 requests/s
    bench/load_client.py stall [--vllm PYTHON]                a stall of 500 ms in P99, beside closed-loop clients
    bench/load_client.py cpu --guidellm PYTHON                CPU per streamed token beside guidellm's, interleaved
    bench/load_client.py agreement --vllm PYTHON --inference-perf PYTHON    percentiles beside other clients' at low load

PYTHON is that of a virtual environment which holds the other client. These need a tokenizer: --tokenizer DIRECTORY. --output FILE keeps
the figures as JSON. As root every client whose latencies count, and the endpoint, come before other programs to the processor (chrt).
CPU per token is marginal: a long run less a short one, over the tokens that it has more, so that neither's start is in it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "collections"))
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.latency_statistics import percentile
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.load_program import program
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.load_tally import Tally

FIRST, BETWEEN = 0.05, 0.01
_VLLM = (
    "import argparse\nfrom vllm.benchmarks.serve import add_cli_args, main\n"
    "p = argparse.ArgumentParser()\nadd_cli_args(p)\nmain(p.parse_args())\n"
)


@contextmanager
def endpoint(folder: Path, **plan: object) -> Iterator[str]:
    """Run the endpoint while the block runs; yields its address without /v1."""
    options = [part for name, value in plan.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    arguments = [
        sys.executable,
        str(Path(__file__).parent / "stream_server.py"),
        *options,
        "--log",
        str(folder / "stall"),
    ]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.wait()


def _first_in_line(arguments: Sequence[str]) -> list[str]:
    """Return a command that comes before others to the processor where this user may ask for it."""
    usable = os.geteuid() == 0 and shutil.which("chrt")
    return ["chrt", "--rr", "1", *arguments] if usable else list(arguments)


def cpu_of(arguments: Sequence[str], *, hurry: bool = True) -> float:
    """Run a command to its end and return the CPU seconds of all its processes."""
    command = _first_in_line(arguments) if hurry else arguments
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    errors = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{arguments[0]} ended with {process.returncode}: {errors[-2000:]}")
    return usage.ru_utime + usage.ru_stime


def ours(folder: Path, url: str, **load: object) -> tuple[Tally, float]:
    """Apply a load with the program that travels to nodes; return what it counted, and its CPU seconds with its start."""
    output = folder / "ours"
    output.unlink(missing_ok=True)
    (folder / "load.pyz").write_bytes(program())
    spec = {"base_url": url + "/v1", "max_in_flight": 20_000, "interval_seconds": 86_400, "output": str(output), **load}
    (folder / "spec.json").write_text(json.dumps(spec))
    seconds = cpu_of([sys.executable, "-I", str(folder / "load.pyz"), str(folder / "spec.json")])
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    (line,) = [line for line in lines if line["kind"] == "interval"]
    tally = Tally.from_json(line)
    if tally.failed or not tally.counts["completed"]:
        raise SystemExit(f"the load failed: {dict(tally.failed)} {tally.first_error}")
    return tally, seconds


def vllm(options: argparse.Namespace, folder: Path, url: str, **load: object) -> dict[str, Any]:
    """Apply a load with `vllm bench serve` and return what it says, in milliseconds."""
    (folder / "vllm_bench.py").write_text(_VLLM)
    told = {
        "base-url": url,
        "endpoint": "/v1/completions",
        "model": "mock",
        "tokenizer": options.tokenizer,
        "dataset-name": "random",
        "random-input-len": 60,
        "percentile-metrics": "ttft,tpot,itl,e2el",
        "metric-percentiles": "50,90,99",
        "result-filename": str(folder / "vllm.json"),
        "burstiness": 1e6,  # evenly spaced
        **load,
    }
    words = [part for name, value in told.items() for part in (f"--{name}", str(value))]
    cpu_of([options.vllm, str(folder / "vllm_bench.py"), *words, "--ignore-eos", "--disable-tqdm", "--save-result"])
    content: dict[str, Any] = json.loads((folder / "vllm.json").read_text())
    return content


def inference_perf(
    options: argparse.Namespace, folder: Path, url: str, *, rate: float, seconds: int, tokens: int
) -> dict[str, Any]:
    """Apply a load with inference-perf and return its latencies, in seconds."""
    report = folder / "inference-perf"
    shutil.rmtree(report, ignore_errors=True)
    lengths = {
        name: {"min": size, "max": size, "mean": size, "std_dev": 0, "total_count": 1000}
        for name, size in (("input_distribution", 60), ("output_distribution", tokens))
    }
    config = {
        "api": {"type": "completion", "streaming": True},
        "data": {"type": "random", **lengths},
        "load": {"type": "constant", "num_workers": 1, "stages": [{"rate": rate, "duration": seconds}]},
        "server": {"type": "vllm", "model_name": "mock", "base_url": url, "ignore_eos": True},
        "tokenizer": {"pretrained_model_name_or_path": options.tokenizer},
        "report": {
            "request_lifecycle": {
                "summary": True,
                "per_stage": False,
                "per_request": False,
                "percentiles": [50, 90, 99],
            }
        },
        "storage": {"local_storage": {"path": str(report)}},
    }
    (folder / "inference-perf.yml").write_text(json.dumps(config))  # JSON is YAML
    cpu_of([str(Path(options.inference_perf).parent / "inference-perf"), "-c", str(folder / "inference-perf.yml")])
    content: dict[str, Any] = json.loads((report / "summary_lifecycle_metrics.json").read_text())
    return dict(content["successes"]["latency"])


def guidellm(
    options: argparse.Namespace, folder: Path, url: str, *, rate: float, seconds: int, tokens: int
) -> tuple[int, float]:
    """Apply a load with guidellm; return the tokens it counted and its CPU seconds."""
    result = folder / "guidellm.json"
    told = {
        "backend": f"kind=openai_http,target={url},model=mock",
        "profile": f"kind=constant,rate={rate:g}",
        "constraint": f"kind=max_duration,seconds={seconds}",
        "tokenizer": f"kind=huggingface_auto,model={options.tokenizer}",
        "data": f"kind=synthetic_text,prompt_tokens=60,output_tokens={tokens}",
        "output": f"kind=json,path={result}",
    }
    words = [part for name, value in told.items() for part in (f"--{name}", value)]
    used = cpu_of([str(Path(options.guidellm).parent / "guidellm"), "run", *words, "--disable-console"], hurry=False)
    metrics = json.loads(result.read_text())["benchmarks"][0]["metrics"]
    return int(metrics["output_token_count"]["total"]["total_sum"]), used


# --- what is measured ----------------------------------------------------------------------------------------------------


def lag(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Send lag at 500 requests/s: P99 of each round, at one and at eight tokens an answer."""
    found: dict[str, list[float]] = {}
    with endpoint(folder, first=FIRST, between=BETWEEN) as url:
        for _ in range(options.rounds):
            for tokens in (1, 8):
                tally, _ = ours(
                    folder, url, rate_per_second=500, requests=10_000, prompt_tokens=60, output_tokens=tokens
                )
                found.setdefault(f"{tokens}_tokens", []).append(
                    round(tally.histograms["send_lag"].percentile(99) * 1000, 3)
                )
    return {"p99_ms_of_each_round": found, "worst_p99_ms": max(max(each) for each in found.values()), "bound_ms": 1.0}


def stall(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """A stall of 500 ms in a run of 30 s at 50 requests/s: P99 of the time to first token, measured and true."""
    rate, seconds, length, tokens = 50, 30, 0.5, 5
    plan = {"first": FIRST, "between": BETWEEN, "stall_after": 10, "stall": length}
    rounds = []
    for _ in range(options.rounds):
        with endpoint(folder, **plan) as url:
            tally, _ = ours(
                folder, url, rate_per_second=rate, requests=rate * seconds, prompt_tokens=60, output_tokens=tokens
            )
        happened = json.loads((folder / "stall").read_text())
        # When the stall was on the load's own clock; both stamps are of this machine's wall clock.
        began, ended = happened["began_wall"] - tally.start, happened["ended_wall"] - tally.start
        truth = percentile([_true_wait(index / rate, began, ended) for index in range(rate * seconds)], 99)
        with endpoint(folder, **plan) as url:
            closed, _ = ours(
                folder,
                url,
                arrival="closed",
                concurrency=5,
                requests=rate * seconds,
                prompt_tokens=60,
                output_tokens=tokens,
            )
        entry = {
            "true_p99_ms": truth * 1000,
            "p99_ms": tally.histograms["time_to_first_token"].percentile(99) * 1000,
            "closed_loop_of_5_p99_ms": closed.histograms["time_to_first_token"].percentile(99) * 1000,
        }
        if options.vllm:
            with endpoint(folder, **plan) as url:
                limit = {"max-concurrency": 5, "num-prompts": rate * seconds, "random-output-len": tokens}
                entry["vllm_bench_max_concurrency_5_p99_ms"] = vllm(options, folder, url, **limit)["p99_ttft_ms"]
        entry["off_by"] = entry["p99_ms"] / entry["true_p99_ms"] - 1
        rounds.append({name: round(value, 4) for name, value in entry.items()})
    return {"rounds": rounds, "worst_off_by": max(abs(entry["off_by"]) for entry in rounds), "bound": 0.02}


def _true_wait(due: float, began: float, ended: float) -> float:
    """Seconds from when a request was due to its first token, by the endpoint's plan alone."""
    if due >= ended or due + FIRST <= began:
        return FIRST
    return ended - due if due < began else ended + FIRST - due


def cpu(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Marginal CPU per streamed token, beside guidellm's."""
    rate, tokens, short, long = 20, 100, 10, 30
    rounds = []
    with endpoint(folder, first=FIRST, between=BETWEEN) as url:
        for _ in range(options.rounds):
            used: dict[str, list[tuple[int, float]]] = {"guidellm": [], "ours": []}
            for seconds in (short, long):
                used["guidellm"].append(guidellm(options, folder, url, rate=rate, seconds=seconds, tokens=tokens))
                tally, all_cpu = ours(
                    folder, url, rate_per_second=rate, duration_seconds=seconds, prompt_tokens=60, output_tokens=tokens
                )
                used["ours"].append((tally.counts["output_tokens"], all_cpu))
            entry = {
                f"{name}_us_per_token": (runs[1][1] - runs[0][1]) / (runs[1][0] - runs[0][0]) * 1e6
                for name, runs in used.items()
            }
            entry |= {
                f"{name}_us_per_token_with_its_start": runs[1][1] / runs[1][0] * 1e6 for name, runs in used.items()
            }
            entry["ratio"] = entry["ours_us_per_token"] / entry["guidellm_us_per_token"]
            rounds.append({name: round(value, 4) for name, value in entry.items()})
    return {"rounds": rounds, "median_ratio": statistics.median(entry["ratio"] for entry in rounds), "bound": 0.1}


def agreement(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Percentiles of one server at low load, by three clients in turn."""
    rate, seconds, tokens = 4, 30, 50
    names = {"time_to_first_token": "ttft", "end_to_end_latency": "e2el", "time_per_output_token": "tpot"}
    theirs = {
        "time_to_first_token": "time_to_first_token",
        "end_to_end_latency": "request_latency",
        "time_per_output_token": "time_per_output_token",
    }
    rounds, worst = [], 0.0
    with endpoint(folder, first=0.3, between=0.03) as url:
        for _ in range(options.rounds):
            tally, _ = ours(
                folder, url, rate_per_second=rate, requests=rate * seconds, prompt_tokens=60, output_tokens=tokens
            )
            told = {"num-prompts": rate * seconds, "request-rate": rate, "random-output-len": tokens}
            benched = vllm(options, folder, url, **told)
            perf = inference_perf(options, folder, url, rate=rate, seconds=seconds, tokens=tokens)
            entry: dict[str, Any] = {}
            for name, histogram in tally.histograms.items():
                if name not in names:
                    continue
                for percent in (50, 90, 99):
                    mine = histogram.percentile(percent) * 1000
                    others = {
                        "vllm_bench": benched[f"p{percent}_{names[name]}_ms"],
                        "inference_perf": perf[theirs[name]]["median" if percent == 50 else f"p{percent}"] * 1000,
                    }
                    off = {other: mine / value - 1 for other, value in others.items()}
                    worst = max(worst, *(abs(each) for each in off.values()))
                    entry[f"{name}_p{percent}"] = {
                        "ours_ms": round(mine, 3),
                        **{other: round(value, 3) for other, value in others.items()},
                        "off_by": {other: round(each, 4) for other, each in off.items()},
                    }
            rounds.append(entry)
    return {"rounds": rounds, "worst_off_by": round(worst, 4), "bound": 0.02}


MEASURES = {"lag": lag, "stall": stall, "cpu": cpu, "agreement": agreement}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure one thing and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=MEASURES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--guidellm", help="Python of a virtual environment with guidellm")
    parser.add_argument("--vllm", help="Python of an engine")
    parser.add_argument("--inference-perf", help="Python of a virtual environment with inference-perf")
    parser.add_argument("--tokenizer", help="directory of a model with its tokenizer, for the other clients")
    parser.add_argument("--output", help="file for the figures")
    options = parser.parse_args(arguments)
    needed = {"cpu": ("guidellm", "tokenizer"), "agreement": ("vllm", "inference_perf", "tokenizer")}.get(
        options.what, ()
    )
    missing = [name for name in needed if not getattr(options, name)]
    if missing or (options.vllm and not options.tokenizer):
        parser.error(f"{options.what} needs --{(missing or ['tokenizer'])[0].replace('_', '-')}")
    began, load_before = time.time(), os.getloadavg()
    with tempfile.TemporaryDirectory() as folder:
        found = MEASURES[options.what](options, Path(folder))
    record: Mapping[str, Any] = {
        "what": options.what,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(began)),
        "machine": {
            "processor": _processor(),
            "cpus": os.cpu_count(),
            "python": platform.python_version(),
            "load_average_before": load_before[0],
            "load_average_after": os.getloadavg()[0],
        },
        **found,
    }
    text = json.dumps(record, indent=1)
    print(text)
    if options.output:
        Path(options.output).write_text(text + "\n", encoding="utf-8")
    return 0


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


if __name__ == "__main__":
    sys.exit(main())
