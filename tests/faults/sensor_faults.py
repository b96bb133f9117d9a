"""Faults that the BMC sees: too warm, fans that stand, supplies without a line, dead sensors, entries of the event log."""

# ruff: noqa: E501 (a fault a line reads as a table)

from __future__ import annotations

from typing import Any

from .bench import Alarm, Fault

WARM, POWER, DEAD, LOG = "temperature and fans", "power supply and voltage", "dead sensors", "event log"


def _reading(  # noqa: PLR0917 (columns of a table)
    name: str, sensor: str, value: str, status: str, alarms: tuple[Alarm, ...], says: tuple[str, ...], kind: str = WARM
) -> Fault:
    return Fault(kind, name, "gpu server's BMC", lambda bench: bench.reading(sensor, value, status), alarms, says)


def _state(kind: str, name: str, number: str, text: str, alarms: tuple[Alarm, ...], says: tuple[str, ...]) -> Fault:  # noqa: PLR0917 (columns of a table)
    return Fault(kind, name, "rack server's BMC", lambda bench: bench.state(number, text), alarms, says)


def _event(name: str, text: str, alarms: tuple[Alarm, ...], says: tuple[str, ...]) -> Fault:
    return Fault(LOG, name, "rack server's BMC", lambda bench: bench.event(text), alarms, says)


def faults() -> list[Fault]:
    """All of these kinds."""

    def asked(**options: Any) -> Any:
        return lambda bench: bench.options.update(options)

    def without(*answers: str) -> Any:
        def inject(bench: Any) -> None:
            for answer in answers:
                del bench.answers[answer]

        return inject

    def cold(bench: Any) -> None:
        for sensor in ("CPU1 Temperature", "TR2 Temperature", "TR3 Temperature", "CPU1_DIMMA1_Temp", "Inlet Temp"):
            bench.reading(sensor, "na", "na")

    def full(bench: Any) -> None:
        bench.answers["info"] = bench.answers["info"].replace("4%", "99%")

    def recovered(bench: Any) -> None:
        bench.event("Power Supply #0x85 | Power Supply AC lost | Asserted")
        bench.event("Power Supply #0x85 | Power Supply AC lost | Deasserted")

    critical: Alarm = ("CRITICAL", "sensor_critical", "temperatures")
    fans: tuple[Alarm, ...] = (("CRITICAL", "sensor_critical", "fans"),)
    supplies: tuple[Alarm, ...] = (("CRITICAL", "sensor_critical", "power supplies"),)
    redundancy = supplies
    volts: tuple[Alarm, ...] = (("CRITICAL", "sensor_critical", "voltages and currents"),)
    entry: tuple[Alarm, ...] = (("CRITICAL", "log_critical_entries", "event log"),)
    return [
        _reading("GPU riser beyond its limit", "TR3 Temperature", "96.000", "nr", (critical, ("CRITICAL", "sensor_temperature_margin", "TR3 Temperature")), ("TR3 Temperature 96", "failed fan")),
        _reading("processor beyond its limit", "CPU1 Temperature", "93.000", "cr", (critical, ("CRITICAL", "sensor_temperature_margin", "CPU1 Temperature")), ("CPU1 Temperature 93", "blocked air path")),
        _reading("hot inlet", "Inlet Temp", "41.000", "cr", (critical, ("CRITICAL", "sensor_temperature_margin", "Inlet Temp")), ("Inlet Temp 41", "warm room")),
        _reading("DIMM above its first limit", "CPU1_DIMMA1_Temp", "82.000", "nc", (("WARN", "sensor_warning", "bmc"), ("WARN", "sensor_temperature_margin", "CPU1_DIMMA1_Temp")), ("CPU1_DIMMA1_Temp 82",)),
        _reading("idle and three degrees from critical", "TR3 Temperature", "89.000", "ok", (("WARN", "sensor_temperature_margin", "TR3 Temperature"),), ("89", "critical from 92")),
        _reading("GPU fan that stands", "GPU_FAN1", "0.000", "cr", fans, ("GPU_FAN1 0", "replace the fan")),
        _reading("slow fan", "SYS_FAN1", "510.000", "cr", fans, ("SYS_FAN1 510", "replace the fan")),
        _state(WARM, "fan that stands, without a threshold", "3Ah", "0 RPM", (("WARN", "sensor_fan_standstill", "fans"),), ("Fan3", "stands still while its neighbours turn")),
        _state(WARM, "fan redundancy lost", "78h", "Redundancy Lost", redundancy, ("Fan Redundancy",)),
        _reading("12 V too low", "+12V", "9.900", "cr", volts, ("+12V 9.9", "power supply"), POWER),
        _reading("core voltage too high", "+VCORE0_CPU1", "2.200", "cr", volts, ("+VCORE0_CPU1", "regulator"), POWER),
        _reading("supply beyond its power", "PSU1 Power Out", "2600.000", "cr", volts, ("PSU1 Power Out 2600",), POWER),
        _state(POWER, "supply without its line", "85h", "Presence detected, Power Supply AC lost", supplies, ("Status (10.1)", "AC lost", "cable")),
        _state(POWER, "failed supply", "86h", "Presence detected, Failure detected", supplies, ("Status (10.2)", "cable", "replace")),
        _state(POWER, "supply redundancy lost", "77h", "Redundancy Lost", redundancy, ("PS Redundancy",)),
        Fault(DEAD, "a required sensor that is silent", "gpu server's BMC", asked(required=["CPU2 Temperature"]), (("CRITICAL", "sensor_dead", "bmc"),), ("CPU2 Temperature", "no reading")),
        Fault(DEAD, "a required sensor that is not there", "gpu server's BMC", asked(required=["GPU_FAN9"]), (("CRITICAL", "sensor_dead", "bmc"),), ("GPU_FAN9", "lists none of that name")),
        Fault(DEAD, "a sensor that had a reading before", "gpu server's BMC", asked(known=["CPU1 Temperature", "CPU2 Temperature"]), (("WARN", "sensor_lost", "bmc"),), ("CPU2 Temperature had a reading in an earlier survey",)),
        Fault(DEAD, "no temperature at all", "gpu server's BMC", cold, (("UNKNOWN", "sensor_readings", "bmc"),), ("none of the", "tells a temperature", "mc reset cold")),
        Fault(DEAD, "a BMC that lists nothing", "rack server's BMC", without("described", "measured"), (("UNKNOWN", "sensor_readings", "bmc"),), ("Unable to establish the session", "ipmitool")),
        _event("uncorrectable memory error", "Memory #0xCA | Uncorrectable ECC | Asserted", entry, ("Uncorrectable ECC", "sel")),
        _event("processor too hot", "Processor #0x81 | Thermal Trip | Asserted", entry, ("Thermal Trip",)),
        _event("failed power supply", "Power Supply #0x86 | Failure detected | Asserted", entry, ("Failure detected",)),
        Fault(LOG, "a line that was lost and came back", "rack server's BMC", recovered, (("WARN", "log_recovered_entries", "event log"),), ("AC lost", "ended")),
        Fault(LOG, "a log that is full", "rack server's BMC", full, (("WARN", "log_used", "event log"),), ("leaves no trace", "ipmitool sel")),
        Fault(LOG, "a log that cannot be read", "rack server's BMC", without("log"), (("UNKNOWN", "log_critical_entries", "event log"),), ("sel elist", "Unable to establish")),
    ]  # fmt: skip
