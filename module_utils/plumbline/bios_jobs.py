"""Jobs of the BMC that carry BIOS settings, or stand in their way: found, waited for, deleted where that is allowed.

Dell's iDRAC carries staged values into the BIOS by a job, and takes no others while one is scheduled. Other BMCs keep a Redfish
task for the same. A job that *runs* ends by itself; one that is *scheduled* waits for a restart, which nobody here gives it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .bios_registry import listed
from .redfish_client import RedfishClient, link
from .redfish_connection import RedfishError
from .redfish_document import address, items, mapping, text

Json = dict[str, Any]
WAIT, REFUSE, DELETE = "wait", "refuse", "delete"
# JobState of Dell's queue, JobState and TaskState of DSP0266, in lower case.
_ENDED = {
    *("completed", "completedok", "completedwitherrors", "exception", "killed", "cancelled", "canceled", "failed"),
    *("rebootfailed", "rebootcompleted", "invalid"),
}
# At work without anybody's doing. All others (Scheduled, Pending, Suspended, ...) wait for something, mostly a restart.
_RUNNING = {"new", "running", "downloading", "downloaded", "scheduling", "validating", "stopping", "cancelling"}
_POLL_SECONDS = 2.0


class BlockedError(RedfishError):
    """A job stands in the way of staging; the text names it."""


@dataclass(frozen=True)
class Job:
    """One job or task that has not ended; `kind` is `bios`, `firmware` or `other`, `queue` whether one blocks the next."""

    uri: str
    id: str
    name: str
    kind: str
    state: str
    message: str = ""
    queue: bool = False

    @property
    def running(self) -> bool:
        """Whether it ends without a restart."""
        return self.state.lower() in _RUNNING

    def text(self) -> str:
        """The job for a sentence."""
        said = f', "{self.message}"' if self.message else ""
        return f"{self.id} ({self.name}, state {self.state}{said})"


def _job(document: Json, queue: bool) -> Job | None:
    state = str(document.get("JobState") or document.get("TaskState") or "")
    if not state or state.lower() in _ENDED:
        return None
    target = text(document, "TargetSettingsURI") or text(mapping(document, "Payload"), "TargetUri")
    about = " ".join(str(document.get(key) or "") for key in ("JobType", "Name", "Description"))
    messages = items(document, "Messages")
    message = document.get("Message") or (messages[-1].get("Message") if messages else "")
    return Job(
        uri=str(document.get("@odata.id") or ""),
        id=str(document.get("Id") or document.get("@odata.id") or ""),
        name=str(document.get("Name") or document.get("JobType") or "without a name"),
        kind=_kind(about.lower(), target.lower()),
        state=state,
        message=str(message or ""),
        queue=queue,
    )


def _kind(about: str, target: str) -> str:
    # First: "Firmware Update: BIOS" is no configuration of the BIOS.
    if "firmware" in about or "update" in about or "updateservice" in target or "simpleupdate" in target:
        return "firmware"
    return "bios" if "bios" in about or "/bios" in target else "other"


def open_jobs(client: RedfishClient, system: Json) -> list[Job]:
    """Every job and task of the BMC that has not ended; an empty list where it keeps none.

    Dell's queue is taken alone where there is one: its tasks are the same jobs once more.
    """
    queue = dell_queue(client, system)
    if queue:
        found = [_job(document, True) for document in client.members(queue)]
    else:
        service = client.get_optional(link(client.root, "JobService"))
        tasks = client.get_optional(link(client.root, "Tasks"))
        documents = client.members(link(service, "Jobs")) + client.members(link(tasks, "Tasks"))
        found = [_job(document, False) for document in documents]
    return [job for job in found if job is not None]


def dell_queue(client: RedfishClient, system: Json) -> str:
    """Where an iDRAC keeps its job queue; empty on other BMCs."""
    managers = items(mapping(system, "Links"), "ManagedBy")
    if not managers:
        managers = items(client.get_optional(link(client.root, "Managers")), "Members")
    for manager in managers:
        found = link(client.get_optional(address(manager)), "Links", "Oem", "Dell", "Jobs")
        if found:
            return found
    return ""


def blocking(jobs: Sequence[Job]) -> list[Job]:
    """The jobs that keep BIOS settings from being staged: configuration jobs of a queue that takes one at a time."""
    return [job for job in jobs if job.queue and job.kind == "bios"]


def wait_for(client: RedfishClient, jobs: Sequence[Job], seconds: float) -> list[Job]:
    """Wait until running jobs have ended or wait for a restart; return those that still run after `seconds`."""
    deadline = time.monotonic() + seconds
    running = [job for job in jobs if job.running]
    while running:
        pause = min(_POLL_SECONDS, max(0.0, deadline - time.monotonic()))
        if not pause:
            break
        time.sleep(pause)
        again = [_job(client.get_optional(job.uri), job.queue) for job in running]
        running = [job for job in again if job is not None and job.running]
    return running


def make_way(
    client: RedfishClient, jobs: Sequence[Job], policy: str, wait_seconds: float, *, check_mode: bool = False
) -> list[str]:
    """Do with blocking jobs what the policy says; afterwards the machine must be read again.

    Returns:
        The ids of the jobs that were deleted (in check mode: would be).

    Raises:
        BlockedError: a job stays in the way; nothing was changed.
    """
    running = [job for job in jobs if job.running]
    if running and policy != REFUSE:
        # Waiting changes nothing, but a dry run has better things to do than to wait for minutes.
        late = running if check_mode else wait_for(client, running, wait_seconds)
        if late:
            waited = "which a dry run does not wait for" if check_mode else f"and did not end within {wait_seconds:g} s"
            raise BlockedError(
                _sentence(client, late, f"{waited}: run again when it has ended, or raise the time to wait")
            )
    scheduled = [job for job in jobs if not job.running]
    if policy == REFUSE or (scheduled and policy == WAIT):
        every = list(jobs) if policy == REFUSE else scheduled
        if any(not job.running for job in every):
            remedy = (
                "which waits for a restart, so that waiting here would not end: restart the machine first, or let it be deleted"
                " with its values (bios_blocking_job: delete)"
            )
        else:
            remedy = "which runs: run again when it has ended, or let it be waited for (bios_blocking_job: wait)"
        raise BlockedError(_sentence(client, every, remedy))
    deleted = []
    for job in scheduled:
        if job.kind != "bios":
            raise BlockedError(
                _sentence(client, [job], "which is no BIOS configuration job and is not deleted here: let it end first")
            )
        if not check_mode:
            client.delete(job.uri)
        deleted.append(job.id)
    return deleted


def _sentence(client: RedfishClient, jobs: Sequence[Job], remedy: str) -> str:
    noun = "the job" if len(jobs) == 1 else f"{len(jobs)} jobs,"
    return (
        f"BIOS settings were not staged, since another configuration job blocks the queue of the BMC at"
        f" {client.options.base_url}: {noun} {listed([job.text() for job in jobs], 5)}, {remedy}"
    )


def jobs_measurement(jobs: Sequence[Job]) -> Json:
    """`bios_jobs`: how many BIOS configuration jobs have not ended; 0 is what is expected after a restart."""
    left = [job for job in jobs if job.kind == "bios"]
    measurement: Json = {"name": "bios_jobs", "scope": "bios", "value": len(left), "unit": "jobs", "expected": 0}
    if left:
        measurement["cause"] = f"not ended: {listed([job.text() for job in left], 5)}"
    return measurement
