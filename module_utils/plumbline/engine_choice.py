"""Which build of the engine a machine gets: the newest that its GPUs and their driver run, or the one for CPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .engine_fitness import gpu_problems

CPU = "cpu"


@dataclass(frozen=True)
class Choice:
    """The build that was chosen and why; `problems` say why none of those for GPUs runs here."""

    kind: str
    reason: str
    fallback: bool = False
    problems: tuple[str, ...] = ()


def choose(
    kind: str,
    builds: Mapping[str, Mapping[str, Any]],
    facts: Mapping[str, Any],
    *,
    gpu_count: int,
    container: bool,
) -> Choice:
    """Choose among `builds`, requirements by kind, the preferred ones first; a kind that names one of them is that one.

    `auto` is a GPU build where there are GPUs that this machine may use, else the CPU's; `cuda` is any GPU build. `facts` are those of
    `engine_fitness.machine_facts`, `gpu_count` the GPUs on the bus: a container sees those of its host, whether or not it was given one.
    """
    if kind in builds:
        return Choice(kind, f"engine_kind says {kind}")
    if kind == "auto" and not gpu_count:
        return Choice(CPU, "the machine has no NVIDIA GPU")
    if kind == "auto" and container and not facts["nvidia_devices"]:
        return Choice(
            CPU,
            f"the machine is a container that was given none of the {gpu_count} NVIDIA GPUs that it sees on the bus",
        )
    passed_over: list[str] = []
    gpu_builds = [name for name in builds if name != CPU]
    for name in gpu_builds:
        found = gpu_problems(facts, builds[name], f"{name} {builds[name].get('version', '')}".strip())
        if not found:
            reason = "the newest that its GPUs and their driver run"
            return Choice(
                name,
                " ".join([*passed_over, f"Taken is {name}, {reason}."]) if passed_over else reason,
                bool(passed_over),
            )
        passed_over += found
    if not facts["nvidia_driver_version"]:
        # One sentence is enough where no driver is loaded at all.
        return Choice(gpu_builds[0], "the preferred one", problems=tuple(passed_over[:1]))
    return Choice(gpu_builds[0], "the preferred one", problems=tuple(passed_over))
