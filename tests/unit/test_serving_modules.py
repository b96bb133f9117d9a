"""The serving and load modules as Ansible runs them, with a systemd that is played and an endpoint that is planned."""

from __future__ import annotations

import json
import os
import socket
import stat
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import serving_steward
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.engine_wish import MARKER
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.readiness import key_digest
from ansible_collections.plumbline.plumbline.plugins.modules import (
    llm_endpoint_info,
    serving_binding_info,
    serving_info,
    serving_service,
    serving_unit_info,
)

from tests.mock_endpoint import FLAT, Behaviour, serve

KEY = Behaviour.api_key


def call(module: Any, capsys: pytest.CaptureFixture[str], **arguments: Any) -> dict[str, Any]:
    """Run a module's main and return what it answered."""
    with patch_module_args(arguments), pytest.raises(SystemExit):
        module.main()
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


# --- systemd, played ---------------------------------------------------------------------------------------------------

SYSTEMCTL = """#!/bin/sh
cd "{state}"
echo "$*" >> calls
case "$1" in
  show) cat show ;;
  restart) cp after show ;;
  enable) [ ! -e refuse-enable ] || { echo "Failed to enable unit: Access denied" >&2; exit 1; } ;;
esac
"""


def show(active: str, sub: str, invocation: str = "", **more: str) -> str:
    values = {
        "LoadState": "loaded",
        "ActiveState": active,
        "SubState": sub,
        "InvocationID": invocation,
        "NRestarts": "0",
        **more,
    }
    return "".join(f"{name}={value}\n" for name, value in values.items())


INACTIVE = show("inactive", "dead", UnitFileState="disabled")
ACTIVE = show("active", "running", "i1", UnitFileState="enabled", MainPID="55")
FAILING = show("activating", "auto-restart", "i2", UnitFileState="enabled", Result="exit-code")


class Systemd:
    """A systemd whose answers a test writes down beforehand."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.record = folder / "ready.json"
        for name, text in (
            ("systemctl", SYSTEMCTL.replace("{state}", str(folder))),
            ("journalctl", f"#!/bin/sh\ncat {folder}/journal\n"),
        ):
            program = folder / "bin" / name
            program.parent.mkdir(exist_ok=True)
            program.write_text(text)
            program.chmod(program.stat().st_mode | stat.S_IXUSR)
        self.now(INACTIVE)
        (folder / "journal").write_text("")
        (folder / "calls").write_text("")

    def now(self, show: str, after: str = ACTIVE.replace("i1", "i2")) -> None:
        (self.folder / "show").write_text(show)
        (self.folder / "after").write_text(after)

    def runs(self, configuration: str = "c1", key: str = KEY, main_pid: int = 55) -> None:
        self.now(ACTIVE)
        noted = {"configuration": configuration, "key_sha256": key_digest(key), "main_pid": main_pid}
        self.record.write_text(json.dumps(noted))

    @property
    def calls(self) -> list[str]:
        lines = (self.folder / "calls").read_text().splitlines()
        return [line for line in lines if not line.startswith("show")]


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Systemd:
    played = Systemd(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setattr(serving_steward, "POLL_SECONDS", 0.01)
    return played


def want(systemd: Systemd, capsys: pytest.CaptureFixture[str], **more: Any) -> dict[str, Any]:
    arguments = {
        "name": "plumbline-serving.service",
        "configuration": "c1",
        "api_key": KEY,
        "record": str(systemd.record),
        "directory": str(systemd.folder / "units"),
        "previous": str(systemd.folder / "previous"),
    }
    return call(serving_service, capsys, **{**arguments, "timeout_seconds": 5, **more})


def test_a_first_start(systemd: Systemd, capsys: pytest.CaptureFixture[str]) -> None:
    answer = want(systemd, capsys)
    assert answer["changed"]
    assert answer["reasons"] == ["it is inactive (dead)"]
    assert systemd.calls == [
        "daemon-reload",
        "enable plumbline-serving.service",
        "restart --no-block plumbline-serving.service",
    ]


def test_what_runs_as_wanted_is_left_alone(systemd: Systemd, capsys: pytest.CaptureFixture[str]) -> None:
    systemd.runs()
    answer = want(systemd, capsys)
    assert not answer["changed"]
    assert systemd.calls == []


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"configuration": "c2"}, "its configuration, engine or model changed"),
        ({"api_key": "another-key-of-the-test"}, "its API key changed"),
    ],
)
def test_a_change_restarts_exactly_once(
    systemd: Systemd, capsys: pytest.CaptureFixture[str], arguments: dict[str, str], reason: str
) -> None:
    systemd.runs()
    (systemd.folder / "failures").write_text("7")
    answer = want(systemd, capsys, **arguments)
    assert answer["reasons"] == [reason]
    assert systemd.calls.count("restart --no-block plumbline-serving.service") == 1
    # Somebody asked for this start, so no pause because of earlier ones.
    assert not (systemd.folder / "failures").exists()
    assert "another-key" not in json.dumps({**answer, "invocation": ""})


def test_check_mode_says_so_and_touches_nothing(systemd: Systemd, capsys: pytest.CaptureFixture[str]) -> None:
    systemd.runs()
    answer = want(systemd, capsys, configuration="c2", _ansible_check_mode=True, _ansible_diff=True)
    assert answer["changed"]
    assert "configuration" in answer["diff"][-1]["before"]
    assert systemd.calls == []
    systemd.now("LoadState=not-found\nActiveState=inactive\nSubState=dead\n")
    assert want(systemd, capsys, _ansible_check_mode=True)["changed"]
    assert systemd.calls == []


def test_a_unit_that_is_not_there(systemd: Systemd, capsys: pytest.CaptureFixture[str]) -> None:
    systemd.now("LoadState=not-found\nActiveState=inactive\n")
    answer = want(systemd, capsys)
    assert answer["failed"]
    assert "cannot be loaded (not-found)" in answer["msg"]


def test_nonsense_stops_the_unit(systemd: Systemd, capsys: pytest.CaptureFixture[str]) -> None:
    systemd.now(INACTIVE, FAILING)
    (systemd.folder / "journal").write_text("plumbline-ready: refused: the model answers nonsense: all equal\n")
    answer = want(systemd, capsys)
    assert answer["failed"]
    assert (
        "did not become ready: the model answers nonsense: all equal; it was stopped and serves nobody" in answer["msg"]
    )
    assert systemd.calls[-1] == "stop plumbline-serving.service"


def test_after_any_other_failure_systemd_goes_on(systemd: Systemd, capsys: pytest.CaptureFixture[str]) -> None:
    systemd.now(INACTIVE, FAILING)
    (systemd.folder / "journal").write_text("vllm: error: unrecognized arguments: --no-such-option\n")
    answer = want(systemd, capsys)
    assert "unrecognized arguments: --no-such-option; systemd goes on trying" in answer["msg"]
    assert not any(call.startswith("stop") for call in systemd.calls)


def test_a_start_that_takes_too_long(systemd: Systemd, capsys: pytest.CaptureFixture[str]) -> None:
    starting = show("activating", "start-post", "i2", StatusText="waiting: HTTP 503 (9 s)")
    systemd.now(INACTIVE, starting)
    answer = want(systemd, capsys, timeout_seconds=0)
    assert "not ready within 0 s (waiting: HTTP 503 (9 s))" in answer["msg"]


def test_what_systemd_refuses_is_said(systemd: Systemd, capsys: pytest.CaptureFixture[str]) -> None:
    (systemd.folder / "refuse-enable").touch()
    answer = want(systemd, capsys)
    assert answer["failed"]
    assert "Access denied" in answer["msg"]


# --- an upgrade, refused before anything changes -------------------------------------------------------------------------


def upgrade(systemd: Systemd, port: int, **more: Any) -> dict[str, Any]:
    systemd.runs()
    noted = json.loads(systemd.record.read_text())
    systemd.record.write_text(json.dumps({**noted, "serves": "engine old-model"}))
    beside: dict[str, Any] = {
        "name": "plumbline-serving-upgrade.service",
        "configuration": "u2",
        "text": "[Service]\n",
        "host": "127.0.0.1",
    }
    beside |= {"record": str(systemd.folder / "none.json"), "port": port, **more}
    return {"configuration": "c2", "serves": "engine new-model", "text": "[Service]\n", "upgrade": beside}


# The played systemd has one state for all units; here it says of the one beside that it is not there.
BOTH = """#!/bin/sh
cd "{state}"
echo "$*" >> calls
case "$*" in
  show\\ plumbline-serving-upgrade*) printf 'LoadState=not-found\\nActiveState=inactive\\n' ;;
  show*) cat show ;;
esac
"""


def test_a_port_of_the_upgrade_in_use(systemd: Systemd, capsys: pytest.CaptureFixture[str]) -> None:
    (systemd.folder / "bin" / "systemctl").write_text(BOTH.replace("{state}", str(systemd.folder)))
    with socket.create_server(("127.0.0.1", 0)) as squatter:
        answer = want(systemd, capsys, **upgrade(systemd, squatter.getsockname()[1]))
    assert answer["failed"]
    assert "(serving_upgrade_port) to be free for the new model or engine, found it in use by" in answer["msg"]
    assert systemd.calls == []
    assert not (systemd.folder / "units").exists()


def test_an_upgrade_beside_that_memory_does_not_hold(systemd: Systemd, capsys: pytest.CaptureFixture[str]) -> None:
    (systemd.folder / "bin" / "systemctl").write_text(BOTH.replace("{state}", str(systemd.folder)))
    figures = {"mode": "beside", "fits": False, "arithmetic": "60 GB twice against 80 GB"}
    answer = want(systemd, capsys, **upgrade(systemd, 1, **figures))
    assert "60 GB twice against 80 GB" in answer["msg"]
    assert systemd.calls == []


def test_check_mode_says_how_it_would_upgrade(systemd: Systemd, capsys: pytest.CaptureFixture[str]) -> None:
    (systemd.folder / "bin" / "systemctl").write_text(BOTH.replace("{state}", str(systemd.folder)))
    answer = want(systemd, capsys, **upgrade(systemd, 1), _ansible_check_mode=True, _ansible_diff=True)
    assert answer["changed"]
    assert [part["after_header"] for part in answer["diff"]][1] == "plumbline-serving.service"
    assert "an upgrade beside: memory holds both" in answer["diff"][1]["after"]
    assert systemd.calls == []
    assert not (systemd.folder / "units").exists()


# --- the unit, observed --------------------------------------------------------------------------------------------------

ANALYSIS = """  NAME                          DESCRIPTION                                   EXPOSURE
\u2717 PrivateNetwork=               Service has access to the host's network           0.5
\u2713 User=/DynamicUser=            Service runs under a static non-root user identity
\u2717 MemoryDenyWriteExecute=       Service may create writable executable memory      0.1

\u2192 Overall exposure level for plumbline-serving.service: 1.5 OK :-)
"""


def observe(systemd: Systemd, capsys: pytest.CaptureFixture[str], **more: Any) -> dict[str, dict[str, Any]]:
    (systemd.folder / "analysis").write_text(ANALYSIS, encoding="utf-8")
    program = systemd.folder / "bin" / "systemd-analyze"
    program.write_text(f"#!/bin/sh\ncat {systemd.folder}/analysis\n")
    program.chmod(0o755)
    arguments = {"unit": "no-such-plumbline.service", "user": "no-such-user"}
    answer = call(serving_unit_info, capsys, **{**arguments, **more})
    return {entry["name"]: entry for entry in answer["measurements"]}


def test_how_exposed_the_unit_is(systemd: Systemd, capsys: pytest.CaptureFixture[str]) -> None:
    systemd.runs()
    found = observe(systemd, capsys, cpus="0-3", memory_nodes="0")
    assert found["serving_unit_exposure"]["value"] == 1.5
    assert found["serving_unit_exposure"]["conditions"]["open"] == ["PrivateNetwork=", "MemoryDenyWriteExecute="]
    assert found["serving_stray_processes"]["value"] == 0
    # No process of that unit is there, so none keeps to its CPUs either.
    assert found["serving_cpu_binding"].get("value") in ("none", None)
    assert "serving_memory_binding" in found


def test_a_unit_that_does_not_run_has_no_exposure(systemd: Systemd, capsys: pytest.CaptureFixture[str]) -> None:
    found = observe(systemd, capsys)
    assert "does not run" in found["serving_unit_exposure"]["error"]
    found = observe(systemd, capsys, _ansible_check_mode=True)
    assert found["serving_unit_exposure"]["skipped"].startswith("check mode: ")


def test_an_analysis_that_says_nothing(systemd: Systemd, capsys: pytest.CaptureFixture[str]) -> None:
    systemd.runs()
    observe(systemd, capsys)
    (systemd.folder / "bin" / "systemd-analyze").write_text("#!/bin/sh\necho 'Failed to get unit' >&2; exit 1\n")
    answer = call(serving_unit_info, capsys, unit="x.service", user="root")
    assert "Failed to get unit" in answer["measurements"][0]["error"]


def test_what_the_unit_is_bound_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = tmp_path / "sys" / "devices" / "system" / "node" / "node0"
    node.mkdir(parents=True)
    (node / "cpulist").write_text("0-7\n")
    answer = call(serving_binding_info, capsys, root=str(tmp_path), housekeeping_cpus="0-1")
    assert (answer["cpus"], answer["memory_nodes"]) == ("2-7", "")
    answer = call(serving_binding_info, capsys, root=str(tmp_path), nodes="3")
    assert answer["failed"]
    assert "found '3'" in answer["msg"]


# --- the endpoint, asked -----------------------------------------------------------------------------------------------


def ask(base_url: str, capsys: pytest.CaptureFixture[str], **more: Any) -> dict[str, dict[str, Any]]:
    arguments = {
        "base_url": base_url,
        "api_key": KEY,
        "model": "mock",
        "question": "Capital of France?",
        "expected": "Paris",
    }
    answer = call(llm_endpoint_info, capsys, **{**arguments, "timeout_seconds": 10, **more})
    return {entry["name"]: entry for entry in answer["measurements"]}


def test_a_right_answer(capsys: pytest.CaptureFixture[str]) -> None:
    with serve(Behaviour()) as mock:
        found = ask(mock.base_url, capsys, scope="https://llm.example/v1")
    assert found["completion"]["value"] is True
    assert found["completion"]["scope"] == "https://llm.example/v1"
    assert found["completion"]["conditions"]["answer"] == "The capital of France is Paris."
    assert found["wrong_api_key_refused"]["value"] is True
    assert "serving_unit" not in found


@pytest.mark.parametrize(
    ("behaviour", "cause"),
    [
        (Behaviour(answer="Rome."), "Rome"),
        (Behaviour(top_logprobs=FLAT), "equally likely"),
        (Behaviour(answer=""), "no text"),
    ],
)
def test_a_wrong_answer(capsys: pytest.CaptureFixture[str], behaviour: Behaviour, cause: str) -> None:
    with serve(behaviour) as mock:
        found = ask(mock.base_url, capsys)
    assert found["completion"]["value"] is False
    assert cause in found["completion"]["cause"]


def test_an_endpoint_that_lets_everybody_in(capsys: pytest.CaptureFixture[str]) -> None:
    with serve(Behaviour(check_key=False)) as mock:
        found = ask(mock.base_url, capsys)
    assert found["completion"]["value"] is True
    assert found["wrong_api_key_refused"]["value"] is False
    assert "VLLM_API_KEY" in found["wrong_api_key_refused"]["cause"]


def test_nobody_answers(capsys: pytest.CaptureFixture[str]) -> None:
    found = ask("http://127.0.0.1:9/v1", capsys)
    assert "no answer" in found["completion"]["error"]
    assert "journalctl" in found["completion"]["next_command"]
    assert "no answer" in found["wrong_api_key_refused"]["error"]


def test_check_mode_before_the_first_start(systemd: Systemd, capsys: pytest.CaptureFixture[str]) -> None:
    found = ask("http://127.0.0.1:9/v1", capsys, unit="plumbline-serving.service", _ansible_check_mode=True)
    assert set(found) == {"serving_unit", "completion", "wrong_api_key_refused"}
    assert all("check mode" in entry["skipped"] for entry in found.values())


def test_the_units_state_is_measured(systemd: Systemd, capsys: pytest.CaptureFixture[str]) -> None:
    with serve(Behaviour()) as mock:
        found = ask(mock.base_url, capsys, unit="plumbline-serving.service")
    assert (found["serving_unit"]["value"], found["serving_unit"]["expected"]) == ("inactive", "active")


# --- the node, observed ------------------------------------------------------------------------------------------------


def test_what_a_node_serves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "proc" / "net").mkdir(parents=True)
    unit = tmp_path / "etc" / "systemd" / "system" / "plumbline-serving.service"
    unit.parent.mkdir(parents=True)
    unit.write_text("[Service]\n[X-Plumbline]\nmodel_path=/no/such/model\nmodel_dtype=bfloat16\n")
    engines = tmp_path / "engines"
    (engines / "cpu-1").mkdir(parents=True)
    (engines / "current").symlink_to("cpu-1")
    (engines / "cpu-1" / MARKER).write_text(json.dumps({"plugins": {"plumbline-serving": "0.1.0"}}))
    answer = call(
        serving_info, capsys, port=8000, unit="plumbline-serving.service", root=str(tmp_path), engines=str(engines)
    )
    assert answer["listeners"] == []
    assert answer["conflict"] == {}
    assert answer["installed"]["model_path"] == "/no/such/model"
    assert answer["engine"] == {"id": "cpu-1", "path": str(engines / "cpu-1"), "plugins": ["plumbline-serving"]}
    assert not answer["checkpoint"]["available"]
    assert "/no/such/model" in answer["checkpoint"]["reason"]


def test_a_bare_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "proc").mkdir()
    answer = call(serving_info, capsys, unit="u.service", root=str(tmp_path), engines=str(tmp_path / "engines"))
    assert (answer["installed"], answer["engine"]) == ({}, {"id": "", "path": "", "plugins": []})
    assert answer["checkpoint"] == {"available": False, "reason": "no checkpoint was named and no unit serves one"}


def test_a_port_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    answer = call(serving_info, capsys, unit="u.service", port=70000)
    assert answer["msg"] == "port must be between 1 and 65535, 70000 was found; correct serving_port"
