"""Where BMCs and registries of the field differ from the standard form: each answered rightly or refused with the reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import bios_operation, bios_resource
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.bios_dependencies import bounded, locks
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.bios_measurements import (
    setting_measurements,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.bios_operation import (
    Request,
    stage_settings,
    verify_settings,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.bios_registry import (
    Attribute,
    Condition,
    Dependency,
    Option,
    Registry,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.bios_resource import (
    NoBiosError,
    TwoRestartsError,
    read_bios,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.bios_settings import (
    BiosState,
    RefusedSettingsError,
    plan,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.redfish_connection import RedfishError

from lab.bmc.testing import RunningBmc, running
from tests.unit.redfish_support import login

HOTPLUG = {"PcieHotPlugEnable": "Enabled"}


def stage(bmc: RunningBmc, **request: Any) -> dict[str, Any]:
    with login(bmc) as client:
        return stage_settings(client, Request(**request))


def quirks(**values: Any) -> dict[str, Any]:
    return {"profile_overrides": {"quirks": values}}


# -- the registry -----------------------------------------------------------------------------------------------------


def when(prop: str, value: Any, target: str = "Watts", trigger: Any = "Capped") -> Dependency:
    return Dependency((Condition("Mode", "CurrentValue", "EQU", trigger),), target, prop, value)


def machine(*dependencies: Dependency, **attributes: Attribute) -> BiosState:
    described = {
        "Mode": Attribute(
            "Mode", "Enumeration", options=(Option("Capped", "Capped mode"), Option("Free", "Free mode"))
        ),
        "Watts": Attribute("Watts", "Integer", lower=100, upper=1000, step=50),
        **attributes,
    }
    applied = {"Mode": "Free", "Watts": 500, **dict.fromkeys(attributes, "x")}
    return BiosState(applied, {}, Registry("R", described, list(dependencies)))


def test_bounds_and_steps_that_a_dependency_narrows_are_those_of_the_resulting_state() -> None:
    state = machine(when("UpperBound", 400), when("LowerBound", 200), when("ScalarIncrement", 100))
    assert plan(state, {"Watts": 550}).write == {"Watts": 550}
    assert plan(state, {"Watts": 300, "Mode": "Capped"}).write == {"Watts": 300, "Mode": "Capped"}
    for number in (450, 150, 250):
        with pytest.raises(
            RefusedSettingsError, match=r"from 200 to 400 in steps of 100, found \d+ \(while Mode = Capped"
        ):
            plan(state, {"Watts": number, "Mode": "Capped"})
    assert state.registry is not None
    assert bounded(state.registry, {"Mode": "Capped"}, "Watts")[0] == replace(
        state.registry.attributes["Watts"], lower=200, upper=400, step=100
    )


def test_a_length_that_a_dependency_narrows() -> None:
    state = machine(when("MaxLength", 2, "Tag"), Tag=Attribute("Tag", "String"))
    assert plan(state, {"Tag": "abc"}).write == {"Tag": "abc"}
    with pytest.raises(RefusedSettingsError, match="at most 2 characters"):
        plan(state, {"Tag": "abc", "Mode": "Capped"})


@pytest.mark.parametrize(
    ("attribute", "words"),
    [
        (Attribute("Ghost", "String", hidden=True), "hidden in the registry"),
        (Attribute("Ghost", "String", gray_out=True), r"marked inactive \(GrayOut\)"),
        (Attribute("Ghost", "String", read_only=True), "read-only in the registry"),
    ],
)
def test_what_cannot_be_set_at_all_is_refused_with_the_reason(attribute: Attribute, words: str) -> None:
    with pytest.raises(RefusedSettingsError, match=f"{words}.*leave it out, since no single setting"):
        plan(machine(Ghost=attribute), {"Ghost": "y"}, unlock=True)
    assert plan(machine(Ghost=attribute), {"Ghost": "x"}).write == {}


@pytest.mark.parametrize("prop", ["ReadOnly", "GrayOut", "Hidden"])
def test_a_dependency_of_each_kind_locks_and_is_unlocked_in_the_same_request(prop: str) -> None:
    state = machine(when(prop, True, trigger="Free"))
    with pytest.raises(
        RefusedSettingsError, match='locked while Mode = Free: set Mode to "Capped" in the same request'
    ):
        plan(state, {"Watts": 550})
    made = plan(state, {"Watts": 550}, unlock=True)
    assert made.write == {"Watts": 550, "Mode": "Capped"}
    assert made.freed == {"Watts": "Mode = Free"}


def test_a_dependency_can_show_what_the_registry_hides() -> None:
    state = machine(when("Hidden", False, "Ghost", trigger="Free"), Ghost=Attribute("Ghost", "String", hidden=True))
    assert state.registry is not None
    assert locks(state.registry, state.applied, "Ghost") == []
    assert locks(state.registry, {"Mode": "Capped"}, "Ghost") != []


def test_three_terms_are_joined_from_left_to_right_and_all_of_them_count() -> None:
    def condition(name: str, term: str = "AND") -> Condition:
        return Condition(name, "CurrentValue", "EQU", 1, term)

    rule = Dependency((condition("A"), condition("B", "OR"), condition("C", "AND")), "T", "ReadOnly", True)
    registry = Registry("R", {}, [rule])
    locked = {
        (a, b, c): bool(locks(registry, {"A": a, "B": b, "C": c}, "T")) for a in (0, 1) for b in (0, 1) for c in (0, 1)
    }
    assert locked == {key: bool((key[0] or key[1]) and key[2]) for key in locked}
    assert rule.text() == "A = 1 or B = 1 and C = 1"


def test_numbers_of_an_enumeration_are_taken_as_number_name_and_display_text_and_sent_as_the_machine_shows_them() -> (
    None
):
    with running("supermicro-821ge") as bmc:
        name = next(one for one in bmc.active if one.startswith("SNC"))
        entry = bmc.service.bios.registry.entries[name]
        choice = next(item for item in entry["Value"] if item["ValueDisplayName"] != bmc.active[name])
        assert str(choice["ValueName"]).isdigit()
        forms = [choice["ValueName"], int(choice["ValueName"]), choice["ValueDisplayName"]]
        for form in forms:
            result = stage(bmc, settings={name: form}, unlock=True, check_mode=True)
            assert result["staged"][name] == choice["ValueDisplayName"]


def test_a_refusal_names_numbered_values_by_what_they_mean_and_custom_comes_first() -> None:
    with running("supermicro-821ge") as bmc, pytest.raises(RefusedSettingsError) as caught:
        stage(bmc, logical={"turbo": "disabled"})
    assert 'set PowerTechnology_FF77 to "2" (Custom) in the same request' in str(caught.value)
    numbered = Attribute(
        "Mode", "Enumeration", options=(Option("0", "Off"), Option("1", "Silent"), Option("2", "Custom"))
    )
    state = machine(when("ReadOnly", True, trigger="0"), Mode=numbered)
    state.applied["Mode"] = "Off"
    assert plan(state, {"Watts": 550}, unlock=True).unlocked == {"Mode": "2"}


# -- locks that the BMC judges by what is applied ---------------------------------------------------------------------


def test_a_bmc_that_wants_the_profile_applied_first_is_named_as_one_that_needs_two_restarts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with running() as bmc:
        bios = bmc.service.bios
        real = bios.registry.lock_reason
        monkeypatch.setattr(bios.registry, "lock_reason", lambda name, _after: real(name, bios.active))
        with pytest.raises(TwoRestartsError) as caught:
            stage(bmc, settings={"C6Enable": "Disabled"}, unlock=True)
        text = str(caught.value)
        assert "it judges C6Enable by what is applied now (locked while PowerProfile is not CUSTOM)" in text
        assert "two restarts are needed" in text
        assert bmc.pending == {}
        # What the sentence says works.
        stage(bmc, settings={"PowerProfile": "CUSTOM"})
        bmc.reset()
        stage(bmc, settings={"C6Enable": "Disabled"})
        bmc.reset()
        assert bmc.active["C6Enable"] == "Disabled"


def test_a_bios_that_drops_it_in_post_is_explained_after_the_restart() -> None:
    state = machine(when("ReadOnly", True, trigger="Free"))
    state.applied["Mode"] = "Capped"
    [measurement] = setting_measurements(state, {"Watts": 550})
    assert measurement["cause"].startswith("the BIOS dropped the staged value")
    assert "where its profile became active with the same restart, it may take a second one" in measurement["cause"]


# -- the BMC's form ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("match", ["lenient", "exact", "unquoted"])
@pytest.mark.parametrize("style", ["strong", "weak", "unquoted", "none"])
def test_etags_of_every_style_are_followed(style: str, match: str) -> None:
    etag = {"style": style, "match": match, "required": style != "none"}
    with running(**quirks(etag=etag)) as bmc:
        stage(bmc, settings=HOTPLUG)
        assert bmc.pending == HOTPLUG
        assert bmc.truth()["sessions"] == 0


def test_another_writer_for_ever_is_named_and_not_overwritten() -> None:
    with running() as bmc:
        bmc.inject("etag_conflict", count=99)
        with pytest.raises(RedfishError):
            stage(bmc, settings=HOTPLUG)
        bmc.clear_faults()
        assert bmc.pending == {}


@pytest.mark.parametrize("reply", ["200", "204", "202_task", "202_bare"])
def test_every_reply_to_a_change_is_followed(reply: str) -> None:
    with running(**quirks(settings_reply=reply)) as bmc:
        stage(bmc, settings=HOTPLUG)
        assert bmc.pending == HOTPLUG


def test_a_task_that_fails_is_an_error_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    with running(**quirks(settings_reply="202_task")) as bmc:
        real = bios_resource._follow

        def failed(client: Any, answer: Any) -> None:
            assert answer.task_uri
            identity = answer.task_uri.rstrip("/").rsplit("/", 1)[-1]
            message = {"MessageId": "X", "Message": "The flash is worn out.", "MessageSeverity": "Critical"}
            bmc.call(lambda: bmc.service.tasks.update(identity, "Exception", 100, message))
            real(client, answer)

        monkeypatch.setattr(bios_resource, "_follow", failed)
        with pytest.raises(RedfishError, match=r"its task .* failed: .*The flash is worn out"):
            stage(bmc, settings=HOTPLUG)


@pytest.mark.parametrize("body", ["wrapped", "bare", "either"])
@pytest.mark.parametrize("shape", ["flat", "nested"])
def test_attributes_are_read_nested_or_flat_and_written_in_either_wrapper(shape: str, body: str) -> None:
    if (shape, body) == ("flat", "bare"):
        pytest.skip("no firmware is known that shows attributes flat and wants them bare")
    with running(**quirks(shape=shape, patch_body=body)) as bmc:
        stage(bmc, settings=HOTPLUG)
        assert bmc.pending == HOTPLUG
        bmc.reset()
        with login(bmc) as client:
            verified = verify_settings(client, Request(settings=HOTPLUG))
        assert verified["settings"][0]["applied"] == "Enabled"


def test_a_session_that_expires_between_reading_and_writing_is_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    with running() as bmc:
        real = bios_resource.stage

        def later(*arguments: Any) -> Any:
            bmc.inject("session_loss")
            return real(*arguments)

        monkeypatch.setattr(bios_operation, "stage", later)
        stage(bmc, settings=HOTPLUG)
        assert bmc.pending == HOTPLUG
        assert bmc.truth()["sessions"] == 0


def test_a_settings_object_that_is_named_and_not_served_is_looked_for_in_its_usual_places() -> None:
    with running() as bmc:
        real = bmc.service.bios
        with login(bmc) as client:
            bios = read_bios(client)
        named = {**bios.document, "@Redfish.Settings": {"SettingsObject": {"@odata.id": f"{bios.uri}/Nowhere"}}}
        with login(bmc) as client:
            uri, _settings, _etag = bios_resource._read_settings(client, bios.uri, named)
        assert uri == bios.settings_uri
        assert real.pending == {}


def test_without_any_settings_object_reading_works_and_writing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bios_resource, "_read_settings", lambda *_: ("", {}, ""))
    with running() as bmc:
        assert stage(bmc, settings={"PcieHotPlugEnable": "Disabled"})["changed"] is False
        with pytest.raises(RedfishError, match="offers no settings object"):
            stage(bmc, settings=HOTPLUG)
        assert bmc.pending == {}


def test_a_machine_whose_attributes_are_empty_until_its_first_post_says_so() -> None:
    with running(**quirks(empty_until_post=True)) as bmc:
        with pytest.raises(NoBiosError, match="power the machine on once and let it boot"):
            stage(bmc, settings=HOTPLUG)
        bmc.reset()
        assert stage(bmc, settings=HOTPLUG)["changed"]


def test_the_host_is_found_beside_a_gpu_baseboard_and_two_hosts_need_a_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Supermicro and NVIDIA list HGX_Baseboard_0 as a system of its own, without a BIOS."""
    other = {"Id": "HGX_Baseboard_0", "Manufacturer": "NVIDIA"}
    with running("supermicro-821ge", profile_overrides={"other_systems": [other]}) as bmc:
        assert stage(bmc, logical={"turbo": "disabled"}, unlock=True)["changed"]
        with login(bmc) as client:
            assert client.system()["Id"] == "1"
            assert client.system("HGX_Baseboard_0")["Id"] == "HGX_Baseboard_0"
            with pytest.raises(NoBiosError, match="shows no BIOS resource for system HGX_Baseboard_0"):
                read_bios(client, "HGX_Baseboard_0")
            monkeypatch.setattr(client, "get_optional", lambda uri: {**client.get(uri), "Bios": {"@odata.id": "/x"}})
            with pytest.raises(
                RedfishError, match=r"manages 2 systems \(HGX_Baseboard_0, 1\), of which one must be chosen"
            ):
                client.system()
