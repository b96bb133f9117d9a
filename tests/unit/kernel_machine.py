"""A fake machine for the tests of the kernel stage: files below a directory, and a kernel that answers as a real one does."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.kernel_knobs import Live
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.tree import Tree

FILES = {
    "/proc/sys/vm/swappiness": "60",
    "/proc/sys/vm/dirty_ratio": "20",
    "/proc/sys/vm/dirty_bytes": "0",
    "/proc/sys/vm/dirty_background_bytes": "0",
    "/proc/sys/vm/dirty_background_ratio": "10",
    "/proc/sys/kernel/numa_balancing": "1",
    "/proc/sys/kernel/osrelease": "6.1.0-27-amd64",
    "/proc/sys/kernel/core_pattern": "core",
    "/proc/sys/kernel/random/boot_id": "boot-1",
    "/proc/sys/fs/nr_open": "1048576",
    "/proc/sys/net/core/somaxconn": "4096",
    "/proc/sys/net/core/netdev_max_backlog": "1000",
    "/proc/sys/net/ipv4/tcp_rmem": "4096\t131072\t6291456",
    "/proc/cmdline": "BOOT_IMAGE=/vmlinuz-6.1.0-27-amd64 root=UUID=0 ro quiet",
    "/proc/self/mounts": "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0",
    "/sys/kernel/mm/transparent_hugepage/enabled": "[always] madvise never",
    "/sys/kernel/mm/transparent_hugepage/defrag": "always defer defer+madvise [madvise] never",
    "/sys/module/pcie_aspm/parameters/policy": "[default] performance powersave powersupersave",
}
GRUB_CFG = """### BEGIN /etc/grub.d/10_linux ###
menuentry 'Debian' {{
        linux   /vmlinuz-6.1.0-27-amd64 root=UUID=0 ro  quiet{arguments}
}}
menuentry 'Debian (recovery mode)' {{
        linux   /vmlinuz-6.1.0-27-amd64 root=UUID=0 ro single
}}
### END /etc/grub.d/10_linux ###
menuentry 'memtest' {{
        linux16 /memtest86+.bin
}}
"""


class Machine:
    """Files below *root*, and helpers to look at them as the machine names them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.tree = Tree(str(root))
        for path, text in FILES.items():
            self.put(path, text)
        for cpu in range(12):
            base = f"/sys/devices/system/cpu/cpufreq/policy{cpu}"
            self.put(f"{base}/scaling_governor", "powersave")
            self.put(f"{base}/scaling_available_governors", "performance powersave")
        (root / "proc/self/ns").mkdir(parents=True)
        self.enter_pid_namespace(4026531836)

    def enter_pid_namespace(self, inode: int) -> None:
        link = self.root / "proc/self/ns/pid"
        link.unlink(missing_ok=True)
        link.symlink_to(f"pid:[{inode}]")

    def put(self, path: str, text: str) -> None:
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text + "\n")

    def get(self, path: str) -> str | None:
        return self.tree.text(path)

    def snapshot(self) -> dict[str, str]:
        return {
            str(path.relative_to(self.root)): str(path.readlink()) if path.is_symlink() else path.read_text()
            for path in sorted(self.root.rglob("*"))
            if path.is_symlink() or path.is_file()
        }

    def become_container(self, own_network: bool = True) -> None:
        self.put("/run/.containerenv", 'engine="podman-4.3.1"')
        if own_network:
            (self.root / "proc/sys/net/core/netdev_max_backlog").unlink()

    def add_grub(self, reaches: bool = True) -> list[list[str]]:
        """GRUB as on Debian; returns the list that its command runs are recorded in."""
        self.put("/etc/default/grub", 'GRUB_CMDLINE_LINUX_DEFAULT="quiet"')
        self.put("/usr/sbin/update-grub", "")
        self.put("/boot/grub/grub.cfg", GRUB_CFG.format(arguments=""))
        self.grub_reaches = reaches
        self.commands: list[list[str]] = []
        return self.commands

    def update_grub(self, command: list[str]) -> tuple[int, str, str]:
        """What update-grub makes of the drop-in: its words behind the site's own."""
        self.commands.append(command)
        text = self.get("/etc/default/grub.d/95-plumbline.cfg") or ""
        words = text.rpartition("DEFAULT }")[2].rstrip('"') if "DEFAULT }" in text and self.grub_reaches else ""
        self.put("/boot/grub/grub.cfg", GRUB_CFG.format(arguments=f" {words}" if words else ""))
        return 0, "", ""


class Kernel(Live):
    """Writes as a kernel takes them: choices keep their list, and some values are refused, changed or undo others."""

    def __init__(self, tree: Tree) -> None:
        super().__init__(tree)
        # Path -> errno
        self.refused: dict[str, int] = {}

    def write(self, path: str, value: str) -> None:
        if path in self.refused:
            raise OSError(self.refused[path], os.strerror(self.refused[path]))
        text = self.tree.text(path) or ""
        if "[" in text:
            words = text.replace("[", "").replace("]", "").split()
            if value not in words:
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            value = " ".join(f"[{word}]" if word == value else word for word in words)
        # As mm/page-writeback.c has it: bytes below two pages are refused, and one of a pair clears the other.
        if path.endswith("dirty_bytes") and int(value) < 8192:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        changes = text != value
        super().write(path, value)
        for one, other in (("bytes", "ratio"), ("ratio", "bytes")):
            if re.search(rf"/dirty_(background_)?{one}$", path) and changes:
                super().write(path.removesuffix(one) + other, "0")
