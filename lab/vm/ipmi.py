"""The machine's IPMI controller: OpenIPMI's `ipmi_sim`, which QEMU connects to the guest's system interface.

Its sensors are read from files, one for each, so that a person or a test can heat a DIMM: `echo 95 > lab/.state/vm/ipmi/CPU0_C0D0_Temp`.
Records: IPMI 2.0 specification, table 43-1 (full sensor record).
"""

from __future__ import annotations

import os
import signal
import struct
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.node import require_free_port
from lab.shell import LabError, command_lines, last_line, read, run, say, sudo, write_atomically
from lab.vm.settings import VARIABLES, VmLab

PROGRAM = "ipmi_sim"
_ADDRESS = 0x20
_STOP_SECONDS = 10.0
_START_SECONDS = 10.0
# Entities (table 43-13): processor, power converter, memory device, air inlet, fan, system board.
_CPU, _CONVERTER, _MEMORY, _INLET, _FAN, _BOARD = 0x03, 0x14, 0x20, 0x37, 0x1D, 0x07
_TEMPERATURE, _VOLTAGE, _FAN_SPEED = 0x01, 0x02, 0x04
_UNITS = {_TEMPERATURE: 0x01, _VOLTAGE: 0x04, _FAN_SPEED: 0x12}
# Bit of a threshold in masks, and of its "going low" or "going high" event.
_BITS = {"lnc": 0, "lc": 1, "lnr": 2, "unc": 3, "uc": 4, "unr": 5}
_EVENTS = {"lnc": 0, "lc": 2, "lnr": 4, "unc": 7, "uc": 9, "unr": 11}


@dataclass(frozen=True)
class Sensor:
    """An analog sensor: a reading is ``raw`` x ``multiplier`` x 10^``exponent`` of its unit; thresholds are raw too."""

    label: str
    kind: int
    entity: int
    instance: int
    raw: int
    thresholds: Mapping[str, int]
    multiplier: int = 1
    exponent: int = 0

    def mask(self, bits: Mapping[str, int]) -> int:
        """The thresholds that it has, as bits."""
        return sum(1 << bits[name] for name in self.thresholds)

    def record(self, number: int) -> bytes:
        """Its full sensor record; the repository gives it the record's id."""
        name = self.label.encode("ascii")[:16]
        events, readable = self.mask(_EVENTS), self.mask(_BITS)
        key = struct.pack("<BBB", _ADDRESS, 0, number)
        # Thresholds and hysteresis can be read and set; events are told one by one.
        body = struct.pack("<BBBBBB", self.entity, self.instance, 0x7F, 0x68, self.kind, 0x01)
        body += struct.pack("<HHBB", events, events, readable, readable)
        body += struct.pack("<BBBB", 0x00, _UNITS[self.kind], 0x00, 0x00)
        factor = struct.pack("<BB", self.multiplier & 0xFF, (self.multiplier >> 8 & 0x3) << 6)
        body += factor + struct.pack("<BBBB", 0, 0, 0, (self.exponent & 0xF) << 4)
        body += struct.pack("<BBBBBB", 0x00, self.raw, 0xFF, 0x00, 0xFF, 0x00)
        body += bytes(self.thresholds.get(limit, 0) for limit in ("unr", "uc", "unc", "lnr", "lc", "lnc"))
        body += struct.pack("<BBHBB", 1, 1, 0, 0, 0xC0 | len(name)) + name
        return struct.pack("<HBBB", 0, 0x51, 0x01, len(key + body)) + key + body


def sensors(dimms: Iterable[Mapping[str, Any]], sockets: int) -> list[Sensor]:
    """The sensors of the machine: a temperature for each DIMM, and what its voltage regulators and fans tell."""
    hot = {"unc": 85, "uc": 95, "unr": 105}
    found = [Sensor("Inlet_Temp", _TEMPERATURE, _INLET, 1, 24, {"unc": 40, "uc": 45})]
    for index, part in enumerate(dimms, start=1):
        label = f"{part['DeviceLocator']}_Temp"
        found.append(Sensor(label, _TEMPERATURE, _MEMORY, index, 36 + index % 5, {"unc": 83, "uc": 90}))
    for socket in range(sockets):
        found += [
            Sensor(f"CPU{socket}_Temp", _TEMPERATURE, _CPU, socket + 1, 48 + socket, {"unc": 88, "uc": 93}),
            Sensor(f"CPU{socket}_VRM_Temp", _TEMPERATURE, _CONVERTER, socket + 1, 52 + socket, hot),
            Sensor(f"CPU{socket}_DVRM_Temp", _TEMPERATURE, _CONVERTER, socket + 11, 46 + socket, hot),
            Sensor(f"CPU{socket}_VRM_Volt", _VOLTAGE, _CONVERTER, socket + 1, 180, {"lc": 150, "uc": 200}, 1, -2),
            Sensor(f"CPU{socket}_DVRM_Volt", _VOLTAGE, _CONVERTER, socket + 11, 120, {"lc": 108, "uc": 132}, 1, -2),
        ]
    found.append(Sensor("P12V", _VOLTAGE, _BOARD, 1, 201, {"lc": 180, "uc": 220}, 6, -2))
    found += [
        Sensor(f"FAN{number}", _FAN_SPEED, _FAN, number, 84 + number, {"lc": 10, "lnc": 15}, 100)
        for number in range(1, 5)
    ]
    return found


def configuration(port: int) -> str:
    """`lan.conf`: no LAN, one system interface for QEMU."""
    return f'name "plumbline-vm"\nset_working_mc 0x{_ADDRESS:02x}\n  serial kcs 127.0.0.1 {port} codec VM ipmb 0x{_ADDRESS:02x}\n'


def commands(wanted: Iterable[Sensor], directory: Path) -> str:
    """What `ipmi_sim` does first: a controller with an event log, and every sensor with its limits and its record."""
    lines = [
        f"mc_setbmc 0x{_ADDRESS:02x}",
        # Device, revisions, what it supports (sensors, records, event log, FRU, chassis), manufacturer (Inspur: 37945) and product.
        f"mc_add 0x{_ADDRESS:02x} 0 no-device-sdrs 0x01 4 0x26 0x8f 0x009439 0x5280",
        f"sel_enable 0x{_ADDRESS:02x} 1000 0x0a",
    ]
    for number, sensor in enumerate(wanted, start=1):
        place = f"0x{_ADDRESS:02x} 0 {number}"
        order = ("unr", "uc", "unc", "lnr", "lc", "lnc")
        limits = " ".join(str(sensor.thresholds.get(name, 0)) for name in order)
        events = f"{sensor.mask(_EVENTS):015b}"
        record = " ".join(f"0x{byte:02x}" for byte in sensor.record(number))
        lines += [
            f'sensor_add {place} {sensor.kind} 1 poll 1000 file "{directory / sensor.label}"',
            f"sensor_set_value {place} {sensor.raw} 0",
            f"sensor_set_threshold {place} settable {sensor.mask(_BITS):06b} {limits}",
            f"sensor_set_event_support {place} enable scanning per-state {events} {events} {events} {events}",
            f"main_sdr_add 0x{_ADDRESS:02x} {record}",
        ]
    return "\n".join([*lines, f"mc_enable 0x{_ADDRESS:02x}", ""])


class Ipmi:
    """The controller's process; it lives while the machine is plugged in, as its BMC does."""

    def __init__(self, lab: VmLab) -> None:
        """Nothing is started yet."""
        self.lab = lab
        self.directory = lab.state / "ipmi"

    def pids(self) -> list[int]:
        """Processes that run this machine's controller, by their command line."""
        wanted = ["-c", str(self.directory / "lan.conf")]
        return sorted(pid for pid, words in command_lines() if Path(words[0]).name == PROGRAM and words[1:3] == wanted)

    def up(self, wanted: list[Sensor]) -> None:
        """Bring the controller up with these sensors; a reading that somebody set stays."""
        (self.directory / "state").mkdir(parents=True, exist_ok=True)
        write_atomically(self.directory / "lan.conf", configuration(self.lab.ipmi_port), 0o600)
        write_atomically(self.directory / "sensors.emu", commands(wanted, self.directory), 0o600)
        for sensor in wanted:
            if not (self.directory / sensor.label).exists():
                write_atomically(self.directory / sensor.label, f"{sensor.raw}\n", 0o644)
        if self.pids():
            return
        require_free_port(self.lab.ipmi_port, VARIABLES["ipmi_port"])
        log = self.lab.state / "ipmi.log"
        run(
            (
                *("sh", "-c"),
                'log=$1 && shift && exec setsid --fork "$@" </dev/null >>"$log" 2>&1',
                *("sh", log, PROGRAM, "-c", self.directory / "lan.conf", "-f", self.directory / "sensors.emu"),
                *("-s", self.directory / "state", "-n"),
            ),
            what="starting the IPMI controller",
        )
        deadline = time.monotonic() + _START_SECONDS
        while not self.pids():
            if time.monotonic() > deadline:
                raise LabError(
                    f"the IPMI controller did not start; its last words: {last_line(read(log))} (log: {log})"
                )
            time.sleep(0.1)
        say(f"IPMI controller is up: {len(wanted)} sensors")

    def down(self) -> None:
        """Stop it."""
        deadline = time.monotonic() + _STOP_SECONDS
        while self.pids():
            for pid in self.pids():
                with suppress(ProcessLookupError):
                    try:
                        os.kill(pid, signal.SIGTERM if time.monotonic() < deadline else signal.SIGKILL)
                    except PermissionError:
                        run([*sudo(), "kill", str(pid)], what="stopping the IPMI controller", check=False)
            time.sleep(0.1)
