"""A Redfish task followed to its end, also through a restart of the BMC that carries it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .redfish_client import Json, RedfishClient, link
from .redfish_connection import RedfishError

FAILED = ("Exception", "Killed", "Cancelled", "Cancelling", "Stopping", "Interrupted")
# What a task says that has done all it can before the host restarts.
WAITING = ("Pending", "Suspended")
_WAITING_MESSAGES = ("ResetRequired", "AwaitToActivate")
_GONE = (404, 410)
_UNWELL = ("warning", "critical")


@dataclass
class TaskView:
    """A task as it is now."""

    uri: str
    state: str = ""
    percent: int | None = None
    name: str = ""
    messages: list[Json] = field(default_factory=list)
    body: Json = field(default_factory=dict)

    @property
    def waits(self) -> bool:
        """Whether it is done but for a restart."""
        if self.state in FAILED or self.state in ("Running", "New"):
            return False
        if self.state in WAITING or _dell_state(self.body) == "Scheduled":
            return True
        ends = tuple(str(one.get("MessageId") or "").rsplit(".", 1)[-1] for one in self.messages)
        return any(end.endswith(_WAITING_MESSAGES) for end in ends)

    @property
    def resets(self) -> list[tuple[str, str]]:
        """What the BMC asks to be reset: URIs of reset actions with the ResetType, from its messages."""
        found = []
        for one in self.messages:
            arguments = one.get("MessageArgs") or []
            if str(one.get("MessageId") or "").endswith(".ResetRequired") and len(arguments) >= 2:
                found.append((str(arguments[0]), str(arguments[1])))
        return found

    @property
    def complaint(self) -> str:
        """What the BMC says went wrong: its last warning or error, else its last words."""
        texts = [
            (
                str(one.get("MessageSeverity") or one.get("Severity") or "").lower(),
                str(one.get("Message") or "").strip(),
            )
            for one in self.messages
        ]
        bad = [text for severity, text in texts if severity in _UNWELL and text]
        said = [text for _, text in texts if text]
        return (bad or said or ["the BMC gives no reason"])[-1]

    @property
    def words(self) -> str:
        """All that could name what the task is about: name, message arguments, payload."""
        arguments = [str(item) for one in self.messages for item in one.get("MessageArgs") or []]
        payload = self.body.get("Payload") or {}
        return " ".join([self.name, *arguments, str(payload.get("JsonBody") or "")])


def _dell_state(body: Json) -> str:
    dell = (body.get("Oem") or {}).get("Dell") or {}
    return str(dell.get("JobState") or "") if isinstance(dell, dict) else ""


def view(body: Json, uri: str = "") -> TaskView:
    """Read a Task (or a Job, whose properties are named alike)."""
    percent = body.get("PercentComplete")
    return TaskView(
        uri=str(body.get("@odata.id") or uri),
        state=str(body.get("TaskState") or body.get("JobState") or ""),
        percent=percent if isinstance(percent, int) else None,
        name=str(body.get("Name") or ""),
        messages=[one for one in body.get("Messages") or [] if isinstance(one, dict)],
        body=body,
    )


def is_task(body: Json) -> bool:
    """Whether a document is a task or a job, and not what an operation answers at its end."""
    return str(body.get("@odata.type") or "").startswith(("#Task.", "#Job.")) or "TaskState" in body


def all_tasks(client: RedfishClient) -> list[TaskView]:
    """The tasks that a BMC lists; none where it has no TaskService."""
    service = client.get_optional(link(client.root, "Tasks"))
    return [view(body) for body in client.members(link(service, "Tasks"))]


@dataclass
class Follower:
    """Follows tasks with one deadline each. `sleep` can be replaced in tests."""

    client: RedfishClient
    timeout_seconds: float
    poll_seconds: float = 3.0
    sleep: Callable[[float], Any] = time.sleep

    def follow(self, uri: str, what: str) -> TaskView:
        """Wait until a task is done, or waits for a restart only.

        A BMC that does not answer is waited for: many restart along with an update. A task that a restart has taken away comes
        back with the state "Gone"; the caller then looks at the version.

        Raises:
            RedfishError: the task failed (with what the BMC said), or was not done in time.
        """
        deadline = time.monotonic() + self.timeout_seconds
        last = TaskView(uri)
        silence = ""
        while True:
            try:
                now = self._look(uri, last)
                silence = ""
            except RedfishError as error:
                if not error.transient:
                    raise
                now, silence = last, str(error)
            if now.state in FAILED:
                raise RedfishError(
                    f"The BMC at {self.client.options.base_url} ended {what} with {now.state}: {now.complaint}"
                    f" (task {now.uri}); nothing of it becomes active. Correct the cause and run again"
                )
            if now.state in ("Completed", "Gone") or now.waits:
                return now
            last = now
            if time.monotonic() > deadline:
                raise self._late(what, last, silence)
            self.sleep(self.poll_seconds)

    def _look(self, uri: str, last: TaskView) -> TaskView:
        """The task as it is now. A monitor that answers with a result, with 204 or no longer is a task that is done."""
        try:
            answer = self.client.look(last.uri or uri)
        except RedfishError as error:
            if error.status in _GONE:
                return TaskView(uri, "Gone", last.percent, last.name, last.messages, last.body)
            raise
        if is_task(answer.body):
            return view(answer.body, uri)
        if answer.status == 202:
            return TaskView(uri, "Running", last.percent)
        messages = (answer.body.get("error") or {}).get("@Message.ExtendedInfo") or []
        return TaskView(uri, "Completed", 100, messages=[one for one in messages if isinstance(one, dict)])

    def _late(self, what: str, last: TaskView, silence: str) -> RedfishError:
        far = f" at {last.percent} %" if last.percent is not None else ""
        found = silence or f"its task {last.uri} is {last.state or 'unknown'}{far}"
        return RedfishError(
            f"{what[:1].upper()}{what[1:]} by the BMC at {self.client.options.base_url} was expected to end within"
            f" {self.timeout_seconds:g} s, found: {found}; look at the BMC's log. The next run goes on from what it finds"
        )
