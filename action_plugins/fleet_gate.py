"""Judge a host's figures beside those of the fleet, and stop the host alone where it deviates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible_collections.plumbline.plumbline.plugins.action.gate import ActionModule as GateAction
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.controller import plain
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.evidence import read
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.fleet import compared_names, judge_host


class ActionModule(GateAction):
    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super(GateAction, self).run(tmp, task_vars)
        _spec, options = self.validate_argument_spec(
            {"fleet": {"type": "dict", "required": True}, "rules": {"type": "dict", "default": {}}}
        )
        variables, groups = task_vars or {}, plain(options["fleet"]).get("groups")
        if not isinstance(groups, Mapping):
            raise AnsibleActionFail(
                "fleet: the registered result of the action fleet_info was expected, something without groups was found: "
                "run fleet_info with run_once before, as playbooks/tasks/fleet.yml does."
            )
        rules = self.rules(variables, plain(options["rules"]))
        path = self.evidence(variables)
        records = read(path, compared_names(rules)).records if path.exists() else []
        result.update(self.conclude(judge_host(records, groups, rules), variables))
        return result
