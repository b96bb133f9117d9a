"""Judge measurements on the controller, keep the evidence, and stop the host where a figure is not what it must be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.controller import effective_rules, plain
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.evidence import (
    append,
    envelope,
    evidence_path,
)
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.fleet import hardware_class
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.gates import Check, judge_all, worst


class ActionModule(ActionBase):
    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _spec, options = self.validate_argument_spec(
            {"measurements": {"type": "raw", "required": True}, "rules": {"type": "dict", "default": {}}}
        )
        variables = task_vars or {}
        checks = judge_all(plain(options["measurements"]), self.rules(variables, plain(options["rules"])))
        result.update(self.conclude(checks, variables))
        return result

    def rules(self, variables: dict[str, Any], more: Any) -> dict[str, Any]:
        """Return the rules that count for a host, those of the task (``more``) above all."""
        return effective_rules(
            self._variable(variables, "gates_rules", {}),
            self._variable(variables, "gates_rules_overrides", {}),
            self._variable(variables, "gates_slo", None),
            more,
        )

    def evidence(self, variables: dict[str, Any]) -> Path:
        """Return the file of a host's evidence in this run."""
        host = str(variables.get("inventory_hostname", ""))
        run, artifacts = self._text(variables, "plumbline_run_id"), self._text(variables, "plumbline_artifacts_dir")
        return evidence_path(artifacts, run, host)

    def conclude(self, checks: list[Check], variables: dict[str, Any]) -> dict[str, Any]:
        """Keep the evidence of checks and return what the task tells of them."""
        host, stage = str(variables.get("inventory_hostname", "")), self._text(variables, "plumbline_stage", "none")
        path, run = self.evidence(variables), self._text(variables, "plumbline_run_id")
        head = envelope(
            "check", run=run, host=host, stage=stage, task=self._task.get_name(), check_mode=bool(self._task.check_mode)
        )
        if endpoint := self._variable(variables, "serving_endpoint", ""):
            head["endpoint"] = str(endpoint)
        # As they were set, without templating: the survey of a large machine has tens of thousands of values.
        if hardware := plain(hardware_class(variables.get("survey_node"), variables.get("survey_pcie"))):
            head["hardware"] = hardware
        try:
            append(path, [{**head, **check.record()} for check in checks])
        except OSError as error:
            raise AnsibleActionFail(
                f"The evidence must be written to {path}, but {error.strerror or error}: "
                "make plumbline_artifacts_dir a folder that you may write to."
            ) from None
        # Samples stay in the evidence: thousands of numbers would only fill the screen and the registered variable.
        records = [{key: value for key, value in check.record().items() if key != "samples"} for check in checks]
        failed = [check for check in checks if check.failed]
        return {
            "changed": False,
            "status": worst(check.status for check in checks),
            "checks": records,
            "evidence": str(path),
            "stage": stage,
            "failed": bool(failed),
            "msg": _message(stage, checks, failed),
        }

    def _variable(self, variables: dict[str, Any], name: str, default: Any) -> Any:
        return plain(self._templar.template(variables[name])) if name in variables else default

    def _text(self, variables: dict[str, Any], name: str, default: str | None = None) -> str:
        value = self._variable(variables, name, default)
        if not isinstance(value, str) or not value:
            raise AnsibleActionFail(
                f"The variable {name} must be set before a gate can keep its evidence, nothing was found: "
                "import playbooks/tasks/facts.yml in the play, as every playbook of Plumbline does."
            )
        return value


def _message(stage: str, checks: list[Check], failed: list[Check]) -> str:
    if failed:
        head = f"{len(failed)} of {len(checks)} checks of stage {stage} did not pass."
        return "\n".join([head, *(check.line() for check in failed)])
    counts = ", ".join(
        f"{number} {status}"
        for status in ("OK", "WARN", "SKIPPED")
        if (number := sum(check.status == status for check in checks))
    )
    return f"Stage {stage}: {counts}."
