"""Carry the engine's plugins from the controller to `engine_environment` (the documentation is in library/engine_environment.py)."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.controller import plain
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.engine_plugin_wheel import plugin_wheel
from ansible_collections.plumbline.plumbline.plugins.module_utils.plumbline.engine_plugins import PluginError

# The collection has engine_plugins/ beside plugins/. Not resolved: in a checkout, plugins/ is made of links.
_SHIPPED = Path(__file__).parents[2] / "engine_plugins"


class ActionModule(ActionBase):
    TRANSFERS_FILES = False
    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        wanted = plain(arguments.pop("plugins", None)) or []
        try:
            wheels = [plugin_wheel(one, _SHIPPED) for one in (wanted if isinstance(wanted, list) else [wanted])]
        except PluginError as error:
            result.update(failed=True, changed=False, msg=f"{error}.")
            return result
        except OSError as error:
            result.update(
                failed=True,
                changed=False,
                msg=f"engine_plugins: a plugin could not be read on the controller ({error}): look at its files.",
            )
            return result
        arguments["plugin_wheels"] = [
            {"filename": wheel.filename, "content": base64.b64encode(wheel.content).decode()} for wheel in wheels
        ]
        result.update(self._execute_module(module_args=arguments, task_vars=task_vars))
        # What was carried is of no use to a reader, and long.
        result.get("invocation", {}).get("module_args", {}).pop("plugin_wheels", None)
        return result
