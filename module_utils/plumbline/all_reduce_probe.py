"""Times all-reduce over the GPUs of one machine (NCCL), or over processes on its CPUs (gloo); a program for a Python with torch.

    python all_reduce_probe.py '{"message_bytes": [1048576, 268435456], "ranks": 0, "repeats": 5,
                                 "seconds_per_point": 0.5, "timeout_seconds": 120, "gpus_on_pci": 8}'

`ranks` 0 means one for each GPU, or 2 where the machine has none (`gpus_on_pci` 0). Prints one JSON object: `backend`, `ranks`,
`addresses` (on PCI, of the ranks' GPUs) and `points` with `message_bytes` and `samples`: seconds of one all-reduce, the slowest
rank's, each the mean over a repeat. Runs beside `probe_support.py` and `gpu_copy_probe.py`.
"""

from __future__ import annotations

import datetime
import json
import os
import socket
import subprocess
import sys
import time
from typing import Any

if "." in __name__:  # not __package__: Python 3.9 sets that of a module in a zip file only after running it
    from . import probe_support as support
    from .gpu_copy_probe import pci_address
else:
    import probe_support as support  # type: ignore[import-not-found,unused-ignore,no-redef]
    from gpu_copy_probe import pci_address  # type: ignore[import-not-found,unused-ignore,no-redef]


_PATIENCE = 4
"""How many times its share of seconds a slow point may take."""


def free_port() -> int:
    """Return a TCP port of the loopback interface that is free now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def plan(once: float, seconds: float, repeats: int) -> tuple[int, int]:
    """Rounds in a repeat and repeats, for a reduction that takes `once` seconds: slow ones, as gloo's of a GiB, are repeated less."""
    rounds = max(1, min(1000, int(seconds / repeats / max(once, 1e-6))))
    return rounds, max(1, min(repeats, int(_PATIENCE * seconds / max(once * rounds, 1e-6))))


def rank_main(options: dict[str, Any]) -> int:
    """Measure as one rank; rank 0 prints the points."""
    import torch  # noqa: PLC0415 -- only a rank needs it
    import torch.distributed as dist  # noqa: PLC0415

    rank, ranks, gpus = options["rank"], options["ranks"], options["gpus"]
    limit = datetime.timedelta(seconds=options["timeout_seconds"])
    device = torch.device("cuda", rank) if gpus else torch.device("cpu")
    if gpus:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    dist.init_process_group(
        "nccl" if gpus else "gloo",
        init_method=f"tcp://127.0.0.1:{options['port']}",
        rank=rank,
        world_size=ranks,
        timeout=limit,
    )
    # The clock is agreed on by the slowest rank, over the same group.
    clock = torch.zeros(1, dtype=torch.float64, device=device)

    def slowest(seconds: float) -> float:
        clock[0] = seconds
        dist.all_reduce(clock, op=dist.ReduceOp.MAX)
        return float(clock.item())

    def timed(message: Any, rounds: int) -> float:
        if gpus:
            torch.cuda.synchronize()
        dist.barrier()
        started = time.perf_counter()
        for _ in range(rounds):
            dist.all_reduce(message)
        if gpus:
            torch.cuda.synchronize()
        return slowest(time.perf_counter() - started) / rounds

    points = []
    for message_bytes in options["message_bytes"]:
        message = torch.zeros(message_bytes // 4, dtype=torch.float32, device=device)
        once = timed(message, 1)
        once = min(once, timed(message, 1))
        # Every rank knows the slowest one's time, so all of them choose alike.
        rounds, repeats = plan(once, options["seconds_per_point"], options["repeats"])
        samples = [timed(message, rounds) for _ in range(repeats)]
        points.append({"message_bytes": message_bytes, "rounds": rounds, "samples": samples})
        check = torch.ones(1024, device=device)
        dist.all_reduce(check)
        if not bool((check == ranks).all()):
            points[-1] = {
                "message_bytes": message_bytes,
                "wrong": f"all-reduce of ones over {ranks} ranks gave {check[0].item()}",
            }
    dist.destroy_process_group()
    if rank == 0:
        properties = [torch.cuda.get_device_properties(index) for index in range(ranks)] if gpus else []
        print(
            json.dumps(
                {
                    "addresses": [pci_address(each) for each in properties],
                    "backend": "nccl" if gpus else "gloo",
                    "ranks": ranks,
                    "torch_version": torch.__version__,
                    "points": points,
                }
            )
        )
    return 0


def run_ranks(options: dict[str, Any]) -> str:
    """Start a process for each rank, wait for all, and return what rank 0 printed or an `error` as JSON."""
    common = {**options, "port": free_port()}
    children = [
        subprocess.Popen(
            [sys.executable, __file__, json.dumps({**common, "rank": rank})],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
        )
        for rank in range(options["ranks"])
    ]
    deadline = time.monotonic() + options["timeout_seconds"]
    outputs = []
    try:
        for child in children:
            outputs.append(child.communicate(timeout=max(1.0, deadline - time.monotonic())))
    except subprocess.TimeoutExpired:
        return json.dumps({"error": f"the ranks had not finished after {options['timeout_seconds']} s and were ended"})
    finally:
        for child in children:
            if child.poll() is None:
                child.kill()
                child.wait()
    for rank, (child, (_, stderr)) in enumerate(zip(children, outputs)):
        if child.returncode != 0:
            last = (stderr.strip().splitlines() or [f"exit status {child.returncode}"])[-1]
            return json.dumps({"error": f"rank {rank} of {options['ranks']} failed: {last[:300]}"})
    return outputs[0][0].strip().splitlines()[-1]


def measure(options: dict[str, Any]) -> str:
    """Find out over how many ranks there is something to measure, and return the answer as JSON."""
    try:
        import torch  # noqa: PLC0415 -- this program tells apart a Python without torch
    except ImportError as error:
        return json.dumps({"error": f"this Python cannot import torch: {error}"})
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if options.get("gpus_on_pci") and not gpus:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        hint = f"CUDA_VISIBLE_DEVICES is '{visible}'" if visible is not None else "nvidia-smi must list one"
        reason = f"this machine has {options['gpus_on_pci']} NVIDIA GPUs on PCI and torch {torch.__version__} sees none of them: {hint}"
        return json.dumps({"error": reason})
    ranks = options["ranks"] or gpus or 2
    if gpus and ranks > gpus:
        return json.dumps(
            {"error": f"expected at most one rank for each of the {gpus} GPUs, found {ranks}: lower ranks"}
        )
    if ranks < 2:
        return json.dumps({"skipped": "one GPU: there is nothing to reduce over"})
    return run_ranks({**options, "ranks": ranks, "gpus": gpus})


def main(argument: str) -> int:
    """Measure as one rank where the options name one, else start them all and print the answer."""
    support.end_with_parent()
    options = json.loads(argument)
    if "rank" in options:
        return rank_main(options)
    print(measure(options))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
