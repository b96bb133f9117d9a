"""Memory bandwidth that is measured and is not what the DIMMs allow, or that could not be measured."""

# ruff: noqa: E501 (a fault a line reads as a table)

from __future__ import annotations

from typing import Any

from .bench import Alarm, Fault

KIND = "memory bandwidth"


def faults() -> list[Fault]:
    """All of this kind."""

    def passes(*shares: float) -> Any:
        return lambda bench: setattr(bench, "shares", list(shares))

    def told(**values: str) -> Any:
        return lambda bench: bench.told.update(values)

    def alarm(status: str) -> tuple[Alarm, ...]:
        return ((status, "host_memory_bandwidth", "node"),)

    bad, poor, unknown = alarm("CRITICAL"), alarm("WARN"), alarm("UNKNOWN")
    return [
        Fault(KIND, "half of what the DIMMs allow", "bandwidth", passes(*[0.5] * 6), bad, ("245.8 GB/s, 60 % of the limit", "look at the BIOS", "dmidecode")),
        Fault(KIND, "a little less than good machines reach", "bandwidth", passes(*[0.65] * 6), poor, ("margin that is wanted", "throttles")),
        Fault(KIND, "good only now and then", "bandwidth", passes(0.8, 0.4, 0.4, 0.8, 0.4, 0.4), bad, ("repeats pass", "look at the BIOS")),
        Fault(KIND, "more than the DIMMs can carry", "bandwidth", passes(*[1.3] * 6), unknown, ("either the limit or the measurement is wrong",)),
        Fault(KIND, "results that are wrong", "bandwidth", told(WRONG="3"), unknown, ("memory or the processor computes wrongly",)),
        Fault(KIND, "fewer threads than processors", "bandwidth", told(FEWER="1"), unknown, ("a limit on processes",)),
        Fault(KIND, "a program that ends without a result", "bandwidth", told(CRASH="yes"), unknown, ("bus error",)),
    ]  # fmt: skip
