"""Counts, for each host, the tasks that reach it and the controller's CPU seconds; prints one JSON line at the end."""

from __future__ import annotations

import json
import resource
from collections import Counter
from typing import Any

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = """
name: node_tasks
type: aggregate
short_description: Count tasks that reach a host
description: A task that is skipped, is delegated to the controller, or is an action that works on the controller alone reaches no host.
"""

CONTROLLER_ACTIONS = {
    "add_host", "assert", "debug", "fail", "gate", "group_by", "import_playbook", "import_role", "import_tasks", "include_role",
    "include_tasks", "include_vars", "meta", "pause", "preflight", "set_fact", "set_stats", "validate_argument_spec",
}  # fmt: skip


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "node_tasks"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        super().__init__()
        self.reached: Counter[str] = Counter()
        self.by_stage: Counter[str] = Counter()
        self.stage = ""

    def v2_playbook_on_play_start(self, play: Any) -> None:
        self.stage = str(play.vars.get("plumbline_stage", play.get_name()))

    def count(self, result: Any) -> None:
        task = result._task
        if task.delegate_to in ("localhost", "127.0.0.1") or task.action.rsplit(".", 1)[-1] in CONTROLLER_ACTIONS:
            return
        self.reached[result._host.get_name()] += 1
        self.by_stage[self.stage] += 1

    def v2_runner_on_ok(self, result: Any) -> None:
        self.count(result)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        self.count(result)

    def v2_playbook_on_stats(self, stats: Any) -> None:
        usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        cpu_seconds = sum(item.ru_utime + item.ru_stime for item in usage)
        figures = {
            "node_tasks": dict(self.reached),
            "by_stage": dict(self.by_stage),
            "controller_cpu_seconds": round(cpu_seconds, 1),
            "changed": {host: stats.summarize(host)["changed"] for host in self.reached},
        }
        self._display.display("NODE_TASKS " + json.dumps(figures))
