"""Alert rules and dashboard: every alert is tried both ways by promtool, and reads metrics that captured exporters really have."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.monitoring_support import CHECKOUT, program
from tools import grafana_dashboard

ALERTS = CHECKOUT / "roles/monitoring/files/alerts.yml"
DASHBOARD = CHECKOUT / "roles/monitoring/files/dashboard.json"
VARIABLES = yaml.safe_load((CHECKOUT / "roles/monitoring/vars/main.yml").read_text())
TESTS = sorted((CHECKOUT / "tests/monitoring").glob("*.yml"))
FIXTURES = CHECKOUT / "tests/fixtures/metrics"
RULES = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
# Made by Prometheus itself, or by a rule of the role.
OF_PROMETHEUS = {"up", "ALERTS", "plumbline:expected"}
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_WORDS = {"and", "or", "unless", "on", "by", "offset", "group_left", "group_right", "without", "bool", "ignoring"}


def metrics_of(expression: str) -> set[str]:
    """Names of the metrics in an expression: what is no word or function of PromQL and not within braces or brackets."""
    bare = re.sub(r'"[^"]*"', '""', expression)
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]", " ", bare)
    bare = re.sub(r"\b(on|by|group_left|group_right|without|ignoring)\s*\([^)]*\)", " ", bare)
    bare = re.sub(r"\b\d[\w.]*", " ", bare)
    # An offset's unit went with its number.
    return {
        match.group()
        for match in _NAME.finditer(bare)
        if match.group() not in _WORDS and not re.match(r"\s*\(", bare[match.end() :])
    }


def names_in(text: str) -> set[str]:
    """Names of the samples in a scrape."""
    return {_NAME.match(line).group() for line in text.splitlines() if _NAME.match(line)}  # type: ignore[union-attr]


def captured() -> set[str]:
    """Every metric that an exporter really gave, and every one that the collector can give."""
    found = set(OF_PROMETHEUS)
    for path in FIXTURES.glob("*.txt"):
        found |= names_in(path.read_text())
    found |= {line.split(",")[0] for line in (FIXTURES / "dcgm_default_counters.csv").read_text().splitlines()}
    return found | collected()


def collected() -> set[str]:
    """What the collector gives, from its tests' own captured inputs."""
    from tests.unit.test_metrics_collector import everything  # noqa: PLC0415 - the other file's tests are not wanted here

    return names_in(everything())


def panels() -> Iterator[tuple[str, str]]:
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]


def runnable(expression: str) -> str:
    """An expression of the dashboard with Grafana's variables filled in."""
    return expression.replace("$__rate_interval", "1m").replace("$node", ".*")


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ('max by (node) (up{job="vllm"}) == 0', {"up"}),
        ("rate(a:b_total[5m]) / on (node) group_left () c", {"a:b_total", "c"}),
        ("a offset 1d unless time() - 27 * 3600 > 1e6", {"a"}),
        ('label_replace(avg_over_time(g[3m]) > 0.5, "device", "$1", "gpu", "(.+)")', {"g"}),
    ],
)
def test_metrics_are_found_in_an_expression(expression: str, found: set[str]) -> None:
    assert metrics_of(expression) == found


@pytest.mark.parametrize("file", TESTS, ids=lambda path: path.stem)
def test_alerts_fire_and_do_not_fire(file: Path, tmp_path: Path) -> None:
    """The expressions are those of the role's file; only the texts for people are left out, for promtool compares them, too."""
    rules = yaml.safe_load(ALERTS.read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            del rule["annotations"]
    (tmp_path / "alerts.yml").write_text(yaml.safe_dump(rules))
    (tmp_path / file.name).write_text(file.read_text())
    done = subprocess.run(
        [program("promtool"), "test", "rules", file.name],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_is_tried_both_ways() -> None:
    """It fires for some series and spares others: of another node, sensor or time."""
    tried: dict[str, list[Any]] = {}
    for file in TESTS:
        for test in yaml.safe_load(file.read_text())["tests"]:
            nodes = {
                match for series in test["input_series"] for match in re.findall(r'node="(\w+)"', series["series"])
            }
            for case in test["alert_rule_test"]:
                fires = {alert["exp_labels"]["node"] for alert in case.get("exp_alerts", [])}
                tried.setdefault(case["alertname"], []).append(
                    (bool(fires), not fires or bool(nodes - fires) or len(test["input_series"]) > len(fires))
                )
    assert sorted(tried) == sorted(rule["alert"] for rule in RULES)
    assert [name for name, cases in tried.items() if not any(fires for fires, _ in cases)] == []
    assert [name for name, cases in tried.items() if not any(spares for _, spares in cases)] == []


def test_each_alert_says_what_is_wrong_and_what_to_do() -> None:
    assert [rule["alert"] for rule in RULES if set(rule["annotations"]) != {"summary", "action"}] == []
    assert {rule["labels"]["severity"] for rule in RULES} == {"critical", "warning"}
    # Whose it is must be told.
    assert [rule["alert"] for rule in RULES if "$labels.node" not in rule["annotations"]["summary"]] == []


def test_alerts_read_metrics_that_there_are() -> None:
    known = captured()
    assert {rule["alert"]: metrics_of(rule["expr"]) - known for rule in RULES if metrics_of(rule["expr"]) - known} == {}


def test_the_dashboard_reads_metrics_that_there_are() -> None:
    known = captured()
    read = list(panels())
    assert len(read) > 40
    assert [(title, metrics_of(runnable(e)) - known) for title, e in read if metrics_of(runnable(e)) - known] == []


def test_the_gate_looks_for_what_the_alerts_read_of_every_node() -> None:
    """vars/main.yml lists by job what must be there on any machine; the rest is of hardware that not every machine has."""
    listed = {name for names in VARIABLES["__monitoring_metrics"].values() for name in names}
    read = {name for rule in RULES for name in metrics_of(rule["expr"])} - OF_PROMETHEUS
    assert listed <= read
    assert {name for name in read - listed if not name.startswith(("plumbline_", "node_edac_"))} == set()


def test_the_bounds_of_the_alerts_are_those_that_the_role_sets() -> None:
    compared = {name for rule in RULES for name in re.findall(r'plumbline_limit\{limit="(\w+)"\}', rule["expr"])}
    # The variable is one expression of Jinja2; its keys are the bounds.
    assert compared == set(re.findall(r"'(\w+)':", VARIABLES["__monitoring_bounds"]))


def test_every_expression_of_the_dashboard_can_be_parsed(tmp_path: Path) -> None:
    rules = [{"record": f"panel:{number}", "expr": runnable(e)} for number, (_, e) in enumerate(panels())]
    (tmp_path / "panels.yml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    done = subprocess.run(
        [program("promtool"), "check", "rules", "panels.yml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(rules)} rules found" in done.stdout


def test_the_dashboard_is_what_its_table_says() -> None:
    assert json.loads(DASHBOARD.read_text()) == grafana_dashboard.dashboard()


def test_the_dashboard_is_one_that_grafana_can_place() -> None:
    """No panel covers another, and all ids differ; Grafana drops one of two that share an id."""
    placed: set[tuple[int, int]] = set()
    found = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in found}) == len(found)
    for panel in found:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & placed, panel["title"]
        assert place["x"] + place["w"] <= 24
        placed |= cells
