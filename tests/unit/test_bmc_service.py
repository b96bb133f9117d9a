"""What DSP0266 asks of any service: sessions, authentication, ETags, error bodies, methods, links that lead somewhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import requests

from lab.bmc import profile
from lab.bmc.accounts import Accounts
from lab.bmc.auth import Sessions
from lab.bmc.messages import RedfishError
from lab.bmc.state import State
from lab.bmc.testing import running
from tests.unit.bmc_client import Client, message_keys

SESSIONS = "/redfish/v1/SessionService/Sessions"


@pytest.fixture
def client() -> Iterator[Client]:
    with running(session_limit=3) as bmc:
        yield Client(bmc)


def login(client: Client, password: str | None = None) -> requests.Response:
    anonymous = Client(client.bmc, login=False)
    return anonymous.post(SESSIONS, {"UserName": client.bmc.username, "Password": password or client.bmc.password})


def test_only_the_root_is_open(client: Client) -> None:
    anonymous = Client(client.bmc, login=False)
    for path in ("/redfish", "/redfish/v1", "/redfish/v1/", "/redfish/v1/odata", "/redfish/v1/$metadata"):
        assert anonymous.get(path).status_code == 200, path
    for path in (client.system, SESSIONS, "/redfish/v1/Nowhere", "/lab/faults", "/lab/state"):
        response = anonymous.get(path)
        assert response.status_code == 401, path
        assert message_keys(response) == ["NoValidSession"]
        assert response.headers["WWW-Authenticate"].startswith("Basic")


def test_a_session_logs_in_is_listed_and_logs_out(client: Client) -> None:
    response = login(client)
    assert response.status_code == 201
    token, location = response.headers["X-Auth-Token"], response.headers["Location"]
    assert response.json()["@odata.id"] == location
    assert "correct-horse" not in response.text
    visitor = Client(client.bmc, login=False)
    visitor.http.headers["X-Auth-Token"] = token
    assert visitor.json(client.system)["Id"] == "1"
    assert [one["@odata.id"] for one in visitor.json(SESSIONS)["Members"]] == [location]
    assert visitor.request("DELETE", location).status_code == 204
    assert visitor.get(client.system).status_code == 401


def test_wrong_credentials_and_incomplete_logins_are_refused(client: Client) -> None:
    assert login(client, "wrong").status_code == 401
    anonymous = Client(client.bmc, login=False)
    incomplete = anonymous.post(SESSIONS, {"UserName": "admin"})
    assert incomplete.status_code == 400
    assert message_keys(incomplete) == ["PropertyMissing"]
    assert anonymous.post(SESSIONS, {"UserName": "admin", "Password": 1}).status_code == 400
    for header in ("Basic !!!", "Basic YTpi", "Bearer x"):
        assert anonymous.get(client.system, headers={"Authorization": header}).status_code == 401


def test_there_is_a_limit_to_sessions_and_a_logout_makes_room(client: Client) -> None:
    locations = [login(client).headers["Location"] for _ in range(3)]
    full = login(client)
    assert full.status_code == 503
    assert message_keys(full) == ["SessionLimitExceeded"]
    client.request("DELETE", locations[0])
    assert login(client).status_code == 201


def test_a_session_expires_by_its_last_use() -> None:
    clock = [0.0]
    sessions = Sessions(Accounts("admin", "secret", State("p")), 60, 2, lambda: clock[0])
    token = sessions.login("admin", "secret", "here").token
    clock[0] = 50
    sessions.authenticate({"X-Auth-Token": token})
    clock[0] = 105
    sessions.authenticate({"X-Auth-Token": token})
    clock[0] = 170
    with pytest.raises(RedfishError, match="has expired") as refused:
        sessions.authenticate({"X-Auth-Token": token})
    assert refused.value.status == 401
    assert sessions.all() == []


ACCOUNTS = "/redfish/v1/AccountService/Accounts"
VISITOR = {"UserName": "eve", "Password": "long enough", "RoleId": "ReadOnly"}


def as_account(client: Client, password: str = "long enough") -> Client:
    visitor = Client(client.bmc, login=False)
    visitor.http.auth = ("eve", password)
    return visitor


def test_accounts_are_added_changed_and_removed(client: Client) -> None:
    created = client.post(ACCOUNTS, VISITOR)
    assert created.status_code == 201
    uri = created.headers["Location"]
    assert created.json()["Password"] is None
    assert client.post(ACCOUNTS, VISITOR).status_code == 400  # the name is taken
    assert as_account(client).get(client.system).status_code == 200
    assert client.patch(uri, {"Password": "another one", "RoleId": "Operator"}).status_code == 200
    assert as_account(client).get(client.system).status_code == 401
    assert as_account(client, "another one").get(client.system).status_code == 200
    client.patch(uri, {"Enabled": False})
    assert as_account(client, "another one").get(client.system).status_code == 401
    assert client.request("DELETE", uri).status_code == 204
    assert client.get(uri).status_code == 404
    assert client.request("DELETE", f"{ACCOUNTS}/1").status_code == 400


def test_a_role_allows_what_it_names(client: Client) -> None:
    uri = client.post(ACCOUNTS, VISITOR).headers["Location"]
    visitor = as_account(client)
    for refused in (
        visitor.stage({"WorkLdConfig": "IO_SENSITIVE"}),
        visitor.reset(),
        visitor.post(ACCOUNTS, {**VISITOR, "UserName": "bob"}),
        visitor.patch(uri, {"RoleId": "Administrator"}),
        visitor.post("/lab/faults", {"kind": "slow"}),
    ):
        assert refused.status_code == 403
        assert message_keys(refused) == ["InsufficientPrivilege"]
    assert visitor.patch(uri, {"Password": "my own choice"}).status_code == 200
    client.patch(uri, {"RoleId": "Operator"})
    operator = as_account(client, "my own choice")
    assert operator.stage({"WorkLdConfig": "IO_SENSITIVE"}).status_code == 200
    assert operator.patch("/redfish/v1/SessionService", {"SessionTimeout": 60}).status_code == 403


def test_a_removed_account_loses_its_session(client: Client) -> None:
    uri = client.post(ACCOUNTS, VISITOR).headers["Location"]
    visitor = Client(client.bmc, login=False)
    answer = visitor.post(SESSIONS, {"UserName": "eve", "Password": "long enough"})
    visitor.http.headers["X-Auth-Token"] = answer.headers["X-Auth-Token"]
    assert visitor.get(client.system).status_code == 200
    client.request("DELETE", uri)
    assert visitor.get(client.system).status_code == 401


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"Password": "short"}, "PropertyValueOutOfRange"),
        ({"RoleId": "King"}, "PropertyValueNotInList"),
        ({"UserName": ""}, "PropertyValueOutOfRange"),
        ({"Enabled": "yes"}, "PropertyValueTypeError"),
        ({"Password": 1}, "PropertyValueTypeError"),
        ({"Bogus": 1}, "PropertyUnknown"),
        ({"Locked": True}, "PropertyNotWritable"),
    ],
)
def test_a_wrong_account_is_refused(client: Client, change: dict[str, Any], key: str) -> None:
    response = client.post(ACCOUNTS, {**VISITOR, **change})
    assert response.status_code == 400
    assert message_keys(response) == [key]
    assert len(client.json(ACCOUNTS)["Members"]) == 1


def test_the_session_timeout_can_be_set_within_bounds(client: Client) -> None:
    uri = "/redfish/v1/SessionService"
    assert client.patch(uri, {"SessionTimeout": 90}).status_code == 204
    assert client.json(uri)["SessionTimeout"] == 90
    for value in (0, "90", True, 10**9):
        assert client.patch(uri, {"SessionTimeout": value}).status_code == 400
    assert client.patch(uri, {"ServiceEnabled": False}).status_code == 400


def test_a_change_with_an_old_etag_is_refused(client: Client) -> None:
    old = client.get(client.settings)
    assert old.json()["@odata.etag"] == old.headers["ETag"]
    client.stage({"WorkLdConfig": "IO_SENSITIVE"})
    stale = client.stage({"PcieHotPlugEnable": "Enabled"}, headers={"If-Match": old.headers["ETag"]})
    assert stale.status_code == 412
    assert message_keys(stale) == ["PreconditionFailed"]
    assert client.bmc.pending == {"WorkLdConfig": "IO_SENSITIVE"}
    for good in (client.get(client.settings).headers["ETag"], "*", client.get(client.bios).headers["ETag"]):
        assert client.stage({"PcieHotPlugEnable": "Enabled"}, headers={"If-Match": good}).status_code == 200
        client.request("DELETE", client.settings)


def test_an_unchanged_resource_is_not_sent_again(client: Client) -> None:
    etag = client.get(client.bios).headers["ETag"]
    assert client.get(client.bios, headers={"If-None-Match": etag}).status_code == 304


@pytest.mark.parametrize(
    ("style", "match", "sent"),
    [("strong", "exact", '"'), ("weak", "exact", "W/"), ("unquoted", "unquoted", ""), ("strong", "unquoted", '"')],
)
def test_etags_are_written_and_compared_as_the_firmware_does(style: str, match: str, sent: str) -> None:
    with running(profile_overrides={"quirks": {"etag": {"style": style, "match": match}}}) as bmc:
        client = Client(bmc)
        etag = client.get(client.settings).headers["ETag"]
        assert etag.startswith(sent)
        bare = etag.removeprefix("W/").strip('"')
        exact = client.stage({"WorkLdConfig": "IO_SENSITIVE"}, headers={"If-Match": etag}).status_code
        assert exact == (412 if style == "strong" and match == "unquoted" else 200)
        client.request("DELETE", client.settings)
        stripped = client.stage({"WorkLdConfig": "IO_SENSITIVE"}, headers={"If-Match": bare}).status_code
        assert stripped == (200 if match == "unquoted" else 412)


def test_firmware_without_etags_sends_none() -> None:
    with running(profile_overrides={"quirks": {"etag": {"style": "none"}}}) as bmc:
        response = Client(bmc).get("/redfish/v1/Systems/1/Bios")
        assert "ETag" not in response.headers
        assert "@odata.etag" not in response.json()


@pytest.mark.parametrize("data", ["{", "[1]", "nonsense", '"text"', "\xff", "[" * 100_000])
def test_a_malformed_body_is_refused_without_a_traceback(client: Client, data: str) -> None:
    response = client.request("PATCH", client.settings, data=data.encode("latin-1"))
    assert response.status_code == 400
    assert message_keys(response)[0] in ("MalformedJSON", "UnrecognizedRequestBody")
    assert "Traceback" not in response.text


def test_what_the_protocol_validator_of_dmtf_found(client: Client) -> None:
    old = client.get("/redfish/v1/", headers={"OData-Version": "4.1"})
    assert old.status_code == 412
    assert message_keys(old) == ["HeaderInvalid"]
    empty = client.patch(client.system, {"@odata.id": client.system})
    assert empty.status_code == 400
    assert message_keys(empty) == ["NoOperation"]
    body = {"UserName": client.bmc.username, "Password": client.bmc.password}
    assert Client(client.bmc, login=False).post(f"{SESSIONS}/Members", body).status_code == 201
    described = client.get(client.bios).headers["Link"]
    assert described == "<http://redfish.dmtf.org/schemas/v1/Bios.v1_2_0.json>; rel=describedby"


def test_unknown_paths_and_methods_are_refused_properly(client: Client) -> None:
    assert message_keys(client.get("/redfish/v1/Systems/2")) == ["ResourceMissingAtURI"]
    response = client.request("DELETE", client.system)
    assert response.status_code == 405
    assert response.headers["Allow"] == "GET, HEAD, PATCH"
    assert client.request("HEAD", client.system).status_code == 200
    assert client.get(f"{client.system}/Actions/ComputerSystem.Reset").status_code == 405


@pytest.mark.parametrize("query", ["$expand=*", "$select=Id", "$filter=Id eq '1'", "only"])
def test_query_options_that_are_not_offered_are_refused(client: Client, query: str) -> None:
    response = client.get(f"/redfish/v1/Systems?{query}")
    assert response.status_code == 501
    assert message_keys(response) == ["QueryNotSupported"]


def test_expand_is_served_where_the_firmware_has_it() -> None:
    with running("dell-r750") as bmc:
        client = Client(bmc)
        assert client.json("/redfish/v1")["ProtocolFeaturesSupported"]["ExpandQuery"]["ExpandAll"] is True
        members = client.json("/redfish/v1/UpdateService/FirmwareInventory?$expand=*($levels=1)")["Members"]
        assert {one["Id"] for one in members} >= {"BIOS", "iDRAC"}
        assert client.get("/redfish/v1/Systems?$expand=*($levels=x)").status_code == 501


def test_what_a_system_lets_a_client_change(client: Client) -> None:
    assert client.patch(client.system, {"IndicatorLED": "Blinking", "AssetTag": "rack 7"}).status_code == 204
    once = {"BootSourceOverrideEnabled": "Once", "BootSourceOverrideTarget": "Pxe"}
    assert client.patch(client.system, {"Boot": once}).status_code == 204
    body = client.json(client.system)
    assert (body["IndicatorLED"], body["AssetTag"]) == ("Blinking", "rack 7")
    assert body["Boot"]["BootSourceOverrideTarget"] == "Pxe"
    bad = client.patch(client.system, {"Model": "x", "Boot": {"BootSourceOverrideTarget": "Floppy"}, "Bogus": 1})
    assert sorted(message_keys(bad)) == ["PropertyNotWritable", "PropertyUnknown", "PropertyValueNotInList"]
    client.bmc.reset()
    assert client.json(client.system)["Boot"]["BootSourceOverrideEnabled"] == "Disabled"


def every_uri(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, one in value.items():
            if key in ("@odata.id", "Uri", "TaskMonitor") and isinstance(one, str):
                yield one.split("#")[0]
            else:
                yield from every_uri(one)
    elif isinstance(value, list):
        for one in value:
            yield from every_uri(one)


@pytest.mark.parametrize("name", profile.available())
def test_every_link_of_every_profile_leads_to_a_resource_that_names_itself(name: str) -> None:
    with running(name) as bmc:
        client = Client(bmc)
        seen: set[str] = set()
        queue = ["/redfish/v1/"]
        while queue:
            uri = queue.pop()
            if uri in seen:
                continue
            seen.add(uri)
            body = client.json(uri)
            assert body.get("@odata.id", uri).rstrip("/") == uri.rstrip("/")
            if "Members" in body:
                assert body["Members@odata.count"] == len(body["Members"])
            queue.extend(every_uri(body))
        assert len(seen) > 50
