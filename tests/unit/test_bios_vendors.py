"""The vendors' mappings as data: their form, their sources, what captured registries say of them, and a site's own over them."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import bios_logical
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.bios_registry import Attribute, Registry
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.bios_settings import BiosState
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.bios_vendor_data import (
    VendorDataError,
    checked,
    problems_of,
    requirements,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.bios_vendor_files import load_mappings

from lab.bmc.testing import running
from tests.unit.bios_fleet import Fleet

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "data" / "bios_vendors").glob("*.yml"))
CAPTURED = ROOT / "lab" / "bmc" / "data" / "captured"
SHIPPED = {mapping["vendor"]: mapping for mapping in load_mappings()}


def captured(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((CAPTURED / name).read_text())
    return document


def test_there_is_one_sound_file_a_vendor_with_its_sources() -> None:
    assert [path.stem for path in FILES] == ["dell", "hpe", "ieit", "lenovo", "supermicro"]
    for path in FILES:
        data = yaml.safe_load(path.read_text())
        assert problems_of(data, path.name) == []
        assert data["sources"], path
        assert data["vendor"].lower() == path.stem
        assert sorted(data["logical"]) == [
            n for n in bios_logical.names(list(SHIPPED.values())) if n in data["logical"]
        ]


def wanted_values(mapping: dict[str, Any]) -> list[tuple[str, str, str, list[Any]]]:
    return [
        (name, value, attribute, wanted)
        for name, values in mapping["logical"].items()
        for value, candidates in values.items()
        for candidate in candidates
        for attribute, wanted in candidate.items()
    ]


def test_every_value_for_supermicro_s_gb300_exists_in_its_captured_registry() -> None:
    entries = captured("supermicro_gb300_bios_attribute_registry.json")["RegistryEntries"]["Attributes"]
    met = set()
    for name, value, pattern, wanted in wanted_values(SHIPPED["Supermicro"]):
        for entry in entries:
            if fnmatchcase(entry["AttributeName"], pattern):
                allowed = [item["ValueName"] for item in entry.get("Value", [])] or [True, False]
                assert set(wanted) & set(allowed), (name, value, entry["AttributeName"], wanted, allowed)
                met.add(name)
    assert met == {"sriov", "above_4g_decoding", "pcie_aspm", "pcie_link_speed"}


def test_every_value_for_hpe_that_its_captured_dependencies_know_is_spelt_as_they_spell_it() -> None:
    """The captured registry was cut to five attributes; its 738 Dependencies still name values of many more."""
    document = captured("hpe_ilo_bios_attribute_registry_u58.json")["RegistryEntries"]
    known: dict[str, set[str]] = {}
    for entry in document["Attributes"]:
        known[entry["AttributeName"]] = {item["ValueName"] for item in entry["Value"]}
    full = set(known)
    values = captured("hpe_ilo_bios.json")["Attributes"]
    for entry in document["Dependencies"]:
        dependency = entry["Dependency"]
        for term in dependency["MapFrom"]:
            known.setdefault(term["MapFromAttribute"], set()).add(str(term["MapFromValue"]))
        if dependency["MapToProperty"] == "CurrentValue":
            known.setdefault(dependency["MapToAttribute"], set()).add(str(dependency["MapToValue"]))
    for name, value in values.items():
        known.setdefault(name, set()).add(str(value))
    confirmed = 0
    for name, value, pattern, wanted in wanted_values(SHIPPED["HPE"]):
        for attribute in (one for one in values if fnmatchcase(one, pattern)):
            if set(map(str, wanted)) & known[attribute]:
                confirmed += 1
            else:
                assert attribute not in full, (name, value, attribute)
                # The same word in other capitals would be a misspelling.
                lower = {text.lower(): text for text in known[attribute]}
                assert not {str(one).lower() for one in wanted} & set(lower), (name, value, attribute, wanted)
    assert confirmed >= 20


def test_a_site_s_file_is_laid_over_the_shipped_ones(tmp_path: Path) -> None:
    own = tmp_path / "site.yml"
    own.write_text(
        "vendor: HPE\nmanufacturers: [acme]\nlogical:\n  turbo:\n    enabled: [{Boost: ['1']}]\n    disabled: null\n"
        "requires: [{needs: {Mode: Open}, attributes: [Boost]}]\n"
    )
    other = tmp_path / "quanta.yml"
    other.write_text("vendor: Quanta\nmanufacturers: [quanta]\nlogical: {turbo: {enabled: [{QTurbo: [Enabled]}]}}\n")
    mappings = {one["vendor"]: one for one in load_mappings([str(own), str(other)])}
    assert mappings["HPE"]["logical"]["turbo"] == {"enabled": [{"Boost": ["1"]}]}
    assert mappings["HPE"]["logical"]["sriov"] == SHIPPED["HPE"]["logical"]["sriov"]
    assert mappings["HPE"]["manufacturers"] == ["hpe", "hewlett", "acme"]
    assert requirements(mappings["HPE"]) == {"Boost": {"Mode": "Open"}}
    registry = Registry("R", {"QTurbo": Attribute("QTurbo", "String")})
    state = BiosState({"QTurbo": "Disabled"}, {}, registry)
    found = bios_logical.resolve(state, list(mappings.values()), {"turbo": "enabled"}, "Quanta Cloud")
    assert (found.vendor, found.settings) == ("Quanta", {"QTurbo": "Enabled"})
    # What is shipped is as it was: the process goes on with other hosts.
    assert {one["vendor"]: one for one in load_mappings()} == SHIPPED
    assert load_mappings() is load_mappings(), "read once"


def test_a_file_that_changes_is_read_again(tmp_path: Path) -> None:
    own = tmp_path / "site.yml"
    own.write_text("{vendor: Quanta, manufacturers: [quanta], logical: {turbo: {enabled: [{A: [x]}]}}}")
    assert load_mappings([str(own)])[-1]["logical"]["turbo"]["enabled"] == [{"A": ["x"]}]
    own.write_text("{vendor: Quanta, manufacturers: [quanta], logical: {turbo: {enabled: [{B: [x]}]}}}")
    own.touch()
    assert load_mappings([str(own)])[-1]["logical"]["turbo"]["enabled"] == [{"B": ["x"]}]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("- a", "expected a mapping with vendor and logical, found list"),
        ("{logical: {}}", "vendor must be a name, found None"),
        (
            "{vendor: X, logicl: {}}",
            'there is no key "logicl": expected vendor, manufacturers, sources, logical, requires; did you',
        ),
        ("{vendor: X, manufacturers: [X]}", "manufacturers are compared in lower case"),
        ("{vendor: X, manufacturers: x}", "manufacturers must be a list of texts"),
        ("{vendor: HPE, logical: {turbo: enabled}}", "logical.turbo must map values to candidates"),
        ("{vendor: HPE, logical: {turbo: {on: []}}}", "logical.turbo has the value True, since YAML reads on, off"),
        ("{vendor: HPE, logical: {turbo: {enabled: Yes}}}", "logical.turbo.enabled must be a list of candidates"),
        ("{vendor: HPE, logical: {turbo: {enabled: [Boost]}}}", "candidate 1 must map attributes to lists of values"),
        ("{vendor: HPE, logical: {turbo: {enabled: [{Boost: Enabled}]}}}", "Boost needs a list of values, best first"),
        ("{vendor: HPE, requires: [{needs: {A: b}}]}", "requires, group 1, must have needs"),
        (
            "{vendor: HPE, logical: {turob: {enabled: [{A: [b]}]}}}",
            'no logical BIOS setting "turob": did you mean "turbo"?',
        ),
        (
            "{vendor: HPE, logical: {turbo: {enable: [{A: [b]}]}}}",
            'logical.turbo has no value "enable": expected one of',
        ),
        ("{vendor: New, logical: {}}", "the vendor New is new"),
        ("{vendor: [", "is neither JSON nor YAML"),
        ("vendor: HPE\nlogical: {}\nvendor: Dell\n", 'has the key "vendor" twice (line 3): keep one'),
        ("{vendor: HPE, logical: {turbo: {enabled: [{A: [b]}], enabled: [{C: [d]}]}}}", 'has the key "enabled" twice'),
        ("\xff", "expected a mapping with vendor and logical"),
        (None, "cannot be read on the controller (No such file or directory)"),
    ],
)
def test_malformed_data_is_refused_with_one_sentence_that_names_the_file(
    tmp_path: Path, content: str | None, words: str
) -> None:
    own = tmp_path / "site.yml"
    if content is not None:
        own.write_text(content)
    with pytest.raises(VendorDataError) as caught:
        load_mappings([str(own)])
    assert words in str(caught.value)
    assert str(own) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_mappings_a_logical_setting_is_refused_and_says_how_to_get_them() -> None:
    assert "whose action reads them" in bios_logical.check([], {"turbo": "enabled"})[0]
    assert bios_logical.check([], {}) == []


def test_needs_of_several_groups_add_up() -> None:
    assert requirements(SHIPPED["IEIT"])["TurboMode"] == {"PowerProfile": "CUSTOM", "ProcessorEistEnable": "Enabled"}
    assert checked({"vendor": "X"}, "here") == {"vendor": "X", "manufacturers": [], "logical": {}, "requires": []}


def test_a_site_s_file_reaches_the_module_through_a_playbook(tmp_path: Path) -> None:
    own = tmp_path / "site.yml"
    own.write_text("{vendor: IEIT, logical: {turbo: {enabled: [{PcieHotPlugEnable: [Enabled]}]}}}")
    with running() as bmc:
        fleet = Fleet(tmp_path, {"node1": bmc})
        status, output = fleet.play("bios", bios_logical={"turbo": "enabled"}, bios_vendor_files=[str(own)])
        assert status == 0, output
        assert bmc.pending == {"PcieHotPlugEnable": "Enabled"}
        own.write_text("{vendor: IEIT, logical: {turbo: on}}")
        status, output = fleet.play("bios", bios_logical={"turbo": "enabled"}, bios_vendor_files=[str(own)])
        assert status != 0
        assert "logical.turbo must map values to candidates" in output
