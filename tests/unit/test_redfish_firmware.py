"""Firmware updates against the simulator: every way to send an image on every vendor's profile, and what goes wrong."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.firmware_images import (
    FirmwareError,
    parse_images,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.gates import judge_all
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.redfish_connection import RedfishError
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.redfish_upload import UploadBody, multipart

from lab.bmc import profile
from lab.bmc.testing import RunningBmc, running
from tests.unit.firmware_support import FETCH_ONLY, MACHINES, fetched, image_file, image_server, request, stage, verify

RULES = {
    "firmware_version": {"kind": "version_at_least"},
    "firmware_pin": {"kind": "equals"},
    "firmware_pending_updates": {"kind": "equals"},
}


@pytest.fixture
def bmc() -> Iterator[RunningBmc]:
    with running() as simulator:
        yield simulator


def judged(result: dict[str, Any]) -> dict[str, str]:
    return {f"{check.name} {check.scope}": check.status for check in judge_all(result["measurements"], RULES)}


def causes(result: dict[str, Any]) -> str:
    return " | ".join(
        f"{one.get('cause', '')}{one.get('error', '')}{one.get('skipped', '')}" for one in result["measurements"]
    )


def test_every_profile_is_covered() -> None:
    assert set(MACHINES) == set(profile.available())


@pytest.mark.parametrize("name", MACHINES)
def test_bios_and_bmc_are_updated_with_one_restart_on_every_machine(name: str, tmp_path: Path) -> None:
    bios, bios_version, controller, bmc_version = MACHINES[name]
    entries = [image_file(tmp_path, bios, bios_version), image_file(tmp_path, controller, bmc_version)]
    with running(name) as bmc, image_server(tmp_path) as server:
        if name in FETCH_ONLY:
            entries = [fetched(entry, server) for entry in entries]
        before = bmc.truth()["firmware"]
        wanted = request(entries)
        predicted = stage(bmc, request(entries, check_mode=True))
        assert predicted["changed"]
        assert [update["kind"] for update in predicted["updates"]] == ["bmc", "bios"]
        assert bmc.truth()["firmware"] == before
        assert stage(bmc, request(entries, check_mode=True)) == predicted, "a dry run changes nothing"

        staged = stage(bmc, wanted)
        assert staged["changed"]
        assert staged["restart_required"] == "power_cycle"
        assert [(update["kind"], update["state"]) for update in staged["updates"]] == [
            ("bmc", "active"),
            ("bios", "staged"),
        ]
        assert staged["diff"] == predicted["diff"]
        truth = bmc.truth()
        assert truth["firmware"][controller] == bmc_version
        assert truth["firmware"][bios] == before[bios], "the BIOS waits for the restart"
        assert truth["resets"] == 0

        again = stage(bmc, wanted)
        assert not again["changed"]
        assert again["restart_required"] == "power_cycle"
        early = verify(bmc, wanted)
        assert judged(early)[f"firmware_version {bios}"] == "CRITICAL"
        assert "is still staged" in causes(early)

        truth = bmc.reset()
        assert truth["resets"] == 1
        assert truth["firmware"][bios] == bios_version
        assert set(judged(verify(bmc, wanted)).values()) == {"OK"}
        converged = stage(bmc, wanted)
        assert (converged["changed"], converged["restart_required"], converged["updates"]) == (False, "none", [])
        assert bmc.truth()["sessions"] == 0


@pytest.mark.parametrize("name", [name for name in MACHINES if name not in FETCH_ONLY])
@pytest.mark.parametrize("way", ["multipart", "push", "simple"])
def test_every_way_that_a_machine_offers_stages_a_bios(name: str, way: str, tmp_path: Path) -> None:
    bios, version, _, _ = MACHINES[name]
    entry = image_file(tmp_path, bios, version)
    with running(name) as bmc, image_server(tmp_path) as server:
        entry = fetched(entry, server) if way == "simple" else entry
        offered = way in bmc.service.updates.policy.methods
        wanted = request([entry], pinned=True, transfer=way)
        if not offered:
            with pytest.raises(RedfishError, match=r"offers multipart, simple|offers push, simple"):
                stage(bmc, wanted)
            assert bmc.service.tasks.ids() == []
            return
        result = stage(bmc, wanted)
        assert result["updates"][0]["method"] == way
        assert bmc.reset()["firmware"][bios] == version
        assert set(judged(verify(bmc, wanted)).values()) == {"OK"}


def test_a_service_that_takes_no_upload_says_what_to_give_instead(tmp_path: Path) -> None:
    bios, version, _, _ = MACHINES["hpe-dl380a-gen11"]
    with (
        running("hpe-dl380a-gen11") as bmc,
        pytest.raises(RedfishError, match=r"offers simple: give uri, on a web server"),
    ):
        stage(bmc, request([image_file(tmp_path, bios, version)]))


def test_one_image_goes_to_all_components_that_need_it_and_to_no_other(bmc: RunningBmc, tmp_path: Path) -> None:
    entry = {**image_file(tmp_path, "NIC1", "22.45.1000"), "component": "NIC*"}
    result = stage(bmc, request([entry], floors={"NIC*": "22.42.0", "CPLD": "0.9"}))
    assert [update["components"] for update in result["updates"]] == [["NIC1"]]
    assert judged(result) == {"firmware_version NIC1": "SKIPPED", "firmware_version CPLD": "OK"}
    assert bmc.reset()["firmware"]["NIC1"] == "22.45.1000"


def test_a_floor_that_is_met_needs_no_image_and_reads_no_file(bmc: RunningBmc) -> None:
    entry = {"component": "BIOS", "version": "05.12.00", "file": "/nowhere", "sha256": "0" * 64}
    result = stage(bmc, request([entry], floors={"BIOS": "05.10.00"}))
    assert (result["changed"], result["updates"]) == (False, [])


def test_one_component_that_cannot_get_there_stops_all_of_them(bmc: RunningBmc, tmp_path: Path) -> None:
    entry = image_file(tmp_path, "BIOS", "05.12.00")
    result = stage(bmc, request([entry], floors={"BIOS": "05.12.00", "CPLD": "1.0", "NIC9": "1"}))
    assert not result["changed"]
    assert judged(result) == {
        "firmware_version BIOS": "SKIPPED",
        "firmware_version CPLD": "CRITICAL",
        "firmware_version NIC9": "UNKNOWN",
    }
    assert "was not begun" in causes(result)
    assert bmc.service.tasks.ids() == []


def test_a_pin_goes_back_only_where_that_is_allowed(bmc: RunningBmc, tmp_path: Path) -> None:
    entry = image_file(tmp_path, "BIOS", "05.08.00")
    refused = stage(bmc, request([entry], pinned=True))
    assert judged(refused) == {"firmware_pin BIOS": "CRITICAL"}
    assert "newer than the pin 05.08.00, and firmware_allow_downgrade is false" in causes(refused)
    assert bmc.service.tasks.ids() == []
    allowed = request([entry], pinned=True, allow_downgrade=True)
    assert stage(bmc, allowed)["changed"]
    assert bmc.reset()["firmware"]["BIOS"] == "05.08.00"
    assert judged(verify(bmc, allowed)) == {"firmware_pin BIOS": "OK", "firmware_pending_updates firmware": "OK"}


def test_a_machine_that_refuses_to_go_back_is_quoted(tmp_path: Path) -> None:
    entry = image_file(tmp_path, "BIOS", "05.08.00")
    with (
        running(profile_overrides={"update": {"downgrade": "refused"}}) as bmc,
        pytest.raises(RedfishError, match=r"going back to 05\.08\.00 is not allowed"),
    ):
        stage(bmc, request([entry], pinned=True, allow_downgrade=True))


@pytest.mark.parametrize("times", [["Immediate"], ["InMaintenanceWindowOnReset", "Immediate"]])
def test_a_host_is_never_restarted_by_an_update_unless_that_is_allowed(times: list[str], tmp_path: Path) -> None:
    entry = image_file(tmp_path, "BIOS", "05.12.00")
    with running(profile_overrides={"update": {"apply_times": times}}) as bmc:
        if times == ["Immediate"]:
            with pytest.raises(RedfishError, match="set firmware_immediate_allowed to true"):
                stage(bmc, request([entry]))
            assert bmc.service.tasks.ids() == []
            stage(bmc, request([entry], allow_immediate=True))
            assert bmc.settle()["firmware"]["BIOS"] == "05.12.00"
        else:
            stage(bmc, request([entry]))
            assert bmc.settle()["resets"] == 0


# ---------------------------------------------------------------------- bad input: nothing is touched


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"component": "BIOZ"}, 'no component "BIOZ" (did you mean "BIOS"?)'),
        ({"version": 5.12}, "version should be a quoted text"),
        ({"sha256": "abc"}, "should be 64 hexadecimal digits, found abc"),
        ({"sha256": "0" * 64}, "it is damaged, truncated or another one"),
        ({"file": "/nowhere/bios.img"}, "cannot be read on the controller (No such file or directory)"),
        ({"file": "/dev/zero"}, "cannot be read on the controller (it is no regular file)"),
        ({"file": "/"}, "cannot be read on the controller (Is a directory)"),
        ({"uri": "https://images.example/x"}, "exactly one of file"),
        ({"file": "", "uri": "http://[::1/x", "sha256": ""}, "uri should be like https://"),
        ({"file": "", "uri": "ftp://images.example/x", "sha256": ""}, "uri should be like https://"),
        ({"file": "", "uri": "https://me:secret@images.example/x", "sha256": ""}, "must hold no password"),
        ({"file": "", "uri": "https://images.example/x"}, "sha256 cannot be checked"),
        ({"version": "05.11.00"}, "below the floor 05.12.00"),
        ({"kind": "fpga"}, "kind should be one of"),
    ],
)
def test_a_wrong_image_entry_is_one_sentence_and_changes_nothing(
    bmc: RunningBmc, tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    entry = {**image_file(tmp_path, "BIOS", "05.12.00"), **change}
    with pytest.raises(FirmwareError) as caught:
        stage(bmc, request([entry], floors={"BIOS": "05.12.00"}))
    assert words in str(caught.value)
    assert "secret" not in str(caught.value)
    assert bmc.service.tasks.ids() == []


def test_blanks_around_a_checksum_do_not_count_and_entries_are_numbered_as_preflight_does(tmp_path: Path) -> None:
    entry = image_file(tmp_path, "BIOS", "05.12.00")
    image = parse_images([{**entry, "sha256": f" {entry['sha256'].upper()}\n"}])[0]
    assert image.sha256 == entry["sha256"]
    with pytest.raises(FirmwareError, match=r"firmware_images\[1\] \(BMC\): exactly one of file"):
        parse_images([entry, {"component": "BMC", "version": "1"}])


def test_wishes_that_contradict_each_other_are_refused(bmc: RunningBmc, tmp_path: Path) -> None:
    entry = image_file(tmp_path, "BIOS", "05.12.00")
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"pins": {"BIOS": "05.09.00"}}, "below the floor 05.12.00"),
        ({"floors": {}, "pins": {"BIOS": "05.13.00"}}, "not the pin 05.13.00"),
        ({"floors": {"CPLD": "0.9"}}, "of which neither firmware_floors nor firmware_pins asks for anything"),
        ({"images": [entry, entry]}, "names BIOS twice"),
        ({"images": [entry, {**entry, "component": "BIO*"}]}, "two images for BIOS"),
        ({"floors": {"BIOS": 5.12}}, "should be a quoted text"),
    )
    for changes, words in cases:
        images = changes.pop("images", [entry])
        wanted = request(images, **{"floors": {"BIOS": "05.12.00"}, **changes})
        with pytest.raises(FirmwareError, match=words):
            stage(bmc, wanted)
    assert bmc.service.tasks.ids() == []


def test_all_files_are_checked_before_the_first_is_sent(bmc: RunningBmc, tmp_path: Path) -> None:
    good, bad = image_file(tmp_path, "BMC", "1.40.00"), image_file(tmp_path, "BIOS", "05.12.00")
    path = Path(bad["file"])
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(FirmwareError, match="truncated"):
        stage(bmc, request([good, bad]))
    assert bmc.truth()["firmware"]["BMC"] == "1.35.05"


# ---------------------------------------------------------------------- what goes wrong at the BMC


def test_an_image_for_another_component_or_version_fails_and_names_the_reason(bmc: RunningBmc, tmp_path: Path) -> None:
    entry = {**image_file(tmp_path, "FPGA", "9"), "component": "BIOS", "version": "05.12.00"}
    with pytest.raises(
        RedfishError, match=r"ended the update of BIOS to 05\.12\.00 with Exception: The image is for FPGA"
    ):
        stage(bmc, request([entry]))
    other = {**image_file(tmp_path, "BIOS", "05.11.00"), "version": "05.12.00"}
    wanted = request([other])
    stage(bmc, wanted)
    bmc.reset()
    after = verify(bmc, wanted)
    assert judged(after)["firmware_version BIOS"] == "CRITICAL"
    assert "runs 05.11.00, older than the floor 05.12.00" in causes(after)


def test_a_failed_update_is_quoted_and_what_came_before_it_is_said(bmc: RunningBmc, tmp_path: Path) -> None:
    entries = [image_file(tmp_path, "BMC", "1.40.00"), image_file(tmp_path, "BIOS", "05.12.00")]
    stage(bmc, request(entries[:1]))
    bmc.inject("update_fails", message="Flash erase timed out.")
    with pytest.raises(RedfishError, match="with Exception: Flash erase timed out") as caught:
        stage(bmc, request(entries))
    assert "Done before" not in str(caught.value)
    wanted = request(entries)
    assert "failed; the BMC says: Flash erase timed out. (task" in causes(verify(bmc, wanted))
    assert stage(bmc, wanted)["changed"], "the next run tries again"


def test_what_was_done_before_a_failure_is_said(bmc: RunningBmc, tmp_path: Path) -> None:
    entries = [
        image_file(tmp_path, "BMC", "1.40.00"),
        {**image_file(tmp_path, "FPGA", "1"), "component": "BIOS", "version": "05.12.00"},
    ]
    with pytest.raises(RedfishError, match=r"Done before that: BMC 1\.40\.00 is active"):
        stage(bmc, request(entries))


def test_an_upload_that_breaks_off_changes_nothing(bmc: RunningBmc, tmp_path: Path) -> None:
    entry = image_file(tmp_path, "BIOS", "05.12.00", payload=b"\1" * 8_000_000)
    bmc.inject("upload_broken")
    with pytest.raises(RedfishError, match=r"broke off after \d+ of \d+ bytes .*nothing has changed"):
        stage(bmc, request([entry]))
    assert bmc.service.tasks.ids() == []
    assert stage(bmc, request([entry]))["changed"]


def test_an_answer_that_is_lost_is_made_up_for_by_the_task_that_the_bmc_made(bmc: RunningBmc, tmp_path: Path) -> None:
    entry = image_file(tmp_path, "BIOS", "05.12.00")
    bmc.inject("drop", when="after", method="POST", path="UpdateService/upload", count=1)
    assert stage(bmc, request([entry]))["updates"][0]["state"] == "staged"
    assert len(bmc.service.tasks.ids()) == 1


@pytest.mark.parametrize("name", ["ieit-nf8260g7", "ieit-nf5280m6"])
def test_a_bmc_that_is_at_another_update_is_asked_again(name: str, tmp_path: Path) -> None:
    bios, version, _, _ = MACHINES[name]
    with running(name) as bmc:
        status = 400 if name == "ieit-nf5280m6" else 503
        bmc.inject("update_busy", count=2, status=status, retry_after=0)
        assert stage(bmc, request([image_file(tmp_path, bios, version)]))["changed"]
        bmc.reset()
        bmc.inject("update_busy", count=200, status=status, retry_after=0)
        cpld = image_file(tmp_path, "CPLD", "9.9")
        with pytest.raises(RedfishError, match="another update is in progress"):
            stage(bmc, request([cpld], update_timeout_seconds=0.5), timeout_seconds=1)


def test_an_update_that_the_bmc_is_at_is_followed_and_not_sent_again(bmc: RunningBmc, tmp_path: Path) -> None:
    entry = image_file(tmp_path, "BIOS", "05.12.00")
    bmc.inject("update_stuck")
    with pytest.raises(RedfishError, match=r"expected to end within 0.3 s, found: its task .* is Running at 50 %"):
        stage(bmc, request([entry], update_timeout_seconds=0.3))
    with pytest.raises(RedfishError, match="Running at 50 %"):
        stage(bmc, request([entry], update_timeout_seconds=0.3))
    assert len(bmc.service.tasks.ids()) == 1
    assert judged(verify(bmc, request([entry])))["firmware_pending_updates firmware"] == "CRITICAL"


@pytest.mark.parametrize("after", ["kept", "gone"])
def test_a_bmc_that_restarts_in_the_middle_of_an_update_has_lost_it(after: str, tmp_path: Path) -> None:
    entry = image_file(tmp_path, "BIOS", "05.12.00")
    with running(profile_overrides={"update": {"tasks_after_bmc_restart": after}}) as bmc:
        bmc.inject("update_stuck")
        rebooted: list[float] = []

        def reboot_once(seconds: float) -> None:
            # The fault is used up once the task stands still.
            if not rebooted and not bmc.service.faults.all():
                rebooted.append(seconds)
                bmc.inject("bmc_reboot", seconds=0.3)
            time.sleep(0.05)

        wanted = request([entry], sleep=reboot_once)
        if after == "kept":
            with pytest.raises(RedfishError, match="with Interrupted: The BMC restarted in the middle of it"):
                stage(bmc, wanted)
        else:
            # The BMC knows nothing of it any more: verify finds out what became of it.
            result = stage(bmc, wanted)
            assert result["updates"][0]["state"] == "staged"
            assert "no longer knows its task" in result["warnings"][0]
        bmc.reset()
        assert judged(verify(bmc, wanted))["firmware_version BIOS"] == "CRITICAL"
        assert stage(bmc, request([entry]))["changed"], "the next run sends it again"


def test_a_bmc_that_goes_back_to_its_old_image_is_named(bmc: RunningBmc, tmp_path: Path) -> None:
    bmc.inject("update_rolled_back")
    with pytest.raises(RedfishError, match=r"expected to run 1\.40\.00, but it still runs 1\.35\.05"):
        stage(bmc, request([image_file(tmp_path, "BMC", "1.40.00")]))


@pytest.mark.parametrize("silent", [True, False])
def test_a_bios_that_does_not_take_is_critical_with_its_cause(bmc: RunningBmc, tmp_path: Path, silent: bool) -> None:
    wanted = request([image_file(tmp_path, "BIOS", "05.12.00")], next_command="again")
    stage(bmc, wanted)
    bmc.inject("update_rolled_back", silent=silent)
    bmc.reset()
    result = verify(bmc, wanted)
    assert judged(result) == {"firmware_version BIOS": "CRITICAL", "firmware_pending_updates firmware": "OK"}
    assert ("went back to the old version" if silent else "could not be activated") in causes(result)
    assert result["measurements"][0]["next_command"] == "again"


def test_a_refused_login_and_a_lost_session(bmc: RunningBmc, tmp_path: Path) -> None:
    entry = image_file(tmp_path, "BIOS", "05.12.00")
    with pytest.raises(RedfishError, match="HTTP 401"):
        stage(bmc, request([entry]), password="wrong")
    bmc.inject("session_expires", count=1, method="GET", path="TaskService/Tasks$")
    assert stage(bmc, request([entry]))["changed"]


def test_firmware_that_nobody_asked_for_here_is_warned_of(tmp_path: Path) -> None:
    with running("supermicro-821ge") as bmc:
        stage(bmc, request([image_file(tmp_path, "CPLD", "9.9")]))
        result = stage(bmc, request([], floors={"BIOS": "1.4"}))
        assert "CPLD 9.9 lies ready" in result["warnings"][0]


# ---------------------------------------------------------------------- the body of an upload


def test_an_upload_holds_one_block_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "big.img"
    with path.open("wb") as stream:
        stream.truncate(200 * 1024 * 1024)
    body, content_type = multipart(str(path), path.stat().st_size, {"Targets": []}, float("inf"))
    assert content_type.startswith("multipart/form-data; boundary=")
    tracemalloc.start()
    try:
        with body:
            total = 0
            while block := body.read(16384):
                total += len(block)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert total == len(body)
    assert peak < 1024 * 1024


@pytest.mark.parametrize("difference", [-10, 10])
def test_a_file_that_changes_under_the_upload_ends_it(tmp_path: Path, difference: int) -> None:
    path = tmp_path / "image"
    path.write_bytes(b"x" * (1000 + difference))
    with UploadBody(str(path), 1000) as body, pytest.raises(RedfishError, match="changed while it was uploaded"):
        b"".join(body.read(300) for _ in range(10))


def test_an_upload_that_crawls_ends_at_its_deadline(tmp_path: Path) -> None:
    path = tmp_path / "image"
    path.write_bytes(b"x")
    with UploadBody(str(path), 1, deadline=0.0) as body, pytest.raises(RedfishError, match="was not done in the time"):
        body.read(1)
