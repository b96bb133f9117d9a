"""The BIOS attribute registry of the simulator: values, bounds, locks, consequences, the compact form."""

from __future__ import annotations

from typing import Any

import pytest

from lab.bmc import profile
from lab.bmc.registry import AttributeRegistry, build_registry, complete

ITEMS: list[dict[str, Any]] = [
    {
        "name": "Profile",
        "values": {"FAST": "Fast", "CUSTOM": "Custom"},
        "default": "FAST",
        "sets": {"FAST": {"Turbo": "On"}},
    },
    {"name": "Turbo", "values": ["On", "Off"], "default": "Off", "needs": {"Profile": "CUSTOM"}, "parent": "Power"},
    {"name": "Hours", "type": "Integer", "minimum": 0, "maximum": 24, "step": 4, "default": 24},
    {"name": "Tag", "type": "String", "max_length": 4, "pattern": "[a-z]*", "default": ""},
    {"name": "Quiet", "type": "Boolean", "default": False},
    {"name": "Serial", "type": "String", "read_only": True},
]


@pytest.fixture
def registry() -> AttributeRegistry:
    return AttributeRegistry(build_registry({"Id": "R.1.0.0"}, ITEMS))


@pytest.mark.parametrize(
    ("name", "value", "key"),
    [
        ("Profile", "SLOW", "PropertyValueNotInList"),
        ("Profile", "Fast", "PropertyValueNotInList"),  # the display text is no value
        ("Profile", 1, "PropertyValueTypeError"),
        ("Profile", ["FAST"], "PropertyValueTypeError"),
        ("Hours", "4", "PropertyValueTypeError"),
        ("Hours", True, "PropertyValueTypeError"),
        ("Hours", 28, "PropertyValueOutOfRange"),
        ("Hours", -4, "PropertyValueOutOfRange"),
        ("Hours", 5, "PropertyValueOutOfRange"),
        ("Tag", "abcde", "PropertyValueOutOfRange"),
        ("Tag", "AB", "PropertyValueFormatError"),
        ("Tag", None, "PropertyValueTypeError"),
        ("Quiet", "true", "PropertyValueTypeError"),
    ],
)
def test_a_wrong_value_is_refused_with_the_right_message(
    registry: AttributeRegistry, name: str, value: Any, key: str
) -> None:
    problem = registry.check(name, value, None)
    assert problem is not None
    assert problem["MessageId"].endswith(f".{key}")
    assert problem["RelatedProperties"] == [f"/Attributes/{name}"]


@pytest.mark.parametrize(
    ("name", "value"), [("Profile", "CUSTOM"), ("Hours", 4), ("Tag", "ab"), ("Quiet", True), ("Turbo", "Off")]
)
def test_a_right_value_passes(registry: AttributeRegistry, name: str, value: Any) -> None:
    assert registry.check(name, value, None) is None


def test_an_attribute_that_the_registry_does_not_list_keeps_its_type(registry: AttributeRegistry) -> None:
    assert registry.check("Unlisted", "x", "y") is None
    problem = registry.check("Unlisted", 3, "y")
    assert problem is not None
    assert problem["MessageId"].endswith("PropertyValueTypeError")


def test_a_dependency_locks_until_its_gate_is_open(registry: AttributeRegistry) -> None:
    assert registry.lock_reason("Turbo", {"Profile": "FAST"}) == "locked because Profile is FAST, must be CUSTOM"
    assert registry.lock_reason("Turbo", {"Profile": "CUSTOM"}) == ""
    assert "ReadOnly" in registry.lock_reason("Serial", {})


def test_a_profile_forces_what_it_sets_and_only_when_it_changed(registry: AttributeRegistry) -> None:
    values = {"Profile": "FAST", "Turbo": "Off"}
    assert registry.consequences(["Profile"], values) == {"Turbo": "On"}
    assert registry.consequences(["Hours"], values) == {}


def test_chains_of_consequences_end_even_when_they_contradict_each_other() -> None:
    loop = [
        {"name": "A", "values": ["0", "1"], "default": "0", "sets": {"0": {"B": "1"}, "1": {"B": "0"}}},
        {"name": "B", "values": ["0", "1"], "default": "0", "sets": {"0": {"A": "0"}, "1": {"A": "1"}}},
    ]
    forced = AttributeRegistry(build_registry({"Id": "L"}, loop)).consequences(["A"], {"A": "0", "B": "0"})
    assert set(forced) == {"A", "B"}


@pytest.mark.parametrize(
    ("terms", "values", "expected"),
    [
        (("AND", "AND"), {"a": 1, "b": 2}, True),
        (("AND", "AND"), {"a": 1, "b": 0}, False),
        (("AND", "OR"), {"a": 0, "b": 2}, True),
        (("AND", "OR"), {"a": 0, "b": 0}, False),
    ],
)
def test_terms_are_joined_as_the_registry_says(terms: tuple[str, str], values: dict[str, Any], expected: bool) -> None:
    conditions = [
        {"MapFromAttribute": "a", "MapFromCondition": "EQU", "MapFromValue": 1, "MapTerms": terms[0]},
        {"MapFromAttribute": "b", "MapFromCondition": "GEQ", "MapFromValue": 2, "MapTerms": terms[1]},
    ]
    dependency = {"MapFrom": conditions, "MapToAttribute": "c", "MapToProperty": "ReadOnly", "MapToValue": True}
    document = {"RegistryEntries": {"Attributes": [], "Dependencies": [{"Type": "Map", "Dependency": dependency}]}}
    assert bool(AttributeRegistry(document).lock_reason("c", values)) is expected


def test_numbered_registries_are_read_and_written_by_display_text() -> None:
    item = {"name": "C6", "values": {"Disable": 0, "Auto": 255}, "default": "Auto"}
    document = build_registry({"Id": "N"}, [item], numbered=True)
    assert document["RegistryEntries"]["Attributes"][0]["Value"] == [
        {"ValueDisplayName": "Disable", "ValueName": 0},
        {"ValueDisplayName": "Auto", "ValueName": 255},
    ]
    registry = AttributeRegistry(document, live="ValueDisplayName")
    assert registry.check("C6", "Disable", "Auto") is None
    assert registry.check("C6", 0, "Auto") is not None


def test_a_cut_registry_is_completed_from_values_and_dependencies() -> None:
    document = build_registry({"Id": "C"}, ITEMS[:1])
    complete(
        document,
        [{"name": "Extra", "values": ["a", "b"]}],
        {"Turbo": "Off", "Count": 3, "Free": "text", "E": "Enabled"},
    )
    entries = AttributeRegistry(document).entries
    assert [one["ValueName"] for one in entries["Turbo"]["Value"]] == ["Off", "On"]
    assert entries["Count"]["Type"] == "Integer"
    assert entries["Free"]["Type"] == "String"
    assert [one["ValueName"] for one in entries["E"]["Value"]] == ["Enabled", "Disabled"]
    assert "Extra" in entries


def test_the_captured_registry_of_hpe_locks_by_its_own_dependencies() -> None:
    loaded = profile.load("hpe-dl380a-gen11")
    registry, values = loaded.registry, loaded.initial
    assert len(registry.dependencies) == 738
    assert values["WorkloadProfile"] == "I/OThroughput"
    assert registry.lock_reason("UncoreFreqScaling", values) == "locked because WorkloadProfile is I/OThroughput"
    assert registry.lock_reason("MinProcIdlePower", values) == ""  # this profile leaves it free
    assert registry.lock_reason("MinProcIdlePower", {**values, "WorkloadProfile": "LowLatency"})
    assert registry.lock_reason("UncoreFreqScaling", {**values, "WorkloadProfile": "Custom"}) == ""
    low = registry.consequences(["WorkloadProfile"], {**values, "WorkloadProfile": "LowLatency"})
    assert low["MinProcIdlePower"] == "NoCStates"


@pytest.mark.parametrize("name", profile.available())
def test_every_default_of_a_profile_is_allowed_by_its_own_registry(name: str) -> None:
    loaded = profile.load(name)
    values = {**loaded.registry.defaults(), **loaded.initial}
    assert values
    wrong = {key: value for key, value in values.items() if loaded.registry.check(key, value, value) is not None}
    assert wrong == {}


def test_a_profile_that_does_not_exist_is_refused_with_the_choice() -> None:
    with pytest.raises(profile.ProfileError, match=r"There is no profile 'vax'; choose one of .*ieit-nf8260g7"):
        profile.load("vax")
