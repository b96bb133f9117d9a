"""What hours of a soak say, as measurements: growth and drift with their intervals, restarts, errors, temperatures and links.

Pure functions of the lines that sampler and load client wrote. No opinion: the gate judges.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .leak_trend import CONFIDENCE, FEWEST_SAMPLES, Trend, trend
from .load_tally import Tally
from .soak_sampler import done_seconds

Line = Mapping[str, Any]
MOST_POINTS = 600  # of a plot
_SLOW_LINK = 0.95
_NOTHING = 1e-9
REQUEST_NAMES = (
    "time_to_first_token_p50",
    "time_to_first_token_p90",
    "time_to_first_token_p99",
    "end_to_end_latency_p50",
    "end_to_end_latency_p90",
    "end_to_end_latency_p99",
    "request_error_fraction",
    "soak_request_rate",
)
_LATENCIES = (
    ("time to first token, P50", "time_to_first_token_seconds", "p50"),
    ("time to first token, P99", "time_to_first_token_seconds", "p99"),
    ("between tokens, P50", "inter_token_latency_seconds", "p50"),
    ("end to end, P50", "end_to_end_latency_seconds", "p50"),
)


def judge(samples: Sequence[Line], load: Sequence[Line], spec: Line, horizon_seconds: float) -> list[dict[str, Any]]:
    """Return every measurement of a soak, over what was done of it so far."""
    spec = {**spec, "horizon_seconds": horizon_seconds}
    readings = [line for line in samples if line.get("kind") == "sample"]
    intervals = [line for line in load if line.get("kind") == "interval"]
    return [
        *_run(samples, readings, spec),
        *_memory(readings, spec),
        *_drift(intervals, readings, spec),
        *_requests(intervals, spec),
        *_hardware(readings),
    ]


def _run(samples: Sequence[Line], readings: Sequence[Line], spec: Line) -> list[dict[str, Any]]:
    done = done_seconds(list(map(dict, samples)), float(spec["interval_seconds"]))
    boots = list(dict.fromkeys(line["boot"] for line in samples if line.get("kind") == "session"))
    engines = list(dict.fromkeys(line["engine"] for line in readings if line.get("engine")))
    away = sum(1 for line in readings if not line.get("engine"))
    lost = sum(int(line.get("lost", 0)) for line in samples if line.get("kind") == "end")
    restarts = max(0, len(engines) - 1)
    return [
        {
            "name": "soak_duration",
            "scope": "node",
            "value": done,
            "unit": "s",
            "limit": float(spec["duration_seconds"]),
            "limit_source": "soak_duration_seconds",
            "statistic": "gaps left out",
            "conditions": {
                "samples": len(readings),
                "samples_lost": lost,
                "sessions": sum(line.get("kind") == "session" for line in samples),
            },
        },
        {
            "name": "soak_engine_restarts",
            "scope": str(spec["unit"]),
            "value": restarts + (1 if away and not restarts else 0),
            "unit": "count",
            "statistic": "starts after the first, or an end without one",
            "conditions": {"samples_without_engine": away},
        },
        {
            "name": "soak_node_restarts",
            "scope": "node",
            "value": max(0, len(boots) - 1),
            "unit": "count",
            "statistic": "starts of the node between the sessions",
        },
    ]


def longest_start(readings: Sequence[Line]) -> list[Line]:
    """The readings of the engine's start that lasted longest: memory of two starts is no series."""
    by_engine: dict[str, list[Line]] = {}
    for line in readings:
        if line.get("engine"):
            by_engine.setdefault(str(line["engine"]), []).append(line)
    return max(by_engine.values(), key=len, default=[])


def _memory(readings: Sequence[Line], spec: Line) -> Iterable[dict[str, Any]]:
    chosen = longest_start(readings)
    judged = [
        ("engine, proportional set size", _series(chosen, "memory", "pss")),
        ("engine, anonymous memory", _series(chosen, "memory", "anonymous")),
        ("node, AnonPages", _series(chosen, "node", "AnonPages")),
    ]
    addresses = dict.fromkeys(gpu["address"] for line in chosen for gpu in line.get("gpus", []))
    judged += [(f"GPU {address}", _gpu_series(chosen, address, "memory_bytes")) for address in addresses]
    for scope, series in judged:
        if series or not scope.startswith("engine, prop"):
            yield _growth("soak_memory_growth", scope, series, "B", spec)
    yield _growth("soak_mapped_growth", "node, Mapped", _series(chosen, "node", "Mapped"), "B", spec)
    yield _growth("soak_mapped_growth", "engine, RSS", _series(chosen, "memory", "rss"), "B", spec)


def _series(lines: Sequence[Line], group: str, name: str) -> list[tuple[float, float]]:
    return [
        (float(line["time"]), float(line[group][name]))
        for line in lines
        if isinstance(line.get(group), Mapping) and line[group].get(name) is not None
    ]


def _gpu_series(lines: Sequence[Line], address: str, name: str) -> list[tuple[float, float]]:
    return [
        (float(line["time"]), float(gpu[name]))
        for line in lines
        for gpu in line.get("gpus", [])
        if gpu["address"] == address and name in gpu
    ]


def _drift(intervals: Sequence[Line], readings: Sequence[Line], spec: Line) -> Iterable[dict[str, Any]]:
    chosen = longest_start(readings)
    begin, end = (chosen[0]["time"], chosen[-1]["time"]) if chosen else (0, float("inf"))
    within = [line for line in intervals if begin <= line["start"] and line["end"] <= end]
    for scope, field, percentile in _LATENCIES:
        series = [
            ((line["start"] + line["end"]) / 2, float(line[field][percentile]))
            for line in within
            if line.get(field, {}).get(percentile)
        ]
        yield _growth("soak_latency_drift", scope, series, "s", spec)


def _growth(name: str, scope: str, series: list[tuple[float, float]], unit: str, spec: Line) -> dict[str, Any]:
    """A growth with its interval, the points of its plot, or the reason why there is none."""
    horizon = float(spec["horizon_seconds"])
    entry: dict[str, Any] = {"name": name, "scope": scope, "unit": "fraction", "horizon_seconds": horizon}
    if series:
        step = max(1, -(-len(series) // MOST_POINTS))
        points = series[::step]
        entry["samples"] = [value for _, value in points]
        entry["sample_seconds"] = [round(time - series[0][0], 1) for time, _ in points]
        entry["sample_unit"] = unit
    times, values = [time for time, _ in series], [value for _, value in series]
    found = trend(times, values, warmup_seconds=float(spec["warmup_seconds"])) if series else ""
    if not isinstance(found, Trend):
        entry["error"] = f"too short to judge: {found}{_enough(times)}" if found else "there is no sample of it"
        return entry
    # What arithmetic leaves of a constant series is none.
    value, low, high = (0.0 if abs(each) < _NOTHING else each for each in found.growth(horizon))
    settled = found.begin - series[0][0]
    entry.update(
        value=value,
        low=low,
        high=high,
        confidence=CONFIDENCE,
        judged_seconds=found.seconds,
        settled_seconds=settled,
        slope_per_second=found.slope,
        level=found.level,
        correlation=round(found.correlation, 3),
        statistic=(
            f"slope of {found.batches} batch means of {found.samples} samples, "
            f"{'a daily rhythm apart, ' if found.daily else ''}{settled / 60:.3g} min of warm-up left out"
        ),
    )
    return entry


def _enough(times: Sequence[float]) -> str:
    """How long would give as many samples as a slope needs, where it is that."""
    if len(times) < 2 or times[-1] <= times[0]:
        return ""
    seconds = FEWEST_SAMPLES * (times[-1] - times[0]) / (len(times) - 1)
    return f"; {_span(seconds)} after the warm-up would do"


def _requests(intervals: Sequence[Line], spec: Line) -> list[dict[str, Any]]:
    if not intervals:
        error = "the load client wrote no interval; journalctl -u plumbline-soak says why"
        return [{"name": name, "scope": "soak", "error": error} for name in REQUEST_NAMES]
    total = Tally.from_json(intervals[0])
    for line in intervals[1:]:
        total.add(Tally.from_json(line))
    ended, failed = total.all_ended, sum(total.failed.values())
    kinds = ", ".join(f"{count} x {kind}" for kind, count in total.failed.most_common(5))
    found: list[dict[str, Any]] = []
    for name in ("time_to_first_token", "end_to_end_latency"):
        histogram = total.histograms[name]
        for percent in ("50", "90", "99"):
            entry: dict[str, Any] = {"name": f"{name}_p{percent}", "scope": "soak", "unit": "s"}
            entry["statistic"] = f"P{percent} of {histogram.count}"
            if histogram.count:
                entry["value"] = histogram.percentile(float(percent))
                entry["samples"] = histogram.spread(2000) if percent == "99" else []
            else:
                entry["error"] = f"no request succeeded ({kinds or 'none ended'})"
            found.append(entry)
    errors: dict[str, Any] = {"name": "request_error_fraction", "scope": "soak", "unit": "fraction"}
    errors["statistic"] = f"{failed} failed of {ended}"
    if ended:
        errors.update(value=failed / ended, cause=f"{kinds}; first: {total.first_error}" if failed else "")
    else:
        errors["error"] = "no request ended"
    seconds = sum(line["end"] - line["start"] for line in intervals)
    wanted = float(spec["load"].get("rate_per_second") or 0)
    rate: dict[str, Any] = {"name": "soak_request_rate", "scope": "soak", "unit": "requests/s"}
    if seconds > 0 and wanted:
        rate.update(value=ended / seconds, limit=total.counts["requested"] / seconds, limit_source="requested rate")
        rate["statistic"] = f"{ended} requests ended in {seconds / 3600:.3g} h"
    else:
        rate["skipped"] = "the load has no rate of its own" if not wanted else "no interval lasted"
    return [*found, errors, rate]


def _hardware(readings: Sequence[Line]) -> list[dict[str, Any]]:
    return [*_temperatures(readings), *_links(readings), *_errors(readings)]


def _temperatures(readings: Sequence[Line]) -> list[dict[str, Any]]:
    hottest: dict[str, tuple[float, float | None]] = {}
    for line in readings:
        found = [
            (name, each["celsius"], each.get("critical_celsius")) for name, each in line.get("temperatures", {}).items()
        ]
        found += [(f"GPU {gpu['address']}", gpu["celsius"], None) for gpu in line.get("gpus", []) if "celsius" in gpu]
        for name, celsius, critical in found:
            if name not in hottest or celsius > hottest[name][0]:
                hottest[name] = (celsius, critical)
    if not hottest:
        return [{"name": "soak_temperature", "scope": "node", "skipped": "the kernel shows no temperature here"}]
    entries: list[dict[str, Any]] = []
    for name, (celsius, critical) in sorted(hottest.items()):
        entries.append(
            {"name": "soak_temperature", "scope": name, "value": celsius, "unit": "Cel", "statistic": "highest"}
        )
        if critical is not None:
            margin = {
                "value": critical - celsius,
                "unit": "Cel",
                "statistic": f"highest {celsius:g} of {critical:g} °C",
            }
            entries.append({"name": "soak_temperature_margin", "scope": name, **margin})
    return entries


def _links(readings: Sequence[Line]) -> list[dict[str, Any]]:
    """Links save power when idle, so the best of the last tenth is held against the best of all."""
    seen = [line["links"] for line in readings if line.get("links")]
    for line in readings:
        for gpu in line.get("gpus", []):
            if gpu.get("generation") and gpu.get("width"):
                seen.append({f"GPU {gpu['address']}": [float(gpu["generation"]), float(gpu["width"])]})
    if not seen:
        return [
            {"name": "soak_links_lost_speed", "scope": "node", "skipped": "no PCIe link of a GPU, NIC or drive here"}
        ]
    lost = []
    for address in sorted({address for each in seen for address in each}):
        history = [each[address][0] * each[address][1] for each in seen if address in each]
        if max(history[-max(1, len(history) // 10) :]) < _SLOW_LINK * max(history):
            lost.append(address)
    return [
        {
            "name": "soak_links_lost_speed",
            "scope": "node",
            "value": len(lost),
            "unit": "count",
            "statistic": "best of the last tenth of the time against the best of all",
            "cause": f"{', '.join(lost)} ran slower or narrower at the end than before" if lost else "",
            "next_command": "ansible-playbook playbooks/validate.yml",
        }
    ]


def _errors(readings: Sequence[Line]) -> list[dict[str, Any]]:
    counters: dict[tuple[str, str], list[int]] = {}
    for line in readings:
        for kind, count in line.get("memory_errors", {}).items():
            counters.setdefault(("node", "uncorrected" if kind == "uncorrectable" else "corrected"), []).append(count)
        for gpu in line.get("gpus", []):
            for kind in ("uncorrected", "corrected"):
                if f"ecc_{kind}" in gpu:
                    counters.setdefault((f"GPU {gpu['address']}", kind), []).append(gpu[f"ecc_{kind}"])
    if not counters:
        return [{"name": "soak_ecc_uncorrected", "scope": "node", "skipped": "nothing counts memory errors here"}]
    names = {"uncorrected": "soak_ecc_uncorrected", "corrected": "soak_ecc_corrected"}
    return [
        {
            "name": names[kind],
            "scope": scope,
            # A counter begins anew with its driver, so rises are summed.
            "value": sum(max(0, later - earlier) for earlier, later in zip(counts, counts[1:])),
            "unit": "count",
            "statistic": "during the soak",
        }
        for (scope, kind), counts in sorted(counters.items())
    ]


def progress_text(progress: Line) -> str:
    """How far a soak is, for a terminal, from what the sampler keeps in its runtime folder."""
    done, wanted = float(progress.get("done_seconds", 0)), float(progress.get("wanted_seconds", 0))
    memory, waiting = progress.get("memory_bytes"), progress.get("waiting", 0)
    parts = [
        f"{_span(done)} of {_span(wanted)} ({min(1.0, done / wanted) if wanted else 1:.0%})",
        f"{progress.get('requests', 0)} requests, {progress.get('failed', 0)} failed",
        f"engine {memory / 2**30:.3f} GiB" if memory else "the engine does not run",
    ]
    return ", ".join([*parts, f"{waiting} lines wait for the disk"] if waiting else parts)


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
