"""Redfish modules in the task's own process: options, results and failures as usual, and only where that is right."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.module_utils.basic import AnsibleModule
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import redfish_here

from lab.bmc.testing import RunningBmc, running

BIOS = redfish_here.prepare("redfish_bios")
INFO = redfish_here.prepare("redfish_info")


@pytest.fixture
def bmc() -> Iterator[RunningBmc]:
    with running() as simulator:
        yield simulator


def options(bmc: RunningBmc, **more: Any) -> dict[str, Any]:
    login = {"base_url": bmc.base_url, "username": bmc.username, "password": bmc.password, "ca_file": bmc.ca_file}
    return {**login, "timeout_seconds": 10, **more}


class Action:
    """As much of an action plugin as decides where a module runs."""

    def __init__(self, transport: str = "local", become: bool = False, async_val: int = 0, check: bool = False) -> None:
        self._connection = SimpleNamespace(transport=transport, become=object() if become else None)
        self._task = SimpleNamespace(async_val=async_val, become=become, check_mode=check)
        self.executed: list[dict[str, Any]] = []

    def _execute_module(self, **arguments: Any) -> dict[str, Any]:
        self.executed.append(arguments)
        return {"by": "module"}


def test_a_module_runs_here_and_its_result_is_that_of_a_module(bmc: RunningBmc) -> None:
    action = Action()
    wanted = options(bmc, settings={"PcieHotPlugEnable": "Enabled"}, vendor_mappings=[])
    result = redfish_here.execute(action, BIOS, wanted, {})
    assert (result["changed"], result["staged"], action.executed) == (True, {"PcieHotPlugEnable": "Enabled"}, [])
    assert bmc.pending == {"PcieHotPlugEnable": "Enabled"}
    assert bmc.truth()["sessions"] == 0
    shown = result["invocation"]["module_args"]
    assert (shown["password"], shown["unlock"]) == ("VALUE_SPECIFIED_IN_NO_LOG_PARAMETER", False)
    assert bmc.password not in str(result)
    assert BIOS.AnsibleModule is AnsibleModule, "the module is left as it was"


def test_check_mode_writes_nothing(bmc: RunningBmc) -> None:
    wanted = options(bmc, settings={"PcieHotPlugEnable": "Enabled"}, vendor_mappings=[])
    assert redfish_here.execute(Action(check=True), BIOS, wanted, {})["changed"] is True
    assert bmc.pending == {}


def test_values_are_converted_and_warnings_are_kept(bmc: RunningBmc) -> None:
    bmc.inject("stale_pending", attributes={"LlcPrefetchEnable": "Enabled"})
    wanted = options(bmc, unlock="yes", timeout_seconds="10", vendor_mappings=[])
    result = redfish_here.run(BIOS, wanted, False)
    assert "LlcPrefetchEnable" in result["warnings"][0]
    assert result["invocation"]["module_args"]["timeout_seconds"] == 10


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"state": "stagd"}, "value of state must be one of: staged, verified, got: stagd"),
        ({"unknown": 1}, "unknown. Supported parameters include"),
        ({"timeout_seconds": "soon"}, "timeout_seconds"),
        ({"settings": {"TurboMod": "x"}}, 'did you mean "TurboMode"'),
        ({"password": "not-this-one"}, "refused the login"),
    ],
)
def test_what_is_refused_is_one_sentence_without_the_password(
    bmc: RunningBmc, change: dict[str, Any], words: str
) -> None:
    result = redfish_here.run(BIOS, options(bmc, **{"vendor_mappings": [], **change}), False)
    assert result["failed"] is True
    assert words in result["msg"]
    assert "\n" not in result["msg"]
    assert "not-this-one" not in str(result)


def test_an_unchecked_certificate_makes_no_noise(bmc: RunningBmc, recwarn: pytest.WarningsRecorder) -> None:
    result = redfish_here.run(INFO, options(bmc, validate_certs=False, gather=["firmware"]), False)
    assert result["available"] is True
    assert [one for one in recwarn if "certificate" in str(one.message)] == []


@pytest.mark.parametrize("action", [Action("ssh"), Action(become=True), Action(async_val=60)])
def test_another_host_become_and_async_start_the_module_as_usual(action: Action) -> None:
    given = {"base_url": "https://bmc.example"}
    assert redfish_here.execute(action, BIOS, given, {"a": 1}) == {"by": "module"}
    assert action.executed == [
        {"module_args": given, "task_vars": {"a": 1}, "wrap_async": bool(action._task.async_val)}
    ]


def test_a_module_that_cannot_be_imported_is_started_and_says_so_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name}")

    monkeypatch.setattr(importlib, "import_module", missing)
    assert redfish_here.prepare("redfish_bios") is None
    action = Action()
    assert redfish_here.execute(action, None, {}, {}) == {"by": "module"}


@pytest.mark.parametrize("name", ["redfish_bios", "redfish_info", "redfish_firmware", "redfish_firmware_info"])
def test_an_action_plugin_has_its_module_before_ansible_forks(name: str) -> None:
    plugin = importlib.import_module(f"ansible_collections.plumbline.plumbline.plugins.action.{name}")
    assert plugin.ActionModule.MODULE.__name__.endswith(f".plugins.modules.{name}")
