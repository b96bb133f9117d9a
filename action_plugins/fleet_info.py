"""Read the evidence of the whole fleet once, on the controller, so that no host has to read that of all others."""

from __future__ import annotations

from typing import Any

from ansible_collections.plumbline.plumbline.plugins.action.gate import ActionModule as GateAction
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.controller import plain
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.fleet_evidence import survey_fleet


class ActionModule(GateAction):
    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super(GateAction, self).run(tmp, task_vars)
        _spec, options = self.validate_argument_spec({"rules": {"type": "dict", "default": {}}})
        variables = task_vars or {}
        rules = self.rules(variables, plain(options["rules"]))
        fleet = survey_fleet(self.evidence(variables).parent, rules)
        result.update(
            changed=False,
            groups=fleet.groups,
            hosts=fleet.hosts,
            earlier_hosts=fleet.earlier_hosts,
            files=fleet.files,
            msg=f"{len(fleet.groups)} kinds of figures on {fleet.hosts} hosts of this run"
            + (f" and {fleet.earlier_hosts} of former runs." if fleet.earlier_hosts else "."),
        )
        return result
