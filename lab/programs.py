"""Programs of distribution packages that only tests run: unpacked, not installed, so that no service of theirs starts."""

from __future__ import annotations

import tempfile
from pathlib import Path

from lab.shell import LabError, run, say, sudo, which

# Package -> programs that the tests call. All are static enough to run from anywhere.
PACKAGES = {
    "prometheus": ("usr/bin/promtool", "usr/bin/prometheus"),
    "prometheus-node-exporter": ("usr/bin/prometheus-node-exporter",),
}


def directory(cache: Path) -> Path:
    """Where the programs lie."""
    return cache / "programs"


def missing(cache: Path) -> list[str]:
    """Packages of which a program is neither on PATH nor unpacked."""
    return [
        package
        for package, programs in PACKAGES.items()
        if not all((directory(cache) / path).exists() or which(Path(path).name) for path in programs)
    ]


def ensure(cache: Path) -> None:
    """Unpack what is missing."""
    wanted = missing(cache)
    if not wanted:
        return
    if which("apt-get") is None or which("dpkg-deb") is None:
        raise LabError(
            f"the tests need the programs of {', '.join(wanted)}, and this is not a Debian or Ubuntu machine: put them on PATH"
        )
    say(f"unpacking the programs of {', '.join(wanted)} for the tests")
    with tempfile.TemporaryDirectory(prefix="plumbline-programs-") as folder:
        # Not by the user _apt, who may not write there.
        inside = ["sh", "-c", 'cd "$0" && exec "$@"', folder]
        command = ["apt-get", "-o", "APT::Sandbox::User=root", "download", *wanted]
        if run([*inside, *command], what="downloading packages", check=False).returncode != 0:
            run([*sudo(), "apt-get", "update"], what="apt-get update", check=False)
            run([*inside, *command], what="downloading packages")
        for file in sorted(Path(folder).glob("*.deb")):
            directory(cache).mkdir(parents=True, exist_ok=True)
            run(["dpkg-deb", "--extract", str(file), str(directory(cache))], what=f"unpacking {file.name}")
    still = missing(cache)
    if still:
        raise LabError(
            f"the packages {', '.join(still)} were unpacked, yet their programs are not where they were: {PACKAGES}"
        )
