"""Ask the machine's own BMC through `ipmitool`, in-band: needs root, the kernel's IPMI driver and the tool; changes nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .bmc_event_log import ipmi_time, parse_sel, parse_sel_info, with_resolution
from .bmc_ipmi import merge, parse_pairs, parse_sdr, parse_sensor_list

Json = dict[str, Any]
DEVICES = ("dev/ipmi0", "dev/ipmi/0", "dev/ipmidev/0")


class IpmiTool:
    """One `ipmitool`; `run` never raises."""

    def __init__(self, timeout_seconds: float, command: Sequence[str] = ("ipmitool",)) -> None:
        """Take the command, and how long each call may last."""
        self.command = list(command)
        self.timeout_seconds = timeout_seconds

    def run(self, *arguments: str) -> tuple[str, str]:
        """What a call printed, and why that is not all (empty where it is). A call that fails half-way leaves what it had printed."""
        # ipmitool writes dates by LC_TIME and TZ; the SEL is read beside the BMC's clock, so any one zone will do.
        environment = {**os.environ, "LC_ALL": "C", "TZ": "UTC"}
        words = arguments[2:] if arguments[:1] == ("-S",) else arguments
        called = f"`ipmitool {' '.join(words)}`"
        try:
            done = subprocess.run(
                [*self.command, *arguments],
                capture_output=True,
                stdin=subprocess.DEVNULL,
                timeout=self.timeout_seconds,
                env=environment,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            printed = error.stdout or b""
            return printed.decode(
                errors="replace"
            ), f"{called} was still running after {self.timeout_seconds:g} s and was ended"
        except OSError as error:
            return "", f"{called} cannot be started: {error.strerror}"
        output = done.stdout.decode(errors="replace")
        if done.returncode == 0:
            return output, ""
        said = " ".join(done.stderr.decode(errors="replace").split())[:200]
        return output, f"{called} ended with status {done.returncode}{': ' + said if said else ''}"


def obstacle(root: str = "/", command: str = "ipmitool") -> str:
    """Why the machine's BMC cannot be asked in-band, as a reason to skip; empty where it can be."""
    if not any((Path(root) / device).exists() for device in DEVICES):
        return "there is no /dev/ipmi0: the machine has no BMC, or the kernel modules ipmi_si and ipmi_devintf are not loaded"
    if shutil.which(command) is None:
        return (
            "ipmitool is not installed on the node, and no bmc_host is set over whose Redfish the sensors could be read"
        )
    return ""


def observe(tool: IpmiTool, log_entries_maximum: int) -> Json:
    """Sensors and log of the machine in the one form, with `notes` on what could not be read.

    `sensors_error` and `log_error` say why a part is missing as a whole, and are empty where it is not.
    """
    notes: list[str] = []
    with tempfile.TemporaryDirectory(prefix="plumbline-ipmi-") as folder:
        # The description of the sensors is hundreds of records over a slow bus: read once, used three times.
        cache = Path(folder) / "sdr"
        problem = tool.run("sdr", "dump", str(cache))[1]
        cached = ["-S", str(cache)] if not problem and cache.exists() and cache.stat().st_size else []
        measured_text, measured_problem = tool.run(*cached, "sensor")
        described_text, described_problem = tool.run(*cached, "sdr", "elist")
        log_text, log_problem = tool.run(*cached, "sel", "elist")
    sensors = merge(parse_sensor_list(measured_text), parse_sdr(described_text))
    notes += [one for one in (measured_problem, described_problem, log_problem) if one]
    info_text, info_problem = tool.run("sel", "info")
    info = parse_sel_info(info_text)
    clock_text, clock_problem = tool.run("sel", "time", "get")
    version = parse_pairs(tool.run("mc", "info")[0]).get("Firmware Revision", "")
    notes += [one for one in (info_problem, clock_problem) if one]
    date, _, clock = clock_text.strip().partition(" ")
    entries = with_resolution(parse_sel(log_text))
    return {
        "sensors": sensors,
        "sensors_error": "" if sensors else measured_problem or described_problem or "ipmitool listed no sensor",
        "log": entries[-log_entries_maximum:],
        "log_error": log_problem if log_problem and not entries else "",
        "log_service": {
            "name": "SEL",
            "entries": info["entries"],
            "used_fraction": info["used_fraction"],
            "time": ipmi_time(date, clock),
            "uri": "",
        },
        "power_state": "on",
        "firmware_version": version,
        "notes": notes,
    }
