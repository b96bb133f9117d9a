"""What the commands do with the whole virtual machine: up, down, clean, status, link."""

from __future__ import annotations

import time
from pathlib import Path

from lab import credentials, masters
from lab.bmcd import Bmc
from lab.lifecycle import remove_tree
from lab.node import require_free_port
from lab.packages import machine_needs, require
from lab.shell import LabError, read, run, say, sudo, write_atomically
from lab.vm import image, links, machine, powers, settings
from lab.vm.access import Access
from lab.vm.bmc import VmBmc
from lab.vm.ipmi import Ipmi, sensors
from lab.vm.settings import VARIABLES, VmLab

BOOT_SECONDS = 900.0


def up(lab: VmLab) -> None:
    """Bring everything up that is not; what is up is left alone."""
    from lab import tls  # noqa: PLC0415

    require(machine_needs())
    (lab.root / "lab" / ".state").mkdir(parents=True, exist_ok=True)
    (lab.root / "lab" / ".state").chmod(0o700)
    lab.ensure_state()
    _refuse_other_ports(lab)
    access = Access(lab)
    lab.write_record(
        {
            "ipmi_port": lab.ipmi_port,
            "known_hosts": str(access.known_hosts),
            "ssh_key": str(access.key),
            "ca_file": str(lab.state / "ca.pem"),
            "container": lab.container,
            "control_path_dir": str(masters.directory(lab)),
        }
    )
    password = credentials.ensure_secret(lab.state / "bmc-password")
    credentials.ensure_vault(lab, password, credentials.ensure_secret(lab.state / "api-key"))
    access.ensure_keys()
    renewed = tls.ensure(lab.state)
    machine.ensure_disks(lab.state, _base_image(lab))
    if not powers.running(lab):
        require_free_port(lab.ssh_port, VARIABLES["ssh_port"])
        write_atomically(lab.state / "accelerator", f"{machine.accelerator()}\n", 0o644)
    Ipmi(lab).up(sensors(machine.Tables(lab).dimms(), machine.SOCKETS))
    bmc = VmBmc(lab)
    bmc.up(renewed=renewed)
    if not powers.running(lab):
        powers.warn_of_emulation(lab)
        say("turning the machine on, through its BMC")
        bmc.turn_on()
    started = time.monotonic()
    access.wait(BOOT_SECONDS, lambda: powers.chassis_pid(lab) is not None)
    say(f"the machine answers on 127.0.0.1:{lab.ssh_port} ({time.monotonic() - started:.0f} s)")


def _base_image(lab: VmLab) -> Path:
    """The image that the machine's disk is a layer over; a machine without a disk, or without that image, begins with a new one."""
    disk, noted = lab.state / "disk.qcow2", lab.state / "image"
    base = Path(read(noted).strip() or "/nowhere")
    if disk.exists() and base.is_file():
        if base.name != image.recipe(lab.root).reference():
            say("note: the machine was made from another version of its image; make clean and make lab-vm renew it")
        return base
    if disk.exists():
        say("the image that the machine was made from is gone: it begins with a new disk")
        disk.unlink()
    base = image.ensure(lab)
    write_atomically(noted, f"{base}\n", 0o644)
    return base


def _refuse_other_ports(lab: VmLab) -> None:
    was = settings.load(lab.root, {}, recorded_first=True)
    if powers.chassis_pid(was) is not None and was != lab:
        raise LabError(
            f"the machine runs with the ports {was.ssh_port} (SSH), {was.bmc_port} (BMC) and {was.ipmi_port} (IPMI), asked for "
            f"{lab.ssh_port}, {lab.bmc_port} and {lab.ipmi_port}: run make lab-vm-down first"
        )


def off(lab: VmLab) -> None:
    """Take the machine's power away; as root, since its BMC turned it on as root."""
    if powers.chassis_pid(lab) is not None:
        run([*sudo(), lab.root / "lab" / "vm" / "power", "off"], what="turning the machine off")


def down(lab: VmLab) -> None:
    """Nothing runs any more; the machine keeps its disk and its BMC's memory."""
    masters.end(lab)
    # The BMC first: it must not take the end of the machine for an accident that it has to mend.
    Bmc.down(VmBmc(lab))
    off(lab)
    Ipmi(lab).down()


def clean(lab: VmLab) -> None:
    """Down, and the machine is gone: disks, firmware settings, links. Keys, image and certificates stay."""
    down(lab)
    if not lab.state.is_dir():
        return
    gone = [
        "disk.qcow2",
        "nvme.img",
        "smbios",
        "links.json",
        "console.log",
        "console.log.1",
        "ipmi",
        "accelerator",
        "image",
        "bmc.started-with",
    ]
    names = [*(lab.state / name for name in gone), *lab.state.glob("bmc-state*"), *lab.state.glob("*.sock")]
    for path in names:
        if path.is_dir():
            remove_tree(path)
        else:
            path.unlink(missing_ok=True)
    lab.record.unlink(missing_ok=True)


def status(lab: VmLab) -> None:
    """Say what runs."""
    if not lab.record.exists():
        raise LabError("there is no virtual machine: run make lab-vm")
    found = powers.running(lab)
    state = "off" if not found else "in POST" if not found.get("qemu") else "on"
    print(f"machine {lab.name}: {state} ({machine.accelerator_of(lab)}), SSH on 127.0.0.1:{lab.ssh_port}")
    print(
        f"BMC https://127.0.0.1:{lab.bmc_port}/redfish/v1/: {'answers' if VmBmc(lab).answers() else 'does not answer'}"
    )
    for name, link in links.wanted(lab.state, machine.CARDS).items():
        print(f"link of {name}: {link} (can do {machine.CARDS[name].capable})")


def link(lab: VmLab, name: str, wanted: str) -> str:
    """Let a card's link run at ``wanted`` (`full`, or such as `8x4`), now and after every start."""
    if name not in machine.CARDS:
        raise LabError(f"expected one of the cards {', '.join(machine.CARDS)}, found '{name}'")
    card = machine.CARDS[name]
    trained = card.capable if wanted == "full" else links.parse(wanted)
    links.check(card, trained)
    links.keep(lab.state, name, trained)
    pid = powers.running(lab).get("qemu")
    if pid:
        links.train(int(pid), card, trained)
    return f"link of {name}: {trained} (can do {card.capable})" + (
        "" if pid else "; the machine is off and will have it when it is on"
    )
