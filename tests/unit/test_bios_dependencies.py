"""Dependencies of a captured HPE registry (738 of them): what a profile locks, what it sets, and what frees an attribute."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.bios_dependencies import (
    implied,
    locks,
    unlocking,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.bios_registry import (
    Condition,
    Dependency,
    Registry,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.bios_settings import (
    BiosState,
    RefusedSettingsError,
    plan,
)

CAPTURED = Path(__file__).parents[2] / "lab" / "bmc" / "data" / "captured"


@pytest.fixture(scope="module")
def registry() -> Registry:
    return Registry.from_json(json.loads((CAPTURED / "hpe_ilo_bios_attribute_registry_u58.json").read_text()))


@pytest.fixture(scope="module")
def values() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((CAPTURED / "hpe_ilo_bios.json").read_text())["Attributes"]
    return found


def test_all_dependencies_are_read(registry: Registry) -> None:
    assert len(registry.dependencies) == 738


def test_a_profile_locks_what_it_sets_and_nothing_else(registry: Registry, values: dict[str, Any]) -> None:
    # This machine runs I/OThroughput, which leaves turbo alone: "everything needs Custom" would be wrong.
    assert values["WorkloadProfile"] == "I/OThroughput"
    assert locks(registry, values, "ProcTurbo") == []
    assert locks(registry, values, "UncoreFreqScaling") != []
    reason = locks(registry, {**values, "WorkloadProfile": "LowLatency"}, "ProcTurbo")[0].text()
    assert reason == "locked while WorkloadProfile = LowLatency"


def test_custom_frees_what_any_profile_locks_and_is_named_first(registry: Registry, values: dict[str, Any]) -> None:
    state = {**values, "WorkloadProfile": "LowLatency"}
    assert unlocking(registry, state, "ProcTurbo")[0] == ("WorkloadProfile", "Custom")
    assert locks(registry, {**state, "WorkloadProfile": "Custom"}, "ProcTurbo") == []


def test_a_profile_implies_values(registry: Registry, values: dict[str, Any]) -> None:
    state = {**values, "WorkloadProfile": "LowLatency"}
    found = {name: sources[-1][0] for name, sources in implied(registry, state).items()}
    assert found["ProcTurbo"] == "Disabled"
    assert found["MinProcIdlePower"] == "NoCStates"


def test_conditions_on_attributes_that_the_machine_lacks_never_hold(registry: Registry, values: dict[str, Any]) -> None:
    # "IntelSpeedSelectConfigLevel is not Base" must not lock the cores of a machine without Speed Select.
    assert "IntelSpeedSelectConfigLevel" not in values
    assert locks(registry, values, "EnabledCoresPerProc") == []


def dependency(*conditions: Condition) -> Dependency:
    return Dependency(conditions, "Target", "ReadOnly", True)


@pytest.mark.parametrize(
    ("operator", "bound", "locked"),
    [("GTR", 3, True), ("GTR", 4, False), ("GEQ", 4, True), ("LSS", 5, True), ("LEQ", 3, False), ("NEQ", 4, False)],
)
def test_numbers_are_compared_as_numbers(operator: str, bound: int, locked: bool) -> None:
    found = Registry("R", {}, [dependency(Condition("Cores", "CurrentValue", operator, bound))])
    assert bool(locks(found, {"Cores": 4}, "Target")) is locked


@pytest.mark.parametrize(("term", "locked"), [("AND", False), ("OR", True)])
def test_terms_are_joined(term: str, locked: bool) -> None:
    both = dependency(Condition("A", "CurrentValue", "EQU", 1), Condition("B", "CurrentValue", "EQU", 1, term))
    assert bool(locks(Registry("R", {}, [both]), {"A": 1, "B": 2}, "Target")) is locked


def test_a_later_dependency_can_free_what_an_earlier_one_locked() -> None:
    lock = dependency(Condition("A", "CurrentValue", "EQU", 1))
    free = Dependency((Condition("B", "CurrentValue", "EQU", 1),), "Target", "ReadOnly", False)
    assert locks(Registry("R", {}, [lock, free]), {"A": 1, "B": 1}, "Target") == []
    assert locks(Registry("R", {}, [lock, free]), {"A": 1, "B": 2}, "Target") != []


def lenient(registry: Registry, values: dict[str, Any], settings: dict[str, Any], **options: Any) -> Any:
    """Plan on the captured registry, which was cut to 5 described attributes."""
    return plan(BiosState(values, {}, registry), settings, require_registry=False, **options)


def test_a_locked_setting_is_refused_naming_what_to_change(registry: Registry, values: dict[str, Any]) -> None:
    with pytest.raises(RefusedSettingsError) as caught:
        lenient(registry, values, {"UncoreFreqScaling": "Auto"})
    assert "locked while WorkloadProfile = I/OThroughput" in str(caught.value)
    assert 'set WorkloadProfile to "Custom"' in str(caught.value)


def test_the_same_request_may_unlock_it(registry: Registry, values: dict[str, Any]) -> None:
    made = lenient(registry, values, {"UncoreFreqScaling": "Auto", "WorkloadProfile": "Custom"})
    assert made.write == {"UncoreFreqScaling": "Auto", "WorkloadProfile": "Custom"}
    unlocked = lenient(registry, values, {"UncoreFreqScaling": "Auto"}, unlock=True)
    assert unlocked.unlocked == {"WorkloadProfile": "Custom"}
    assert unlocked.write == made.write


def test_a_locked_value_that_is_there_already_is_no_problem(registry: Registry, values: dict[str, Any]) -> None:
    assert lenient(registry, values, {"UncoreFreqScaling": values["UncoreFreqScaling"]}).write == {}


def test_a_profile_that_contradicts_another_wanted_value_is_refused(registry: Registry, values: dict[str, Any]) -> None:
    with pytest.raises(RefusedSettingsError) as caught:
        lenient(registry, values, {"WorkloadProfile": "LowLatency", "MemPatrolScrubbing": "Enabled"})
    assert "WorkloadProfile = LowLatency" in str(caught.value)


def test_unlock_never_changes_what_was_asked_for(registry: Registry, values: dict[str, Any]) -> None:
    with pytest.raises(RefusedSettingsError):
        lenient(registry, values, {"WorkloadProfile": "LowLatency", "UncoreFreqScaling": "Auto"}, unlock=True)


def test_an_undescribed_attribute_is_refused_unless_that_is_allowed(registry: Registry, values: dict[str, Any]) -> None:
    with pytest.raises(RefusedSettingsError) as caught:
        plan(BiosState(values, {}, registry), {"ProcTurbo": "Enabled"})
    assert "require_registry" in str(caught.value)
    with pytest.raises(RefusedSettingsError, match="same type"):
        lenient(registry, values, {"ProcTurbo": True})
    with pytest.raises(RefusedSettingsError, match="expected a number"):
        lenient(registry, values, {"EnabledCoresPerProc": "many"})


def test_values_that_a_staged_profile_brings_along_are_not_somebody_else_s(
    registry: Registry, values: dict[str, Any]
) -> None:
    pending = {"WorkloadProfile": "LowLatency", "ProcTurbo": "Disabled", "MinProcIdlePower": "NoCStates"}
    state = BiosState(values, {**pending, "Sriov": "Disabled", "AdminName": "someone"}, registry)
    made = plan(state, {"WorkloadProfile": "LowLatency"}, foreign_pending="clear", require_registry=False)
    assert made.cleared == ["AdminName"]
    assert made.write == {"AdminName": values["AdminName"]}
    assert made.restart_required == "power_cycle"
