"""From timed copies (of the GPU copy probe, or of nvbandwidth) to measurements, each held against what it could reach at most."""

from __future__ import annotations

import json
from typing import Any

from .limits import pcie_bandwidth
from .link_load import LinkFacts, merge
from .nvlink import NvLinks

KINDS = {
    "host_to_device": "gpu_h2d_bandwidth",
    "device_to_host": "gpu_d2h_bandwidth",
    "bidirectional": "gpu_bidirectional_bandwidth",
    "device_to_device": "gpu_d2d_bandwidth",
    "peer_to_peer": "gpu_p2p_bandwidth",
}
"""Kind of copy in the probe's answer -> name of the measurement."""

SCOPE = "gpus"
_OVER_PCIE = {"host_to_device": 1, "device_to_host": 1, "bidirectional": 2}
# Below this, the time between two copies counts as much as the copy: the figure says what such chunks get, not what the memory can.
_LIMITED_FROM_BYTES = 64 << 20
# More of a GPU's memory than the driver and a context take: a program works there.
_IDLE_USE_SHARE = 0.05
_FACTS = ("torch_version", "cuda_version", "nvbandwidth_version", "driver_version", "elapsed_seconds")


def chunk_text(chunk_bytes: int) -> str:
    """Return a chunk size for a person: 4 MiB, 1 GiB."""
    for factor, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if chunk_bytes >= factor and chunk_bytes % factor == 0:
            return f"{chunk_bytes // factor} {unit}"
    return f"{chunk_bytes} B"


def failed(reason: str, **told: str) -> list[dict[str, Any]]:
    """Return the measurements of a probe that could not measure: one error for the GPUs as a whole."""
    return [{"name": "gpu_h2d_bandwidth", "scope": SCOPE, "error": reason, **told}]


def skipped(reason: str) -> list[dict[str, Any]]:
    """Return the measurement of a machine that has no GPU to measure: one, skipped with the reason."""
    return [{"name": "gpu_h2d_bandwidth", "scope": SCOPE, "skipped": reason}]


def read_answer(text: str, stderr: str = "") -> dict[str, Any]:
    """Return the probe's answer; raise ValueError with one sentence for anything else, and for an `error` that it tells."""
    lines = [line for line in text.splitlines() if line.startswith("{")]
    try:
        answer: dict[str, Any] = json.loads(lines[-1])
        if "error" in answer:
            raise _ToldError(str(answer["error"]))
        if not all(isinstance(answer[name], list) for name in ("points", "gpus", "notes")):
            raise TypeError("points, gpus and notes are lists")
        for point in answer["points"]:
            if point["kind"] not in KINDS:
                raise KeyError(point["kind"])
            point["samples"] = [float(sample) for sample in point["samples"]]
            point["chunk_bytes"] = int(point["chunk_bytes"])
            point["index"] = int(point["index"])
        answer["gpus"] = {int(gpu["index"]): {**gpu, "address": str(gpu["address"])} for gpu in answer["gpus"]}
        if not {point["index"] for point in answer["points"]} <= set(answer["gpus"]):
            raise KeyError("a point of a GPU that is not listed")
        answer["notes"] = [str(note) for note in answer["notes"]]
    except _ToldError:
        raise
    except (IndexError, KeyError, TypeError, AttributeError, ValueError, OverflowError):
        last = (stderr.strip().splitlines() or text.strip().splitlines() or ["nothing"])[-1]
        raise ValueError(f"expected the GPU copy probe's JSON answer, found: {last[:300]}") from None
    return answer


class _ToldError(ValueError):
    """The probe itself says why it has no figure."""


class Report:
    """Makes measurements of an answer, with the facts of the PCI tree and of NVLink beside it."""

    def __init__(self, answer: dict[str, Any], tree: LinkFacts, nvlinks: NvLinks | None = None) -> None:
        """Take what `read_answer` returned (or `nvbandwidth.answer`, its `gpus` by index)."""
        self.answer, self.tree, self.nvlinks = answer, tree, nvlinks or NvLinks()
        self.gpus: dict[int, dict[str, Any]] = answer["gpus"]

    def measurements(self) -> list[dict[str, Any]]:
        """The links of each GPU under load, then its copies; one error where there is nothing at all."""
        found = []
        for index, gpu in sorted(self.gpus.items()):
            points = [point for point in self.answer["points"] if point["index"] == index]
            found += self._links(gpu, points)
            found += [self._copy(gpu, point) for point in points]
        if not self.answer["points"]:
            return failed("the probe measured nothing: " + ("; ".join(self.answer["notes"]) or "no GPU"))
        return found

    def facts(self) -> dict[str, Any]:
        """What else the answer tells: GPUs, versions, notes."""
        return {
            "gpus": list(self.gpus.values()),
            "notes": self.answer["notes"],
            **{key: self.answer[key] for key in _FACTS if key in self.answer},
        }

    def _links(self, gpu: dict[str, Any], points: list[dict[str, Any]]) -> list[dict[str, Any]]:
        over_pcie = [point for point in points if point["kind"] in _OVER_PCIE and point["samples"]]
        if not over_pcie:
            return []
        seen = merge([point.get("link") or {} for point in over_pcie])
        during = ", ".join(dict.fromkeys(point["kind"] for point in over_pcie))
        return self.tree.measurements(_scope(gpu), gpu["address"], seen, during)

    def _copy(self, gpu: dict[str, Any], point: dict[str, Any]) -> dict[str, Any]:
        kind, samples = point["kind"], point["samples"]
        scope = _scope(gpu)
        if kind == "peer_to_peer":
            scope += f" to {point.get('peer') or point.get('peer_index', '?')}"
        asked = point.get("asked_chunk_bytes", point["chunk_bytes"])
        base = {"name": KINDS[kind], "scope": f"{scope}, {chunk_text(asked)} chunks"}
        if gpu.get("mig") and kind in ("bidirectional", "device_to_device"):
            reason = f"{gpu['name']} is a slice of a GPU (MIG): it may have one copy engine and a share of the memory's bandwidth"
            return {**base, "skipped": reason}
        if not samples:
            return {**base, "error": str(point.get("error") or "the probe took no sample")}
        limit, source, extra = self._limit(kind, gpu, point)
        conditions = {
            key: point[key]
            for key in ("chunk_bytes", "rounds", "submission", "why_plain", "direct")
            if point.get(key) not in (None, "")
        }
        conditions.update(extra.pop("conditions", {}))
        for key in ("cpus_near", "memory_free_bytes", "mig"):
            if key in gpu:
                conditions[key] = gpu[key]
        return {
            **base,
            "value": max(samples),
            "unit": "B/s",
            "statistic": f"best of {len(samples)}",
            "samples": samples,
            "limit": limit,
            "limit_source": source,
            "conditions": conditions,
            **extra,
        }

    def _limit(self, kind: str, gpu: dict[str, Any], point: dict[str, Any]) -> tuple[float | None, str, dict[str, Any]]:
        """The most that a copy can reach, how that came about, and what else its measurement says."""
        if kind in _OVER_PCIE:
            return self._pcie_limit(kind, gpu, point)
        if point["chunk_bytes"] < _LIMITED_FROM_BYTES:
            return (
                None,
                "",
                {"conditions": {"why_no_limit": "small chunks: the time between two copies counts as well"}},
            )
        if kind == "device_to_device":
            memory = gpu.get("memory_bandwidth_limit")
            source = "clock x 2 x bus width / 8 of the GPU's memory, half of it: a copy reads and writes"
            return (memory / 2, source, self._cause(gpu, None, over_pcie=False)) if memory else (None, "", {})
        return self._peer_limit(gpu, point)

    def _pcie_limit(
        self, kind: str, gpu: dict[str, Any], point: dict[str, Any]
    ) -> tuple[float | None, str, dict[str, Any]]:
        directions, address, seen = _OVER_PCIE[kind], gpu["address"], point.get("link") or {}
        limit = self.tree.limit(address)
        slow = self.tree.slow_hop(address, seen)
        extra = self._cause(gpu, slow)
        extra["conditions"] = {"link_under_load": _narrowest(self.tree.under_load(address, seen), seen)}
        if not limit:
            return None, "", extra
        extra["link_class"] = limit["link_class"]
        both = ", x 2 directions" if directions == 2 else ""
        return directions * limit["bytes_per_second"], f"{limit['text']}{both}", extra

    def _peer_limit(self, gpu: dict[str, Any], point: dict[str, Any]) -> tuple[float | None, str, dict[str, Any]]:
        address, peer = gpu["address"], point.get("peer", "")
        bonded = self.nvlinks.pair(address, peer)
        if bonded:
            extra: dict[str, Any] = {"link_class": "NVLink"}
            if down := self.nvlinks.inactive(address) + self.nvlinks.inactive(peer):
                extra["cause"] = (
                    f"{down} NVLinks of these two GPUs are inactive: see the fabric manager, then reseat the GPUs or the bridge"
                )
                extra["next_command"] = "nvidia-smi nvlink -s"
            return bonded[0], bonded[1], extra
        ends = [limit for limit in (self.tree.limit(address), self.tree.limit(peer)) if limit]
        if len(ends) < 2:
            return None, "", {}
        narrow = min(ends, key=lambda limit: limit["bytes_per_second"])
        extra = {"link_class": narrow["link_class"]}
        if point.get("direct") is False:
            extra["cause"] = (
                "the two GPUs cannot reach each other directly, so copies go through host memory (IOMMU, ACS, or another socket)"
            )
            extra["next_command"] = "nvidia-smi topo -m"
        return narrow["bytes_per_second"], narrow["text"] + ", no NVLink between the two", extra

    def _cause(self, gpu: dict[str, Any], slow: dict[str, Any] | None, over_pcie: bool = True) -> dict[str, Any]:
        """The most probable reason of a slow copy, by what is known: the link first."""
        if slow:
            return {key: slow[key] for key in ("cause", "next_command") if key in slow}
        title, total = f"GPU {gpu['address'] or gpu['index']}", gpu.get("memory_total_bytes") or 0
        used = total - gpu.get("memory_free_bytes", total)
        if used > total * _IDLE_USE_SHARE:
            cause = f"another program works on {title} ({used >> 20} of {total >> 20} MiB are in use): measure before it starts"
            return {"cause": cause, "next_command": "nvidia-smi"}
        if gpu.get("cpus_near") is False:
            cause = f"the probe may not run on the processors next to {title} (a cpuset keeps it away), so copies crossed the sockets"
            return {"cause": cause, "next_command": "nvidia-smi topo -m; grep Cpus_allowed_list /proc/self/status"}
        payload = over_pcie and (self.tree.functions.get(gpu["address"]) or {}).get("max_payload_bytes")
        if payload == 128:
            cause = f"{title} may send 128 B at a time (MaxPayload), which carries 8 % less than 256 B: look at BIOS maximum payload"
            return {"cause": cause, "next_command": f"lspci -vv -s {gpu['address']} | grep MaxPayload"}
        elsewhere = (
            f"the links of {title} are what they can be: look for another load on the memory or the switch, and for IOMMU translation"
            if over_pcie
            else f"the memory of {title} moves less than its clock allows: look for clocks held down by heat or power"
        )
        return {"cause": elsewhere, "next_command": "nvidia-smi -q -d PERFORMANCE,CLOCK,TEMPERATURE"}


def hidden_gpus(
    addresses: list[str], drivers: dict[str, str | None], shown: list[str], visible: str | None
) -> list[dict[str, Any]]:
    """Measurements for the GPUs of a machine that CUDA did not show: skipped where that is wanted, else an error."""
    found = []
    for address in addresses:
        if address in shown:
            continue
        base = {"name": "gpu_h2d_bandwidth", "scope": f"gpu {address}"}
        driver = drivers.get(address)
        if driver and driver.startswith("vfio"):
            found.append({**base, "skipped": f"GPU {address} is set aside for virtual machines (driver {driver})"})
        elif visible is not None:
            found.append(
                {**base, "skipped": f"GPU {address} is hidden from this run by CUDA_VISIBLE_DEVICES={visible}"}
            )
        else:
            reason = f"expected CUDA to show GPU {address} that is on PCI (driver {driver or 'none'}), found that it does not"
            found.append({**base, "error": reason, "next_command": "nvidia-smi; dmesg | grep -iE 'nvrm|xid'"})
    return found


def no_driver(addresses: list[str]) -> list[dict[str, Any]]:
    """The measurement of GPUs whose driver is not loaded."""
    several = f"{len(addresses)} NVIDIA GPUs are" if len(addresses) > 1 else f"NVIDIA GPU {addresses[0]} is"
    return failed(
        f"{several} on PCI, and the NVIDIA driver is not loaded: install it (the gpu_driver stage does)",
        next_command="modprobe nvidia; dmesg | grep -i nvrm",
    )


def _scope(gpu: dict[str, Any]) -> str:
    return f"gpu {gpu['address']}" if gpu["address"] else f"gpu {gpu['index']} (address unknown)"


def _narrowest(hops: list[dict[str, Any]], seen: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The narrowest hop under load, for the record."""
    known = [hop for hop in hops if hop["bandwidth_bytes_per_second"]]
    if not known:
        return {"samples": 0}
    hop = min(known, key=lambda each: each["bandwidth_bytes_per_second"])
    return {
        "samples": max(state["samples"] for state in seen.values()),
        "hop": hop["device"],
        "port": hop["port"],
        "speed_gts": hop["speed_gts"],
        "width": hop["width"],
        "bytes_per_second": round(pcie_bandwidth(hop["speed_gts"], hop["width"], hop["flit"])),
    }
