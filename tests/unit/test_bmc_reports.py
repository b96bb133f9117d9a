"""What users of such tools have reported in public (docs/bmc-simulator.md lists it): the simulator does the same."""

from __future__ import annotations

from typing import Any

import pytest
import requests

from lab.bmc.testing import running
from tests.unit.bmc_client import Client, message_keys

IDLE = {"PcieHotPlugEnable": "Enabled"}
ON_RESET = {"@Redfish.SettingsApplyTime": {"ApplyTime": "OnReset"}}


def with_quirks(profile: str, **quirks: Any) -> Any:
    return running(profile, profile_overrides={"quirks": quirks})


def jobs_of(client: Client) -> str:
    return f"{client.bmc.service.paths.manager}/Jobs"


def test_community_general_6433_no_settings_annotation_and_bios_sd() -> None:
    with with_quirks("ieit-nf5280m6", settings_annotation=False) as bmc:
        client = Client(bmc)
        assert "@Redfish.Settings" not in client.json(client.bios)
        assert client.json(f"{client.bios}/SD")["Attributes"] == {}
        assert client.get(f"{client.bios}/Settings").status_code == 404


def test_tacklebox_185_an_annotation_without_its_object() -> None:
    with with_quirks("ieit-nf8260g7", settings_annotation="without_object") as bmc:
        client = Client(bmc)
        assert "SettingsObject" not in client.json(client.bios)["@Redfish.Settings"]
        assert client.stage(IDLE).status_code == 200


def test_tacklebox_55_no_attributes_at_factory_default_until_post() -> None:
    with with_quirks("ieit-nf8260g7", empty_until_post=True) as bmc:
        client = Client(bmc)
        assert client.json(client.bios)["Attributes"] == {}
        bmc.reset()
        assert client.json(client.bios)["Attributes"]["PowerProfile"] == "BALANCE_EFFICIENCY"
        bmc.inject("attributes_gone")
        assert client.json(client.bios)["Attributes"] == {}
        assert bmc.active["PowerProfile"] == "BALANCE_EFFICIENCY"


def test_community_general_9230_several_systems_and_the_first_is_not_the_host() -> None:
    other = {"Id": "HGX_Baseboard_0", "Manufacturer": "NVIDIA"}
    with running("supermicro-821ge", profile_overrides={"other_systems": [other]}) as bmc:
        client = Client(bmc)
        uris = [one["@odata.id"] for one in client.json("/redfish/v1/Systems")["Members"]]
        assert [uri.rsplit("/", 1)[-1] for uri in uris] == ["HGX_Baseboard_0", "1"]
        assert "Bios" not in client.json(uris[0])
        assert "Bios" in client.json(uris[1])


def test_community_general_3296_a_quoted_etag_gets_412() -> None:
    with with_quirks("ieit-nf8260g7", etag={"match": "unquoted"}) as bmc:
        client = Client(bmc)
        etag = client.get(client.settings).headers["ETag"]
        assert etag.startswith('"')
        assert client.stage(IDLE, headers={"If-Match": etag}).status_code == 412
        assert client.stage(IDLE, headers={"If-Match": etag.strip('"')}).status_code == 200


def test_community_general_12655_a_second_job_gets_400() -> None:
    with running("dell-r750") as bmc:
        client = Client(bmc)
        client.stage({"SriovGlobalEnable": "Enabled"})
        wish = {"TargetSettingsURI": client.settings}
        assert client.post(jobs_of(client), wish).status_code == 200
        refused = client.post(jobs_of(client), wish)
        assert (refused.status_code, message_keys(refused)) == (400, ["SYS011"])


def test_terraform_231_a_patch_without_apply_time_makes_no_job_and_the_reset_applies_nothing() -> None:
    with running("dell-r750") as bmc:
        client = Client(bmc)
        client.stage({"SriovGlobalEnable": "Enabled"})
        assert client.json(jobs_of(client))["Members"] == []
        bmc.reset()
        assert bmc.active["SriovGlobalEnable"] == "Disabled"
        assert bmc.pending == {"SriovGlobalEnable": "Enabled"}


def test_idrac_scripting_84_249_nothing_can_be_set_while_a_job_waits() -> None:
    with running("dell-r750") as bmc:
        client = Client(bmc)
        client.patch(client.settings, {"Attributes": {"SriovGlobalEnable": "Enabled"}, **ON_RESET})
        assert message_keys(client.stage({"LogicalProc": "Disabled"})) == ["SYS011"]
        clear = f"{client.settings}/Actions/Oem/DellManager.ClearPending"
        assert message_keys(client.post(clear)) == ["SYS011"]
        queue = f"{bmc.service.paths.manager}/Oem/Dell/DellJobService/Actions/DellJobService.DeleteJobQueue"
        assert client.post(queue, {"JobID": "JID_1"}).status_code == 400
        assert client.post(queue, {"JobID": "JID_CLEARALL"}).status_code == 200
        assert client.json(jobs_of(client))["Members"] == []
        assert bmc.pending == {}


def test_libredfish_25_values_look_applied_before_the_job_has_ended() -> None:
    with running("dell-r750") as bmc:
        client = Client(bmc)
        bmc.service.timing.job = 60.0
        client.patch(client.settings, {"Attributes": {"SriovGlobalEnable": "Enabled"}, **ON_RESET})
        client.reset()
        for _ in range(2000):
            if client.json(client.bios)["Attributes"]["SriovGlobalEnable"] == "Enabled":
                break
        job = client.json(client.json(jobs_of(client))["Members"][0]["@odata.id"])
        assert job["JobState"] == "Running"
        assert bmc.active["SriovGlobalEnable"] == "Disabled"


def test_openmanage_1072_a_system_profile_locks() -> None:
    with running("dell-r750") as bmc:
        client = Client(bmc)
        refused = client.stage({"ProcCStates": "Disabled"})
        assert "SysProfile" in refused.json()["error"]["message"]
        assert bmc.pending == {}


@pytest.mark.parametrize("status", [503, 400])
def test_badfish_1_29_the_queue_is_busy(status: int) -> None:
    with running("dell-r750") as bmc:
        client = Client(bmc)
        bmc.inject("queue_busy", status=status)
        wish = {"Attributes": {"SriovGlobalEnable": "Enabled"}, **ON_RESET}
        assert client.patch(client.settings, wish).status_code == status
        assert bmc.pending == {}
        assert client.patch(client.settings, wish).status_code == 202


def test_a_full_queue_takes_no_job_until_old_ones_are_deleted() -> None:
    with with_quirks("dell-r750", job_limit=1) as bmc:
        client = Client(bmc)
        for value, status in (("Enabled", 202), ("Disabled", 503)):
            wish = {"Attributes": {"SriovGlobalEnable": value}, **ON_RESET}
            answer = client.patch(client.settings, wish)
            assert answer.status_code == status
            bmc.reset()
        assert "holds 1 jobs" in answer.json()["error"]["message"]
        assert bmc.pending == {}
        assert client.request("DELETE", client.json(jobs_of(client))["Members"][0]["@odata.id"]).status_code == 200
        assert client.patch(client.settings, wish).status_code == 202


def test_badfish_393_too_many_attributes_at_once() -> None:
    with with_quirks("ieit-nf8260g7", max_attributes=1) as bmc:
        client = Client(bmc)
        assert client.stage({**IDLE, "LlcPrefetchEnable": "Enabled"}).status_code == 400
        assert bmc.pending == {}
        assert client.stage(IDLE).status_code == 200


@pytest.mark.parametrize("keeps", [False, True])
def test_a_job_can_fail_with_a_message(keeps: bool) -> None:
    with running("dell-r750") as bmc:
        client = Client(bmc)
        wish = {"SriovGlobalEnable": "Enabled"}
        client.patch(client.settings, {"Attributes": wish, **ON_RESET})
        bmc.inject("job_fails", message="The BIOS did not answer.", keeps_pending=keeps)
        bmc.reset()
        job = client.json(client.json(jobs_of(client))["Members"][0]["@odata.id"])
        assert (job["JobState"], job["Message"]) == ("Failed", "The BIOS did not answer.")
        assert bmc.active["SriovGlobalEnable"] == "Disabled"
        assert bmc.pending == (wish if keeps else {})


def test_bmclib_468_a_forgotten_staged_value_stays_and_commits() -> None:
    with running() as bmc:
        client = Client(bmc)
        bmc.inject("stale_pending", attributes=IDLE)
        assert client.json(client.bios)["Attributes"]["PcieHotPlugEnable"] == "Disabled"
        client.stage({"LlcPrefetchEnable": "Enabled"})
        bmc.reset()
        assert bmc.active["PcieHotPlugEnable"] == "Enabled"


def test_answers_that_are_spoilt_on_the_way() -> None:
    with running() as bmc:
        client = Client(bmc)
        bmc.inject("truncated", count=1)
        with pytest.raises(requests.RequestException):
            client.get(client.system)
        bmc.inject("wrong_type", count=1)
        answer = client.get(client.system)
        assert answer.headers["Content-Type"].startswith("text/html")
        assert answer.json()["Id"] == "1"
        bmc.inject("slow_body", count=1, seconds=0.1)
        assert client.json(client.system)["Id"] == "1"
        bmc.inject("error_in_200", count=1, message="Not now.")
        answer = client.stage(IDLE)
        assert (answer.status_code, answer.json()["error"]["message"]) == (200, "Not now.")
        assert bmc.pending == {}
        bmc.inject("truncated", count=1, method="PATCH")
        with pytest.raises(requests.RequestException):
            client.stage(IDLE)
        assert bmc.pending == IDLE, "the request was carried out"


def test_a_session_can_expire_as_its_request_arrives() -> None:
    with running() as bmc:
        client = Client(bmc, login=False)
        login = {"UserName": bmc.username, "Password": bmc.password}
        answer = client.post("/redfish/v1/SessionService/Sessions", login)
        client.http.headers["X-Auth-Token"] = answer.headers["X-Auth-Token"]
        bmc.inject("session_expires", count=1, path="Bios$")
        assert client.get(client.system).status_code == 200
        assert client.get(client.bios).status_code == 401
        assert client.get(client.system).status_code == 401


def test_a_wrong_clock_shows_wherever_the_bmc_says_a_time() -> None:
    with running() as bmc:
        client = Client(bmc)
        fault = bmc.inject("clock_wrong", seconds=-20 * 365 * 86400)
        client.stage(IDLE)
        bmc.reset()
        manager = client.get(bmc.service.paths.manager)
        assert manager.json()["DateTime"] < "2020"
        assert " 200" in manager.headers["Date"]
        assert client.json(client.bios)["@Redfish.Settings"]["Time"] < "2020"
        assert client.json(client.system)["BootProgress"]["LastStateTime"] < "2020"
        assert client.request("DELETE", f"/lab/faults/{fault['id']}").status_code == 204
        assert client.json(bmc.service.paths.manager)["DateTime"] > "2020"


def test_values_can_be_dropped_on_the_way_in_or_changed_in_post() -> None:
    with running() as bmc:
        client = Client(bmc)
        bmc.inject("stage_drops", attributes=["PcieHotPlugEnable"])
        assert client.stage({**IDLE, "LlcPrefetchEnable": "Enabled"}).status_code == 200
        assert bmc.pending == {"LlcPrefetchEnable": "Enabled"}
        bmc.inject("value_clamped", attributes={"LlcPrefetchEnable": "Auto"})
        bmc.reset()
        assert bmc.active["LlcPrefetchEnable"] == "Auto"
        messages = client.json(client.bios)["@Redfish.Settings"]["Messages"]
        assert [one["MessageId"].rsplit(".", 1)[-1] for one in messages] == ["Success"]


@pytest.mark.parametrize(
    ("fault", "power", "boot"),
    [
        ({"kind": "post_hangs"}, "On", "MemoryInitializationStarted"),
        ({"kind": "power_stuck", "state": "PoweringOff"}, "PoweringOff", "OSRunning"),
    ],
)
def test_a_machine_that_hangs_is_freed_by_a_forced_reset(fault: dict[str, Any], power: str, boot: str) -> None:
    with running() as bmc:
        client = Client(bmc)
        client.stage(IDLE)
        bmc.inject(**fault)
        assert client.reset().status_code == 204
        for _ in range(2000):
            if bmc.call(lambda: bmc.service.power.hung):
                break
        truth = bmc.truth()
        assert (truth["busy"], truth["power"], truth["boot"]) == (True, power, boot)
        assert client.reset("GracefulRestart").status_code == 409
        assert client.reset("ForceOff").status_code == 204
        assert bmc.settle()["power"] == "Off"
        assert client.reset("On").status_code == 204
        truth = bmc.settle()
        assert (truth["power"], truth["boot"], truth["pending"]) == ("On", "OSRunning", {})
        assert truth["active"]["PcieHotPlugEnable"] == "Enabled"


def test_what_hpe_s_ilorest_needs() -> None:
    with running("hpe-dl380a-gen11") as bmc:
        client = Client(bmc)
        schemas = client.json("/redfish/v1/")["JsonSchemas"]["@odata.id"]
        assert client.json(f"{schemas}?$expand=.")["Members"] == []
        body = {"Action": "ComputerSystem.Reset", "ResetType": "ForceRestart"}
        assert client.post(f"{client.system}/Actions/ComputerSystem.Reset", body).status_code == 204
        assert bmc.settle()["resets"] == 1
