"""Keep in the evidence what a machine is, so that screen and report can show it beside what was measured."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import host_marks
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.controller import plain
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.evidence import (
    append,
    envelope,
    evidence_path,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.machine import describe
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.screen import one_line


class ActionModule(ActionBase):
    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        facts = {"type": "dict", "default": {}}
        _spec, options = self.validate_argument_spec(
            {"node": {"type": "dict", "required": True}, **dict.fromkeys(("pcie", "dimm", "bmc", "sensors"), facts)}
        )
        variables = task_vars or {}
        keys = ("node", "pcie", "dimm", "bmc", "sensors")
        machine = describe(*(plain(options[key]) for key in keys))
        names = ("plumbline_run_id", "plumbline_artifacts_dir", "plumbline_stage", "inventory_hostname")
        run, artifacts, stage, host = (str(self._variable(variables, name) or "") for name in names)
        if not run or not artifacts:
            raise AnsibleActionFail(
                "The variables plumbline_run_id and plumbline_artifacts_dir must be set before the machine can be kept in the evidence, "
                "nothing was found: import playbooks/tasks/facts.yml in the play, as every playbook of Plumbline does."
            )
        path = evidence_path(artifacts, run, host)
        head = envelope(
            "machine",
            run=run,
            host=host,
            stage=stage or "none",
            task=self._task.get_name(),
            check_mode=bool(self._task.check_mode),
        )
        try:
            append(path, [{**head, "machine": machine}])
            # It answers, so a mark of a restart that it did not come back from has been true long enough.
            result["mark_removed"] = host_marks.remove(artifacts, host)
        except OSError as error:
            raise AnsibleActionFail(
                f"The evidence must be written to {path}, but {error.strerror or error}: "
                "make plumbline_artifacts_dir a folder that you may write to."
            ) from None
        result.update(changed=False, machine=machine, msg=one_line(machine), evidence=str(path))
        return result

    def _variable(self, variables: dict[str, Any], name: str) -> Any:
        return plain(self._templar.template(variables[name])) if name in variables else None
