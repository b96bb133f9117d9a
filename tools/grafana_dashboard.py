#!/usr/bin/env python3
"""Write the Grafana dashboard: `tools/grafana_dashboard.py > roles/monitoring/files/dashboard.json`.

The panels are a table here, so that what they show can be reviewed; the JSON is Grafana's, schema version 38 (Grafana 10 and newer).
"""

from __future__ import annotations

import json
import sys
from typing import Any

Json = dict[str, Any]
Panel = tuple[str, str, str, list[tuple[str, str]]]
_SELECT = 'node=~"$node"'
_WIDTH, _HEIGHT = 8, 8


def _quantile(quantile: float, histogram: str) -> str:
    return (
        f"histogram_quantile({quantile}, sum by (node, le) (rate({histogram}_bucket{{{_SELECT}}}[$__rate_interval])))"
    )


def _rate(counter: str, by: str = "node", more: str = "") -> str:
    return f"sum by ({by}) (rate({counter}{{{_SELECT}{more}}}[$__rate_interval]))"


def _bound(name: str) -> tuple[str, str]:
    return f'max(plumbline_limit{{{_SELECT}, limit="{name}"}})', "bound"


# Row -> panels: title, unit of Grafana, what it means, and (expression, legend) each.
ROWS: dict[str, list[Panel]] = {
    "Endpoint": [
        (
            "Time to first token",
            "s",
            "As the engine counts it, from the arrival of the request. The bound is that of gates_slo for P99.",
            [
                (_quantile(0.5, "vllm:time_to_first_token_seconds"), "P50 {{node}}"),
                (_quantile(0.99, "vllm:time_to_first_token_seconds"), "P99 {{node}}"),
                _bound("time_to_first_token_p99_seconds"),
            ],
        ),
        (
            "Time between tokens",
            "s",
            "The bound is one over the planned decode_tokens_per_second, for the average.",
            [
                (_quantile(0.5, "vllm:inter_token_latency_seconds"), "P50 {{node}}"),
                (_quantile(0.99, "vllm:inter_token_latency_seconds"), "P99 {{node}}"),
                _bound("inter_token_seconds"),
            ],
        ),
        (
            "End-to-end latency",
            "s",
            "",
            [
                (_quantile(0.5, "vllm:e2e_request_latency_seconds"), "P50 {{node}}"),
                (_quantile(0.99, "vllm:e2e_request_latency_seconds"), "P99 {{node}}"),
                _bound("end_to_end_latency_p99_seconds"),
            ],
        ),
        (
            "Requests in the engine",
            "short",
            "Waiting requests mean that more is offered than it can do.",
            [
                (f"sum by (node) (vllm:num_requests_running{{{_SELECT}}})", "running {{node}}"),
                (f"sum by (node) (vllm:num_requests_waiting{{{_SELECT}}})", "waiting {{node}}"),
                _bound("queue_requests"),
            ],
        ),
        (
            "Key-value cache in use",
            "percentunit",
            "A full cache preempts requests: they are computed again.",
            [
                (f"max by (node) (vllm:kv_cache_usage_perc{{{_SELECT}}})", "used {{node}}"),
                (_rate("vllm:num_preemptions_total"), "preemptions/s {{node}}"),
                _bound("kv_cache_ratio"),
            ],
        ),
        (
            "Tokens",
            "short",
            "Tokens a second, read and written, and the share of the prompt that the prefix cache had.",
            [
                (_rate("vllm:prompt_tokens_total"), "read {{node}}"),
                (_rate("vllm:generation_tokens_total"), "written {{node}}"),
                (
                    f"{_rate('vllm:prefix_cache_hits_total')} / {_rate('vllm:prefix_cache_queries_total')}",
                    "prefix hits {{node}}",
                ),
            ],
        ),
        (
            "Answers at the gateway",
            "reqps",
            "By status. 4xx: wrong keys, too large, over the rate (429). 5xx: refused by overload (503) or failed.",
            [(_rate("haproxy_frontend_http_responses_total", "node, code", ', proxy="api"'), "{{code}} {{node}}")],
        ),
        (
            "Gateway: queue and nodes",
            "short",
            "",
            [
                (f'haproxy_backend_current_queue{{{_SELECT}, proxy="nodes"}}', "queue {{node}}"),
                (f'haproxy_backend_active_servers{{{_SELECT}, proxy="nodes"}}', "ready nodes {{node}}"),
                (f'haproxy_frontend_current_sessions{{{_SELECT}, proxy="api"}}', "connections {{node}}"),
            ],
        ),
        (
            "Memory of the engine",
            "bytes",
            "Anonymous memory: what grows here without load grows by a leak. The soak judges it.",
            [
                (
                    f'plumbline_unit_memory_anon_bytes{{{_SELECT}, unit="plumbline-serving.service"}}',
                    "anonymous {{node}}",
                ),
                (f'plumbline_unit_memory_file_bytes{{{_SELECT}, unit="plumbline-serving.service"}}', "files {{node}}"),
            ],
        ),
    ],
    "GPU": [
        (
            "Utilization",
            "percentunit",
            "",
            [(f"plumbline_gpu_utilization_ratio{{{_SELECT}}}", "{{gpu}} {{node}}")],
        ),
        (
            "Memory",
            "bytes",
            "",
            [
                (f"plumbline_gpu_memory_used_bytes{{{_SELECT}}}", "used {{gpu}} {{node}}"),
                (f"plumbline_gpu_memory_total_bytes{{{_SELECT}}}", "total {{gpu}} {{node}}"),
            ],
        ),
        (
            "Temperature",
            "celsius",
            "",
            [
                (f"plumbline_gpu_celsius{{{_SELECT}}}", "{{gpu}} {{node}}"),
                (f"plumbline_gpu_memory_celsius{{{_SELECT}}}", "memory {{gpu}} {{node}}"),
            ],
        ),
        ("Power", "watt", "", [(f"plumbline_gpu_watts{{{_SELECT}}}", "{{gpu}} {{node}}")]),
        (
            "Throttled",
            "short",
            "1 while the clock is held down, by reason.",
            [(f"plumbline_gpu_throttled{{{_SELECT}}}", "{{reason}} {{gpu}} {{node}}")],
        ),
        (
            "Errors",
            "short",
            "Since the driver was loaded, Xids since the boot.",
            [
                (f"plumbline_gpu_ecc_uncorrected_total{{{_SELECT}}}", "ECC uncorrected {{gpu}} {{node}}"),
                (f"plumbline_gpu_pcie_replays_total{{{_SELECT}}}", "PCIe replays {{gpu}} {{node}}"),
                (f"plumbline_gpu_xid_total{{{_SELECT}}}", "Xid {{xid}} {{gpu}} {{node}}"),
            ],
        ),
        (
            "Clock and NVLink (DCGM)",
            "short",
            "Only where a DCGM exporter runs (monitoring_dcgm_target).",
            [
                (f"DCGM_FI_DEV_SM_CLOCK{{{_SELECT}}} * 1e6", "clock {{gpu}} {{node}}"),
                (f"rate(DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL{{{_SELECT}}}[$__rate_interval])", "NVLink {{gpu}} {{node}}"),
            ],
        ),
    ],
    "Machine": [
        (
            "PCIe link speed, of what both ends can do",
            "percentunit",
            "An idle GPU saves power at a lower speed.",
            [
                (
                    f"plumbline_pcie_link_speed_gts{{{_SELECT}}} / plumbline_pcie_link_maximum_speed_gts{{{_SELECT}}}",
                    "{{kind}} {{device}} {{node}}",
                ),
                (
                    f"plumbline_pcie_link_width_lanes{{{_SELECT}}} / plumbline_pcie_link_maximum_width_lanes{{{_SELECT}}}",
                    "width {{kind}} {{device}} {{node}}",
                ),
            ],
        ),
        (
            "DIMM temperatures",
            "celsius",
            "",
            [(f'plumbline_sensor_celsius{{{_SELECT}, part="dimm"}}', "{{sensor}} {{node}}"), _bound("dimm_celsius")],
        ),
        (
            "Voltage regulator temperatures",
            "celsius",
            "",
            [(f'plumbline_sensor_celsius{{{_SELECT}, part="vrm"}}', "{{sensor}} {{node}}"), _bound("vrm_celsius")],
        ),
        (
            "Other temperatures",
            "celsius",
            "",
            [(f'plumbline_sensor_celsius{{{_SELECT}, part!~"dimm|vrm"}}', "{{sensor}} {{node}}")],
        ),
        (
            "Fans",
            "rotrpm",
            "",
            [(f"plumbline_sensor_fan_rpm{{{_SELECT}}}", "{{sensor}} {{node}}")],
        ),
        (
            "Power",
            "watt",
            "",
            [(f"plumbline_sensor_watts{{{_SELECT}}}", "{{sensor}} {{node}}")],
        ),
        (
            "Processor",
            "percentunit",
            "",
            [
                (
                    f'1 - avg by (node) (rate(node_cpu_seconds_total{{{_SELECT}, mode="idle"}}[$__rate_interval]))',
                    "busy {{node}}",
                )
            ],
        ),
        (
            "Memory",
            "bytes",
            "",
            [
                (f"node_memory_MemAvailable_bytes{{{_SELECT}}}", "available {{node}}"),
                (f"node_memory_AnonPages_bytes{{{_SELECT}}}", "anonymous {{node}}"),
            ],
        ),
        (
            "Disk space left",
            "percentunit",
            "",
            [
                (
                    f'node_filesystem_avail_bytes{{{_SELECT}, fstype!~"tmpfs|ramfs|overlay|squashfs"}}'
                    f" / node_filesystem_size_bytes{{{_SELECT}}}",
                    "{{mountpoint}} {{node}}",
                ),
                _bound("disk_free_ratio"),
            ],
        ),
    ],
}
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def _panel(number: int, place: Json, shown: Panel) -> Json:
    title, unit, description, targets = shown
    return {
        "id": number,
        "type": "timeseries",
        "title": title,
        "description": description,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {
            "defaults": {
                "unit": unit,
                "min": 0,
                "custom": {"lineWidth": 1, "fillOpacity": 0, "showPoints": "never", "spanNulls": False},
            },
            "overrides": [
                {
                    "matcher": {"id": "byName", "options": "bound"},
                    "properties": [
                        {"id": "color", "value": {"mode": "fixed", "fixedColor": "red"}},
                        {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [6, 6]}},
                    ],
                }
            ],
        },
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "expr": expression,
                "legendFormat": legend,
                "datasource": _SOURCE,
                "range": True,
            }
            for index, (expression, legend) in enumerate(targets)
        ],
    }


def dashboard() -> Json:
    """The dashboard, as Grafana imports it."""
    panels: list[Json] = []
    number, top = 1, 0
    for row, contents in ROWS.items():
        panels.append(
            {
                "id": number,
                "type": "row",
                "title": row,
                "collapsed": False,
                "gridPos": {"h": 1, "w": 24, "x": 0, "y": top},
                "panels": [],
            }
        )
        number, top = number + 1, top + 1
        for index, shown in enumerate(contents):
            place = {
                "h": _HEIGHT,
                "w": _WIDTH,
                "x": index % 3 * _WIDTH,
                "y": top + index // 3 * _HEIGHT,
            }
            panels.append(_panel(number, place, shown))
            number += 1
        top += (len(contents) + 2) // 3 * _HEIGHT
    return {
        "uid": "plumbline",
        "title": "Plumbline",
        "tags": ["plumbline"],
        "schemaVersion": 38,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "browser",
        "annotations": {
            "list": [
                {
                    "name": "Alerts",
                    "datasource": _SOURCE,
                    "enable": True,
                    "iconColor": "red",
                    "expr": f'ALERTS{{alertstate="firing", {_SELECT}}}',
                    "titleFormat": "{{alertname}}",
                    "textFormat": "{{node}} {{severity}}",
                }
            ]
        },
        "templating": {
            "list": [
                {
                    "name": "datasource",
                    "label": "Prometheus",
                    "type": "datasource",
                    "query": "prometheus",
                    "current": {},
                },
                {
                    "name": "node",
                    "label": "Node",
                    "type": "query",
                    "datasource": _SOURCE,
                    "query": {"query": 'label_values(up{job="node"}, node)', "refId": "node"},
                    "definition": 'label_values(up{job="node"}, node)',
                    "multi": True,
                    "includeAll": True,
                    "allValue": ".*",
                    "current": {"text": "All", "value": "$__all"},
                    "refresh": 2,
                    "sort": 1,
                },
            ]
        },
        "panels": panels,
    }


if __name__ == "__main__":
    json.dump(dashboard(), sys.stdout, indent=1)
    sys.stdout.write("\n")
