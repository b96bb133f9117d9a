"""SSH to the machine: the lab's own way to its node, with other patience."""

from __future__ import annotations

import time
from collections.abc import Callable

from lab.node import Node
from lab.podman import Podman
from lab.shell import LabError, last_line, run, say
from lab.vm.settings import VmLab

_BEAT_SECONDS = 30.0


class Access(Node):
    """Keys, known hosts and commands are the node's; nothing of the container is used."""

    def __init__(self, lab: VmLab) -> None:
        """Nothing is made yet."""
        super().__init__(lab, Podman(lab))

    def wait(self, timeout_seconds: float, is_on: Callable[[], bool]) -> None:
        """Wait until a command runs on the machine; a machine that went off, or does not boot, is an error with its console."""
        begun = time.monotonic()
        beat = begun + _BEAT_SECONDS
        while True:
            done = run(self.ssh_command("true"), what="reaching the machine by SSH", check=False)
            if done.returncode == 0:
                return
            now = time.monotonic()
            late = now - begun > timeout_seconds
            # The BMC needs a moment to turn it on.
            if late or (now - begun > _BEAT_SECONDS and not is_on()):
                why = (
                    f"does not answer SSH after {now - begun:.0f} s ({last_line(done.stderr)})" if late else "went off"
                )
                raise LabError(
                    f"the virtual machine {why}: look at {self.lab.state / 'console.log'} and {self.lab.state / 'chassis.log'}, "
                    "then make lab-vm-down and make lab-vm"
                )
            if now > beat:
                beat += _BEAT_SECONDS
                say(f"the machine boots: {now - begun:.0f} s so far")
            time.sleep(1)
