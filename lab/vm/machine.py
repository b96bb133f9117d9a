"""The machine: which parts it has, and the QEMU command that makes it."""

from __future__ import annotations

import json
import struct
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab.settings import Lab
from lab.shell import read, run, which, write_atomically
from lab.vm import smbios
from lab.vm.links import Card, Link

if TYPE_CHECKING:
    from lab.bmc.profile import Profile

PROGRAM = "qemu-system-x86_64"
# Two sockets of eight channels, DDR4-3200 and PCIe Gen4: the same machine over Redfish and in its own SMBIOS table.
PROFILE = "ieit-nf5280m6"
OVERRIDES: dict[str, Any] = {"memory": {"absent": []}}
ACCELERATORS = ("kvm", "tcg")
MEMORY_MIB = 2048
CPUS = 2
SOCKETS = 2
NIC = Card("nic1", 0x8086, 0x10D3, 0x8086, 0xA01F, Link(16.0, 16))
DRIVE = Card("nvme1", 0x1B36, 0x0010, 0x1AF4, 0x1100, Link(16.0, 4))
CARDS = {card.name: card for card in (NIC, DRIVE)}
# Designation, bus and device of each slot, for the SMBIOS table; the buses are as SeaBIOS numbers them.
SLOTS = (("PCIE1", 0, 4), ("NVME1", 0, 5))
_NVME_BYTES = 64 << 20


def cpu_model(accelerator: str) -> str:
    """A processor that does not say that it is emulated, as on bare metal. Few features make emulation fast."""
    return "host,-hypervisor" if accelerator == "kvm" else "qemu64,+ssse3,+sse4.1,+sse4.2,+popcnt,-hypervisor"


def command(state: Path, ssh_port: int, structures: int, *, accelerator: str, ipmi_port: int) -> list[str]:
    """The QEMU call, for a process whose directory is ``state``. It waits for `cont`: links are set before the firmware looks."""
    half = MEMORY_MIB // 2
    words = [PROGRAM, "-name", "plumbline-vm", "-nodefaults", "-no-user-config", "-display", "none", "-S"]
    # The chassis starts QEMU anew after a reset, so that the machine passes POST: its settings and its tables are read again.
    words += [
        "-no-reboot",
        "-machine",
        "q35,usb=off",
        "-accel",
        accelerator,
        "-cpu",
        cpu_model(accelerator),
        "-m",
        str(MEMORY_MIB),
    ]
    # Slots carry their own numbers, as the board prints them; QEMU's ACPI hotplug would call them 0 and 0-2.
    words += ["-global", "ICH9-LPC.acpi-pci-hotplug-with-bridge-support=off"]
    words += ["-smp", f"{CPUS},sockets={SOCKETS},cores={CPUS // SOCKETS},threads=1"]
    for node in (0, 1):
        words += ["-object", f"memory-backend-ram,id=ram{node},size={half}M"]
        words += ["-numa", f"node,nodeid={node},memdev=ram{node},cpus={node}"]
    for number in range(structures):
        words += ["-smbios", f"file=smbios/{number:02d}.bin"]
    words += [
        "-drive",
        "if=none,id=disk,file=disk.qcow2,format=qcow2,cache=unsafe,discard=unmap",
        "-device",
        "virtio-blk-pci,drive=disk,addr=2",
    ]
    words += [
        "-netdev",
        f"user,id=net,hostfwd=tcp:127.0.0.1:{ssh_port}-:22",
        "-device",
        "virtio-net-pci,netdev=net,addr=3",
    ]
    for index, (card, device) in enumerate(((NIC, "e1000e"), (DRIVE, "nvme")), start=1):
        port = f"pcie-root-port,id=port{index},bus=pcie.0,addr={index + 3},chassis={index},slot={index}"
        words += ["-device", f"{port},x-speed={card.capable.speed_gts:g},x-width={card.capable.width}"]
        if device == "nvme":
            words += ["-drive", "if=none,id=nvme,file=nvme.img,format=raw,cache=unsafe"]
            words += ["-device", f"nvme,bus=port{index},drive=nvme,serial=LABNVME0001"]
        else:
            words += [
                "-netdev",
                "user,id=data,restrict=on",
                "-device",
                f"e1000e,bus=port{index},netdev=data,subsys_ven={card.subsystem_vendor},subsys={card.subsystem}",
            ]
    words += ["-chardev", f"socket,id=ipmi,host=127.0.0.1,port={ipmi_port},reconnect=5"]
    words += ["-device", "ipmi-bmc-extern,id=bmc,chardev=ipmi", "-device", "isa-ipmi-kcs,bmc=bmc"]
    for name, path in (
        ("authorized_keys", "ssh_key.pub"),
        ("ssh_host_key", "ssh_host_key"),
        ("ssh_host_key.pub", "ssh_host_key.pub"),
    ):
        words += ["-fw_cfg", f"name=opt/plumbline/{name},file={path}"]
    words += ["-chardev", "file,id=console,path=console.log,append=on", "-serial", "chardev:console"]
    for name in ("events", "control"):
        words += ["-qmp", f"unix:{name}.sock,server=on,wait=off"]
    return words


def profile() -> Profile:
    """What the BMC says of the machine. Imported here: the simulator needs .venv, and taking the machine down must not."""
    from lab.bmc import profile as profiles  # noqa: PLC0415

    return profiles.load(PROFILE, OVERRIDES)


@dataclass(frozen=True)
class Tables:
    """What the machine's firmware tells the operating system, as files."""

    lab: Lab

    def active_attributes(self) -> tuple[dict[str, Any], str]:
        """The BIOS attributes and the BIOS version that the BMC says the machine runs with; the factory's before the first POST."""
        made = profile()
        factory = {**made.registry.defaults(), **made.initial}
        version = next((str(one["Version"]) for one in made.get("firmware", []) if one["Id"] == "BIOS"), "")
        try:
            known = json.loads(read(self.lab.state / "bmc-state.json"))
            active = known["bios"]["active"]
        except (ValueError, KeyError, TypeError):
            return factory, version
        installed = known.get("firmware", {})
        found = installed.get("BIOS") if isinstance(installed, dict) else None
        return {**factory, **active}, str(found or version)

    def dimms(self) -> list[dict[str, Any]]:
        """The DIMMs of the machine, as Redfish describes them."""
        from lab.bmc.inventory import dimm_parts  # noqa: PLC0415

        return dimm_parts(profile().get("memory", {}))

    def structures(self) -> list[bytes]:
        """The SMBIOS structures of the machine with the settings that it runs with."""
        made = profile()
        memory = made.get("memory", {})
        active, version = self.active_attributes()
        return smbios.table(
            made.data["system"],
            made.get("processors", []),
            self.dimms(),
            speed_limit=memory.get("speed_attribute"),
            active=active,
            bios_version=version,
            slots=SLOTS,
        )

    def write(self) -> int:
        """Write one file for each structure; how many there are."""
        made = self.structures()
        directory = self.lab.state / "smbios"
        directory.mkdir(parents=True, exist_ok=True)
        for number, content in enumerate(made):
            write_atomically(directory / f"{number:02d}.bin", content, 0o644)
        return len(made)


def ensure_disks(state: Path, image: Path) -> None:
    """The machine's own disks: a layer over the image, and a small drive for the NVMe slot."""
    disk, drive = state / "disk.qcow2", state / "nvme.img"
    if not disk.exists():
        make = [
            which("qemu-img") or "qemu-img",
            "create",
            "-q",
            "-f",
            "qcow2",
            "-b",
            str(image),
            "-F",
            "raw",
            str(disk),
        ]
        run(make, what="making the machine's disk")
    if not drive.exists():
        with drive.open("wb") as stream:
            stream.truncate(_NVME_BYTES)


def accelerator_of(lab: Lab) -> str:
    """What `up` found for this machine; emulation where it found nothing."""
    found = read(lab.state / "accelerator").strip()
    return found if found in ACCELERATORS else "tcg"


def accelerator() -> str:
    """`kvm` where a guest really runs under it, else `tcg`. A /dev/kvm that can be opened may still run nothing."""
    program = which(PROGRAM)
    if program is None or not Path("/dev/kvm").exists():
        return "tcg"
    # A boot sector that ends QEMU with status 33 through its exit port: mov al,16; out 0xf4,al; hlt.
    sector = b"\xb0\x10\xe6\xf4\xf4" + bytes(505) + struct.pack("<H", 0xAA55)
    words = [
        "timeout",
        "5",
        program,
        "-accel",
        "kvm",
        "-cpu",
        "host",
        "-m",
        "16",
        "-nodefaults",
        "-display",
        "none",
        "-no-reboot",
    ]
    words += ["-device", "isa-debug-exit,iobase=0xf4,iosize=1"]
    with tempfile.TemporaryDirectory() as directory:
        probe = Path(directory) / "sector.img"
        probe.write_bytes(sector)
        words += ["-drive", f"file={probe},format=raw,if=ide"]
        return "kvm" if run(words, what="trying KVM", check=False).returncode == 33 else "tcg"
