"""podman as root, with the runtime and control group options that this machine allows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lab.settings import Lab
from lab.shell import LabError, last_line, read, run, sudo, which, write_atomically

# On every node: whose it is, and with which settings it was made.
CHECKOUT_LABEL = "plumbline.checkout"
SETTINGS_LABEL = "plumbline.settings"


def containers_conf(runtime: str, *, systemd_host: bool, unified_cgroups: bool) -> str:
    """podman's configuration for the lab alone (``CONTAINERS_CONF``); the machine's own is left as it is.

    systemd manages the container's cgroup only where systemd runs the machine on cgroup v2; everywhere else podman makes
    the cgroup itself. Limits are given because the defaults (nofile, nproc of a million) fail where the machine's own hard
    limits are lower.
    """
    manager = "systemd" if systemd_host and unified_cgroups else "cgroupfs"
    return (
        "[containers]\n"
        "pids_limit = 0\n"
        'default_ulimits = ["nofile=20000:20000", "nproc=32768:32768"]\n'
        'log_driver = "k8s-file"\n'
        "[engine]\n"
        f'cgroup_manager = "{manager}"\n'
        f'runtime = "{runtime}"\n'
        'events_logger = "file"\n'
    )


def choose_runtime() -> str:
    """runc where there is one: it also runs on the hybrid cgroup layout, which crun refuses."""
    for name in ("runc", "crun"):
        if which(name):
            return name
    raise LabError("the lab needs a container runtime and found neither runc nor crun: install the package runc")


class Podman:
    """Calls podman for one lab. Always as root: a node that runs systemd with its own cgroups needs it."""

    def __init__(self, lab: Lab) -> None:
        """Nothing is called yet."""
        self.lab = lab
        self.configuration = lab.state / "containers.conf"

    def prepare(self) -> None:
        """Write the configuration by looking at this machine."""
        content = containers_conf(
            choose_runtime(),
            systemd_host=Path("/run/systemd/system").is_dir(),
            unified_cgroups=Path("/sys/fs/cgroup/cgroup.controllers").exists(),
        )
        if read(self.configuration) != content:
            write_atomically(self.configuration, content, 0o644)

    def command(self, *words: str | Path) -> list[str]:
        """The full command line of a podman call."""
        return [*sudo(), "env", f"CONTAINERS_CONF={self.configuration}", "podman", *map(str, words)]

    def __call__(self, *words: str | Path, what: str, stdin: bytes | None = None, check: bool = True) -> str:
        """Call podman; what it printed."""
        return run(self.command(*words), what=what, stdin=stdin, check=check).stdout

    def succeeds(self, *words: str) -> bool:
        """True where podman exits with 0, False where it exits with 1; anything else is an error of podman's own."""
        done = run(self.command(*words), what="asking podman", check=False)
        if done.returncode not in (0, 1):
            raise LabError(f"podman does not work here: {last_line(done.stderr)} (tried: podman {' '.join(words)})")
        return done.returncode == 0

    def image_exists(self, reference: str) -> bool:
        """True where the image is in the store."""
        return self.succeeds("image", "exists", reference)

    def inspect(self, container: str) -> dict[str, Any] | None:
        """The container as podman sees it; None where there is none."""
        done = run(self.command("container", "inspect", container), what="inspecting the node", check=False)
        if done.returncode == 0:
            found: dict[str, Any] = json.loads(done.stdout)[0]
            return found
        if "no such container" in done.stderr.lower():
            return None
        raise LabError(
            f"podman does not work here: {last_line(done.stderr)} (tried: podman container inspect {container})"
        )

    def nodes_of(self, root: Path) -> dict[str, dict[str, Any]]:
        """Name -> settings of every node that this checkout made, whatever it was called."""
        listed = self(
            *("ps", "--all", "--filter", f"label={CHECKOUT_LABEL}={root}", "--format", "json"), what="listing the nodes"
        )
        found = {}
        for entry in json.loads(listed or "[]") or []:
            try:
                settings = json.loads((entry.get("Labels") or {}).get(SETTINGS_LABEL, "{}"))
            except ValueError:
                settings = {}
            found[str(entry["Names"][0])] = settings if isinstance(settings, dict) else {}
        return found
