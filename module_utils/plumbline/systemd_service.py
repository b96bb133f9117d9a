"""What systemd and the journal say of a service, as plain functions over their output."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

PROPERTIES = (
    "LoadState",
    "UnitFileState",
    "ActiveState",
    "SubState",
    "Result",
    "MainPID",
    "NRestarts",
    "InvocationID",
    "NeedDaemonReload",
    "StatusText",
    "Job",
)

# The last line of a log that says what went wrong is seldom the last line. Ours first, then argparse's, then an exception's.
_CAUSES = (
    re.compile(r"^plumbline-[a-z-]+: (?:refused|error): (?P<cause>.+)"),
    re.compile(r"^plumbline-verify-model: (?P<cause>(?!.* bytes as recorded).+)"),
    re.compile(r"(?:^|\s)(?P<cause>[\w .-]*: error: .+)"),
    re.compile(r"(?:^|\s)(?P<cause>(?:[A-Za-z_.]+\.)?[A-Z]\w*(?:Error|Exception): .+)"),
    re.compile(r"^(?P<cause>\S+: (?:Failed to|Failed at step|Permission denied).+)"),
    re.compile(r"^plumbline-ready: not ready: (?P<cause>.+)"),
)
# `systemd-analyze security`: its last line, and the settings that it would rather see (a dash where the terminal has no Unicode).
_EXPOSURE = re.compile(r"Overall exposure level for \S+: ([0-9]+(?:\.[0-9]+)?)")
_LEFT_OPEN = re.compile(r"^\s*(?:\u2717|-) (\S+=\S*)\s", re.MULTILINE)
# What an engine says when something else had already gone wrong.
_CONSEQUENCE = re.compile(
    r"Engine core initialization failed|Engine process failed|See root cause above|EngineDeadError"
)


@dataclass(frozen=True)
class State:
    """The state of a unit, from `systemctl show`."""

    load: str
    enabled: bool
    active: str
    sub: str
    result: str
    main_pid: int
    restarts: int
    invocation: str
    needs_reload: bool
    status_text: str
    job_pending: bool

    @property
    def running(self) -> bool:
        """Tell whether it is up; for the serving unit that means ready."""
        return self.active == "active" and self.sub == "running" and not self.job_pending

    @property
    def failed_start(self) -> bool:
        """Tell whether the last start failed, whether systemd gave up or is about to try again."""
        return (
            self.active == "failed"
            or self.sub.startswith("auto-restart")
            or (self.active == "activating" and self.restarts > 0)
        )


def parse_show(text: str) -> State:
    """Return the state in the output of `systemctl show --property=...`."""
    values: dict[str, str] = dict(line.partition("=")[::2] for line in text.splitlines() if "=" in line)

    def number(name: str) -> int:
        value = values.get(name, "")
        return int(value) if value.isdigit() else 0

    return State(
        load=values.get("LoadState", ""),
        enabled=values.get("UnitFileState", "") == "enabled",
        active=values.get("ActiveState", ""),
        sub=values.get("SubState", ""),
        result=values.get("Result", ""),
        main_pid=number("MainPID"),
        restarts=number("NRestarts"),
        invocation=values.get("InvocationID", ""),
        needs_reload=values.get("NeedDaemonReload", "") == "yes",
        status_text=values.get("StatusText", ""),
        job_pending=bool(values.get("Job", "")) and values.get("Job") != "0",
    )


def parse_handed_on(text: str) -> dict[str, str]:
    """Return what Plumbline noted in a unit's section `X-Plumbline` (systemd leaves sections that start with X- alone).

    So that a stage that runs alone knows what the stages before it had handed on.
    """
    noted: dict[str, str] = {}
    inside = False
    for line in text.splitlines():
        if line.startswith("["):
            inside = line.strip() == "[X-Plumbline]"
        elif inside and "=" in line and not line.startswith("#"):
            name, _, value = line.partition("=")
            noted[name.strip()] = value.strip()
    return noted


def parse_record(text: str) -> dict[str, Any]:
    """Return what `plumbline-ready` recorded, or nothing where there is no whole record."""
    try:
        parsed = json.loads(text)
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def reasons_to_start(state: State, record: dict[str, Any], configuration: str, key_sha256: str) -> list[str]:
    """Return why the service must be (re)started to run as wanted; empty when it already does.

    The record of the last successful start is compared, not "did a task change a file in this run": so a run that was
    cut off between a change and the restart is made good by the next one.
    """
    if not state.running:
        return [f"it is {state.active or 'unknown'} ({state.sub or state.load or 'no unit'})"]
    if record.get("main_pid") != state.main_pid:
        return ["there is no record of a right completion since it was started"]
    reasons = []
    if record.get("configuration") != configuration:
        reasons.append("its configuration, engine or model changed")
    if record.get("key_sha256") != key_sha256:
        reasons.append("its API key changed")
    return reasons


def cause_from_journal(lines: Sequence[str]) -> str:
    """Return the one line of a failed start's log that says what went wrong; empty when none does."""
    for pattern in _CAUSES:
        for line in reversed(lines):
            match = pattern.search(line.strip())
            if match and not _CONSEQUENCE.search(line):
                return match.group("cause").strip()[:500]
    return ""


def was_refused(lines: Sequence[str]) -> bool:
    """Tell whether the endpoint answered wrongly, or its model may not serve: starting it again will not help."""
    return any(
        pattern.search(line.strip())
        for line in lines
        for pattern in _CAUSES[:2]
        if "plumbline-ready: error" not in line
    )


def parse_exposure(text: str) -> tuple[float | None, list[str]]:
    """Return the exposure (0 to 10) and what was left open, from the output of `systemd-analyze security UNIT`."""
    found = _EXPOSURE.search(text)
    return (float(found.group(1)) if found else None), _LEFT_OPEN.findall(text)
