"""The simulator's sensors and event log under faults, and the places where its profiles keep them."""

from __future__ import annotations

from typing import Any

import pytest

from lab.bmc import profile
from lab.bmc.testing import running
from tests.unit.bmc_client import Client


def inject(client: Client, **fault: Any) -> Any:
    return client.post("/lab/faults", fault)


def test_a_dead_sensor_is_enabled_and_silent_in_every_view_until_the_fault_ends():
    with running() as bmc:
        client = Client(bmc)
        base = bmc.service.paths.chassis
        fault = inject(client, kind="sensor_dead", sensor="FAN1_Speed").json()
        sensor = client.json(f"{base}/Sensors/FAN1_Speed")
        assert (sensor["Reading"], sensor["Status"]) == (None, {"State": "Enabled", "Health": None})
        assert client.json(f"{base}/Thermal")["Fans"][1]["Reading"] is None
        assert client.request("DELETE", f"/lab/faults/{fault['id']}").status_code == 204
        assert client.json(f"{base}/Sensors/FAN1_Speed")["Reading"] > 5000


def test_a_sensor_can_be_too_warm_and_the_chassis_says_so():
    with running() as bmc:
        client = Client(bmc)
        base = bmc.service.paths.chassis
        inject(client, kind="sensor_reading", sensor="CPU0_Temp", reading=97.5)
        sensor = client.json(f"{base}/Sensors/CPU0_Temp")
        assert (sensor["Reading"], sensor["Status"]["Health"]) == (97.5, "Critical")
        assert client.json(base)["Status"]["HealthRollup"] == "Critical"
        # One that is absent may read something all the same, as a card that was plugged in.
        inject(client, kind="sensor_reading", sensor="GPU1_Temp", reading=40)
        assert client.json(f"{base}/Sensors/GPU1_Temp")["Status"] == {"State": "Enabled", "Health": "OK"}


def test_a_power_supply_can_lose_its_line():
    with running() as bmc:
        client = Client(bmc)
        base = bmc.service.paths.chassis
        assert client.json(f"{base}/Power")["Redundancy"][0]["Status"]["Health"] == "OK"
        inject(client, kind="power_supply_lost", index=0)
        power = client.json(f"{base}/Power")
        lost, other = power["PowerSupplies"]
        assert (lost["LineInputVoltage"], lost["PowerInputWatts"], lost["Status"]["Health"]) == (0, 0, "Critical")
        assert other["LastPowerOutputWatts"] == pytest.approx(power["PowerControl"][0]["PowerConsumedWatts"], abs=1)
        assert power["Redundancy"][0]["Status"]["Health"] == "Critical"
        assert client.json(base)["Status"]["Health"] == "Critical"


@pytest.mark.parametrize(
    ("fault", "at_fault"),
    [
        ({"kind": "sensor_dead", "sensor": "FAN9_Speed"}, "/sensor"),
        ({"kind": "sensor_reading"}, "/sensor"),
        ({"kind": "sensor_reading", "sensor": "CPU0_Temp", "reading": "hot"}, "/reading"),
        ({"kind": "power_supply_lost", "index": 2}, "/index"),
        ({"kind": "power_supply_lost", "index": -1}, "/index"),
        ({"kind": "log_entry", "severity": "Terrible"}, "/severity"),
    ],
)
def test_a_fault_of_a_part_that_is_not_there_is_refused_and_not_kept(fault, at_fault):
    with running() as bmc:
        client = Client(bmc)
        response = client.post("/lab/faults", fault)
        assert response.status_code == 400
        assert response.json()["error"]["@Message.ExtendedInfo"][0]["RelatedProperties"] == [at_fault]
        assert client.json("/lab/faults")["faults"] == []


def test_an_entry_can_be_written_to_the_log():
    with running() as bmc:
        client = Client(bmc)
        inject(client, kind="log_entry", created="2026-11-01T00:00:00Z", sensor_number=136)
        uri = f"{client.system}/LogServices/SEL/Entries"
        [entry] = client.json(uri)["Members"]
        assert (entry["Severity"], entry["SensorType"], entry["SensorNumber"]) == ("Critical", "Memory", 136)
        assert (entry["EntryCode"], entry["Created"]) == ("Assert", "2026-11-01T00:00:00Z")
        assert client.json(f"{uri}/1") == {**entry, "@odata.etag": client.json(f"{uri}/1")["@odata.etag"]}


@pytest.mark.parametrize(
    ("name", "owner", "identity"),
    [
        ("ieit-nf8260g7", "system", "SEL"),
        ("dell-r750", "manager", "Sel"),
        ("hpe-dl380a-gen11", "system", "IML"),
        ("supermicro-821ge", "system", "Log1"),
        ("supermicro-gb300", "system", "EventLog"),
        ("lenovo-sr670v2", "system", "PlatformLog"),
    ],
)
def test_each_vendor_keeps_its_log_in_its_own_place(name, owner, identity):
    with running(name) as bmc:
        client = Client(bmc)
        paths = bmc.service.paths
        places = {"system": paths.system, "manager": paths.manager}
        listed = client.json(f"{places[owner]}/LogServices")["Members"]
        assert [one["@odata.id"].rstrip("/").rsplit("/", 1)[-1] for one in listed] == [identity]
        other = client.json(places["manager" if owner == "system" else "system"])
        assert ("LogServices" in other) is (identity == "SEL")


def test_pages_lead_to_each_other_and_a_page_that_is_none_is_missing():
    with running("dell-r750") as bmc:
        client = Client(bmc)
        for number in range(120):
            inject(client, kind="log_entry", severity="OK", message=f"event {number}")
        uri: str | None = f"{bmc.service.paths.manager}/LogServices/Sel/Entries"
        seen, pages = [], 0
        while uri:
            page = client.json(uri)
            seen += [one["Message"] for one in page["Members"]]
            assert page["Members@odata.count"] == 120
            uri, pages = page.get("Members@odata.nextLink"), pages + 1
        assert (len(seen), len(set(seen)), pages) == (120, 120, 3)
        assert client.get(f"{bmc.service.paths.manager}/LogServices/Sel/Entries/after/x").status_code == 404
        assert client.get(f"{bmc.service.paths.manager}/LogServices/Sel/Entries/999").status_code == 404


def test_a_modern_chassis_has_subsystems_that_agree_with_its_sensors_and_no_classic_resources():
    with running("supermicro-gb300") as bmc:
        client = Client(bmc)
        base = bmc.service.paths.chassis
        chassis = client.json(base)
        assert not {"Power", "Thermal"} & set(chassis)
        assert client.get(f"{base}/Thermal").status_code == 404
        bmc.service.sensors.forced.update(FAN0_Speed=6000, Total_Power=700)
        thermal = client.json(chassis["ThermalSubsystem"]["@odata.id"])
        fans = client.json(thermal["Fans"]["@odata.id"])["Members"]
        fan = client.json(fans[0]["@odata.id"])
        assert fan["SpeedPercent"]["SpeedRPM"] == client.json(fan["SpeedPercent"]["DataSourceUri"])["Reading"] == 6000
        assert len(client.json(thermal["ThermalMetrics"]["@odata.id"])["TemperatureReadingsCelsius"]) == 8
        environment = client.json(chassis["EnvironmentMetrics"]["@odata.id"])
        assert environment["PowerWatts"]["Reading"] == 700
        power = client.json(chassis["PowerSubsystem"]["@odata.id"])
        supplies = [
            client.json(one["@odata.id"]) for one in client.json(power["PowerSupplies"]["@odata.id"])["Members"]
        ]
        assert [one["LineInputStatus"] for one in supplies] == ["Normal", "Normal"]
        assert client.json(supplies[0]["Metrics"]["@odata.id"])["OutputPowerWatts"]["Reading"] == 350
        inject(client, kind="power_supply_lost", index=1)
        assert client.json(supplies[1]["@odata.id"])["LineInputStatus"] == "LossOfInput"
        assert client.json(power["@odata.id"])["PowerSupplyRedundancy"][0]["Status"]["Health"] == "Critical"
        assert client.json(supplies[0]["Metrics"]["@odata.id"])["OutputPowerWatts"]["Reading"] == 700


@pytest.mark.parametrize("name", profile.available())
def test_every_link_of_a_chassis_and_its_logs_leads_somewhere(name):
    with running(name) as bmc:
        client = Client(bmc)
        paths = bmc.service.paths
        todo, seen = [paths.chassis, f"{paths.system}", f"{paths.manager}"], set()
        while todo:
            uri = todo.pop().rstrip("/")
            if uri in seen or "#" in uri:
                continue
            seen.add(uri)
            body = client.json(uri)
            assert body["@odata.id"].rstrip("/") == uri
            if any(part in uri for part in (paths.chassis, "LogServices")):
                todo += list(links(body))
            else:
                todo += list(links(body.get("LogServices", {})))


def links(body: Any) -> Any:
    """Every `@odata.id` and `DataSourceUri` in a document."""
    if isinstance(body, dict):
        for key, value in body.items():
            if key in ("@odata.id", "DataSourceUri") and isinstance(value, str):
                yield value
            elif key != "Actions":
                yield from links(value)
    elif isinstance(body, list):
        for one in body:
            yield from links(one)
