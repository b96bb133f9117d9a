"""BIOS settings against the simulator of seven machines of five vendors: staged, restarted, verified, changed back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import bios_resource
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.bios_jobs import BlockedError
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.bios_operation import (
    Request,
    stage_settings,
    verify_settings,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.bios_resource import NoBiosError, read_bios
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.bios_settings import RefusedSettingsError
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.gates import judge_all
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.redfish_connection import RedfishError

from lab.bmc.testing import RunningBmc, running
from tests.unit.redfish_support import login

RULES = {name: {"kind": "equals"} for name in ("bios_setting", "bios_pending_values", "bios_jobs")}
RECOMMENDED = {
    "workload_profile": "custom",
    "memory_mode": "optimized",
    "c_states": "disabled",
    "p_states": "os_control",
    "turbo": "enabled",
    "uncore_frequency": "maximum",
    "numa": "enabled",
    "sub_numa": "disabled",
    "above_4g_decoding": "enabled",
    "pcie_aspm": "disabled",
    "pcie_link_speed": "auto",
}
# Every profile of the simulator, with what its vendor has no attribute for.
OFFERS_NOT = {
    "ieit-nf8260g7": set(),
    "ieit-nf8260g7-strict": set(),
    "ieit-nf5280m6": {"memory_mode", "above_4g_decoding", "pcie_aspm"},
    "dell-r750": set(),
    "hpe-dl380a-gen11": {"above_4g_decoding"},
    "lenovo-sr670v2": {"above_4g_decoding"},
    "supermicro-821ge": {"uncore_frequency"},
}


@pytest.fixture
def bmc() -> Iterator[RunningBmc]:
    with running() as simulator:
        yield simulator


def stage(bmc: RunningBmc, **request: Any) -> dict[str, Any]:
    with login(bmc) as client:
        return stage_settings(client, Request(**request))


def verify(bmc: RunningBmc, **request: Any) -> dict[str, Any]:
    with login(bmc) as client:
        return verify_settings(client, Request(**request))


def statuses(result: dict[str, Any]) -> set[str]:
    return {check.status for check in judge_all(result["measurements"], RULES)}


def critical(result: dict[str, Any]) -> dict[str, str]:
    return {c.scope: c.cause for c in judge_all(result["measurements"], RULES) if c.status == "CRITICAL"}


@pytest.mark.parametrize("profile", OFFERS_NOT)
def test_a_vendor_s_machine_is_set_by_logical_names_and_changed_back(profile: str) -> None:
    with running(profile) as bmc:
        before = bmc.active
        wanted: dict[str, Any] = {"logical": RECOMMENDED, "unlock": True, "foreign_pending": "clear"}
        staged = stage(bmc, **wanted)
        assert staged["changed"]
        assert set(staged["unsupported"]) == OFFERS_NOT[profile]
        assert staged["restart_required"] == "power_cycle"
        assert bmc.active == before, "nothing is active before the restart"
        again = stage(bmc, **wanted)
        assert (again["changed"], again["restart_required"]) == (False, "power_cycle")

        bmc.reset()
        verified = verify(bmc, logical=RECOMMENDED)
        assert critical(verified) == {}
        assert statuses(verified) <= {"OK", "SKIPPED"}
        assert stage(bmc, **wanted)["restart_required"] == "none"

        # The old profile would lock its knobs: they go back first, the profile with a restart of its own.
        back = {name: before[name] for name in staged["staged"]}
        profiles = {name for name in back if name in verified["logical"]["workload_profile"]}
        stage(bmc, settings={name: value for name, value in back.items() if name not in profiles})
        bmc.reset()
        stage(bmc, settings={name: back[name] for name in profiles})
        bmc.reset()
        after = bmc.active
        assert {name: after[name] for name in back} == back
        assert bmc.pending == {}
        assert bmc.truth()["sessions"] == 0


def test_the_captured_supermicro_tree_gets_right_answers_and_refusals() -> None:
    with running("supermicro-gb300") as bmc:
        result = stage(bmc, settings={"EGM": False, "ActiveCores": 128}, check_mode=True)
        assert result["staged"] == {"EGM": False, "ActiveCores": 128}
        assert "EGM: applied True, pending nothing, desired False" in result["diff"]["before"]
        assert "EGM: applied True, pending False, desired False" in result["diff"]["after"]
        assert result["registry"] == "BiosAttributeRegistry"
        assert bmc.pending == {}
        for settings, word in (
            ({"EGM": "Enabled"}, "expected true or false"),
            ({"ActiveCores": 337}, "from 0 to 336"),
            ({"EGMHypervisorReservedMemory": 65}, "steps of 64"),
            ({"ActiveCore": 1}, 'did you mean "ActiveCores"'),
        ):
            with pytest.raises(RefusedSettingsError, match=word):
                stage(bmc, settings=settings)
        assert bmc.pending == {}


def test_the_captured_hpe_tree_gets_right_answers_and_refusals() -> None:
    with running("hpe-dl380a-gen11") as bmc:
        with pytest.raises(RefusedSettingsError, match="locked while WorkloadProfile = I/OThroughput"):
            stage(bmc, logical={"uncore_frequency": "dynamic"})
        assert bmc.pending == {}
        result = stage(bmc, logical={"uncore_frequency": "dynamic"}, unlock=True)
        assert result["unlocked"] == {"WorkloadProfile": "Custom"}
        assert bmc.pending == {"WorkloadProfile": "Custom", "UncoreFreqScaling": "Auto"}
        # Turbo is not locked by this profile, so nothing else needs to change for it.
        assert stage(bmc, logical={"turbo": "disabled"}, foreign_pending="clear")["unlocked"] == {}
        assert bmc.pending == {"ProcTurbo": "Disabled"}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"TurboMod": "Enabled"}, ['no attribute "TurboMod"', 'did you mean "TurboMode"?']),
        ({"TurboMode": "Enable"}, ['no value "Enable"', 'did you mean "Enabled"?']),
        ({"TurboMode": True}, ["YAML reads", "quotes"]),
        ({"PatrolScrubDuration": 25}, ["from 0 to 24"]),
        ({"TurboMode": "Disabled"}, ["locked while PowerProfile is not CUSTOM", 'set PowerProfile to "CUSTOM"']),
    ],
)
def test_a_bad_request_changes_nothing_at_all(bmc: RunningBmc, settings: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(RefusedSettingsError) as caught:
        stage(bmc, settings={"PcieHotPlugEnable": "Enabled", **settings})
    for word in words:
        assert word in str(caught.value)
    assert bmc.pending == {}
    assert bmc.truth()["sessions"] == 0


def test_check_mode_predicts_and_writes_nothing(bmc: RunningBmc) -> None:
    predicted = stage(bmc, settings={"PcieHotPlugEnable": "Enabled"}, check_mode=True)
    assert (predicted["changed"], predicted["restart_required"]) == (True, "power_cycle")
    assert bmc.pending == {}
    assert stage(bmc, settings={"PcieHotPlugEnable": "Enabled"})["diff"] == predicted["diff"]


def test_a_superseded_pending_value_does_not_survive(bmc: RunningBmc) -> None:
    bmc.inject("stale_pending", attributes={"PcieHotPlugEnable": "Enabled"})
    result = stage(bmc, settings={"PcieHotPlugEnable": "Disabled"})
    assert result["changed"]
    assert "applied Disabled, pending Enabled, desired Disabled" in result["diff"]["before"]
    assert "applied Disabled, pending nothing, desired Disabled" in result["diff"]["after"]
    assert result["restart_required"] == "none"
    bmc.reset()
    assert bmc.active["PcieHotPlugEnable"] == "Disabled"


def test_foreign_pending_values_are_cleared_or_named(bmc: RunningBmc) -> None:
    bmc.inject("stale_pending", attributes={"LlcPrefetchEnable": "Enabled"})
    kept = stage(bmc, settings={})
    assert kept["foreign_pending"] == {"LlcPrefetchEnable": "Enabled"}
    assert "LlcPrefetchEnable" in kept["warnings"][0]
    with pytest.raises(RefusedSettingsError, match="LlcPrefetchEnable"):
        stage(bmc, settings={}, foreign_pending="refuse")
    cleared = stage(bmc, settings={}, foreign_pending="clear")
    assert cleared["cleared"] == ["LlcPrefetchEnable"]
    assert bmc.pending == {}


def test_a_pending_value_of_an_attribute_that_is_gone_is_told_and_nothing_is_written_for_it(bmc: RunningBmc) -> None:
    bmc.inject("stale_pending", attributes={"OldSetting": "Enabled", "LlcPrefetchEnable": "Enabled"})
    result = stage(bmc, settings={"PcieHotPlugEnable": "Enabled"}, foreign_pending="clear")
    assert result["cleared"] == ["LlcPrefetchEnable"]
    assert "OldSetting" not in result["staged"]
    assert result["foreign_pending"] == {"OldSetting": "Enabled"}
    assert "cannot be taken back, since this BIOS does not show what applies now (OldSetting = Enabled)" in str(
        result["warnings"]
    )
    assert bmc.pending == {"OldSetting": "Enabled", "PcieHotPlugEnable": "Enabled"}
    bmc.reset()
    again = stage(bmc, settings={"PcieHotPlugEnable": "Enabled"}, foreign_pending="clear")
    assert (again["changed"], again["restart_required"], again["foreign_pending"]) == (False, "none", {})


def test_a_setting_that_does_not_take_is_named_by_the_gate(bmc: RunningBmc) -> None:
    bmc.inject("setting_ignored", attributes=["PcieHotPlugEnable"], silent=True)
    stage(bmc, settings={"PcieHotPlugEnable": "Enabled", "LlcPrefetchEnable": "Enabled"})
    waiting = verify(bmc, settings={"PcieHotPlugEnable": "Enabled"})
    assert "waits for a restart" in critical(waiting)["PcieHotPlugEnable"]
    assert "PcieHotPlugEnable = Enabled" in critical(waiting)["bios"]
    bmc.reset()
    found = critical(verify(bmc, settings={"PcieHotPlugEnable": "Enabled", "LlcPrefetchEnable": "Enabled"}))
    assert list(found) == ["PcieHotPlugEnable"]
    assert "dropped" in found["PcieHotPlugEnable"]


def test_what_the_bmc_says_of_a_setting_becomes_the_cause(bmc: RunningBmc) -> None:
    bmc.inject("setting_ignored", attributes=["PcieHotPlugEnable"], silent=False)
    stage(bmc, settings={"PcieHotPlugEnable": "Enabled"})
    bmc.reset()
    found = critical(verify(bmc, settings={"PcieHotPlugEnable": "Enabled"}))
    assert "the BMC says: " in found["PcieHotPlugEnable"]


def test_another_writer_between_reading_and_writing_leads_to_a_new_plan(
    bmc: RunningBmc, monkeypatch: pytest.MonkeyPatch
) -> None:
    intrusions = [{"LlcPrefetchEnable": "Enabled"}]
    real = bios_resource.stage

    def intruded(client: Any, bios: Any, values: Any, freed: Any) -> Any:
        if intrusions:
            bmc.inject("stale_pending", attributes=intrusions.pop())
        return real(client, bios, values, freed)

    operation = "ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.bios_operation.stage"
    monkeypatch.setattr(operation, intruded)
    result = stage(bmc, settings={"PcieHotPlugEnable": "Enabled"}, foreign_pending="clear")
    assert result["cleared"] == ["LlcPrefetchEnable"]
    assert bmc.pending == {"PcieHotPlugEnable": "Enabled"}


def test_a_bmc_that_says_yes_and_keeps_nothing_is_found_out(bmc: RunningBmc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bmc.service.bios, "stage", lambda wanted, **_: sorted(wanted))
    with pytest.raises(RedfishError, match=r"does not show them as staged: PcieHotPlugEnable"):
        stage(bmc, settings={"PcieHotPlugEnable": "Enabled"})


def test_a_reset_to_defaults_that_waits_blocks_staging(bmc: RunningBmc) -> None:
    bmc.call(bmc.service.bios.reset_to_defaults)
    with pytest.raises(RedfishError, match="defaults waits for the next restart"):
        stage(bmc, settings={"PcieHotPlugEnable": "Enabled"})
    assert "reset of all attributes" in critical(verify(bmc, settings={}))["bios"]


def test_a_stuck_job_of_dell_is_found_after_the_restart() -> None:
    with running("dell-r750") as bmc:
        bmc.inject("job_stuck")
        stage(bmc, settings={"SriovGlobalEnable": "Enabled"})
        bmc.reset()
        found = critical(verify(bmc, settings={"SriovGlobalEnable": "Enabled"}))
        assert "waits for a restart" in found["SriovGlobalEnable"]


def test_nothing_is_queued_behind_a_job_of_dell_that_blocks_it() -> None:
    with running("dell-r750") as bmc:
        stage(bmc, settings={"SriovGlobalEnable": "Enabled"})
        with pytest.raises(
            BlockedError, match=r"job JID_700000000001 \(Configure: BIOS.* state Scheduled.* waits for a restart"
        ):
            stage(bmc, settings={"LogicalProc": "Disabled"})
        assert bmc.pending == {"SriovGlobalEnable": "Enabled"}


def test_without_the_settings_annotation_its_usual_places_are_tried() -> None:
    with running(profile_overrides={"quirks": {"settings_annotation": False}}) as bmc:
        assert stage(bmc, settings={"PcieHotPlugEnable": "Enabled"})["settings_uri"].endswith("/Bios/Settings")
        assert bmc.pending == {"PcieHotPlugEnable": "Enabled"}


def test_a_machine_without_attributes_says_so(bmc: RunningBmc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bmc.service.bios, "shaped", lambda _values: {})
    with login(bmc) as client, pytest.raises(NoBiosError, match="power the machine on once"):
        read_bios(client)


def test_without_a_registry_values_are_not_written_unless_that_is_allowed(
    bmc: RunningBmc, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bios_resource, "read_registry", lambda *_: (None, "", ["no registry"]))
    with pytest.raises(RefusedSettingsError, match="has no attribute registry"):
        stage(bmc, settings={"PcieHotPlugEnable": "Enabled"})
    result = stage(bmc, settings={"PcieHotPlugEnable": "Enabled"}, require_registry=False)
    assert result["registry"] == ""
    assert bmc.pending == {"PcieHotPlugEnable": "Enabled"}


def test_an_unsupported_logical_setting_warns_or_fails_as_asked() -> None:
    with running("supermicro-821ge") as bmc:
        assert set(stage(bmc, logical={"uncore_frequency": "maximum"})["unsupported"]) == {"uncore_frequency"}
        with pytest.raises(RefusedSettingsError, match="does not offer uncore_frequency"):
            stage(bmc, logical={"uncore_frequency": "maximum"}, unsupported="fail")


def test_a_raw_setting_wins_over_a_logical_one(bmc: RunningBmc) -> None:
    result = stage(bmc, logical={"turbo": "enabled"}, settings={"TurboMode": "Disabled"}, unlock=True)
    assert result["staged"] == {"TurboMode": "Disabled", "PowerProfile": "CUSTOM"}
