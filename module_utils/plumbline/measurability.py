"""Which measurements can be made on a machine as it is: the tools, the devices and the files that each needs.

Nothing is measured and nothing is changed. What cannot be measured becomes a measurement without a figure: skipped with the reason
and the command that would install what is missing, or an error where somebody requires the figure.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .storage_bandwidth import files_to_read

SUBJECTS = ("memory", "storage", "gpu", "collective")
"""What can be measured, in the order in which it is."""

NVBANDWIDTH = "nvbandwidth"
_TIMEOUT_SECONDS = 60  # importing nothing, but the first start of a Python on a cold network disk
# Package managers, and how each installs what is missing; `PACKAGES` is what the tool is called there.
_INSTALLERS = (("apt-get", "apt-get install"), ("dnf", "dnf install"), ("zypper", "zypper install"), ("apk", "apk add"))
_PACKAGES = {
    "compiler": {
        "apt-get": "gcc libc6-dev",
        "dnf": "gcc glibc-devel libgomp",
        "zypper": "gcc glibc-devel",
        "apk": "gcc musl-dev libgomp",
    },
    "fio": {},
}
_HEADERS = b"#include <stdio.h>\n#include <omp.h>\n"


@dataclass
class Subject:
    """One thing to measure: whether it can be, else why not, and what would help."""

    name: str
    measurement: str
    scope: str
    reason: str = ""
    next_command: str = ""
    wrong: bool = False
    """Whether what was asked for is not there, which is a mistake and no lack of the machine."""
    facts: dict[str, Any] = field(default_factory=dict)

    def as_measurement(self, required: bool) -> dict[str, Any]:
        """The measurement that cannot be made."""
        key = "error" if required or self.wrong else "skipped"
        return {
            "name": self.measurement,
            "scope": self.scope,
            "unit": "B/s",
            key: self.reason,
            "next_command": self.next_command,
        }


def install_command(tool: str) -> str:
    """The command that installs a tool with this machine's package manager; empty where there is none that we know."""
    for manager, command in _INSTALLERS:
        if shutil.which(manager):
            return f"{command} {_PACKAGES[tool].get(manager, tool)}"
    return ""


def memory(compiler: str = "gcc") -> Subject:
    """Memory bandwidth needs a C compiler with OpenMP and the C library's headers."""
    found = Subject("memory", "host_memory_bandwidth", "node")
    path = shutil.which(compiler)
    if path is None:
        found.reason = f"there is no C compiler ({compiler}) to build the measurement with"
    elif (problem := _answer([path, "-fopenmp", "-E", "-x", "c", "-", "-o", "/dev/null"], _HEADERS)) is not None:
        found.reason = f"the C compiler cannot build the measurement ({problem})"
    found.next_command = install_command("compiler") if found.reason else ""
    return found


def storage(paths: Iterable[str], asked: bool) -> Subject:
    """Storage bandwidth needs fio, and a directory with a file of 1 MiB or more; the first of ``paths`` that has one is read.

    ``asked``: somebody named the directory, so that it is a mistake where there is none.
    """
    paths = [path for path in paths if path]
    path = next((path for path in paths if files_to_read(Path(path))), "")
    found = Subject("storage", "storage_read_bandwidth", path or (paths[0] if paths else "model"), facts={"path": path})
    if not path:
        where = ", ".join(paths)
        found.reason = (
            f"there is no file of 1 MiB or more to read in {where}" if where else "no directory was named to read"
        )
        found.next_command = "ansible-playbook playbooks/validate.yml -e validate_storage_path=DIRECTORY"
        found.wrong = asked
    elif shutil.which("fio") is None:
        found.reason = "there is no fio to read with"
        found.next_command = install_command("fio")
    return found


def gpu(count: int, pythons: Iterable[str], asked: bool) -> Subject:
    """Copies need an NVIDIA GPU, and a Python with torch or nvbandwidth. The first of ``pythons`` with torch is taken.

    ``asked``: somebody named the Python, so that it is a mistake where it has no torch.
    """
    found = Subject("gpu", "gpu_h2d_bandwidth", "gpus", facts={"python": "", "method": ""})
    if not count:
        found.reason = "there is no NVIDIA GPU (vendor 10de, class 03) on the PCI bus"
        return found
    pythons = [python for python in pythons if python]
    found.facts["python"] = next((python for python in pythons if _has_torch(python)), "")
    if found.facts["python"]:
        found.facts["method"] = "torch"
    elif asked:
        found.reason, found.wrong = f"expected a Python with torch at {', '.join(pythons)}, found none", True
        found.next_command = "ansible-playbook playbooks/validate.yml -e validate_gpu_python=PYTHON"
    elif shutil.which(NVBANDWIDTH):
        found.facts["method"] = "nvbandwidth"
    else:
        found.reason = (
            f"there is neither a Python with torch ({', '.join(pythons) or 'none was named'}) nor nvbandwidth"
        )
        found.next_command = "ansible-playbook playbooks/engine.yml, or -e validate_gpu_python=PYTHON_WITH_TORCH"
    return found


def collective(count: int, copies: Subject) -> Subject:
    """Reductions need two GPUs and torch."""
    found = Subject("collective", "collective_bus_bandwidth", "all_reduce", facts={"python": copies.facts["python"]})
    if count < 2:
        found.reason = f"a reduction needs two GPUs, there {'is one' if count else 'is none'}"
    elif not copies.facts["python"]:
        found.reason = "a reduction is measured with torch, and there is no Python that has it"
        found.next_command = copies.next_command
    return found


def _has_torch(python: str) -> bool:
    """Whether a Python knows the package torch, without importing it, which takes seconds."""
    code = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
    return _answer([python, "-c", code]) is None


def _answer(command: list[str], text: bytes = b"") -> str | None:
    """Run a command; return the first line of its complaint, `None` where it ends well."""
    try:
        done = subprocess.run(command, input=text, capture_output=True, timeout=_TIMEOUT_SECONDS, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    if done.returncode == 0:
        return None
    lines = done.stderr.decode("utf-8", "replace").splitlines()
    told = next((line for line in lines if "error" in line), lines[0] if lines else "")
    return " ".join(told.split())[:200] or f"status {done.returncode}"
