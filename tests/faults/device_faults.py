"""Faults of the PCI tree beside its links: devices that are silent or gone, payload sizes, ACS, error counters."""

# ruff: noqa: E501 (a fault a line reads as a table)

from __future__ import annotations

from typing import Any

from .bench import Fault
from .link_faults import GPU, PORT, UPSTREAM

LOST, ERRORS, SETTING = "PCIe device lost", "PCIe errors", "PCIe setting"
NIC, DRIVE, DOUBLE_NIC = "0000:1a:00.0", "0000:18:00.0", "0000:1b:00.0"
_BRANCH = (UPSTREAM, "0000:17:00.0", PORT, "0000:17:02.0", "0000:17:03.0", DRIVE, GPU, NIC, DOUBLE_NIC, "0000:1b:00.1")


def _silent(*addresses: str) -> tuple[tuple[str, str, str], ...]:
    return tuple(("UNKNOWN", name, address) for address in addresses for name in ("pcie_link_width", "pcie_link_speed"))


def _gone(name: str, kind: str, expected: int, addresses: tuple[str, ...], says: tuple[str, ...]) -> Fault:
    def inject(bench: Any) -> None:
        bench.expected = {kind: expected}
        bench.remove(*addresses)

    return Fault(LOST, name, "hgx", inject, (("CRITICAL", "pcie_device_count", kind),), says)


def _lost() -> list[Fault]:
    def silence(*addresses: str) -> Any:
        return lambda bench: bench.silence(*addresses)

    def sensed(bench: Any) -> None:
        bench.remove(GPU)
        bench.change(PORT)[0].set_slot(occupied=True, active=False)
        bench.write()

    def switched_off(bench: Any) -> None:
        bench.remove(
            "0000:81:00.0", *[a for a in bench.machine.functions if a.startswith("0000:81:") and not a.endswith(".0")]
        )
        (port,) = bench.change("0000:80:01.0")
        port.set_slot(occupied=True, active=False)
        port.put("<H", port.express + 0x10, 0x10)
        bench.write()

    return [
        Fault(LOST, "GPU off the bus", "hgx", silence(GPU), _silent(GPU), (f"GPU {GPU} fell off the bus", "lost power", "xid")),
        Fault(LOST, "NIC off the bus", "hgx", silence(NIC), _silent(NIC), (f"NIC {NIC} fell off the bus", "dmesg")),
        Fault(LOST, "NVMe drive off the bus", "hgx", silence(DRIVE), _silent(DRIVE), (f"NVMe drive {DRIVE} fell off the bus",)),
        Fault(
            LOST, "a switch with all below it off the bus", "hgx", silence(*_BRANCH),
            _silent(DRIVE, GPU, NIC, DOUBLE_NIC, "0000:1b:00.1"), (DRIVE, f"the bridge {UPSTREAM} above it does not answer either"),
        ),
        _gone("GPU that never came up", "gpu", 8, (GPU,), ("7 of 8 GPUs", f"{PORT} (slot 28)", "reseat")),
        _gone("two GPUs that never came up", "gpu", 8, (GPU, "0000:9b:00.0"), ("6 of 8 GPUs", PORT, "power")),
        _gone("NIC that never came up", "nic", 11, (NIC,), ("10 of 11 NICs", "0000:17:02.0 (slot 38)")),
        _gone("NVMe drive that never came up", "nvme", 8, (DRIVE,), ("7 of 8 NVMe drives", "0000:17:00.0 (slot 167)")),
        _gone("a switch and all below it that never came up", "gpu", 8, _BRANCH, ("7 of 8 GPUs", "0000:15:01.0")),
        Fault(LOST, "more drives than the inventory expects", "hgx", lambda bench: bench.expected.update(nvme=7), (("CRITICAL", "pcie_device_count", "nvme"),), ("8 of 7", "the inventory expects fewer")),
        Fault(LOST, "slot that senses a card without a link", "hgx", sensed, (("WARN", "pcie_untrained_slots", PORT),), (f"slot 28 (port {PORT})", "link is down", "reseat it")),
        Fault(LOST, "slot whose link is switched off", "idle", switched_off, (("WARN", "pcie_untrained_slots", "0000:80:01.0"),), ("port 0000:80:01.0", "switched off")),
    ]  # fmt: skip


def _counted(  # noqa: PLR0917 (columns of a table)
    name: str, address: str, kind: str, error: str, count: int, alarm: tuple[str, str, str], says: tuple[str, ...]
) -> Fault:
    def inject(bench: Any) -> None:
        bench.change(address)[0].aer[kind][error] = count
        bench.write()

    return Fault(ERRORS, name, "hgx", inject, (alarm,), says)


def _errors() -> list[Fault]:
    bad, warn = ("CRITICAL", "pcie_uncorrectable_errors"), ("WARN", "pcie_correctable_errors")

    def both_ends(bench: Any) -> None:
        for function in bench.change(GPU, PORT):
            function.aer["correctable"]["BadDLLP"] = 400
        bench.write()

    return [
        _counted("surprise down at a port", PORT, "fatal", "SDES", 3, (*bad, GPU), (f"GPU {GPU}", "fatal SDES", f"3 at {PORT}", "riser or cable")),
        _counted("data link protocol error at a GPU", GPU, "fatal", "DLP", 1, (*bad, GPU), (f"GPU {GPU}", "fatal DLP")),
        _counted("completion timeouts at a NIC", NIC, "nonfatal", "CmpltTO", 2, (*bad, NIC), (f"NIC {NIC}", "nonfatal CmpltTO", "aer_dev")),
        _counted("poisoned packet at a drive", DRIVE, "nonfatal", "TLP", 1, (*bad, DRIVE), (f"NVMe drive {DRIVE}", "nonfatal TLP")),
        _counted("completer abort at a switch", UPSTREAM, "nonfatal", "CmpltAbrt", 1, (*bad, UPSTREAM), (UPSTREAM, "nonfatal CmpltAbrt")),
        _counted("flow control error at a root port", "0000:15:01.0", "fatal", "FCP", 1, (*bad, UPSTREAM), ("0000:15:01.0", "fatal FCP")),
        _counted("a flood of bad packets at a NIC", NIC, "correctable", "BadTLP", 100_000, (*warn, NIC), (f"NIC {NIC}", "correctable BadTLP")),
        _counted("some receiver errors at a GPU", GPU, "correctable", "RxErr", 200, (*warn, GPU), (f"GPU {GPU}", "correctable RxErr")),
        _counted("replay timeouts at a drive", DRIVE, "correctable", "Timeout", 5_000, (*warn, DRIVE), (f"NVMe drive {DRIVE}", "Timeout")),
        _counted("replay rollovers at a switch's port", "0000:17:02.0", "correctable", "Rollover", 1_500, (*warn, NIC), ("0000:17:02.0", "Rollover")),
        Fault(ERRORS, "bad link packets at both ends", "hgx", both_ends, ((*warn, GPU),), (f"400 at {PORT}", f"400 at {GPU}")),
    ]  # fmt: skip


def _settings() -> list[Fault]:
    def payload(address: str, code: int) -> Any:
        def inject(bench: Any) -> None:
            bench.change(address)[0].set_payload(code)
            bench.write()

        return inject

    def acs(*names: str) -> Any:
        def inject(bench: Any) -> None:
            bench.change(PORT)[0].set_acs(*names)
            bench.write()

        return inject

    mismatch, detour = ("CRITICAL", "pcie_payload_mismatches"), (("WARN", "pcie_peer_detours", GPU),)
    return [
        Fault(SETTING, "GPU sends payloads that its port does not take", "hgx", payload(GPU, 2), ((*mismatch, GPU),), (f"GPU {GPU}", "512 B", PORT, "takes 256", "pci=pcie_bus_safe")),
        Fault(SETTING, "NIC port's payload lowered", "hgx", payload("0000:17:02.0", 0), ((*mismatch, NIC),), (f"NIC {NIC}", "256 B", "takes 128")),
        Fault(SETTING, "switch sends payloads that the root port does not take", "hgx", payload(UPSTREAM, 3), ((*mismatch, UPSTREAM),), (f"switch {UPSTREAM}", "1024 B")),
        Fault(SETTING, "ACS redirects a GPU's requests", "hgx", acs("SrcValid", "ReqRedir"), detour, (f"GPU {GPU}", PORT, "request redirect", "Switch ACS off")),
        Fault(SETTING, "ACS redirects a GPU's completions", "hgx", acs("CmpltRedir"), detour, (f"GPU {GPU}", "completion redirect")),
    ]  # fmt: skip


def faults() -> list[Fault]:
    """All of these kinds."""
    return _lost() + _errors() + _settings()
