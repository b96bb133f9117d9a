"""The stage firmware as a user runs it: ansible-playbook against the simulator, with the one restart and the read-back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.bmc.testing import RunningBmc, running
from tests.unit.firmware_support import image_file
from tests.unit.test_redfish_playbooks import Site


@pytest.fixture
def bmc() -> Iterator[RunningBmc]:
    with running() as simulator:
        yield simulator


@pytest.fixture
def site(bmc: RunningBmc, tmp_path: Path) -> Site:
    return Site(tmp_path, bmc)


def wanted(tmp_path: Path) -> dict[str, Any]:
    """Floors for BIOS and BMC above what the machine comes with, and a pin, each with its image."""
    return {
        "firmware_floors": {"BIOS": "05.12.00", "BMC": "1.40.00"},
        "firmware_pins": {"CPLD": "1.1"},
        "firmware_images": [
            image_file(tmp_path, "BIOS", "05.12.00"),
            image_file(tmp_path, "BMC", "1.40.00"),
            image_file(tmp_path, "CPLD", "1.1"),
        ],
    }


def test_firmware_is_predicted_staged_once_and_judged_after_the_restart(site: Site, tmp_path: Path) -> None:
    variables = wanted(tmp_path)
    predicted = site.run("firmware", "restart", options=("--check", "--diff"), **variables)
    assert (predicted.status, predicted.changed()) == (0, 1), predicted.output
    assert "+BIOS: installed 05.10.00, staged 05.12.00, wanted at least 05.12.00" in predicted.output
    assert "+BMC: installed 1.40.00, staged none, wanted at least 1.40.00" in predicted.output
    truth = site.bmc.truth()
    assert (truth["firmware"]["BIOS"], truth["firmware"]["BMC"], truth["resets"]) == ("05.10.00", "1.35.05", 0)
    assert site.bmc.service.tasks.ids() == []

    staged = site.run("firmware", **variables)
    assert (staged.status, staged.changed()) == (0, 1), staged.output
    assert ("firmware_version", "BMC", "OK") in staged.checks("firmware")
    assert ("firmware_version", "BIOS", "SKIPPED") in staged.checks("firmware")
    assert ("firmware_pin", "CPLD", "SKIPPED") in staged.checks("firmware")
    again = site.run("firmware", **variables)
    assert (again.status, again.changed()) == (0, 0), again.output
    assert len(site.bmc.service.tasks.ids()) == 3

    refused = site.run("firmware", "restart", restart_allowed=False, **variables)
    assert refused.status != 0
    assert "since firmware staged changes that only a restart of node1 (power cycle)" in refused.output
    assert site.bmc.truth()["resets"] == 0


def test_bios_settings_firmware_and_a_kernel_take_exactly_one_restart(site: Site, tmp_path: Path) -> None:
    variables = {
        **wanted(tmp_path),
        "bios_logical": {"c_states": "disabled"},
        "bios_unlock": True,
        # As the kernel stage leaves it; nothing on this machine is changed.
        "kernel_restart_required": "reboot",
        "restart_allowed": True,
        "restart_timeout_seconds": 30,
    }
    run = site.run("firmware", "bios", "restart", **variables)
    assert run.status == 0, run.output
    record = next(entry for entry in run.evidence if entry.get("name") == "restart_duration")
    assert record["status"] == "OK"
    assert record["conditions"] == {"method": "power_cycle", "because": "firmware, bios, kernel"}
    truth = site.bmc.truth()
    assert truth["resets"] == 1
    assert (truth["firmware"]["BIOS"], truth["firmware"]["CPLD"]) == ("05.12.00", "1.1")
    assert truth["active"]["C6Enable"] == "Disabled"
    assert truth["pending"] == {}

    del variables["kernel_restart_required"]
    converged = site.run("firmware", "bios", "restart", **variables)
    assert (converged.status, converged.changed()) == (0, 0), converged.output
    assert site.bmc.truth()["resets"] == 1


def verified(site: Site, variables: dict[str, Any]) -> Any:
    """Run the read-back of this stage alone, as playbooks/verify.yml does it."""
    return site.run("verify", options=("--tags", "verify"), **variables)


def test_an_update_that_did_not_take_fails_verify_with_its_cause(site: Site, tmp_path: Path) -> None:
    variables = {"firmware_floors": {"BIOS": "05.12.00"}, "firmware_images": [image_file(tmp_path, "BIOS", "05.12.00")]}
    site.run("firmware", **variables)
    waiting = verified(site, variables)
    assert waiting.status != 0
    assert ("firmware_pending_updates", "firmware", "CRITICAL") in waiting.checks("firmware")
    assert "is still staged, the restart did not make it active" in str(waiting.evidence)
    site.bmc.inject("update_rolled_back")
    site.bmc.reset()
    back = verified(site, variables)
    assert back.status != 0
    assert ("firmware_version", "BIOS", "CRITICAL") in back.checks("firmware")
    assert "the BMC says: Image 05.12.00 could not be activated" in str(back.evidence)
    assert "site.yml --tags firmware,restart,verify" in str(back.evidence)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sha256": "0" * 64}, ["has the SHA-256", "expected " + "0" * 64, "download it again"]),
        ({"file": "/nowhere"}, ["/nowhere", "cannot be read on the controller"]),
        ({"component": "BOIS"}, ['no component "BOIS" (did you mean "BIOS"?)']),
        ({"version": 5.12}, ["firmware_images[0].version", "put it in quotes"]),
        ({"sha512": "x"}, ["sha512"]),
    ],
)
def test_a_wrong_image_is_one_sentence_and_changes_nothing(
    site: Site, tmp_path: Path, change: dict[str, Any], words: list[str]
) -> None:
    entry = {**image_file(tmp_path, "BIOS", "05.12.00"), **change}
    run = site.run("firmware", firmware_floors={"BIOS": "05.12.00"}, firmware_images=[entry])
    assert run.status != 0
    for word in words:
        assert word in run.output
    assert site.bmc.service.tasks.ids() == []


def test_an_old_component_without_an_image_stops_the_host_before_any_is_touched(site: Site, tmp_path: Path) -> None:
    variables = wanted(tmp_path)
    variables["firmware_floors"]["NIC1"] = "22.45.1000"
    run = site.run("firmware", **variables)
    assert run.status != 0
    assert ("firmware_version", "NIC1", "CRITICAL") in run.checks("firmware")
    assert site.bmc.truth()["firmware"]["BMC"] == "1.35.05"
    assert site.bmc.service.tasks.ids() == []
