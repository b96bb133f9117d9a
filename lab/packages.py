"""Distribution packages that the lab stands on: look first, install only what is missing, in one call."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path

from lab.shell import LabError, last_line, run, run_long, say, sudo, which


@dataclass(frozen=True)
class Need:
    """Something the lab needs: any one of ``probes`` present is enough; ``packages`` are tried in this order."""

    what: str
    packages: tuple[str, ...]
    probes: tuple[str, ...]

    def met(self) -> bool:
        """True where a program is on PATH, a file exists or a Python module can be imported."""
        for probe in self.probes:
            if probe.startswith("python:"):
                if importlib.util.find_spec(probe.removeprefix("python:")) is not None:
                    return True
            elif probe.startswith("/"):
                if Path(probe).exists():
                    return True
            elif which(probe):
                return True
        return False


def controller_needs() -> list[Need]:
    """What a controller calls that a fresh Debian or Ubuntu machine may lack, with or without a lab."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return [
        Need("SSH", ("openssh-client",), ("ssh-keygen",)),
        Need("virtual environments", (f"python{version}-venv", "python3-venv"), ("python:ensurepip",)),
    ]


def needs() -> list[Need]:
    """Everything the lab calls that a fresh Debian or Ubuntu machine may lack."""
    return [
        Need("containers", ("podman",), ("podman",)),
        # runc first: it also runs on the hybrid cgroup layout, which crun refuses.
        Need("a container runtime", ("runc", "crun"), ("runc", "crun")),
        Need(
            "container networks",
            ("netavark", "containernetworking-plugins"),
            ("/usr/lib/podman/netavark", "/usr/libexec/podman/netavark", "/usr/lib/cni/bridge", "/opt/cni/bin/bridge"),
        ),
        Need("published ports", ("iptables",), ("iptables",)),
        Need("building the node image", ("mmdebstrap",), ("mmdebstrap",)),
        Need("Debian's signing keys", ("debian-archive-keyring",), ("/usr/share/keyrings/debian-archive-keyring.gpg",)),
        *controller_needs(),
    ]


def machine_needs() -> list[Need]:
    """What the virtual bare metal (lab/vm) needs beside the controller's packages."""
    return [
        Need("the virtual machine", ("qemu-system-x86",), ("qemu-system-x86_64",)),
        Need("its disks", ("qemu-utils",), ("qemu-img",)),
        Need("building its image", ("mmdebstrap",), ("mmdebstrap",)),
        Need("its file system", ("e2fsprogs",), ("mke2fs",)),
        Need("its sensors", ("openipmi",), ("ipmi_sim",)),
        Need("Debian's signing keys", ("debian-archive-keyring",), ("/usr/share/keyrings/debian-archive-keyring.gpg",)),
        *controller_needs(),
    ]


def engine_needs() -> list[Need]:
    """What the tests in the engine's Python need: its lock is for CPython 3.11, and vLLM's CPU kernels are linked with libnuma."""
    libraries = ("/usr/lib/x86_64-linux-gnu/libnuma.so.1", "/usr/lib64/libnuma.so.1")
    return [
        Need("Python 3.11", ("python3.11",), ("python3.11",)),
        Need("vLLM's kernels", ("libnuma1", "libnuma1t64"), libraries),
        *controller_needs(),
    ]


def gateway_needs() -> list[Need]:
    """What the tests of the gateway run. Debian starts HAProxy's own service when it is installed; it listens nowhere."""
    return [
        Need("the gateway's tests", ("haproxy",), ("haproxy", "/usr/sbin/haproxy")),
        Need("their certificates", ("openssl",), ("openssl",)),
        *controller_needs(),
    ]


def require(wanted: list[Need]) -> None:
    """Refuse, with the remedy, what is missing; for commands that do not install."""
    missing = [need for need in wanted if not need.met()]
    if missing:
        what = "; ".join(f"{need.what} needs {need.packages[0]}" for need in missing)
        raise LabError(
            f"distribution packages are missing: {what}. Run python -m lab packages --vm, or make lab-vm, which does"
        )


def _installable(package: str) -> bool:
    shown = run(["apt-cache", "policy", package], what="looking up packages", check=False).stdout
    return "Candidate:" in shown and "Candidate: (none)" not in shown


def choose(missing: list[Need]) -> list[str]:
    """The first package that apt offers for each need."""
    chosen = []
    for need in missing:
        package = next((name for name in need.packages if _installable(name)), None)
        if package is None:
            raise LabError(
                f"this distribution offers no package for {need.what} (looked for {', '.join(need.packages)}): "
                "use Debian 12 or newer or a current Ubuntu, or install it by hand"
            )
        chosen.append(package)
    return chosen


def ensure(log: Path, wanted: list[Need]) -> None:
    """Install what is missing; nothing missing costs nothing and asks for no password."""
    missing = [need for need in wanted if not need.met()]
    if not missing:
        return
    summary = ", ".join(need.packages[0] for need in missing)
    if which("apt-get") is None:
        raise LabError(
            f"these are missing and this is not a Debian or Ubuntu machine, so install them by hand: {summary}"
        )
    try:
        root = sudo()
    except LabError:
        raise LabError(
            f"these distribution packages are missing: {summary}; run make as root, or install sudo and allow it for this user"
        ) from None
    say(f"installing distribution packages ({summary})")
    update = run([*root, "apt-get", "update"], what="apt-get update", check=False)
    packages = choose(missing)
    apt = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-y", "--no-install-recommends"]
    try:
        run_long([*root, *apt, *packages], what="installing packages", log=log)
    except LabError as error:
        if update.returncode != 0:
            raise LabError(f"{error}; before that apt-get update had failed: {last_line(update.stderr)}") from None
        raise
    still = [need.what for need in wanted if not need.met()]
    if still:
        raise LabError(f"apt-get installed {' '.join(packages)}, yet this is still missing: {', '.join(still)}")
