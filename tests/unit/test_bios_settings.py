"""Desired, applied and pending: what must be staged, what must be replaced, and when nothing must be done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import bios_logical
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.bios_measurements import (
    pending_measurement,
    setting_measurements,
    unsupported_measurements,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.bios_registry import (
    Attribute,
    Option,
    Registry,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.bios_settings import (
    BiosState,
    Plan,
    RefusedSettingsError,
    flatten,
    is_nested,
    plan,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.bios_vendor_files import load_mappings
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.gates import judge_all

MAPS = load_mappings()
RULES = {"bios_setting": {"kind": "equals"}, "bios_pending_values": {"kind": "equals"}}


def enumeration(name: str, *values: str, **options: Any) -> Attribute:
    return Attribute(name, "Enumeration", options=tuple(Option(value, value) for value in values), **options)


def machine(pending: dict[str, Any] | None = None) -> BiosState:
    attributes = [
        enumeration("TurboMode", "Disabled", "Enabled", display="Turbo Mode"),
        enumeration("C6Enable", "Disabled", "Enabled", "Auto"),
        enumeration("PowerProfile", "BALANCE", "CUSTOM"),
        enumeration("Serial", "A", "B", read_only=True),
        Attribute("Scrub", "Integer", lower=0, upper=24),
    ]
    applied = {"TurboMode": "Enabled", "C6Enable": "Auto", "PowerProfile": "BALANCE", "Serial": "A", "Scrub": 24}
    return BiosState(applied, pending or {}, Registry("R.1", {a.name: a for a in attributes}))


def refused(settings: dict[str, Any], pending: dict[str, Any] | None = None, **options: Any) -> str:
    with pytest.raises(RefusedSettingsError) as caught:
        plan(machine(pending), settings, **options)
    return str(caught.value)


def test_only_what_differs_is_staged() -> None:
    made = plan(machine(), {"TurboMode": "Enabled", "C6Enable": "Disabled", "Scrub": "24"})
    assert made.write == {"C6Enable": "Disabled"}
    assert made.restart_required == "power_cycle"


def test_nothing_is_staged_where_all_is_right() -> None:
    made = plan(machine(), {"TurboMode": "Enabled"})
    assert (made.write, made.restart_required, made.changes) == ({}, "none", [])


def test_a_value_that_is_staged_already_is_not_staged_again_but_still_needs_its_restart() -> None:
    made = plan(machine({"C6Enable": "Disabled"}), {"C6Enable": "Disabled"})
    assert made.write == {}
    assert made.restart_required == "power_cycle"


def test_a_superseded_pending_value_is_replaced_even_where_the_applied_one_is_right() -> None:
    # Left alone, the next restart would switch turbo off.
    made = plan(machine({"TurboMode": "Disabled"}), {"TurboMode": "Enabled"})
    assert made.write == {"TurboMode": "Enabled"}
    assert made.restart_required == "none"


def test_foreign_pending_values_are_kept_cleared_or_refused_as_asked() -> None:
    pending = {"Scrub": 12}
    kept = plan(machine(pending), {"TurboMode": "Enabled"})
    assert (kept.write, kept.foreign, kept.restart_required) == ({}, pending, "power_cycle")
    assert "Scrub = 12" in kept.warnings[0]
    cleared = plan(machine(pending), {"TurboMode": "Enabled"}, foreign_pending="clear")
    assert (cleared.write, cleared.cleared, cleared.restart_required) == ({"Scrub": 24}, ["Scrub"], "none")
    text = refused({"TurboMode": "Enabled"}, pending, foreign_pending="refuse")
    assert "Scrub = 12" in text
    assert "foreign_pending" in text


def test_a_settings_object_that_lists_all_values_holds_no_pending_ones() -> None:
    state = machine({"TurboMode": "Enabled", "C6Enable": "Auto", "Scrub": 12})
    assert state.pending == {"Scrub": 12}


def test_all_problems_are_named_at_once_and_nothing_is_planned() -> None:
    text = refused({"TurboMod": "Enabled", "C6Enable": "Off", "Serial": "B", "Scrub": 25})
    assert text.startswith("3 BIOS settings were refused and nothing was written")
    assert 'did you mean "TurboMode"?' in text
    assert "C6Enable has no value" in text
    assert "from 0 to 24" in text


def test_a_read_only_attribute_is_refused_unless_it_has_the_value() -> None:
    assert "read-only in the registry" in refused({"Serial": "B"})
    assert plan(machine(), {"Serial": "A"}).write == {}


def test_a_display_name_is_answered_with_the_name_it_belongs_to() -> None:
    assert 'did you mean "TurboMode"?' in refused({"turbo mode": "Enabled"})


@pytest.mark.parametrize("value", [None, ["Enabled"], {"a": 1}])
def test_a_value_is_a_single_one(value: Any) -> None:
    assert "single value" in refused({"TurboMode": value})


def test_attributes_under_parents_are_taken_out_and_may_be_named_with_them() -> None:
    shown = {"SocketPower": {"TurboMode": "Enabled"}, "PowerProfile": "BALANCE"}
    assert is_nested(shown)
    assert flatten(shown) == {"TurboMode": "Enabled", "PowerProfile": "BALANCE"}
    assert plan(machine(), {"SocketPower.TurboMode": "Disabled"}).write == {"TurboMode": "Disabled"}


def judged(state: BiosState, desired: dict[str, Any], **options: Any) -> dict[str, tuple[str, str]]:
    found = [*setting_measurements(state, desired, **options), pending_measurement(state)]
    return {check.scope: (check.status, check.cause) for check in judge_all(found, RULES)}


def test_the_gate_passes_settings_that_took() -> None:
    assert judged(machine(), {"TurboMode": "Enabled"}) == {"TurboMode": ("OK", ""), "bios": ("OK", "")}


def test_a_setting_that_did_not_take_fails_by_name_with_the_probable_cause() -> None:
    dropped = judged(machine(), {"C6Enable": "Disabled"})["C6Enable"]
    assert dropped[0] == "CRITICAL"
    assert "dropped the staged value" in dropped[1]
    waiting = judged(machine({"C6Enable": "Disabled"}), {"C6Enable": "Disabled"})
    assert "waits for a restart" in waiting["C6Enable"][1]
    assert waiting["bios"][0] == "CRITICAL"
    assert "C6Enable = Disabled" in waiting["bios"][1]
    told = judged(machine(), {"C6Enable": "Disabled"}, messages={"C6Enable": "not in this SKU"})
    assert "not in this SKU" in told["C6Enable"][1]


def test_an_attribute_that_vanished_is_unknown_and_an_unsupported_one_is_skipped() -> None:
    assert judged(machine(), {"Gone": "x"})["Gone"][0] == "UNKNOWN"
    checks = judge_all(unsupported_measurements({"uncore_frequency": "no attribute"}), RULES)
    assert checks[0].status == "SKIPPED"
    assert "no attribute" in checks[0].reason


def test_logical_settings_come_to_attributes_and_what_is_not_there_is_unsupported() -> None:
    found = bios_logical.resolve(machine(), MAPS, {"turbo": "disabled", "sriov": "enabled"}, "IEIT")
    assert found.settings == {"TurboMode": "Disabled"}
    assert found.sources == {"turbo": ["TurboMode"]}
    assert "SriovSupport" in found.unsupported["sriov"]


def test_an_unknown_vendor_is_served_by_whatever_fits_its_registry() -> None:
    assert bios_logical.resolve(machine(), MAPS, {"turbo": "disabled"}, "Somebody").settings == {
        "TurboMode": "Disabled"
    }


def test_misspelt_logical_names_values_and_booleans_are_explained() -> None:
    problems = bios_logical.check(MAPS, {"turob": "enabled", "turbo": True, "numa": "enable", "c_states": "disabled"})
    assert len(problems) == 3
    assert 'did you mean "turbo"?' in problems[0]
    assert "YAML reads" in problems[1]
    assert 'did you mean "enabled"?' in problems[2]


def test_a_vendor_s_known_locks_count_where_the_registry_says_nothing() -> None:
    state = machine()
    assert state.registry is not None
    bios_logical.add_requirements(state.registry, state, MAPS, "Inspur")
    with pytest.raises(RefusedSettingsError, match="PowerProfile"):
        plan(state, {"C6Enable": "Disabled"})
    assert plan(state, {"C6Enable": "Disabled"}, unlock=True).write == {
        "C6Enable": "Disabled",
        "PowerProfile": "CUSTOM",
    }


def test_every_logical_value_of_every_vendor_has_candidates_or_is_absent() -> None:
    for vendor in MAPS:
        for name, values in vendor["logical"].items():
            assert name in bios_logical.names(MAPS)
            for value, candidates in values.items():
                assert candidates, (vendor["vendor"], name, value)
                for candidate in candidates:
                    assert all(isinstance(wanted, list) and wanted for wanted in candidate.values())


def test_a_plan_that_changes_nothing_asks_for_no_restart() -> None:
    assert Plan().restart_required == "none"


def test_the_documentation_names_every_logical_setting_with_its_values() -> None:
    rows = (Path(__file__).parents[2] / "docs" / "bios.md").read_text().splitlines()
    for vendor in MAPS:
        for name, values in vendor["logical"].items():
            for value, candidates in values.items():
                if name == "pcie_link_speed" and value not in ("auto", "gen4"):
                    continue
                row = next(line for line in rows if line.startswith(f"| `{name}` | `{value}` |"))
                for attribute, wanted in candidates[0].items():
                    assert f"{attribute}={wanted[0]}" in row, (vendor["vendor"], name, value)


def test_the_role_offers_every_logical_setting_with_its_values() -> None:
    text = (Path(__file__).parents[2] / "roles" / "bios" / "meta" / "argument_specs.yml").read_text()
    options = yaml.safe_load(text)["argument_specs"]["main"]["options"]["bios_logical"]["options"]
    assert set(options) == set(bios_logical.names(MAPS))
    for name, option in options.items():
        assert set(option["choices"]) == set(bios_logical.values(MAPS, name)), name
