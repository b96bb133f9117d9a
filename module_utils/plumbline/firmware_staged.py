"""Which updates lie ready in a machine and wait for its restart, as BMCs show it: in their tasks, or as entries of the inventory."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from .firmware_plan import Step, Wish
from .firmware_versions import compare_versions
from .redfish_document import mapping
from .redfish_task import FAILED, WAITING, TaskView

Json = dict[str, Any]
# Supermicro lists what lies ready as Staging_BIOS, Lenovo as UEFI-Pending.
_STAGED_ID = re.compile(r"^(?:Staging|Staged)[_-](?P<before>.+)$|^(?P<after>.+)[_-]Pending$")


def staged_for(identity: str) -> str:
    """The id of the component for which this entry of the inventory lies ready; empty where the entry is a component."""
    match = _STAGED_ID.match(identity)
    return "" if match is None else str(match.group("before") or match.group("after"))


_VERSION = re.compile(r"\d+(?:\.\d+)+")


@dataclass
class Staged:
    """What is known of an update: `state` is `none`, `running` or `waiting`; `where` says how it shows."""

    state: str = "none"
    where: str = ""
    task_uri: str = ""


def _word(text: str, words: str) -> bool:
    """Whether a text stands in others by itself; a part of a URI counts, a part of a version does not."""
    return re.search(rf"(?<![\w.-]){re.escape(text)}(?![\w-]|\.\w)", words, re.IGNORECASE) is not None


def _names_component(task: TaskView, wish: Wish) -> bool:
    component = wish.component
    uris = [
        str(component.get("source") or "").rstrip("/"),
        *(str(uri).rstrip("/") for uri in component.get("related", [])),
    ]
    # A bare number, as iLO has for ids, would be found everywhere.
    names = [str(component.get(key) or "") for key in ("id", "name")]
    known = [text for text in uris if text and text != "system"] + [text for text in names if len(text) > 2]
    return any(_word(text, task.words) for text in known)


def names_it(task: TaskView, step: Step) -> bool:
    """Whether a task is about this very image: it names the URI, or a component of the step and the version."""
    if step.image.uri and step.image.uri in task.words:
        return True
    return _word(step.image.version, task.words) and any(_names_component(task, wish) for wish in step.wishes)


def _without_version(task: TaskView, step: Step) -> bool:
    """Whether a task is about a component of the step and says of no version at all: so do Dell's jobs."""
    return not _VERSION.search(task.words) and any(_names_component(task, wish) for wish in step.wishes)


def _time(text: Any) -> datetime | None:
    try:
        return datetime.fromisoformat(str(text).replace("Z", "+00:00"))
    except ValueError:
        return None


def _after_boot(task: TaskView, system: Mapping[str, Any]) -> bool:
    """Whether a finished task ended after the machine's last start: only then it can still wait for the next one."""
    ended = _time(task.body.get("EndTime"))
    booted = _time(system.get("LastResetTime") or mapping(system, "BootProgress").get("LastStateTime"))
    try:
        return ended is not None and booted is not None and ended > booted
    except TypeError:  # one of them has no zone
        return False


def find_staged(step: Step, tasks: Sequence[TaskView], system: Mapping[str, Any]) -> Staged:
    """Look for the image of a step among what a BMC is at, or has lying ready."""
    waiting = [str(wish.component.get("staged_version") or "") for wish in step.wishes]
    if waiting and all(version and compare_versions(version, step.image.version) == 0 for version in waiting):
        return Staged("waiting", "the inventory shows it as staged")
    for task in reversed(tasks):
        if task.state in FAILED:
            continue
        if not names_it(task, step):
            if task.state != "Completed" and task.waits and _without_version(task, step):
                where = f"task {task.uri} waits for the restart; the BMC does not say with which version"
                return Staged("waiting", where, task.uri)
            continue
        if task.state in WAITING or (task.waits and task.state != "Completed"):
            return Staged("waiting", f"task {task.uri} is {task.state}", task.uri)
        if task.state == "Completed":
            if task.waits and _after_boot(task, system):
                return Staged("waiting", f"task {task.uri} is done and asks for a restart", task.uri)
            continue
        return Staged("running", f"task {task.uri} is {task.state}", task.uri)
    return Staged()


def last_failure(step: Step, tasks: Sequence[TaskView]) -> str:
    """What the BMC said of the last try with this image, where it failed; else empty."""
    for task in reversed(tasks):
        if names_it(task, step):
            return f"{task.complaint} (task {task.uri}, {task.state})" if task.state in FAILED else ""
    return ""
