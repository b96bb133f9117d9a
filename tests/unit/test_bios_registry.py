"""The attribute registry decides what may be written: names, values in all their forms, bounds, types."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.bios_registry import (
    Attribute,
    Option,
    Registry,
    SettingError,
    quoted,
)

TURBO = Attribute("TurboMode", "Enumeration", options=(Option("Disabled", "Disabled"), Option("Enabled", "Enabled")))
# Supermicro: numbers as names, display text in the live value.
C6 = Attribute(
    "CPUC6Report_3D22",
    "Enumeration",
    options=(Option("0", "Disable", 0), Option("1", "Enable", 1), Option("255", "Auto", 255)),
)
SCRUB = Attribute("PatrolScrubDuration", "Integer", lower=0, upper=24)
STEP = Attribute("Reserved", "Integer", lower=0, upper=1024, step=64)
PHONE = Attribute("AdminPhone", "String", min_length=2, max_length=5, pattern="^[0-9]+$")
EGM = Attribute("EGM", "Boolean")


def refused(attribute: Attribute, value: Any) -> str:
    with pytest.raises(SettingError) as caught:
        attribute.accept(value)
    return str(caught.value)


def test_a_misspelt_value_is_refused_with_the_nearest_one_and_all_others() -> None:
    text = refused(TURBO, "Enable")
    assert "TurboMode" in text
    assert 'did you mean "Enabled"?' in text
    assert "Disabled, Enabled" in text


def test_capitals_matter_since_they_matter_to_the_machine() -> None:
    assert 'did you mean "Disabled"?' in refused(TURBO, "disabled")


@pytest.mark.parametrize("value", [True, False])
def test_a_boolean_for_an_enumeration_is_yaml_s_doing_and_says_so(value: bool) -> None:
    text = refused(TURBO, value)
    assert "YAML reads on, off, yes and no as booleans" in text
    assert "quotes" in text


def test_name_display_text_and_number_mean_the_same_value() -> None:
    assert C6.accept("0") == C6.accept("Disable") == C6.accept(0) == "0"
    assert C6.canonical("Disable") == "0"


def test_a_value_is_sent_in_the_form_in_which_the_machine_shows_it() -> None:
    assert C6.wire("0", live="Auto") == "Disable"
    assert C6.wire("0", live="255") == "0"
    assert C6.wire("0", live=255) == 0
    assert TURBO.wire("Enabled", live="Disabled") == "Enabled"


def test_bounds_steps_and_types_of_numbers() -> None:
    assert SCRUB.accept(24) == SCRUB.accept("24") == 24
    assert "from 0 to 24" in refused(SCRUB, 25)
    assert "from 0 to 24" in refused(SCRUB, -1)
    assert "integer" in refused(SCRUB, "often")
    # A boolean is a number to Python, and a mistake here.
    assert "integer" in refused(SCRUB, True)
    assert STEP.accept(128) == 128
    assert "steps of 64" in refused(STEP, 100)


def test_texts_have_lengths_and_patterns() -> None:
    assert PHONE.accept(123) == "123"
    assert "too short" in refused(PHONE, "1")
    assert "too long" in refused(PHONE, "123456")
    assert "matches ^[0-9]+$" in refused(PHONE, "12a")
    assert "quotes" in refused(PHONE, True)


@pytest.mark.parametrize("value", ["a\x00b", "one\ntwo", "\x1b[31mred", "tab\there"])
def test_a_text_that_cannot_be_printed_is_refused_and_not_printed(value: str) -> None:
    with pytest.raises(SettingError, match="cannot be printed") as caught:
        Attribute("AssetTag", "String").accept(value)
    assert str(caught.value).isprintable()
    assert Attribute("AssetTag", "String").accept("日本語 ü") == "日本語 ü"


def test_a_long_value_is_cut_in_the_sentence_and_null_is_nothing() -> None:
    with pytest.raises(SettingError) as caught:
        C6.accept("x" * 100_000)
    assert len(str(caught.value)) < 300
    assert quoted(None) == "nothing"


def test_a_pattern_of_another_dialect_is_left_to_the_machine() -> None:
    assert Attribute("X", "String", pattern="(?<bad").accept("anything") == "anything"


def test_booleans_take_true_and_false_only() -> None:
    assert EGM.accept(True) is True
    assert EGM.accept("False") is False
    assert "expected true or false" in refused(EGM, "Enabled")
    assert "expected true or false" in refused(EGM, 1)


def test_a_password_is_not_set_here() -> None:
    assert "cannot be read back" in refused(Attribute("AdminPassword", "Password"), "secret")


def test_the_registry_reads_entries_and_leaves_nameless_ones_out() -> None:
    registry = Registry.from_json(
        {
            "Id": "R.1",
            "RegistryEntries": {
                "Attributes": [
                    {"AttributeName": "A", "Type": "Integer", "LowerBound": 1, "UpperBound": 3, "ReadOnly": True},
                    {"AttributeName": "B", "Value": [{"ValueName": "x"}, {"ValueName": None}]},
                    {"DisplayName": "nameless"},
                ],
                "Dependencies": [{"Type": "Map", "Dependency": {"MapFrom": [], "MapToAttribute": "A"}}],
            },
        }
    )
    assert set(registry.attributes) == {"A", "B"}
    assert registry.attributes["A"].read_only
    assert registry.attributes["B"].type == "Enumeration"
    assert registry.dependencies == []


def test_values_are_compared_by_meaning_but_true_is_not_one() -> None:
    registry = Registry("R", {C6.name: C6, EGM.name: EGM})
    assert registry.same(C6.name, "Disable", 0)
    assert not registry.same(C6.name, "Disable", "Enable")
    assert not registry.same(EGM.name, True, 1)
    assert registry.same("Unknown", 3, "3")
