"""Faults on demand: each kind does what it says, ends when it should, and bad descriptions are refused."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from lab.bmc.faults import KINDS
from lab.bmc.testing import running
from tests.unit.bmc_client import Client, message_keys

SESSIONS = "/redfish/v1/SessionService/Sessions"


@pytest.fixture
def client() -> Iterator[Client]:
    with running() as bmc:
        yield Client(bmc)


def inject(client: Client, **fault: Any) -> dict[str, Any]:
    response = client.post("/lab/faults", fault)
    assert response.status_code == 201, response.text
    return response.json()


def test_an_error_comes_as_often_as_asked_with_or_without_retry_after(client: Client) -> None:
    inject(client, kind="http_error", count=2, retry_after=3)
    first, second, third = (client.get(client.system) for _ in range(3))
    assert [one.status_code for one in (first, second, third)] == [503, 503, 200]
    assert first.headers["Retry-After"] == "3"
    assert message_keys(first) == ["ServiceTemporarilyUnavailable"]
    inject(client, kind="http_error", count=1, status=500, message="Queue full.")
    failed = client.get(client.system)
    assert failed.status_code == 500
    assert "Retry-After" not in failed.headers
    assert failed.json()["error"]["message"] == "Queue full."


def test_a_fault_meets_only_the_requests_that_it_names(client: Client) -> None:
    inject(client, kind="http_error", method="PATCH", path="Bios/Settings$")
    assert client.get(client.settings).status_code == 200
    assert client.stage({"WorkLdConfig": "IO_SENSITIVE"}).status_code == 503
    assert client.patch(client.system, {"AssetTag": "x"}).status_code == 204
    assert client.bmc.pending == {}


def test_faults_are_listed_and_can_be_ended(client: Client) -> None:
    first, second = inject(client, kind="slow", seconds=0.0), inject(client, kind="http_error", path="/Chassis")
    client.get(client.system)
    listed = {one["id"]: one for one in client.json("/lab/faults")["faults"]}
    assert listed[first["id"]]["hits"] == 1
    assert listed[second["id"]]["hits"] == 0
    assert set(client.json("/lab/faults")["kinds"]) == set(KINDS)
    assert client.json(f"/lab/faults/{first['id']}")["kind"] == "slow"
    assert client.request("DELETE", f"/lab/faults/{first['id']}").status_code == 204
    assert client.request("DELETE", f"/lab/faults/{first['id']}").status_code == 404
    assert client.request("DELETE", "/lab/faults").status_code == 204
    assert client.json("/lab/faults")["faults"] == []


@pytest.mark.parametrize(
    ("fault", "at_fault"),
    [
        ({"kind": "earthquake"}, "/kind"),
        ({}, "/kind"),
        ({"kind": "slow", "second": 1}, "/second"),
        ({"kind": "slow", "seconds": "1"}, "/seconds"),
        ({"kind": "slow", "seconds": True}, "/seconds"),
        ({"kind": "slow", "count": 0}, "/count"),
        ({"kind": "slow", "method": "get"}, "/method"),
        ({"kind": "slow", "path": "("}, "/path"),
        ({"kind": "stale_pending", "attributes": ["C6Enable"]}, "/attributes"),
    ],
)
def test_a_bad_description_is_refused_and_names_the_member(
    client: Client, fault: dict[str, Any], at_fault: str
) -> None:
    response = client.post("/lab/faults", fault)
    assert response.status_code == 400
    assert response.json()["error"]["@Message.ExtendedInfo"][0]["RelatedProperties"] == [at_fault]
    assert client.json("/lab/faults")["faults"] == []


def test_a_slow_answer_comes_late_but_right(client: Client) -> None:
    client.bmc.inject("slow", count=1, seconds=5)
    with pytest.raises(requests.Timeout):
        client.http.get(client.bmc.system_url, timeout=0.2)
    assert client.get(client.system).status_code == 200


def test_a_dropped_connection_before_or_after_the_work(client: Client) -> None:
    client.bmc.inject("drop", count=1, method="PATCH")
    with pytest.raises(requests.ConnectionError):
        client.stage({"WorkLdConfig": "IO_SENSITIVE"})
    assert client.bmc.pending == {}
    client.bmc.inject("drop", count=1, method="PATCH", when="after")
    with pytest.raises(requests.ConnectionError):
        client.stage({"WorkLdConfig": "IO_SENSITIVE"})
    assert client.bmc.pending == {"WorkLdConfig": "IO_SENSITIVE"}  # it was done all the same


def test_garbage_is_no_json(client: Client) -> None:
    client.bmc.inject("garbage", count=1)
    response = client.get(client.system)
    assert response.status_code == 200
    with pytest.raises(requests.JSONDecodeError):
        response.json()


def test_another_client_can_be_first(client: Client) -> None:
    client.bmc.inject("etag_conflict", count=1)
    assert client.get(client.settings).status_code == 200
    assert client.stage({"WorkLdConfig": "IO_SENSITIVE"}).status_code == 412
    assert client.stage({"WorkLdConfig": "IO_SENSITIVE"}).status_code == 200


def test_sessions_can_be_lost(client: Client) -> None:
    visitor = Client(client.bmc, login=False)
    answer = visitor.post(SESSIONS, {"UserName": client.bmc.username, "Password": client.bmc.password})
    visitor.http.headers["X-Auth-Token"] = answer.headers["X-Auth-Token"]
    assert visitor.get(client.system).status_code == 200
    inject(client, kind="session_loss")
    assert visitor.get(client.system).status_code == 401


def wait_until_up(client: Client) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            client.get("/redfish/v1")
        except requests.ConnectionError:
            time.sleep(0.02)
        else:
            return
    raise AssertionError("the BMC did not come back")


def test_a_bmc_that_reboots_is_away_and_keeps_pending_values_but_no_session(client: Client) -> None:
    client.stage({"WorkLdConfig": "IO_SENSITIVE"})
    client.post(SESSIONS, {"UserName": client.bmc.username, "Password": client.bmc.password})
    client.bmc.inject("bmc_reboot", seconds=0.3)
    with pytest.raises(requests.ConnectionError):
        client.get("/redfish/v1")
    wait_until_up(client)
    assert client.bmc.pending == {"WorkLdConfig": "IO_SENSITIVE"}
    assert client.bmc.truth()["sessions"] == 0


def test_manager_reset_takes_the_bmc_away_and_not_the_host(client: Client) -> None:
    action = f"{client.bmc.service.paths.manager}/Actions/Manager.Reset"
    assert client.post(action, {"ResetType": "PowerCycle"}).status_code == 400
    assert client.post(action, {"ResetType": "ForceRestart"}).status_code == 204
    deadline = time.monotonic() + 20
    while not client.bmc.server.down:
        assert time.monotonic() < deadline
    wait_until_up(client)
    assert client.bmc.truth()["resets"] == 0


def test_a_setting_can_fail_to_take_silently_or_not(client: Client) -> None:
    for silent in (True, False):
        client.stage({"WorkLdConfig": "IO_SENSITIVE", "PcieHotPlugEnable": "Enabled"})
        inject(client, kind="setting_ignored", attributes=["WorkLdConfig"], silent=silent)
        client.bmc.reset()
        assert client.bmc.active["WorkLdConfig"] == "BALANCE"
        assert client.bmc.active["PcieHotPlugEnable"] == "Enabled"
        assert client.bmc.pending == {}
        keys = [
            one["MessageId"].rsplit(".", 1)[-1] for one in client.json(client.bios)["@Redfish.Settings"]["Messages"]
        ]
        assert keys == (["Success"] if silent else ["SettingsFailed"])
    client.stage({"WorkLdConfig": "IO_SENSITIVE"})
    client.bmc.reset()  # the fault was for one reset
    assert client.bmc.active["WorkLdConfig"] == "IO_SENSITIVE"


def test_stale_pending_values_commit_at_the_next_reset_unless_cleared(client: Client) -> None:
    inject(client, kind="stale_pending", attributes={"WorkLdConfig": "IO_SENSITIVE"})
    assert client.json(client.settings)["Attributes"] == {"WorkLdConfig": "IO_SENSITIVE"}
    client.stage({"PcieHotPlugEnable": "Enabled"})
    client.bmc.reset()
    assert client.bmc.active["WorkLdConfig"] == "IO_SENSITIVE"


def test_nonsense_that_was_left_pending_does_not_become_active(client: Client) -> None:
    inject(client, kind="stale_pending", attributes={"WorkLdConfig": "WARP", "NoSuchThing": 1})
    client.bmc.reset()
    assert client.bmc.active["WorkLdConfig"] == "BALANCE"
    assert "NoSuchThing" not in client.bmc.active
    assert client.bmc.pending == {}


def test_a_reset_can_take_long_or_do_nothing(client: Client) -> None:
    client.stage({"WorkLdConfig": "IO_SENSITIVE"})
    client.bmc.inject("reset_ignored")
    assert client.reset().status_code == 204
    assert client.bmc.settle()["resets"] == 0
    assert client.bmc.pending
    client.bmc.inject("slow_reset", seconds=60)
    client.reset()
    assert client.bmc.truth()["busy"]
    assert client.bmc.active["WorkLdConfig"] == "BALANCE"


def test_control_is_for_the_administrator_only(client: Client) -> None:
    anonymous = Client(client.bmc, login=False)
    assert anonymous.post("/lab/faults", {"kind": "slow"}).status_code == 401
    assert client.request("PUT", "/lab/faults").status_code == 405
    assert client.get("/lab/nothing").status_code == 404
    truth = client.json("/lab/state")
    assert truth["profile"] == "ieit-nf8260g7"
    assert truth["active"]["PowerProfile"] == "BALANCE_EFFICIENCY"
