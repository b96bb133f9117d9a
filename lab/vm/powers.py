"""Power of the virtual machine: what its BMC calls, and a person may."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from lab.shell import LabError, last_line, read, run, say
from lab.vm import machine
from lab.vm.qmp import Qmp
from lab.vm.settings import VmLab

START_SECONDS = 60.0
STOP_SECONDS = 30.0
# Under emulation on a busy machine a shutdown takes minutes; who asks decides when to stop being graceful.
GRACE_SECONDS = 240.0


def chassis_pid(lab: VmLab) -> int | None:
    """The process that holds the machine; None where the machine is off."""
    text = read(lab.state / "chassis.pid").strip()
    if not text.isdigit():
        return None
    try:
        words = Path(f"/proc/{text}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return None
    return int(text) if words[1:4] == ["-m", "lab.vm.chassis", str(lab.root)] else None


def running(lab: VmLab) -> dict[str, Any]:
    """What the chassis notes of the running machine: `boot`, and `qemu` (0 during POST); empty while it is off or just begins."""
    try:
        found = json.loads(read(lab.state / "power.json"))
    except ValueError:
        return {}
    return found if isinstance(found, dict) and chassis_pid(lab) else {}


def described(lab: VmLab) -> str:
    """``off``, or ``on`` and an identity of this start, by which the BMC notices a machine that restarted by itself."""
    found = running(lab)
    return f"on {found['boot']}" if found else "off"


def turn_on(lab: VmLab) -> None:
    """Start the chassis and wait until the machine runs."""
    log = lab.state / "chassis.log"
    if (lab.state / "console.log").exists():
        (lab.state / "console.log").replace(lab.state / "console.log.1")
    run(
        (
            *("env", "PYTHONDONTWRITEBYTECODE=1", "sh", "-c"),
            'cd "$1" && log=$2 && shift 2 && exec setsid --fork "$@" </dev/null >>"$log" 2>&1',
            *("sh", lab.root, log),
            *(sys.executable, "-m", "lab.vm.chassis", lab.root, machine.accelerator_of(lab)),
        ),
        what="starting the machine",
    )
    deadline = time.monotonic() + START_SECONDS
    seen = False
    while not running(lab):
        alive = chassis_pid(lab) is not None
        if time.monotonic() > deadline or (seen and not alive):
            raise LabError(f"the machine did not start; its last words: {last_line(read(log))} (log: {log})")
        seen = seen or alive
        time.sleep(0.1)


def turn_off(lab: VmLab) -> None:
    """Take the power away."""
    pid = chassis_pid(lab)
    deadline = time.monotonic() + STOP_SECONDS
    while pid is not None and chassis_pid(lab) == pid:
        if time.monotonic() > deadline:
            raise LabError(f"the machine (process {pid}) does not end: stop it by hand with kill -9 {pid}")
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        time.sleep(0.3)


def shut_down(lab: VmLab) -> None:
    """Press the power button and wait until the operating system has shut down."""
    with Qmp(lab.state / "control.sock") as qmp:
        qmp.call("system_powerdown")
    deadline = time.monotonic() + GRACE_SECONDS
    while chassis_pid(lab) is not None:
        if time.monotonic() > deadline:
            raise LabError(f"the operating system did not shut down within {GRACE_SECONDS:.0f} s of the power button")
        time.sleep(0.5)


def power(lab: VmLab, action: str) -> str:
    """Do it and return the power state afterwards. Like a real chassis, on when on and off when off change nothing."""
    is_on = chassis_pid(lab) is not None
    if action == "graceful-off" and is_on:
        shut_down(lab)
    elif action in {"off", "cycle"} and is_on:
        turn_off(lab)
    if action == "cycle" or (action == "on" and not is_on):
        if not (lab.state / "disk.qcow2").exists():
            raise LabError("there is no virtual machine: run make lab-vm")
        turn_on(lab)
    return described(lab)


def warn_of_emulation(lab: VmLab) -> None:
    """A person who waits wants to know why."""
    if machine.accelerator_of(lab) == "tcg":
        say("no usable KVM here: the processor is emulated, and the machine takes a minute or more to boot")
