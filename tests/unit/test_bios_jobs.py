"""Jobs that carry BIOS settings or stand in their way: waited for, named, deleted; and none left behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import bios_jobs
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.bios_jobs import (
    BlockedError,
    Job,
    blocking,
    jobs_measurement,
    open_jobs,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.bios_operation import (
    Request,
    stage_settings,
    verify_settings,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.gates import judge_all
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.redfish_connection import RedfishError

from lab.bmc.testing import RunningBmc, running
from tests.unit.redfish_support import login

RULES = {name: {"kind": "equals"} for name in ("bios_setting", "bios_pending_values", "bios_jobs")}
FIRST, SECOND = {"SriovGlobalEnable": "Enabled"}, {"LogicalProc": "Disabled"}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bios_jobs, "_POLL_SECONDS", 0.02)


@pytest.fixture
def dell() -> Iterator[RunningBmc]:
    with running("dell-r750") as bmc:
        yield bmc


def stage(bmc: RunningBmc, **request: Any) -> dict[str, Any]:
    with login(bmc) as client:
        return stage_settings(client, Request(**request))


def job_states(bmc: RunningBmc) -> dict[str, str]:
    jobs = bmc.service.jobs
    assert jobs is not None
    return bmc.call(lambda: {job["Id"]: job["JobState"] for job in jobs.all()})


def set_job(bmc: RunningBmc, **values: Any) -> str:
    """Change the newest job of the simulator's queue; returns its id."""
    jobs = bmc.service.jobs
    assert jobs is not None

    def change() -> str:
        job = jobs.all()[-1]
        job.update(values)
        return str(job["Id"])

    return bmc.call(change)


@pytest.mark.parametrize("policy", ["wait", "refuse"])
@pytest.mark.parametrize("check_mode", [False, True])
def test_a_scheduled_job_is_named_and_nothing_is_queued_behind_it(
    dell: RunningBmc, policy: str, check_mode: bool
) -> None:
    stage(dell, settings=FIRST)
    [identity] = job_states(dell)
    started = time.monotonic()
    with pytest.raises(BlockedError) as caught:
        stage(dell, settings=SECOND, blocking_job=policy, check_mode=check_mode)
    text = str(caught.value)
    assert f"the job {identity} (Configure: BIOS.Setup.1-1, state Scheduled" in text
    assert "waits for a restart" in text
    assert "bios_blocking_job: delete" in text
    assert time.monotonic() - started < 60, "waiting for a restart that nobody makes would take 300 s"
    assert job_states(dell) == {identity: "Scheduled"}
    assert dell.pending == FIRST


def test_a_scheduled_job_is_deleted_where_that_is_allowed_and_one_job_carries_the_new_values(dell: RunningBmc) -> None:
    stage(dell, settings=FIRST)
    [old] = job_states(dell)
    predicted = stage(dell, settings=SECOND, blocking_job="delete", foreign_pending="clear", check_mode=True)
    assert (predicted["deleted_jobs"], predicted["staged"]) == ([old], SECOND)
    assert f"job {old}: scheduled" in predicted["diff"]["before"]
    assert f"job {old}: deleted" in predicted["diff"]["after"]
    assert job_states(dell) == {old: "Scheduled"}
    done = stage(dell, settings=SECOND, blocking_job="delete", foreign_pending="clear")
    assert (done["deleted_jobs"], done["staged"], done["changed"]) == ([old], SECOND, True)
    assert dell.pending == SECOND
    [new] = job_states(dell)
    assert new != old
    dell.reset()
    assert dell.active["LogicalProc"] == "Disabled"
    assert dell.active["SriovGlobalEnable"] != "Enabled", "the deleted job took its value along"


def test_a_job_whose_values_are_to_be_kept_is_not_deleted(dell: RunningBmc) -> None:
    stage(dell, settings=FIRST)
    with pytest.raises(
        BlockedError, match=r"would drop 1 pending values that foreign_pending keeps \(SriovGlobalEnable\)"
    ):
        stage(dell, settings=SECOND, blocking_job="delete", foreign_pending="keep")
    assert dell.pending == FIRST


def test_wanted_values_that_the_deleted_job_carried_are_staged_again(dell: RunningBmc) -> None:
    stage(dell, settings=FIRST)
    done = stage(dell, settings={**FIRST, **SECOND}, blocking_job="delete")
    assert done["staged"] == {**FIRST, **SECOND}
    assert dell.pending == {**FIRST, **SECOND}


def test_a_running_job_is_waited_for(dell: RunningBmc) -> None:
    stage(dell, settings=FIRST)
    set_job(dell, JobState="Running")

    def finish() -> None:
        time.sleep(0.3)
        dell.call(dell.service.bios.clear)
        set_job(dell, JobState="Completed")

    thread = threading.Thread(target=finish)
    thread.start()
    try:
        done = stage(dell, settings=SECOND, blocking_job="wait", blocking_job_wait_seconds=20)
    finally:
        thread.join()
    assert (done["staged"], done["deleted_jobs"]) == (SECOND, [])
    assert sorted(job_states(dell).values()) == ["Completed", "Scheduled"]


@pytest.mark.parametrize("policy", ["wait", "delete"])
def test_waiting_for_a_running_job_has_an_end_and_it_is_never_deleted(dell: RunningBmc, policy: str) -> None:
    stage(dell, settings=FIRST)
    identity = set_job(dell, JobState="Running", Message="Job in progress.")
    with pytest.raises(
        BlockedError, match=rf'{identity} .* state Running, "Job in progress."\), and did not end within 0.2 s'
    ):
        stage(dell, settings=SECOND, blocking_job=policy, foreign_pending="clear", blocking_job_wait_seconds=0.2)
    with pytest.raises(BlockedError, match="which a dry run does not wait for"):
        stage(dell, settings=SECOND, blocking_job=policy, foreign_pending="clear", check_mode=True)
    with pytest.raises(BlockedError, match=r"which runs: run again when it has ended"):
        stage(dell, settings=SECOND, blocking_job="refuse")
    assert job_states(dell) == {identity: "Running"}


def test_a_firmware_job_is_never_deleted(dell: RunningBmc) -> None:
    stage(dell, settings=FIRST)
    identity = set_job(dell, JobType="FirmwareUpdate", Name="Firmware Update: BIOS")
    with login(dell) as client:
        [job] = open_jobs(client, client.system())
    assert (job.kind, job.running, blocking([job])) == ("firmware", False, [])
    # The BMC refuses the change; whatever the policy, the job is named and stays.
    for policy in ("wait", "refuse", "delete"):
        with pytest.raises(BlockedError, match=identity) as caught:
            stage(dell, settings=SECOND, blocking_job=policy, foreign_pending="clear")
    assert "is no BIOS configuration job and is not deleted here" in str(caught.value)
    assert job_states(dell) == {identity: "Scheduled"}


def test_values_that_wait_without_a_job_are_given_one(dell: RunningBmc) -> None:
    """As another tool leaves them that sends no apply time: no restart would ever apply them."""
    dell.inject("stale_pending", attributes=FIRST)
    assert job_states(dell) == {}
    done = stage(dell, settings=FIRST)
    assert (done["changed"], done["staged"]) == (True, FIRST)
    assert "waited without a job" in done["warnings"][0]
    assert list(job_states(dell).values()) == ["Scheduled"]
    again = stage(dell, settings=FIRST)
    assert (again["changed"], again["restart_required"]) == (False, "power_cycle")
    dell.reset()
    assert dell.active["SriovGlobalEnable"] == "Enabled"


def test_a_job_that_is_left_after_the_restart_fails_the_gate(dell: RunningBmc) -> None:
    dell.inject("job_stuck")
    stage(dell, settings=FIRST)
    [identity] = job_states(dell)
    dell.reset()
    with login(dell) as client:
        result = verify_settings(client, Request(settings=FIRST, next_command="run again"))
    checks = {check.name: check for check in judge_all(result["measurements"], RULES)}
    assert checks["bios_jobs"].status == "CRITICAL"
    assert f"not ended: {identity} (Configure: BIOS.Setup.1-1, state Scheduled" in checks["bios_jobs"].cause
    dell.reset()
    with login(dell) as client:
        result = verify_settings(client, Request(settings=FIRST))
    assert {check.status for check in judge_all(result["measurements"], RULES)} == {"OK"}
    assert {m["name"] for m in result["measurements"]} == {"bios_setting", "bios_pending_values", "bios_jobs"}


def test_a_job_that_ends_a_little_late_is_waited_for_before_it_is_judged(dell: RunningBmc) -> None:
    stage(dell, settings=FIRST)
    dell.reset()
    set_job(dell, JobState="Running")

    def finish() -> None:
        time.sleep(0.3)
        set_job(dell, JobState="Completed")

    thread = threading.Thread(target=finish)
    thread.start()
    try:
        with login(dell) as client:
            result = verify_settings(client, Request(settings=FIRST, blocking_job_wait_seconds=20))
    finally:
        thread.join()
    assert {check.status for check in judge_all(result["measurements"], RULES)} == {"OK"}


def test_a_busy_queue_without_a_job_says_what_the_bmc_said(dell: RunningBmc) -> None:
    dell.inject("http_error", count=9, status=400, method="PATCH", message="Unable to queue the job: it is locked.")
    with pytest.raises(RedfishError, match=r"Unable to queue the job.*but the BMC lists none"):
        stage(dell, settings=FIRST)
    assert dell.pending == {}


def test_a_task_that_waits_for_the_restart_blocks_no_second_request() -> None:
    """Other vendors keep one task for what is staged, and take more."""
    with running(profile_overrides={"quirks": {"settings_reply": "202_task"}}) as bmc:
        stage(bmc, settings={"PcieHotPlugEnable": "Enabled"})
        with login(bmc) as client:
            found = open_jobs(client, client.system())
        assert [(job.kind, job.running, job.queue) for job in found] == [("bios", False, False)]
        stage(bmc, settings={"LlcPrefetchEnable": "Enabled"})
        assert bmc.pending == {"PcieHotPlugEnable": "Enabled", "LlcPrefetchEnable": "Enabled"}


def test_the_refusal_of_a_lenovo_is_not_taken_for_a_busy_queue_because_of_its_address() -> None:
    """Its settings object is called Pending."""
    with running("lenovo-sr670v2") as bmc:
        bmc.inject("http_error", count=9, status=400, method="PATCH", message="The value is not acceptable.")
        with pytest.raises(RedfishError) as caught:
            stage(bmc, settings={"Processors_HyperThreading": "Disabled"})
        assert "/Bios/Pending" in str(caught.value)
        assert "block" not in str(caught.value)


@pytest.mark.parametrize(
    ("document", "kind"),
    [
        ({"JobType": "BIOSConfiguration", "Name": "Configure: BIOS.Setup.1-1"}, "bios"),
        ({"JobType": "FirmwareUpdate", "Name": "Firmware Update: BIOS"}, "firmware"),
        ({"Name": "Task 4", "Payload": {"TargetUri": "/redfish/v1/Systems/1/Bios/Settings"}}, "bios"),
        ({"Name": "x", "Payload": {"TargetUri": "/redfish/v1/UpdateService/Actions/SimpleUpdate"}}, "firmware"),
        ({"JobType": "RAIDConfiguration", "Name": "Configure: RAID.1"}, "other"),
    ],
)
def test_kinds_of_jobs(document: dict[str, Any], kind: str) -> None:
    job = bios_jobs._job({**document, "JobState": "Scheduled"}, queue=True)
    assert job is not None
    assert job.kind == kind
    assert bios_jobs._job({**document, "JobState": "Completed"}, queue=True) is None


def test_jobs_of_other_kinds_are_no_business_of_the_gate() -> None:
    assert jobs_measurement([Job("/1", "1", "RAID", "other", "Running")])["value"] == 0
    assert jobs_measurement([Job("/1", "1", "BIOS", "bios", "Scheduled")])["value"] == 1
