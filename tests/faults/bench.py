"""What a fault is, and how a captured machine is looked at: by the modules as Ansible runs them, and by the gate's own rules."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from ansible.module_utils.testing import patch_module_args
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.gates import Check, judge_all

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests/fixtures"
RULES = yaml.safe_load((ROOT / "group_vars/all/gates.yml").read_text())["gates_rules"]
ALARMS = ("WARN", "UNKNOWN", "CRITICAL")
DAY_SECONDS = 86400.0

Alarm = tuple[str, str, str]
"""Status, name and scope of a check that did not pass."""


@dataclass(frozen=True)
class Fault:
    """One injected fault.

    `alarms` are all checks that may not pass, no more and no less; `says` are texts that the first of them must tell a person.
    """

    kind: str
    name: str
    machine: str
    inject: Callable[[Any], None]
    alarms: tuple[Alarm, ...]
    says: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.kind}: {self.name}"


def run_module(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """The result of a module's `main`, as Ansible would get it."""
    module = importlib.import_module(f"ansible_collections.plumbline.plumbline.plugins.modules.{name}")
    printed = io.StringIO()
    with patch_module_args(arguments), contextlib.redirect_stdout(printed):
        try:
            module.main()
        except SystemExit:
            pass
        else:
            raise AssertionError(f"{name} ended without a result")
    result = json.loads(printed.getvalue())
    assert isinstance(result, dict)
    return result


class Machine:
    """A machine on disk: `modules` look at it, `faulty` injects something for a while."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.put("/proc/uptime", f"{DAY_SECONDS} 1")

    def put(self, path: str, text: str) -> Path:
        """Write a file of the machine."""
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(f"{text}\n")
        return target

    def measurements(self) -> list[dict[str, Any]]:
        """What the modules measure; every one of them must give a result."""
        raise NotImplementedError

    def look(self, name: str, **arguments: Any) -> list[dict[str, Any]]:
        """The measurements of one module."""
        result = run_module(name, {"root": str(self.root), **arguments})
        assert not result.get("failed"), result
        found = result["measurements"]
        assert isinstance(found, list)
        return found

    def checks(self) -> list[Check]:
        """Everything measured and judged."""
        return judge_all(self.measurements(), RULES)

    def alarms(self) -> list[Check]:
        """The checks that did not pass."""
        return [check for check in self.checks() if check.status in ALARMS]

    def restore(self) -> None:
        """Put back what a fault changed; nothing to do for a machine that is made anew for each."""


def told(check: Check) -> str:
    """All that a person reads of a check."""
    return f"{check.reason} | {check.cause} | {check.next_command}"
