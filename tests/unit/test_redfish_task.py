"""Tasks as BMCs show them, without a BMC: states, monitors, failures, and what a task says it is about."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.firmware_images import Image
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.firmware_plan import Step, Wish, kind_of
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.firmware_staged import (
    find_staged,
    last_failure,
    staged_for,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.redfish_client import Answer
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.redfish_connection import (
    ConnectionOptions,
    RedfishError,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.redfish_task import Follower, view

URI = "/redfish/v1/TaskService/Tasks/1"


class Scripted:
    """A client whose answers are given; the last one is repeated."""

    options = ConnectionOptions("https://bmc.example", "admin", "secret")

    def __init__(self, *answers: Answer | RedfishError) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    def look(self, uri: str) -> Answer:
        self.asked.append(uri)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, RedfishError):
            raise answer
        return answer


def task(state: str, *messages: tuple[str, list[str], str], **more: Any) -> dict[str, Any]:
    """A task's document."""
    return {
        "@odata.id": URI,
        "@odata.type": "#Task.v1_7_4.Task",
        "TaskState": state,
        "Messages": [
            {"MessageId": key, "MessageArgs": arguments, "Message": text, "MessageSeverity": "Warning"}
            for key, arguments, text in messages
        ],
        **more,
    }


def follow(*answers: Answer | RedfishError, timeout_seconds: float = 5) -> Any:
    client = Scripted(*answers)
    return Follower(client, timeout_seconds, 0.0, lambda _: None).follow(URI, "the update of X")  # type: ignore[arg-type]


def running() -> Answer:
    return Answer(202, task("Running", PercentComplete=40))


@pytest.mark.parametrize("state", ["Exception", "Killed", "Cancelled", "Interrupted"])
def test_a_task_that_failed_is_an_error_with_the_words_of_the_bmc(state: str) -> None:
    bad = task(state, ("Base.1.0.Oops", [], "Wrong header."), ("Base.1.0.Oops", [], "Verification failed."))
    with pytest.raises(RedfishError, match=f"ended the update of X with {state}: Verification failed"):
        follow(running(), Answer(200, bad))


@pytest.mark.parametrize(
    "last",
    [
        Answer(200, task("Completed")),
        Answer(204, {}),
        Answer(200, {"error": {"@Message.ExtendedInfo": [{"MessageId": "Base.1.0.Success", "Message": "Done."}]}}),
        Answer(200, {"@odata.type": "#Job.v1_0_0.Job", "JobState": "Completed"}),
    ],
)
def test_a_task_and_a_monitor_end_in_several_ways(last: Answer) -> None:
    assert follow(running(), Answer(202, {}), last).state == "Completed"


@pytest.mark.parametrize(
    "body",
    [
        task("Pending"),
        task("Suspended"),
        task("Starting", Oem={"Dell": {"JobState": "Scheduled"}}),
        task("Completed", ("Base.1.18.ResetRequired", ["/redfish/v1/Systems/1/Actions/Reset", "On"], "Reset.")),
        task("Completed", ("Update.1.0.AwaitToActivate", ["2.0", "/fw/X"], "Waits.")),
        task("Starting", ("iLO.2.14.SystemResetRequired", [], "Reset.")),
    ],
)
def test_what_waits_for_a_restart_is_told(body: dict[str, Any]) -> None:
    assert follow(running(), Answer(200, body)).waits


def test_a_bmc_that_is_away_is_waited_for_and_a_task_that_it_forgot_is_gone() -> None:
    away = RedfishError("no answer", transient=True)
    assert follow(running(), away, away, RedfishError("no such task", 404)).state == "Gone"
    with pytest.raises(RedfishError, match=r"expected to end within 0 s, found: no answer"):
        follow(away, timeout_seconds=0)
    with pytest.raises(RedfishError, match=r"found: its task .* is Running at 40 %"):
        follow(running(), timeout_seconds=0)
    with pytest.raises(RedfishError, match="refused"):
        follow(running(), RedfishError("refused", 401))


@pytest.mark.parametrize(
    "odd",
    [
        {"TaskState": None, "Messages": "none", "Payload": []},
        {"TaskState": "Running", "Messages": [None, {"MessageArgs": "x", "MessageId": 3, "Message": None}], "Oem": 1},
    ],
)
def test_members_of_a_wrong_type_are_as_good_as_missing(odd: dict[str, Any]) -> None:
    seen = view(odd)
    assert (seen.waits, seen.resets, seen.percent) == (False, [], None)
    assert seen.complaint == "the BMC gives no reason"


def step(version: str = "2.0", **component: Any) -> Step:
    item = {"id": "BIOS", "name": "BIOS", "version": "1.0", "source": "/fw/BIOS", "related": [], **component}
    return Step(Image("BIOS", version, uri="https://images.example/b.bin"), "bios", [Wish(item)])


@pytest.mark.parametrize(
    ("body", "state"),
    [
        (task("Pending", ("U.1.0.A", ["2.0", "/fw/BIOS"], "")), "waiting"),
        (task("Running", ("U.1.0.A", ["/fw/BIOS/", "2.0"], "")), "running"),
        (task("Pending", ("U.1.0.A", ["2.0.1", "/fw/BIOS"], "")), "none"),
        (task("Pending", ("U.1.0.A", ["2.0", "/fw/BIOS2"], "")), "none"),
        (task("Exception", ("U.1.0.A", ["2.0", "/fw/BIOS"], "")), "none"),
        (task("Pending", Payload={"JsonBody": '{"ImageURI": "https://images.example/b.bin"}'}), "waiting"),
        (task("Starting", Name="Firmware Update: BIOS", Oem={"Dell": {"JobState": "Scheduled"}}), "waiting"),
        (task("Starting", Name="Firmware Update: CPLD", Oem={"Dell": {"JobState": "Scheduled"}}), "none"),
        (task("Completed", ("U.1.0.AwaitToActivate", ["2.0", "BIOS"], ""), EndTime="2026-01-02T00:00:00Z"), "waiting"),
        (task("Completed", ("U.1.0.AwaitToActivate", ["2.0", "BIOS"], ""), EndTime="2025-01-02T00:00:00Z"), "none"),
        (task("Completed", ("U.1.0.AwaitToActivate", ["2.0", "BIOS"], ""), EndTime="soon"), "none"),
    ],
)
def test_a_staged_image_is_found_by_what_its_task_says(body: dict[str, Any], state: str) -> None:
    system = {"BootProgress": {"LastStateTime": "2026-01-01T00:00:00+00:00"}}
    assert find_staged(step(), [view(body)], system).state == state


def test_a_staged_image_is_found_in_the_inventory_and_a_failure_in_the_tasks() -> None:
    assert find_staged(step(staged_version="2.0"), [], {}).state == "waiting"
    assert find_staged(step(staged_version="1.5"), [], {}).state == "none"
    failed = view(task("Exception", ("U.1.0.ApplyFailed", ["2.0", "BIOS"], "Flash is locked.")))
    assert last_failure(step(), [failed]) == f"Flash is locked. (task {URI}, Exception)"
    assert not last_failure(step(), [])


@pytest.mark.parametrize(
    ("entry", "owner"),
    [
        ("Staging_BIOS", "BIOS"),
        ("UEFI-Pending", "UEFI"),
        ("BMC-Primary-Pending", "BMC-Primary"),
        ("BIOS", ""),
        ("Backup_BMC", ""),
    ],
)
def test_entries_of_the_inventory_that_are_no_components(entry: str, owner: str) -> None:
    assert staged_for(entry) == owner


@pytest.mark.parametrize(
    ("identity", "name", "kind"),
    [
        ("BMC", "BMC", "bmc"),
        ("1", "iLO 6", "bmc"),
        ("Installed-25227-7.0__iDRAC.Embedded.1-1", "Integrated Dell Remote Access Controller", "bmc"),
        ("BMC-Primary", "Firmware:BMC", "bmc"),
        ("HGX_FW_BMC_0", "HGX FW BMC", "other"),
        ("2", "System ROM", "bios"),
        ("UEFI", "Firmware:UEFI", "bios"),
        ("NIC1", "Ethernet adapter", "other"),
    ],
)
def test_the_kind_of_a_component_is_told_from_its_names(identity: str, name: str, kind: str) -> None:
    assert kind_of({"id": identity, "name": name}) == kind
