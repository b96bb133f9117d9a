"""Refuse, before anything is touched, an inventory with unknown variables, wrong types or gates that cannot hold."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleError, AnsibleUndefinedVariable
from ansible.plugins.action import ActionBase
from ansible.utils.vars import load_extra_vars
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import host_marks, run_claims
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.controller import gate_problems, plain
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.cuda_compatibility import matrix_problems
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.variables import (
    UndefinedYetError,
    UnresolvableError,
    check_variables,
    load_catalogue,
)

# The collection has roles/ and meta/ beside plugins/. Not resolved: in a checkout, plugins/ is made of links.
_ROOT = Path(__file__).parents[2]
# Read while the strategy loads this plugin, before it forks: the workers of all hosts inherit the specs.
load_catalogue(_ROOT)

_UNDEFINED = re.compile(r"'(\w+)' is undefined")


class ActionModule(ActionBase):
    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        self.validate_argument_spec({})
        variables = task_vars or {}
        catalogue = load_catalogue(_ROOT)
        problems = check_variables(
            catalogue,
            variables,
            lambda name: self._resolve(variables, name),
            where=lambda name: _origin(name, variables),
            is_secret=lambda name: _is_encrypted(variables[name]),
            required_prefix=self._required_prefix(variables),
        )
        problems += self._gates(variables)
        problems += self._versions(variables)
        if not problems and (reason := self._without_evidence(variables) or self._other_run(variables)):
            result.update(changed=False, failed=True, problems=[reason], checked=len(variables), msg=reason)
            return result
        if mark := self._mark(variables):
            result["warnings"] = [*result.get("warnings", []), host_marks.told(mark)]
        checked = sum(name in catalogue.options for name in variables)
        result.update(changed=False, failed=bool(problems), problems=problems, checked=checked)
        host = variables.get("inventory_hostname", "this host")
        if problems:
            noun = "variable is" if len(problems) == 1 else f"{len(problems)} variables are"
            head = f"Nothing was touched on {host}, for {'one ' if len(problems) == 1 else ''}{noun} not sound:"
            result["msg"] = "\n".join([head, *(f"- {problem}" for problem in problems)])
        else:
            result["msg"] = f"{checked} variables are known and of their type."
        return result

    def _required_prefix(self, variables: dict[str, Any]) -> str:
        """Return the prefix of the play's own stage; the whole chain begins with the stage preflight, which wants all."""
        stage = self._resolve(variables, "plumbline_stage") if "plumbline_stage" in variables else "preflight"
        return "" if stage == "preflight" else f"{stage}_"

    def _without_evidence(self, variables: dict[str, Any]) -> str:
        """Return why no evidence of this run could be kept, or an empty text. Nothing is made here."""
        if "plumbline_artifacts_dir" not in variables:
            return ""
        wanted = Path(str(self._resolve(variables, "plumbline_artifacts_dir"))).expanduser().absolute()
        there = next(path for path in (wanted, *wanted.parents) if path.exists())
        if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
            return ""
        found = "is not writable for this user" if there.is_dir() else "is no folder"
        return (
            f"Expected the evidence of this run to fit under {wanted} (plumbline_artifacts_dir), but {there} {found}: make it"
            f" writable, or set PLUMBLINE_ARTIFACTS_DIR; nothing was touched on {variables.get('inventory_hostname')}."
        )

    def _other_run(self, variables: dict[str, Any]) -> str:
        """Return why this host must wait for another run, or an empty text; looking only needs no turn."""
        mine = os.environ.get("PLUMBLINE_RUN_PROCESS", "")
        if self._task.check_mode or not mine.isdigit() or "plumbline_artifacts_dir" not in variables:
            return ""
        host = str(variables.get("inventory_hostname"))
        other = run_claims.holder(str(self._resolve(variables, "plumbline_artifacts_dir")), host, int(mine))
        if other is None:
            return ""
        return (
            f"Expected {host} to be free, but {other.get('playbook') or 'another run'} of user {other.get('user')} (process "
            f"{other['pid']}) has been at work on it since {other.get('since')}: wait until that run has ended, or end it; "
            f"nothing was touched on {host}."
        )

    def _mark(self, variables: dict[str, Any]) -> host_marks.Mark | None:
        """Return the mark of a host that did not come back from a restart of an earlier run, or None."""
        if "plumbline_artifacts_dir" not in variables:
            return None
        return host_marks.get(
            str(self._resolve(variables, "plumbline_artifacts_dir")), str(variables.get("inventory_hostname"))
        )

    def _gates(self, variables: dict[str, Any]) -> list[str]:
        values: dict[str, Any] = {"gates_rules": {}, "gates_rules_overrides": {}, "gates_slo": None}
        for name in values:
            try:
                if name in variables:
                    values[name] = self._resolve(variables, name)
            except (UndefinedYetError, UnresolvableError):
                return []  # named by check_variables, or resting on a later stage
        if not all(value is None or isinstance(value, dict) for value in values.values()):
            return []  # check_variables has said so
        return gate_problems(values["gates_rules"], values["gates_rules_overrides"], values["gates_slo"])

    def _versions(self, variables: dict[str, Any]) -> list[str]:
        """Hold driver, CUDA, torch and vLLM of the inventory against each other, before anything is installed."""
        names = ("gpu_driver_version", "gpu_driver_cuda_version", "engine_version", "engine_kind", "engine_lock_file")
        try:
            wish = {name: self._resolve(variables, name) for name in names if name in variables}
        except (UndefinedYetError, UnresolvableError):
            return []  # named by check_variables, or resting on a later stage
        if wish.get("engine_kind") == "cpu" or any(not isinstance(value, str) for value in wish.values() if value):
            return []  # no GPU is meant, or check_variables has said that a version is no text
        own, kind = wish.get("engine_lock_file"), wish.get("engine_kind") or "auto"
        kinds = [kind] if kind in ("cuda12", "cuda13") else ["cuda13", "cuda12"]
        locks = [Path(own)] if own else [path for name in kinds if (path := _lock_of(name))]
        if not locks:
            return matrix_problems(wish, "", "")
        try:
            found = [matrix_problems(wish, path.read_text(encoding="utf-8"), path.name) for path in locks]
        except (OSError, UnicodeDecodeError):
            return []  # the engine stage names a lock that cannot be read
        # Where a choice is left to the machine's driver, one build that fits is enough; where none does, the preferred one says why.
        return [] if [] in found else found[0]

    def _resolve(self, variables: dict[str, Any], name: str) -> Any:
        try:
            return plain(self._templar.template(variables[name]))
        except AnsibleUndefinedVariable as error:
            named = _UNDEFINED.search(str(error))
            raise UndefinedYetError(named.group(1) if named else "") from error
        except AnsibleError as error:
            raise UnresolvableError(" ".join(str(error).split())) from error


def _lock_of(kind: str) -> Path | None:
    """Return one of Plumbline's locks for a build; they differ by Python, not by versions."""
    return next(iter(sorted(_ROOT.glob(f"roles/engine/files/locks/{kind}-*.txt"))), None)


def _is_encrypted(value: Any) -> bool:
    """Return whether a value came encrypted, in a vault string or a vault file."""
    tags = {type(tag).__name__ for tag in getattr(value, "_ansible_tags_mapping", {}).values()}
    return type(value).__name__ == "EncryptedString" or bool(tags & {"VaultedValue", "SourceWasEncrypted"})


def _origin(name: str, variables: dict[str, Any]) -> str:
    """Return file and line of a variable, where ansible-core knows it, or that it was given with ``-e``."""
    value, key = variables.get(name), next((key for key in variables if key == name), None)
    # The value knows best: a variable that is set twice keeps the name as the first file wrote it. What carries no
    # mark, such as true or null, is where its name is.
    if place := _place(value):
        return place
    given = getattr(load_extra_vars, "extra_vars", None) or {}
    return "-e" if name in given else _place(key)


def _place(thing: Any) -> str:
    for tag in getattr(thing, "_ansible_tags_mapping", {}).values():
        path, line = getattr(tag, "path", None), getattr(tag, "line_num", None)
        if path and line:
            file = Path(path)
            short = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
            return f"{short}:{line}"
    return ""
