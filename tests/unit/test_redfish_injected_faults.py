"""Injected faults (docs/bmc-simulator.md lists them): each is survived, or refused with one clear sentence.

A run stages two settings, restarts the machine and lets the gate judge. Whatever happens on the way, neither of the two settings
is staged without the other, and the next run, without the fault, ends with both applied and nothing pending.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import redfish_connector
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.bios_operation import (
    Request,
    stage_settings,
    verify_settings,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.bios_registry import SettingError
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.gates import judge_all
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.redfish_connection import RedfishError
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.redfish_reset import PowerRequest, Resetter

from lab.bmc.testing import RunningBmc, running
from tests.unit.redfish_support import login

RULES = {name: {"kind": "equals"} for name in ("bios_setting", "bios_pending_values", "bios_jobs")}
WANTED: dict[str, dict[str, Any]] = {
    "ieit-nf8260g7": {"PcieHotPlugEnable": "Enabled", "LlcPrefetchEnable": "Enabled"},
    "dell-r750": {"SriovGlobalEnable": "Enabled", "LogicalProc": "Disabled"},
}
SURVIVED = ""
SETTINGS, SESSIONS = "Bios/Settings$", "/Sessions$"


@dataclass
class Case:
    """A fault at one step of a run, and the words that it is refused with (none: the run succeeds all the same)."""

    name: str
    kind: str = ""
    says: str = SURVIVED
    at: str = "stage"
    profile: str = "ieit-nf8260g7"
    fault: dict[str, Any] = field(default_factory=dict)
    quirks: dict[str, Any] = field(default_factory=dict)
    # A restart is what the sentence asks for before the next run.
    needs_reset: bool = False


def http(name: str, says: str = SURVIVED, **fault: Any) -> Case:
    return Case(name, "http_error", says, fault=fault)


DELL = "dell-r750"
CASES = [
    # The BMC does not answer, or not now.
    http("busy-at-login", count=2, retry_after=0, path=SESSIONS),
    http("busy-while-read", count=2, retry_after=0, path="Bios$"),
    http("busy-while-changed", count=2, retry_after=0, method="PATCH"),
    http("bad-gateway-once", count=1, status=502, retry_after=0, path="Bios$"),
    http("busy-for-ever", "HTTP 503 .* bmc_timeout_seconds", retry_after=0),
    http("retry-after-an-hour", "HTTP 503", retry_after=3600, path="Bios$"),
    http("internal-error-while-changed", "refused to change .*HTTP 500", status=500, method="PATCH"),
    http("too-many-requests", "refused to read .*HTTP 429", status=429, path="Bios$"),
    http("login-refused", "refused the login .*bmc_password", status=401, path=SESSIONS),
    http("change-forbidden", "HTTP 403.*role", status=403, method="PATCH"),
    http("settings-object-missing", "HTTP 404", status=404, path=SETTINGS),
    http("registries-missing", "no attribute registry", status=404, path="Registries"),
    Case("slow-but-in-time", "slow", fault={"seconds": 0.2, "count": 5}),
    Case("slow-while-read", "slow", "no answer within 1 s", fault={"seconds": 3, "count": 1, "path": "Bios$"}),
    Case("slow-while-changed", "slow", "no answer within 1 s", fault={"seconds": 2, "count": 1, "method": "PATCH"}),
    Case("slow-loris", "slow_body", fault={"seconds": 1.5, "count": 1, "path": "Bios$"}),
    # The connection breaks.
    Case("dropped-while-read", "drop", fault={"count": 1, "path": "Bios$"}),
    Case("dropped-for-ever", "drop", "closed the connection", fault={"path": "Bios$"}),
    Case("dropped-before-the-change", "drop", "closed the connection", fault={"count": 1, "method": "PATCH"}),
    Case(
        "dropped-after-the-change",
        "drop",
        "closed the connection",
        fault={"count": 1, "method": "PATCH", "when": "after"},
    ),
    Case("half-sent-json", "truncated", "closed the connection|JSON", fault={"path": "Bios$"}),
    Case("half-sent-answer-to-the-change", "truncated", "closed the", fault={"count": 1, "method": "PATCH"}),
    # The answer is not what it should be.
    Case("no-json", "garbage", r"Redfish document \(JSON\)", fault={"path": "Bios$"}),
    Case("login-page", "garbage", "login page or proxy", fault={"text": "<html>Log in</html>", "path": "Systems"}),
    Case("no-json-after-the-change", "garbage", fault={"count": 1, "method": "PATCH"}),
    Case("wrong-content-type", "wrong_type", fault={"path": "Bios"}),
    Case("error-in-200-while-read", "error_in_200", "no BIOS attributes", fault={"path": "Bios$"}),
    Case("error-in-200-while-changed", "error_in_200", "does not show them as staged", fault={"method": "PATCH"}),
    # Sessions and other writers.
    Case("session-expires-while-read", "session_expires", fault={"count": 1, "path": "Bios$"}),
    Case("session-expires-while-changed", "session_expires", fault={"count": 1, "method": "PATCH"}),
    Case("sessions-lost-before-the-restart", "session_loss", at="restart"),
    Case("another-writer-once", "etag_conflict", fault={"count": 1}),
    Case("another-writer-for-ever", "etag_conflict", "HTTP 412"),
    Case("quoted-etag-refused", quirks={"etag": {"match": "unquoted"}}),
    Case("etag-required", quirks={"etag": {"required": True, "style": "weak", "match": "exact"}}),
    Case("stale-pending-value", "stale_pending", fault={"attributes": {"PowerProfile": "CUSTOM"}}),
    # The BMC goes away or does not know.
    Case("bmc-restarts-while-read", "bmc_reboot", fault={"seconds": 0.1}),
    Case("bmc-restarts-before-the-restart", "bmc_reboot", at="restart", fault={"seconds": 0.1}),
    Case("clock-wrong", "clock_wrong", fault={"seconds": -20 * 365 * 86400}),
    Case("attributes-gone", "attributes_gone", "no BIOS attributes", needs_reset=True),
    Case("no-settings-object-named", quirks={"settings_annotation": "without_object"}),
    Case(
        "no-attributes-from-the-factory", says="no BIOS attributes", quirks={"empty_until_post": True}, needs_reset=True
    ),
    Case("one-attribute-at-a-time", says="HTTP 400", quirks={"max_attributes": 1}),
    # The restart and what POST makes of the values.
    Case("post-takes-longer", "slow_reset", at="restart", fault={"seconds": 0.5}),
    Case("post-hangs", "post_hangs", "expected to pass POST", at="restart"),
    Case("power-state-stuck", "power_stuck", "power state is PoweringOff", at="restart"),
    Case("restart-ignored", "reset_ignored", "waits for a restart", at="restart"),
    Case(
        "one-value-dropped-while-staged", "stage_drops", "was taken back", fault={"attributes": ["LlcPrefetchEnable"]}
    ),
    Case("one-value-dropped-in-post", "setting_ignored", "dropped", fault={"attributes": ["LlcPrefetchEnable"]}),
    Case("one-value-refused-in-post", "setting_ignored", "the BMC says", fault={"silent": False}),
    Case(
        "one-value-clamped", "value_clamped", "LlcPrefetchEnable", fault={"attributes": {"LlcPrefetchEnable": "Auto"}}
    ),
    # Jobs.
    Case("queue-busy-once", "queue_busy", profile=DELL, fault={"retry_after": 0}),
    Case("queue-busy-with-400", "queue_busy", "job", profile=DELL, fault={"status": 400}),
    Case("queue-full", says="delete", profile=DELL, quirks={"job_limit": 0}),
    Case("job-stuck", "job_stuck", "waits for a restart", profile=DELL, needs_reset=True),
    Case("job-fails", "job_fails", "SriovGlobalEnable", profile=DELL),
    Case("job-fails-and-leaves-its-values", "job_fails", "waits", profile=DELL, fault={"keeps_pending": True}),
]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pauses between attempts are a real BMC's; here they only cost time."""
    monkeypatch.setattr(redfish_connector, "CONNECT_PAUSE_SECONDS", 0.1)


def run(bmc: RunningBmc, wanted: dict[str, Any], at: str = "", fault: dict[str, Any] | None = None) -> str:
    """Stage, restart and judge; return what a person reads where it fails, else nothing."""

    def begin(step: str) -> Any:
        if step == at and fault:
            bmc.inject(**fault)
        return login(bmc, timeout_seconds=1)

    try:
        with begin("stage") as client:
            staged = stage_settings(client, Request(settings=wanted, foreign_pending="clear"))
        assert set(staged["staged"]) <= {*wanted, *staged["cleared"]}
        if staged["restart_required"] != "none":
            with begin("restart") as client:
                Resetter(
                    client, PowerRequest(reset_type="ForceRestart", wait_timeout_seconds=1, poll_seconds=0.02)
                ).run()
        with begin("verify") as client:
            verified = verify_settings(client, Request(settings=wanted))
    except (RedfishError, SettingError) as error:
        return str(error)
    checks = judge_all(verified["measurements"], RULES)
    return "; ".join(f"{check.scope}: {check.cause}" for check in checks if check.status != "OK")


def test_there_are_enough_of_them() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names) >= 30


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_fault_is_survived_or_refused_in_one_sentence(case: Case) -> None:
    wanted = WANTED[case.profile]
    with running(case.profile, profile_overrides={"quirks": case.quirks}) as bmc:
        before = bmc.active
        fault = {"kind": case.kind, **case.fault} if case.kind else None
        said = run(bmc, wanted, case.at, fault)
        if case.says == SURVIVED:
            assert said == ""
            assert {name: bmc.active[name] for name in wanted} == wanted
            assert bmc.pending == {}
        else:
            assert said, "it must not go unnoticed"
            assert re.search(case.says, said), said
        assert "\n" not in said
        assert bmc.password not in said
        assert len(said) < 700
        staged = {name: bmc.pending[name] for name in wanted if name in bmc.pending}
        assert staged in ({}, wanted), "half of the request is staged"
        assert {name for name, value in bmc.active.items() if before[name] != value} <= set(wanted)

        bmc.clear_faults()
        if case.quirks:
            return
        if case.needs_reset:
            bmc.reset()
        assert run(bmc, wanted) == ""
        truth = bmc.settle()
        assert {name: truth["active"][name] for name in wanted} == wanted
        assert truth["pending"] == {}
