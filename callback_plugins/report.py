"""Keep what no gate sees (failed tasks, restarts, the time of each stage) and make the report at the end of a run."""

from __future__ import annotations

import atexit
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible import constants as C  # noqa: N812 - its usual name
from ansible.errors import AnsibleError
from ansible.playbook.block import Block
from ansible.plugins.callback import CallbackBase
from ansible.template import Templar
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import host_marks
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.console import (
    one_message,
    screen_width,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.controller import (
    plain,
    variables_of,
    without_secrets,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.evidence import (
    append,
    envelope,
    evidence_path,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.report import summary
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.report.model import NOT_JUDGED
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.report.render import (
    link_latest,
    write_report,
)

DOCUMENTATION = r"""
name: report
type: notification
short_description: Make the report of a run from its evidence
version_added: 0.1.0
description:
  - Appends to a host's evidence what no gate sees, that is, tasks that failed, hosts that could not be reached, restarts
    (M(ansible.builtin.reboot), M(plumbline.plumbline.redfish_power), C(systemctl reboot), or a changed task with the
    tag C(reboot) of its own), and how long each stage took. Secrets are never written.
  - A host that answered its survey in this run and cannot be reached afterwards is marked in C(marks/HOST.json), in the folder
    of the evidence, until it answers a survey again.
  - At the end of the run, also when every host has failed, makes C(report.html), C(report.md) and C(junit.xml) beside
    the evidence and prints the gate table, the endpoint with one real answer, and the verdict.
  - C(failed=0) is not success. The verdict's OK is.
requirements:
  - enabled in configuration (callbacks_enabled)
author:
  - The Plumbline founders
"""

_GATES = frozenset({"gate", "plumbline.plumbline.gate", "fleet_gate", "plumbline.plumbline.fleet_gate"})
_COLORS = {"OK": C.COLOR_OK, "WARN": C.COLOR_WARN, "SKIPPED": C.COLOR_SKIP, NOT_JUDGED: C.COLOR_SKIP}


@dataclass
class _Tally:
    changed: int = 0
    failed: int = 0


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "plumbline.plumbline.report"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        super().__init__()
        self._play: Any = None
        self._stage = ""
        self._began = 0.0
        self._tallies: dict[str, _Tally] = {}
        # Where each host's evidence is; a gate says so, else the variables do.
        self._files: dict[str, Path] = {}
        self._process = os.getpid()

    def v2_playbook_on_start(self, playbook: Any) -> None:
        # Ctrl-C ends ansible-playbook without its last event, and a report is wanted then as well.
        atexit.register(self._interrupted)

    def v2_playbook_on_play_start(self, play: Any) -> None:
        self._end_stage()
        self._play = play
        self._stage = str(play.get_vars().get("plumbline_stage") or "")
        self._began = time.monotonic()

    def v2_runner_on_ok(self, result: Any) -> None:
        tally = self._tally(result)
        self._learn(result)
        if not result.result.get("changed"):
            return
        tally.changed += 1
        if _restarts(result.task, self._play) and not result.task.check_mode:
            self._keep(result, "restart", {"how": str(result.task_name), "seconds": result.result.get("elapsed")})

    def v2_runner_on_skipped(self, result: Any) -> None:
        self._tally(result)  # a stage that does not apply was come to all the same

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        self._learn(result)
        if ignore_errors:
            return
        handled = _has_rescue(result.task)
        if not handled:
            self._tally(result).failed += 1
        if result.task.action in _GATES and "checks" in result.result:
            return  # the gate has written every check itself
        self._keep(result, "failure", {"message": one_message(result.result), "unreachable": False, "handled": handled})

    def v2_runner_on_unreachable(self, result: Any) -> None:
        if result.task.ignore_unreachable:
            return
        self._tally(result).failed += 1
        message = one_message(result.result)
        self._keep(
            result,
            "failure",
            {"message": f"{message}{self._lost(result, message)}", "unreachable": True, "handled": False},
        )

    def _lost(self, result: Any, message: str) -> str:
        """Mark a host that answered its survey in this run and now does not, outside of the restart that expects it; what to tell of it."""
        host = result.host.get_name()
        variables = self._variables(host, result.task)
        evidence = self._files.get(host) or self._locate(host, variables)
        if evidence is None or result.task.check_mode or "survey_node" not in variables:
            return ""
        stage = str(variables.get("plumbline_stage") or self._stage or "none")
        reason = f"in the stage {stage}, at '{result.task_name}': {without_secrets(message, variables)}"
        try:
            path = host_marks.put(
                str(evidence.parent.parent), host, run=evidence.parent.name, reason=reason, because=stage, lost=True
            )
        except OSError as error:
            self._display.warning(f"{host} could not be marked as lost: {error}")
            return ""
        told = (
            f"{host} answered before and cannot be reached any more: it is marked in {path} until it answers a survey"
        )
        self._display.warning(told)
        return f"; {told}"

    def v2_playbook_on_stats(self, stats: Any) -> None:
        atexit.unregister(self._interrupted)
        self._end_stage()
        self._reports()

    def _interrupted(self) -> None:
        """Keep, for every host that the run knew, that it was not brought to its end, and make the report."""
        if os.getpid() != self._process or self._play is None:
            return  # a worker that was forked from the run
        stage, check_mode = self._stage or "none", bool(self._play.check_mode)
        self._end_stage()
        message = f"the run was ended early, in the stage {stage}; what comes after it was not done"
        for host, path in self._files.items():
            head = envelope("failure", run=path.parent.name, host=host, stage=stage, task="", check_mode=check_mode)
            self._append(path, head, {"message": message, "unreachable": False, "handled": False})
        self._reports()

    def _reports(self) -> None:
        for directory in sorted({path.parent for path in self._files.values() if path.exists()}):
            self._report(directory)

    def _report(self, directory: Path) -> None:
        try:
            written = write_report(directory)
            link_latest(directory)
        except OSError as error:
            self._display.warning(f"The report of {directory} could not be made: {error}")
            return
        except Exception as error:  # a fault of the report must not hide how the run ended; the evidence is safe
            self._display.warning(
                f"The report of {directory} could not be made ({type(error).__name__}: {error}); please report this."
            )
            return
        for line in summary.lines(written.report, screen_width()):
            self._display.display(line)
        self._display.display(f"Report: {written.html}")
        for problem in written.report.dropped:
            self._display.display(f"Damaged evidence: {problem}", color=C.COLOR_WARN)
        self._display.display(summary.verdict(written.report), color=_COLORS.get(written.report.status, C.COLOR_ERROR))

    def _tally(self, result: Any) -> _Tally:
        return self._tallies.setdefault(result.host.get_name(), _Tally())

    def _learn(self, result: Any) -> None:
        evidence = result.result.get("evidence")
        if result.task.action in _GATES and isinstance(evidence, str):
            self._files[result.host.get_name()] = Path(evidence)

    def _end_stage(self) -> None:
        tallies, self._tallies = self._tallies, {}
        if not self._stage or not tallies:
            return
        seconds = round(time.monotonic() - self._began, 3)
        for host, tally in tallies.items():
            path = self._files.get(host) or self._locate(host)
            if path is not None:
                head = envelope(
                    "stage",
                    run=path.parent.name,
                    host=host,
                    stage=self._stage,
                    task="",
                    check_mode=bool(self._play.check_mode),
                )
                self._append(path, head, {"seconds": seconds, "changed": tally.changed, "failed": tally.failed})

    def _keep(self, result: Any, kind: str, fields: dict[str, Any]) -> None:
        host = result.host.get_name()
        variables = self._variables(host, result.task)
        path = self._files.get(host) or self._locate(host, variables)
        if path is None:
            return
        for name, text in fields.items():
            if isinstance(text, str):
                fields[name] = without_secrets(text, variables)
        stage = str(variables.get("plumbline_stage") or self._stage or "none")
        check_mode = bool(result.task.check_mode)
        head = envelope(
            kind, run=path.parent.name, host=host, stage=stage, task=str(result.task_name), check_mode=check_mode
        )
        self._append(path, head, fields)

    def _append(self, path: Path, head: dict[str, Any], fields: dict[str, Any]) -> None:
        try:
            append(path, [{**head, **fields}])
        except OSError as error:
            self._display.warning(f"The evidence of {head['host']} could not be written to {path}: {error}")

    def _variables(self, host: str, task: Any = None) -> dict[str, Any]:
        return variables_of(self._play, host, task)

    def _locate(self, host: str, variables: dict[str, Any] | None = None) -> Path | None:
        """Return a host's evidence file by its variables; those of one host tell the folder of all in the play."""
        if variables is None:
            if self._files:
                some = next(iter(self._files.values()))
                return evidence_path(str(some.parent.parent), some.parent.name, host)
            variables = self._variables(host)
        try:
            templar = Templar(loader=self._play.get_loader(), variables=variables)
            run, artifacts = (
                plain(templar.template(variables.get(name))) for name in ("plumbline_run_id", "plumbline_artifacts_dir")
            )
        except AnsibleError:
            return None
        if not run or not artifacts:
            return None
        self._files[host] = evidence_path(str(artifacts), str(run), host)
        return self._files[host]


def _restarts(task: Any, play: Any) -> bool:
    """Return whether a task that changed something restarted the machine, wherever in the chain it stands.

    The tag counts where it is the task's; in a play that has it, every task does.
    """
    action = str(task.action).rsplit(".", 1)[-1]
    if action == "redfish_power":
        how = f"{task.args.get('state') or ''} {task.args.get('reset_type') or ''}".lower()
        return "cycle" in how or "restart" in how
    if action in ("shell", "command"):
        line = f"{task.args.get('_raw_params') or ''} {task.args.get('cmd') or ''}"
        if "systemctl reboot" in line or "shutdown -r" in line:
            return True
    return action == "reboot" or ("reboot" in (task.tags or []) and "reboot" not in (play.tags or []))


def _has_rescue(task: Any) -> bool:
    """Return whether a rescue section deals with the failure of a task."""
    child, parent = task, task._parent
    while parent is not None:
        if (
            isinstance(parent, Block)
            and parent.rescue
            and any(child is item or child._uuid == item._uuid for item in parent.block)
        ):
            return True
        child, parent = parent, getattr(parent, "_parent", None)
    return False
