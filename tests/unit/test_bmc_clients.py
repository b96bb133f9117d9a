"""The simulator under clients that nobody here wrote: sushy, DMTF's redfish library, community.general's modules."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redfish
import sushy
import yaml
from sushy.resources import settings

from lab.bmc import profile
from lab.bmc.firmware import build_image
from lab.bmc.testing import RunningBmc, running
from tests.unit.bmc_client import Client

# One change that needs no other, per profile.
CHANGES: dict[str, dict[str, Any]] = {
    "ieit-nf8260g7": {"PowerProfile": "CUSTOM", "C6Enable": "Disabled"},
    "ieit-nf5280m6": {"PowerProfile": "Custom", "C6En": "Disabled"},
    "dell-r750": {"SysProfile": "Custom", "ProcCStates": "Disabled"},
    "hpe-dl380a-gen11": {"WorkloadProfile": "Custom", "UncoreFreqScaling": "Auto"},
    "lenovo-sr670v2": {"OperatingModes_ChooseOperatingMode": "CustomMode", "Processors_CStates": "Disabled"},
    "supermicro-821ge": {"PowerTechnology_FF77": "Custom", "CPUC6Report_3D22": "Disable"},
    "supermicro-gb300": {"SR_IOVSupport": "Enabled", "ActiveCores": 72},
}


def test_every_profile_with_standard_bodies_is_covered() -> None:
    assert {*CHANGES, "ieit-nf8260g7-strict"} == set(profile.available())


def sushy_root(bmc: RunningBmc) -> sushy.Sushy:
    auth = sushy.auth.SessionAuth(bmc.username, bmc.password)
    return sushy.Sushy(bmc.base_url, verify=bmc.ca_file, auth=auth)


@pytest.mark.parametrize("name", CHANGES)
def test_sushy_stages_resets_and_reads_back(name: str) -> None:
    with running(name) as bmc:
        system = sushy_root(bmc).get_system_collection().get_members()[0]
        bios = system.bios
        assert bios.update_status.status == settings.NO_UPDATES
        before = dict(bios.attributes)
        apply_time = sushy.ApplyTime.ON_RESET if name == "dell-r750" else None
        bios.set_attributes(CHANGES[name], apply_time=apply_time)
        pending = bios.pending_attributes
        assert {key: pending[key] for key in CHANGES[name]} == CHANGES[name]
        bios.refresh()
        assert bios.attributes == before
        system.reset_system(sushy.RESET_FORCE_RESTART)
        bmc.settle()
        bios.refresh()
        assert {key: bios.attributes[key] for key in CHANGES[name]} == CHANGES[name]
        assert bios.update_status.status == settings.UPDATE_SUCCESS
        if name != "supermicro-gb300":
            registry = bios.get_attribute_registry()
            listed = {one.name for one in registry.registry_entries.attributes}
            assert set(CHANGES[name]) <= listed


def test_sushy_reads_messages_inventory_and_power() -> None:
    with running() as bmc:
        root = sushy_root(bmc)
        system = root.get_system("/redfish/v1/Systems/1")
        with pytest.raises(sushy.exceptions.BadRequestError, match="must be CUSTOM"):
            system.bios.set_attribute("C6Enable", "Disabled")
        assert system.memory_summary.size_gib == 512
        assert system.power_state == sushy.PowerState.ON
        system.reset_system(sushy.ResetType.FORCE_OFF)
        bmc.settle()
        system.refresh()
        assert system.power_state == sushy.PowerState.OFF
        assert system.boot_progress.last_state == sushy.BootProgressStates.NONE
        chassis = root.get_chassis("/redfish/v1/Chassis/1")
        assert {one.name for one in chassis.thermal.temperatures} >= {"Inlet_Temp", "CPU0_Temp"}
        assert root.get_manager("/redfish/v1/Managers/1").manager_type == sushy.ManagerType.BMC
        inventory = root.get_update_service().firmware_inventory.get_members()
        assert {one.identity for one in inventory} >= {"BIOS", "BMC"}


def test_sushy_logs_in_again_when_its_session_is_lost() -> None:
    with running() as bmc:
        root = sushy_root(bmc)
        assert bmc.truth()["sessions"] == 1
        bmc.inject("session_loss")
        assert root.get_system("/redfish/v1/Systems/1").identity == "1"
        assert bmc.truth()["sessions"] == 1


def test_sushy_sees_a_setting_that_did_not_take() -> None:
    with running() as bmc:
        system = sushy_root(bmc).get_system("/redfish/v1/Systems/1")
        system.bios.set_attribute("WorkLdConfig", "IO_SENSITIVE")
        bmc.inject("setting_ignored", silent=False)
        bmc.reset()
        system.bios.refresh()
        status = system.bios.update_status
        assert status.status == settings.UPDATE_FAILURE
        assert "WorkLdConfig" in status.messages[0].message


@pytest.fixture
def dmtf() -> Iterator[tuple[RunningBmc, Any]]:
    with running() as bmc:
        client = redfish.redfish_client(
            base_url=bmc.base_url, username=bmc.username, password=bmc.password, cafile=bmc.ca_file, max_retry=2
        )
        client.login(auth="session")
        yield bmc, client
        client.logout()


def test_the_dmtf_client_logs_in_stages_resets_and_logs_out(dmtf: tuple[RunningBmc, Any]) -> None:
    bmc, client = dmtf
    assert client.root["Vendor"] == "IEIT"
    uri = "/redfish/v1/Systems/1/Bios/Settings"
    etag = client.get(uri).getheader("ETag")
    body = {"Attributes": CHANGES["ieit-nf8260g7"]}
    assert client.patch(uri, body=body, headers={"If-Match": etag}).status == 200
    assert client.patch(uri, body=body, headers={"If-Match": etag}).status == 412
    action = "/redfish/v1/Systems/1/Actions/ComputerSystem.Reset"
    assert client.post(action, body={"ResetType": "GracefulRestart"}).status == 204
    bmc.settle()
    assert client.get("/redfish/v1/Systems/1/Bios").dict["Attributes"]["C6Enable"] == "Disabled"
    refused = client.patch(uri, body={"Attributes": {"Bogus": 1}})
    assert redfish.messages.get_messages_detail(refused)["@Message.ExtendedInfo"][0]["MessageId"].endswith(
        "PropertyUnknown"
    )
    assert bmc.truth()["sessions"] == 1
    client.logout()
    assert bmc.truth()["sessions"] == 0


def test_the_dmtf_client_follows_an_update_task(dmtf: tuple[RunningBmc, Any]) -> None:
    bmc, client = dmtf
    parts = [
        ("UpdateParameters", (None, json.dumps({"Targets": []}), "application/json")),
        ("UpdateFile", ("image.bin", build_image("BIOS", "05.12.00"), "application/octet-stream")),
    ]
    response = client.post(
        "/redfish/v1/UpdateService/upload", body=parts, headers={"Content-Type": "multipart/form-data"}
    )
    assert response.status == 202
    assert response.is_processing
    for _ in range(2000):
        if client.get(response.task_location).dict["TaskState"] == "Pending":
            break
    bmc.reset()
    assert response.monitor(client).dict["TaskState"] == "Completed"


def connection(bmc: RunningBmc) -> dict[str, Any]:
    return {
        "baseuri": bmc.base_url.removeprefix("https://"),
        "username": bmc.username,
        "password": bmc.password,
        "validate_certs": True,
        "ca_path": bmc.ca_file,
        "timeout": 30,
    }


def task(module: str, register: str, **options: Any) -> dict[str, Any]:
    return {"name": f"Call {module}", f"community.general.{module}": options, "register": register}


def play(tmp_path: Path, tasks: list[dict[str, Any]]) -> dict[str, Any]:
    """Run tasks on localhost and return their results by register name."""
    output = tmp_path / "results.json"
    names = [one["register"] for one in tasks]
    shown = "{{ {" + ", ".join(f"'{name}': {name}" for name in names) + "} | to_json }}"
    keep = {"name": "Keep", "ansible.builtin.copy": {"content": shown, "dest": str(output), "mode": "0600"}}
    book = tmp_path / "play.yml"
    book.write_text(yaml.safe_dump([{"hosts": "localhost", "gather_facts": False, "tasks": [*tasks, keep]}]))
    environment = {**os.environ, "ANSIBLE_LOCALHOST_WARNING": "false", "ANSIBLE_CONFIG": str(tmp_path / "none.cfg")}
    (tmp_path / "none.cfg").write_text("[defaults]\nlocalhost_warning = false\n")
    command = [sys.executable, "-m", "ansible", "playbook", "-i", "localhost,", "-c", "local"]
    command += ["-e", f"ansible_python_interpreter={sys.executable}", str(book)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    results: dict[str, Any] = json.loads(output.read_text())
    return results


def test_community_general_reads_stages_and_resets(tmp_path: Path) -> None:
    with running() as bmc:
        common = connection(bmc)
        wish = {"bios_attributes": {**CHANGES["ieit-nf8260g7"], "Misspelt": "x"}, **common}
        results = play(
            tmp_path,
            [
                task("redfish_info", "systems", category="Systems", command="all", **common),
                task(
                    "redfish_info",
                    "chassis",
                    category="Chassis",
                    command=["GetFanInventory", "GetChassisThermals", "GetChassisPower", "GetPsuInventory"],
                    **common,
                ),
                task("redfish_info", "update", category="Update", command="all", **common),
                task(
                    "redfish_info", "manager", category="Manager", command=["GetManagerInventory", "GetLogs"], **common
                ),
                task("redfish_config", "first", category="Systems", command="SetBiosAttributes", **wish),
                task("redfish_command", "restart", category="Systems", command="PowerForceRestart", **common),
            ],
        )
        bmc.settle()
        facts = results["systems"]["redfish_facts"]
        for section in ("system", "cpu", "memory", "nic", "bios_attribute", "boot_override"):
            assert facts[section]["ret"] is True, (section, facts[section])
        assert len(facts["memory"]["entries"][0][1]) == 16
        for section in ("fan", "thermals", "chassis_power"):
            assert results["chassis"]["redfish_facts"][section]["ret"] is True
        versions = {one["Id"]: one["Version"] for one in results["update"]["redfish_facts"]["firmware"]["entries"]}
        assert versions["BIOS"] == "05.10.00"
        assert results["manager"]["redfish_facts"]["manager"]["ret"] is True
        assert results["first"]["changed"] is True
        assert bmc.active["C6Enable"] == "Disabled"
        assert bmc.pending == {}
        assert bmc.truth()["resets"] == 1


def test_community_general_verifies_and_updates(tmp_path: Path) -> None:
    image = tmp_path / "bios.img"
    image.write_bytes(build_image("BIOS", "05.12.00"))
    with running("dell-r750") as bmc:
        common = connection(bmc)
        client = Client(bmc)
        wish = {"SriovGlobalEnable": "Enabled"}
        results = play(
            tmp_path,
            [
                task(
                    "redfish_config",
                    "dell",
                    category="Systems",
                    command="SetBiosAttributes",
                    bios_attributes=wish,
                    **common,
                ),
                task(
                    "redfish_command",
                    "push",
                    category="Update",
                    command="MultipartHTTPPushUpdate",
                    update_image_file=str(image),
                    **common,
                ),
                task("redfish_info", "registry", category="Systems", command="GetBiosRegistries", **common),
                task("redfish_command", "restart", category="Systems", command="PowerGracefulRestart", **common),
            ],
        )
        truth = bmc.settle()
        assert results["dell"]["changed"] is True  # it sends the apply time to Dell, so there was a job
        assert truth["active"]["SriovGlobalEnable"] == "Enabled"
        assert client.json(results["push"]["return_values"]["update_status"]["handle"])["TaskState"] == "Completed"
        assert truth["firmware"]["BIOS"] == "05.12.00"
        assert truth["resets"] == 1
        registry = results["registry"]["redfish_facts"]["bios_registries"]["bios_registry"]
        assert "ProcCStates" in {one["AttributeName"] for one in registry["RegistryEntries"]["Attributes"]}
