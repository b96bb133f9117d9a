"""What happens to an image once the UpdateService has taken it: checked, written, staged, activated; each with a task."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import aiohttp

from .firmware import Image, ImageError, read_image
from .messages import message
from .rest import Reply
from .update_policy import Policy, is_older

if TYPE_CHECKING:
    from .service import Service

Json = dict[str, Any]
Fetch = Callable[[], Awaitable[bytes]]
# Messages of DMTF's Update registry, in words of our own: (severity, text).
_UPDATE_MESSAGES = {
    "TargetDetermined": ("OK", "{0} is to be updated with image {1}."),
    "AwaitToActivate": ("OK", "Image {0} on {1} waits for what activates it."),
    "UpdateSuccessful": ("OK", "{0} was updated with image {1}."),
    "ActivateFailed": ("Critical", "Image {0} could not be activated on {1}."),
}


def update_message(key: str, *arguments: str) -> Json:
    """Return a message of the Update registry."""
    severity, text = _UPDATE_MESSAGES[key]
    return {
        "@odata.type": "#Message.v1_2_1.Message",
        "MessageId": f"Update.1.0.{key}",
        "Message": text.format(*arguments),
        "MessageArgs": list(arguments),
        "MessageSeverity": severity,
        "Severity": severity,
        "Resolution": "None." if severity == "OK" else "Transfer the image again.",
    }


@dataclass
class Order:
    """What a request asked for."""

    targets: list[str]
    when: str
    force: bool
    uri: str
    payload: Json = field(default_factory=dict)


class UpdateWork:
    """The images under way, and those that are staged."""

    def __init__(self, service: Service, components: dict[str, Json], policy: Policy) -> None:
        """Take over what an earlier process left staged."""
        self.service = service
        self.components = components
        self.policy = policy
        self.staged: Json = service.state.section("staged_firmware", {})
        self.staged_bmc: Json = service.state.section("staged_bmc_firmware", {})
        self._work: dict[asyncio.Task[None], str] = {}

    @property
    def running(self) -> bool:
        """Whether an image is being written."""
        return any(not work.done() for work in self._work)

    def begin(self, fetch: Fetch, order: Order) -> Reply:
        """Start, and hand out the task."""
        identity = self.service.tasks.create("Firmware update")
        if order.payload:
            self.service.tasks.set_payload(identity, order.uri, order.payload)
        work = asyncio.get_running_loop().create_task(self._install(identity, fetch, order))
        self._work[work] = identity
        work.add_done_callback(lambda done: self._work.pop(done, None))
        return self.service.task_resources.accepted(identity)

    def _target(self, component: str) -> str:
        return f"{self.service.paths.firmware}/{component}"

    def _check(self, image: Image, order: Order) -> str:
        part = self.components.get(image.component)
        if part is None:
            raise ImageError(f"The image is for {image.component}, which this machine does not have.")
        if order.targets and image.component not in order.targets:
            raise ImageError(f"The image is for {image.component}, not for the target {', '.join(order.targets)}.")
        if not part.get("Updateable", False):
            raise ImageError(f"{image.component} cannot be updated.")
        model = self.service.profile.data["system"].get("Model", "")
        if image.models and model not in image.models:
            raise ImageError(f"The image fits {', '.join(image.models)}, not {model}.")
        installed = self.service.firmware_version(image.component)
        allowed = self.policy.downgrade == "allowed" or (self.policy.downgrade == "forced" and order.force)
        if is_older(image.version, installed) and not allowed:
            raise ImageError(f"{image.component} runs {installed}; going back to {image.version} is not allowed.")
        return str(part.get("Activation", "reset"))

    async def _install(self, identity: str, fetch: Fetch, order: Order) -> None:
        tasks = self.service.tasks
        pause = self.service.timing.update / 3
        try:
            tasks.update(identity, "Running", 5)
            data = await fetch()
            await asyncio.sleep(pause)
            tasks.update(identity, "Running", 40)
            image = read_image(data)
            activation = self._check(image, order)
            if self.policy.staged_as == "scheduled":
                tasks.rename(identity, f"Firmware Update: {image.component}")
            else:
                determined = update_message("TargetDetermined", self._target(image.component), image.version)
                tasks.update(identity, "Running", 50, determined)
            await asyncio.sleep(pause)
            if self.service.faults.take("update_stuck") is not None:
                await asyncio.Event().wait()  # until the BMC restarts
            fault = self.service.faults.take("update_fails")
            if fault is not None:
                raise ImageError(str(fault.parameters["message"]))
            tasks.update(identity, "Running", 80)
            await asyncio.sleep(pause)
        except (ImageError, aiohttp.ClientError, OSError, asyncio.TimeoutError) as error:
            text = str(error) or type(error).__name__
            tasks.update(identity, "Exception", 100, message("GeneralError", text))
            self.service.log.add("Warning", f"Firmware update failed: {text}")
            return
        if activation == "reset":
            self._stage(identity, image, order.when)
        elif activation == "bmc":
            self._stage_bmc(identity, image)
        else:
            self._runs(identity, image.component, image.version)
            self.service.state.save()

    def _runs(self, identity: str, component: str, version: str) -> None:
        self.service.firmware[component] = version
        done = update_message("UpdateSuccessful", self._target(component), version)
        self.service.tasks.update(identity, "Completed", 100, done, message("Success"))
        self.service.log.add("OK", f"{component} updated to {version}")

    def _stage(self, identity: str, image: Image, when: str) -> None:
        tasks, service = self.service.tasks, self.service
        older = self.staged.get(image.component)
        if older is not None:
            tasks.update(older["task"], "Cancelled", 100, message("GeneralError", "A newer image replaced it."))
        self.staged[image.component] = {"version": image.version, "task": identity}
        target = f"{service.paths.system}/Actions/ComputerSystem.Reset"
        kind = "ForceRestart" if service.power.state == "On" else "On"
        waits = update_message("AwaitToActivate", image.version, self._target(image.component))
        reset = message("ResetRequired", target, kind)
        if self.policy.staged_as == "scheduled":
            tasks.update(identity, "Starting", 0, message("GeneralError", "Task successfully scheduled."))
            tasks.set_dell_state(identity, "Scheduled")
        elif self.policy.staged_as == "pending":
            tasks.update(identity, "Pending", 90, waits, reset)
        else:
            tasks.update(identity, "Completed", 100, waits, reset)
        if when == "Immediate" and not service.power.busy:
            service.power.request(kind)

    def _stage_bmc(self, identity: str, image: Image) -> None:
        """A BMC runs its new image once it has restarted, by itself or when it is asked to."""
        self.staged_bmc[image.component] = image.version
        if self.policy.bmc_restart == "asked":
            target = f"{self.service.paths.manager}/Actions/Manager.Reset"
            waits = update_message("AwaitToActivate", image.version, self._target(image.component))
            self.service.tasks.update(
                identity, "Completed", 100, waits, message("ResetRequired", target, "GracefulRestart")
            )
            return
        self.service.tasks.update(identity, "Completed", 100, message("Success"))
        self.service.state.save()
        self.service.restart_bmc_soon()

    def activate_staged(self) -> None:
        """Do what POST does with staged images."""
        for component, staged in list(self.staged.items()):
            del self.staged[component]
            fault = self.service.faults.take("update_rolled_back")
            self.service.tasks.set_dell_state(staged["task"], "")
            if fault is None:
                self._runs(staged["task"], component, staged["version"])
                continue
            self.service.log.add("Critical", f"{component} {staged['version']} did not start; the old image runs")
            if not fault.parameters["silent"]:
                failed = update_message("ActivateFailed", staged["version"], self._target(component))
                self.service.tasks.update(staged["task"], "Exception", 100, failed)
            else:
                self.service.tasks.update(staged["task"], "Completed", 100, message("Success"))

    def bmc_goes_down(self) -> None:
        """Do what a restart of the BMC does: what is under way is lost, its own new image runs, tasks may be forgotten."""
        current = asyncio.current_task()
        for work, identity in list(self._work.items()):
            if work is not current and not work.done():
                work.cancel()
                text = "The BMC restarted in the middle of it."
                self.service.tasks.update(identity, "Interrupted", 100, message("GeneralError", text))
        for component, version in self.staged_bmc.items():
            if self.service.faults.take("update_rolled_back") is None:
                self.service.firmware[component] = version
                self.service.log.add("OK", f"{component} updated to {version}")
            else:
                self.service.log.add("Critical", f"{component} {version} did not start; the old image runs")
        self.staged_bmc.clear()
        if self.policy.tasks_after_bmc_restart == "gone":
            for identity in self.service.tasks.ids():
                self.service.tasks.remove(identity)
        self.service.state.save()

    async def stop(self) -> None:
        """End updates that are under way."""
        for work in list(self._work):
            work.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)
