"""Sensors and event log over Redfish: the same form from classic and modern resources, from every vendor's place for its log."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import (
    bmc_redfish,
    bmc_redfish_log,
    bmc_sensor_measurements,
    bmc_sensors,
    redfish_connection,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.redfish_client import RedfishClient
from hypothesis import given
from hypothesis import strategies as st

from lab.bmc.testing import RunningBmc, running
from tests.unit.redfish_support import login

PROFILES = [
    *("ieit-nf8260g7", "ieit-nf5280m6", "dell-r750", "hpe-dl380a-gen11", "lenovo-sr670v2", "supermicro-821ge"),
    "supermicro-gb300",
]
Json = dict[str, Any]


class Canned(RedfishClient):
    """A client that answers from a dictionary of documents, and counts what it was asked."""

    def __init__(self, documents: dict[str, Any]) -> None:
        super().__init__(redfish_connection.ConnectionOptions("https://bmc.example", "admin"))
        self.documents = documents
        self.root = documents.get("/redfish/v1", {})
        self.asked: list[str] = []

    def get(self, uri: str) -> Json:
        self.asked.append(uri)
        found = self.documents.get(uri.rstrip("/"))
        if not isinstance(found, dict):
            raise redfish_connection.RedfishError(f"{uri} is not there", 404)
        return found


def at(uri: str) -> Json:
    return {"@odata.id": uri}


def observe(bmc: RunningBmc, maximum: int = 500) -> Json:
    with login(bmc) as client:
        return bmc_redfish.observe(client, "", maximum)


def by_label(facts: Json) -> dict[str, Json]:
    return {one["label"]: one for one in facts["sensors"]}


@pytest.mark.parametrize("profile", PROFILES)
def test_every_vendor_s_sensors_come_in_the_same_form(profile):
    with running(profile) as bmc:
        bmc.inject("log_entry", severity="Warning", message="Correctable ECC", sensor_number=7)
        facts = observe(bmc)
    sensors = by_label(facts)
    assert facts["sensors_error"] == facts["log_error"] == ""
    assert len(sensors) == len(facts["sensors"]) == 18
    inlet = sensors["Inlet_Temp"]
    assert 20 < inlet["reading_celsius"] < 26
    assert inlet["thresholds_celsius"] == {
        "lower_fatal": None,
        "lower_critical": 3,
        "lower_warning": None,
        "upper_warning": 40,
        "upper_critical": 45,
        "upper_fatal": None,
    }
    assert (sensors["GPU1_Temp"]["state"], sensors["GPU1_Temp"]["reading_celsius"]) == ("absent", None)
    assert sensors["FAN0_Speed"]["reading_revolutions_per_minute"] > 5000
    assert sensors["FAN0_Speed"]["thresholds_revolutions_per_minute"]["lower_critical"] == 500
    assert sensors["SYS_12V"]["reading_volts"] > 11
    assert (sensors["PSU0"]["kind"], sensors["PSU0"]["health"]) == ("power_supply", "ok")
    assert sensors["PSU0"]["reading_watts"] > 200
    assert sum(one["kind"] == "redundancy" for one in sensors.values()) == 1
    [entry] = facts["log"]
    assert (entry["severity"], entry["sensor"], entry["message"]) == ("warning", "Memory #7", "Correctable ECC")
    assert entry["time"].endswith("Z")
    assert facts["log_service"]["entries"] == 1


def test_redfish_and_ipmitool_give_the_same_fields():
    with running() as bmc:
        over_redfish = by_label(observe(bmc))["Inlet_Temp"]
    in_band = bmc_sensors.sensor("Inlet_Temp", "temperature", "celsius", 23, source="ipmitool")
    assert set(over_redfish) == set(in_band)
    assert set(over_redfish["thresholds_celsius"]) == set(in_band["thresholds_celsius"])


@pytest.mark.parametrize("profile", ["dell-r750", "supermicro-gb300"])
def test_faults_are_all_found_and_named(profile):
    with running(profile) as bmc:
        assert causes(observe(bmc)) == {}
        bmc.inject("sensor_reading", sensor="CPU0_Temp", reading=97)
        bmc.inject("sensor_reading", sensor="FAN2_Speed", reading=0)
        bmc.inject("sensor_reading", sensor="SYS_12V", reading=10.1)
        bmc.inject("sensor_dead", sensor="PCH_Temp")
        bmc.inject("power_supply_lost", index=1)
        bmc.inject("log_entry", message="Power Supply AC lost", sensor_type="Power Supply", sensor_number=81)
        found = causes(observe(bmc))
        assert "CPU0_Temp 97 °C (critical from 95 on)" in found["temperatures"]
        assert "FAN2_Speed 0 RPM (critical from 500 down)" in found["fans"]
        assert "SYS_12V 10.1 V (critical from 10.8 down)" in found["voltages and currents"]
        assert "PCH_Temp is enabled and has no reading" in found["sensor_dead"]
        assert "PSU1 UnavailableOffline, Critical" in found["power supplies"]
        assert "Power Supply #81: Power Supply AC lost" in found["log_critical_entries"]
        bmc.clear_faults()
        bmc.inject(
            "log_entry", message="Power Supply AC lost", sensor_type="Power Supply", sensor_number=81, code="Deassert"
        )
        recovered = causes(observe(bmc))
        assert list(recovered) == ["log_recovered_entries"]


def causes(facts: Json) -> dict[str, str]:
    """What the measurements complain of; the margin, which always names the closest sensor, left out."""
    found = bmc_sensor_measurements.sensor_measurements(facts, curl="curl -u admin https://bmc.example")
    return {
        one["scope"] if one["name"] == "sensor_critical" else one["name"]: one["cause"]
        for one in found
        if one.get("cause") and one["name"] != "sensor_temperature_margin"
    }


def test_without_power_nothing_is_dead():
    with running() as bmc:
        bmc.inject("sensor_dead", sensor="PCH_Temp")
        bmc.call(lambda: bmc.service.power.request("ForceOff"))
        bmc.settle()
        facts = observe(bmc)
    assert facts["power_state"] == "off"
    assert by_label(facts)["CPU0_Temp"]["state"] == "unavailable"
    assert causes(facts) == {}


@pytest.mark.parametrize("profile", ["dell-r750", "supermicro-821ge", "lenovo-sr670v2", "ieit-nf8260g7"])
def test_the_newest_entries_come_from_every_kind_of_paging(profile):
    with running(profile) as bmc:
        for number in range(1, 131):
            stamp = f"2026-11-01T00:{number // 60:02d}:{number % 60:02d}Z"
            bmc.inject("log_entry", severity="OK", message=f"event {number}", created=stamp)
        few, all_of_them = observe(bmc, 20), observe(bmc, 500)
    assert [one["message"] for one in few["log"]] == [f"event {number}" for number in range(111, 131)]
    assert [one["message"] for one in all_of_them["log"]] == [f"event {number}" for number in range(1, 131)]
    assert few["log_service"]["entries"] == 130
    assert few["notes"] == []


def entry(number: int, **more: Any) -> Json:
    stamp = f"2026-11-01T{number // 3600:02d}:{number // 60 % 60:02d}:{number % 60:02d}Z"
    return {"Id": str(number), "Created": stamp, "Message": f"event {number}", "Severity": "OK", **more}


def bmc_with_log(pages: dict[str, Json], service: Json | None = None) -> Canned:
    described = {"Id": "SEL", "LogEntryType": "SEL", "Entries": at("/e"), **(service or {})}
    documents = {
        "/redfish/v1": {"Systems": at("/s")},
        "/s": {"Members": [at("/s/1")]},
        "/s/1": {"LogServices": at("/l"), "Links": {}},
        "/l": {"Members": [at("/l/1")]},
        "/l/1": described,
    }
    return Canned({**documents, **pages})


def read(client: Canned, maximum: int = 10) -> Json:
    return bmc_redfish_log.read_log(client, client.documents["/s/1"], [], maximum)


def test_a_long_log_is_entered_near_its_end_where_the_pages_are_numbered():
    def page(skip: int) -> Json:
        more = {"Members@odata.nextLink": f"/e?$skip={skip + 50}"} if skip + 50 < 3000 else {}
        shown = [entry(number) for number in range(skip, min(skip + 50, 3000))]
        return {"Members": shown, "Members@odata.count": 3000, **more}

    client = bmc_with_log({"/e": page(0), **{f"/e?$skip={skip}": page(skip) for skip in (50, 2990)}})
    assert [one["id"] for one in read(client)["log"]] == [str(number) for number in range(2990, 3000)]
    assert [uri for uri in client.asked if uri.startswith("/e")] == ["/e", "/e?$skip=2990"]


def test_pages_that_turn_in_a_circle_or_fail_half_way_end_with_what_there_is():
    circle = {"Members": [entry(1)], "Members@odata.nextLink": "/e"}
    assert [one["id"] for one in read(bmc_with_log({"/e": circle}))["log"]] == ["1"]

    class Failing(Canned):
        def get(self, uri: str) -> Json:
            if uri == "/e/2":
                raise redfish_connection.RedfishError("busy", 503)
            return super().get(uri)

    client = Failing(bmc_with_log({"/e": {"Members": [entry(1)], "Members@odata.nextLink": "/e/2"}}).documents)
    found = read(client)
    assert [one["id"] for one in found["log"]] == ["1"]
    assert "its newest entries may be missing" in found["notes"][0]


def test_the_sel_is_chosen_among_the_logs_and_read_once():
    client = Canned(
        {
            "/redfish/v1": {"Managers": at("/m")},
            "/m": {"Members": [at("/m/1")]},
            "/m/1": {"LogServices": at("/ml"), "DateTime": "2026-11-30T10:00:00Z"},
            "/ml": {"Members": [at("/ml/Lclog"), at("/ml/Sel"), at("/ml/AuditLog")]},
            "/ml/Lclog": {"Id": "Lclog", "Entries": at("/lc")},
            "/ml/Sel": {
                "Id": "Sel",
                "Entries": at("/e"),
                "MaxNumberOfRecords": 100,
                "OverWritePolicy": "NeverOverWrites",
            },
            "/ml/AuditLog": {"Id": "AuditLog", "Entries": at("/a")},
            "/s/1": {"LogServices": at("/sl"), "Links": {"ManagedBy": [at("/m/1")]}},
            "/sl": {"Members": [at("/ml/Sel/"), at("/sl/PostCodes")]},
            "/sl/PostCodes": {"Id": "PostCodes", "Entries": at("/p")},
            "/e": {"Members": [entry(number) for number in range(95)], "Members@odata.count": 95},
        }
    )
    found = read(client)
    assert [uri for uri in client.asked if uri in ("/lc", "/a", "/p", "/e")] == ["/e"]
    assert found["log_service"] == {
        "name": "Sel",
        "entries": 95,
        "used_fraction": 0.95,
        "time": "2026-11-30T10:00:00Z",
        "uri": "/e",
    }


def test_no_log_at_all_is_said():
    client = Canned({"/s/1": {}, "/redfish/v1": {}})
    assert read(client)["log_error"].startswith("the BMC serves no system event log")


def test_what_vendors_add_to_an_entry():
    repaired = entry(1, Severity="Critical", Message="Uncorrectable Memory Error", Oem={"Hpe": {"Repaired": True}})
    origin = entry(2, Links={"OriginOfCondition": at("/redfish/v1/Chassis/1/Power")}, Severity="Critical")
    later = entry(3, EventTimestamp="2026-11-02T00:00:00+08:00", MessageId="X.1.0.Y", Severity="weird")
    found = read(bmc_with_log({"/e": {"Members": [repaired, origin, later]}}))["log"]
    assert (found[0]["severity"], found[0]["resolved"]) == ("critical", True)
    assert found[1]["sensor"] == "Power"
    assert (found[2]["time"], found[2]["message_id"], found[2]["severity"]) == ("2026-11-01T16:00:00Z", "X.1.0.Y", "ok")


MODERN: dict[str, Any] = {
    "/redfish/v1": {"Systems": at("/s"), "Chassis": at("/c")},
    "/s": {"Members": [at("/s/1")]},
    "/s/1": {"Id": "1", "PowerState": "On", "Links": {"Chassis": [at("/c/1")]}},
    "/c": {"Members": [at("/c/1"), at("/c/gpu")]},
    "/c/1": {
        "@odata.id": "/c/1",
        "Id": "Chassis_0",
        "Sensors": at("/c/1/s"),
        "ThermalSubsystem": at("/c/1/t"),
        "PowerSubsystem": at("/c/1/p"),
        "EnvironmentMetrics": at("/c/1/e"),
        "Links": {"Contains": [at("/c/gpu"), at("/c/1")]},
    },
    "/c/1/s": {"Members": [at("/c/1/s/fan")]},
    "/c/1/s/fan": {
        "@odata.id": "/c/1/s/fan",
        "Name": "Fan 1",
        "ReadingType": "Rotational",
        "Reading": 0,
        "ReadingUnits": "RPM",
    },
    "/c/1/t": {"Fans": at("/c/1/t/f"), "FanRedundancy": [{"Status": {"State": "Enabled", "Health": "Warning"}}]},
    "/c/1/t/f": {"Members": [at("/c/1/t/f/1"), at("/c/1/t/f/2"), at("/c/1/t/f/3")]},
    "/c/1/t/f/1": {
        "@odata.id": "/c/1/t/f/1",
        "Name": "Fan 1",
        "SpeedPercent": {"Reading": 0, "DataSourceUri": "/c/1/s/fan"},
        "Status": {"State": "Enabled", "Health": "Critical"},
    },
    "/c/1/t/f/2": {"@odata.id": "/c/1/t/f/2", "Name": "Fan 2", "SpeedPercent": {"Reading": 45, "SpeedRPM": 2200}},
    "/c/1/t/f/3": {"@odata.id": "/c/1/t/f/3", "Name": "Fan 3", "Status": {"State": "Enabled", "Health": "OK"}},
    "/c/1/p": {"PowerSupplies": at("/c/1/p/s")},
    "/c/1/p/s": {"Members": [at("/c/1/p/s/1")]},
    "/c/1/p/s/1": {
        "Name": "PSU 1",
        "LineInputStatus": "LossOfInput",
        "Metrics": at("/c/1/p/s/1/m"),
        "Status": {"Health": "OK"},
    },
    "/c/1/p/s/1/m": {"InputPowerWatts": {"Reading": 374}},
    "/c/1/e": {"@odata.id": "/c/1/e", "PowerWatts": {"Reading": 6438}},
    "/c/gpu": {"Id": "GPU_0", "Sensors": at("/c/gpu/s")},
    "/c/gpu/s": {"Members": [at("/c/gpu/s/t")]},
    "/c/gpu/s/t": {
        "@odata.id": "/c/gpu/s/t",
        "Name": "Fan 1",
        "ReadingUnits": "Cel",
        "Reading": 41.5,
        "Thresholds": {"UpperCritical": {"Reading": 92}, "UpperFatal": {"Reading": None}},
        "Status": {"State": "Enabled", "Health": None},
    },
}


def test_modern_resources_are_put_together_and_no_sensor_comes_twice():
    facts = bmc_redfish.observe(Canned(MODERN), "", 10)
    sensors = by_label(facts)
    assert len(facts["sensors"]) == 7
    # The fan's own resource knows that it is broken; its sensor only that it stands still.
    assert sensors["Fan 1 (Chassis_0)"]["health"] == "critical"
    assert sensors["Fan 1 (Chassis_0)"]["reading_revolutions_per_minute"] == 0
    assert sensors["Fan 1 (GPU_0)"]["reading_celsius"] == 41.5
    assert sensors["Fan 1 (GPU_0)"]["thresholds_celsius"]["upper_critical"] == 92
    assert sensors["Fan 2"]["reading_revolutions_per_minute"] == 2200
    assert (sensors["Fan 3"]["state"], sensors["Fan 3"]["reading_percent"]) == ("enabled", None)
    assert (sensors["PSU 1"]["health"], sensors["PSU 1"]["reading_watts"]) == ("critical", 374)
    assert sensors["Fan redundancy"]["health"] == "warning"
    assert sensors["Chassis power"]["reading_watts"] == 6438


def test_where_a_bmc_has_several_systems_only_the_chassis_of_this_one_count():
    documents = copy.deepcopy(MODERN)
    documents["/s"]["Members"].append(at("/s/2"))
    documents["/c/1"]["Links"] = {}
    facts = bmc_redfish.observe(Canned(documents), "1", 10)
    assert "GPU_0" not in {one["context"] for one in facts["sensors"]}


def test_a_part_that_the_bmc_refuses_leaves_the_other():
    with running() as bmc:
        bmc.inject("log_entry")
        bmc.inject("http_error", status=500, path="/Thermal$")
        facts = observe(bmc)
        assert "500" in facts["sensors_error"]
        assert facts["log"]
        bmc.clear_faults()
        bmc.inject("http_error", status=500, path="/LogServices")
        facts = observe(bmc)
    assert facts["sensors"]
    assert "500" in facts["log_error"]


NAMES = st.sampled_from(["@odata.id", "Status", "Reading", "x"])
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.just(at("/c/1")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)


@st.composite
def spoilt(draw: st.DrawFn) -> dict[str, Any]:
    """The documents of a BMC with values of the wrong type in a few places."""
    documents = copy.deepcopy({**MODERN, **bmc_with_log({"/e": {"Members": [entry(1)]}}).documents, "/s": MODERN["/s"]})
    documents["/redfish/v1"] = MODERN["/redfish/v1"]
    documents["/s/1"] = {**MODERN["/s/1"], "LogServices": at("/l")}
    documents["/c/1"]["Thermal"] = at("/th")
    documents["/th"] = {
        "Temperatures": [{"Name": "T", "ReadingCelsius": 4, "Status": {"State": "Enabled"}}],
        "Fans": [{"Reading": 1}],
    }
    for _ in range(draw(st.integers(1, 6))):
        document = documents[draw(st.sampled_from(sorted(documents)))]
        if not isinstance(document, dict):
            continue
        place = draw(st.sampled_from(sorted(document) or ["x"]))
        if draw(st.booleans()) and isinstance(document.get(place), dict) and document[place]:
            document = document[place]
            place = draw(st.sampled_from(sorted(document)))
        document[place] = draw(ANY)
    return documents


@given(spoilt())
def test_documents_of_wrong_types_never_raise_but_one_sentence(documents):
    try:
        facts = bmc_redfish.observe(Canned(documents), "", 10)
    except redfish_connection.RedfishError:
        return  # one sentence for people, as "lists no computer system"
    for one in bmc_sensor_measurements.sensor_measurements(facts, curl="curl -u admin https://bmc.example"):
        assert one["name"]
    assert len({one["label"] for one in facts["sensors"]}) == len(facts["sensors"])
