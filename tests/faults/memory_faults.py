"""Faults of memory: DIMMs gone, slowed, unlike, without ECC; tables that are cut; error counters that rose."""

# ruff: noqa: E501 (a fault a line reads as a table)

from __future__ import annotations

from typing import Any

from .bench import Alarm, Fault

GONE, SPEED, UNLIKE, COUNTED = "DIMM gone", "DIMM speed", "DIMMs unlike", "memory errors"
_LOOK = "dmidecode -t memory"
_SPEEDS = {"icx": 3200, "spr": 4800}
_BALANCE_NODE: Alarm = ("WARN", "dimm_balance", "node")


def _population(socket: int, status: str = "CRITICAL") -> Alarm:
    return (status, "dimm_population", f"socket{socket}")


def _taken(machine: str, index: int) -> Fault:
    socket, letter = divmod(index, 8)
    speed = _SPEEDS[machine]
    limit = f"limit {7 * speed * 8e-3:.1f} of {8 * speed * 8e-3:.1f} GB/s"
    name = f"P{socket + 1}-DIMM{'ABCDEFGH'[letter]}1"
    says = (f"socket {socket}: 7 of 8 channels populated ({'ABCDEFGH'[letter]} empty): {limit}", _LOOK)
    return Fault(
        GONE,
        f"{machine}: {name} taken out",
        machine,
        lambda bench: bench.take_out(index),
        (_population(socket), _BALANCE_NODE),
        says,
    )


def _gone() -> list[Fault]:
    def without_entry(*places: int) -> Any:
        def inject(bench: Any) -> None:
            for structure in [bench.fitted()[place] for place in places]:
                bench.structures.remove(structure)

        return inject

    def out(*places: int) -> Any:
        return lambda bench: bench.take_out(*places)

    def persistent(bench: Any) -> None:
        bench.fitted()[2].put("B", 0x28, 7)

    def mapped_out(bench: Any) -> None:
        bench.put("/proc/meminfo", f"MemTotal:       {15 * 16 * 1024 * 1024} kB")

    def half(bench: Any) -> None:
        bench.put("/proc/meminfo", f"MemTotal:       {8 * 16 * 1024 * 1024} kB")

    unread: tuple[Alarm, ...] = tuple(
        ("UNKNOWN", name, "node") for name in ("dimm_population", "dimm_configured_speed")
    )
    return [
        *[_taken(machine, index) for machine in ("icx", "spr") for index in range(16)],
        Fault(
            GONE, "as the issue tells it: C and G of socket 1", "icx", out(8 + 2, 8 + 6), (_population(1), _BALANCE_NODE),
            ("socket 1: 6 of 8 channels populated (C, G empty): limit 153.6 of 204.8 GB/s", _LOOK),
        ),
        Fault(GONE, "half of a socket's channels", "icx", out(0, 2, 4, 6), (_population(0), _BALANCE_NODE), ("4 of 8 channels populated (A, C, E, G empty): limit 102.4 of 204.8 GB/s",)),
        Fault(GONE, "one channel on each socket", "icx", out(0, 8), (_population(0), _population(1)), ("socket 0: 7 of 8 channels populated (A empty)",)),
        Fault(GONE, "all but one of a socket", "spr", out(*range(1, 8)), (_population(0), ("CRITICAL", "dimm_balance", "node")), ("socket 0: 1 of 8 channels populated", "limit 38.4 of 307.2 GB/s")),
        Fault(GONE, "a whole socket's memory", "icx", out(*range(8, 16)), (_population(1), ("CRITICAL", "dimm_balance", "node")), ("socket 1: 0 of 8 channels populated",)),
        *[
            Fault(GONE, f"DIMM {place} with its entry in the table", "icx", without_entry(place), (_population(place // 8), _BALANCE_NODE), ("7 of 8 channels populated",))
            for place in (0, 5, 15)
        ],
        Fault(GONE, "Dell: B3 taken out", "m630", out(6), (_population(1), _BALANCE_NODE), ("socket 1: 3 of 4 channels populated (3 empty)", _LOOK)),
        Fault(GONE, "persistent memory where DRAM belongs", "icx", persistent, (_population(0),), ("socket 0: 7 of 8 channels populated (C empty)",)),
        Fault(GONE, "a DIMM that the firmware mapped out", "icx", mapped_out, (("WARN", "memory_visible", "node"),), ("256 GiB", "the kernel has 240", "mapped out", "dmesg")),
        Fault(GONE, "half of the memory kept from the kernel", "icx", half, (("WARN", "memory_visible", "node"),), ("the kernel has 128", "mirroring")),
        Fault(GONE, "a table that ends in the middle of the slots", "icx", lambda bench: setattr(bench, "cut", 1500), unread, ("the SMBIOS table is cut off", "DIMMs beyond that are unknown", _LOOK)),
        Fault(GONE, "a table without a single slot", "icx", lambda bench: setattr(bench, "cut", 40), unread, ("type 17", _LOOK)),
    ]  # fmt: skip


def _slowed(machine: str, index: int, speed: int, status: str) -> Fault:
    name = f"P{index // 8 + 1}-DIMM{'ABCDEFGH'[index % 8]}1"
    rated = _SPEEDS[machine]
    return Fault(
        SPEED, f"{machine}: {name} at {speed}", machine, lambda bench: bench.rate(index, configured=speed),
        ((status, "dimm_configured_speed", name),), (f"DIMM {name} is rated {rated} MT/s and runs at {speed}", "BIOS setting", _LOOK),
    )  # fmt: skip


def _speeds() -> list[Fault]:
    def issue(bench: Any) -> None:
        bench.fitted()[1].strings[bench.fitted()[1].data[0x10] - 1] = "B1"
        bench.rate(1, configured=2666)

    def all_at(speed: int) -> Any:
        return lambda bench: bench.rate(*range(16), configured=speed)

    def slower_module(bench: Any) -> None:
        bench.rate(*range(16), configured=2933)
        bench.rate(5, rated=2933)

    def silent(bench: Any) -> None:
        bench.rate(3, configured=0)

    def clock(bench: Any) -> None:
        bench.rate(*range(16), configured=1600)
        bench.rate(4, configured=1333)

    everyone: tuple[Alarm, ...] = (("WARN", "dimm_configured_speed", "node"),)
    return [
        Fault(SPEED, "as the issue tells it: B1", "icx", issue, (("WARN", "dimm_configured_speed", "B1"),), ("DIMM B1 is rated 3200 MT/s and runs at 2666",)),
        *[_slowed("icx", index, 2666, "WARN") for index in (0, 3, 7, 12)],
        *[_slowed("icx", index, 2133, "CRITICAL") for index in (6, 15)],
        *[_slowed("spr", index, 4400, "WARN") for index in (2, 9)],
        _slowed("spr", 11, 3200, "CRITICAL"),
        Fault(SPEED, "all DIMMs at 2933 of 3200", "icx", all_at(2933), everyone, ("P1-DIMMA1", "and 12 more are rated 3200 MT/s and run at 2933", "BIOS setting")),
        Fault(SPEED, "all DIMMs at 3600 of 4800", "spr", all_at(3600), everyone, ("rated 4800 MT/s and run at 3600",)),
        Fault(SPEED, "one slower module holds all others back", "icx", slower_module, (("WARN", "dimm_configured_speed", "P1-DIMMA1, P1-DIMMB1, P1-DIMMC1, P1-DIMMD1 and 11 more"),), ("the slower DIMM P1-DIMMF1 holds the others back",)),
        Fault(SPEED, "a DIMM that tells no speed of its own", "icx", silent, (("UNKNOWN", "dimm_configured_speed", "P1-DIMMD1"),), ("P1-DIMMD1: no configured speed", "may have switched this one off")),
        Fault(SPEED, "a slowed DIMM where the firmware tells clocks", "icx", clock, (("WARN", "dimm_configured_speed", "P1-DIMME1"),), ("rated 3200 MT/s and runs at 2666",)),
    ]  # fmt: skip


def _unlike() -> list[Fault]:
    def widths(total: int) -> Any:
        return lambda bench: bench.fitted()[9].put("H", 8, total)

    def ecc_off(bench: Any) -> None:
        for array in bench.arrays():
            array.put("B", 6, 3)

    half: tuple[Alarm, ...] = (("WARN", "dimm_balance", "socket0"), _BALANCE_NODE)
    return [
        Fault(UNLIKE, "one DIMM of half the size", "icx", lambda bench: bench.resize(8 << 10, 3), half, ("socket 0", "8 to 16 GiB", "interleaved")),
        Fault(UNLIKE, "one DIMM of a quarter", "icx", lambda bench: bench.resize(4 << 10, 3), (("CRITICAL", "dimm_balance", "socket0"), _BALANCE_NODE), ("4 to 16 GiB",)),
        Fault(UNLIKE, "large DIMMs on one socket", "icx", lambda bench: bench.resize(24 << 10, *range(8)), (_BALANCE_NODE,), ("socket 0 192 GiB, socket 1 128 GiB", _LOOK)),
        Fault(UNLIKE, "two sizes swapped between channels of both sockets", "icx", lambda bench: bench.resize(8 << 10, 1, 10), (("WARN", "dimm_balance", "socket0"), ("WARN", "dimm_balance", "socket1")), ("8 to 16 GiB",)),
        Fault(UNLIKE, "a DIMM without check bits among others", "icx", widths(64), (("WARN", "dimm_ecc", "node"),), ("P2-DIMMB1", "no check bits")),
        Fault(UNLIKE, "ECC switched off in the BIOS", "m630", ecc_off, (("WARN", "dimm_ecc", "node"),), ("switch ECC on", _LOOK)),
    ]  # fmt: skip


def _counters() -> list[Fault]:
    def counts(index: int, **values: int) -> Any:
        return lambda bench: bench.controller(index, **values)

    def unreadable(bench: Any) -> None:
        bench.put("/sys/devices/system/edac/mc/mc2/ue_count", "?")

    uncorrected, corrected = ("CRITICAL", "edac_uncorrectable_errors"), ("WARN", "edac_correctable_errors")
    where = "CPU_SrcID#0_MC#1_Chan#0_DIMM#0"
    return [
        Fault(COUNTED, "one uncorrected error", "icx", counts(1, ue_count=1, dimm_ue_count=1), ((*uncorrected, "mc1"),), ("mc1 counted 1 uncorrectable error ", where, "replace the DIMM", "edac")),
        Fault(COUNTED, "a storm of corrected errors", "icx", counts(1, ce_count=50_000, dimm_ce_count=50_000), ((*corrected, "mc1"),), (f"50000 at {where}", "replace the DIMM")),
        Fault(COUNTED, "a steady trickle of corrected errors", "icx", counts(3, ce_count=20, dimm_ce_count=20), ((*corrected, "mc3"),), ("20 at CPU_SrcID#1_MC#1_Chan#0_DIMM#0",)),
        Fault(COUNTED, "uncorrected errors without a place", "icx", counts(0, ue_count=2, ue_noinfo_count=2), ((*uncorrected, "mc0"),), ("2 without a place",)),
        Fault(COUNTED, "corrected errors without a place", "spr", counts(2, ce_count=700, ce_noinfo_count=700), ((*corrected, "mc2"),), ("700 without a place",)),
        Fault(COUNTED, "both kinds at one DIMM", "spr", counts(1, ce_count=900, dimm_ce_count=900, ue_count=1, dimm_ue_count=1), ((*uncorrected, "mc1"), (*corrected, "mc1")), (f"1 at {where}",)),
        Fault(COUNTED, "an older driver's corrected errors, by row and channel", "icx", lambda bench: bench.rows(0, 400, 0), ((*corrected, "mc0"),), ("400 at P1-DIMMB1",)),
        Fault(COUNTED, "an older driver's uncorrected error, by row", "icx", lambda bench: bench.rows(0, 0, 1), ((*uncorrected, "mc0"),), ("1 at P1-DIMMA1 or P1-DIMMB1",)),
        Fault(COUNTED, "a counter that cannot be read", "icx", unreadable, (("UNKNOWN", "edac_uncorrectable_errors", "mc2"),), ("mc2 does not tell its uncorrectable errors",)),
    ]  # fmt: skip


def faults() -> list[Fault]:
    """All of these kinds."""
    return _gone() + _speeds() + _unlike() + _counters()
