"""Run `redfish_info` without a process of its own where it can be (the documentation is in library/redfish_info.py)."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline import redfish_here
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.controller import plain

_MODULE = redfish_here.prepare("redfish_info")


class ActionModule(ActionBase):
    TRANSFERS_FILES = False
    _supports_check_mode = True
    _supports_async = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        result.update(redfish_here.execute(self, _MODULE, plain(self._task.args), task_vars))
        return result
