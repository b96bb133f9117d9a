"""Five vendors x 13 logical settings, on every profile of the simulator: applied, verified after a restart, changed back.

The table says which value each profile is given, so that a silent loss of support fails a test.
"""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import bios_logical
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.bios_operation import (
    Request,
    stage_settings,
    verify_settings,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.bios_vendor_files import load_mappings
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.gates import judge_all

from lab.bmc import profile as profiles
from lab.bmc.testing import RunningBmc, running
from tests.unit.redfish_support import login

RULES = {name: {"kind": "equals"} for name in ("bios_setting", "bios_pending_values", "bios_jobs")}
VENDORS = load_mappings()
# What is asked for: in each case something that the machine is not set to when it leaves the factory.
USUAL = {
    "memory_mode": "mirrored",
    "pcie_link_speed": "gen3",
    "c_states": "disabled",
    "p_states": "disabled",
    "sriov": "disabled",
    "uncore_frequency": "maximum",
    "workload_profile": "custom",
    "sub_numa": "two",
    "numa": "disabled",
    "turbo": "disabled",
    "above_4g_decoding": "disabled",
    "pcie_aspm": "disabled",
    "hyper_threading": "disabled",
}
SETTINGS = list(USUAL)
# What a profile is asked for instead; None: this machine has no attribute for it, or no other value than its present one.
M7: dict[str, str | None] = {"pcie_link_speed": None}
DIFFERENT: dict[str, dict[str, str | None]] = {
    "ieit-nf8260g7": M7,
    "ieit-nf8260g7-strict": M7,
    "ieit-nf5280m6": {
        **dict.fromkeys(("memory_mode", "pcie_link_speed", "above_4g_decoding", "pcie_aspm", "hyper_threading"), None)
    },
    "dell-r750": {"pcie_link_speed": None, "p_states": "maximum_performance", "sriov": "enabled"},
    "hpe-dl380a-gen11": {
        "above_4g_decoding": None,
        "p_states": "maximum_performance",
        "uncore_frequency": "minimum",
    },
    "lenovo-sr670v2": {"above_4g_decoding": None, "numa": None},
    "supermicro-821ge": {
        "pcie_link_speed": None,
        "uncore_frequency": None,
        "hyper_threading": None,
        "pcie_aspm": "auto",
    },
    # An Arm machine (NVIDIA Grace): nothing of Intel's is there.
    "supermicro-gb300": {**dict.fromkeys(SETTINGS, None)}
    | {"sriov": "enabled", "pcie_link_speed": "gen5", "pcie_aspm": "disabled", "above_4g_decoding": "disabled"},
}
CASES = [
    (profile, name, changes.get(name, USUAL[name]))
    for profile, changes in DIFFERENT.items()
    for name in SETTINGS
    if changes.get(name, USUAL[name]) is not None
]
NOT_OFFERED = [
    (profile, name) for profile, changes in DIFFERENT.items() for name in SETTINGS if changes.get(name, "") is None
]
# Here the one value that there is can be asked for and is right: nothing is written.
FULFILLED = {
    **{(profile, "pcie_link_speed"): "auto" for profile in DIFFERENT},
    ("lenovo-sr670v2", "numa"): "enabled",
}


def stage(bmc: RunningBmc, **request: Any) -> dict[str, Any]:
    with login(bmc) as client:
        return stage_settings(client, Request(**request))


def judged(bmc: RunningBmc, **request: Any) -> dict[str, str]:
    """What the gate says of each attribute and of the pending values."""
    with login(bmc) as client:
        result = verify_settings(client, Request(**request))
    return {check.scope: check.status for check in judge_all(result["measurements"], RULES)}


def change_back(bmc: RunningBmc, before: dict[str, Any], sent: dict[str, Any], profile_attributes: set[str]) -> None:
    """Restore what was sent. The old profile would lock its knobs: they go first, the profile with a restart of its own."""
    back = {name: before[name] for name in sent}
    for names in (set(back) - profile_attributes, set(back) & profile_attributes):
        if names:
            stage(bmc, settings={name: back[name] for name in names})
            bmc.reset()


def vendor(profile: str) -> str:
    """The vendor whose names the collection uses for a machine (Inspur's are IEIT's)."""
    return str(bios_logical.vendor_maps(VENDORS, profiles.load(profile).data["system"]["Manufacturer"])[0]["vendor"])


def test_the_table_covers_every_profile_and_every_logical_setting() -> None:
    assert set(DIFFERENT) == set(profiles.available())
    assert len({vendor(profile) for profile in DIFFERENT}) == 5
    assert sorted(SETTINGS) == bios_logical.names(VENDORS)
    assert len(SETTINGS) == 13
    offered = {(vendor(profile), name) for profile, name in [*((one, two) for one, two, _ in CASES), *FULFILLED]}
    missing = {(one, name) for one, _ in offered for name in SETTINGS} - offered
    # All that a vendor as a whole does not offer (docs/bios.md says why).
    assert missing == {
        ("HPE", "above_4g_decoding"),
        ("Lenovo", "above_4g_decoding"),
        ("Supermicro", "uncore_frequency"),
        ("Supermicro", "hyper_threading"),
    }


@pytest.mark.parametrize(("profile", "name", "value"), CASES)
def test_a_setting_is_applied_verified_and_changed_back(profile: str, name: str, value: str) -> None:
    with running(profile) as bmc:
        before = bmc.active
        wanted = {"logical": {name: value}}
        staged = stage(bmc, **wanted, unlock=True)
        assert staged["changed"]
        assert staged["unsupported"] == {}
        assert staged["restart_required"] == "power_cycle"
        assert bmc.active == before, "nothing may be active before the restart"
        assert "CRITICAL" in judged(bmc, **wanted).values(), "the gate must see that it is not applied yet"

        bmc.reset()
        verdicts = judged(bmc, **wanted)
        assert set(verdicts.values()) == {"OK"}
        assert set(verdicts) == {*staged["logical"][name], "bios"}
        assert {key: bmc.active[key] for key in staged["staged"]} == staged["staged"]
        assert stage(bmc, **wanted, unlock=True)["changed"] is False, "a second run changes nothing"

        own = set(staged["logical"][name]) if name == "workload_profile" else set()
        change_back(bmc, before, staged["staged"], set(staged["unlocked"]) | own)
        after = bmc.active
        assert {key: after[key] for key in staged["staged"]} == {key: before[key] for key in staged["staged"]}
        truth = bmc.truth()
        assert (truth["pending"], truth["sessions"]) == ({}, 0)


@pytest.mark.parametrize(("profile", "name"), NOT_OFFERED)
def test_what_a_machine_does_not_offer_is_said_and_nothing_is_written(profile: str, name: str) -> None:
    with running(profile) as bmc:
        for value in bios_logical.values(VENDORS, name):
            result = stage(bmc, logical={name: value}, unlock=True)
            assert result["changed"] is False
            fulfilled = FULFILLED.get((profile, name)) == value
            assert set(result["unsupported"]) == (set() if fulfilled else {name})
        assert bmc.pending == {}
