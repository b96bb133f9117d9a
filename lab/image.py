"""The node's image: Debian 12 with systemd, made from Debian packages by mmdebstrap, imported into podman once."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from lab import apt
from lab.podman import Podman
from lab.shell import run_long, say, sudo, write_atomically

REPOSITORY = "localhost/plumbline-lab-node"
RELEASE = "bookworm"
# The first row is what a server has anyway. The second saves the demo's roles minutes of downloads (they install what they
# need and do not count on it).
INCLUDED = (
    *("systemd", "systemd-sysv", "dbus", "openssh-server", "sudo", "ca-certificates", "iproute2", "procps", "kmod"),
    *("python3", "python3-apt", "python3-venv", "gcc", "libc6-dev", "libgomp1", "libnuma1"),
)


@dataclass(frozen=True)
class Recipe:
    """Everything the image is made from; its hash is the image's tag."""

    directory: Path
    sources: str
    apt_options: tuple[str, ...]

    def command(self, sources: Path, target: Path) -> list[str]:
        """The mmdebstrap call."""
        return [
            "mmdebstrap",
            "--mode=root",
            "--variant=minbase",
            f"--include={','.join(INCLUDED)}",
            # Manuals and translations are a third of the files, and importing is paid by the file.
            *(f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "man", "info", "locale")),
            "--dpkgopt=path-include=/usr/share/doc/*/copyright",
            *(f"--aptopt={option}" for option in self.apt_options),
            "--customize-hook="
            f"tar -C '{self.directory / 'rootfs'}' --owner=root:0 --group=root:0 -cf - . | tar -C \"$1\" --no-overwrite-dir -xf -",
            f"--customize-hook=chroot \"$1\" sh -eu < '{self.directory / 'customize.sh'}'",
            RELEASE,
            str(target),
            str(sources),
        ]

    def digest(self) -> str:
        """Hash over the call, the apt source and the files laid into the image."""
        whole = hashlib.sha256()
        for word in (*self.command(Path("sources"), Path("target")), self.sources):
            whole.update(word.replace(str(self.directory), "").encode() + b"\0")
        for path in sorted(self.directory.rglob("*")):
            if path.is_file():
                mode = path.stat().st_mode & 0o111
                whole.update(f"{path.relative_to(self.directory)}\0{mode}\0".encode() + path.read_bytes() + b"\0")
        return whole.hexdigest()[:12]

    def reference(self) -> str:
        """Name of the image in podman's store."""
        return f"{REPOSITORY}:{self.digest()}"


def recipe(root: Path) -> Recipe:
    """The recipe as this machine would build it."""
    return Recipe(root / "lab" / "node", apt.node_sources(), apt.host_options())


def ensure(root: Path, podman: Podman) -> str:
    """Build the image unless podman has it; its name."""
    made = recipe(root)
    reference = made.reference()
    if podman.image_exists(reference):
        return reference
    build = root / ".cache" / "image"
    sources, tarball, log = build / f"{RELEASE}.sources", build / "node.tar", build / "build.log"
    write_atomically(sources, made.sources, 0o644)
    say("building the node's image from Debian packages (once; about a minute)")
    try:
        run_long(
            [*sudo(), "env", "TMPDIR=/var/tmp", *made.command(sources, tarball)], what="building the image", log=log
        )
        run_long(
            podman.command("import", "--change", 'CMD ["/sbin/init"]', tarball, reference),
            what="importing the image",
            log=log,
        )
    finally:
        tarball.unlink(missing_ok=True)
    return reference
