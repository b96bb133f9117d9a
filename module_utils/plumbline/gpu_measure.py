"""Measures the GPUs of a machine: whether there is anything to measure, with what, and the report of it."""

from __future__ import annotations

import os
import time
from typing import Any, Callable

from . import gpu_bandwidth, nvbandwidth
from .link_load import LinkFacts
from .node import nvidia_gpus
from .nvlink import COMMANDS, NvLinks
from .pci_topology import pci_facts
from .probe import run_group, run_probe
from .probe_support import LinkSampler
from .tree import Tree

METHODS = ("auto", "torch", "nvbandwidth")
_SMI_PATIENCE_SECONDS = 60
# CUDA shows the devices before the first one that does not exist.
_HIDES_ALL = ("", "-1", "NoDevFiles", "none")
_NEITHER = (
    "expected a Python with torch (option python) or the program nvbandwidth on PATH, found neither: "
    "install an engine, or build nvbandwidth"
)
_NO_NVBANDWIDTH = "expected the program nvbandwidth, found none on PATH: build it, or give the option python"
# Either of them is there as soon as the driver is; a sandbox may show only the second.
_DRIVER_SIGNS = ("/proc/driver/nvidia/version", "/dev/nvidiactl")


def measure(
    options: dict[str, Any], find_program: Callable[[str], str | None], tree: Tree | None = None
) -> dict[str, Any]:
    """Measure as the module's options say and return its result: `measurements`, and `gpus`, `notes` and versions where it measured.

    Without an NVIDIA GPU on PCI nothing is started: no Python, no torch.
    """
    tree = tree or Tree()
    addresses = nvidia_gpus(tree)
    nothing = _nothing_to_measure(addresses, tree)
    if nothing:
        return {"measurements": nothing}
    method, program = options["method"], find_program(nvbandwidth.PROGRAM)
    if method == "auto":
        method = "torch" if options["python"] else "nvbandwidth" if program else "torch"
    if not (options["python"] if method == "torch" else program):
        return {
            "measurements": gpu_bandwidth.failed(_NEITHER if options["method"] != "nvbandwidth" else _NO_NVBANDWIDTH)
        }
    links = LinkFacts(pci_facts(tree.root))
    begun = time.monotonic()
    try:
        answer = (
            _with_torch(options, addresses, links)
            if method == "torch"
            else _with_nvbandwidth(options, str(program), addresses, links)
        )
    except ValueError as error:
        return {"measurements": gpu_bandwidth.failed(str(error)), "method": method}
    answer.setdefault("elapsed_seconds", time.monotonic() - begun)
    nvlinks = ask_nvlinks(find_program) if any(point["kind"] == "peer_to_peer" for point in answer["points"]) else None
    report = gpu_bandwidth.Report(answer, links, nvlinks)
    shown = [gpu["address"] for gpu in answer["gpus"].values()]
    found = report.measurements()
    # Where torch does not tell addresses, nobody can say which GPU was not shown.
    if "" not in shown:
        drivers = {address: links.functions[address]["driver"] for address in addresses if address in links.functions}
        found += gpu_bandwidth.hidden_gpus(addresses, drivers, shown, os.environ.get("CUDA_VISIBLE_DEVICES"))
    return {"measurements": found, "method": method, **report.facts()}


def _nothing_to_measure(addresses: list[str], tree: Tree) -> list[dict[str, Any]]:
    """The measurements of a machine where nothing can be started, and why; an empty list where there is something to measure."""
    if not addresses:
        return gpu_bandwidth.skipped("no NVIDIA GPU on this machine")
    if not any(tree.exists(sign) for sign in _DRIVER_SIGNS):
        return gpu_bandwidth.no_driver(addresses)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in _HIDES_ALL:
        return gpu_bandwidth.skipped(f"every GPU is hidden from this run by CUDA_VISIBLE_DEVICES='{visible}'")
    return []


def _with_torch(options: dict[str, Any], addresses: list[str], links: LinkFacts) -> dict[str, Any]:
    wanted = {key: options[key] for key in ("chunk_bytes", "seconds_per_point", "repeats")}
    wanted["paths"] = {address: links.path(address) for address in addresses}
    answer, stderr = run_probe("gpu_copy_probe", options["python"], wanted, options["timeout_seconds"])
    return gpu_bandwidth.read_answer(answer, stderr)


def _with_nvbandwidth(options: dict[str, Any], program: str, addresses: list[str], links: LinkFacts) -> dict[str, Any]:
    """Run nvbandwidth once a repeat and size of chunk, with the links of all GPUs sampled meanwhile."""
    # Its own numbers follow the address on PCI then, so that they can be told apart where it does not print addresses.
    environment = {**os.environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    deadline = time.monotonic() + options["timeout_seconds"]
    sampler = LinkSampler([step for address in addresses for step in links.path(address)])
    runs: dict[int, list[dict[str, Any]]] = {}
    with sampler.running():
        for chunk_bytes in dict.fromkeys(options["chunk_bytes"]):
            call = nvbandwidth.command(program, chunk_bytes)
            for _ in range(options["repeats"]):
                done = run_group(call, max(1.0, deadline - time.monotonic()), environment)
                if done.problem:
                    raise ValueError(done.problem)
                try:
                    runs.setdefault(chunk_bytes, []).append(nvbandwidth.parse(done.stdout))
                except ValueError as error:
                    last = (done.stderr.strip().splitlines() or done.stdout.strip().splitlines() or ["nothing"])[-1]
                    raise ValueError(f"{error} (exit status {done.status}; its last line: {last[:200]})") from None
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return nvbandwidth.answer(runs, addresses if visible is None else [], sampler.summary())


def ask_nvlinks(find_program: Callable[[str], str | None]) -> NvLinks:
    """What nvidia-smi says of NVLink; nothing where it is not there or does not answer in time."""
    if not find_program("nvidia-smi"):
        return NvLinks()
    return NvLinks(**{name: run_group(call, _SMI_PATIENCE_SECONDS).stdout for name, call in COMMANDS.items()})
