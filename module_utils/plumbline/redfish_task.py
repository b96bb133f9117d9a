"""A Redfish task followed to its end, also through a restart of the BMC that carries it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .redfish_client import Json, RedfishClient, link
from .redfish_connection import RedfishError
from .redfish_document import items, mapping, text

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
        ends = tuple(text(one, "MessageId").rsplit(".", 1)[-1] for one in self.messages)
        return any(end.endswith(_WAITING_MESSAGES) for end in ends)

    @property
    def resets(self) -> list[tuple[str, str]]:
        """What the BMC asks to be reset: URIs of reset actions with the ResetType, from its messages."""
        found = []
        for one in self.messages:
            arguments = _arguments(one)
            if text(one, "MessageId").endswith(".ResetRequired") and len(arguments) >= 2:
                found.append((arguments[0], arguments[1]))
        return found

    @property
    def complaint(self) -> str:
        """What the BMC says went wrong: its last warning or error, else its last words."""
        texts = [(text(one, "MessageSeverity", "Severity").lower(), text(one, "Message")) for one in self.messages]
        bad = [words for severity, words in texts if severity in _UNWELL and words]
        said = [words for _, words in texts if words]
        return (bad or said or ["the BMC gives no reason"])[-1]

    @property
    def words(self) -> str:
        """All that could name what the task is about: name, message arguments, payload."""
        arguments = [item for one in self.messages for item in _arguments(one)]
        return " ".join([self.name, *arguments, text(mapping(self.body, "Payload"), "JsonBody")])


def _arguments(message: Json) -> list[str]:
    found = message.get("MessageArgs")
    return [str(item) for item in found] if isinstance(found, list) else []


def _dell_state(body: Json) -> str:
    return text(mapping(body, "Oem", "Dell"), "JobState")


def view(body: Json, uri: str = "") -> TaskView:
    """Read a Task (or a Job, whose properties are named alike)."""
    percent = body.get("PercentComplete")
    return TaskView(
        uri=text(body, "@odata.id") or uri,
        state=text(body, "TaskState", "JobState"),
        percent=percent if isinstance(percent, int) else None,
        name=text(body, "Name"),
        messages=items(body, "Messages"),
        body=body,
    )


def is_task(body: Json) -> bool:
    """Whether a document is a task or a job, and not what an operation answers at its end."""
    return text(body, "@odata.type").startswith(("#Task.", "#Job.")) or "TaskState" in body


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
        pause = min(self.poll_seconds, 0.5)  # short at first: small images are written in a moment
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
            self.sleep(pause)
            pause = min(self.poll_seconds, 2 * pause)

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
        return TaskView(uri, "Completed", 100, messages=items(mapping(answer.body, "error"), "@Message.ExtendedInfo"))

    def _late(self, what: str, last: TaskView, silence: str) -> RedfishError:
        far = f" at {last.percent} %" if last.percent is not None else ""
        found = silence or f"its task {last.uri} is {last.state or 'unknown'}{far}"
        return RedfishError(
            f"{what[:1].upper()}{what[1:]} by the BMC at {self.client.options.base_url} was expected to end within"
            f" {self.timeout_seconds:g} s, found: {found}; look at the BMC's log. The next run goes on from what it finds"
        )
