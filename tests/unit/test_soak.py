"""The soak on a node whose service manager is two scripts: it loads a mock endpoint, is picked up, goes on, and says what went wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.errors import AnsibleConnectionFailure
from ansible_collections.plumbline.plumbline.plugins.action.soak_info import ActionModule
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import load_program, soak_program
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.gates import Check
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.gates import judge as judge_one
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.soak_judgement import judge, progress_text
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.soak_readings import (
    gpus,
    links,
    temperatures,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.soak_run import Soak
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.soak_sampler import (
    Lines,
    done_seconds,
    read_lines,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.tree import Tree

from tests.mock_endpoint import Behaviour, serve
from tests.unit.measurement_names import CHECKOUT

HORIZON = 72 * 3600.0
RULES = yaml.safe_load((CHECKOUT / "group_vars/all/gates.yml").read_text(encoding="utf-8"))["gates_rules"]
RULES["request_error_fraction"] = {"kind": "maximum", "unit": "fraction", "fail": 0}
SYSTEMCTL = """#!/bin/sh
case "$1" in
  is-active) kill -0 "$(cat {base}/soak.pid)" 2>/dev/null && echo active || echo inactive ;;
  show) echo "MainPID=$(cat {base}/engine.pid)"; echo ControlGroup= ;;
  stop) kill "$(cat {base}/soak.pid)"; while kill -0 "$(cat {base}/soak.pid)" 2>/dev/null; do sleep 0.1; done ;;
esac
"""
SYSTEMD_RUN = """#!/bin/sh
while [ "${{1#--}}" != "$1" ]; do shift; done
setsid "$@" > {base}/log 2>&1 &
echo $! > {base}/soak.pid
"""


class Node:
    """A folder, a runtime folder, and processes that stand for the engine."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.soak = Soak(base / "soak", "plumbline-soak-of-a-test.service", base / "run")
        self.engines: list[subprocess.Popen[bytes]] = []
        self.new_engine()

    def new_engine(self) -> None:
        self.end_engine()
        self.engines.append(subprocess.Popen(["sleep", "600"]))
        (self.base / "engine.pid").write_text(str(self.engines[-1].pid))

    def end_engine(self) -> None:
        for engine in self.engines:
            engine.kill()
            engine.wait()
        (self.base / "engine.pid").write_text("0")

    def spec(self, url: str, seconds: float = 4.0, **load: Any) -> dict[str, Any]:
        return {
            "unit": "engine.service",
            "python": sys.executable,
            "duration_seconds": seconds,
            "interval_seconds": 0.1,
            "warmup_seconds": 0.0,
            "load": {
                "base_url": url,
                "model": "mock",
                "rate_per_second": 20,
                "output_tokens": 3,
                "interval_seconds": 0.5,
                "request_timeout_seconds": 2,
                **load,
            },
        }

    def start(self, spec: dict[str, Any]) -> None:
        self.soak.start(spec, Behaviour().api_key, soak_program.program(), load_program.program())

    def wait(self, state: str, seconds: float = 60) -> None:
        until = time.monotonic() + seconds
        while self.soak.state() != state:
            assert time.monotonic() < until, (self.base / "log").read_text()
            time.sleep(0.1)

    def lines(self, name: str) -> list[dict[str, Any]]:
        return read_lines(self.soak.folder / f"{name}.jsonl")

    def checks(self) -> dict[str, Check]:
        found = judge(self.lines("samples"), self.lines("load"), self.soak.spec(), HORIZON)
        return {f"{each['name']} {each['scope']}": judge_one(each, RULES) for each in found}


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, text in (("systemctl", SYSTEMCTL), ("systemd-run", SYSTEMD_RUN)):
        (tools / name).write_text(text.format(base=tmp_path))
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    made = Node(tmp_path)
    try:
        yield made
    finally:
        made.end_engine()
        if made.soak.active():
            os.kill(int((tmp_path / "soak.pid").read_text()), signal.SIGTERM)
            made_until = time.monotonic() + 30
            while made.soak.active() and time.monotonic() < made_until:
                time.sleep(0.1)


def test_it_loads_reads_ends_and_is_put_away(node: Node) -> None:
    with serve(Behaviour()) as endpoint:
        node.start(node.spec(endpoint.base_url))
        assert node.soak.state() == "running"
        assert (node.soak.runtime / "key").stat().st_mode & 0o777 == 0o600
        node.wait("finished")
    samples, load = node.lines("samples"), node.lines("load")
    assert [*[line["kind"] for line in samples][:1], samples[-1]["kind"]] == ["session", "end"]
    assert samples[-1]["reason"] == "over"
    assert len(samples) > 20
    assert samples[1]["memory"]["anonymous"] > 0
    assert samples[1]["node"]["AnonPages"] > 0
    assert sum(line["completed"] for line in load if line["kind"] == "interval") > 40
    checks = node.checks()
    assert checks["soak_engine_restarts engine.service"].status == "OK"
    assert checks["request_error_fraction soak"].status == "OK"
    # Some seconds tell nothing of 72 hours, and say so.
    told = checks["soak_memory_growth node, AnonPages"]
    assert told.status == "UNKNOWN", told.reason
    assert "too short to judge" in told.reason
    assert "s after the warm-up would do" in told.reason
    key = Behaviour().api_key
    assert not any(key in path.read_text(errors="replace") for path in node.soak.folder.iterdir() if path.is_file())
    place = Path(node.soak.archive())
    assert {path.name for path in place.iterdir()} == {"spec.json", "samples.jsonl", "load.jsonl"}
    assert node.soak.state() == "absent"
    assert not node.soak.runtime.exists()


def test_it_outlives_a_restart_of_the_node_and_says_so(node: Node) -> None:
    with serve(Behaviour()) as endpoint:
        spec = node.spec(endpoint.base_url, 5.0)
        node.start(spec)
        until = time.monotonic() + 30
        while len(node.lines("samples")) < 15 and time.monotonic() < until:
            time.sleep(0.1)
        # The power goes: no end is written, a line is cut off, the key in /run is gone.
        os.killpg(int((node.base / "soak.pid").read_text()), signal.SIGKILL)
        while node.soak.active():
            time.sleep(0.05)
        with (node.soak.folder / "samples.jsonl").open("ab") as stream:
            stream.write(b'{"kind":"sample","time":')
        (node.soak.runtime / "key").unlink()
        assert node.soak.state() == "interrupted"
        before = done_seconds(node.lines("samples"), 0.1)
        assert before > 0.5
        time.sleep(1.0)
        node.new_engine()
        node.start(spec)
        node.wait("finished")
    samples = node.lines("samples")
    sessions = [line for line in samples if line["kind"] == "session"]
    assert sessions[1]["remaining"] == pytest.approx(5 - before, abs=0.3)
    assert 4.0 < done_seconds(samples, 0.1) < 6.0  # the second between is no part of it
    checks = node.checks()
    assert checks["soak_engine_restarts engine.service"].status == "CRITICAL"
    # Here the machine itself has not restarted: another boot is another identity in the session's line.
    sessions[1]["boot"] = "another"
    found = judge(samples, node.lines("load"), spec, HORIZON)
    restart = next(each for each in found if each["name"] == "soak_node_restarts")
    assert restart["value"] == 1
    assert judge_one(restart, RULES).status == "WARN"


def test_an_endpoint_that_dies_is_in_the_errors_and_the_soak_goes_on(node: Node) -> None:
    with serve(Behaviour()) as endpoint:
        node.start(node.spec(endpoint.base_url, 5.0))
        until = time.monotonic() + 30
        while not any(line.get("completed") for line in node.lines("load")) and time.monotonic() < until:
            time.sleep(0.1)
    node.end_engine()
    node.wait("finished")
    checks = node.checks()
    errors = checks["request_error_fraction soak"]
    assert errors.status == "CRITICAL"
    assert "connection" in errors.cause
    assert checks["soak_engine_restarts engine.service"].status == "CRITICAL"


def test_a_stopped_soak_can_go_on(node: Node) -> None:
    with serve(Behaviour()) as endpoint:
        node.start(node.spec(endpoint.base_url, 60.0))
        until = time.monotonic() + 30
        while len(node.lines("samples")) < 5 and time.monotonic() < until:
            time.sleep(0.1)
        node.soak.stop()
    assert node.soak.state() == "interrupted"
    assert node.lines("samples")[-1]["reason"] == "stopped"
    assert not node.soak.runtime.exists()


def test_a_full_disk_costs_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = Lines(tmp_path / "lines")
    real = os.write
    room = [5]

    def full(handle: int, data: bytes) -> int:
        if room[0] <= 0:
            raise OSError(28, "No space left on device")
        data = data[: room[0]]
        room[0] -= len(data)
        return real(handle, data)

    monkeypatch.setattr(os, "write", full)
    lines.append({"a": 1})  # only a part of it fits
    lines.append({"a": 2})
    assert lines.waiting == 2
    assert read_lines(tmp_path / "lines") == []
    room[0] = 1000
    lines.append({"a": 3})
    lines.close()
    assert read_lines(tmp_path / "lines") == [{"a": 1}, {"a": 2}, {"a": 3}]
    assert lines.lost == 0


def run_module(node: Node, **parameters: Any) -> dict[str, Any]:
    """Run the module itself, in a process as Ansible does."""
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import soak_run\n"
        f"soak_run.UNIT, soak_run.RUNTIME = {node.soak.unit!r}, Path({str(node.soak.runtime)!r})\n"
        "soak_run.Soak.__init__.__defaults__ = (soak_run.UNIT, soak_run.RUNTIME)\n"
        "from ansible_collections.plumbline.plumbline.plugins.modules import soak\n"
        "soak.main()\n"
    )
    parameters = {"directory": str(node.soak.folder), **parameters}
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps({"ANSIBLE_MODULE_ARGS": parameters}),
        env={**os.environ, "PYTHONPATH": str(CHECKOUT / "collections"), "ANSIBLE_PROFILE": "legacy"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_the_module_starts_picks_up_and_refuses_a_second_soak(node: Node) -> None:
    with serve(Behaviour()) as endpoint:
        spec = node.spec(endpoint.base_url, 60.0)
        wanted = {**{name: spec[name] for name in ("unit", "python", "duration_seconds", "interval_seconds")}}
        wanted |= {"interval_seconds": 0.5, "warmup_seconds": 5.0, "load": spec["load"], "api_key": Behaviour().api_key}
        assert run_module(node, **wanted, _ansible_check_mode=True)["changed"] is True
        assert node.soak.state() == "absent"
        first = run_module(node, **wanted)
        assert (first["changed"], first["state"]) == (True, "absent"), first
        again = run_module(node, **wanted)
        assert (again["changed"], again["state"]) == (False, "running")
        other = run_module(node, **{**wanted, "duration_seconds": 90.0, "load": {**spec["load"], "rate_per_second": 5}})
        assert other["failed"]
        assert "a soak with other settings (duration_seconds, rate_per_second) is running" in other["msg"]
        ended = run_module(node, state="archived")
        assert ended["changed"]
        assert node.soak.state() == "absent"
        assert run_module(node, state="archived")["changed"] is False


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"warmup_seconds": 40.0}, "less than half of duration_seconds"),
        ({"interval_seconds": 0.0}, "interval_seconds must be at least"),
        ({"python": "/nowhere/python"}, "none at /nowhere/python"),
        ({"load": {"base_url": "http://127.0.0.1:1/v1", "rate_per_second": -1}}, "rate_per_second"),
        ({"load": {"rate_per_second": 1}}, "base_url is missing"),
    ],
)
def test_nonsense_is_refused_with_a_sentence(node: Node, change: dict[str, Any], words: str) -> None:
    spec = node.spec("http://127.0.0.1:1/v1", 60.0)
    wanted = {name: spec[name] for name in ("python", "duration_seconds", "load")}
    found = run_module(node, **{**wanted, "interval_seconds": 1.0, "warmup_seconds": 5.0, **change})
    assert found["failed"]
    assert words in found["msg"]
    assert node.soak.state() == "absent"


class _Answers(ActionModule):
    def __init__(self, answers: list[Any], patience: float) -> None:
        self._answers = answers
        self._task = type(
            "Task", (), {"args": {"unreachable_seconds": patience}, "async_val": 0, "check_mode": False}
        )()
        self._connection = type("Connection", (), {"reset": lambda self: None})()

    def _execute_module(self, **_: Any) -> Any:
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_a_cut_connection_is_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ansible.plugins.action.ActionBase.run", lambda *_args: {})
    gone = AnsibleConnectionFailure("Connection closed by remote host")
    action = _Answers([gone, {"state": "finished", "progress": "over"}], 60)
    first = action.run(task_vars={})
    assert first["state"] == "running"
    assert "the soak goes on there (Connection closed" in first["progress"]
    assert action.run(task_vars={})["state"] == "finished"
    # It is one as soon as the node is silent for longer than it may.
    impatient = _Answers([gone, gone], 1e-9)
    assert impatient.run(task_vars={})["state"] == "running"
    with pytest.raises(AnsibleConnectionFailure):
        impatient.run(task_vars={})


def growth(value: float, low: float, high: float) -> Check:
    measurement = {"name": "soak_memory_growth", "scope": "x", "unit": "fraction", "horizon_seconds": HORIZON}
    return judge_one({**measurement, "value": value, "low": low, "high": high, "judged_seconds": 36000.0}, RULES)


@pytest.mark.parametrize(
    ("figures", "status"),
    [
        ((0.0, -0.001, 0.001), "OK"),
        ((0.001, 0.0005, 0.0015), "OK"),  # it grows, and less than the bar
        ((-0.01, -0.02, -0.005), "OK"),
        ((0.003, 0.0005, 0.0055), "CRITICAL"),
        ((0.0, -0.01, 0.01), "UNKNOWN"),
    ],
)
def test_growth_is_judged_by_its_interval(figures: tuple[float, float, float], status: str) -> None:
    check = growth(*figures)
    assert check.status == status, check.reason
    if status == "UNKNOWN":
        # (0.02 / 0.003) ** (2 / 3) of 10 h
        assert "about 35 h 25 min after the warm-up would do" in check.reason
    assert growth(float("nan"), 0, 0).status == "UNKNOWN"


def test_progress_is_one_line() -> None:
    text = progress_text(
        {"done_seconds": 11520, "wanted_seconds": 259200, "requests": 5760, "failed": 1, "memory_bytes": 2**31}
    )
    assert text == "3.2 h of 72.0 h (4%), 5760 requests, 1 failed, engine 2.000 GiB"
    assert "does not run" in progress_text({})


def test_gpus_temperatures_and_links(tmp_path: Path) -> None:
    # The form of nvidia-smi --query-gpu=... --format=csv,noheader,nounits; [N/A] where a GPU has no ECC.
    text = "00000000:1B:00.0, 70321, 61, 0, 3, 5, 16\n00000000:1C:00.0, 12, 40, [N/A], [N/A], 1, 16\nFailed to initialize\n"
    first, second = gpus(text)
    assert first == {
        "address": "0000:1b:00.0", "memory_bytes": 70321 * 2**20, "celsius": 61, "ecc_uncorrected": 0, "ecc_corrected": 3,
        "generation": 5, "width": 16,
    }  # fmt: skip
    assert "ecc_uncorrected" not in second
    hwmon = tmp_path / "sys/class/hwmon/hwmon0"
    hwmon.mkdir(parents=True)
    for name, value in (
        ("name", "k10temp"),
        ("temp1_input", "64500"),
        ("temp1_crit", "95000"),
        ("temp2_input", "255000"),
    ):
        (hwmon / name).write_text(value)
    assert temperatures(Tree(str(tmp_path))) == {"k10temp temp1 (hwmon0)": {"celsius": 64.5, "critical_celsius": 95.0}}
    device = tmp_path / "sys/bus/pci/devices/0000:1b:00.0"
    device.mkdir(parents=True)
    for name, value in (("class", "0x030200"), ("current_link_speed", "32.0 GT/s PCIe"), ("current_link_width", "16")):
        (device / name).write_text(value)
    assert links(Tree(str(tmp_path))) == {"0000:1b:00.0": [32.0, 16.0]}


def test_hardware_that_gets_worse_is_told() -> None:
    def line(index: int) -> dict[str, Any]:
        late = index >= 80
        return {
            "kind": "sample", "time": float(index), "engine": "1/1", "node": {}, "memory": {},
            "links": {"0000:01:00.0": [16.0 if late else 32.0, 16.0], "0000:02:00.0": [2.5 if index % 5 else 32.0, 8.0]},
            "temperatures": {"cpu": {"celsius": 93.0 if late else 60.0, "critical_celsius": 95.0}},
            "memory_errors": {"correctable": index, "uncorrectable": 1 if late else 0},
        }  # fmt: skip

    spec = {"unit": "u", "interval_seconds": 1, "duration_seconds": 100, "warmup_seconds": 0, "load": {}}
    found = judge([line(index) for index in range(100)], [], spec, HORIZON)
    checks = {each["name"]: judge_one(each, RULES) for each in found}
    assert checks["soak_links_lost_speed"].status == "CRITICAL"
    assert "0000:01:00.0 ran slower" in checks["soak_links_lost_speed"].cause
    assert "0000:02" not in checks["soak_links_lost_speed"].cause  # it only saves power
    assert checks["soak_temperature_margin"].status == "WARN"
    assert checks["soak_ecc_uncorrected"].status == "CRITICAL"
    assert checks["soak_ecc_corrected"].value == 99
    assert checks["time_to_first_token_p50"].status == "UNKNOWN"  # no load client wrote anything
