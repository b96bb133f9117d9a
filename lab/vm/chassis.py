"""The machine's chassis: the process that holds QEMU while the machine has power.

    python -m lab.vm.chassis ROOT ACCELERATOR

It starts QEMU, lets the cards' links train, and starts QEMU anew when the guest resets, since a reset passes POST: the BMC
applies its pending settings then, and the machine's tables are made from what became active. It ends when the machine is off.
SIGTERM takes the power away.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from lab.shell import LabError, environment, last_line, read, write_atomically
from lab.vm import links, machine, settings
from lab.vm.bmc import VmBmc
from lab.vm.qmp import Qmp, QmpClosedError

NICENESS = 15
END_SECONDS = 10.0


class Chassis:
    """One machine under power."""

    def __init__(self, lab: settings.VmLab, accelerator: str) -> None:
        """Nothing is started yet."""
        self.lab = lab
        self.accelerator = accelerator
        self.process: subprocess.Popen[bytes] | None = None
        self.wants_off = False

    def run(self) -> None:
        """Until the machine is off."""
        while True:
            reason = self.boot()
            say(f"the machine stopped ({reason})")
            if reason != "guest-reset" or self.wants_off:
                return
            self.pass_post()
            if self.wants_off:
                return

    def boot(self) -> str:
        """Start QEMU and wait until it ends; why it ended, in QEMU's words."""
        state = self.lab.state
        for name in ("events", "control"):
            (state / f"{name}.sock").unlink(missing_ok=True)
        count = machine.Tables(self.lab).write()
        words = machine.command(
            state, self.lab.ssh_port, count, accelerator=self.accelerator, ipmi_port=self.lab.ipmi_port
        )
        self.process = subprocess.Popen(
            ["nice", "-n", str(NICENESS), *words], cwd=state, stdin=subprocess.DEVNULL, env=environment()
        )
        try:
            with Qmp(state / "events.sock", alive=self.alive) as qmp:
                for name, link in links.wanted(self.lab.state, machine.CARDS).items():
                    links.train(self.process.pid, machine.CARDS[name], link)
                qmp.call("cont")
                self.note()
                say("the machine runs")
                return self.watch(qmp)
        except QmpClosedError:
            # What it said stands above in this log.
            raise LabError(
                f"QEMU ended before the machine ran: {last_line(read(self.lab.state / 'chassis.log'))}"
            ) from None
        finally:
            self.end()

    def alive(self) -> bool:
        """Whether QEMU runs."""
        return self.process is not None and self.process.poll() is None

    def note(self) -> None:
        """Say that the machine runs, and since when: the start's identity, by which the BMC notices a restart."""
        content = {"boot": f"{time.time():.3f}", "qemu": self.process.pid if self.process else 0}
        write_atomically(self.lab.state / "power.json", json.dumps(content) + "\n", 0o644)

    def watch(self, qmp: Qmp) -> str:
        """Wait for the end of the machine."""
        reason = "ended"
        while self.alive():
            try:
                event = qmp.event(1.0)
            except QmpClosedError:
                return reason
            if event is not None and event["event"] == "SHUTDOWN":
                reason = str(event.get("data", {}).get("reason", reason))
            if self.wants_off:
                return "host-off"
        return reason

    def end(self) -> None:
        """QEMU does not outlive its chassis."""
        if self.process is None:
            return
        with suppress(subprocess.TimeoutExpired):
            if self.wants_off:
                self.process.terminate()
            self.process.wait(END_SECONDS)
        if self.alive():
            self.process.kill()
            self.process.wait()
        self.process = None

    def pass_post(self) -> None:
        """Tell the BMC that the machine has begun a new boot, as a real one does by its POST codes, and let it apply what waits."""
        self.note()
        # The BMC asks at most once a second.
        time.sleep(1.2)
        try:
            VmBmc(self.lab).look()
        except LabError as error:
            say(f"the BMC was not told of the reset: {error}")

    def on_signal(self, number: int, _: object) -> None:
        """SIGTERM: off."""
        if number == signal.SIGTERM:
            self.wants_off = True
            if self.process is not None:
                self.process.terminate()


def say(text: str) -> None:
    """A line for the chassis' log."""
    print(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {text}", flush=True)


def main() -> int:
    """Hold the machine; a failure is one line in the log."""
    lab = settings.load(Path(sys.argv[1]), {}, recorded_first=True)
    chassis = Chassis(lab, sys.argv[2])
    signal.signal(signal.SIGTERM, chassis.on_signal)
    write_atomically(lab.state / "chassis.pid", f"{os.getpid()}\n", 0o644)
    try:
        chassis.run()
    except (LabError, OSError) as error:
        say(str(error))
        return 1
    finally:
        (lab.state / "power.json").unlink(missing_ok=True)
        (lab.state / "chassis.pid").unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
