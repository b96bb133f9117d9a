"""One screen of what a machine is: the captured 8-GPU machine, four sockets, a container with nothing, and facts of any shape."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.machine_facts import HGX, checks_of, facts_of, util, write_file, write_tree

GBS = 1e9


def screen_of(facts: dict[str, Any], measurements: list[dict[str, Any]], width: int = 100) -> list[str]:
    machine = util("machine").describe(facts["node"], facts["pcie"], facts["dimm"], facts["bmc"], facts.get("sensors"))
    view = util("screen").screen(machine, checks_of(measurements))
    return util("screen").lines(view, "node17", "OK", width)


def copies(address: str, name: str, value: float) -> dict[str, Any]:
    return {
        "name": name,
        "scope": f"gpu {address}, 1 GiB chunks",
        "value": value,
        "unit": "B/s",
        "limit": 63.0 * GBS,
        "samples": [value] * 5,
        "limit_source": "32 GT/s x 16 lanes x 128/130 / 8",
    }


def memory(scope: str, value: float, limit: float | None, name: str = "host_memory_bandwidth") -> dict[str, Any]:
    return {"name": name, "scope": scope, "value": value, "unit": "B/s", "limit": limit, "samples": [value] * 5}


@pytest.fixture(scope="module")
def hgx(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    root = write_tree(tmp_path_factory.mktemp("hgx"), pci=HGX, smbios="csit_sm_spr_dmidecode_memory.txt")
    write_file(root, "/proc/driver/nvidia/gpus/0000:19:00.0/information", "Model: \t\t NVIDIA H100 80GB HBM3\n")
    for bus in ("3b", "4c", "5d", "9b", "bb", "cb", "db"):
        write_file(root, f"/proc/driver/nvidia/gpus/0000:{bus}:00.0/information", "Model: NVIDIA H100 80GB HBM3\n")
    return facts_of(root)


def measured(facts: dict[str, Any]) -> list[dict[str, Any]]:
    gpus = [device["address"] for device in facts["pcie"]["devices"] if device["kind"] == "gpu"]
    found = [
        memory("node", 468.1 * GBS, 614.4 * GBS),
        memory("node", 512.0 * GBS, 614.4 * GBS, "host_memory_read_bandwidth"),
        memory("numa0", 234.0 * GBS, 307.2 * GBS),
        memory("numa1", 235.0 * GBS, 307.2 * GBS),
        {"name": "storage_read_bandwidth", "scope": "/opt/plumbline/models", "value": 12.4 * GBS, "unit": "B/s"},
        {"name": "collective_bus_bandwidth", "scope": "all_reduce over 8 ranks (nccl), 1 GiB", "value": 370 * GBS,
         "unit": "B/s"},
    ]  # fmt: skip
    for gpu in gpus:
        found += [copies(gpu, "gpu_h2d_bandwidth", 55.1 * GBS), copies(gpu, "gpu_d2h_bandwidth", 55.4 * GBS)]
    return found


def test_the_eight_gpu_machine_fits_on_one_screen(hgx: Any) -> None:
    facts, found = hgx
    text = screen_of(facts, found + measured(facts))
    assert len(text) <= 40
    assert max(map(len, text)) <= 100
    whole = "\n".join(text)
    assert text[0] == "node17: Supermicro SYS-821GE-TNHR [OK]"
    for told in (
        "CPU        2 x Intel(R) Xeon(R) Platinum 8480C; 112 cores, 224 threads, 2 NUMA nodes",
        "Memory     16 x 32 GiB DDR5, 4800 MT/s as rated; 16 of 16 slots; kernel sees 512 GiB",
        "Channels   8 of 8 on each socket; limit 614.4 GB/s = 2 sockets x 8 channels x 4800 MT/s x 8 B",
        "Measured   triad 468.1 GB/s (76 % of limit), read 512.0 GB/s (83 %)",
        "8 x NVIDIA H100 80GB HBM3 [10de:2330], driver nvidia; no narrower hop above",
        "8 x NIC [15b3:0001]",
        "16:00.0: GPU 19:00.0, 3 NIC, 1 NVMe",
        "Sensors    not read: bmc_host is not set",
        "Errors     memory not counted; PCIe 0 uncorrected, 0 corrected since boot",
    ):
        assert told in whole
    rows = [line for line in text if "55.1 (87 %)" in line]
    assert len(rows) == 8
    assert " ".join(rows[0].split()) == "19:00.0 0 28 32 GT/s x16 32 GT/s x16 55.1 (87 %) 55.4 (88 %)"
    # Columns of figures end in the same column, whatever their length.
    assert len({len(row) for row in rows}) == 1
    numa = next(index for index, line in enumerate(text) if line.strip().startswith("NUMA  CPUs"))
    assert "0-55,112-167" in text[numa + 1]
    assert "234.0 (76 %)" in text[numa + 1]


def test_it_fits_into_eighty_columns_too(hgx: Any) -> None:
    facts, found = hgx
    text = screen_of(facts, found + measured(facts), 80)
    assert max(len(line) for line in text if "next:" not in line) <= 80
    assert sum("55.1 (87 %)" in line for line in text) == 8


def test_what_is_wrong_comes_worst_first_with_its_cause_and_the_next_command(tmp_path: Path) -> None:
    facts, found = facts_of(write_tree(tmp_path, smbios="dell_24slot_8populated_2666of3200.txt"))
    text = screen_of(facts, [*found, memory("node", 100 * GBS, 170.6 * GBS)])
    whole = "\n".join(text)
    assert "Channels   4 of 6 (3, 6 empty) on each socket; limit 170.6 GB/s" in whole
    assert "8 x 32 GiB DDR4, rated 3200, runs 2666 MT/s; 8 of 24 slots" in whole
    wrong = text[text.index("What is wrong, worst first") :]
    statuses = [line.split()[0] for line in wrong if line.startswith(("  CRITICAL", "  UNKNOWN", "  WARN"))]
    assert statuses == sorted(statuses, key=["CRITICAL", "UNKNOWN", "WARN"].index)
    assert {"CRITICAL", "WARN"} <= set(statuses)
    assert any(
        "cause: socket 0: 4 of 6 channels populated (3, 6 empty): limit 85.3 of 128.0 GB/s" in line for line in wrong
    )
    assert any("next:  dmidecode -t memory" in line for line in wrong)


def test_a_narrower_hop_above_a_gpu_is_shown_with_what_it_can_do(hgx: Any) -> None:
    facts, found = hgx
    facts = json.loads(json.dumps(facts))
    hop = next(link for link in facts["pcie"]["links"] if link["device"] == "0000:16:00.0")
    gpu = next(device for device in facts["pcie"]["devices"] if device["address"] == "0000:19:00.0")
    hop["max_width"], gpu["limit_hop"] = 8, "0000:16:00.0"
    text = screen_of(facts, found)
    assert any("19:00.0" in line and "16:00.0 32 GT/s x8" in line for line in text)
    assert any("3b:00.0" in line and "own link" in line for line in text)
    assert "no narrower hop" not in "\n".join(text)


def test_an_idle_link_is_called_idle_and_a_dead_device_dead(hgx: Any) -> None:
    facts, _found = hgx
    facts = json.loads(json.dumps(facts))
    link = next(link for link in facts["pcie"]["links"] if link["device"] == "0000:19:00.0")
    link["speed_gts"] = 2.5
    facts["pcie"]["devices"] = [
        {**device, "responsive": device["address"] != "0000:3b:00.0"} for device in facts["pcie"]["devices"]
    ]
    skipped = {"name": "pcie_link_speed", "scope": "0000:19:00.0", "skipped": "GPU 0000:19:00.0 is idle at 2.5 GT/s"}
    whole = "\n".join(screen_of(facts, [skipped]))
    assert "2.5 GT/s x16 idle" in whole
    assert "no answer" in whole


def test_four_sockets(tmp_path: Path) -> None:
    root = write_tree(tmp_path, sockets=4, cores=24, smbios="csit_sm_icx_dmidecode_memory.txt")
    facts, found = facts_of(root)
    one = facts["dimm"]["sockets"][0]
    facts["dimm"]["sockets"] = [{**one, "socket": number} for number in range(4)]
    facts["dimm"]["sockets"][3] = {**one, "socket": 3, "channels_populated": 6, "empty_channels": ["C", "G"]}
    text = screen_of(facts, [*found, *(memory(f"numa{node}", 160 * GBS, 204.8 * GBS) for node in range(4))])
    whole = "\n".join(text)
    assert "CPU        4 x Intel(R) Xeon(R) Platinum 8480C; 96 cores, 192 threads, 4 NUMA nodes" in whole
    assert "socket 0: 8 of 8, socket 1: 8 of 8, socket 2: 8 of 8, socket 3: 6 of 8 (C, G empty)" in " ".join(
        whole.split()
    )
    assert sum("160.0 (78 %)" in line for line in text) == 4
    assert len(text) <= 40


def test_a_container_with_nothing_says_what_is_not_known_and_never_zero(tmp_path: Path) -> None:
    facts, found = facts_of(tmp_path)
    text = screen_of(facts, found)
    whole = "\n".join(text)
    assert text[0] == "node17: maker and product not known [OK]"
    assert "BIOS       not known" in whole
    assert "? x model not known; ? cores, ? threads" in whole
    assert "kernel sees ?; DIMMs not known: there is no SMBIOS table" in " ".join(whole.split())
    assert "memory not counted; PCIe not counted" in whole
    assert "Not measured or not judged, and why" in whole
    assert " 0 " not in whole


def test_sensors_of_both_forms(tmp_path: Path) -> None:
    facts, found = facts_of(tmp_path)
    redfish = [
        {"name": "CPU1 Temp", "kind": "temperature", "unit": "Cel", "value": 61, "upper_critical": 95, "health": "OK"},
        {"name": "GPU3 Temp", "kind": "temperature", "unit": "Cel", "value": 70, "upper_critical": 87, "health": "OK"},
        {"name": "System Power Control", "kind": "power", "unit": "W", "value": 2310, "health": "OK"},
        {"name": "PSU1 Input", "kind": "power", "unit": "W", "value": 1155, "health": "OK"},
        {"name": "PSU2 Input", "kind": "power", "unit": "W", "value": 0, "health": "Critical"},
        {"name": "FAN7", "kind": "fan", "unit": "RPM", "value": None, "health": ""},
        {"name": "Slot 9 Temp", "kind": "temperature", "unit": "Cel", "value": None, "state": "Absent"},
    ]
    facts["bmc"] = {"available": True, "sensors": redfish, "system": {"bmc": {"firmware_version": "1.35"}}}
    whole = " ".join("\n".join(screen_of(facts, found)).split())
    assert "nearest to its limit GPU3 Temp 70 °C of 87; power 2,310 W; power supplies: 1 OK, PSU 2 not OK" in whole
    assert "not well: PSU2 Input; 1 of 6 sensors without a reading" in whole
    assert "BMC 1.35" in whole
    in_band = [
        {"name": "Temp", "label": "Temp (3.1)", "kind": "temperature", "unit": "celsius", "reading_celsius": 47.0,
         "thresholds_celsius": {"upper_critical": 92.0}, "state": "enabled", "health": "ok"},
        {"name": "PS1 Status", "label": "PS1 Status", "kind": "discrete", "unit": "", "text": "Presence detected",
         "state": "enabled", "health": "ok"},
        {"name": "Fan1", "label": "Fan1", "kind": "fan", "unit": "revolutions_per_minute",
         "reading_revolutions_per_minute": None, "state": "dead", "health": "unknown"},
    ]  # fmt: skip
    facts["sensors"] = {"available": True, "sensors": in_band}
    whole = " ".join("\n".join(screen_of(facts, found)).split())
    assert (
        "nearest to its limit Temp (3.1) 47 °C of 92; power not told; power supplies: 1 OK; 1 of 2 sensors without"
        in whole
    )


def test_a_power_of_no_watts_is_told_apart_from_an_unknown_one() -> None:
    summary = util("machine_sensors").sensor_summary
    zero = {"sensors": [{"name": "Total Power", "kind": "power", "value": 0}]}
    silent = {"sensors": [{"name": "Total Power", "kind": "power", "value": None}]}
    assert summary({}, zero)["power_watts"] == 0
    assert summary({}, silent)["power_watts"] is None


def test_the_record_is_of_the_documented_shape(hgx: Any, tmp_path: Path, checkout: Path) -> None:
    schema = json.loads((checkout / "docs/evidence.schema.json").read_text())
    validator = jsonschema.Draft202012Validator(schema)
    for facts in (hgx[0], facts_of(tmp_path)[0], dict.fromkeys(("node", "pcie", "dimm", "bmc"))):
        machine = util("machine").describe(*(facts[key] for key in ("node", "pcie", "dimm", "bmc")))
        head = util("evidence").envelope("machine", run="r", host="h", stage="survey", task="t", check_mode=False)
        validator.validate(json.loads(json.dumps({**head, "machine": machine}, allow_nan=False)))
    with pytest.raises(jsonschema.ValidationError):
        validator.validate({**head, "machine": {"system": {}}})


def test_one_line_of_a_machine(hgx: Any) -> None:
    facts, found = hgx
    machine = util("machine").describe(facts["node"], facts["pcie"], facts["dimm"])
    line = util("screen").one_line(machine, checks_of(found + measured(facts)))
    assert line == (
        "Supermicro SYS-821GE-TNHR; 2 x Intel(R) Xeon(R) Platinum 8480C; 512 GiB; 8 x NVIDIA H100 80GB HBM3; "
        "memory 468.1 (76 %) GB/s"
    )
    assert util("screen").one_line({}) == "maker and product not known; ? x CPU not known; memory not known; no GPU"


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def spoil(data: st.DataObject, value: Any) -> Any:
    """Return a copy of facts in which some values are missing, null or of any other kind."""
    how = data.draw(st.integers(0, 20))
    if how == 0:
        return data.draw(ANY)
    if how == 1:
        return None
    if isinstance(value, dict):
        return {key: spoil(data, item) for key, item in value.items() if data.draw(st.integers(0, 15))}
    if isinstance(value, list):
        return [spoil(data, item) for item in value[:4]]
    return value


@given(data=st.data())
def test_facts_of_any_shape_give_a_screen_and_never_a_traceback(hgx: Any, data: st.DataObject) -> None:
    facts, found = hgx
    spoilt = {key: spoil(data, value) for key, value in facts.items()}
    machine = util("machine").describe(*(spoilt.get(key) for key in ("node", "pcie", "dimm", "bmc")), data.draw(ANY))
    json.dumps(machine, allow_nan=False)
    judged = [spoil(data, check) for check in checks_of(found)[:3]]
    for document in (machine, spoil(data, machine), data.draw(ANY)):
        view = util("screen").screen(document, judged)
        text = util("screen").lines(view, "node17", width=data.draw(st.integers(0, 300)))
        assert text[0].startswith("node17: ")
        assert all(line.isprintable() or not line for line in text)
        util("screen").one_line(document, judged)


@given(machine=ANY, checks=ANY, sensors=ANY)
def test_nothing_that_was_ever_written_breaks_it(machine: Any, checks: Any, sensors: Any) -> None:
    util("screen").lines(util("screen").screen(machine, checks), "h")
    util("machine").describe(machine, checks, sensors, {"available": True, "sensors": sensors}, sensors)
