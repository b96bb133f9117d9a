"""Configuration jobs as Dell's iDRAC has them (profile quirk `apply: "job"`).

Staged values are carried into the BIOS by a job, not by the reset alone: a PATCH with `@Redfish.SettingsApplyTime`
makes the job, one without it only stages. While a job is scheduled nothing else can be staged, and clearing pending
values is refused too; deleting the job drops the values it would have carried.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from .clock import now
from .messages import RedfishError, message, refuse
from .rest import Call, Reply, Resource, collection

if TYPE_CHECKING:
    from .service import Finder, Service

Json = dict[str, Any]
# As many as an iDRAC keeps, ended ones included.
_JOB_LIMIT = 256
_OPEN = {"New", "Scheduled", "Running"}
_TASK_STATE = {"Scheduled": "Starting", "Running": "Running", "Completed": "Completed", "Failed": "Exception"}


def _oem(key: str, text: str, resolution: str, severity: str = "Warning") -> Json:
    return {
        "@odata.type": "#Message.v1_2_1.Message",
        "MessageId": f"IDRAC.2.8.{key}",
        "Message": text,
        "MessageArgs": [],
        "MessageSeverity": severity,
        "Severity": severity,
        "Resolution": resolution,
    }


def committed() -> RedfishError:
    """Return the refusal of a change while a job is scheduled (SYS011)."""
    text = "Pending configuration values are already committed; no other set operation is possible."
    return RedfishError(
        400,
        _oem("SYS011", text, "Wait for the scheduled job to complete, or delete the job, before changing attributes."),
    )


class ConfigJobs:
    """The job queue of the BMC."""

    def __init__(self, service: Service) -> None:
        """Take the jobs of the state."""
        self.service = service
        self.uri = f"{service.paths.manager}/Jobs"
        self._data: Json = service.state.section("jobs", {"next": 1, "all": []})
        for job in self._data["all"]:
            if job["JobState"] == "Running":  # the simulator ended in the middle of it
                job["JobState"] = "Scheduled"
        service.manager_links["Links"] = {
            "ManagerForServers": [{"@odata.id": service.paths.system}],
            "ManagerForChassis": [{"@odata.id": service.paths.chassis}],
            "Oem": {"Dell": {"Jobs": {"@odata.id": self.uri}}},
        }

    def resources(self) -> dict[str, Resource]:
        """Return the resources by URI."""
        clear = f"{self.service.paths.settings}/Actions/Oem/DellManager.ClearPending"
        job_service = f"{self.service.paths.manager}/Oem/Dell/DellJobService"
        delete = f"{job_service}/Actions/DellJobService.DeleteJobQueue"
        jobs = Resource(get=self.collection, post=self.create_by_request)
        return {
            self.uri: jobs,
            f"{self.service.paths.manager}/Oem/Dell/Jobs": jobs,
            clear: Resource(post=self.clear_pending),
            job_service: Resource(get=lambda: self.job_service(job_service, delete)),
            delete: Resource(post=self.delete_jobs),
        }

    def finders(self) -> dict[str, Finder]:
        """Return the changing collections."""
        return {self.uri: self.find, f"{self.service.paths.manager}/Oem/Dell/Jobs": self.find}

    def all(self) -> list[Json]:
        """Return the jobs, oldest first."""
        return list(self._data["all"])

    def open_job(self) -> Json | None:
        """Return the job that has not ended."""
        return next((job for job in self._data["all"] if job["JobState"] in _OPEN), None)

    def collection(self) -> Json:
        """Return the job collection."""
        return collection(self.uri, "DellJob", "JobQueue", [f"{self.uri}/{job['Id']}" for job in self.all()])

    def check_free(self, *, makes_job: bool = True) -> None:
        """Refuse a change while a job waits, and a new job also while the queue is busy or full."""
        if self.open_job() is not None:
            raise committed()
        if not makes_job:
            return
        busy = self.service.faults.take("queue_busy")
        if busy is not None:
            retry = busy.parameters["retry_after"]
            headers = {"Retry-After": str(retry)} if retry is not None else {}
            text = message("ResourceInUse", "The job queue", "it handles another request")
            raise RedfishError(busy.parameters["status"], text, headers=headers)
        limit = int(self.service.profile.quirks.get("job_limit", _JOB_LIMIT))
        if len(self._data["all"]) >= limit:
            raise refuse(503, "ResourceInUse", "The job queue", f"it holds {limit} jobs; delete old ones first")

    @staticmethod
    def job_service(uri: str, delete: str) -> Json:
        """Return Dell's service for jobs."""
        return {
            "@odata.id": uri,
            "@odata.type": "#DellJobService.v1_2_0.DellJobService",
            "Id": "DellJobService",
            "Name": "DellJobService",
            "Actions": {"#DellJobService.DeleteJobQueue": {"target": delete}},
        }

    def delete_jobs(self, call: Call) -> Reply:
        """Delete a job, or (`JID_CLEARALL`) all of them."""
        wanted = call.body.get("JobID")
        chosen = [job for job in self.all() if wanted in (job["Id"], "JID_CLEARALL", "JID_CLEARALL_FORCE")]
        if not chosen and wanted not in ("JID_CLEARALL", "JID_CLEARALL_FORCE"):
            raise refuse(400, "ResourceMissingAtURI", f"{self.uri}/{wanted}")
        for job in chosen:
            self._delete(job)
        return Reply(200, self._ok())

    def _delete(self, job: Json) -> None:
        if job["JobState"] == "Running":
            raise refuse(409, "ResourceInUse", job["Id"], "the job is running")
        if job["JobState"] in _OPEN:
            self.service.bios.clear()
        self._data["all"].remove(job)
        self.service.state.save()

    def create(self) -> Json:
        """Schedule a job for what is pending, or refuse."""
        self.check_free()
        pending = self.service.bios.pending
        if not pending:
            raise refuse(400, "GeneralError", "There are no pending values to apply.")
        number = self._data["next"]
        self._data["next"] = number + 1
        job = {
            "Id": f"JID_{700000000000 + number}",
            "Name": "Configure: BIOS.Setup.1-1",
            "JobType": "BIOSConfiguration",
            "JobState": "Scheduled",
            "PercentComplete": 0,
            "Message": "Task successfully scheduled.",
            "MessageId": "JCP001",
            "StartTime": now(),
            "EndTime": "TIME_NA",
            "TargetSettingsURI": self.service.paths.settings,
            "attributes": sorted(pending),
        }
        self._data["all"].append(job)
        self.service.state.save()
        return job

    def location(self, job: Json) -> str:
        """Return where a client follows a job."""
        return f"{self.service.paths.tasks}/{job['Id']}"

    def create_by_request(self, call: Call) -> Reply:
        """Schedule a job for `TargetSettingsURI`."""
        target = call.body.get("TargetSettingsURI")
        if target is None:
            raise refuse(400, "PropertyMissing", "TargetSettingsURI")
        if str(target).rstrip("/").lower() != self.service.paths.settings.lower():
            raise refuse(400, "PropertyValueNotInList", target, "TargetSettingsURI", self.service.paths.settings)
        job = self.create()
        return Reply(200, self._ok(), {"Location": f"{self.uri}/{job['Id']}"})

    @staticmethod
    def _ok() -> Json:
        return {"@Message.ExtendedInfo": [message("Success")]}

    def clear_pending(self, _call: Call) -> Reply:
        """Forget pending values, unless a job has committed them."""
        if self.open_job() is not None:
            raise committed()
        self.service.bios.clear()
        return Reply(200, self._ok())

    def _body(self, job: Json) -> Json:
        shown = {key: value for key, value in job.items() if key != "attributes"}
        return {
            "@odata.id": f"{self.uri}/{job['Id']}",
            "@odata.type": "#DellJob.v1_4_0.DellJob",
            "Description": "Job Instance",
            **shown,
        }

    def find(self, identity: str) -> Resource | None:
        """Return a job's resource."""
        job = next((one for one in self._data["all"] if one["Id"] == identity), None)
        if job is None:
            return None

        def delete(_call: Call) -> Reply:
            self._delete(job)
            return Reply(200, self._ok())

        return Resource(get=lambda: self._body(job), delete=delete)

    def find_as_task(self, identity: str) -> Json | None:
        """Return a job as a Task, which is what the Location of a PATCH names."""
        job = next((one for one in self._data["all"] if one["Id"] == identity), None)
        if job is None:
            return None
        body = {
            "@odata.id": self.location(job),
            "@odata.type": "#Task.v1_7_4.Task",
            "Id": job["Id"],
            "Name": job["Name"],
            "TaskState": _TASK_STATE.get(job["JobState"], "New"),
            "TaskStatus": "Critical" if job["JobState"] == "Failed" else "OK",
            "PercentComplete": job["PercentComplete"],
            "StartTime": job["StartTime"],
            "Messages": [_oem(job["MessageId"], job["Message"], "None.", "OK")],
        }
        if job["EndTime"] != "TIME_NA":
            body["EndTime"] = job["EndTime"]
        return body

    @property
    def running(self) -> bool:
        """Whether a job is carrying values just now (the Bios resource of an iDRAC then shows them already)."""
        job = self.open_job()
        return job is not None and job["JobState"] == "Running"

    async def run(self, seconds: float, apply: Any) -> None:
        """Carry out the scheduled job in POST; without one, pending values stay where they are."""
        job = self.open_job()
        if job is None or self.service.faults.take("job_stuck") is not None:
            return
        job.update(JobState="Running", PercentComplete=34, Message="Job in progress.", MessageId="PR20")
        self.service.state.save()
        await asyncio.sleep(seconds)
        failing = self.service.faults.take("job_fails")
        if failing is not None:
            if not failing.parameters["keeps_pending"]:
                self.service.bios.clear()
            text = failing.parameters["message"]
            job.update(JobState="Failed", Message=text, MessageId="PR21", PercentComplete=100, EndTime=now())
            self.service.state.save()
            return
        apply(job["attributes"])
        failed = [one for one in self.service.bios.messages if one["MessageId"].endswith("SettingsFailed")]
        if failed:
            job.update(JobState="Failed", Message=failed[0]["Message"], MessageId="PR21")
        else:
            job.update(JobState="Completed", Message="Job completed successfully.", MessageId="PR19")
        job.update(PercentComplete=100, EndTime=now())
        self.service.state.save()
