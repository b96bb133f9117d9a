"""What the metrics collector reads of a machine: PCIe links, its own BMC's sensors, GPUs, units and certificates.

Each function adds to `Metrics` and returns why it could not (a reason, empty where it did). Functions over text take captured output in
tests.
"""

from __future__ import annotations

import re
import ssl
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from .bmc_ipmi import parse_sensor_list
from .bmc_ipmi_run import IpmiTool, obstacle
from .bmc_sensors import reading_of, thresholds_of, with_labels
from .metrics_text import Metrics
from .nvidia_smi import normalise_address, parse_smi
from .nvidia_xid import find_xids
from .pci_topology import pci_facts

# What a temperature belongs to, by how vendors name the sensor:
# "DIMM A1 Temp", "CPU1_DIMM_TEMP", "VRM CPU1", "P1-VRMs", "CPU0_VR_Temp", "VR MEM".
_PARTS = (
    ("vrm", re.compile(r"(?<![a-z0-9])vrm?s?(?![a-z])|voltage reg", re.I)),
    ("gpu", re.compile(r"gpu", re.I)),
    ("dimm", re.compile(r"dimm|(?<![a-z])mem(ory)?(?![a-z])", re.I)),
    ("cpu", re.compile(r"cpu|(?<![a-z])proc|package", re.I)),
)
_UPPER = ("upper_warning", "upper_critical")
_THROTTLE = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")
_MIB = 1 << 20
_COMMAND_SECONDS = 60
_UNIT_PROPERTIES = ("Id", "ActiveState", "NRestarts", "ControlGroup", "ActiveEnterTimestampMonotonic", "LoadState")
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.S)


def run(command: Sequence[str]) -> tuple[str, str]:
    """What a command printed, and why that is not all."""
    try:
        done = subprocess.run(
            list(command), capture_output=True, text=True, errors="replace", timeout=_COMMAND_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return "", f"{command[0]} was still running after {_COMMAND_SECONDS} s and was ended"
    except OSError as error:
        return "", f"{command[0]} cannot be started: {error.strerror}"
    said = " ".join(done.stderr.split())[:200]
    return done.stdout, f"{command[0]} ended with status {done.returncode}: {said}" if done.returncode else ""


def pcie(metrics: Metrics, root: str = "/") -> str:
    """Speed (GT/s) and width (lanes) of each link above a GPU, NIC or NVMe drive, now and by what both its ends can do."""
    facts = pci_facts(root)
    kinds = {function["address"]: function["kind"] for function in facts["functions"]}
    links = [link for link in facts["links"] if link["devices_below"]]
    for link in links:
        labels = {"device": link["device"], "kind": kinds.get(link["device"]) or "other", "slot": link["slot"] or ""}
        # A GPU saves power at a lower speed, and so does the switch above it.
        below = {kinds.get(address) for address in link["devices_below"]}
        labels["idles"] = "yes" if below == {"gpu"} else "no"
        for name, what, field in (
            ("speed_gts", "Speed in GT/s", "speed_gts"),
            ("width_lanes", "Width in lanes", "width"),
        ):
            metrics.add(f"plumbline_pcie_link_{name}", "gauge", f"{what} of the link now.", link[field], **labels)
            metrics.add(
                f"plumbline_pcie_link_maximum_{name}",
                "gauge",
                f"{what} that both ends of the link can do.",
                link[f"max_{field}"],
                **labels,
            )
    return (
        "" if links else facts["reason"] or "no link above a GPU, NIC or NVMe drive is visible, as in a virtual machine"
    )


def part_of(name: str) -> str:
    """What a temperature sensor belongs to: `dimm`, `vrm`, `gpu`, `cpu` or `other`."""
    return next((part for part, pattern in _PARTS if pattern.search(name)), "other")


def sensors(metrics: Metrics, root: str = "/", tool: IpmiTool | None = None) -> str:
    """Temperatures, fans and power of the machine's own BMC, in-band, with the upper thresholds of the temperatures."""
    reason = obstacle(root) if tool is None else ""
    if reason:
        return reason
    text, problem = (tool or IpmiTool(_COMMAND_SECONDS)).run("sensor")
    # Several may have one name.
    found = with_labels(parse_sensor_list(text))
    for one in found:
        value, name = reading_of(one), one["label"]
        if value is None:
            continue
        if one["kind"] == "temperature":
            labels = {"sensor": name, "part": part_of(name)}
            metrics.add("plumbline_sensor_celsius", "gauge", "Temperature that the BMC reads.", value, **labels)
            for level in _UPPER:
                metrics.add(
                    "plumbline_sensor_threshold_celsius",
                    "gauge",
                    "The sensor's own upper threshold.",
                    thresholds_of(one).get(level),
                    level=level,
                    **labels,
                )
        elif one["kind"] == "fan" and one["unit"] == "revolutions_per_minute":
            metrics.add("plumbline_sensor_fan_rpm", "gauge", "Speed of a fan.", value, sensor=name)
        elif one["kind"] == "power":
            metrics.add("plumbline_sensor_watts", "gauge", "Power that the BMC reads.", value, sensor=name)
    return problem or ("" if found else "ipmitool listed no sensor")


def gpus(metrics: Metrics, xml: str) -> str:
    """What `nvidia-smi -q -x` says of each GPU."""
    facts = parse_smi(xml)
    for gpu in facts["gpus"]:
        labels = {"gpu": gpu["address"]}
        metrics.add("plumbline_gpu_info", "gauge", "One for each GPU.", 1, name=gpu["name"] or "", **labels)
        for field, kind, description in (
            ("ecc_uncorrected", "counter", "Uncorrected ECC errors since the driver was loaded."),
            ("ecc_corrected", "counter", "Corrected ECC errors since the driver was loaded."),
            ("pcie_replays", "counter", "Replays on the PCIe link."),
            ("remapped_rows_uncorrectable", "gauge", "Rows of memory remapped for uncorrectable errors."),
        ):
            metrics.add(
                f"plumbline_gpu_{field}{'_total' if kind == 'counter' else ''}", kind, description, gpu[field], **labels
            )
        flags = gpu["failures"]
        if flags is not None:
            metrics.add(
                "plumbline_gpu_memory_failures", "gauge", "Failures of the memory repair.", len(flags), **labels
            )
    # From the root element on, as parse_smi does, which has passed it: no document type, no entities.
    begin, end = xml.find("<nvidia_smi_log"), xml.rfind("</nvidia_smi_log>") + len("</nvidia_smi_log>")
    for element in ElementTree.fromstring(xml[begin:end]).iter("gpu"):  # noqa: S314
        _gpu_now(metrics, element)
    return "" if facts["gpus"] else "nvidia-smi lists no GPU"


def _gpu_now(metrics: Metrics, gpu: ElementTree.Element) -> None:
    labels = {"gpu": normalise_address(gpu.findtext("pci/pci_bus_id") or gpu.get("id") or "")}
    power = next(
        (
            p
            for p in ("gpu_power_readings/instant_power_draw", "gpu_power_readings/power_draw")
            if gpu.find(p) is not None
        ),
        "power_readings/power_draw",
    )
    for name, path, factor, description in (
        ("celsius", "temperature/gpu_temp", 1, "Temperature."),
        ("memory_celsius", "temperature/memory_temp", 1, "Temperature of the memory."),
        ("utilization_ratio", "utilization/gpu_util", 0.01, "Share of the last sample in which a kernel ran."),
        ("memory_used_bytes", "fb_memory_usage/used", _MIB, "Memory in use."),
        ("memory_total_bytes", "fb_memory_usage/total", _MIB, "Memory."),
        ("watts", power, 1, "Power draw."),
    ):
        match = re.match(r"\s*(-?\d+(?:\.\d+)?)", gpu.findtext(path) or "")
        if match:
            metrics.add(f"plumbline_gpu_{name}", "gauge", description, float(match.group(1)) * factor, **labels)
    for element in [*gpu.findall("clocks_event_reasons/*"), *gpu.findall("clocks_throttle_reasons/*")]:
        # Named clocks_throttle_reason_x until driver 535.
        reason = re.sub(r"^clocks_(event|throttle)_reason_", "", element.tag)
        if reason in _THROTTLE:
            active = (element.text or "").strip() == "Active"
            metrics.add(
                "plumbline_gpu_throttled", "gauge", "Whether the clock is held down.", active, reason=reason, **labels
            )


def xids(metrics: Metrics, log: str) -> str:
    """Xid errors in the kernel's log of this boot. `kind` is `application`, `recovered` or `fault`."""
    for one in find_xids(log):
        kind = "application" if one["application"] else "recovered" if one["recovered"] else "fault"
        metrics.add(
            "plumbline_gpu_xid_total",
            "counter",
            "Xid errors in the kernel's log since the boot.",
            one["count"],
            gpu=one["address"],
            xid=one["code"],
            kind=kind,
        )
    return ""


def units(metrics: Metrics, shown: str, cgroup: str = "/sys/fs/cgroup", boot_time_seconds: float | None = None) -> str:
    """State, restarts and memory of units, from `systemctl show` of several."""
    for block in shown.strip().split("\n\n"):
        values = dict(line.partition("=")[::2] for line in block.splitlines())
        if values.get("LoadState") != "loaded":
            continue
        labels = {"unit": values.get("Id", "")}
        active = values.get("ActiveState") == "active"
        metrics.add("plumbline_unit_active", "gauge", "Whether systemd calls the unit active.", active, **labels)
        restarts = values.get("NRestarts", "")
        if restarts.isdigit():
            text = "How often systemd restarted the unit by itself since it was last started by hand."
            metrics.add("plumbline_unit_restarts_total", "counter", text, int(restarts), **labels)
        entered = values.get("ActiveEnterTimestampMonotonic", "")
        if active and entered.isdigit() and boot_time_seconds is not None:
            text = "When the unit became active, by the system's clock."
            metrics.add(
                "plumbline_unit_active_since_seconds", "gauge", text, boot_time_seconds + int(entered) / 1e6, **labels
            )
        group = values.get("ControlGroup", "").lstrip("/")
        if group:
            _memory(metrics, Path(cgroup), group, labels)
    return ""


def _memory(metrics: Metrics, root: Path, group: str, labels: dict[str, str]) -> None:
    """Memory of a control group, of version 2, or of version 1 where that has the memory controller (hybrid too)."""
    for path, names in (
        (root / group / "memory.stat", {"anon": "anon", "file": "file"}),
        (root / "memory" / group / "memory.stat", {"anon": "total_rss", "file": "total_cache"}),
    ):
        try:
            stat = dict(line.split() for line in path.read_text(encoding="ascii").splitlines())
        except (OSError, ValueError):
            continue
        for name, text in (("anon", "Anonymous memory"), ("file", "Page cache")):
            value = stat.get(names[name], "")
            if value.isdigit():
                metrics.add(
                    f"plumbline_unit_memory_{name}_bytes", "gauge", f"{text} of the unit.", int(value), **labels
                )
        return


def show_units(names: Sequence[str]) -> tuple[str, str]:
    """`systemctl show` of *names*."""
    return run(["systemctl", "show", f"--property={','.join(_UNIT_PROPERTIES)}", *names])


def certificate(metrics: Metrics, path: Path) -> str:
    """When the first certificate of a PEM file ends."""
    try:
        match = _CERTIFICATE.search(path.read_text(encoding="ascii", errors="replace"))
    except OSError as error:
        return f"{path}: {error.strerror}"
    if not match:
        return f"{path} holds no certificate"
    text, problem = _end(path, match.group(0))
    if problem:
        return problem
    metrics.add("plumbline_certificate_end_seconds", "gauge", "When the certificate ends, Unix time.", text, file=path)
    return ""


def _end(path: Path, pem: str) -> tuple[Any, str]:
    command = ["openssl", "x509", "-noout", "-enddate"]
    try:
        done = subprocess.run(
            command,
            input=pem,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_COMMAND_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, f"openssl, which reads {path}, cannot be run ({error})"
    if done.returncode or not done.stdout.startswith("notAfter="):
        return None, f"openssl cannot read the certificate in {path}: {' '.join(done.stderr.split())[:200]}"
    return ssl.cert_time_to_seconds(done.stdout.strip().partition("=")[2]), ""
