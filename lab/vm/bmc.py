"""The machine's BMC: our Redfish simulator, whose power command acts on QEMU."""

from __future__ import annotations

import base64
import json
import ssl
import time
import urllib.error
import urllib.request

from lab.bmcd import Bmc
from lab.shell import LabError, read
from lab.vm import machine
from lab.vm.powers import GRACE_SECONDS
from lab.vm.settings import VARIABLES

SYSTEM = "/redfish/v1/Systems/Self"


class VmBmc(Bmc):
    """The process that answers Redfish for the machine."""

    port_variable = VARIABLES["bmc_port"]

    def settings(self) -> dict[str, object]:
        """The configuration file's content: the container's, with another machine and its power."""
        return {
            **super().settings(),
            "profile": machine.PROFILE,
            "profile_overrides": machine.OVERRIDES,
            "power_command": [str(self.lab.root / "lab" / "vm" / "power")],
            "power_timeout_seconds": GRACE_SECONDS + 30,
            "console_log": str(self.lab.state / "console.log"),
        }

    def ask(self, path: str, body: dict[str, object] | None = None, method: str = "GET") -> dict[str, object]:
        """One Redfish request; LabError with the BMC's words where it refuses."""
        password = read(self.lab.state / "bmc-password").strip()
        token = base64.b64encode(f"admin:{password}".encode()).decode()
        request = urllib.request.Request(
            f"https://127.0.0.1:{self.lab.bmc_port}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Basic {token}", "Content-Type": "application/json"},
        )
        context = ssl.create_default_context(cafile=str(self.lab.state / "ca.pem"))
        # Past any proxy of the environment: this is loopback.
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        try:
            with opener.open(request, timeout=60) as answer:
                found = json.loads(answer.read() or b"{}")
        except urllib.error.HTTPError as error:
            said = error.read().decode(errors="replace")[:300]
            raise LabError(f"the BMC answered {method} {path} with {error.code}: {said}") from None
        except (OSError, ValueError) as error:
            raise LabError(f"the BMC gave no usable answer to {method} {path}: {error}") from None
        return found if isinstance(found, dict) else {}

    def look(self) -> str:
        """Read the system once, which lets the BMC look at its host; its power state."""
        return str(self.ask(SYSTEM).get("PowerState"))

    def turn_on(self, timeout_seconds: float = 20) -> None:
        """Turn the machine on. A BMC that has just begun may still take it for on, and would have nothing to do."""
        deadline = time.monotonic() + timeout_seconds
        while self.look() != "Off":
            if time.monotonic() > deadline:
                raise LabError(
                    f"the BMC takes the machine for {self.look()}, and it is off: make lab-vm-down, then make lab-vm"
                )
            time.sleep(0.5)
        self.reset("On")

    def reset(self, kind: str) -> None:
        """Ask for a reset, `On` for instance. The BMC does it in the background."""
        self.ask(f"{SYSTEM}/Actions/ComputerSystem.Reset", {"ResetType": kind}, "POST")
