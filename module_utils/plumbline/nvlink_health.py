"""The links of NVIDIA GPUs as their driver sees them: NVLink up and at speed, its errors, the fabric of NVSwitches, PCIe replays."""

from __future__ import annotations

import re
from typing import Any

from .gpu_driver import Runner
from .nvlink import GPU_LINE, parse_status

_PATIENCE_SECONDS = 60
_COUNTER = re.compile(r"^\s*Link ([0-9]{1,3}): ([A-Za-z][A-Za-z ]*?)(?: Count)?: +([0-9]{1,20})\s*$")
# What says that a transfer went wrong, or that a link had to be trained anew. Newer drivers also count packets, and bits that
# forward error correction put right: those are no fault.
_FAULTS = re.compile(
    r"^(?:replay|recovery|crc(?: \w+)?|ecc(?: \w+)?|malformed packet|buffer overrun|local link integrity|rx(?: \w+)?) errors?$"
    r"|^link recovery failed",
    re.IGNORECASE,
)
_SECONDS_PER_HOUR = 3600
# A link's speed is printed with two or three decimals; a real step down is a half or more.
_SAME_SPEED = 0.95


def ask_links(run: Runner | None) -> dict[str, str]:
    """What nvidia-smi prints of NVLink: `status` and `errors`; empty where it prints nothing or does not answer."""
    answers = {}
    for key, option in (("status", "-s"), ("errors", "-e")):
        if run is None:
            answers[key] = ""
            continue
        status, out, _ = run(["timeout", "-k", "5", str(_PATIENCE_SECONDS), "nvidia-smi", "nvlink", option])
        answers[key] = out if status == 0 else ""
    return answers


def parse_errors(text: str) -> list[dict[str, Any]]:
    """GPUs of `nvidia-smi nvlink -e`: `index`, `uuid`, `counted` (any counter was there), `faults` (link and counter: above 0)."""
    gpus: list[dict[str, Any]] = []
    for line in text.splitlines():
        if gpu := GPU_LINE.match(line):
            gpus.append({"index": int(gpu[1]), "uuid": gpu[3] or "", "counted": False, "faults": {}})
        elif gpus and (counter := _COUNTER.match(line)) and _FAULTS.match(counter[2]):
            gpus[-1]["counted"] = True
            if int(counter[3]):
                gpus[-1]["faults"][f"link {int(counter[1])} {counter[2]}"] = int(counter[3])
    return gpus


def link_measurements(
    smi: dict[str, Any] | None, answers: dict[str, str], nvswitches: list[str], uptime_seconds: float | None
) -> list[dict[str, Any]]:
    """Measurements of `gpu_nvlink` (links), `gpu_nvlink_errors` (count), `gpu_fabric` and `gpu_pcie_replays` (1/h), each per GPU.

    *smi* is what `parse_smi` gave, *answers* of `ask_links`; nothing is measured where nvidia-smi does not answer, for that is a
    failure of its own.
    """
    if not smi:
        return []
    addresses = {gpu["uuid"]: gpu["address"] for gpu in smi["gpus"] if gpu["uuid"]}
    switched = bool(nvswitches) or any(gpu["fabric_state"] for gpu in smi["gpus"])
    sliced = {gpu["uuid"] for gpu in smi["gpus"] if gpu["mig_mode"] == "Enabled"}
    gpus = parse_status(answers["status"])
    found = _links([gpu for gpu in gpus if gpu["uuid"] not in sliced], addresses, switched)
    if switched and not gpus:
        error = "the node has NVSwitches and nvidia-smi nvlink -s tells no GPU"
        found = [{"name": "gpu_nvlink", "scope": "node", "error": error, "next_command": "nvidia-smi nvlink -s"}]
    for gpu in parse_errors(answers["errors"]):
        if gpu["counted"]:
            found.append(_errors(gpu, addresses.get(gpu["uuid"], f"GPU {gpu['index']}")))
    for gpu in smi["gpus"]:
        if gpu["fabric_state"]:
            found.append(_fabric(gpu))
        if gpu["pcie_replays"] is not None and uptime_seconds:
            found.append(_replays(gpu, uptime_seconds))
    return found


def _links(gpus: list[dict[str, Any]], addresses: dict[str, str], switched: bool) -> list[dict[str, Any]]:
    """A GPU must have as many links at full speed as the best of its kind in the node; behind NVSwitches, all that it has.

    Without a switch the number in use is the builder's choice (a bridge joins some of the links, or none). GPUs that are cut into MIG
    slices use no NVLink and are left out.
    """
    if not gpus or not (switched or any(speed for gpu in gpus for speed in gpu["links"].values())):
        reason = "no NVLink is in use between the GPUs here (none fitted, or all GPUs are cut into MIG slices)"
        return [{"name": "gpu_nvlink", "scope": "node", "skipped": reason}]
    found = []
    for gpu in gpus:
        alike = [other for other in gpus if other["name"] == gpu["name"]]
        speeds = [speed for other in alike for speed in other["links"].values() if speed]
        full = max(speeds, default=0.0)
        good = {number: speed for number, speed in gpu["links"].items() if speed and speed >= full * _SAME_SPEED}
        most = max(sum(bool(speed) for speed in other["links"].values()) for other in alike)
        fitted = max(len(other["links"]) for other in alike)
        scope = addresses.get(gpu["uuid"], f"GPU {gpu['index']}")
        measurement: dict[str, Any] = {
            "name": "gpu_nvlink",
            "scope": scope,
            "value": len(good),
            "unit": "links",
            "limit": max(fitted if switched else most, 1),
            "limit_source": "links of a GPU behind NVSwitches"
            if switched
            else "the most that a GPU of its kind here has in use",
            "conditions": {"bytes_per_second_per_link": full, "switched": switched},
        }
        if measurement["value"] < measurement["limit"]:
            down = [str(number) for number, speed in sorted(gpu["links"].items()) if not speed]
            slow = [
                f"{number} ({speed / 1e9:g} GB/s)"
                for number, speed in sorted(gpu["links"].items())
                if speed and number not in good
            ]
            parts = [f"{_links_called(down, 'is', 'are')} inactive"] if down else []
            parts += [f"{_links_called(slow, 'runs', 'run')} below {full / 1e9:g} GB/s"] if slow else []
            parts = parts or ["all its links are inactive"]
            measurement["cause"] = (
                f"{_called(scope)}: {' and '.join(parts)}. Look for Xid 74, reset the GPU, then reseat it or its bridge"
                + (" and look at nvidia-fabricmanager" if switched else "")
            )
            measurement["next_command"] = (
                f"nvidia-smi nvlink -s -i {gpu['index']}; nvidia-smi nvlink -e -i {gpu['index']}"
            )
        found.append(measurement)
    return found


def _called(scope: str) -> str:
    return scope if scope.startswith("GPU") else f"GPU {scope}"


def _links_called(numbers: list[str], one: str, many: str) -> str:
    return f"link {numbers[0]} {one}" if len(numbers) == 1 else f"links {', '.join(numbers)} {many}"


def _errors(gpu: dict[str, Any], scope: str) -> dict[str, Any]:
    faults = gpu["faults"]
    told = ", ".join(f"{name}: {count}" for name, count in sorted(faults.items(), key=lambda item: -item[1])[:4])
    return {
        "name": "gpu_nvlink_errors",
        "scope": scope,
        "value": sum(faults.values()),
        "unit": "count",
        "statistic": "since the driver was loaded",
        "conditions": faults,
        "cause": f"{_called(scope)} had errors on NVLink ({told}): watch whether they grow, then reseat the GPU or its bridge"
        if faults
        else "",
        "next_command": f"nvidia-smi nvlink -e -i {gpu['index']}",
    }


def _fabric(gpu: dict[str, Any]) -> dict[str, Any]:
    """A GPU behind NVSwitches computes only when the fabric manager has taken it in."""
    status = gpu["fabric_status"]
    return {
        "name": "gpu_fabric",
        "scope": gpu["address"],
        "value": gpu["fabric_state"] + (f", {status}" if status else ""),
        "expected": "Completed" + (", Success" if status else ""),
        "unit": "",
        "cause": (
            f"GPU {gpu['address']} is not part of the NVLink fabric: nvidia-fabricmanager does not run, or is of another version "
            "than the driver"
        ),
        "next_command": "systemctl status nvidia-fabricmanager; nvidia-smi -q | grep -A 3 Fabric",
    }


def _replays(gpu: dict[str, Any], uptime_seconds: float) -> dict[str, Any]:
    """Packets that the GPU's PCIe link had to send again; counted since the GPU's reset, taken over the time since the boot."""
    count = gpu["pcie_replays"]
    return {
        "name": "gpu_pcie_replays",
        "scope": gpu["address"],
        "value": round(count / max(uptime_seconds / _SECONDS_PER_HOUR, 1.0), 3),
        "unit": "1/h",
        "conditions": {"count": count},
        "cause": f"the PCIe link of GPU {gpu['address']} sent {count} packets again: a bad contact, riser or cable"
        if count
        else "",
        "next_command": f"nvidia-smi -q -i {gpu['address']} | grep -i replay; lspci -vvs {gpu['address']} | grep -E 'LnkSta|CESta'",
    }
