"""Faults of GPUs: memory, repairs, the driver, Xids, GPUs that are gone, NVLink, the fabric."""

# ruff: noqa: E501 (a fault a line reads as a table)

from __future__ import annotations

import re
from typing import Any

from .bench import Alarm, Fault
from .gpu_machines import NVIDIA, XID

MEMORY, DRIVER, LINKS = "GPU memory", "GPU driver", "GPU links"
SECOND = "0002:00:00.0"


def _smi(kind: str, name: str, old: str, new: str, alarm: tuple[str, str], says: tuple[str, ...]) -> Fault:  # noqa: PLR0917 (columns of a table)
    return Fault(kind, name, "gpus", lambda bench: bench.change(1, old, new), ((*alarm, SECOND),), says)


def _memory() -> list[Fault]:
    warn, failed = ("WARN", "gpu_ecc_uncorrected"), ("CRITICAL", "gpu_memory_failure")
    repair = ("WARN", "gpu_memory_repair")
    return [
        _smi(MEMORY, "uncorrected error in its DRAM", "<dram_uncorrectable>0</dram_uncorrectable>\n\t\t\t</volatile>", "<dram_uncorrectable>2</dram_uncorrectable>\n\t\t\t</volatile>", warn, ("lost data", SECOND, "nvidia-smi -q -d ECC")),
        _smi(MEMORY, "uncorrected error in its caches", "<volatile>\n\t\t\t\t<sram_correctable>0</sram_correctable>\n\t\t\t\t<sram_uncorrectable_parity>0<", "<volatile>\n\t\t\t\t<sram_correctable>0</sram_correctable>\n\t\t\t\t<sram_uncorrectable_parity>1<", warn, ("1 of them in its caches", SECOND)),
        _smi(MEMORY, "a flood of corrected errors", "<dram_correctable>0</dram_correctable>\n\t\t\t\t<dram_uncorrectable>0</dram_uncorrectable>\n\t\t\t</volatile>", "<dram_correctable>25000000</dram_correctable>\n\t\t\t\t<dram_uncorrectable>0</dram_uncorrectable>\n\t\t\t</volatile>", ("WARN", "gpu_ecc_corrected"), ("weak", SECOND)),
        _smi(MEMORY, "a row remap that waits", "<remapped_row_pending>No", "<remapped_row_pending>Yes", repair, ("row remap pending", "next reset")),
        _smi(MEMORY, "a channel repair that waits", "<channel_repair_pending>No", "<channel_repair_pending>Yes", repair, ("channel repair pending",)),
        _smi(MEMORY, "a repair of its processors that waits", "<tpc_repair_pending>No", "<tpc_repair_pending>Yes", repair, ("TPC repair pending",)),
        _smi(MEMORY, "a row remap that failed", "<remapped_row_failure>No", "<remapped_row_failure>Yes", failed, ("row remap failed", "replace the GPU")),
        _smi(MEMORY, "memory that cannot be repaired", "<unrepairable_memory>No", "<unrepairable_memory>Yes", failed, ("cannot be repaired", "replace the GPU")),
        _smi(MEMORY, "more cache errors than NVIDIA takes for chance", "<sram_threshold_exceeded>No", "<sram_threshold_exceeded>Yes", failed, ("replace the GPU", SECOND)),
        _smi(MEMORY, "banks without a spare row", "<row_remapper_histogram_none>0 bank(s)", "<row_remapper_histogram_none>3 bank(s)", ("WARN", "gpu_exhausted_banks"), ("no spare row left", SECOND)),
        _smi(MEMORY, "ECC that waits for a restart", "<pending_ecc>Enabled", "<pending_ecc>Disabled", ("CRITICAL", "gpu_ecc_mode"), ("ECC was switched", SECOND)),
        _smi(MEMORY, "many retired pages", "<multiple_single_bit_retirement>\n\t\t\t\t<retired_count>N/A", "<multiple_single_bit_retirement>\n\t\t\t\t<retired_count>30", ("WARN", "gpu_retired_pages"), ("64 pages", SECOND)),
    ]  # fmt: skip


def _driver() -> list[Fault]:
    def xid(code: int, text: str) -> Any:
        return lambda bench: bench.xid(1, code, text)

    def captured(bench: Any) -> None:
        bench.log += XID.replace("0000:9b:00", SECOND[:-2])

    def lost(bench: Any) -> None:
        del bench.blocks[1], bench.uuids[1]
        bench.nvlink = re.sub(r"GPU 1: (?:.*\n)+?(?=GPU 2)", "", bench.nvlink)
        bench.counters = re.sub(r"GPU 1: (?:.*\n)+?(?=GPU 2)", "", bench.counters)

    def silent(bench: Any) -> None:
        bench.silence, bench.status = (
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n",
            9,
        )

    def mismatch(bench: Any) -> None:
        bench.silence, bench.status = "Failed to initialize NVML: Driver/library version mismatch\n", 18

    def rubbish(bench: Any) -> None:
        bench.silence = "Segmentation fault\n"

    def corrupt(bench: Any) -> None:
        text = (NVIDIA / "azhpc-diagnostics_nvidia-smi_inforom_corrupt.txt").read_text()
        bench.around = (
            next(line for line in text.splitlines() if "infoROM" in line).replace("0008:00:00.0", SECOND) + "\n"
        )

    def old_module(bench: Any) -> None:
        bench.put(
            "/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan  2 2025"
        )

    def switch(bench: Any) -> None:
        bench.log += "nvidia-nvswitch3: SXid (PCI:0005:00:00.0): 20034, Fatal, Link 30 LTSSM Fault Up\n"

    def no_log(bench: Any) -> None:
        bench.log = ""

    xids: tuple[Alarm, ...] = (("CRITICAL", "gpu_xid", SECOND),)
    answer: tuple[Alarm, ...] = (("CRITICAL", "gpu_driver", "nvidia-smi"),)
    persistence = ("WARN", "gpu_persistence_mode")
    return [
        Fault(DRIVER, "Xid 79: off the bus", "gpus", xid(79, "GPU has fallen off the bus."), xids, ("Xid 79", "look at power", "journalctl")),
        Fault(DRIVER, "Xid 119, as captured", "gpus", captured, xids, ("Xid 119", "system processor (GSP)")),
        Fault(DRIVER, "Xid 74: NVLink", "gpus", xid(74, "NVLink: fatal error detected on link 3(0x0, 0x0)"), xids, ("Xid 74", "NVLink error")),
        Fault(DRIVER, "Xid 95: error that was not contained", "gpus", xid(95, "Uncontained ECC error."), xids, ("Xid 95", "not contained")),
        Fault(DRIVER, "Xid 64: row that could not be taken out of use", "gpus", xid(64, "Row remapper: failed"), xids, ("Xid 64",)),
        Fault(DRIVER, "Xid 63: row to be taken out of use", "gpus", xid(63, "Row Remapper: New row marked for remapping"), (("WARN", "gpu_xid_recovered", "node"),), ("Xid 63",)),
        Fault(DRIVER, "Xid 94: error that was contained", "gpus", xid(94, "Contained ECC error."), (("WARN", "gpu_xid_recovered", "node"),), ("Xid 94",)),
        Fault(DRIVER, "Xid 31: a program's fault", "gpus", xid(31, "MMU Fault"), (("WARN", "gpu_xid_application", "node"),), ("Xid 31", SECOND)),
        Fault(DRIVER, "fatal error of an NVSwitch", "gpus", switch, (("CRITICAL", "gpu_xid", "0005:00:00.0"),), ("SXid 20034", "NVSwitch")),
        Fault(DRIVER, "a GPU that the driver lost", "gpus", lost, (("CRITICAL", "gpu_count", "node"),), (SECOND, "not known to the driver", "lspci")),
        Fault(DRIVER, "a driver that does not answer", "gpus", silent, answer, ("couldn't communicate",)),
        Fault(DRIVER, "libraries of another version", "gpus", mismatch, answer, ("mismatch", "restart")),
        Fault(DRIVER, "nvidia-smi that prints rubbish", "gpus", rubbish, answer, ("Segmentation fault",)),
        Fault(DRIVER, "corrupt infoROM, as captured", "gpus", corrupt, (("CRITICAL", "gpu_inforom", "node"),), (SECOND, "configuration memory is damaged")),
        Fault(DRIVER, "module of another version than the libraries", "gpus", old_module, (("CRITICAL", "gpu_driver_version", "loaded module"),), ("570.86.15", "has not restarted since")),
        _smi(DRIVER, "a recovery that the driver asks for", "<gpu_recovery_action>None", "<gpu_recovery_action>Reset", ("CRITICAL", "gpu_recovery_action"), ("Reset", SECOND)),
        _smi(DRIVER, "persistence that is off", "<persistence_mode>Enabled", "<persistence_mode>Disabled", persistence, ("nvidia-persistenced",)),
        Fault(DRIVER, "a kernel log without a line", "gpus", no_log, (("UNKNOWN", "gpu_xid", "node"),), ("kernel log", "dmesg")),
    ]  # fmt: skip


def _links() -> list[Fault]:
    def manager(what: str, said: str) -> Any:
        return lambda bench: setattr(bench, what, said)

    def inactive(*links: int) -> Any:
        def inject(bench: Any) -> None:
            head, second, rest = re.split(r"(GPU 1: (?:.*\n)+?)(?=GPU 2)", bench.nvlink, maxsplit=1)
            for link in links:
                second = second.replace(f"Link {link}: 25 GB/s", f"Link {link}: <inactive>")
            bench.nvlink = head + second + rest

        return inject

    def all_inactive(bench: Any) -> None:
        text = (NVIDIA / "aznhc_bad_nvlink_status.txt").read_text().splitlines()[1]
        bench.nvlink = re.sub(r"(GPU 1: .*\n)(?:.*\n)+?(?=GPU 2)", rf"\1{text}\n", bench.nvlink)

    def slow(bench: Any) -> None:
        bench.nvlink = re.sub(r"(GPU 1: .*\n.*\n)(.*): 25 GB/s", r"\1\2: 12.5 GB/s", bench.nvlink)

    def everywhere(bench: Any) -> None:
        bench.nvlink = bench.nvlink.replace("Link 7: 25 GB/s", "Link 7: <inactive>")

    def nothing(bench: Any) -> None:
        bench.nvlink = ""

    def counted(kind: str, count: int) -> Any:
        def inject(bench: Any) -> None:
            begin = bench.counters.index("GPU 1:")
            bench.counters = bench.counters[:begin] + bench.counters[begin:].replace(
                f"Link 4: {kind} Errors: 0", f"Link 4: {kind} Errors: {count}", 1
            )

        return inject

    def cube(bench: Any) -> None:
        """The captured V100 node: six links each, some of them down at four GPUs; it has no NVSwitch."""
        text = (NVIDIA / "azhpc-diagnostics_nvlink_bad.txt").read_text()
        for uuid, own in zip(re.findall(r"UUID: ([^)]+)\)", text), bench.uuids):
            text = text.replace(uuid, own)
        bench.nvlink = text
        for index in range(len(bench.gpus)):
            bench.change(
                index,
                "<state>Completed</state>\n\t\t\t<status>Success</status>",
                "<state>N/A</state>\n\t\t\t<status>N/A</status>",
            )
        for path in bench.root.glob("sys/bus/pci/devices/*/class"):
            if "0x0680" in path.read_text():
                path.write_text("0x060400\n")

    nvlink: Alarm = ("CRITICAL", "gpu_nvlink", SECOND)
    errors: tuple[Alarm, ...] = (("WARN", "gpu_nvlink_errors", SECOND),)
    gpus = [f"{index:04x}:00:00.0" for index in (1, 2, 3, 4, 11, 12, 13, 14)]
    return [
        Fault(LINKS, "one NVLink inactive", "gpus", inactive(5), (nvlink,), (f"GPU {SECOND}: link 5 is inactive", "Xid 74", "nvidia-smi nvlink")),
        Fault(LINKS, "three NVLinks inactive", "gpus", inactive(0, 1, 11), (nvlink,), ("links 0, 1, 11 are inactive", "nvidia-fabricmanager")),
        Fault(LINKS, "all NVLinks of one GPU inactive, as captured", "gpus", all_inactive, (nvlink,), (f"GPU {SECOND}: all its links are inactive",)),
        Fault(LINKS, "an NVLink at half its speed", "gpus", slow, (nvlink,), ("12.5 GB/s", "below 25 GB/s")),
        Fault(LINKS, "the same NVLink inactive at every GPU", "gpus", everywhere, tuple(("CRITICAL", "gpu_nvlink", gpu) for gpu in gpus), (f"GPU {gpus[0]}: link 7 is inactive",)),
        Fault(LINKS, "NVSwitches and no NVLink that is told", "gpus", nothing, (("UNKNOWN", "gpu_nvlink", "node"),), ("NVSwitches", "nvidia-smi nvlink -s")),
        Fault(LINKS, "NVLinks down at four GPUs, as captured, without a switch", "gpus", cube, tuple(("CRITICAL", "gpu_nvlink", gpus[index]) for index in (3, 4, 5, 6)), ("links 3, 5 are inactive",)),
        Fault(LINKS, "CRC errors on an NVLink", "gpus", counted("CRC", 891), errors, ("link 4 CRC Errors: 891", "reseat the GPU")),
        Fault(LINKS, "replays on an NVLink", "gpus", counted("Replay", 142), errors, ("link 4 Replay Errors: 142",)),
        Fault(LINKS, "recoveries of an NVLink", "gpus", counted("Recovery", 3), errors, ("link 4 Recovery Errors: 3", "nvlink -e -i 1")),
        _smi(LINKS, "a GPU that the fabric manager has not taken in", "<state>Completed</state>\n\t\t\t<status>Success</status>", "<state>Not Started</state>\n\t\t\t<status>N/A</status>", ("CRITICAL", "gpu_fabric"), ("Not Started", "nvidia-fabricmanager does not run")),
        _smi(LINKS, "a GPU that the fabric refused", "<status>Success</status>", "<status>Insufficient Resources</status>", ("CRITICAL", "gpu_fabric"), ("Insufficient Resources", SECOND)),
        Fault(LINKS, "a fabric manager that does not run", "gpus", manager("fabric_state", "failed"), (("CRITICAL", "gpu_fabric_manager", "node"),), ("NVSwitches", "systemctl status nvidia-fabricmanager")),
        Fault(LINKS, "a fabric manager of another version", "gpus", manager("fabric_version", "570.86.15"), (("CRITICAL", "gpu_driver_version", "fabric manager"),), ("570.86.15", "another version")),
        _smi(LINKS, "PCIe replays of a GPU", "<replay_counter>0<", "<replay_counter>5000<", ("WARN", "gpu_pcie_replays"), ("5000 packets again", SECOND, "riser or cable")),
    ]  # fmt: skip


def faults() -> list[Fault]:
    """All of these kinds."""
    return _memory() + _driver() + _links()
