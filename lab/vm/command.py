"""`python -m lab vm ...`: the command line of the virtual bare metal."""

from __future__ import annotations

import argparse
import fcntl
import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from lab.shell import LabError, say
from lab.vm import settings

if TYPE_CHECKING:
    from lab.vm.settings import VmLab

# Here, so that building the command line imports nothing that needs the virtual environment.
POWER_ACTIONS = ("on", "off", "cycle", "graceful-off", "status")


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand `vm` to the lab's command line."""
    vm = commands.add_parser(
        "vm", help="the virtual bare metal: a QEMU machine with DIMMs, links, a boot loader and a BMC"
    )
    actions = vm.add_subparsers(dest="vm_command", required=True, metavar="COMMAND")
    actions.add_parser("up", help="build its image where it is missing, and turn it on through its BMC")
    actions.add_parser("down", help="nothing runs any more; the machine keeps its disk")
    actions.add_parser("clean", help="down, and the machine is gone; its image stays")
    actions.add_parser("status", help="say what runs")
    actions.add_parser("console", help="print the console since the machine was turned on")
    switch = actions.add_parser("power", help="its power, past the BMC's own ways")
    switch.add_argument("action", choices=POWER_ACTIONS)
    train = actions.add_parser("link", help="let a card's PCIe link train to less than it can do")
    train.add_argument("card", help="nic1 or nvme1")
    train.add_argument("link", help="SPEEDxWIDTH such as 8x4, or full")
    shell = actions.add_parser("shell", help="a shell on it, or one command there as root")
    shell.add_argument("words", nargs="*", metavar="-- COMMAND")


@contextmanager
def _locked(lab: VmLab) -> Iterator[None]:
    """One command that changes the machine at a time. Not `power`, which the BMC calls while `up` waits."""
    directory = lab.root / "lab" / ".state"
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "vm.lock").open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another command of this virtual machine to end")
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def dispatch(root: Path, options: argparse.Namespace) -> None:
    """Do what the command line asks for."""
    try:
        _dispatch(root, options)
    except ModuleNotFoundError as error:
        raise LabError(
            f"this needs .venv (no {error.name} here): run make venv, then .venv/bin/python -m lab vm {options.vm_command}"
        ) from None


def _dispatch(root: Path, options: argparse.Namespace) -> None:
    from lab.vm import lifecycle, powers  # noqa: PLC0415
    from lab.vm.access import Access  # noqa: PLC0415

    command = options.vm_command
    lab = settings.load(root, recorded_first=command != "up")
    if command in {"up", "down", "clean"}:
        with _locked(lab):
            getattr(lifecycle, command)(lab)
    elif command == "power":
        print(powers.power(lab, options.action))
    elif command == "link":
        print(lifecycle.link(lab, options.card, options.link))
    elif command == "console":
        if not (lab.state / "console.log").exists():
            raise LabError("there is no console yet: run make lab-vm")
        print((lab.state / "console.log").read_text(errors="replace"), end="")
    elif command == "shell":
        words = ["sudo", "-n", "--", *options.words] if options.words else []
        ssh = Access(lab).ssh_command(shlex.join(words), terminal=not words)
        os.execvp(ssh[0], ssh)  # noqa: S606
    else:
        lifecycle.status(lab)


def take_down(root: Path, *, forget: bool) -> None:
    """Remove the machine where there is one, and with ``forget`` its vault; works without the virtual environment."""
    lab = settings.load(root, {}, recorded_first=True)
    if forget:
        lab.vault_file.unlink(missing_ok=True)
    if not lab.record.exists():
        return
    from lab.vm import lifecycle  # noqa: PLC0415

    with _locked(lab):
        lifecycle.clean(lab)
