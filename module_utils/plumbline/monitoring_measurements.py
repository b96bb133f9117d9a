"""What a Prometheus sees and what it judges by, as measurements."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Json = dict[str, Any]
_LISTED = 5
_SENDING = {
    "prometheus_remote_storage_samples_total": "sent",
    "prometheus_remote_storage_samples_failed_total": "failed",
    "prometheus_remote_storage_samples_pending": "pending",
}


def _some(found: Iterable[str]) -> str:
    """The first of many, and how many more."""
    names = list(found)
    return ", ".join(names[:_LISTED]) + (f" and {len(names) - _LISTED} more" if len(names) > _LISTED else "")


def target_measurements(wanted: Sequence[Mapping[str, Any]], active: Sequence[Json], scope: str) -> list[Json]:
    """`monitoring_target` for each wanted target: `up`, or what it is."""
    found = []
    for want in wanted:
        seen = next(
            (one for one in active if one["scrapePool"] == want["job"] and _address(one) == want["target"]), None
        )
        found.append(
            {
                "name": "monitoring_target",
                "scope": f"{want['job']} on {scope}",
                "value": seen["health"] if seen else "not scraped",
                "expected": "up",
                "cause": f"{want['target']}: {seen['lastError']}" if seen and seen["lastError"] else "",
                "next_command": f"curl -s http://{want['target']}/metrics | head",
            }
        )
    return found


def _address(target: Json) -> str:
    return str(target["discoveredLabels"].get("__address__", ""))


def settled(wanted: Sequence[Mapping[str, Any]], active: Sequence[Json]) -> bool:
    """Whether each wanted target is up."""
    return all(m["value"] == "up" for m in target_measurements(wanted, active, ""))


def rule_measurement(alerts: Sequence[str], loaded: Sequence[Json], scope: str) -> Json:
    """`monitoring_rules`: how many of the alerts are loaded and can be evaluated; all must."""
    sound = {rule["name"] for rule in loaded if rule["type"] == "alerting" and rule.get("health") != "err"}
    missing = sorted(set(alerts) - sound)
    errors = [f"{rule['name']}: {rule.get('lastError')}" for rule in loaded if rule.get("health") == "err"]
    told = [f"not loaded: {_some(missing)}"] if missing and not errors else []
    return {
        "name": "monitoring_rules",
        "scope": scope,
        "value": len(set(alerts)) - len(missing),
        "expected": len(set(alerts)),
        "conditions": {"missing": missing},
        "cause": "; ".join([*told, *errors[:_LISTED]]),
        "next_command": "promtool check rules /etc/plumbline/monitoring/rules/*.yml; journalctl -u plumbline-prometheus",
    }


def metric_measurement(
    wanted: Mapping[str, Sequence[str]], jobs: Iterable[str], known: Mapping[str, set[str]], scope: str
) -> Json:
    """`monitoring_metrics_missing`: metrics that rules and dashboard read and that the jobs of this host do not deliver."""
    missing = sorted(
        f"{name} ({job})" for job in jobs for name in wanted.get(job, ()) if name not in known.get(job, set())
    )
    return {
        "name": "monitoring_metrics_missing",
        "scope": scope,
        "value": len(missing),
        "unit": "count",
        "conditions": {"missing": missing},
        "cause": f"{_some(missing)}: this version names it otherwise, or it is switched off" if missing else "",
    }


def bound_measurement(wanted: Sequence[str], found: Sequence[Json], nodes: Sequence[str], scope: str) -> Json:
    """`monitoring_bounds_missing`: bounds that alerts compare with and that a node does not tell; such an alert never fires."""
    told = {(one["metric"].get("node"), one["metric"].get("limit")) for one in found}
    missing = sorted(f"{bound} of {node}" for node in nodes for bound in wanted if (node, bound) not in told)
    return {
        "name": "monitoring_bounds_missing",
        "scope": scope,
        "value": len(missing),
        "unit": "count",
        "conditions": {"missing": missing},
        "cause": f"{_some(missing)}: the metrics collector did not write it" if missing else "",
        "next_command": "systemctl status plumbline-metrics.timer; journalctl -u plumbline-metrics",
    }


def node_measurements(nodes: Sequence[str], found: Sequence[Json]) -> list[Json]:
    """`monitoring_node` for each node whose figures are expected: `heard`, or `silent`."""
    heard = {one["metric"].get("node") for one in found}
    return [
        {
            "name": "monitoring_node",
            "scope": node,
            "value": "heard" if node in heard else "silent",
            "expected": "heard",
            "cause": "" if node in heard else f"no figure of the node exporter on {node} has come",
            "next_command": f"on {node}: systemctl status plumbline-prometheus; journalctl -u plumbline-prometheus",
        }
        for node in nodes
    ]


def firing_measurement(firing: Sequence[Json], scope: str) -> Json:
    """`monitoring_alerts`: how many alerts fire now, and which."""
    told = sorted(
        f"{alert['labels'].get('alertname')} ({alert['labels'].get('node', '')}): {alert['annotations'].get('summary', '')}"
        for alert in firing
    )
    return {
        "name": "monitoring_alerts",
        "scope": scope,
        "value": len(told),
        "unit": "count",
        "conditions": {"firing": told},
        "cause": _some(told),
        "next_command": next(
            (alert["annotations"]["action"] for alert in firing if alert["annotations"].get("action")), ""
        ),
    }


def sending_measurement(metrics: str, scope: str) -> Json:
    """`monitoring_samples_unsent`: samples that the agent failed to send to the monitoring host, or has not sent, from its own metrics."""
    values = dict.fromkeys(_SENDING.values(), 0.0)
    for line in metrics.splitlines():
        name, _, rest = line.partition("{")
        if name in _SENDING and rest:
            values[_SENDING[name]] += float(rest.rpartition(" ")[2])
    common: Json = {"name": "monitoring_samples_unsent", "scope": scope, "unit": "count", "conditions": dict(values)}
    if not values["sent"]:
        return {**common, "error": "no sample has reached the monitoring host: is it up, and does it let this host in?"}
    return {
        **common,
        "value": values["failed"],
        "cause": "the monitoring host refused samples" if values["failed"] else "",
        "next_command": "journalctl -u plumbline-prometheus",
    }
