"""What a BMC knows of its machine, in one form for all vendors; what it does not know is None, never a guess."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import redfish_inventory as inventory

from lab.bmc.testing import running
from tests.unit.redfish_support import login

PROFILES = [
    "ieit-nf8260g7",
    "ieit-nf5280m6",
    "dell-r750",
    "hpe-dl380a-gen11",
    "lenovo-sr670v2",
    "supermicro-821ge",
    "supermicro-gb300",
]


@pytest.mark.parametrize("profile", PROFILES)
def test_every_vendor_s_machine_is_known_in_the_same_form(profile: str) -> None:
    with running(profile) as bmc, login(bmc) as client:
        system = client.system()
        summary = inventory.system_summary(client, system)
        assert summary["manufacturer"]
        assert summary["power_state"] == "On"
        assert summary["bios_version"]
        assert summary["bmc"]["firmware_version"]
        modules = inventory.memory_modules(client, system)
        present = [module for module in modules if module["present"]]
        # The GB300's memory is soldered on, and its BMC lists no modules.
        assert bool(present) is (profile != "supermicro-gb300")
        for module in present:
            assert module["capacity_bytes"] >= 2**30
            assert module["capacity_bytes"] % 2**30 == 0
            assert module["rated_mts"] is None or module["configured_mts"] <= module["rated_mts"]
        for device in inventory.pcie_devices(client, system):
            assert device["name"]
            assert device["lanes"] is None or device["lanes"] <= device["max_lanes"]
        components = {item["id"]: item["version"] for item in inventory.firmware_components(client, system)}
        assert summary["bios_version"] in components.values()
        assert summary["bmc"]["firmware_version"] in components.values()


class Canned:
    """A client that answers from a dictionary of documents."""

    def __init__(self, documents: dict[str, dict[str, Any]]) -> None:
        self.documents = documents
        self.root = documents["/redfish/v1/"]

    def get_optional(self, uri: str | None) -> dict[str, Any]:
        return self.documents.get(uri or "", {})

    def members(self, uri: str | None) -> list[dict[str, Any]]:
        listed = self.get_optional(uri).get("Members", [])
        return [self.documents[member["@odata.id"]] for member in listed]


def at(uri: str) -> dict[str, str]:
    return {"@odata.id": uri}


def test_dell_s_earlier_and_waiting_images_are_not_what_runs() -> None:
    ids = ["Installed-159-1.13.2", "Previous-159-1.9.2", "Available-159-1.14.1"]
    documents: dict[str, Any] = {f"/f/{name}": {"Id": name, "Name": "BIOS", "Version": name[-6:]} for name in ids}
    documents["/f"] = {"Members": [at(f"/f/{name}") for name in ids]}
    documents["/u"] = {"FirmwareInventory": at("/f")}
    documents["/redfish/v1/"] = {"UpdateService": at("/u")}
    found = inventory.firmware_components(Canned(documents), {"BiosVersion": "1.13.2"})  # type: ignore[arg-type]
    assert [(item["id"], item["version"]) for item in found] == [("Installed-159-1.13.2", "1.13.2")]


def test_bios_and_bmc_are_taken_from_their_own_resources_where_the_inventory_lacks_them() -> None:
    documents: dict[str, Any] = {
        "/redfish/v1/": {"Managers": at("/m")},
        "/m": {"Members": [at("/m/1")]},
        "/m/1": {"Id": "1", "FirmwareVersion": "iLO 6 v1.58"},
    }
    found = inventory.firmware_components(Canned(documents), {"BiosVersion": "U58 v2.60"})  # type: ignore[arg-type]
    assert {item["id"]: item["version"] for item in found} == {"BIOS": "U58 v2.60", "BMC": "iLO 6 v1.58"}


def test_unknown_figures_are_none_and_an_empty_slot_is_not_present() -> None:
    documents: dict[str, Any] = {
        "/redfish/v1/": {},
        "/d": {"Members": [at("/d/1"), at("/d/2")]},
        "/d/1": {"Id": "1", "Status": {"State": "Absent"}},
        "/d/2": {"Id": "2", "CapacityMiB": 32768, "AllowedSpeedsMHz": [2933, 3200], "OperatingSpeedMhz": 2933},
    }
    empty, full = inventory.memory_modules(Canned(documents), {"Memory": at("/d")})  # type: ignore[arg-type]
    assert (empty["present"], empty["capacity_bytes"], empty["rated_mts"]) == (False, None, None)
    assert (full["present"], full["capacity_bytes"], full["rated_mts"], full["configured_mts"]) == (
        True,
        32 * 2**30,
        3200,
        2933,
    )
