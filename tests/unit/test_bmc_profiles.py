"""What sets one vendor's firmware apart from another's, and the inventory and sensors of a profile."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.bmc import profile
from lab.bmc.inventory import dimm_parts
from lab.bmc.profile_check import problems
from lab.bmc.sensors import Sensors
from lab.bmc.testing import running
from tests.unit.bmc_client import Client, message_keys

ON_RESET = {"@Redfish.SettingsApplyTime": {"ApplyTime": "OnReset"}}


@pytest.fixture
def dell() -> Iterator[Client]:
    with running("dell-r750") as bmc:
        yield Client(bmc)


@pytest.fixture
def hpe() -> Iterator[Client]:
    with running("hpe-dl380a-gen11") as bmc:
        yield Client(bmc)


def jobs(client: Client) -> list[dict[str, Any]]:
    uri = f"{client.bmc.service.paths.manager}/Jobs"
    return [client.json(one["@odata.id"]) for one in client.json(uri)["Members"]]


# ---------------------------------------------------------------- Dell: jobs


def test_dell_without_an_apply_time_only_stages_and_a_reset_applies_nothing(dell: Client) -> None:
    assert dell.stage({"SriovGlobalEnable": "Enabled"}).status_code == 200
    assert jobs(dell) == []
    dell.bmc.reset()
    assert dell.bmc.active["SriovGlobalEnable"] == "Disabled"
    assert dell.bmc.pending == {"SriovGlobalEnable": "Enabled"}


def test_dell_with_an_apply_time_makes_a_job_that_the_reset_runs(dell: Client) -> None:
    answer = dell.patch(dell.settings, {"Attributes": {"SriovGlobalEnable": "Enabled"}, **ON_RESET})
    assert answer.status_code == 202
    assert dell.json(answer.headers["Location"])["TaskState"] == "Starting"
    assert [one["JobState"] for one in jobs(dell)] == ["Scheduled"]
    dell.bmc.reset()
    assert dell.json(answer.headers["Location"])["TaskState"] == "Completed"
    assert [(one["JobState"], one["PercentComplete"]) for one in jobs(dell)] == [("Completed", 100)]
    assert dell.bmc.active["SriovGlobalEnable"] == "Enabled"


def test_dell_refuses_every_change_while_a_job_is_scheduled(dell: Client) -> None:
    dell.patch(dell.settings, {"Attributes": {"SriovGlobalEnable": "Enabled"}, **ON_RESET})
    manager = dell.bmc.service.paths.manager
    clear = dell.json(dell.settings)["Actions"]["Oem"]["#DellManager.ClearPending"]["target"]
    for refused in (
        dell.stage({"NodeInterleave": "Enabled"}),
        dell.post(clear),
        dell.post(f"{manager}/Jobs", {"TargetSettingsURI": dell.settings}),
    ):
        assert refused.status_code == 400
        assert message_keys(refused) == ["SYS011"]
    job = jobs(dell)[0]["@odata.id"]
    assert dell.request("DELETE", job).status_code == 200
    assert dell.bmc.pending == {}  # deleting the job drops what it would have carried
    dell.stage({"NodeInterleave": "Enabled"})
    assert dell.post(clear).status_code == 200
    assert dell.bmc.pending == {}


def test_dell_takes_a_job_for_values_that_were_staged_before(dell: Client) -> None:
    uri = f"{dell.bmc.service.paths.manager}/Jobs"
    assert dell.post(uri, {"TargetSettingsURI": dell.settings}).status_code == 400  # nothing is pending
    dell.stage({"NodeInterleave": "Enabled"})
    assert dell.post(uri, {}).status_code == 400
    assert dell.post(uri, {"TargetSettingsURI": "/redfish/v1/other"}).status_code == 400
    answer = dell.post(uri, {"TargetSettingsURI": dell.settings})
    assert answer.status_code == 200
    assert dell.json(answer.headers["Location"])["JobState"] == "Scheduled"
    dell.bmc.reset()
    assert dell.bmc.active["NodeInterleave"] == "Enabled"


def test_dell_system_profile_locks_and_sets(dell: Client) -> None:
    refused = dell.stage({"ProcCStates": "Disabled"})
    assert message_keys(refused) == ["PropertyNotWritable"]
    assert "SysProfile" in refused.text
    dell.patch(dell.settings, {"Attributes": {"SysProfile": "PerfOptimized"}, **ON_RESET})
    dell.bmc.reset()
    assert dell.bmc.active["ProcCStates"] == "Disabled"
    assert dell.bmc.active["UncoreFrequency"] == "MaxUFS"


def test_dell_job_can_be_stuck(dell: Client) -> None:
    dell.patch(dell.settings, {"Attributes": {"NodeInterleave": "Enabled"}, **ON_RESET})
    dell.bmc.inject("job_stuck")
    dell.bmc.reset()
    assert [one["JobState"] for one in jobs(dell)] == ["Scheduled"]
    assert dell.bmc.active["NodeInterleave"] == "Disabled"
    dell.bmc.reset()
    assert dell.bmc.active["NodeInterleave"] == "Enabled"


def test_dell_reports_a_job_that_failed(dell: Client) -> None:
    dell.patch(dell.settings, {"Attributes": {"NodeInterleave": "Enabled"}, **ON_RESET})
    dell.bmc.inject("setting_ignored", silent=False)
    dell.bmc.reset()
    assert [one["JobState"] for one in jobs(dell)] == ["Failed"]


def test_dell_bios_shows_values_before_its_job_has_ended(dell: Client) -> None:
    dell.patch(dell.settings, {"Attributes": {"NodeInterleave": "Enabled"}, **ON_RESET})
    dell.bmc.service.timing.job = 60
    dell.reset()
    for _ in range(2000):
        if jobs(dell)[0]["JobState"] == "Running":
            break
    assert dell.json(dell.bios)["Attributes"]["NodeInterleave"] == "Enabled"
    assert dell.bmc.active["NodeInterleave"] == "Disabled"
    assert dell.bmc.pending == {"NodeInterleave": "Enabled"}


def test_dell_registry_has_no_defaults_and_lies_under_bios(dell: Client) -> None:
    entries = dell.json(f"{dell.bios}/BiosRegistry")["RegistryEntries"]["Attributes"]
    assert len(entries) > 30
    assert not any("DefaultValue" in one for one in entries)
    dell.post(f"{dell.bios}/Actions/Bios.ResetBios")
    dell.bmc.reset()
    assert dell.bmc.active["SysProfile"] == "PerfPerWattOptimizedDapc"


# ---------------------------------------------------------------- HPE, Lenovo, Supermicro, IEIT M6


def test_hpe_spells_its_links_its_own_way_and_answers_to_both(hpe: Client) -> None:
    body = hpe.json("/redfish/v1/Systems/1/")
    assert body["Bios"]["@odata.id"] == "/redfish/v1/systems/1/bios/"
    response = hpe.get("/redfish/v1/Systems/1/BIOS")
    assert response.headers["ETag"].startswith('W/"')
    bios = response.json()
    assert bios["@Redfish.Settings"]["SettingsObject"]["@odata.id"] == "/redfish/v1/systems/1/bios/settings/"
    assert "SupportedApplyTimes" not in bios["@Redfish.Settings"]
    assert len(bios["Attributes"]) >= 300


def test_hpe_shows_all_attributes_as_pending_and_asks_for_a_reset(hpe: Client) -> None:
    answer = hpe.stage({"WorkloadProfile": "Custom", "UncoreFreqScaling": "Auto"})
    assert answer.status_code == 200
    assert message_keys(answer) == ["SystemResetRequired"]
    pending = hpe.json(hpe.settings)["Attributes"]
    assert len(pending) >= 300
    assert pending["UncoreFreqScaling"] == "Auto"
    assert hpe.bmc.pending == {"WorkloadProfile": "Custom", "UncoreFreqScaling": "Auto"}


def test_hpe_workload_profile_locks_as_the_captured_registry_says(hpe: Client) -> None:
    refused = hpe.stage({"UncoreFreqScaling": "Auto"})
    assert message_keys(refused) == ["PropertyNotWritable"]
    hpe.stage({"WorkloadProfile": "LowLatency"})
    hpe.bmc.reset()
    assert hpe.bmc.active["MinProcIdlePower"] == "NoCStates"
    assert hpe.bmc.active["Sriov"] == "Disabled"


def test_lenovo_keeps_its_settings_under_pending() -> None:
    with running("lenovo-sr670v2") as bmc:
        client = Client(bmc)
        uri = client.json(client.bios)["@Redfish.Settings"]["SettingsObject"]["@odata.id"]
        assert uri == "/redfish/v1/Systems/1/Bios/Pending"
        assert client.get("/redfish/v1/Systems/1/Bios/Settings").status_code == 404
        assert "CustomMode" in client.stage({"Processors_CStates": "Disabled"}).text
        assert client.stage({"OperatingModes_ChooseOperatingMode": "MaximumPerformance"}).status_code == 200
        bmc.reset()
        assert bmc.active["Processors_CStates"] == "Disabled"
        assert client.json(client.system)["BiosVersion"] == "U8E126J-2.10"


def test_supermicro_lists_numbers_and_takes_texts() -> None:
    with running("supermicro-821ge") as bmc:
        client = Client(bmc)
        assert client.settings == "/redfish/v1/Systems/1/Bios/SD"
        unlock = {"PowerTechnology_FF77": "Custom"}
        assert client.stage({**unlock, "CPUC6Report_3D22": 0}).status_code == 400
        assert client.stage({**unlock, "CPUC6Report_3D22": "Disable"}).status_code == 202
        bmc.reset()
        assert client.json(client.bios)["Attributes"]["CPUC6Report_3D22"] == "Disable"


def test_the_captured_supermicro_tree_has_no_registry_name_and_an_empty_settings_object() -> None:
    with running("supermicro-gb300") as bmc:
        client = Client(bmc)
        body = client.json("/redfish/v1/Systems/System_0/Bios")
        assert "AttributeRegistry" not in body
        assert len(body["Attributes"]) == 360
        assert client.json(client.settings)["Attributes"] == {}
        assert client.stage({"EGM": "true"}).status_code == 400
        assert client.stage({"ActiveCores": 337}).status_code == 400
        assert client.stage({"EGM": False, "Socket0Pcie0MaxPCIespeed": "GEN4"}).status_code == 204
        bmc.reset()
        assert bmc.active["Socket0Pcie0MaxPCIespeed"] == "GEN4"


def test_older_ieit_machines_use_other_ids_and_display_texts() -> None:
    with running("ieit-nf5280m6") as bmc:
        client = Client(bmc)
        assert client.settings == "/redfish/v1/Systems/Self/Bios/SD"
        wish = {"PowerProfile": "Custom", "PackageCstateReport": "C0/C1 state"}
        assert client.stage(wish, headers={"If-None-Match": "none"}).status_code == 204
        bmc.reset()
        assert bmc.active["PackageCstateReport"] == "C0/C1 state"


# ---------------------------------------------------------------- inventory and sensors


def test_sixteen_dimms_with_their_place_and_speeds() -> None:
    with running() as bmc:
        client = Client(bmc)
        body = client.json(client.system)
        assert body["MemorySummary"]["TotalSystemMemoryGiB"] == 512
        assert body["ProcessorSummary"]["Count"] == 4
        dimm = client.json(f"{client.system}/Memory/CPU3_C6D0")
        assert dimm["DeviceLocator"] == "CPU3_C6D0"
        assert dimm["MemoryLocation"] == {"Socket": 3, "MemoryController": 3, "Channel": 6, "Slot": 0}
        assert (dimm["MemoryDeviceType"], dimm["OperatingSpeedMhz"]) == ("DDR5", 4800)
        assert dimm["RankCount"] == 2


def test_empty_and_odd_slots_are_data() -> None:
    memory = {
        "locator": "{socket_letter}{n_in_socket}",
        "template": {"CapacityMiB": 32768, "OperatingSpeedMhz": 3200},
        "positions": [[0, 0, 0], [0, 1, 0], [1, 0, 0]],
        "absent": [[1, 1, 0]],
        "differences": {"A2": {"OperatingSpeedMhz": 2666, "Health": "Warning"}},
    }
    parts = {one["DeviceLocator"]: one for one in dimm_parts(memory)}
    assert list(parts) == ["A1", "A2", "B1", "B2"]
    assert parts["A2"]["OperatingSpeedMhz"] == 2666
    assert parts["B2"]["State"] == "Absent"
    assert "CapacityMiB" not in parts["B2"]


def test_readings_move_within_bounds_and_without_power_there_are_none() -> None:
    clock, powered = [0.0], [True]
    part = {"id": "T", "name": "T", "type": "Temperature", "base": 50, "swing": 5, "noise": 2, "off": None}
    sensors = Sensors([part], lambda: powered[0], lambda: clock[0])
    seen = set()
    for step in range(400):
        clock[0] = step * 2.0
        reading = sensors.reading(part)
        assert reading is not None
        assert 43 <= reading <= 57
        seen.add(reading)
    assert len(seen) > 5
    assert sensors.reading(part) == sensors.reading(part)
    powered[0] = False
    assert sensors.reading(part) is None
    assert sensors.state(part, None) == {"State": "UnavailableOffline", "Health": None}


@pytest.mark.parametrize(("value", "health"), [(50, "OK"), (80, "Warning"), (95, "Critical"), (2, "Critical")])
def test_a_reading_is_judged_by_its_thresholds(value: float, health: str) -> None:
    limits = {"UpperCaution": 80, "UpperCritical": 90, "LowerCritical": 3}
    part = {"id": "T", "name": "T", "type": "Temperature", "base": 50, "thresholds": limits}
    sensors = Sensors([part], lambda: True)
    sensors.forced["T"] = value
    assert sensors.health(part, value) == health
    assert sensors.worst() == health


def test_the_three_views_of_the_sensors_agree_and_an_absent_one_reads_null() -> None:
    with running() as bmc:
        client = Client(bmc)
        base = bmc.service.paths.chassis
        bmc.service.sensors.forced["CPU0_Temp"] = 92
        thermal = client.json(f"{base}/Thermal")
        by_name = {one["Name"]: one for one in thermal["Temperatures"]}
        assert by_name["CPU0_Temp"]["ReadingCelsius"] == 92
        assert by_name["CPU0_Temp"]["Status"]["Health"] == "Warning"
        assert by_name["CPU0_Temp"]["UpperThresholdCritical"] == 95
        assert by_name["GPU1_Temp"]["ReadingCelsius"] is None
        assert by_name["GPU1_Temp"]["Status"]["State"] == "Absent"
        sensor = client.json(f"{base}/Sensors/CPU0_Temp")
        assert sensor["Reading"] == 92
        assert client.json(base)["Status"]["Health"] == "Warning"
        assert client.json(f"{base}/Power")["PowerControl"][0]["PowerConsumedWatts"] > 400
        client.reset("ForceOff")
        bmc.settle()
        assert client.json(f"{base}/Thermal")["Fans"][0]["Reading"] is None
        assert client.json(f"{base}/Power")["PowerControl"][0]["PowerConsumedWatts"] == 38


def test_the_event_log_tells_what_happened_and_can_be_cleared() -> None:
    with running() as bmc:
        client = Client(bmc)
        client.stage({"WorkLdConfig": "IO_SENSITIVE"})
        bmc.reset()
        log = f"{client.system}/LogServices/SEL"
        texts = [one["Message"] for one in client.json(f"{log}/Entries")["Members"]]
        assert texts == ["Reset ForceRestart requested", "BIOS settings changed: WorkLdConfig"]
        assert client.json(f"{log}/Entries/2")["Severity"] == "OK"
        assert client.post(client.json(log)["Actions"]["#LogService.ClearLog"]["target"]).status_code == 204
        assert [one["Message"] for one in client.json(f"{log}/Entries")["Members"]] == ["Log cleared"]


# ---------------------------------------------------------------- profile files


def test_the_profiles_that_come_with_it_hold_no_key_that_the_check_does_not_know(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for name in profile.available():
        assert problems(profile.load(name).data) == []
    assert caplog.messages == []


def test_a_profile_file_can_extend_another_beside_it(tmp_path: Path) -> None:
    (tmp_path / "base.json").write_text(json.dumps({"extends": "dell-r750", "product": "Mine"}))
    (tmp_path / "mine.json").write_text(json.dumps({"extends": "base.json"}))
    assert profile.load(str(tmp_path / "mine.json")).get("product") == "Mine"


def test_a_profile_file_of_one_s_own_can_extend_another(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"extends": "dell-r750", "system": {"Model": "PowerEdge R760"}}))
    with running(str(path)) as bmc:
        client = Client(bmc)
        assert client.json(client.system)["Model"] == "PowerEdge R760"
        assert client.json(client.system)["Manufacturer"] == "Dell Inc."


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "is not JSON"),
        ("[]", "holds no JSON object"),
        ('{"system": {}}', "the object bios is missing"),
        ('{"extends": ["a"]}', "extends must name a profile"),
        ('{"extends": "dell-r750", "frimware": []}', "frimware is not known, did you mean firmware?"),
        ('{"extends": "dell-r750", "quirks": {"setings_reply": "204"}}', "did you mean settings_reply?"),
        ('{"extends": "dell-r750", "quirks": {"shape": "round"}}', "quirks.shape must be one of flat, nested"),
        ('{"extends": "dell-r750", "quirks": {"expand": 1}}', "quirks.expand must be one of True, False"),
        ('{"extends": "dell-r750", "quirks": {"job_limit": "9"}}', "quirks.job_limit must be an integer"),
        ('{"extends": "dell-r750", "quirks": {"etag": {"styl": "weak"}}}', "quirks.etag.styl is not one of style"),
        ('{"extends": "dell-r750", "quirks": []}', "quirks must be an object"),
        ('{"extends": "dell-r750", "firmware": [{"Id": "BIOS"}]}', r"firmware\[0\] lacks Version"),
        ('{"extends": "dell-r750", "firmware": {}}', "firmware must be a list of objects"),
        ('{"extends": "dell-r750", "reset_types": "On"}', "reset_types must be a list of strings"),
        ('{"extends": "dell-r750", "timing": {"post": "3"}}', "timing.post must be seconds"),
        ('{"extends": "dell-r750", "timing": {"pots": 3}}', "timing.pots is not one of"),
        ('{"extends": "dell-r750", "ids": {"system": 1}}', "ids.system must be a string"),
        ('{"extends": "dell-r750", "vendor": 1}', "vendor must be a string"),
        ('{"system": {}, "bios": {}}', "lacks"),
        ('{"system": {}, "bios": {"registry_file": "none.json"}}', "cannot be read"),
        ('{"extends": "%s"}', "extends itself"),
    ],
)
def test_a_broken_profile_file_is_refused_in_one_sentence(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "broken.json"
    path.write_text(text.replace("%s", str(path)))
    with pytest.raises(profile.ProfileError, match=reason):
        profile.load(str(path))
