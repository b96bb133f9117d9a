"""BIOS settings over HTTP: staged, judged, applied at the reset and never before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from lab.bmc.testing import running
from tests.unit.bmc_client import Client, message_keys


@pytest.fixture
def client() -> Iterator[Client]:
    with running() as bmc:
        yield Client(bmc)


UNLOCK = {"PowerProfile": "CUSTOM", "C6Enable": "Disabled"}


def test_a_staged_value_waits_for_the_reset_and_is_gone_from_pending_after_it(client: Client) -> None:
    before = client.json(client.bios)["Attributes"]
    assert client.stage(UNLOCK).status_code == 200
    assert client.json(client.settings)["Attributes"] == UNLOCK
    assert client.json(client.bios)["Attributes"] == before
    assert client.reset().status_code == 204
    client.bmc.settle()
    body = client.json(client.bios)
    assert body["Attributes"] == {**before, **UNLOCK}
    assert client.json(client.settings)["Attributes"] == {}
    settings = body["@Redfish.Settings"]
    assert settings["Time"]
    assert [one["MessageId"].rsplit(".", 1)[-1] for one in settings["Messages"]] == ["Success"]


def test_switching_the_host_off_applies_nothing_and_switching_it_on_does(client: Client) -> None:
    client.stage(UNLOCK)
    client.reset("ForceOff")
    assert client.bmc.settle()["power"] == "Off"
    assert client.bmc.pending == UNLOCK
    client.reset("On")
    client.bmc.settle()
    assert client.bmc.pending == {}
    assert client.bmc.active["C6Enable"] == "Disabled"


def test_everything_wrong_in_a_request_is_named_and_nothing_is_staged(client: Client) -> None:
    response = client.stage({"PowerProfile": "CUSTOM", "Typo": 1, "SncEn": "Disabled", "PatrolScrubDuration": 25})
    assert response.status_code == 400
    assert sorted(message_keys(response)) == ["PropertyUnknown", "PropertyValueNotInList", "PropertyValueOutOfRange"]
    assert client.bmc.pending == {}


def test_a_locked_attribute_is_refused_with_the_one_to_change(client: Client) -> None:
    response = client.stage({"C6Enable": "Disabled"})
    assert response.status_code == 400
    assert message_keys(response) == ["PropertyNotWritable"]
    assert "PowerProfile is BALANCE_EFFICIENCY, must be CUSTOM" in response.text
    client.stage({"PowerProfile": "CUSTOM"})  # a pending gate counts
    assert client.stage({"C6Enable": "Disabled"}).status_code == 200


def test_naming_a_locked_attribute_with_the_value_that_it_has_is_no_change(client: Client) -> None:
    assert client.stage({"C6Enable": "Auto"}).status_code == 200
    assert client.bmc.pending == {}


def test_staging_the_active_value_takes_a_pending_one_back(client: Client) -> None:
    client.stage(UNLOCK)
    client.stage({"C6Enable": "Auto"})
    assert client.bmc.pending == {"PowerProfile": "CUSTOM"}


def test_pending_values_can_be_cleared(client: Client) -> None:
    client.stage(UNLOCK)
    assert client.request("DELETE", client.settings).status_code == 204
    assert client.bmc.pending == {}
    client.stage(UNLOCK)
    assert (
        client.request("PUT", client.settings, json={"Attributes": {"WorkLdConfig": "IO_SENSITIVE"}}).status_code == 200
    )
    assert client.bmc.pending == {"WorkLdConfig": "IO_SENSITIVE"}


def test_a_profile_staged_later_takes_the_unlocked_value_away_and_the_machine_says_so(client: Client) -> None:
    client.stage(UNLOCK)
    client.stage({"PowerProfile": "OLTP"})
    client.bmc.reset()
    assert client.bmc.active["PowerProfile"] == "OLTP"
    assert client.bmc.active["C6Enable"] == "Auto"
    assert client.bmc.pending == {}
    messages = client.json(client.bios)["@Redfish.Settings"]["Messages"]
    assert [one["MessageId"].rsplit(".", 1)[-1] for one in messages] == ["SettingsFailed"]
    assert messages[0]["RelatedProperties"] == ["/Attributes/C6Enable"]


def test_reset_bios_restores_the_defaults_at_the_reset_and_drops_pending_values(client: Client) -> None:
    factory = client.bmc.active
    client.stage(UNLOCK)
    client.bmc.reset()
    client.stage({"WorkLdConfig": "IO_SENSITIVE"})
    assert client.post(f"{client.bios}/Actions/Bios.ResetBios").status_code == 200
    assert client.json(client.bios)["ResetBiosToDefaultsPending"] is True
    assert client.bmc.active != factory
    client.bmc.reset()
    assert client.bmc.active == factory
    assert client.json(client.bios)["ResetBiosToDefaultsPending"] is False


@pytest.mark.parametrize(
    ("body", "key"),
    [
        ({"Attributes": "C6Enable"}, "PropertyValueTypeError"),
        ({"Attributes": {}, "Name": "x"}, "PropertyUnknown"),
        ({"@Redfish.SettingsApplyTime": {"ApplyTime": "Immediate"}, "Attributes": {}}, "PropertyValueNotInList"),
        ({"@Redfish.SettingsApplyTime": {}, "Attributes": {}}, "PropertyMissing"),
    ],
)
def test_a_body_of_the_wrong_shape_is_refused(client: Client, body: dict[str, Any], key: str) -> None:
    response = client.patch(client.settings, body)
    assert response.status_code == 400
    assert message_keys(response) == [key]


def test_the_bios_resource_itself_takes_no_changes(client: Client) -> None:
    response = client.patch(client.bios, {"Attributes": {"WorkLdConfig": "IO_SENSITIVE"}})
    assert response.status_code == 400
    assert client.settings in response.text
    assert client.bmc.pending == {}


def test_the_registry_is_found_through_registries(client: Client) -> None:
    name = client.json(client.bios)["AttributeRegistry"]
    members = [one["@odata.id"] for one in client.json("/redfish/v1/Registries")["Members"]]
    files = [client.json(uri) for uri in members]
    uri = next(one["Location"][0]["Uri"] for one in files if one["Id"] == name)
    entries = client.json(uri)["RegistryEntries"]
    listed = {one["AttributeName"] for one in entries["Attributes"]}
    assert listed == set(client.json(client.bios)["Attributes"])
    assert any(one["DependencyFor"] == "C6Enable" for one in entries["Dependencies"])


def test_a_memory_limit_in_the_bios_shows_in_the_speed_of_the_dimms(client: Client) -> None:
    uris = [one["@odata.id"] for one in client.json(f"{client.system}/Memory")["Members"]]
    assert len(uris) == 16
    assert {client.json(uri)["OperatingSpeedMhz"] for uri in uris} == {4800}
    client.stage({"DdrFreqLimit": "DDR_FREQ_3200_STRING"})
    client.bmc.reset()
    assert {client.json(uri)["OperatingSpeedMhz"] for uri in uris} == {3200}


def test_state_survives_a_restart_of_the_simulator(tmp_path: Any) -> None:
    state_file = str(tmp_path / "state.json")
    with running(state_file=state_file) as bmc:
        client = Client(bmc)
        client.stage(UNLOCK)
        bmc.reset()
        client.stage({"WorkLdConfig": "IO_SENSITIVE"})
        client.reset("ForceOff")
        bmc.settle()
    with running(state_file=state_file) as bmc:
        truth = bmc.truth()
        assert truth["active"]["C6Enable"] == "Disabled"
        assert truth["pending"] == {"WorkLdConfig": "IO_SENSITIVE"}
        assert truth["power"] == "Off"
        assert truth["sessions"] == 0


def test_nested_attributes_are_read_nested_and_written_bare() -> None:
    with running("ieit-nf8260g7-strict") as bmc:
        client = Client(bmc)
        response = client.get(client.bios)
        shown = response.json()["Attributes"]
        assert shown["SocketPowerManagementConfig"]["C6Enable"] == "Auto"
        assert shown["XCradleSocketSetup"]["PowerProfile"] == "BALANCE_EFFICIENCY"
        etag = client.get(client.settings).headers["ETag"]
        assert client.patch(client.settings, UNLOCK).status_code == 428  # this firmware wants If-Match
        assert client.patch(client.settings, {"Attributes": UNLOCK}, headers={"If-Match": etag}).status_code == 400
        assert client.patch(client.settings, UNLOCK, headers={"If-Match": etag}).status_code == 200
        nested = client.json(client.settings)["Attributes"]
        assert nested == {
            "XCradleSocketSetup": {"PowerProfile": "CUSTOM"},
            "SocketPowerManagementConfig": {"C6Enable": "Disabled"},
        }


def test_firmware_without_a_settings_annotation_still_has_its_settings_object() -> None:
    with running(profile_overrides={"quirks": {"settings_annotation": False}}) as bmc:
        client = Client(bmc)
        assert "@Redfish.Settings" not in client.json(client.bios)
        assert client.stage({"WorkLdConfig": "IO_SENSITIVE"}).status_code == 200
        assert bmc.pending == {"WorkLdConfig": "IO_SENSITIVE"}


def test_a_task_can_stand_for_staged_settings() -> None:
    with running(profile_overrides={"quirks": {"settings_reply": "202_task"}}) as bmc:
        client = Client(bmc)
        first = client.stage({"WorkLdConfig": "IO_SENSITIVE"})
        assert first.status_code == 202
        second = client.stage({"PcieHotPlugEnable": "Enabled"})
        monitor = second.headers["Location"]
        assert client.get(monitor).status_code == 202
        assert client.json(first.headers["Location"])["TaskState"] == "Cancelled"
        bmc.reset()
        assert client.json(monitor)["TaskState"] == "Completed"
        client.stage({"WorkLdConfig": "BALANCE"})
        third = client.stage({"PcieHotPlugEnable": "Disabled"}).headers["Location"]
        bmc.inject("setting_ignored", attributes=["WorkLdConfig"], silent=False)
        bmc.reset()
        assert client.json(third)["TaskState"] == "Exception"
