"""Tasks and their monitors (DSP0266): whatever a request cannot finish at once."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from .clock import now
from .messages import refuse
from .paths import ROOT
from .rest import Call, Reply, Resource, collection, link

if TYPE_CHECKING:
    from .service import Finder, Service

Json = dict[str, Any]
DONE = {"Completed", "Exception", "Cancelled", "Killed", "Interrupted"}
_KEPT = 100


class Tasks:
    """All tasks, in the persistent state."""

    def __init__(self, service: Service) -> None:
        """Take the tasks of the state; one that was running when the simulator ended is interrupted."""
        self._state = service.state
        self._data: Json = service.state.section("tasks", {"next": 1, "all": {}})
        for task in self._data["all"].values():
            if task["state"] in ("New", "Starting", "Running"):
                task.update(state="Interrupted", status="Warning", ended=now())

    def create(self, name: str, state: str = "New") -> str:
        """Make a task and return its id."""
        identity = str(self._data["next"])
        self._data["next"] += 1
        self._data["all"][identity] = {
            "name": name,
            "state": state,
            "status": "OK",
            "percent": 0,
            "messages": [],
            "started": now(),
            "ended": None,
        }
        finished = [key for key, one in self._data["all"].items() if one["state"] in DONE]
        for key in finished[: max(0, len(self._data["all"]) - _KEPT)]:
            del self._data["all"][key]
        self._state.save()
        return identity

    def update(self, identity: str, state: str, percent: int, *messages: Json) -> None:
        """Move a task on. Unknown ids are ignored: a client may have deleted the task."""
        task = self._data["all"].get(identity)
        if task is None:
            return
        task.update(state=state, percent=percent)
        task["messages"] += messages
        if any(one["MessageSeverity"] == "Critical" for one in messages):
            task["status"] = "Critical"
        if state in DONE:
            task["ended"] = now()
        self._state.save()

    def rename(self, identity: str, name: str) -> None:
        """Give a task a name that says more."""
        if identity in self._data["all"]:
            self._data["all"][identity]["name"] = name

    def set_payload(self, identity: str, target: str, body: Json) -> None:
        """Keep what the request said, for the task's Payload."""
        payload = {"HttpOperation": "POST", "TargetUri": target, "HttpHeaders": [], "JsonBody": json.dumps(body)}
        self._data["all"][identity]["payload"] = payload

    def set_dell_state(self, identity: str, state: str) -> None:
        """Keep the state of Dell's job behind a task; an empty one takes it away."""
        task = self._data["all"].get(identity)
        if task is not None:
            task["dell_state"] = state

    def get(self, identity: str) -> Json | None:
        """Return a task's data."""
        task: Json | None = self._data["all"].get(identity)
        return task

    def ids(self) -> list[str]:
        """Return the ids, oldest first."""
        return list(self._data["all"])

    def remove(self, identity: str) -> None:
        """Forget a task."""
        self._data["all"].pop(identity, None)
        self._state.save()


class TaskResources:
    """The handlers of the TaskService."""

    def __init__(self, service: Service) -> None:
        """Serve the service's tasks."""
        self.service = service
        self.tasks = service.tasks
        self.uri = service.paths.tasks
        self.monitors = f"{ROOT}/TaskService/TaskMonitors"

    def resources(self) -> dict[str, Resource]:
        """Return the resources by URI."""
        return {f"{ROOT}/TaskService": Resource(get=self.task_service), self.uri: Resource(get=self.all)}

    def finders(self) -> dict[str, Finder]:
        """Return the changing collections."""
        return {self.uri: self.find, self.monitors: self.find_monitor}

    def task_service(self) -> Json:
        """Return the TaskService."""
        return {
            "@odata.id": f"{ROOT}/TaskService",
            "@odata.type": "#TaskService.v1_2_1.TaskService",
            "Id": "TaskService",
            "Name": "Task Service",
            "ServiceEnabled": True,
            "DateTime": now(),
            "CompletedTaskOverWritePolicy": "Oldest",
            "LifeCycleEventOnTaskStateChange": False,
            "Status": {"State": "Enabled", "Health": "OK"},
            "Tasks": link(self.uri),
        }

    def all(self) -> Json:
        """Return the task collection."""
        extra = [job["Id"] for job in self.service.jobs.all()] if self.service.jobs is not None else []
        members = [f"{self.uri}/{identity}" for identity in [*self.tasks.ids(), *extra]]
        return collection(self.uri, "Task", "Tasks", members)

    def body(self, identity: str) -> Json:
        """Return a Task."""
        task = self.tasks.get(identity)
        if task is None:
            raise refuse(404, "ResourceMissingAtURI", f"{self.uri}/{identity}")
        body: Json = {
            "@odata.id": f"{self.uri}/{identity}",
            "@odata.type": "#Task.v1_7_4.Task",
            "Id": identity,
            "Name": task["name"],
            "TaskState": task["state"],
            "TaskStatus": task["status"],
            "PercentComplete": task["percent"],
            "StartTime": task["started"],
            "Messages": task["messages"],
        }
        if task.get("payload"):
            body["Payload"] = task["payload"]
        if task.get("dell_state"):
            body["Oem"] = {"Dell": {"JobState": task["dell_state"], "JobType": "FirmwareUpdate"}}
        if task["ended"]:
            body["EndTime"] = task["ended"]
        else:
            body["TaskMonitor"] = f"{self.monitors}/{identity}"
        return body

    def find(self, identity: str) -> Resource | None:
        """Return a task's resource."""
        if self.tasks.get(identity) is None:
            job = self.service.jobs.find_as_task(identity) if self.service.jobs is not None else None
            return None if job is None else Resource(get=lambda: job)

        def delete(_call: Call) -> Reply:
            task = self.tasks.get(identity)
            if task is not None and task["state"] not in DONE:
                raise refuse(409, "ResourceInUse", f"Task {identity}", "it is not finished")
            self.tasks.remove(identity)
            return Reply(204)

        return Resource(get=lambda: self.body(identity), delete=delete)

    def find_monitor(self, identity: str) -> Resource | None:
        """Return a task's monitor: 202 until the task is done, then its result."""
        if self.tasks.get(identity) is None:
            return None

        def watch() -> Any:
            body = self.body(identity)
            if body["TaskState"] in DONE:
                return body
            return self.accepted(identity, body)

        return Resource(get=watch)

    def accepted(self, identity: str, body: Json | None = None) -> Reply:
        """Return the 202 that hands a task to a client."""
        headers = {"Location": f"{self.monitors}/{identity}", "Retry-After": "1"}
        return Reply(202, body if body is not None else self.body(identity), headers)
