"""What a person watches: stages and gates as they pass, changes, failures, and what still runs."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from typing import Any

from ansible import constants as C  # noqa: N812 - its usual name
from ansible import context
from ansible.playbook.task_include import TaskInclude
from ansible.plugins.callback.default import CallbackModule as DefaultCallback
from ansible.utils import color
from ansible.utils.color import stringc
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.console import (
    SHOWN_HOSTS,
    check_details,
    check_line,
    elapsed,
    host_list,
    merge_checks,
    merge_scopes,
    one_message,
    plural,
    printable,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.controller import (
    variables_of,
    without_secrets,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.live_line import LiveLine, is_terminal

DOCUMENTATION = r"""
name: stages
type: stdout
short_description: Show the stages of a run, its gates as they pass, changes and failures
version_added: 0.1.0
description:
  - Shows a head for each play (stage), each check of a gate with what was measured and required, what changed and what
    failed with the message alone, and how long each stage took. Tasks that changed nothing are hidden.
  - On a terminal a line that moves tells what still runs; in a log a line does, after 10 s and then every 30 s.
  - With several hosts, checks that passed and are called the same are one line, and with more than four so is all else that is
    alike; of one host, where a gate has more than 8 checks.
  - C(-v) shows the tasks that changed nothing and the results too, C(-vvv) tracebacks.
  - The recap at the end is that of the default callback.
extends_documentation_fragment:
  - default_callback
  - result_format_callback
requirements:
  - set as stdout in configuration
author:
  - The Plumbline founders
"""

GATES = frozenset({"gate", "plumbline.plumbline.gate", "fleet_gate", "plumbline.plumbline.fleet_gate"})
_DEBUG = frozenset({"debug", "ansible.builtin.debug", "ansible.legacy.debug"})
_MACHINE = frozenset({"machine_record", "plumbline.plumbline.machine_record"})
_PAUSE = frozenset({"pause", "ansible.builtin.pause", "ansible.legacy.pause"})
_COLORS = {
    "OK": C.COLOR_OK,
    "SKIPPED": C.COLOR_SKIP,
    "WARN": C.COLOR_WARN,
    "UNKNOWN": C.COLOR_ERROR,
    "CRITICAL": C.COLOR_ERROR,
    "FAILED": C.COLOR_ERROR,
    "UNREACHABLE": C.COLOR_UNREACHABLE,
    "changed": C.COLOR_CHANGED,
    "ok": C.COLOR_OK,
    "ignored": C.COLOR_WARN,
}
_MARGIN = " " * 14
_MOST_CHECKS = 8  # of one gate that are shown one by one
_BOLD, _DIM = "1", "2"


def _style(text: str, code: str) -> str:
    """Make text bold or dim, which suits dark and light terminals alike, where Ansible colours at all."""
    return f"\033[{code}m{text}\033[0m" if color.ANSIBLE_COLOR and text else text


def _of_any_host(detail: str, host: Any) -> str:
    """A message without the host's name, by which it is alike on many; a longer name that begins with this one stays."""
    return re.sub(rf"(?<![\w.-]){re.escape(host.get_name())}(?![\w-]|\.\w)", "this host", detail)


class CallbackModule(DefaultCallback):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "plumbline.plumbline.stages"

    def __init__(self) -> None:
        super().__init__()
        self._stages = 0
        self._stage = 0
        self._stage_name = ""
        self._stage_began = 0.0
        self._counts: dict[str, int] = {}
        self._skip_reason = ""
        self._times: list[tuple[str, float]] = []
        self._wide = False
        self._several = False
        # With many hosts: (status, task, message) -> hosts, and the checks of the gate, until the task ends.
        self._alike: dict[tuple[str, str, str], list[str]] = {}
        self._checks: list[tuple[str, dict[str, Any]]] = []
        terminal = is_terminal()
        self._live = LiveLine(lambda line: self._display.display(_style(f"  …  {line}", _DIM)), sys.stdout, terminal)
        if terminal:
            self._display.display = self._cleared(self._display.display)

    def _cleared(self, display: Callable[..., Any]) -> Callable[..., Any]:
        """Wipe the live line before anybody, Ansible's own warnings included, prints another."""

        def cleared(*args: Any, **kwargs: Any) -> Any:
            self._live.clear()
            return display(*args, **kwargs)

        return cleared

    # Stages

    def v2_playbook_on_start(self, playbook: Any) -> None:
        super().v2_playbook_on_start(playbook)
        self._stages = len(playbook.get_plays())

    def v2_playbook_on_play_start(self, play: Any) -> None:
        self._end_stage()
        self._play = play
        self._stage += 1
        hosts = self._hosts_of(play)
        self._wide = len(hosts) > SHOWN_HOSTS
        self._several = len(hosts) > 1
        stage = play.get_vars().get("plumbline_stage")
        name = play.get_name().strip()
        self._stage_name = str(stage or name)
        self._stage_began = time.monotonic()
        self._counts = {}
        self._skip_reason = ""
        number = f"[{self._stage}/{self._stages}] " if self._stages > 1 else ""
        text = f"{stage}: {name}" if stage and stage != name else self._stage_name
        check = " (check mode: nothing is changed)" if play.check_mode else ""
        where = f"  {host_list(hosts, 3)}" if hosts else ""
        self._display.display("")
        self._display.display(_style(f"{number}{text}", _BOLD) + _style(f"{check}{where}", _DIM))

    def _hosts_of(self, play: Any) -> list[str]:
        try:
            return [host.name for host in play.get_variable_manager()._inventory.get_hosts(play.hosts)]
        except Exception:  # only the look depends on it, whatever the version of ansible-core
            return []

    def _end_stage(self) -> None:
        self._flush()
        if not self._stage_began:
            return
        took = time.monotonic() - self._stage_began
        self._times.append((self._stage_name, took))
        self._stage_began = 0.0
        words = [f"{number} {word}" for word, number in self._counts.items() if word not in ("ok", "skipped")]
        if not words and not self._counts.get("ok") and self._counts.get("skipped"):
            words = [f"nothing to do here{self._skip_reason}"]
        self._display.display(_style(f"  {elapsed(took)}" + (f": {', '.join(words)}" if words else ""), _DIM))

    def v2_playbook_on_no_hosts_matched(self) -> None:
        self._display.display("  skipped: no host of the inventory belongs to this stage", color=C.COLOR_SKIP)

    def v2_playbook_on_no_hosts_remaining(self) -> None:
        self._flush()
        self._display.display("  stopped: no host is left to go on with", color=C.COLOR_ERROR)

    # Tasks

    def _task_start(self, task: Any, prefix: str | None = None) -> None:
        self._flush()
        if prefix is not None:
            self._task_type_cache[task._uuid] = prefix
        self._last_task_name = task.get_name().strip()

    def _print_task_banner(self, task: Any) -> None:
        """The default callback prints a banner above diffs and items; here each line names its task itself."""
        self._last_task_banner = task._uuid

    def v2_runner_on_start(self, host: Any, task: Any) -> None:
        if task.action in _PAUSE:
            self._live.pause(True)
        self._live.start(task._uuid, task.get_name().strip(), host.get_name())

    def _done(self, result: Any) -> None:
        self._live.pause(False)
        self._live.stop(result.task._uuid, result.host.get_name())

    def v2_runner_on_ok(self, result: Any) -> None:
        self._done(result)
        if isinstance(result.task, TaskInclude):
            return
        self._handle_warnings(result.result)
        if self._gate(result):
            self._count("ok")
        elif result.result.get("changed", False):
            self._count("changed")
            self._line("changed", result, self._items(result))
        else:
            self._count("ok")
            if result.task.action in _DEBUG:
                self._debug(result)
            elif result.task.action in _MACHINE and not self._wide:
                which = f"{result.host.get_name()}: " if self._several else ""
                self._print("machine", which + printable(result.result.get("msg")))
            elif self._display.verbosity:
                self._line("ok", result)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        self._done(result)
        self._handle_warnings(result.result)
        if self._display.verbosity > 2:
            self._handle_exception(result.result)
        status = "ignored" if ignore_errors else "FAILED"
        if not self._gate(result):
            self._count(status)
            self._line(status, result, self._message(result))

    def _message(self, result: Any) -> str:
        variables = variables_of(self._play, result.host.get_name(), result.task)
        return without_secrets(one_message(result.result), variables)

    def v2_runner_on_unreachable(self, result: Any) -> None:
        self._done(result)
        self._count("UNREACHABLE")
        self._line("UNREACHABLE", result, self._message(result))

    def v2_runner_on_skipped(self, result: Any) -> None:
        self._done(result)
        self._count("skipped")
        condition = result.result.get("false_condition")
        if condition and not self._skip_reason:
            self._skip_reason = f", because this does not hold: {condition}"
        if self._display.verbosity > 1:
            self._display.display(f"  skipped     {self._name(result)}", color=C.COLOR_SKIP)

    def v2_runner_item_on_ok(self, result: Any) -> None:
        self._handle_warnings(result.result)
        if self._display.verbosity and not isinstance(result.task, TaskInclude):
            status = "changed" if result.result.get("changed", False) else "ok"
            self._line(status, result, f"item {self._get_item_label(result.result)}")

    def v2_runner_item_on_failed(self, result: Any) -> None:
        self._handle_warnings(result.result)
        self._line("FAILED", result, f"item {self._get_item_label(result.result)}: {self._message(result)}")

    def v2_runner_item_on_skipped(self, result: Any) -> None:
        pass

    def v2_runner_retry(self, result: Any) -> None:
        attempt, retries = result.result.get("attempts", 0), result.result.get("retries", 0)
        # What waits for hours says itself how far it is.
        told = printable(result.result.get("progress") or "")
        self._live.note(result.task._uuid, told or f"attempt {attempt + 1} of {retries}")
        if self._display.verbosity:
            self._line("ok", result, f"attempt {attempt} of {retries}: {one_message(result.result)}")

    def v2_runner_on_async_poll(self, result: Any) -> None:
        self._live.note(result.task._uuid, "in the background")

    def v2_runner_on_async_ok(self, result: Any) -> None:
        pass

    def v2_runner_on_async_failed(self, result: Any) -> None:
        pass

    def v2_playbook_on_include(self, included_file: Any) -> None:
        if self._display.verbosity > 1:
            super().v2_playbook_on_include(included_file)

    def v2_on_file_diff(self, result: Any) -> None:
        self._flush()
        super().v2_on_file_diff(result)

    # Lines

    def _name(self, result: Any) -> str:
        return str(result.task_name or result.task.get_name()).strip()

    def _count(self, word: str) -> None:
        self._counts[word] = self._counts.get(word, 0) + 1

    def _items(self, result: Any) -> str:
        items = result.result.get("results")
        if not (result.task.loop and isinstance(items, list)):
            return ""
        changed = sum(bool(item.get("changed")) for item in items if isinstance(item, dict))
        return f"{changed} of {plural(len(items), 'item')}"

    def _debug(self, result: Any) -> None:
        self._clean_results(result.result, result.task.action)
        message = result.result.get("msg")
        if isinstance(message, list) and all(isinstance(line, str) for line in message):
            message = "\n".join(message)
        text = message if isinstance(message, str) else self._dump_results(result.result, indent=2)
        self._display.display("\n".join(f"{_MARGIN}{line}".rstrip() for line in text.splitlines()))

    def _line(self, status: str, result: Any, detail: str = "") -> None:
        if self._display.verbosity and self._run_is_verbose(result) and status != "FAILED":
            detail += (" " if detail else "") + self._dump_results(result.result)
        elif self._display.verbosity > 2:
            detail += "\n" + self._dump_results(result.result, indent=2)
        host = self.host_label(result)
        if self._wide:
            key = (status, self._name(result), detail if result.task.run_once else _of_any_host(detail, result.host))
            self._alike.setdefault(key, []).append(host)
            return
        self._print(status, f"{self._name(result)}{self._at(host)}", detail, result.task)

    def _at(self, host: str) -> str:
        return f" [{host}]"

    def _print(self, status: str, head: str, detail: str = "", task: Any = None) -> None:
        shade = _COLORS.get(status)
        lines = detail.splitlines()
        one_line = len(lines) == 1 and status not in ("FAILED", "UNREACHABLE", "ignored")
        text = f"{head}: {detail}" if one_line else head
        failed = status in ("FAILED", "UNREACHABLE")
        stderr = failed and self.get_option("display_failed_stderr")
        self._display.display(
            "  " + stringc(f"{status:<11}", shade) + " " + (stringc(text, shade) if failed else text), stderr=stderr
        )
        if not one_line:
            for line in lines:
                self._display.display(f"{_MARGIN}{line}", color=shade if failed else None, stderr=stderr)
        if failed and task is not None and (path := task.get_path()):
            self._display.display(_style(f"{_MARGIN}at {path}", _DIM), stderr=stderr)

    def _gate(self, result: Any) -> bool:
        """Show the checks of a gate; return whether the task was one that judged."""
        checks = result.result.get("checks")
        if result.task.action not in GATES or not isinstance(checks, list):
            return False
        host = self.host_label(result)
        # What passed is told in short where it would fill the screen; -v shows each.
        together = self._wide or (self._several and not self._display.verbosity)
        short = not together and len(checks) > _MOST_CHECKS and not self._display.verbosity
        for check in checks:
            self._count(str(check.get("status")))
            if check.get("status") not in ("OK", "SKIPPED") or not (together or short):
                self._check(host, check)
            elif together:
                self._checks.append((host, check))
        if short:
            for status, line in merge_scopes(checks):
                self._print(status, line)
        return True

    def _check(self, host: str, check: dict[str, Any]) -> None:
        where = self._at(host) if self._several or check.get("status") not in ("OK", "SKIPPED") else ""
        status = str(check.get("status"))
        shade = _COLORS.get(status, C.COLOR_ERROR)
        self._display.display("  " + stringc(f"{status:<11}", shade) + f" {check_line(check)}{where}")
        for line in check_details(check):
            self._display.display(f"{_MARGIN}{line}", color=shade)

    def _flush(self) -> None:
        """Print what was kept back to be told for many hosts at once."""
        checks, self._checks = self._checks, []
        alike, self._alike = self._alike, {}
        for status, line in merge_checks(checks):
            self._print(status, line)
        for (status, name, detail), hosts in alike.items():
            self._print(status, f"{name} [{host_list(hosts)}]", detail)

    # The end

    def v2_playbook_on_stats(self, stats: Any) -> None:
        self._end_stage()
        self._live.end()
        if len(self._times) > 1:
            total = sum(seconds for _name, seconds in self._times)
            slow = ", ".join(f"{name} {elapsed(seconds)}" for name, seconds in self._times if seconds >= 1)
            self._display.display("")
            self._display.display(_style(f"{elapsed(total)} in all" + (f": {slow}" if slow else ""), _DIM))
        super().v2_playbook_on_stats(stats)
        if context.CLIARGS.get("check") and not self.get_option("check_mode_markers"):
            self._display.display(_style("This was check mode: nothing was changed.", _DIM))
