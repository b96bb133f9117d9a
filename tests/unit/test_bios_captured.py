"""The captured HPE and Supermicro (GB300) trees: right answers, right refusals, right diffs.

What is expected stands here by hand, read off the captured files, or is computed from their JSON without the module's code.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.bios_golden import read_golden, snapshot
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.bios_operation import (
    Request,
    stage_settings,
    verify_settings,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.bios_resource import read_bios
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.bios_settings import RefusedSettingsError

from lab.bmc.testing import RunningBmc, running
from tests.unit.redfish_support import login

CAPTURED = Path(__file__).parents[2] / "lab" / "bmc" / "data" / "captured"


def captured(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((CAPTURED / name).read_text())
    return document


HPE = captured("hpe_ilo_bios.json")["Attributes"]
HPE_DEPENDENCIES = [
    entry["Dependency"]
    for entry in captured("hpe_ilo_bios_attribute_registry_u58.json")["RegistryEntries"]["Dependencies"]
]
GB300 = captured("supermicro_gb300_bios.json")["Attributes"]
GB300_REGISTRY = {
    entry["AttributeName"]: entry
    for entry in captured("supermicro_gb300_bios_attribute_registry.json")["RegistryEntries"]["Attributes"]
}


@pytest.fixture(scope="module")
def hpe() -> Iterator[RunningBmc]:
    with running("hpe-dl380a-gen11") as bmc:
        yield bmc
        assert bmc.pending == {}, "a test of answers left something staged"


@pytest.fixture(scope="module")
def gb300() -> Iterator[RunningBmc]:
    with running("supermicro-gb300") as bmc:
        yield bmc
        assert bmc.pending == {}, "a test of answers left something staged"


def asked(bmc: RunningBmc, **request: Any) -> dict[str, Any]:
    """A dry run."""
    with login(bmc) as client:
        return stage_settings(client, Request(**request, check_mode=True))


def refused(bmc: RunningBmc, **request: Any) -> str:
    with pytest.raises(RefusedSettingsError) as caught, login(bmc) as client:
        stage_settings(client, Request(**request))
    return str(caught.value)


def test_the_simulator_serves_what_was_captured(hpe: RunningBmc, gb300: RunningBmc) -> None:
    assert (len(HPE), len(HPE_DEPENDENCIES), len(GB300), len(GB300_REGISTRY)) == (300, 738, 360, 360)
    assert hpe.active == HPE
    assert gb300.active == GB300


SLOTS = ("PciSlot14", "PciSlot16", "PciSlot17", "PciSlot18", "PciSlot2")
# All 13 logical settings on the HPE server, whose profile is I/OThroughput: what is sent, and an empty mapping where it is so already.
HPE_ANSWERS: list[tuple[str, str, dict[str, Any]]] = [
    ("memory_mode", "optimized", {}),
    ("memory_mode", "mirrored", {"AdvancedMemProtection": "MirroredAdvancedEcc"}),
    ("pcie_link_speed", "auto", {}),
    ("pcie_link_speed", "gen3", {f"{slot}LinkSpeed": "PcieGen3" for slot in SLOTS}),
    ("c_states", "disabled", {"MinProcIdlePower": "NoCStates", "MinProcIdlePkgState": "NoState"}),
    ("c_states", "enabled", {}),
    ("p_states", "os_control", {"PowerRegulator": "OsControl"}),
    ("p_states", "maximum_performance", {"PowerRegulator": "StaticHighPerf"}),
    ("sriov", "enabled", {}),
    ("sriov", "disabled", {"Sriov": "Disabled"}),
    ("uncore_frequency", "maximum", {}),
    ("workload_profile", "custom", {"WorkloadProfile": "Custom"}),
    ("workload_profile", "throughput", {"WorkloadProfile": "GeneralThroughputCompute"}),
    ("sub_numa", "disabled", {}),
    ("sub_numa", "four", {"SubNumaClustering": "EnableSnc4"}),
    ("numa", "enabled", {}),
    ("turbo", "enabled", {}),
    ("turbo", "disabled", {"ProcTurbo": "Disabled"}),
    ("pcie_aspm", "auto", {}),
    ("hyper_threading", "enabled", {}),
    ("hyper_threading", "disabled", {"ProcHyperthreading": "Disabled"}),
]


@pytest.mark.parametrize(("name", "value", "sent"), HPE_ANSWERS)
def test_hpe_answers_each_logical_setting(hpe: RunningBmc, name: str, value: str, sent: dict[str, Any]) -> None:
    result = asked(hpe, logical={name: value})
    assert result["staged"] == sent
    assert result["changed"] is bool(sent)
    assert (result["unsupported"], result["unlocked"]) == ({}, {})
    assert result["restart_required"] == ("power_cycle" if sent else "none")
    for attribute, wanted in sent.items():
        assert f"-{attribute}: applied {HPE[attribute]}, pending nothing" in minus(result)
        assert f"+{attribute}: applied {HPE[attribute]}, pending {wanted}" in plus(result)


def minus(result: dict[str, Any]) -> str:
    return re.sub(r" \([^)]*\)(?=,|\n)", "", "-" + result["diff"]["before"].replace("\n", "\n-"))


def plus(result: dict[str, Any]) -> str:
    return re.sub(r" \([^)]*\)(?=,|\n)", "", "+" + result["diff"]["after"].replace("\n", "\n+"))


def test_hpe_has_no_attribute_for_above_4g_decoding(hpe: RunningBmc) -> None:
    assert not [name for name in HPE if "above" in name.lower()]
    result = asked(hpe, logical={"above_4g_decoding": "enabled"})
    assert result["unsupported"] == {"above_4g_decoding": "no attribute of HPE BIOS is known for it"}
    assert (result["staged"], result["changed"]) == ({}, False)
    assert "does not offer above_4g_decoding" in refused(
        hpe, logical={"above_4g_decoding": "enabled"}, unsupported="fail"
    )


def locked_by(profile: str) -> set[str]:
    """What the captured file says a workload profile locks, and that the machine has."""
    found = set()
    for dependency in HPE_DEPENDENCIES:
        terms = dependency["MapFrom"]
        if dependency["MapToProperty"] == "ReadOnly" and dependency["MapToValue"] and len(terms) == 1:
            term = terms[0]
            same = term["MapFromValue"] == profile
            if term["MapFromAttribute"] == "WorkloadProfile" and same == (term["MapFromCondition"] == "EQU"):
                found.add(dependency["MapToAttribute"])
    return found & set(HPE)


def set_by(profile: str) -> dict[str, Any]:
    """The values that the captured file says a workload profile gives to attributes of this machine."""
    found = {}
    trigger = [("WorkloadProfile", "EQU", profile)]
    for dependency in HPE_DEPENDENCIES:
        terms = [(t["MapFromAttribute"], t["MapFromCondition"], t["MapFromValue"]) for t in dependency["MapFrom"]]
        if dependency["MapToProperty"] == "CurrentValue" and terms == trigger:
            found[dependency["MapToAttribute"]] = dependency["MapToValue"]
    return {name: value for name, value in found.items() if name in HPE}


@pytest.mark.parametrize(
    ("logical", "attribute"),
    [({"uncore_frequency": "dynamic"}, "UncoreFreqScaling"), ({"pcie_aspm": "disabled"}, "PcieGlobalAspm")],
)
def test_hpe_refuses_what_its_profile_locks_and_names_what_to_change(
    hpe: RunningBmc, logical: dict[str, str], attribute: str
) -> None:
    assert attribute in locked_by("I/OThroughput")
    text = refused(hpe, logical=logical)
    assert text.startswith(
        f"1 BIOS setting was refused and nothing was written: {attribute} cannot be set: locked while"
    )
    assert 'set WorkloadProfile to "Custom" in the same request' in text
    assert hpe.pending == {}
    freed = asked(hpe, logical=logical, unlock=True)
    assert freed["unlocked"] == {"WorkloadProfile": "Custom"}
    assert set(freed["staged"]) == {"WorkloadProfile", attribute}


@pytest.mark.parametrize("profile", ["LowLatency", "GraphicProcessing", "Virtualization-MaxPerformance", "Custom"])
def test_hpe_locks_are_exactly_those_of_the_captured_file(hpe: RunningBmc, profile: str) -> None:
    """Each attribute that some profile sets is asked for, together with each profile, in another value than it has."""
    locked = locked_by(profile)
    others: dict[str, Any] = {}
    for dependency in HPE_DEPENDENCIES:
        name, value = dependency["MapToAttribute"], dependency["MapToValue"]
        by_profile = {term["MapFromAttribute"] for term in dependency["MapFrom"]} == {"WorkloadProfile"}
        if dependency["MapToProperty"] == "CurrentValue" and by_profile and value != HPE.get(name, value):
            others.setdefault(name, value)
    with login(hpe) as client:
        described = read_bios(client).state.registry.attributes  # type: ignore[union-attr]
    others = {n: v for n, v in others.items() if n in described and any(o.name == v for o in described[n].options)}
    assert len(others) > 10
    for name, value in others.items():
        request = {"settings": {"WorkloadProfile": profile, name: value}}
        if name in locked:
            assert name in refused(hpe, **request)
        elif set_by(profile).get(name, value) == value:
            assert asked(hpe, **request)["staged"][name] == value


def test_hpe_takes_display_texts_and_names_mistakes(hpe: RunningBmc) -> None:
    assert asked(hpe, settings={"WorkloadProfile": "Low Latency"})["staged"] == {"WorkloadProfile": "LowLatency"}
    assert asked(hpe, settings={"WorkloadProfile": "I/O Throughput"})["changed"] is False
    assert 'did you mean "ProcTurbo"?' in refused(hpe, settings={"ProcTurb": "Enabled"})
    assert 'WorkloadProfile has no value "Fast": expected one of GeneralPowerEfficientCompute' in refused(
        hpe, settings={"WorkloadProfile": "Fast"}
    )
    assert "YAML reads on, off, yes and no as booleans" in refused(hpe, settings={"ProcTurbo": True})
    contradiction = refused(hpe, settings={"WorkloadProfile": "LowLatency", "ProcTurbo": "Enabled", "Sriov": "Enabled"})
    assert "contradicts WorkloadProfile = LowLatency" in contradiction or "locked while" in contradiction
    assert "Sriov" in contradiction


def test_hpe_refuses_two_serial_ports_at_one_address(hpe: RunningBmc) -> None:
    """A Dependency of two conditions: both ports at Com2 sends the virtual one to Com1."""
    assert (HPE["EmbeddedSerialPort"], HPE["VirtualSerialPort"]) == ("Com2Irq3", "Com1Irq4")
    text = refused(hpe, settings={"VirtualSerialPort": "Com2Irq3"})
    assert (
        "contradicts EmbeddedSerialPort = Com2Irq3 and VirtualSerialPort = Com2Irq3, which sets it to Com1Irq4" in text
    )


def test_a_profile_of_hpe_brings_what_the_captured_file_says_and_leaves_nothing_behind() -> None:
    with running("hpe-dl380a-gen11") as bmc, login(bmc) as client:
        result = stage_settings(client, Request(logical={"workload_profile": "low_latency"}))
        assert result["staged"] == {"WorkloadProfile": "LowLatency"}
        assert bmc.active == HPE
        bmc.reset()
        brought = set_by("LowLatency")
        assert brought["ProcTurbo"] == "Disabled"
        assert len(brought) > 10
        assert {name: bmc.active[name] for name in brought} == brought
        untouched = set(HPE) - set(brought) - {"WorkloadProfile"}
        differing = {name for name in untouched if bmc.active[name] != HPE[name]}
        # What follows from what was brought, by Dependencies that name it.
        assert all(any(d["MapToAttribute"] == name for d in HPE_DEPENDENCIES) for name in differing)
        verified = verify_settings(client, Request(logical={"workload_profile": "low_latency"}))
        values = {m["scope"]: m.get("value") for m in verified["measurements"] if m["name"] == "bios_setting"}
        assert values == {"WorkloadProfile": "LowLatency"}
        assert {m["value"] for m in verified["measurements"] if m["name"] != "bios_setting"} == {0}


def ports(suffix: str, but: Any = None) -> list[str]:
    return sorted(name for name in GB300 if re.fullmatch(rf"Socket\dPcie\d+{suffix}", name) and GB300[name] != but)


GB300_ANSWERS: list[tuple[str, str, dict[str, Any]]] = [
    ("sriov", "enabled", {"SR_IOVSupport": "Enabled"}),
    ("sriov", "disabled", {}),
    ("above_4g_decoding", "enabled", {}),
    ("above_4g_decoding", "disabled", {"Above4GDecoding": "Disabled"}),
    ("pcie_aspm", "auto", {}),
    ("pcie_aspm", "disabled", dict.fromkeys(ports("AdvertiseASPML1"), False)),
    ("pcie_link_speed", "auto", {}),
    ("pcie_link_speed", "gen5", dict.fromkeys(ports("MaxPCIespeed", "GEN5"), "GEN5")),
    ("pcie_link_speed", "gen4", dict.fromkeys(ports("MaxPCIespeed", "GEN4"), "GEN4")),
]
# An Arm machine (NVIDIA Grace) has no SpeedStep, no C-states of Intel's, no SNC, no hyper-threading.
GB300_LACKS = {
    "memory_mode": "optimized",
    "c_states": "disabled",
    "p_states": "os_control",
    "uncore_frequency": "maximum",
    "workload_profile": "custom",
    "sub_numa": "disabled",
    "numa": "enabled",
    "turbo": "enabled",
    "hyper_threading": "enabled",
}


@pytest.mark.parametrize(("name", "value", "sent"), GB300_ANSWERS)
def test_gb300_answers_each_logical_setting(gb300: RunningBmc, name: str, value: str, sent: dict[str, Any]) -> None:
    result = asked(gb300, logical={name: value})
    assert result["staged"] == sent
    assert (result["unsupported"], result["changed"]) == ({}, bool(sent))
    for attribute, wanted in sent.items():
        assert f"-{attribute}: applied {GB300[attribute]}, pending nothing, desired {wanted}" in minus(result)


def test_gb300_lacks_the_others_and_says_so(gb300: RunningBmc) -> None:
    names = {name for name, _value, _sent in GB300_ANSWERS}
    assert len(names | set(GB300_LACKS)) == 13
    result = asked(gb300, logical=GB300_LACKS)
    assert set(result["unsupported"]) == set(GB300_LACKS)
    assert result["unsupported"]["turbo"] == "it has no attribute TurboMode"
    assert result["changed"] is False
    text = refused(gb300, logical=GB300_LACKS, unsupported="fail")
    assert text.startswith("9 BIOS settings were refused and nothing was written")


def test_gb300_ports_are_counted_from_the_captured_file() -> None:
    assert len(ports("AdvertiseASPML1")) == len(ports("MaxPCIespeed")) == 20
    assert len(ports("MaxPCIespeed", "GEN5")) + len(ports("MaxPCIespeed", "GEN4")) == 20


NUMBERS = sorted(name for name, entry in GB300_REGISTRY.items() if entry["Type"] == "Integer")


@pytest.mark.parametrize("name", NUMBERS)
def test_gb300_bounds_and_steps_of_every_number(gb300: RunningBmc, name: str) -> None:
    entry = GB300_REGISTRY[name]
    low, high, step = entry["LowerBound"], entry["UpperBound"], entry["ScalarIncrement"]
    good = low if GB300[name] != low else low + max(step, 1)
    assert asked(gb300, settings={name: good})["staged"] == {name: good}
    assert asked(gb300, settings={name: str(good)})["staged"] == {name: good}, "a number in quotes is sent as a number"
    bad = [low - 1, high + 1] + ([low + 1] if step > 1 else [])
    for number in bad:
        assert f"{name} is out of bounds: expected a whole number from {low} to {high}" in refused(
            gb300, settings={name: number}
        )
    assert "is an integer" in refused(gb300, settings={name: "many"})


def test_gb300_enumerations_and_booleans_take_exactly_what_the_captured_registry_lists(gb300: RunningBmc) -> None:
    for name, entry in GB300_REGISTRY.items():
        if entry["Type"] != "Enumeration":
            continue
        for value in (item["ValueName"] for item in entry["Value"]):
            expected = {} if value == GB300[name] else {name: value}
            assert asked_offline(gb300, name, value) == expected
    assert "expected true or false" in refused(gb300, settings={"EGM": "Enabled"})
    assert 'did you mean "Enabled"?' in refused(gb300, settings={"Above4GDecoding": "enabled"})


_STATES: dict[str, Any] = {}


def asked_offline(bmc: RunningBmc, name: str, value: Any) -> dict[str, Any]:
    """The plan for one setting, with the machine read once: hundreds of logins would say nothing more."""
    from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.bios_settings import plan  # noqa: PLC0415

    if bmc.base_url not in _STATES:
        with login(bmc) as client:
            _STATES[bmc.base_url] = read_bios(client).state
    return plan(_STATES[bmc.base_url], {name: value}).write


def golden_of(bmc: RunningBmc, host: str) -> dict[str, Any]:
    with login(bmc) as client:
        bios = read_bios(client)
    return snapshot(bios.state, bios.system, host, "2026-01-01T00:00:00Z")


def test_a_file_of_one_tree_is_refused_by_the_other(hpe: RunningBmc, gb300: RunningBmc) -> None:
    document = golden_of(gb300, "arm")
    assert document["attributes"] == GB300
    text = refused_golden(hpe, document)
    assert "of the model ARS-121GL-NB3, this machine is a ProLiant DL380a Gen11" in text
    assert "of the registry BiosAttributeRegistry, this machine has BiosAttributeRegistryU58.v1_2_44" in text
    allowed = asked(hpe, golden=read_golden(document, "arm.json"), golden_other_model=True)
    assert allowed["staged"] == {}
    assert allowed["left_out"]["EGM"] == "this machine does not have it"


def refused_golden(bmc: RunningBmc, document: dict[str, Any]) -> str:
    with pytest.raises(ValueError, match="take a file of the same model") as caught:
        asked(bmc, golden=read_golden(document, "arm.json"))
    return str(caught.value)


def test_a_file_of_the_same_machine_changes_nothing(hpe: RunningBmc, gb300: RunningBmc) -> None:
    for bmc, attributes in ((hpe, HPE), (gb300, GB300)):
        document = golden_of(bmc, "one")
        assert document["attributes"] == attributes
        result = asked(bmc, golden=read_golden(document, "one.json"))
        assert (result["staged"], result["left_out"], result["changed"]) == ({}, {}, False)
