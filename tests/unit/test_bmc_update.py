"""Firmware: inventory, SimpleUpdate, multipart push, and the task that is followed to its end."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from lab.bmc import firmware
from lab.bmc.firmware import build_image
from lab.bmc.profile import ProfileError
from lab.bmc.testing import RunningBmc, running
from tests.unit.bmc_client import Client, message_keys
from tests.unit.firmware_support import image_server as served

UPDATE = "/redfish/v1/UpdateService"
DONE = ("Completed", "Exception", "Cancelled", "Pending")


@pytest.fixture
def client() -> Iterator[Client]:
    with running() as bmc:
        yield Client(bmc)


@pytest.fixture
def image_server(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    with served(tmp_path) as url:
        yield tmp_path, url


def push(client: Client, image: bytes, **parameters: Any) -> requests.Response:
    uri = client.json(UPDATE)["MultipartHttpPushUri"]
    files = {
        "UpdateParameters": (None, json.dumps(parameters), "application/json"),
        "UpdateFile": ("image.bin", image, "application/octet-stream"),
    }
    return client.request("POST", uri, files=files)


def follow(client: Client, answer: requests.Response) -> dict[str, Any]:
    assert answer.status_code == 202, answer.text
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        response = client.get(answer.headers["Location"])
        body: dict[str, Any] = response.json()
        finished = body["TaskState"] in ("Completed", "Exception", "Cancelled")
        assert response.status_code == (200 if finished else 202)
        if body["TaskState"] in DONE:
            return body
        time.sleep(0.01)
    raise AssertionError("the task did not end")


def await_bmc_restart(bmc: RunningBmc) -> None:
    """Wait until the BMC was away and is back."""
    deadline = time.monotonic() + 20
    for away in (True, False):
        while bmc.server.down is not away:
            assert time.monotonic() < deadline
            time.sleep(0.005)


def version(client: Client, component: str) -> str:
    return str(client.json(f"{UPDATE}/FirmwareInventory/{component}")["Version"])


def test_the_inventory_names_components_and_what_can_be_updated(client: Client) -> None:
    members = client.json(f"{UPDATE}/FirmwareInventory")["Members"]
    parts = {one["Id"]: one for one in (client.json(member["@odata.id"]) for member in members)}
    assert parts["BIOS"]["Version"] == client.json(client.system)["BiosVersion"] == "05.10.00"
    assert parts["BIOS"]["Updateable"] is True
    assert parts["PSU0"]["Updateable"] is False


def test_a_bios_image_is_active_after_the_next_reset_and_not_before(client: Client) -> None:
    task = follow(client, push(client, build_image("BIOS", "05.12.00", ("NF8260G7",))))
    assert task["TaskState"] == "Pending"
    reset = next(one for one in task["Messages"] if one["MessageId"].endswith("ResetRequired"))
    assert version(client, "BIOS") == "05.10.00"
    assert client.post(reset["MessageArgs"][0], {"ResetType": reset["MessageArgs"][1]}).status_code == 204
    client.bmc.settle()
    assert version(client, "BIOS") == "05.12.00"
    assert client.json(task["@odata.id"])["TaskState"] == "Completed"
    assert client.json(client.system)["BiosVersion"] == "05.12.00"


def test_bios_settings_and_firmware_take_one_restart(client: Client) -> None:
    follow(client, push(client, build_image("BIOS", "05.12.00")))
    follow(client, push(client, build_image("CPLD", "1.1")))
    client.stage({"WorkLdConfig": "IO_SENSITIVE"})
    truth = client.bmc.reset()
    assert truth["resets"] == 1
    assert truth["active"]["WorkLdConfig"] == "IO_SENSITIVE"
    assert (truth["firmware"]["BIOS"], truth["firmware"]["CPLD"]) == ("05.12.00", "1.1")


def test_immediate_restarts_the_host_at_once(client: Client) -> None:
    parameters = {"@Redfish.OperationApplyTime": "Immediate"}
    answer = push(client, build_image("BIOS", "05.12.00"), **parameters)
    follow(client, answer)
    client.bmc.settle()
    assert version(client, "BIOS") == "05.12.00"


def test_a_bmc_image_restarts_the_bmc(client: Client) -> None:
    push(client, build_image("BMC", "1.40.00"))
    await_bmc_restart(client.bmc)
    assert version(client, "BMC") == "1.40.00"
    assert client.json(client.bmc.service.paths.manager)["FirmwareVersion"] == "1.40.00"
    assert client.bmc.truth()["resets"] == 0


def test_simple_update_fetches_the_image(client: Client, image_server: tuple[Path, str]) -> None:
    directory, url = image_server
    (directory / "bios.img").write_bytes(build_image("BIOS", "05.12.00"))
    action = client.json(UPDATE)["Actions"]["#UpdateService.SimpleUpdate"]["target"]
    targets = [f"{UPDATE}/FirmwareInventory/BIOS"]
    task = follow(client, client.post(action, {"ImageURI": f"{url}/bios.img", "Targets": targets}))
    assert task["TaskState"] == "Pending"
    missing = follow(client, client.post(action, {"ImageURI": f"{url}/nothing.img"}))
    assert missing["TaskState"] == "Exception"
    assert "404" in missing["Messages"][-1]["Message"]
    bare = url.removeprefix("http://")
    plain = client.post(action, {"ImageURI": f"{bare}/bios.img", "TransferProtocol": "HTTP"})
    assert follow(client, plain)["TaskState"] == "Pending"


GOOD = build_image("BIOS", "05.12.00")


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        (GOOD[:-1], "damaged: its SHA-256"),
        (GOOD[:-1] + b"\1", "damaged: its SHA-256"),
        (b"not an image", "no firmware header"),
        (b"BMCSIM-FIRMWARE 1 {]\n", "header is damaged"),
        (build_image("BIOS", "1", ("NF5280M6",)), "fits NF5280M6, not NF8260G7"),
        (build_image("PSU0", "2"), "cannot be updated"),
        (build_image("FPGA", "2"), "which this machine does not have"),
    ],
)
def test_a_bad_image_ends_in_an_exception_and_changes_nothing(client: Client, image: bytes, reason: str) -> None:
    before = client.bmc.truth()["firmware"]
    task = follow(client, push(client, image))
    assert task["TaskState"] == "Exception"
    assert task["TaskStatus"] == "Critical"
    assert reason in task["Messages"][-1]["Message"]
    client.bmc.reset()
    assert client.bmc.truth()["firmware"] == before


def test_an_image_for_another_target_is_refused(client: Client) -> None:
    task = follow(client, push(client, GOOD, Targets=[f"{UPDATE}/FirmwareInventory/CPLD"]))
    assert "not for the target CPLD" in task["Messages"][-1]["Message"]


def test_an_update_can_fail_on_demand(client: Client) -> None:
    client.bmc.inject("update_fails", message="Flash erase timed out.")
    task = follow(client, push(client, GOOD))
    assert task["Messages"][-1]["Message"] == "Flash erase timed out."


def test_a_newer_image_replaces_a_staged_one(client: Client) -> None:
    older = follow(client, push(client, build_image("BIOS", "05.11.00")))
    follow(client, push(client, GOOD))
    assert client.json(older["@odata.id"])["TaskState"] == "Cancelled"
    client.bmc.reset()
    assert version(client, "BIOS") == "05.12.00"


def test_requests_of_the_wrong_shape_are_refused(client: Client) -> None:
    action = f"{UPDATE}/Actions/UpdateService.SimpleUpdate"
    image = "http://127.0.0.1/x"
    for body, key in (
        ({}, "ActionParameterMissing"),
        ({"ImageURI": 1}, "ActionParameterValueTypeError"),
        ({"ImageURI": "tftp://127.0.0.1/x"}, "ActionParameterNotSupported"),
        ({"ImageURI": image, "TransferProtocol": "SCP"}, "ActionParameterNotSupported"),
        ({"ImageURI": image, "Targets": ["/redfish/v1/nowhere"]}, "ResourceMissingAtURI"),
        ({"ImageURI": image, "Bogus": 1}, "ActionParameterUnknown"),
        ({"ImageURI": image, "@Redfish.OperationApplyTime": "Never"}, "ActionParameterNotSupported"),
    ):
        response = client.post(action, body)
        assert response.status_code == 400
        assert message_keys(response) == [key]
    uri = client.json(UPDATE)["MultipartHttpPushUri"]
    assert client.post(uri, {}).status_code == 415
    parts = {"UpdateFile": ("x", b"y", "application/octet-stream")}
    assert message_keys(client.request("POST", uri, files=parts)) == ["PropertyMissing"]
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    assert client.request("POST", uri, data=b"nonsense", headers=headers).status_code == 400


def test_a_task_in_progress_cannot_be_deleted_and_a_finished_one_can(client: Client) -> None:
    staged = follow(client, push(client, GOOD))["@odata.id"]
    assert client.request("DELETE", staged).status_code == 409
    client.bmc.reset()
    assert client.request("DELETE", staged).status_code == 204
    assert client.get(staged).status_code == 404


def test_an_image_file_can_be_made_on_the_command_line(tmp_path: Path) -> None:
    target = tmp_path / "bios.img"
    assert firmware.main(["--component", "BIOS", "--version", "9", "--model", "NF8260G7", str(target)]) == 0
    image = firmware.read_image(target.read_bytes())
    assert (image.component, image.version, image.models) == ("BIOS", "9", ("NF8260G7",))
    assert firmware.main(["--component", "B", "--version", "9", str(tmp_path / "no" / "x")]) == 1


def test_the_older_push_takes_what_was_set_in_the_service_before() -> None:
    with running("supermicro-gb300") as bmc:
        client = Client(bmc)
        service = client.json(UPDATE)
        assert service["HttpPushUriOptions"]["HttpPushUriApplyTime"]["ApplyTime@Redfish.AllowableValues"] == [
            "Immediate",
            "OnReset",
        ]
        targets = [f"{UPDATE}/FirmwareInventory/CPLD"]
        options = {"HttpPushUriApplyTime": {"ApplyTime": "OnReset"}}
        change = {"HttpPushUriTargets": targets, "HttpPushUriOptions": options}
        assert client.patch(UPDATE, change).status_code == 200
        assert client.patch(UPDATE, {"HttpPushUriTargets": ["/nowhere"]}).status_code == 400
        assert client.patch(UPDATE, {"HttpPushUri": "/elsewhere"}).status_code == 400
        uri = service["HttpPushUri"]
        binary = {"Content-Type": "application/octet-stream"}
        wrong = client.request("POST", uri, data=build_image("BIOS", "02.08.00"), headers=binary)
        assert "not for the target CPLD" in follow(client, wrong)["Messages"][-1]["Message"]
        # The targets were for one push.
        assert client.json(UPDATE)["HttpPushUriTargets"] == []
        done = follow(client, client.request("POST", uri, data=build_image("BIOS", "02.08.00"), headers=binary))
        assert "AwaitToActivate" in str(done["Messages"])
        assert bmc.reset()["firmware"]["BIOS"] == "02.08.00"


def test_one_update_at_a_time(client: Client) -> None:
    client.bmc.inject("update_stuck")
    first = push(client, GOOD)
    second = push(client, build_image("CPLD", "1.1"))
    assert (second.status_code, second.headers["Retry-After"]) == (503, "1")
    assert message_keys(second) == ["ResourceInUse"]
    deadline = time.monotonic() + 20
    while client.json(first.json()["@odata.id"])["PercentComplete"] < 50 or client.bmc.service.faults.all():
        assert time.monotonic() < deadline
    client.bmc.inject("bmc_reboot", seconds=0.5)
    await_bmc_restart(client.bmc)
    assert client.json(first.json()["@odata.id"])["TaskState"] == "Interrupted"
    assert follow(client, push(client, GOOD))["TaskState"] == "Pending"


def test_going_back_needs_to_be_asked_for(client: Client) -> None:
    older = build_image("BIOS", "05.08.00")
    refused = follow(client, push(client, older))
    assert "BIOS runs 05.10.00; going back to 05.08.00 is not allowed" in refused["Messages"][-1]["Message"]
    follow(client, push(client, older, ForceUpdate=True))
    assert client.bmc.reset()["firmware"]["BIOS"] == "05.08.00"


@pytest.mark.parametrize(
    ("name", "component", "version", "entry"),
    [("supermicro-821ge", "BIOS", "1.6", "Staging_BIOS"), ("lenovo-sr670v2", "UEFI", "U8E130A-2.20", "UEFI-Pending")],
)
def test_what_lies_ready_has_an_entry_until_the_reset(name: str, component: str, version: str, entry: str) -> None:
    with running(name) as bmc:
        client = Client(bmc)
        targets = [bmc.service.paths.bios] if name == "supermicro-821ge" else []
        assert (
            follow(client, push(client, build_image(component, version), Targets=targets))["TaskState"] == "Completed"
        )
        staged = client.json(f"{UPDATE}/FirmwareInventory/{entry}")
        assert (staged["Version"], staged["Status"]["State"]) == (version, "StandbySpare")
        members = [one["@odata.id"] for one in client.json(f"{UPDATE}/FirmwareInventory")["Members"]]
        assert f"{UPDATE}/FirmwareInventory/{entry}" in members
        bmc.reset()
        assert client.get(f"{UPDATE}/FirmwareInventory/{entry}").status_code == 404


def test_a_service_may_want_to_be_told_the_target_by_its_resource() -> None:
    with running("supermicro-821ge") as bmc:
        client = Client(bmc)
        image = build_image("BIOS", "1.6")
        assert message_keys(push(client, image)) == ["ActionParameterMissing"]
        assert push(client, image, Targets=[f"{UPDATE}/FirmwareInventory/BIOS"]).status_code == 400
        assert push(client, image, Targets=[bmc.service.paths.bios]).status_code == 202


def test_a_firmware_job_of_a_dell_waits_as_scheduled_and_names_its_component() -> None:
    with running("dell-r750") as bmc:
        client = Client(bmc)
        answer = push(client, build_image("BIOS", "1.14.1"))
        deadline = time.monotonic() + 20
        while (task := client.json(answer.json()["@odata.id"])).get("Oem") is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert task["Oem"]["Dell"]["JobState"] == "Scheduled"
        assert task["Name"] == "Firmware Update: BIOS"
        bmc.reset()
        assert client.json(task["@odata.id"])["TaskState"] == "Completed"


def test_a_bmc_may_wait_to_be_reset_and_may_forget_its_tasks() -> None:
    with running("supermicro-gb300", profile_overrides={"update": {"tasks_after_bmc_restart": "gone"}}) as bmc:
        client = Client(bmc)
        task = follow(client, push(client, build_image("BMC", "25.10")))
        reset = next(one for one in task["Messages"] if one["MessageId"].endswith("ResetRequired"))
        assert version(client, "BMC") == "25.08"
        assert client.post(reset["MessageArgs"][0], {"ResetType": reset["MessageArgs"][1]}).status_code == 204
        await_bmc_restart(bmc)
        assert version(client, "BMC") == "25.10"
        assert client.get(task["@odata.id"]).status_code == 404


def test_an_image_that_is_too_large_is_refused() -> None:
    with running(profile_overrides={"update": {"max_image_bytes": 1000}}) as bmc:
        client = Client(bmc)
        assert client.json(UPDATE)["MaxImageSizeBytes"] == 1000
        assert push(client, GOOD).status_code == 413


@pytest.mark.parametrize(
    ("update", "words"),
    [({"method": []}, "unknown member method"), ({"downgrade": "maybe"}, "must be one of refused, forced, allowed")],
)
def test_a_profile_with_a_wrong_update_key_is_refused(update: dict[str, Any], words: str) -> None:
    with pytest.raises(ProfileError, match=words), running(profile_overrides={"update": update}):
        pass
