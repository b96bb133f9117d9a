"""One step of an update at the BMC: send, follow, and wait until the BMC runs what it got."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .firmware_images import FirmwareError, is_unchanged
from .firmware_plan import Step
from .firmware_staged import Staged
from .firmware_versions import compare_versions
from .redfish_client import Answer, Json, RedfishClient
from .redfish_connection import RedfishError
from .redfish_inventory import firmware_components
from .redfish_task import Follower, TaskView, all_tasks, is_task, view
from .redfish_update import BrokenUploadError, Sending, UpdateService, is_busy, retry_pause_seconds, send


@dataclass
class Result:
    """What became of a step: `state` is `active` (it runs) or `staged` (it waits for a restart)."""

    step: Step
    state: str
    sent: bool
    where: str = ""
    method: str = ""
    task_uri: str = ""
    warnings: list[str] = field(default_factory=list)

    @property
    def sentence(self) -> str:
        """For a person."""
        return f"{self.step.name} {self.step.image.version} is {self.state}"

    def to_json(self) -> Json:
        """For the module's result."""
        return {
            "components": [wish.id for wish in self.step.wishes],
            "installed": [wish.installed for wish in self.step.wishes],
            "version": self.step.image.version,
            "kind": self.step.kind,
            "state": self.state,
            "sent": self.sent,
            "method": self.method,
            "task": self.task_uri,
        }


@dataclass
class Installer:
    """Takes steps, one after the other. `sleep` can be replaced in tests."""

    client: RedfishClient
    service: UpdateService | None
    timeout_seconds: float
    system_id: str = ""
    poll_seconds: float = 3.0
    # A BMC that is back after its update and still runs the old version for so long has gone back to it.
    settle_seconds: float = 120.0
    sleep: Callable[[float], Any] = time.sleep

    def take(self, step: Step, staged: Staged, sending: Sending | None) -> Result:
        """Bring one image in, or find that it is there already.

        Raises:
            RedfishError: the BMC refused it, failed, or was not done in time.
        """
        if staged.state == "waiting":
            return Result(step, "staged", False, staged.where, task_uri=staged.task_uri)
        what = f"the update of {step.name} to {step.image.version}"
        follower = Follower(self.client, self.timeout_seconds, self.poll_seconds, self.sleep)
        if staged.state == "running" or sending is None:
            task: TaskView | None = follower.follow(staged.task_uri, what)
            method = ""
        else:
            # Time has passed since the checksum was taken, where the BMC was updated first.
            self._recheck(step)
            method = sending.method
            answer = self._send(sending, what)
            task = self._task_of(answer, follower, what)
        result = Result(step, "staged", sending is not None and staged.state == "none", method=method)
        if task is not None:
            result.task_uri = task.uri
            if task.state == "Gone" and step.kind != "bmc":
                result.warnings.append(
                    f"The BMC at {self.client.options.base_url} no longer knows its task of {what} ({task.uri}), as after a"
                    " restart of its own: the read-back after the restart of the host says what became of it"
                )
        if step.kind == "bmc":
            self._await_bmc(step, task, what)
            result.state = "active"
        elif self._runs(step):
            result.state = "active"
        return result

    @staticmethod
    def _recheck(step: Step) -> None:
        if step.file is not None and not is_unchanged(step.image, step.file):
            raise FirmwareError(
                [f"the image {step.image.file} changed in the middle of the run: run again when it is complete"]
            )

    # -- sending -----------------------------------------------------------------------------------------------------

    def _send(self, sending: Sending, what: str) -> Answer:
        """Send once; a BMC that is at another update is asked again until the time is over."""
        deadline = time.monotonic() + self.timeout_seconds
        while True:
            # Renews a session that ran out: an upload is not sent a second time.
            known = {task.uri for task in all_tasks(self.client)}
            try:
                if self.service is None:
                    raise AssertionError("an image is only sent to a service that was read")
                return send(self.client, self.service, sending, self.timeout_seconds)
            except BrokenUploadError as error:
                return self._after_break(error, known, what)
            except RedfishError as error:
                if not is_busy(error) or time.monotonic() > deadline:
                    raise
            self.sleep(retry_pause_seconds(self.client))

    def _after_break(self, error: BrokenUploadError, known: set[str], what: str) -> Answer:
        """After a connection that broke: the BMC may have got all of it, and then works on it."""
        if error.complete:
            self.sleep(self.poll_seconds)
            fresh = [task for task in all_tasks(self.client) if task.uri not in known]
            if len(fresh) == 1:
                return Answer(202, fresh[0].body, "", fresh[0].uri)
        raise RedfishError(
            f"{error}; {what} was not begun, as far as the BMC shows: nothing has changed. Check the network to it, and run again",
            transient=True,
        )

    @staticmethod
    def _task_of(answer: Answer, follower: Follower, what: str) -> TaskView | None:
        if answer.status != 202:
            return view(answer.body) if is_task(answer.body) else None
        # The task rather than its monitor where both are known: a monitor may go with its answer.
        uri = str(answer.body.get("@odata.id") or "") if is_task(answer.body) else ""
        uri = uri or answer.task_uri
        return follower.follow(uri, what) if uri else None

    # -- what runs ---------------------------------------------------------------------------------------------------

    def _runs(self, step: Step) -> bool:
        system = self.client.system(self.system_id)
        versions = {item["id"]: item["version"] for item in firmware_components(self.client, system)}
        return all(compare_versions(str(versions.get(wish.id) or ""), step.image.version) == 0 for wish in step.wishes)

    def _await_bmc(self, step: Step, task: TaskView | None, what: str) -> None:
        """Wait until the BMC answers with the new version. It restarts in between, and forgets our session."""
        for uri, kind in task.resets if task is not None else []:
            if "/Managers/" in uri:
                self.client.post(uri, {"ResetType": kind})
        deadline = time.monotonic() + self.timeout_seconds
        steady_since: float | None = None
        found = "no answer"
        while True:
            try:
                if self._runs(step):
                    return
                steady_since = steady_since if steady_since is not None else time.monotonic()
                found = f"it still runs {step.wishes[0].installed}"
            except RedfishError as error:
                # A BMC that starts may answer 404, or list no system yet. A login is not tried again: that locks accounts.
                if error.status in (401, 403):
                    raise
                steady_since, found = None, f"it cannot be asked ({error})"
            now = time.monotonic()
            if now > deadline or (steady_since is not None and now - steady_since > self.settle_seconds):
                said = f" (the task ended with: {task.complaint})" if task is not None and task.messages else ""
                raise RedfishError(
                    f"After {what} the BMC at {self.client.options.base_url} was expected to run {step.image.version}, but"
                    f" {found}{said}: look at its log; it may have gone back to its other bank"
                )
            self.sleep(self.poll_seconds)
