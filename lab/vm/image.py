"""The machine's disk image: Debian 12 with a kernel and GRUB, made from Debian packages by mmdebstrap, once."""

from __future__ import annotations

import os
import shutil
import struct
from pathlib import Path

from lab import apt
from lab.image import RELEASE, Recipe
from lab.settings import Lab
from lab.shell import LabError, run, run_long, say, sudo, which, write_atomically

INCLUDED = (
    *(
        "systemd",
        "systemd-sysv",
        "udev",
        "dbus",
        "openssh-server",
        "sudo",
        "ca-certificates",
        "iproute2",
        "procps",
        "kmod",
    ),
    *("python3", "python3-apt", "linux-image-amd64", "initramfs-tools", "zstd", "lz4", "grub-pc-bin", "grub2-common"),
    *("ipmitool", "dmidecode", "pciutils", "unattended-upgrades"),
)
DISK_BYTES = 3 << 30
_SECTOR = 512
_FIRST_SECTOR = 2048
# GRUB 2.06 reads these; what newer mke2fs adds by itself it does not.
_FEATURES = "none,has_journal,ext_attr,resize_inode,dir_index,filetype,extent,64bit,flex_bg,sparse_super,large_file,huge_file,dir_nlink"
_FILE_SYSTEM_UUID = "6b1d6c3e-0c57-4d0a-8f0b-9a4d6a1e0a01"


class MachineRecipe(Recipe):
    """The node's recipe with a machine's packages; its hash names the image."""

    def command(self, sources: Path, target: Path) -> list[str]:
        """The mmdebstrap call: the same as the container's but for the packages."""
        words = [word for word in super().command(sources, target) if not word.startswith("--include=")]
        return [*words[:3], f"--include={','.join(INCLUDED)}", *words[3:]]

    def reference(self) -> str:
        """Name of the image's file."""
        return f"machine-{self.digest()}.img"


def recipe(root: Path) -> MachineRecipe:
    """The recipe as this machine would build it."""
    return MachineRecipe(root / "lab" / "vm" / "node", apt.node_sources(), apt.host_options())


def master_boot_record(boot: bytes, sectors: int) -> bytes:
    """GRUB's first sector with one Linux partition from sector 2048 to the disk's end."""
    if len(boot) != _SECTOR:
        raise LabError(
            f"expected GRUB's boot.img to have {_SECTOR} bytes, found {len(boot)}: the package grub-pc-bin is damaged"
        )
    entry = struct.pack(
        "<B3sB3sII", 0x80, b"\xfe\xff\xff", 0x83, b"\xfe\xff\xff", _FIRST_SECTOR, sectors - _FIRST_SECTOR
    )
    return boot[:440] + struct.pack("<IH", 0x504C424E, 0) + entry + bytes(48) + b"\x55\xaa"


def boot_sectors(boot: bytes, core: bytes, sectors: int) -> bytes:
    """What stands before the partition: boot record and GRUB's core image right behind it."""
    room = (_FIRST_SECTOR - 1) * _SECTOR
    if len(core) > room:
        raise LabError(f"GRUB's core.img has {len(core)} bytes and only {room} are free before the partition")
    return master_boot_record(boot, sectors) + core


def ensure(lab: Lab) -> Path:
    """Build the image unless it is there; its path."""
    made = recipe(lab.root)
    directory = lab.cache / "vm"
    image = directory / made.reference()
    if image.is_file():
        return image
    directory.mkdir(parents=True, exist_ok=True)
    sources, tree, log = directory / f"{RELEASE}.sources", directory / "tree", directory / "build.log"
    partition, partial = directory / "partition.partial", directory / "image.partial"
    write_atomically(sources, made.sources, 0o644)
    say("building the machine's disk image from Debian packages (once; a few minutes)")
    root = sudo()
    _discard(root, tree)
    try:
        run_long(
            [*root, "env", "TMPDIR=/var/tmp", *made.command(sources, tree)], what="building the disk image", log=log
        )
        modules = tree / "boot" / "grub" / "i386-pc"
        boot, core = (modules / "boot.img").read_bytes(), (modules / "core.img").read_bytes()
        with partition.open("wb") as stream:
            stream.truncate(DISK_BYTES - _FIRST_SECTOR * _SECTOR)
        make = [
            which("mke2fs") or "mke2fs",
            "-q",
            "-F",
            "-t",
            "ext4",
            "-O",
            _FEATURES,
            "-U",
            _FILE_SYSTEM_UUID,
            "-L",
            "root",
        ]
        run(
            [*root, *make, "-E", "root_owner=0:0,lazy_itable_init=0", "-d", tree, partition],
            what="making the file system",
        )
        with partial.open("wb") as stream:
            stream.truncate(DISK_BYTES)
            stream.write(boot_sectors(boot, core, DISK_BYTES // _SECTOR))
        copy = ["dd", f"if={partition}", f"of={partial}", "bs=1M", "seek=1", "conv=sparse,notrunc", "status=none"]
        run(copy, what="writing the disk image")
        partial.replace(image)
    finally:
        partition.unlink(missing_ok=True)
        partial.unlink(missing_ok=True)
        _discard(root, tree)
    for old in directory.glob("machine-*.img"):
        if old != image:
            old.unlink()
    return image


def _discard(root: list[str], tree: Path) -> None:
    if not tree.exists():
        return
    if os.geteuid() == 0:
        shutil.rmtree(tree)
    else:
        run([*root, "rm", "-rf", "--one-file-system", "--", tree], what=f"removing {tree}")
